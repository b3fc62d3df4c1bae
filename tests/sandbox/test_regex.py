"""`regex`: what RE2 finds, in the form in which Lua's own functions return it, bounded by the run's own limits."""

import random
import re
import time
from contextlib import suppress
from typing import Any

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st
from lua_support import error_of, run, value_of

from sandbox.natives import regex

ALL = "local t = table.pack(CALL) for i = 1, t.n do if t[i] == nil then t[i] = json.null end end t.n = nil return t"


def returned(call: str) -> list[Any]:
    """All that the call returns; nil is None."""
    return list(value_of(ALL.replace("CALL", call)))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("regex.find('hello world', 'o w')", [5, 7]),
        (r"regex.find('key=val', [[(\w+)=(\w+)]])", [1, 7, "key", "val"]),
        ("regex.find('aXbX', 'X', 3)", [4, 4]),
        ("regex.find('aXbX', 'X', -1)", [4, 4]),
        ("regex.find('abc', '', 4)", [4, 3]),
        ("regex.find('abc', '', 5)", [None]),
        ("regex.find('abc', '^b', 2)", [None]),
        ("regex.match('a1', '([a-z])(x)?([0-9])')", ["a", None, "1"]),
        ("regex.match('abc', 'b')", ["b"]),
        ("regex.match('abc', 'x')", [None]),
        ("regex.match('ÄB', '(?i)äb')", ["ÄB"]),
        ("regex.gsub('abc', '', '-')", ["-a-b-c-", 4]),
        ("regex.gsub('äß', '', '-')", ["-ä-ß-", 3]),
        ("regex.gsub('abc', '[a-c]', '<%0%%>')", ["<a%><b%><c%>", 3]),
        ("regex.gsub('abc', '(x)?b', '[%1]')", ["a[]c", 1]),
        (r"regex.gsub('a b', [[\w]], {a = '1', b = false})", ["1 b", 2]),
        ("regex.gsub('ab', '(.)(.)', function(x, y) return y .. x end)", ["ba", 1]),
        ("regex.gsub('aaa', 'a', 'b', 2)", ["bba", 2]),
        ("regex.gsub('aaa', 'a', 'b', 0)", ["aaa", 0]),
        ("regex.gsub('aaa', 'a', 7)", ["777", 3]),
        ("regex.split('a, b;c', '[,;] *')", [["a", "b", "c"]]),
        ("regex.split('a,b,c', ',', 2)", [["a", "b,c"]]),
        ("regex.split(',a,', ',')", [["", "a", ""]]),
        ("regex.split('', ',')", [[""]]),
        ("regex.split('äbc', '')", [["ä", "b", "c"]]),
    ],
)
def test_a_call_returns_what_luas_own_function_of_that_name_would(call: str, expected: list[Any]) -> None:
    assert returned(call) == expected


@pytest.mark.parametrize("pattern", ["o*", "l", "", "[a-z]*", "w?o"])
def test_empty_matches_are_replaced_where_luas_own_function_replaces_them(pattern: str) -> None:
    ours, luas = (returned(f"{library}.gsub('hello world', '{pattern}', 'x')") for library in ("regex", "string"))
    assert ours == luas


def test_an_iteration_fetches_more_as_it_goes_on_and_may_end_early() -> None:
    assert value_of("local n = 0 for w in regex.gmatch(('ab '):rep(9999), '[a-z]+') do n = n + 1 end return n") == 9999
    assert value_of("for a, b in regex.gmatch('a1 b2', '([a-z])([0-9])') do return {a, b} end") == ["a", "1"]
    assert value_of("local n = 0 for _ in regex.gmatch('abc', 'x') do n = n + 1 end return n") == 0


@given(
    st.text(alphabet="aäb1 \n", max_size=40), st.sampled_from(["a*", "(?:a|b)+", "[^a]", "ä?b", r"\d|\s", "a|(?:)", ""])
)
def test_the_matches_are_those_of_re_but_for_empty_ones_behind_another(text: str, pattern: str) -> None:
    last, expected = -1, []
    for match in re.finditer(pattern, text):
        if match.end() > match.start() or match.start() != last:
            expected.append(match.group())
        last = match.end()
    collect = "local s, p = ... local t = json.array({}) regex.gsub(s, p, function(m) t[#t + 1] = m end) return t"
    assert value_of(collect, text, pattern) == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("regex.find('a', '(')", "the pattern is not valid: missing ): ("),
        (r"regex.find('a', [[(a)\1]])", "the pattern is not valid: invalid escape sequence"),
        ("regex.find('a', ('a'):rep(1 << 20))", "the pattern has 1048576 bytes; the most is 65536"),
        ("regex.find('a', 'a{2000000}')", "the pattern is not valid: invalid repetition size"),
        ("regex.find('a', ('('):rep(20000) .. (')'):rep(20000))", "the pattern"),
        ("regex.find('a', ('[a-z]{999}'):rep(999))", "too large when it is compiled"),
        (r"regex.find('a', '\xff')", "the pattern is not UTF-8"),
        ("regex.find({}, 'a')", "the text must be a string, got table"),
        ("regex.gsub('a', 'a', print, -1)", "the limit must be a whole number of 0 or more, got -1"),
        ("regex.gsub('a', 'a', function() return {} end)", "the replacement is a table"),
        ("regex.gsub('a', 'a', '%x')", "% in the replacement must be followed by a digit or by %"),
        ("for _ in regex.gmatch('a', '(') do end", "the pattern is not valid"),
        ("regex.split('a', '(')", "the pattern is not valid"),
    ],
)
def test_bad_input_is_an_error_at_the_scripts_line(call: str, message: str) -> None:
    said = error_of(f"\n{call}")
    assert re.match(r"t\.lua:2: regex\.\w+: ", said), said
    assert message in said


def test_in_a_callback_of_c_it_is_refused_and_says_so() -> None:
    for call in ("regex.find('a', 'a')", "coroutine.wrap(function() return regex.find('a', 'a') end)()"):
        said = error_of(f"table.sort({{2, 1}}, function() {call} end)")
        assert "regex.find cannot be called here: inside a callback" in said


def test_it_can_be_called_in_coroutines_and_in_parallel_beside_host_calls() -> None:
    ran = run(
        "local wrapped = coroutine.wrap(function() coroutine.yield((regex.match('a1', '[0-9]'))) end) "
        "local two = context.parallel({function() return (regex.match('b2', '[0-9]')) end, "
        "function() local found = context.search('x').query return found .. regex.match('c3', '[0-9]') end}) "
        "return {wrapped(), two[1], two[2]}"
    )
    assert ran.value == ["1", "2", "x3"]
    assert [name for name, _ in ran.calls] == ["context.search"]


def test_a_script_that_does_not_name_it_in_its_text_has_it_too() -> None:
    assert value_of("return (_G['re' .. 'gex'].match('a1', '[0-9]'))") == "1"
    count = "local names = {} for name in pairs(regex) do names[#names + 1] = name end return #names"
    assert value_of(count, given=False) == 5


def test_what_a_script_puts_into_the_library_stays() -> None:
    assert value_of("regex.find = 5 return {regex.find, (regex.match('a', 'a'))}") == [5, "a"]
    assert value_of("return getmetatable(regex) == false and pcall(setmetatable, regex, {}) == false")


def test_a_text_that_is_not_utf8_is_searched_as_far_as_it_is() -> None:
    assert value_of(r"local a, b = regex.find('\xff\xfeab', 'a.') return {a, b}") == [3, 4]


def _arguments(pattern: bytes, text: bytes, most: int = 1) -> bytes:
    return regex._HEAD.pack(0, -1, most, len(pattern)) + pattern + text


def test_time_grows_with_the_text_and_not_with_what_could_match() -> None:
    def seconds(size: int) -> float:
        arguments = _arguments(b"(x+x+)+y|(a|a)+b", b"a" * size)
        began = time.thread_time()
        regex.matches(arguments)
        return time.thread_time() - began

    seconds(100)
    small, large = min(seconds(50_000) for _ in range(5)), min(seconds(500_000) for _ in range(5))
    assert large < 40 * small + 0.001


def test_compiled_patterns_are_bounded_and_forgotten_with_the_run() -> None:
    regex.forget()
    re2.purge()
    for number in range(100):
        regex.matches(_arguments(b"p%d" % number, b"text"))
        assert len(regex._compiled) <= regex._PATTERNS
        assert re2._Regexp._make.cache_info().currsize <= regex._PATTERNS + 1
    regex.forget()
    assert regex._compiled == {}


def test_any_bytes_as_pattern_give_matches_or_a_refusal() -> None:
    source = random.Random(7)
    for _ in range(300):
        pattern = bytes(source.choice(b"()[]{}*+?|^$.\\abc01,-\xc3\xa4") for _ in range(source.randrange(12)))
        with suppress(regex.Refused):
            regex.matches(_arguments(pattern, "abcä01".encode(), most=10))
    regex.forget()


@pytest.mark.parametrize("pattern", ["a", "", "a*", "(é)|b", "^", "$", "x?", "[^a]", "zzz", "(?:ab)+"])
@pytest.mark.parametrize("limit", ["nil", "0", "1", "3", "1 << 40"])
def test_a_fixed_replacement_is_the_same_in_one_call_and_match_by_match(pattern: str, limit: str) -> None:
    for text in ("", "a", "aabé漢ab\xff".replace("\xff", "\\xff"), "abab" * 50):
        call = f"regex.gsub('{text}', [=[{pattern}]=], %s, {limit})"
        found = value_of(
            f"local a, m = {call.replace('%s', repr('_'))} "
            f"local b, n = {call.replace('%s', 'function() return [[_]] end')} return {{ a == b, m == n }}"
        )
        assert found == [True, True], (text, pattern, limit)

"""`text`: by characters, whatever the bytes."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lua_support import error_of, value_of

TEXT = st.text(alphabet="aB äßЖ漢😀\t\n", max_size=30)


@given(TEXT, st.integers(-8, 8), st.integers(-8, 8))
def test_a_part_is_that_of_string_sub_with_characters_for_bytes(s: str, i: int, j: int) -> None:
    """The rules of `string.sub`: one byte stands for each character here."""
    alike = value_of("return string.sub(...)", "".join(chr(32 + n) for n in range(len(s))), i, j)
    expected = "".join(s[ord(c) - 32] for c in alike)
    assert value_of("return text.sub(...)", s, i, j) == expected
    assert value_of("return text.len((...))", s) == len(s)


@given(st.binary(max_size=12), st.integers(-5, 5), st.integers(-5, 5))
def test_bytes_that_are_no_text_are_no_error_and_none_is_lost(raw: bytes, i: int, j: int) -> None:
    lua = "".join(f"\\{byte:03}" for byte in raw)
    assert value_of(f"local s = '{lua}' return s:find(text.sub(s, {i}, {j}), 1, true) ~= nil and text.len(s) <= #s")
    assert value_of(f"local s = '{lua}' return text.sub(s, 1, 2) .. text.sub(s, 3) == s")


def test_case_is_the_simple_mapping_of_unicode() -> None:
    for lua, changed in (("upper", str.upper), ("lower", str.lower)):
        everything = [chr(c) for c in range(0x20, 0x1F000) if not 0xD800 <= c < 0xE000]
        expected = "".join(changed(c) if len(changed(c)) == 1 else c for c in everything)
        assert value_of(f"return text.{lua}(...)", "".join(everything)) == expected
    assert value_of("return text.title(...)", "élan vital o'neil ÄB-cd") == "Élan Vital O'neil Äb-Cd"


@given(TEXT)
def test_words_are_those_of_python_where_white_space_is_asciis(s: str) -> None:
    assert value_of("return text.split((...))", s) == s.split()
    assert value_of("return text.trim((...))", s) == s.strip()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("text.split('a.b.c', '.')", ["a", "b", "c"]), ("text.split('a.b.c', '.', 2)", ["a", "b.c"]),
        ("text.split('', ',')", [""]), ("text.split('')", []), ("text.split('a--b', '--')", ["a", "b"]),
        ("text.split(' a b  c ', nil, 2)", ["a", "b  c"]),
        ("text.wrap('aa bb cc', 5)", "aa bb\ncc"), ("text.wrap('aaaaaaaa b', 3)", "aaaaaaaa\nb"),
        ("text.wrap('  äöü xyz', 6)", "  äöü\n  xyz"), ("text.wrap('a\\n\\nb', 9)", "a\n\nb"),
        ("text.similarity('night', 'nacht')", 0.25), ("text.similarity('A', 'a')", 1.0),
        ("text.similarity('a', 'b')", 0.0), ("text.similarity('', '')", 1.0),
        ("text.tokens('')", 0), ("text.tokens('abcde')", 2), ("text.tokens('漢字')", 2),
    ],
)  # fmt: skip
def test_a_call_returns(call: str, expected: object) -> None:
    assert value_of(f"return {call}") == expected


@given(st.text(alphabet="a \t\n", max_size=40))
def test_dedent_is_that_of_python(s: str) -> None:
    assert value_of("return text.dedent((...))", s) == textwrap.dedent(s)


@pytest.mark.parametrize(
    "call",
    [
        "text.sub()", "text.sub('a')", "text.sub('a', 'x')", "text.sub('a', 1, {})", "text.wrap('a', 0)", "text.len(1)",
        "text.split('a', 5)", "text.split('a', ',', 0)", "text.upper(nil)", "text.similarity('a')",
        "text.sub('a', 1e300)",
    ],
)  # fmt: skip
def test_a_wrong_argument_is_an_error_at_the_scripts_line(call: str) -> None:
    assert error_of(f"\n{call}").startswith("t.lua:2: text.")

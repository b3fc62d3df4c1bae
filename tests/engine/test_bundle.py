"""Which files a script requires: what its text says, compared with what Lua does; names, bounds and cycles."""

import time
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lupa.lua54 import LuaError, LuaRuntime

from engine.bundle import (
    _DULL,
    MAX_FILES,
    MAX_NAME_BYTES,
    MAX_STEPS,
    NotBundled,
    Steps,
    Unreadable,
    bundle,
    bundle_of,
    file_of,
    requires,
)

MOST = 1 << 20


def names(source: str | bytes) -> list[str]:
    raw = source if isinstance(source, bytes) else source.encode()
    return [name.decode() for name, _ in requires(raw)]


FOUND = {
    'require("./a")': ["./a"],
    "require './a'": ["./a"],
    "require[[./a]]": ["./a"],
    "require [==[./a]==]": ["./a"],
    "require[[\n./a]]": ["./a"],
    "require ( './a' )": ["./a"],
    "require --x\n (--[[y]] './a' --[=[z]=])": ["./a"],
    'x = "a"..require("./a")': ["./a"],
    "::require::require('./a')": ["./a"],
    "require('./a')require('./b')": ["./a", "./b"],
    "require('./a') require './a'": ["./a"],
    r"require('.\47\x61')": ["./a"],
    r"require('./\z   a')": ["./a"],
    "require('./a') .. x": ["./a"],
    "f(require './a', require './b')": ["./a", "./b"],
    "require('json')": ["json"],
    "local t = { require = 1, [1] = require './a' }": ["./a"],
    "x = y.z require('./a')": ["./a"],
    "x = 1 . --c\n q require('./a')": ["./a"],
}
NOT_FOUND = (
    "require", "require()", "require(a)", "require('./a' .. b)", "require(('./a'))", "require('./a', 1)",
    "local require", "x.require('./a')",
    "x:require('./a')", "x . require './a'", "x: --c\n require './a'", "x.--[[c]]require'./a'",
    "'require(\"./a\")'", '"require(\'./a\')"', "[[require('./a')]]", "[=[ ]] require('./a') ]=]",
    "-- require('./a')", "--[[ require('./a') ]]", "--[==[\nrequire('./a')\n]==]", "--[[ require('./a')",
    "[[ require('./a')", "'\\' require(\"./a\")'", "'\\z\n require(\"./a\")'", "prerequire('./a')", "require_('./a')",
    "require1('./a')", "require = './a'", "require\\'./a'", "'\\\n require('./a')", "--[ [ require('./a')",
)  # fmt: skip


@pytest.mark.parametrize("source", FOUND)
def test_a_call_with_one_literal_text_is_found(source: str) -> None:
    assert names(source) == FOUND[source]


@pytest.mark.parametrize("source", NOT_FOUND)
def test_nothing_else_is(source: str) -> None:
    assert names(source) == []


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\n\r"])
def test_lines_are_counted_as_lua_counts_them(end: str) -> None:
    source = end.join(["--[[ a", "]] x = 'b\\", "c'", "", "require './a'", "require './b'"])
    assert [line for _, line in requires(source.encode())] == [5, 6]
    lua = LuaRuntime()
    lua.execute("seen = {} function require() seen[#seen + 1] = debug.getinfo(2, 'l').currentline end")
    lua.execute(source)
    assert list(lua.globals().seen.values()) == [5, 6]


# Statements in Lua, each with the names that it requires when it runs.
_FILE = st.sampled_from(["./a", "./b/c", "./d.lua", "json"])
_GAP = st.sampled_from(
    [" ", "\n", "\t", "--\n", "--x'\"[[\n", "--[[]]", "--[[ ' require('./no') ]]", "--[=[ ]] \n]=]", "--[ [\n", "\r\n"]
)
_NOISE = st.sampled_from(
    [
        "x = 'require(\"./no\")'", 'x = "\\" require(\'./no\')"', "x = [[ require('./no') ]]",
        "x = [=[]]require'./no']=]", "x = t.require('./no')",
        "x = t:require './no'", "x = t . require './no'", "x = -1 - -1", "x = t [ 1 ]",
        "x = 'a' .. 1 ..2", "x = '\\z \n require(\"./no\")'", "x = '\\\\' .. '\\\n'", "goto l",
        "do local require = 1 end",
        "x = t--[[c]]. --c\nrequire'./no'", "x = #'\\x27' // 2", "x = t[ [[require'./no']] ]", "x = '\\065\\u{27}'",
    ]
)  # fmt: skip


@st.composite
def _calls(draw: st.DrawFn) -> tuple[str, str]:
    name, gaps = draw(_FILE), [draw(_GAP) for _ in range(4)]
    literal = draw(st.sampled_from(['"{}"', "'{}'", "[[{}]]", "[==[{}]==]", "[[\n{}]]"])).format(name)
    around = draw(st.sampled_from(["x = {}", "x = 'a' .. {}", "x = t[1] or {}", "f({})", "x = {{ {} }}", "x = -{}"]))
    call = f"require{gaps[0]}{literal}" if draw(st.booleans()) else f"require{gaps[0]}({gaps[1]}{literal}{gaps[2]})"
    return around.format(call) + gaps[3], name


@given(st.lists(st.tuples(_calls() | _NOISE, _GAP), max_size=12))
def test_what_the_text_says_is_what_lua_requires(parts: list[tuple[tuple[str, str] | str, str]]) -> None:
    source = "".join(f"do {part if isinstance(part, str) else part[0]} end{gap}" for part, gap in parts)
    source = source.replace("goto l", "goto l ::l::")
    lua = LuaRuntime()
    lua.execute(
        "seen, nothing = {}, function() end one = setmetatable({}, { __concat = nothing, __unm = nothing }) "
        "function require(name) seen[#seen + 1] = name return one end function f() end "
        "t = { require = function() end }"
    )
    lua.execute(source)
    wanted = list(dict.fromkeys(lua.globals().seen.values()))
    assert names(source) == wanted


@given(st.lists(st.sampled_from(["require", "'", '"', "[[", "]]", "[=[", "]=]", "--", "\n", "\\", "(", ")", ".", ":",
                                 "./a", " ", "\r", "x", "=", "[", "-", "\xff"]), max_size=40))  # fmt: skip
def test_of_any_text_that_lua_takes_no_call_is_missed(tokens: list[str]) -> None:
    source = "".join(tokens).encode("latin-1")
    found = names(source)
    lua = LuaRuntime(encoding="latin-1")
    try:
        chunk = lua.compile(source)
    except LuaError:
        return
    lua.execute(
        "seen = {} one = setmetatable({}, { __index = function(t) return t end, __call = function(t) return t end})"
    )
    lua.execute("function require(name) seen[#seen + 1] = name return one end x = one")
    try:
        chunk()
    except LuaError:
        return
    called = [name for name in lua.globals().seen.values() if isinstance(name, str) and name.isascii()]
    assert set(called) <= set(found)


WORST = {
    "quotation marks": b'""',
    "one line of escapes": b'\\"',
    "an open text of escapes": b"\\x",
    "comments": b"--\n",
    "long comments": b"--[[]]",
    "long texts": b"[[]]",
    "open brackets": b"[=",
    "equals signs": b"=",
    "dots": b". ",
    "members": b".a",
    "colons": b":\n",
    "calls": b"require'./a'",
    "calls of nothing": b"require(",
    "calls of an open text": b"require'a\n",
    "words": b"a ",
    "lines": b"\n",
    "carriage returns": b"\r",
    "brackets that nearly close": b"]=",
    "minus signs": b"- ",
}


def _took_s(source: bytes) -> float:
    began = time.thread_time()
    list(requires(source, Steps(len(source))))
    return time.thread_time() - began


@pytest.mark.parametrize("what", WORST)
@pytest.mark.parametrize("begin", [b"require ", b'require "'])
@pytest.mark.rerun(reason="a ratio of two CPU times, of which the shorter is some milliseconds")
def test_the_search_takes_time_in_proportion_to_the_text(what: str, begin: bytes) -> None:
    small, large = (begin + WORST[what] * (size // len(WORST[what])) for size in (1 << 15, 1 << 17))
    least = min(_took_s(small) for _ in range(3))
    assert _took_s(large) < 16 * max(least, 0.002)


def test_what_is_not_searched_in_c_is_bounded_in_all_files_together() -> None:
    half = "x = [[]] " * (MAX_STEPS // 2)
    assert bundled({"main.lua": "require './a' " + half, "a.lua": "require " + half[:-2_000]}) == ["a.lua"]
    message, line = refusal({"main.lua": "require './a' " + half, "a.lua": "require " + half})
    assert (line, f"more than {MAX_STEPS} long texts" in message) == (None, True)


@given(st.binary(max_size=200))
def test_no_bytes_upset_the_search(source: bytes) -> None:
    list(requires(b"require" + source))
    list(requires(source + b"require"))


# ---- names ----------------------------------------------------------------------------------------------------------


def test_a_name_is_a_path_from_the_packages_folder() -> None:
    wanted = {"./a": "a.lua", "./a.lua": "a.lua", "./lib/text": "lib/text.lua", "./ü": "ü.lua", "./a.b": "a.b.lua"}
    assert {name: file_of(name.encode()) for name in wanted} == wanted


REFUSED = {
    b"../x": "leaves the package", b"./../x": "leaves the package", b"./a/../../x": "leaves the package",
    b"..": "leaves the package", b".//x": "an empty part", b"./": "an empty part", b"./a/": "an empty part",
    b"././x": "'.'", b".": "begins with './'", b".x": "begins with './'", b"/etc/x": "absolute", b"./a\\b": "backslash",
    b".\\x": "backslash", b"./a\0b": "zero byte", b"./a\nb": "control character", b"./\xff": "not UTF-8",
    b"./" + b"a" * MAX_NAME_BYTES: f"the limit is {MAX_NAME_BYTES}",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_is_not_plain_or_leaves_the_package_is_refused(name: bytes) -> None:
    with pytest.raises(Unreadable, match=REFUSED[name].replace(".", r"\.")):
        file_of(name)


@given(st.text(max_size=30) | st.text("./a\\\0", max_size=12))
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    try:
        path = file_of(b"./" + name.encode("utf-8", "surrogatepass"))
    except Unreadable:
        return
    parts = path.split("/")
    assert path.endswith(".lua")
    assert not {"", ".", ".."} & set(parts)
    assert not set(path) & {"\\", "\0"}


# ---- files ----------------------------------------------------------------------------------------------------------


def bundled(files: Mapping[str, str], main: str = "main.lua", most: int = MOST) -> list[str]:
    return [name for name, _ in bundle_of(files, main, most)]


def refusal(files: Mapping[str, str], main: str = "main.lua", most: int = MOST) -> tuple[str, int | None]:
    with pytest.raises(NotBundled) as caught:
        bundle_of(files, main, most)
    return caught.value.message, caught.value.line


def test_files_that_files_require_are_there_too_in_the_order_of_their_names() -> None:
    files = {"main.lua": "require './z'", "z.lua": "require './lib/a'", "lib/a.lua": "", "other.lua": "require './no'"}
    assert bundled(files) == ["lib/a.lua", "z.lua"]
    assert bundled({"main.lua": "return 1"}) == []


def test_a_file_that_two_require_is_there_once() -> None:
    files = {
        "main.lua": "require './a' require './b'",
        "a.lua": "require './c'",
        "b.lua": "require './c.lua'",
        "c.lua": "",
    }
    assert bundled(files) == ["a.lua", "b.lua", "c.lua"]


def test_a_name_of_no_file_is_left_to_the_run() -> None:
    assert bundled({"main.lua": "local json = json or require('json')"}) == []


def test_what_is_missing_is_named_with_the_line_and_where_names_begin() -> None:
    assert refusal({"main.lua": "\n\nrequire './x'"}) == (
        'main.lua:3: require("./x"): the package has no file x.lua', 3,
    )  # fmt: skip
    files = {"src/main.lua": "require './lib/a'", "lib/a.lua": "\nrequire './b'", "lib/b.lua": ""}
    where = "names begin at the package's folder, in lib/a.lua too"
    said = f'lib/a.lua:2: require("./b"): the package has no file b.lua; {where}'
    assert refusal(files, "src/main.lua") == (said, None)


def test_a_cycle_is_named_with_its_chain() -> None:
    assert refusal({"main.lua": "require './main'"})[0].endswith("a cycle: main.lua -> main.lua")
    files = {"main.lua": "require './a'", "a.lua": "require './b'", "b.lua": "\nrequire './a'"}
    assert refusal(files) == ('b.lua:2: require("./a"): a cycle: a.lua -> b.lua -> a.lua', None)


def test_the_number_of_files_is_bounded() -> None:
    calls = [f"require './f{n}'" for n in range(MAX_FILES + 1)]
    files = {"main.lua": "\n".join(calls), **{f"f{n}.lua": "" for n in range(MAX_FILES + 1)}}
    message, line = refusal(files)
    assert (line, f"a script may require {MAX_FILES}" in message) == (MAX_FILES + 1, True)
    files["main.lua"] = "\n".join(calls[:-1])
    assert len(bundled(files)) == MAX_FILES


def test_a_chain_may_be_as_deep_as_there_may_be_files() -> None:
    files = {f"f{n}.lua": f"require './f{n + 1}'" for n in range(MAX_FILES)} | {f"f{MAX_FILES}.lua": ""}
    assert len(bundled(files, "f0.lua")) == MAX_FILES


def test_the_bytes_of_all_together_are_bounded() -> None:
    files = {"main.lua": "require './a'", "a.lua": "-" * 100}
    assert bundled(files, most=113) == ["a.lua"]
    assert "larger than 112 bytes (limits.source_bytes)" in refusal(files, most=112)[0]
    assert "larger than 12 bytes" in refusal(files, most=12)[0]


def test_a_file_is_read_within_what_is_left() -> None:
    asked = []

    def read(name: str, left: int) -> bytes:
        asked.append((name, left))
        return b"x" * 10

    bundle("main.lua", b"require './a' require './b'", read, 100)
    assert asked == [("a.lua", 73), ("b.lua", 63)]


def test_bytecode_is_refused() -> None:
    assert "Lua bytecode" in refusal({"main.lua": "require './a'", "a.lua": "\x1bLua..."})[0]
    assert "Lua bytecode" in refusal({"main.lua": "require './a'", "a.lua": "\ufeff\x1bLua..."})[0]


@pytest.mark.parametrize(
    "unit", ["+", "'" + "x\\a" * 1_000 + "'", "'" + "\\z " * 1_000 + "'", "--" + "x" * 4_000 + "\n"]
)
def test_one_step_in_c_passes_a_bounded_part_of_a_text(unit: str) -> None:
    found = _DULL.match((unit * (1_000_000 // len(unit) + 1)).encode())
    assert found is not None
    assert found.end() < 600_000


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\n\r"])
def test_lines_are_counted_in_slices_as_in_one(end: str) -> None:
    for before in ("", "x"):
        source = f"{before}{end * 70_000}require './a'".encode()
        assert list(requires(source)) == [(b"./a", 70_001)]

"""`require` in a run: what it returns, whose globals it leaves alone, and what its errors say."""

from collections.abc import Mapping
from typing import Any

import pytest
from lua_support import PRELUDE, Ran, run_source
from lupa.lua54 import LuaRuntime

from sandbox.natives.files import Files

COUNTED = "count = (count or 0) + 1 return { n = count }"
FILES = {
    "a.lua": "return 'a'",
    "nothing.lua": "local x = 1",
    "false.lua": "return false",
    "two.lua": "return 1, 2",
    "counted.lua": COUNTED,
    "agent.lua": "agent = { declared = true } function agent.resolve() return 'other' end",
    "tool.lua": "tool = { declared = true }",
    "both.lua": "agent = { declared = true } return 'returned'",
    "odd.lua": "agent = 5",
    "lib/deep.lua": "return require('./counted')",
    "wrong.lua": "\n\nerror('no luck')",
    "nil.lua": "\nreturn nothing.x",
    "syntax.lua": "\nreturn return",
    "later.lua": "local t = {} function t.f(x)\n  local y = x\n  error('in f') end return t",
    "waits.lua": "return coroutine.yield('from the file')",
    "self.lua": "local x = require('./' .. 'self') return x",
    "round.lua": "local x = require('./' .. 'trip') return x",
    "trip.lua": "local x = require('./' .. 'round') return x",
    "once.lua": "tries = (tries or 0) + 1 if tries == 1 then agent = {} error('first') end return tries",
    "env.lua": "return { same = _G.agent, name = ... }",
    "takes.lua": "require = function() return 'replaced' end return 1",
    "uses.lua": "return text.upper('text')",
    "esc.lua": "\x1b[0m",
}


def ran(body: str, *, files: Mapping[str, str] = FILES, compiled: bool = False, **how: Any) -> Ran:
    texts = Files((name, text.encode()) for name, text in files.items())
    source = f"agent = {{ own = true }} function agent.resolve(args, context) {body}\nend"
    if compiled:  # as a worker has them in its second run
        for name in texts.codes:
            if not name.startswith(b"esc"):
                texts.code(name)
        PRELUDE.compile_used(texts, 1 << 20)
    return run_source(source, {}, files=texts, compiled=compiled, **how)


def value(body: str, **how: Any) -> Any:
    answers = [ran(body, compiled=compiled, **how) for compiled in (False, True)]
    assert answers[0].kind == "done", (answers[0].kind, answers[0].message)
    assert answers[0] == answers[1]
    return answers[0].value


def message(body: str, **how: Any) -> str:
    failed = ran(body, **how)
    assert failed.kind == "script_error", failed.value
    assert failed.message == ran(body, compiled=True, **how).message
    return failed.message


RESULTS = {
    "return require('./a')": "a",
    "return require('./a.lua')": "a",
    "return require './nothing'": True,
    "return require './false'": False,
    "return select('#', require('./two'))": 1,
    "return require('./counted') == require('./counted.lua')": True,
    "require('./counted') require('./lib/deep') return count": 1,
    "return require('./agent').declared": True,
    "require('./agent') return agent.own": True,
    "return require('./tool').declared and tool == nil": True,
    "return { require('./both'), agent.own }": ["returned", True],
    "return { require('./odd'), agent.own }": [True, True],
    "return require('./env').same == agent": True,
    "return require('./env').name == nil": True,
    "local n = 0 for i = 1, 10000 do n = n + #require('./a') end return n": 10000,
    "return coroutine.wrap(function() return require('./a') end)()": "a",
    "require('./a') table.sort({ 2, 1 }, function(a, b) return #require('./a') == 1 and a < b end) return 1": 1,
    "local function f() return require('./a') end local r = context.parallel{ f, f } return { r[1], r[2] }": ["a", "a"],
    "local co = coroutine.wrap(function() return require('./waits') end) return { co(), co('an answer') }": [
        "from the file", "an answer",
    ],
    "return { pcall(require, './once'), require('./once'), agent.own }": [False, 2, True],
    "return { require('./takes'), require('./a') }": [1, "replaced"],
    "local name = 'a' return require('./' .. name)": "a",
    "return require('./uses')": "TEXT",
    "setmetatable(_G, { __index = error, __newindex = error }) return require('./agent').declared": True,
}  # fmt: skip


@pytest.mark.parametrize("body", RESULTS)
def test_it_returns_what_the_file_is(body: str) -> None:
    assert value(body) == RESULTS[body]


ERRORS = {
    "require(5)": "t.lua:1: require: a name is expected, got number",
    "require('json')": 't.lua:1: require("json"): json is a global here (docs/scripting/require.md)',
    "require('x.y')": "t.lua:1: require(\"x.y\"): a name begins with './' and is that of a file",
    "require('../a')": "t.lua:1: require(\"../a\"): a name begins with './'",
    "require('__a')": "a name begins with './'",
    "require('./')": "a name begins with './'",
    "require('./b')": 't.lua:1: require("./b"): only files that a call in the script\'s text names can be required, '
    "and those are ./a.lua, ./agent.lua, ./both.lua, ./counted.lua",
    "require('./' .. ('x'):rep(1000000))": 'xxx"): only files that a call',
    "require('./self')": 'self.lua:1: require("./self"): a cycle: self.lua -> self.lua',
    "require('./round')": 'trip.lua:1: require("./round"): a cycle: round.lua -> trip.lua -> round.lua',
    "require('./wrong')": "wrong.lua:3: no luck",
    "require('./nil')": "nil.lua:2: attempt to index a nil value (global 'nothing')",
    "require('./syntax')": "syntax.lua:2: unexpected symbol near 'return'",
    "require('./later').f(1)": "later.lua:3: in f",
    "require('./esc')": 'require("./esc"): the file is Lua bytecode; only source is accepted',
    "table.sort({ 2, 1 }, function() require('./a') end)": 'require("./a") cannot be called here: inside a callback',
}


@pytest.mark.parametrize("body", ERRORS)
def test_an_error_says_whose_it_is_and_where(body: str) -> None:
    assert ERRORS[body] in message(body)


def test_without_files_it_says_that_the_text_names_none() -> None:
    said = run_source("agent = {} function agent.resolve() require('./a') end").message
    assert said.endswith("can be required, and it names none (docs/scripting/require.md)")


def test_a_traceback_has_the_files_own_frames_and_none_of_the_engines() -> None:
    for compiled in (False, True):
        lines = ran("local x = require('./wrong')\nreturn x", compiled=compiled).traceback.splitlines()
        assert lines == ["wrong.lua:3: in main chunk", "t.lua:1: in field '?'"]
        lines = ran("local t = require('./later') t.f(1) return 1", compiled=compiled).traceback.splitlines()
        assert lines == ["later.lua:3: in field 'f'", "t.lua:1: in field '?'"]


def test_it_works_at_the_top_level_also_when_the_script_is_described() -> None:
    source = (
        "local shared = require('./shared')\nagent = { description = shared, resolve = function() return shared end }"
    )
    files = Files([("shared.lua", b"return 'from a file'")])
    assert run_source(source, files=files, method="").value["description"] == "from a file"
    assert run_source(source, files=files).value == "from a file"


def test_a_script_may_end_in_the_table_of_another_file() -> None:
    source = "return require('./other')"
    files = Files([("other.lua", b"return { resolve = function() return 'other' end }")])
    assert run_source(source, files=files).value == "other"


def test_files_count_as_memory_of_the_script() -> None:
    large = {"large.lua": f"return '{'x' * 600_000}'"}
    assert ran("return #require('./large')", files=large).value == 600_000
    assert ran("return #require('./large')", files=large, memory_bytes=1 << 20).kind == "memory"


def test_a_file_is_compiled_once_it_was_used_and_only_then() -> None:
    files = Files([("a.lua", b"return 1"), ("b.lua", b"return 2")])
    files.code(b"a.lua")
    PRELUDE.compile_used(files, 1 << 20)
    assert [code.startswith(b"\x1bLua") for code in files.codes.values()] == [True, False]
    assert list(files.used()) == []


def test_what_does_not_compile_stays_text() -> None:
    files = Files([("a.lua", b"return return")])
    for _ in range(2):
        assert run_source("require('./a')", files=files).message.startswith("a.lua:1:")
        PRELUDE.compile_used(files, 1 << 20)
    assert files.codes == {b"a.lua": b"return return"}


def test_bytecode_that_was_sent_as_a_file_is_not_loaded() -> None:
    lua = LuaRuntime(encoding=None)
    bytecode = lua.execute(b"return string.dump(function() return 1 end)")
    failed = run_source("require('./a')", files=Files([("a.lua", bytecode)]))
    assert "only source is accepted" in failed.message

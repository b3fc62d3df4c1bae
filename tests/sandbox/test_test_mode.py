"""The state of a test file: it reaches nothing of the host either, and no other state has anything of it."""

import re
from pathlib import Path

import msgspec
import pytest
from lua_support import PRELUDE
from lupa.lua54 import LuaRuntime
from test_graph import _LOADER, BEHIND_THE_PRELUDE, GENERATOR, KEPT, State

import sandbox.vm
from sandbox import testing
from sandbox.allowlist import ADDED

# What tests add to the globals; editor/lua/engine-test.lua and docs/testing.md have the same names.
NAMES = {"describe", "it", "before_each", "after_each", "skip", "expect", "mock", "test_context"}
BEHIND_TESTS = {"debug.getinfo", "debug.sethook", "string.dump"}
EDITOR = Path(__file__).resolve().parents[2] / "editor" / "lua" / "engine-test.lua"

FILE = """
describe("outer", function()
    before_each(function() end)
    it("one", function()
        mock("context.search", function() return {} end)
        planted = { expect = expect({ 1 }), context = test_context(), running = coroutine.running() }
        planted.found = planted.context.search("x")
        planted.calls = mock.calls("context.search")
        planted.co = coroutine.create(print)
        planted.wrapped = coroutine.wrap(function() coroutine.yield() end)
        planted.wrapped()
        planted.caught = { pcall(expect(1).to_be, 1) }
        planted.raised = { pcall(error, {}) }
        expect(planted.found).to_equal({})
    end)
end)
"""


class TestState(State):
    """A state in which a test has run, under coverage."""

    __test__ = False

    def __init__(self) -> None:
        self.lua = LuaRuntime(register_eval=False, register_builtins=False, encoding=None)
        core, *modules = (testing.core(sandbox.vm.core_source(self.lua)), *PRELUDE.chunks(tests=True)[1:])
        _, begin, step, self.env, self._walk, self.loaded_packages, _ = self.lua.execute(_LOADER, core, *modules)
        given = [{"test": 1, "name": "outer > one", "cover": ["other.lua"]}]
        arguments = b"".join(map(msgspec.msgpack.encode, (given, {}, [], {})))
        begin(FILE.encode(), b"t", b"t.lua", b"test", b"run", arguments, 1 << 20, 64, 65536, 10, 1, 2)
        kind, answer, *_ = step(None)
        assert (kind, msgspec.msgpack.decode(answer)) == (b"done", {"status": "passed", "hits": {}})


@pytest.fixture(scope="module")
def state() -> TestState:
    return TestState()


def test_a_test_reaches_no_userdata_and_only_kept_functions(state: TestState) -> None:
    found = state.walk(deep=False)
    assert {"env.planted.context.search", "env.expect", "env.planted.wrapped"} <= {path for _, path in found}
    assert [path for kind, path in found if kind in ("userdata", "object")] == []
    for kind, path in found:
        language, _, name = kind.partition(":")
        assert name in (KEPT if language == "C" else ("[engine]", "?", "t.lua")), f"{kind} at {path}"


def test_even_through_upvalues_a_test_reaches_nothing_of_the_host(state: TestState) -> None:
    found = state.walk(deep=True)
    assert [path for kind, path in found if kind == "object"] == []
    assert [path for kind, path in found if kind == "userdata"] == [GENERATOR]
    functions = {kind.removeprefix("C:") for kind, _ in found if kind.startswith("C:")}
    assert functions <= KEPT | BEHIND_THE_PRELUDE | BEHIND_TESTS, functions - KEPT - BEHIND_THE_PRELUDE
    assert functions >= BEHIND_TESTS  # so the walk sees what it should not see without upvalues


def test_the_globals_and_packages_of_a_test_are_empty(state: TestState) -> None:
    assert list(state.lua.globals()) == []
    assert state.loaded_packages() == 0


def test_no_other_state_has_anything_of_test_mode() -> None:
    ordinary = State()
    names = {path.split(".")[1] for _, path in ordinary.walk(deep=True) if path.startswith("env.")}
    assert not names & NAMES
    functions = {kind.removeprefix("C:") for kind, _ in ordinary.walk(deep=True)}
    assert not functions & BEHIND_TESTS
    for part in (PRELUDE.core, *PRELUDE.modules):
        assert b"sethook" not in part
        assert b"getinfo" not in part
    assert not set(testing.MODULES) & {*sandbox.vm.MODULES, *sandbox.vm.LIBRARIES}


def test_the_definitions_for_editors_have_the_names_that_tests_add(state: TestState) -> None:
    there = {path.split(".")[1] for kind, path in state.walk(deep=False) if path.startswith("env.")}
    text = EDITOR.read_text(encoding="utf-8")
    named = set(re.findall(r"^(?:function )?(\w+)(?:\(.*\) end| = \{\})$", text, re.MULTILINE))
    assert named == NAMES
    assert {name for name in NAMES if name in there or f"{name}#meta" in there} == NAMES
    assert not NAMES & {name.partition(".")[0] for name in ADDED}


def test_every_expectation_is_in_the_definitions_for_editors() -> None:
    source = (Path(sandbox.vm.__file__).parent / "prelude" / "expect.lua").read_text(encoding="utf-8")
    known = set(re.findall(r"^        (to_\w+) = function", source, re.MULTILINE))
    text = EDITOR.read_text(encoding="utf-8")
    assert set(re.findall(r"^---@field (to_\w+) ", text, re.MULTILINE)) == known
    assert set(re.findall(r"^---@field not_(to_\w+) ", text, re.MULTILINE)) == known


# Calls the module with what it needs of the prelude; `executable` then reads the code of one file.
_COVERAGE = b"""
local coverage, source = ...
local kit = {
    getinfo = debug.getinfo, sethook = debug.sethook, next = next, setmetatable = setmetatable, byte = string.byte,
    sub = string.sub, sort = table.sort, ARRAYS = {}, create = coroutine.create, load = load, dump = string.dump,
    native = function() return source end,
}
local lines = load(coverage, "=coverage", "t")(kit).executable({ "x.lua" })["x.lua"]
local found = {}
for i = 1, #lines do found[i] = lines[i] end
local main = {}
for line in next, debug.getinfo(load(source, "=x", "t"), "L").activelines do main[#main + 1] = line end
return table.concat(found, " "), table.concat(main, " ")
"""
PRELUDE_FILES = Path(sandbox.vm.__file__).parent / "prelude"
SCRIPTS = sorted([*PRELUDE_FILES.glob("*.lua"), *(EDITOR.parents[2] / "examples").rglob("*.lua")])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_lines_that_can_be_executed_are_lines_of_code(path: Path) -> None:
    text = path.read_bytes()
    lua = LuaRuntime(register_eval=False, register_builtins=False, encoding=None)
    both = lua.execute(_COVERAGE, (PRELUDE_FILES / "coverage.lua").read_bytes(), text)
    found, main = ({int(line) for line in each.split()} for each in both)
    lines = text.decode().splitlines()
    assert [line for line in found if not lines[line - 1].strip() or lines[line - 1].strip().startswith("--")] == []
    assert main - found <= {len(lines), len(lines) + 1}  # where the main chunk returns, by itself
    assert len(found) > len(lines) / 4

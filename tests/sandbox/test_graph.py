"""What a script can reach, walked from the host's side with a debug library that was kept for it.

Two walks. The first follows what a script can follow itself: fields, keys and metatables. The second follows upvalues,
too, as an attacker would who had found a way into them. In neither is there anything of the host.
"""

from typing import Any

import msgspec
import pytest
from lua_support import PRELUDE
from lupa.lua54 import LuaRuntime

import sandbox.vm
from sandbox.allowlist import LIBRARIES, NAMES

KEPT = {name.path for name in NAMES if name.action == "keep"}

# C functions that the prelude keeps for itself, behind its own: none of them leaves the state.
BEHIND_THE_PRELUDE = {
    *("error", "tostring", "setmetatable", "load", "collectgarbage", "debug.getmetatable", "debug.traceback"),
    *("coroutine.resume", "coroutine.yield", "coroutine.isyieldable", "coroutine.running", "coroutine.close"),
    *("string.format", "os.date", "math.randomseed"),
}

# The generator's state: memory of the interpreter's own, without a metatable.
GENERATOR = "env.math.random^"

# Loads the prelude from source, so that its upvalues have names; keeps `debug` and the interpreter's functions.
_LOADER = b"""
local core = ...
local load, debug, next, type, concat = load, debug, next, type, table.concat
local getregistry = debug.getregistry

local originals = {}
for name, value in next, _G do
    if type(value) == "function" then originals[value] = name end
    if type(value) == "table" and name ~= "_G" and name ~= "package" then
        for member, inner in next, value do
            if type(inner) == "function" then originals[inner] = name .. "." .. member end
        end
    end
end

local put, begin, step, why, give = load(core, "=[engine]", "t")(select(2, ...))

local function upvalue(f, wanted, seen)
    seen = seen or {}
    if seen[f] then return end
    seen[f] = true
    for i = 1, 255 do
        local name, value = debug.getupvalue(f, i)
        if not name then return end
        if name == wanted then return value end
        if type(value) == "function" then
            local found = upvalue(value, wanted, seen)
            if found ~= nil then return found end
        end
    end
end

-- Everything reachable from a value as lines `kind path`. With deep, through upvalues and the threads' own locals.
local function walk(start, deep)
    local found, seen = {}, {}
    local queue = { { start, "env" } }
    local function push(value, path)
        local t = type(value)
        if t == "table" or t == "function" or t == "thread" or t == "userdata" then
            if not seen[value] then
                seen[value] = true
                queue[#queue + 1] = { value, path }
            end
        end
    end
    seen[start] = true
    local at = 1
    while queue[at] do
        local value, path = queue[at][1], queue[at][2]
        at = at + 1
        local t = type(value)
        if t == "userdata" then
            found[#found + 1] = (debug.getmetatable(value) and "object " or "userdata ") .. path
        elseif t == "table" then
            for key, inner in next, value do
                local shown = type(key) == "string" and key or "(" .. type(key) .. ")"
                push(key, path .. ".<key>")
                push(inner, path .. "." .. shown)
            end
        elseif t == "function" then
            local info = debug.getinfo(value, "S")
            local what = info.what == "C" and "C:" .. (originals[value] or "?") or "Lua:" .. info.short_src
            found[#found + 1] = what .. " " .. path
            for i = 1, deep and 255 or 0 do
                local name, inner = debug.getupvalue(value, i)
                if not name then break end
                push(inner, path .. "^" .. name)
            end
        elseif t == "thread" and deep then
            for level = 0, 50 do
                if not debug.getinfo(value, level, "l") then break end
                for i = 1, 200 do
                    local name, inner = debug.getlocal(value, level, i)
                    if not name then break end
                    push(inner, path .. "@" .. name)
                end
            end
        end
        if t ~= "userdata" then push(debug.getmetatable(value), path .. "#meta") end
    end
    push(debug.getmetatable(""), "string#meta")
    return concat(found, "\\n")
end
return put, begin, step, upvalue(begin, "env"), walk, function()
    local left = {}
    for name in next, getregistry()._LOADED do left[#left + 1] = name end
    return #left
end, give
"""

SCRIPT = """
planted = {nested = {function() return print end}}
agent = {}
function agent.resolve(args, context)
    json.encode(json.decode('[1]')) base64.encode('x') crypto.sha256('x')   -- load what is loaded at first use
    for _, library in next, _G do if type(library) == 'table' then for _ in pairs(library) do end end end
    http.basic_auth('u', 'p') context.parallel{function() everything_side = coroutine.running() end}
    everything = {args = args, context = context, main = coroutine.running(), co = coroutine.create(print)}
    everything.wrapped = coroutine.wrap(function() coroutine.yield() end)
    everything.caught = select(2, pcall(error, {}))
    everything.overflow = select(2, pcall(string.rep, 'x', 1 << 40))
    everything.found = context.search('x')
    everything.meta = getmetatable(setmetatable({}, {__index = args}))
    return 1
end
"""


class State:
    """A state like a worker's, after a script has run in it, with a door that no worker has."""

    def __init__(self) -> None:
        self.lua = LuaRuntime(register_eval=False, register_builtins=False, encoding=None)
        put, begin, step, self.env, self._walk, self.loaded_packages, give = self.lua.execute(
            _LOADER, sandbox.vm.core_source(self.lua), *PRELUDE.modules
        )
        for name, library in PRELUDE.libraries_in(" ".join(sandbox.vm.LIBRARIES).encode()):
            give(name, library)
        arguments = msgspec.msgpack.encode([{"a": [1]}]) + msgspec.msgpack.encode({}) + b"\x90\x80"
        begin(SCRIPT.encode(), b"t", b"t.lua", b"agent", b"resolve", arguments, 1 << 20, 64, 65536, 10, 1, 2)
        answer = step(None)
        assert answer[0] == b"call"
        put(msgspec.msgpack.encode([{"id": "1"}]))
        assert step(True)[:2] == (b"done", b"\x01")

    def walk(self, *, deep: bool) -> list[tuple[str, str]]:
        text: Any = self._walk(self.env, deep)
        return [(kind, path) for kind, _, path in (line.partition(" ") for line in text.decode().splitlines())]


@pytest.fixture(scope="module")
def state() -> State:
    return State()


def test_the_walk_finds_what_a_script_made_and_what_it_was_given(state: State) -> None:
    paths = {path for _, path in state.walk(deep=False)}
    assert {
        "env.string.rep",
        "env.planted.nested.(number)",
        "env.everything.context.search",
        "env.agent.resolve",
    } <= paths
    deep = {path for _, path in state.walk(deep=True)}
    assert len(deep) > len(paths)
    assert any("^" in path for path in deep)


def test_a_script_reaches_no_userdata(state: State) -> None:
    assert [path for kind, path in state.walk(deep=False) if kind in ("userdata", "object")] == []


def test_a_script_reaches_only_kept_functions_of_c_the_preludes_and_its_own(state: State) -> None:
    for kind, path in state.walk(deep=False):
        language, _, name = kind.partition(":")
        if language == "C":
            assert name in KEPT, f"{name} at {path}"
        else:
            assert name in ("[engine]", "?", "t.lua"), f"{kind} at {path}"  # ?: a module of the prelude, stripped


def test_even_through_upvalues_there_is_no_object_of_the_host(state: State) -> None:
    found = state.walk(deep=True)
    assert [path for kind, path in found if kind == "object"] == []
    assert [path for kind, path in found if kind == "userdata"] == [GENERATOR]


def test_even_through_upvalues_there_are_only_functions_of_the_interpreter_that_compute(state: State) -> None:
    found = {kind.removeprefix("C:") for kind, _ in state.walk(deep=True) if kind.startswith("C:")}
    assert found <= KEPT | BEHIND_THE_PRELUDE, found - KEPT - BEHIND_THE_PRELUDE
    assert not [name for name in found if name.partition(".")[0] in ("io", "python", "package")]


def test_the_real_globals_and_the_loaded_packages_are_empty(state: State) -> None:
    assert list(state.lua.globals()) == []
    assert state.loaded_packages() == 0


def test_the_walk_would_find_a_python_object(state: State) -> None:
    other = State()
    plant = other.lua.execute(b"local env = ... return function(o) env.string.planted = { o } end", other.env)
    plant(object())
    assert ("object", "env.string.planted.(number)") in other.walk(deep=False)


def test_libraries_of_the_environment_are_tables_of_their_own(state: State) -> None:
    paths = {path for _, path in state.walk(deep=False)}
    for library in LIBRARIES:
        assert any(path.startswith(f"env.{library}.") for path in paths)

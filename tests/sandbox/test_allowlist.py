"""The list of names against the interpreter that we really have, and against what a script really sees."""

import pytest
from lua_support import error_of, run, value_of
from lupa.lua54 import LuaRuntime

from sandbox import allowlist
from sandbox.allowlist import ADDED, LIBRARIES, NAMES

PATHS = {name.path: name for name in NAMES}
SEEN = {path for path, name in PATHS.items() if name.action != "remove"}

# What a run's environment holds: name -> type; libraries with their members.
ENVIRONMENT = """
    local seen = {}
    for name, value in next, _G do
        if type(value) == "table" and value ~= _G then for _ in pairs(value) do end end  -- loads it
        if type(value) == "table" and value ~= _G and next(value) then
            for member, inner in next, value do seen[name .. "." .. member] = type(inner) end
        else
            seen[name] = type(value)
        end
    end
    return seen
"""


def interpreter_names() -> set[str]:
    """Every global of a fresh interpreter, and the members of the libraries that scripts get."""
    lua = LuaRuntime(register_eval=False, register_builtins=False)
    listed = lua.execute(
        """
        local names = {}
        for name, value in next, _G do
            if type(value) == "table" and (...)[name] then
                for member in next, value do names[#names + 1] = name .. "." .. member end
            else
                names[#names + 1] = name
            end
        end
        return table.concat(names, " ")
        """,
        lua.table_from(dict.fromkeys(LIBRARIES, True)),
    )
    return set(listed.split())


def test_every_name_of_the_interpreter_is_decided_on_and_nothing_else_is_listed() -> None:
    assert interpreter_names() == set(PATHS)


def test_no_name_is_listed_twice_and_each_has_a_reason() -> None:
    assert len(PATHS) == len(NAMES)
    assert all(name.reason for name in NAMES)


def test_a_script_sees_exactly_what_is_kept_wrapped_and_added() -> None:
    seen = value_of(ENVIRONMENT)
    # `agent` and `resolve` are the test script's own.
    assert set(seen) == SEEN | set(ADDED) | {"agent.resolve"}


def test_what_is_added_are_functions_but_for_a_constant_and_the_secrets() -> None:
    seen = value_of(ENVIRONMENT)
    assert {name for name in ADDED if seen[name] != "function"} == {"json.null", "secrets"}


def test_the_run_gets_nothing_beside_its_environment_but_its_context() -> None:
    body = "local names = {} for name in next, context do names[#names + 1] = name end table.sort(names) return names"
    assert value_of(body) == [
        *("call_tool", "config", "get", "parallel", "progress", "search", "sources", "team", "tools")
    ]


def test_every_wrapped_name_has_a_function_behind_it() -> None:
    seen = value_of(ENVIRONMENT)
    wrapped = {path for path, name in PATHS.items() if name.action == "wrap" and path != "_G"}
    assert {path: seen.get(path) for path in wrapped} == dict.fromkeys(wrapped, "function")
    for path in wrapped:  # a stub without its function would be called in vain
        assert "attempt to call a nil value" not in run(f"{path}()").message


def test_the_wrapped_functions_are_not_the_interpreters() -> None:
    """What the prelude wraps is Lua, what it keeps is C: seen by string.dump, which refuses C functions."""
    lua = LuaRuntime(register_eval=False, register_builtins=False, encoding=None)
    dumps = lua.execute(b"local dump = string.dump return function(f) return (pcall(dump, f)) end")
    assert dumps(lua.globals()[b"print"]) is False
    kept = [path for path, name in PATHS.items() if name.action == "keep" and path not in ("_VERSION",)]
    assert "tostring" not in kept
    assert "setmetatable" not in kept
    assert "coroutine.resume" not in kept


def test_a_name_that_the_list_does_not_know_is_cut() -> None:
    lua = LuaRuntime(register_eval=False, register_builtins=False)
    lua.execute("brand_new = {}; string.brand_new = function() end")
    found = lua.execute(allowlist.INVENTORY).split()
    assert {"brand_new", "string.brand_new", "string.rep", "os", "os.exit"} <= set(found)
    env = lua.execute(f"""
        local real, cut = _G, (function() {allowlist.render(found)} end)()
        return cut(real, function(module, member) return module .. ":" .. member end)
    """)
    assert "brand_new" not in env.string
    assert set(env) == {path.partition(".")[0] for path in SEEN - {"_G"}} | set(LIBRARIES)
    assert set(env.os) == {path.partition(".")[2] for path in SEEN if path.startswith("os.")}
    assert env.tostring == "wrapped:tostring"
    assert list(lua.globals()) == []


def test_a_name_that_cannot_be_written_down_is_refused() -> None:
    with pytest.raises(ValueError, match="a name that cannot be written down: 'x = 1 --'"):
        allowlist.render(["x = 1 --"])


def test_libraries_and_strings_have_no_metatables_but_the_sealed_one() -> None:
    libraries = (*LIBRARIES, "_G", "json", "base64", "crypto", "http", "log", "env", "fs")
    for library in libraries:
        assert value_of(f"return getmetatable({library}) == nil")
    assert value_of("return getmetatable('')") is False


def test_the_interpreters_own_globals_are_not_the_scripts() -> None:
    """lupa looks for `debug.traceback` in them at each call, outside of any protection."""
    spoil = "debug = {traceback = function() error('mine') end} setmetatable(_G, {__index = error, __newindex = error})"
    assert value_of(f"{spoil} return context.search('x').query") == "x"
    assert error_of(f"{spoil} local t = nil + 1").endswith("attempt to perform arithmetic on a nil value")


@pytest.mark.parametrize(
    "use",
    [
        "json.encode({a = {1, 2}})", "json.decode('[1, \"x\"]')", "base64.encode('abc')", "crypto.sha256('abc')",
        "tostring(1.5)", "string.format('%5s', {})", "coroutine.wrap(function() return 1 end)()", "log.info('x')",
        "os.date('!%Y', 0)", "select(2, pcall(error, 'x'))", "#context.parallel({function() return 1 end})",
    ],
)  # fmt: skip
def test_what_a_script_does_to_its_libraries_changes_only_what_it_calls(use: str) -> None:
    """The prelude's modules are loaded when they are first used: by then these tables are the script's."""
    spoil = """
        local keep, context = {pcall = pcall, select = select}, context
        for _, library in ipairs({string, table, utf8, math, coroutine}) do
            for name in pairs(library) do
                if name ~= "wrap" and name ~= "format" then library[name] = function() error("spoilt: " .. name) end end
            end
        end
        type, next, rawget, rawset, rawequal, getmetatable, setmetatable, tonumber = nil
    """
    assert value_of(f"{spoil} return {{value = {use}}}") == value_of(f"return {{value = {use}}}")


def test_environments_of_two_runs_share_nothing() -> None:
    assert value_of("string.planted = 1 _G.planted = 2 json.planted = 3 rawset(json.null, 'planted', 4) return 1") == 1
    assert value_of("return {string.planted, planted, json.planted, rawget(json.null, 'planted')}") == {}

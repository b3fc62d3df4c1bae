"""The list of names against the interpreter that we really have, and against what a script really sees."""

from lua_support import PRELUDE, value_of
from lupa.lua54 import LuaRuntime

from sandbox import allowlist
from sandbox.allowlist import ADDED, LIBRARIES, NAMES

PATHS = {name.path: name for name in NAMES}
SEEN = {path for path, name in PATHS.items() if name.action != "remove"}

# What a run's environment holds: name -> type; libraries with their members.
ENVIRONMENT = """
    local seen = {}
    for name, value in next, _G do
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
    assert value_of(body) == [*("call_tool", "config", "get", "parallel", "progress", "search", "sources", "tools")]


def test_every_wrapped_name_has_a_function_behind_it() -> None:
    """`render` would put nil where the prelude has no function of that name, and the name would silently be missing."""
    seen = value_of(ENVIRONMENT)
    wrapped = {path for path, name in PATHS.items() if name.action == "wrap" and path != "_G"}
    assert {path: seen.get(path) for path in wrapped} == dict.fromkeys(wrapped, "function")


def test_the_wrapped_functions_are_not_the_interpreters() -> None:
    """What the prelude wraps is Lua, what it keeps is C: seen by string.dump, which refuses C functions."""
    lua = LuaRuntime(register_eval=False, register_builtins=False, encoding=None)
    dumps = lua.execute(b"local dump = string.dump return function(f) return (pcall(dump, f)) end")
    assert dumps(lua.globals()[b"print"]) is False
    kept = [path for path, name in PATHS.items() if name.action == "keep" and path not in ("_VERSION",)]
    assert "tostring" not in kept
    assert "setmetatable" not in kept
    assert "coroutine.resume" not in kept


def test_the_environment_is_generated_from_the_list_alone() -> None:
    assert PRELUDE.fill.startswith(b"\x1bLua")
    source = allowlist.render()
    for path, name in PATHS.items():
        library, _, short = path.rpartition(".")
        if name.action == "remove" and not library:
            assert f"into['{short}']" not in source


def test_environments_of_two_runs_share_nothing() -> None:
    assert value_of("string.planted = 1 _G.planted = 2 json.planted = 3 rawset(json.null, 'planted', 4) return 1") == 1
    assert value_of("return {string.planted, planted, json.planted, rawget(json.null, 'planted')}") == {}

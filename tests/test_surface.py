"""The list of host calls against everything that must agree with it: families, stubs, the editor's file, the pages."""

import re
import sys
from pathlib import Path

import pytest
import trio
from pages import ROOT, SCRIPTING, quoted, section

from agents.code import calls, schema_call
from agents.registry import Registry
from agents.teams import family
from engine.bridge import HostFunction
from engine.bridge.families import Host, open_families
from sandbox import stubs
from sandbox.allowlist import ADDED, LIBRARIES
from sandbox.wire.surface import HOST_CALLS, HostCall, granted

sys.path.insert(0, str(ROOT / "tests" / "sandbox"))

from lua_support import run, value_of

EDITOR = ROOT / "editor" / "lua" / "engine.lua"
# What a script finds in the tables of host calls without asking the host.
ITS_OWN = {"http.basic_auth", "context.progress", "context.parallel"} | {
    f"json.{name}" for name in ("parse", "decode", "encode", "array")
}


# Functions with more results than one.
RESULTS = {"kv.get": 2, "kv.set": 2, "kv.delete": 2, "kv.list": 2, "kv.incr": 2}


def no_store(tenant: str) -> object:
    raise AssertionError("nothing is called here")


async def answered() -> dict[str, HostFunction]:
    """Every host call that a service answers, by name."""
    host = Host(no_store, 12, {}, (Path("/nonexistent"),))  # type: ignore[arg-type]
    with trio.fail_after(10):
        async with open_families(host) as functions:
            return {
                function.name: function
                for function in (
                    *functions,
                    *calls.functions(Registry()),
                    *schema_call.functions(),
                    *family.functions(),
                )
            }


def signatures(shown: list[str]) -> dict[str, tuple[str, ...]]:
    """The parameters of each function in texts such as `fs.list(path, glob)`."""
    found = (re.fullmatch(r"([\w.]+)\((.*)\)", text) for text in shown)
    return {match[1]: tuple(match[2].split(", ")) if match[2] else () for match in found if match is not None}


async def test_the_families_answer_exactly_what_is_listed() -> None:
    assert set(await answered()) == set(HOST_CALLS)


async def test_the_parameters_of_a_call_without_a_stub_of_its_own_are_its_arguments() -> None:
    functions = await answered()
    for name, call in HOST_CALLS.items():
        if call.stub == "made":
            assert call.parameters == functions[name].arguments.__struct_fields__, name


def test_the_editors_file_has_every_call_with_the_parameters_that_are_listed() -> None:
    shown = signatures(re.findall(r"^function (.*?) end$", EDITOR.read_text(encoding="utf-8"), re.MULTILINE))
    tables = {call.library for call in HOST_CALLS.values() if call.library}
    of_the_host = {name for name in shown if name.partition(".")[0] in tables} - ITS_OWN
    assert of_the_host | {"sleep"} == set(HOST_CALLS)
    assert {name: shown[name] for name in HOST_CALLS} == {name: call.parameters for name, call in HOST_CALLS.items()}


def test_the_lists_of_the_docs_have_every_call_with_the_parameters_that_are_listed() -> None:
    rows = [row for title in ("The context", "Added") for row in section(SCRIPTING, title).rows()]
    shown = signatures([text for row in rows for text in quoted(row[0])])
    assert {name: shown.get(name) for name in HOST_CALLS} == {n: call.parameters for n, call in HOST_CALLS.items()}


@pytest.mark.parametrize("root", ["agent", "connector"])
def test_a_script_sees_each_call_in_its_table_and_every_function_there_is_one(root: str) -> None:
    seen = value_of(
        """
        local seen = {}
        for _, name in ipairs({...}) do
            local library = name == "context" and context or name == "context.team" and context.team or _G[name]
            if type(library) == "function" then seen[#seen + 1] = name elseif library then
                for member, value in pairs(library) do
                    if type(value) == "function" then seen[#seen + 1] = name .. "." .. member end
                end
            end
        end
        return seen
        """,
        *sorted({call.library or call.name for call in HOST_CALLS.values()}),
        root=root,
    )
    assert set(seen) - ITS_OWN == granted(root, frozenset(HOST_CALLS))


@pytest.mark.parametrize("call", HOST_CALLS.values(), ids=list(HOST_CALLS))
def test_a_function_makes_the_call_of_its_name_with_the_arguments_that_it_was_given(call: HostCall) -> None:
    given = ["{}" if name in ("options", "params", "item", "given") else f'"{name}"' for name in call.parameters]
    root = "connector" if call.scripts == "connectors" else "agent"
    ran = run(f"return select('#', {call.name}({', '.join(given)}))", root=root)
    ((called, arguments),) = ran.calls
    assert called == call.name
    assert ran.value == (RESULTS.get(call.name, 1) if call.answers else 0)
    plain = {name: name for name in call.parameters if name not in ("options", "params", "query", "given")}
    if "query" in call.parameters:
        plain["query"] = "query"
    plain |= {name: {} for name in ("params", "item", "given") if name in call.parameters}
    assert arguments == plain


def test_no_call_takes_a_table_of_luas_own_or_a_name_that_lua_cannot_write() -> None:
    for name, call in HOST_CALLS.items():
        assert call.library not in LIBRARIES
        assert all(re.fullmatch(r"[a-z_][a-z0-9_]*", part) for part in (*name.split("."), *call.parameters)), name
        assert name.count(".") <= (2 if call.stub == "team" else 1)


def test_what_is_made_of_a_row_is_one_function_and_one_name() -> None:
    rows = (HostCall("clock.now", ("zone",)), HostCall("clock.set", ("time", "zone"), answers=False), HostCall("wait"))
    assert stubs.libraries(rows).splitlines() == [
        'env.clock = { now = stub("host", "clock.now"), set = stub("host", "clock.set") }',
        'env.wait = stub("host", "wait")',
    ]
    assert stubs.module(rows).splitlines()[2:-1] == [
        '["clock.now"] = function(zone) local answer = host_call("clock.now", { zone = zone }) return answer end,',
        '["clock.set"] = function(time, zone) host_call("clock.set", { time = time, zone = zone }) end,',
        '["wait"] = function() local answer = host_call("wait", {  }) return answer end,',
    ]


def test_a_name_that_is_added_is_listed_once() -> None:
    assert len(ADDED) == len(set(ADDED))

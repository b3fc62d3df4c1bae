"""Loading: every script that can be described is there, every other one is reported with where and why."""

import os
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import lupa.lua54
import pytest
import trio
from agents_support import CALL, Project, agent, problem

import agents.code.describing
from agents import kinds
from agents.loading.loader import LoadFailure
from agents.service import Service
from engine.errors import Code
from engine.tenant import DEFAULT_TENANT
from sandbox.wire.outcome import Outcome

Open = Callable[..., AbstractAsyncContextManager[Service]]


def names(service: Service) -> list[str]:
    return [info.name for info in service.list_agents(DEFAULT_TENANT)]


def failures(service: Service) -> dict[str, LoadFailure]:
    return {failure.name: failure for failure in service.failures}


# source, keys of the entry -> outcome, line, part of the message
BAD: dict[str, tuple[str | bytes | None, str, Outcome, int | None, str]] = {
    "missing": (None, "", Outcome.SCRIPT_ERROR, None, "cannot read the script"),
    "syntax": ("agent = {}\n\nfunction (", "", Outcome.SCRIPT_ERROR, 3, "syntax.lua:3: "),
    "raises": ("\n\nerror('at load')", "", Outcome.SCRIPT_ERROR, 3, "raises.lua:3: at load"),
    "bytecode": (b"\x1bLuaT\x00\x19\x93\r\n\x1a\n", "", Outcome.SCRIPT_ERROR, None, "bytecode"),
    "empty": ("", "", Outcome.SCRIPT_ERROR, None, "neither sets the global 'agent'"),
    "no-resolve": ("agent = {tools = {}}", "", Outcome.SCRIPT_ERROR, None, "agent.resolve is missing"),
    "resolve-is-text": ("agent = {resolve = 'x'}", "", Outcome.SCRIPT_ERROR, None, "agent.resolve is missing or not"),
    "endless": ("while true do end", "", Outcome.TIMEOUT, None, "did not end within"),
    "hungry": (
        "local s = ('x'):rep(1e9)",
        "",
        Outcome.MEMORY_LIMIT,
        None,
        "64 MiB of memory",
    ),
    "calls": ("agent = {} context.search('x')", "", Outcome.SCRIPT_ERROR, 1, "global 'context'"),
    "no-list": ("agent = {tools = 'search', resolve = print}", "", Outcome.SCRIPT_ERROR, None, "tools must be a list"),
    "bad-argument": (
        "agent = {arguments = {{name = 'a'}, {description = 'b'}}, resolve = print}",
        "",
        Outcome.SCRIPT_ERROR,
        None,
        "arguments[2].name is missing",
    ),
    "function-in-list": (
        "agent = {tools = {print}, resolve = print}",
        "",
        Outcome.SCRIPT_ERROR,
        None,
        "agent.tools[1] is a",
    ),
    "unset": (agent(), 'token = "${NOT_SET}"', Outcome.SCRIPT_ERROR, None, "NOT_SET is not set"),
    "too-large": (
        "-- " + "x" * 2000 + "\n" + agent(),
        "limits = { source_bytes = 1000 }",
        Outcome.SCRIPT_ERROR,
        None,
        "larger than 1000 bytes (limits.source_bytes)",
    ),
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    assert agents.code.describing.DESCRIBE_TIMEOUT_S == 2.0
    monkeypatch.setattr(agents.code.describing, "DESCRIBE_TIMEOUT_S", 0.5)


async def test_every_bad_script_is_reported_and_none_keeps_the_good_ones_from_working(
    project: Project, opened: Open, quick: None
) -> None:
    entries = [project.script("good-first", agent("return {system = 'first'}"))]
    for name, (source, keys, *_) in BAD.items():
        entries.append(project.script(name, source or "", keys))
        if source is None:
            (project.folder / f"{name}.lua").unlink()
    entries.append(project.script("good-last", agent("return {system = 'last'}")))
    project.configure("\n".join(entries))
    async with opened() as service:
        assert names(service) == ["good-first", "good-last"]
        found = failures(service)
        assert set(found) == set(BAD)
        for name, (_, _, outcome, line, part) in BAD.items():
            failure = found[name]
            assert (failure.kind, failure.outcome) == ("agent.script", outcome), failure
            assert failure.line == line, failure
            assert part in failure.message, failure
            assert failure.path == project.folder / f"{name}.lua"
            async with problem(Code.NOT_FOUND, f"agent '{name}' failed to load"):
                await service.resolve(name, {}, CALL)
        assert (await service.resolve("good-last", {}, CALL)).prompt.system == "last"


async def test_messages_of_failures_hold_no_path_of_the_host(project: Project, opened: Open) -> None:
    project.configure(project.script("syntax", "agent = {") + '[agents.script.gone]\npath = "deep/below/gone.lua"\n')
    async with opened() as service:
        for failure in service.failures:
            assert str(project.folder) not in failure.message


async def test_a_script_that_is_no_ordinary_file_fails_and_blocks_no_other(project: Project, opened: Open) -> None:
    os.mkfifo(project.folder / "fifo.lua")
    (project.folder / "folder.lua").mkdir()
    project.configure('[agents.script.fifo]\npath = "fifo.lua"\n[agents.script.folder]\npath = "folder.lua"\n')
    with trio.fail_after(20):
        async with opened() as service:
            assert {name: failure.outcome for name, failure in failures(service).items()} == {
                "fifo": Outcome.SCRIPT_ERROR,
                "folder": Outcome.SCRIPT_ERROR,
            }


async def test_scripts_that_take_their_time_are_described_side_by_side(
    project: Project, opened: Open, quick: None
) -> None:
    project.configure("".join(project.script(f"endless-{n}", "while true do end") for n in range(4)))
    with trio.fail_after(20):
        async with opened() as service:
            assert {failure.outcome for failure in service.failures} == {Outcome.TIMEOUT}
            assert len(service.failures) == 4


async def test_of_two_agents_with_one_name_the_first_in_the_file_wins(project: Project, opened: Open) -> None:
    project.configure(
        project.script("twice", agent("return {system = 'script'}"))
        + '[agents.twice]\ndescription = "d"\nsystem_prompt = "inline"\n'
        + '[agents.other]\ndescription = "d"\nsystem_prompt = "inline"\n'
        + project.script("other", agent("return {system = 'script'}"))
    )
    async with opened() as service:
        assert (await service.resolve("twice", {}, CALL)).prompt.system == "script"
        assert (await service.resolve("other", {}, CALL)).prompt.system == "inline"
        assert sorted(names(service)) == ["other", "twice"]
        clashes = {(failure.name, failure.kind) for failure in service.failures}
        assert {(name, kind.partition(".")[0]) for name, kind in clashes} == {("twice", "agent"), ("other", "agent")}
        assert all("another agent named" in failure.message for failure in service.failures)
        assert all(failure.outcome is Outcome.SCRIPT_ERROR for failure in service.failures)


async def test_the_key_of_the_configuration_is_the_name_and_another_is_warned_of(
    project: Project, opened: Open
) -> None:
    project.configure(
        project.script("key", agent(fields="name = 'other'")) + project.script("same", agent(fields="name = 'same'"))
    )
    async with opened() as service:
        assert names(service) == ["key", "same"]
        (warning,) = service.warnings
        assert warning.startswith("agents.script.key: ")
        assert "'other'" in warning


async def test_tools_of_an_entry_that_the_script_does_not_list_are_warned_of(project: Project, opened: Open) -> None:
    project.configure(project.script("narrow", agent(fields="tools = { 'search', 'get' }"), "tools = ['serch', 'get']"))
    async with opened() as service:
        assert service.warnings == (
            "agents.script.narrow.tools: 'serch' has no effect, as agent.tools in the script does not list it",
        )


async def test_a_limit_above_its_ceiling_is_lowered_with_a_warning(project: Project, opened: Open) -> None:
    project.configure(
        "[limits.max]\ntimeout_s = 0.4\n"
        + project.script("slow", agent("while true do end"), "limits = { memory_bytes = 10000000000 }\ntimeout = 30")
    )
    async with opened() as service:
        found = "\n".join(service.warnings)
        assert re.search(r"agents\.script\.slow: timeout_s = 30 is above the ceiling and was lowered to 0\.4", found)
        assert "memory_bytes" in found
        async with problem(Code.TIMEOUT, "0.4 s"):
            await service.resolve("slow", {}, CALL)


async def test_a_variable_in_a_scripts_own_keys_reaches_its_config(project: Project, opened: Open) -> None:
    project.configure(
        project.script("a", agent("return {system = config.token .. context.config.n}"), 'token = "${T}"\nn = 5')
    )
    async with opened(T="secret") as service:
        assert service.failures == ()
        assert (await service.resolve("a", {}, CALL)).prompt.system == "secret5"


async def test_nothing_of_a_script_runs_in_the_supervisor(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are forked from a process of their own: an interpreter that is broken here does no harm there."""

    def broken(*args: object, **kwargs: object) -> None:
        raise AssertionError("a Lua state in the supervisor")

    monkeypatch.setattr(lupa.lua54, "LuaRuntime", broken)
    project.configure(project.script("a", "planted = 'x'\n" + agent("return {system = planted}")))
    async with opened() as service:
        assert (await service.resolve("a", {}, CALL)).prompt.system == "x"


async def test_a_script_that_computes_at_load_does_not_hold_up_the_supervisor(
    project: Project, opened: Open, quick: None
) -> None:
    project.configure(project.script("endless", "while true do end"))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.sleep(0.001)
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        async with opened() as service:
            assert [failure.outcome for failure in service.failures] == [Outcome.TIMEOUT]
        nursery.cancel_scope.cancel()
    assert turns > 20  # about half a second's worth, on however loaded a machine


async def test_describing_a_script_calls_none_of_its_functions(project: Project, opened: Open) -> None:
    project.configure(project.script("a", agent("error('called')", "complete = function() error('called') end")))
    async with opened() as service:
        assert service.failures == ()


async def test_kinds_that_this_version_does_not_have_are_failures_that_say_so(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "found", lambda: {})
    project.configure('[agents.chatmd.chat]\npath = "x.md"\n')
    async with opened() as service:
        (failure,) = service.failures
        assert (failure.name, "not supported" in failure.message) == ("chat", True)
        async with problem(Code.NOT_FOUND, "agent 'chat' failed to load"):
            await service.resolve("chat", {}, CALL)


async def test_a_description_that_is_cut_inside_a_character_is_shown_with_a_mark(
    project: Project, opened: Open
) -> None:
    project.configure(project.script("cut", "agent = {description = ('né'):sub(1, 2), resolve = print}"))
    async with opened() as service:
        assert [info.description for info in service.list_agents(DEFAULT_TENANT)] == ["n\N{REPLACEMENT CHARACTER}"]

"""Hot reload: what changes on disk is swapped in, what breaks stays as it was, and listeners are notified."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing
from agents_support import CALL, Project, agent
from structlog.testing import capture_logs

from agents.agent import Call
from agents.changes import Change
from agents.reload import reload_on_change
from agents.service import Service, open_service
from engine.config import load_config
from engine.run import Hearers, LogLine
from engine.tenant import DEFAULT_TENANT

TOOL = "tool = {{description = '{about}', parameters = {{}}}} function tool.execute() return '{answer}' end"


@dataclass
class Watched:
    """A service that reloads, and what it told."""

    service: Service
    told: list[Change] = field(default_factory=list)
    news: trio.Event = field(default_factory=trio.Event)

    def hear(self, change: Change) -> None:
        self.told.append(change)
        self.news.set()

    async def answer(self, name: str = "a") -> str:
        return (await self.service.resolve(name, {}, CALL)).prompt.system

    async def until(self, wanted: str) -> None:
        """The agent answers so before long."""
        with trio.fail_after(10):
            while True:  # nothing tells of a script that was swapped in and is listed as before
                if await self.answer() == wanted:
                    return
                await trio.sleep(0.02)

    async def failing(self, count: int) -> None:
        """So many scripts fail before long."""
        with trio.fail_after(10):
            while True:
                if len(self.service.failures) == count:
                    return
                await trio.sleep(0.02)


@asynccontextmanager
async def watching(project: Project, then: Callable[[], None] = bool, **environ: str) -> AsyncIterator[Watched]:
    """`then` is called after the configuration was read, and before anything is loaded."""
    loaded = load_config(project.folder / "engine.toml", environ=environ, cwd=project.folder)
    then()
    async with open_service(loaded) as service, trio.open_nursery() as nursery:
        watched = Watched(service)
        with service.changes.heard_by(watched.hear):
            nursery.start_soon(reload_on_change, service, environ, project.folder)
            await trio.testing.wait_all_tasks_blocked()
            yield watched
        nursery.cancel_scope.cancel()


def write(path: Path, text: str) -> None:
    """As editors do: a new file takes the place of the old one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)


async def test_a_configuration_that_is_saved_while_the_engine_starts_is_not_missed(project: Project) -> None:
    project.configure("")
    first = project.script("a", agent("return {system = 'one'}"))
    config = project.folder / "engine.toml"
    async with watching(project, lambda: write(config, config.read_text() + first)) as watched:
        with trio.fail_after(10):
            while not watched.service.list_agents(DEFAULT_TENANT):  # noqa: ASYNC110 - nothing tells of an agent
                await trio.sleep(0.02)
        assert await watched.answer() == "one"


async def test_a_saved_script_answers_anew(project: Project) -> None:
    project.configure(project.script("a", agent("return {system = 'one'}")))
    async with watching(project) as watched:
        assert await watched.answer() == "one"
        write(project.folder / "a.lua", agent("return {system = 'two'}"))
        await watched.until("two")
        assert watched.told == []  # the lists are what they were


async def test_a_change_of_what_is_listed_is_told(project: Project) -> None:
    project.configure(project.script("a", agent("return {system = 'one'}")))
    async with watching(project) as watched:
        write(project.folder / "a.lua", agent("return {system = 'two'}", "description = 'Another'"))
        with trio.fail_after(10):
            await watched.news.wait()
        assert watched.told == [Change(agents=True, tools=False)]
        assert watched.service.list_agents(DEFAULT_TENANT)[0].description == "Another"


@pytest.mark.parametrize(
    "broken",
    [
        "agent = {",
        "error('on load')",
        "agent = {}",
        "while true do end",
        "\x1bLua",
        "agent = { tools = 7, resolve = function() end }",
    ],
)
async def test_a_broken_edit_keeps_the_last_good_version_and_says_so(project: Project, broken: str) -> None:
    project.configure(project.script("a", agent("return {system = 'good'}")))
    async with watching(project) as watched:
        write(project.folder / "a.lua", broken)
        await watched.failing(1)
        (failure,) = watched.service.failures
        assert (failure.name, failure.kept) == ("a", True)
        assert await watched.answer() == "good"
        assert [info.name for info in watched.service.list_agents(DEFAULT_TENANT)] == ["a"]
        write(project.folder / "a.lua", agent("return {system = 'mended'}"))
        await watched.until("mended")
        assert watched.service.failures == ()


async def test_a_deleted_script_stays_until_it_leaves_the_configuration(project: Project) -> None:
    entry = project.script("a", agent("return {system = 'good'}"))
    project.configure(entry)
    async with watching(project) as watched:
        (project.folder / "a.lua").unlink()
        await watched.failing(1)
        assert await watched.answer() == "good"
        project.configure("")
        with trio.fail_after(10):
            await watched.news.wait()
        assert watched.service.list_agents(DEFAULT_TENANT) == []
        assert watched.service.failures == ()


async def test_a_script_that_never_loaded_is_not_kept(project: Project) -> None:
    project.configure(project.script("a", "agent = {"))
    async with watching(project) as watched:
        (failure,) = watched.service.failures
        assert not failure.kept
        write(project.folder / "a.lua", agent("return {system = 'at last'}"))
        with trio.fail_after(10):
            await watched.news.wait()
        assert await watched.answer() == "at last"


async def test_entries_come_and_go_with_the_configuration(project: Project) -> None:
    first = project.script("a", agent("return {system = 'a'}"))
    project.configure(first)
    async with watching(project) as watched:
        (project.folder / "t.lua").write_text(TOOL.format(about="T", answer="t"))
        project.configure(
            first + '[tools.script.t]\npath = "t.lua"\n[agents.b]\ndescription = "B"\nsystem_prompt = "b"\n'
        )
        with trio.fail_after(10):
            await watched.news.wait()
        assert watched.told == [Change(agents=True, tools=True)]
        assert await watched.answer("b") == "b"
        assert (await watched.service.call_tool("t", {}, CALL)).value == "t"
        # The new script is watched too.
        watched.news = trio.Event()
        write(project.folder / "t.lua", TOOL.format(about="T2", answer="t2"))
        with trio.fail_after(10):
            await watched.news.wait()
        assert (await watched.service.call_tool("t", {}, CALL)).value == "t2"


async def test_a_configuration_that_cannot_be_used_changes_nothing_and_is_told(project: Project) -> None:
    project.configure(project.script("a", agent("return {system = 'good'}")))
    async with watching(project) as watched:
        good = (project.folder / "engine.toml").read_text()
        (project.folder / "engine.toml").write_text("[agents")
        with trio.fail_after(10):
            while True:
                if watched.service.trouble is not None:
                    break
                await trio.sleep(0.02)
        assert "not valid TOML" in watched.service.trouble
        assert await watched.answer() == "good"
        write(project.folder / "a.lua", agent("return {system = 'new'}"))
        (project.folder / "engine.toml").write_text(good + "# mended\n")
        await watched.until("new")
        assert watched.service.trouble is None


async def test_a_call_under_way_ends_on_the_version_that_it_began_with(project: Project) -> None:
    project.configure(project.script("a", agent("log.info('began') sleep(0.8) return {system = 'old'}")))
    async with watching(project) as watched:
        began = trio.Event()
        answers: list[str] = []

        def on_log(line: LogLine) -> None:
            began.set()

        async def old() -> None:
            call = Call(DEFAULT_TENANT, Hearers(log=on_log))
            answers.append((await watched.service.resolve("a", {}, call)).prompt.system)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(old)
            await began.wait()
            write(project.folder / "a.lua", agent("return {system = 'new'}"))
            await watched.until("new")
        assert answers == ["old"]


async def test_unchanged_scripts_are_not_described_again(project: Project) -> None:
    entries = project.script("a", agent("return {system = 'a'}")) + project.script("b", agent("return {system = 'b'}"))
    project.configure(entries)
    async with watching(project) as watched:
        before = {name: watched.service.registry.agent("default", name) for name in "ab"}
        write(project.folder / "a.lua", agent("return {system = 'a2'}"))
        await watched.until("a2")
        assert watched.service.registry.agent("default", "b") is before["b"]
        assert watched.service.registry.agent("default", "a") is not before["a"]


async def test_what_has_not_changed_since_the_start_is_not_loaded_twice(project: Project) -> None:
    project.configure(project.script("a", agent("return {system = 'one'}")) + project.script("b", "agent = {"))
    with capture_logs() as events:
        async with watching(project) as watched:
            write(project.folder / "a.lua", agent("return {system = 'two'}"))
            await watched.until("two")
    # Once at the start, and once when a script beside it was saved.
    assert [event["name"] for event in events if event["event"] == "script did not load"] == ["b", "b"]


async def test_what_changes_while_the_service_opens_is_found(project: Project) -> None:
    project.configure(project.script("a", agent("return {system = 'one'}")))
    loaded = load_config(project.folder / "engine.toml", environ={}, cwd=project.folder)
    async with open_service(loaded) as service, trio.open_nursery() as nursery:
        write(project.folder / "a.lua", agent("return {system = 'two'}"))  # before anybody watches
        nursery.start_soon(reload_on_change, service, {}, project.folder)
        await Watched(service).until("two")
        nursery.cancel_scope.cancel()


LARGE = '[models.large]\napi = "openai"\nmodel = "m"\nprice = {input = 1, output = 2}\n'
SMALL = '[models.small]\napi = "script"\npath = "small.toml"\n'


async def test_an_edited_table_of_models_is_in_force_and_a_broken_one_keeps_the_last(project: Project) -> None:
    project.configure(SMALL)
    async with watching(project) as watched:
        models = watched.service.means.models
        config = project.folder / "engine.toml"

        async def until(names: list[str]) -> None:
            with trio.fail_after(10):
                while list(models.of("default")) != names:  # noqa: ASYNC110 - nothing tells of models
                    await trio.sleep(0.02)

        called = models.model("small", "default")
        with capture_logs() as events:
            write(
                config,
                config.read_text() + '[models.large]\napi = "openai"\nmodel = "m"\nprice = {input = 1, output = 2}\n',
            )
            await until(["small", "large"])
            assert models.priced("large")
            assert models.model("small", "default").served is called.served  # with its turns
            good = config.read_text()
            write(config, good.replace("price =", "prize ="))
            with trio.fail_after(10):
                while watched.service.trouble is None:  # noqa: ASYNC110
                    await trio.sleep(0.02)
            assert list(models.of("default")) == ["small", "large"]
            write(config, good.replace(SMALL, ""))
            await until(["large"])
            servers, where = watched.service.means.servers, "https://mcp.test/mcp"
            assert servers.named(where, "default") is None
            write(config, config.read_text() + f'[mcp_servers.wiki]\nurl = "{where}"\n')
            with trio.fail_after(10):
                while servers.named(where, "default") is None:  # noqa: ASYNC110
                    await trio.sleep(0.02)
        assert not [event for event in events if "restart" in event["event"]]

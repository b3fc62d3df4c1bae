"""What an upload costs others and what it is counted as; and faults that are no author's."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio
from agents_support import Project, problem
from faults import OUTSIDE
from publish_support import PUBLISHER, package, tool
from test_publishing import publish, system

import agents.active
from agents.service import Service
from engine.control import versions
from engine.errors import Code
from engine.tenant import DEFAULT_TENANT
from engine.worker import Worker

Open = Callable[..., AbstractAsyncContextManager[Service]]

SLOW = package(
    files={"main.lua": "local t = os.clock() + 0.2 while os.clock() < t do end\n"
                       "agent = {} function agent.resolve() return { system = 'slow' } end"}
)  # fmt: skip


async def test_an_upload_makes_its_own_version_and_takes_over_all_others(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    really = agents.active._make_all

    def counting(engine: Any, folder: Any, tenant: str, active: Any, kept: Any) -> Any:
        made.extend(each.name for each in active)
        return really(engine, folder, tenant, active, kept)

    monkeypatch.setattr(agents.active, "_make_all", counting)
    project.configure()
    async with opened() as service:
        async with service.at_hand(DEFAULT_TENANT):
            pass
        for number in range(6):
            await publish(service, package(f"says {number}"), f"agent{number}")
            await publish(service, tool(), f"tool{number}", root="tool")
        assert sorted(made) == sorted([*(f"agent{n}" for n in range(6)), *(f"tool{n}" for n in range(6))])
        before = service.registry.tool("default", "tool3")
        made.clear()
        await publish(service, package("anew", "2"), "agent3")
        assert made == ["agent3"]
        assert service.registry.tool("default", "tool3") is before
        assert await system(service, "agent3") == "anew for you"
        assert await system(service, "agent4") == "says 4 for you"


async def test_many_versions_are_read_in_parts_and_every_one_is_there(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.configure()
    async with opened() as service:
        for number in range(10):
            await publish(service, package(f"says {number}"), f"agent{number}")
    parts: list[int] = []
    really = agents.active._make_all

    def counting(engine: Any, folder: Any, tenant: str, active: Any, kept: Any) -> Any:
        parts.append(len(active))
        return really(engine, folder, tenant, active, kept)

    monkeypatch.setattr(agents.active, "_make_all", counting)
    monkeypatch.setattr(agents.active, "_BATCH_VERSIONS", 4)
    async with opened() as service:
        assert [await system(service, f"agent{n}") for n in range(10)] == [f"says {n} for you" for n in range(10)]
    assert parts == [4, 4, 2]


async def test_what_scripts_say_of_themselves_is_counted_as_stored(project: Project, opened: Open) -> None:
    project.configure()
    script = 'agent = { description = ("x"):rep(15000) } function agent.resolve() return { system = "" } end'

    async def stored(service: Service) -> int:
        return await service.control.read(lambda db: versions.stored_bytes(db, "default"))

    async with opened() as service:
        await publish(service, package(files={"main.lua": script}))
        once = await stored(service)
        assert 15_000 < once < 20_000
        await publish(service, package(files={"main.lua": script}), "another")  # the content is kept once, this is not
        assert 30_000 < await stored(service) < 2 * once
        (held,) = service.active._held.values() if service.active._held else (None,)
        assert held is None or held.size >= 30_000


async def test_what_a_script_says_beside_what_is_known_is_not_kept(project: Project, opened: Open) -> None:
    project.configure()
    script = 'agent = { own = ("x"):rep(500000) } function agent.resolve() return { system = "S" } end'
    async with opened() as service:
        await publish(service, package(files={"main.lua": script}))
        assert await service.control.read(lambda db: versions.stored_bytes(db, "default")) < 2_000
        assert await system(service) == "S"


async def test_a_description_that_is_too_long_refuses_the_upload(project: Project, opened: Open) -> None:
    project.configure()
    script = 'agent = { description = ("x"):rep(1000000) } function agent.resolve() return { system = "" } end'
    refused = problem(Code.BAD_REQUEST, "agent: description is 1000000 bytes long; the most is 16384")
    async with opened() as service, refused:
        await publish(service, package(files={"main.lua": script}))


async def kill_while_it_describes(service: Service, times: int, hit: Callable[[Worker], None]) -> None:
    """Do this to the worker that asks a script what it is, so many times."""
    seen: set[int] = set()
    while len(seen) < times:
        for worker in service.engine._pool.leased():
            if worker.serial not in seen:
                seen.add(worker.serial)
                hit(worker)
        await trio.sleep(0.005)  # polled: a worker tells nobody that it began


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSEGV"])
async def test_a_worker_that_is_killed_is_no_authors_fault(project: Project, opened: Open, fault: str) -> None:
    project.configure()
    hit = OUTSIDE[fault][0]
    async with opened() as service:
        async with trio.open_nursery() as nursery:  # once: another worker is asked
            nursery.start_soon(kill_while_it_describes, service, 1, hit)
            await publish(service, SLOW)
        assert await system(service) == "slow"
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_while_it_describes, service, 2, hit)
                async with problem(Code.UNAVAILABLE, "was lost twice", "try again"):
                    await publish(service, {**SLOW, "version": "2"}, who=PUBLISHER)
        await publish(service, {**SLOW, "version": "2"})
        assert await system(service) == "slow"

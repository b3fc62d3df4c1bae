"""What an upload costs others and what it is counted as; and faults that are no author's."""

import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest
import trio
from agents_support import Project, problem
from faults import OUTSIDE, Live
from publish_support import ADMIN, OPERATOR, PUBLISHER, package, tool
from test_publishing import publish, system

import agents.package
import agents.publishing.active
from agents.service import Service
from control.files import packages_path
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT, Tenant

Open = Callable[..., AbstractAsyncContextManager[Service]]

SLOW = package(
    files={"main.lua": "local t = os.clock() + 0.2 while os.clock() < t do end\n"
                       "agent = {} function agent.resolve() return { system = 'slow' } end"}
)  # fmt: skip


async def test_an_upload_makes_its_own_version_and_takes_over_all_others(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    really = agents.publishing.active._make_all

    def counting(makings: Any, active: Any, kept: Any) -> Any:
        made.extend(each.name for each in active)
        return really(makings, active, kept)

    monkeypatch.setattr(agents.publishing.active, "_make_all", counting)
    project.configure()
    async with opened() as service:
        async with service.published(DEFAULT_TENANT):
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
    really = agents.publishing.active._make_all

    def counting(makings: Any, active: Any, kept: Any) -> Any:
        parts.append(len(active))
        return really(makings, active, kept)

    monkeypatch.setattr(agents.publishing.active, "_make_all", counting)
    monkeypatch.setattr(agents.publishing.active, "_BATCH_VERSIONS", 4)
    async with opened() as service:
        assert [await system(service, f"agent{n}") for n in range(10)] == [f"says {n} for you" for n in range(10)]
    assert parts == [4, 4, 2]


READS = package(
    files={"main.lua": "agent = {} function agent.resolve() return { system = fs.read('big.md'):sub(1, 3) } end",
           "big.md": "big" * 100_000}
)  # fmt: skip


async def test_files_beside_a_script_are_not_read_again_to_call_it(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.configure("[tenants]\nenabled = true\n")
    read: list[tuple[int, bool]] = []
    really = agents.publishing.active.restored

    def noting(name: str, version: str, digest: str, kept: bytes, *, partial: bool = False) -> Any:
        read.append((len(kept), partial))
        return really(name, version, digest, kept, partial=partial)

    monkeypatch.setattr(agents.publishing.active, "restored", noting)
    async with opened() as service:
        await publish(service, READS)
        folder = packages_path(service.loaded.config.db.path, "default")
    assert await _called_after_a_restart(opened) == "big"
    (size, partial), *more = read
    assert (partial, more) == (True, [])
    assert size < 1_000
    # The copies are no more than that: without them the whole package is read, and they are there again.
    read.clear()
    shutil.rmtree(folder)
    assert await _called_after_a_restart(opened) == "big"
    assert [(size > 300_000, partial) for size, partial in read] == [(True, False)]
    read.clear()
    assert await _called_after_a_restart(opened) == "big"
    assert [partial for _, partial in read] == [True]


async def _called_after_a_restart(opened: Open) -> str:
    async with opened() as service:
        return await system(service)


async def test_a_package_that_was_kept_without_a_head_is_read_whole(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service:
        await publish(service, READS)
        await service.control._database.write(lambda db: db.execute("DELETE FROM heads"))
    assert await _called_after_a_restart(opened) == "big"


async def test_scripts_that_are_active_together_have_a_bound_in_bytes(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.versions.rows.MAX_ACTIVE_BYTES", 10_000)
    project.configure()
    async with opened() as service:
        await publish(service, READS, "reader")  # of 300 KB, of which a few hundred bytes are active
        await publish(service, package("x" * 2_000), "first")
        async with problem(Code.QUOTA_EXCEEDED, "the scripts that are active take"):
            await publish(service, package("x" * 2_000), "second")
        async with problem(Code.QUOTA_EXCEEDED, "the scripts that are active take"):
            await publish(service, package("x" * 4_000, "2"), "first")
        assert await system(service, "first") == "x" * 2_000 + " for you"
        with pytest.raises(Problem, match="no version of an agent 'second'"):
            await service.publishing.history(DEFAULT_TENANT, PUBLISHER, "agent", "second")
        await service.publishing.change(DEFAULT_TENANT, PUBLISHER, "agent", "first", "1", "deprecate")
        await publish(service, package("x" * 2_000), "second")
        assert await system(service, "second") == "x" * 2_000 + " for you"


async def test_tenants_with_large_scripts_make_room_before_those_with_small_ones(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents.publishing.active, "KEPT_BYTES", 20_000)
    monkeypatch.setattr(agents.publishing.active, "SHARE_BYTES", 2_000)
    project.configure("[tenants]\nenabled = true\n")
    async with opened() as service:
        for name in ("small", "large", "larger"):
            await service.control.tenants.create(name, actor="cli")
            await publish(service, package("x" * (6_000 if name != "small" else 100)), tenant=Tenant(name))
        assert (await system(service, tenant=Tenant("small"))).startswith("xxx")
        for _ in range(2):
            for name in ("large", "larger"):
                assert (await system(service, tenant=Tenant(name))).startswith("xxx")
                assert service.registry.agents("small") != []
                assert service.registry.agents("large" if name == "larger" else "larger") == []


async def test_a_tenant_without_cpu_time_left_has_nothing_read_and_others_have(project: Project, opened: Open) -> None:
    acme, other = Tenant("acme"), Tenant("other")
    project.configure("[tenants]\nenabled = true\n")
    async with opened() as service:
        for tenant in (acme, other):
            await service.control.tenants.create(tenant.id, actor="cli")
            await publish(service, package(), tenant=tenant)
    async with opened() as service:
        service.engine.charge(acme, 1_000)
        async with problem(Code.QUOTA_EXCEEDED, "cpu_seconds_per_minute"), service.published(acme):
            pass
        assert service.registry.agents("acme") == []
        assert await system(service, tenant=other) == "one for you"


async def test_no_content_is_written_on_the_event_loop(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, places = threading.get_ident(), []
    really = agents.package.spelled

    def noting(said: Any) -> bytes:
        places.append(threading.get_ident())
        return really(said)

    monkeypatch.setattr(agents.package, "spelled", noting)
    project.configure()
    async with opened() as service:
        await publish(service, package())
        await publish(service, READS, "reader")
        async with problem(Code.CONFLICT, "with other content"):  # of a script that was not looked at
            await publish(service, package(files={"main.lua": "-- \n" * 3_000_000, "b.md": "x"}))
    assert places
    assert loop not in places


async def test_packages_without_their_copies_are_read_in_parts_of_their_whole_size(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents.publishing.active, "_BATCH_BYTES", 1_000_000)
    project.configure()
    async with opened() as service:
        for number in range(8):
            files = {**READS["files"], "number": str(number)}
            await publish(service, package(files=files), f"agent{number}")
        folder = packages_path(service.loaded.config.db.path, "default")
    parts: list[tuple[int, int]] = []
    really = agents.publishing.active._make_all

    def counting(makings: Any, active: Any, kept: Any) -> Any:
        parts.append((len(active), sum(len(each.content) for each in kept.values())))
        return really(makings, active, kept)

    monkeypatch.setattr(agents.publishing.active, "_make_all", counting)
    assert [count for count, _ in await _parts(opened, parts)] == [8]
    shutil.rmtree(folder)
    assert all(size <= 1_000_000 for _, size in await _parts(opened, parts))
    assert sum(count for count, _ in parts) == 8


async def _parts(opened: Open, parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    parts.clear()
    async with opened() as service:
        assert await system(service, "agent3") == "big"
    return parts


async def test_a_tenant_with_more_than_the_bound_from_before_can_make_it_less(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.configure()
    async with opened() as service:
        for name in ("first", "second"):
            await publish(service, package("x" * 8_000), name)
        monkeypatch.setattr("control.versions.rows.MAX_ACTIVE_BYTES", 10_000)
        await publish(service, package("x" * 7_000, "2"), "first")
        assert await system(service, "first") == "x" * 7_000 + " for you"
        async with problem(Code.QUOTA_EXCEEDED, "the scripts that are active take"):
            await service.publishing.change(DEFAULT_TENANT, PUBLISHER, "agent", "first", "1", "activate")
        assert await system(service, "first") == "x" * 7_000 + " for you"


async def test_a_head_that_comes_later_is_counted_before_it_is_kept(project: Project, opened: Open) -> None:
    project.configure("[tenants]\nenabled = true\n")
    script = "--" + "x" * 50_000 + "\n" + READS["files"]["main.lua"]
    body = package(files={"main.lua": script, "big.md": "big"})
    async with opened() as service:
        await publish(service, body, "first")
        await service.control._database.write(lambda db: db.execute("DELETE FROM heads"))
        stored = await service.control.versions.stored_bytes("default")
        stored += await service.publishing._documents("default")
        await service.control.tenants.change("default", actor="cli", quotas={"stored_bytes": stored + 20_000})
        tenant = await service.control.tenants.for_runs("default")
        async with problem(Code.QUOTA_EXCEEDED, "stored_bytes"):
            await publish(service, body, "second", tenant=tenant)


async def test_large_tenants_with_a_request_under_way_evict_no_other(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents.publishing.active, "KEPT_BYTES", 10_000)
    monkeypatch.setattr(agents.publishing.active, "SHARE_BYTES", 2_000)
    project.configure("[tenants]\nenabled = true\n")
    async with opened() as service:
        for name in ("small", "large", "larger"):
            await service.control.tenants.create(name, actor="cli")
            await publish(service, package("x" * (6_000 if name != "small" else 100)), tenant=Tenant(name))
        async with service.published(Tenant("large")), service.published(Tenant("larger")):
            for _ in range(2):
                assert (await system(service, tenant=Tenant("small"))).startswith("xxx")
                assert service.registry.agents("small") != []
        assert service.registry.agents("small") != []
        idle = [each.size for each in service.active._held.values() if not each.holders]
        assert service.active._idle_size == sum(idle) <= 10_000


async def test_a_tenant_without_cpu_time_left_activates_nothing_and_deprecates(project: Project, opened: Open) -> None:
    project.configure("[tenants]\nenabled = true\n")
    async with opened() as service:
        for version in ("1", "2"):
            await publish(service, package(f"says {version}", version))
        service.engine.charge(DEFAULT_TENANT, 1_000)
        change = partial(service.publishing.change, DEFAULT_TENANT)
        async with problem(Code.QUOTA_EXCEEDED, "cpu_seconds_per_minute"):
            await change(ADMIN, "agent", "helper", "1", "activate")
        async with problem(Code.QUOTA_EXCEEDED, "cpu_seconds_per_minute"):
            await change(ADMIN, "agent", "helper", "1", "approve")
        assert (await change(ADMIN, "agent", "helper", "2", "deprecate"))["deprecated"]
        assert (await change(OPERATOR, "agent", "helper", "1", "activate"))["active"]


async def test_a_copy_that_is_removed_is_never_there_in_part(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.configure()
    async with opened() as service:
        await publish(service, READS)
        await publish(service, package("other", "2"))
    with monkeypatch.context() as cut:  # as where the process is killed at the first file
        cut.setattr(shutil, "rmtree", lambda path, **options: None)
        assert await _called_after_a_restart(opened) == "other for you"
    async with opened() as service:
        await service.publishing.change(DEFAULT_TENANT, PUBLISHER, "agent", "helper", "1", "activate")
        assert await system(service) == "big"
        folder = packages_path(service.loaded.config.db.path, "default")
    assert len([each for each in folder.iterdir() if not each.name.startswith(".")]) == 1
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("digest", ["/etc", "../../etc", "..", "", "0" * 64])
async def test_a_digest_names_no_folder_but_that_of_its_content(project: Project, opened: Open, digest: str) -> None:
    project.configure()
    script = "agent = {} function agent.resolve() return { system = fs.read('hostname') } end"
    async with opened() as service:
        await publish(service, package(files={"main.lua": script, "hostname": "mine"}))

        def turn(db: Any) -> None:
            for table in ("packages", "heads", "versions"):
                db.execute(f"UPDATE {table} SET digest = ?", (digest,))

        await service.control._database.write(turn)
    async with opened() as service, service.published(DEFAULT_TENANT):
        assert service.registry.agents("default") == []


async def test_what_scripts_say_of_themselves_is_counted_as_stored(project: Project, opened: Open) -> None:
    project.configure()
    script = 'agent = { description = ("x"):rep(15000) } function agent.resolve() return { system = "" } end'

    async def stored(service: Service) -> int:
        return await service.control.versions.stored_bytes("default")

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
        assert await service.control.versions.stored_bytes("default") < 2_000
        assert await system(service) == "S"


async def test_a_description_that_is_too_long_refuses_the_upload(project: Project, opened: Open) -> None:
    project.configure()
    script = 'agent = { description = ("x"):rep(1000000) } function agent.resolve() return { system = "" } end'
    refused = problem(Code.BAD_REQUEST, "agent: description is 1000000 bytes long; the most is 16384")
    async with opened() as service, refused:
        await publish(service, package(files={"main.lua": script}))


async def kill_while_it_describes(service: Service, times: int, hit: Callable[[Live], None]) -> None:
    """Do this to the worker that asks a script what it is, so many times."""
    seen: set[int] = set()
    while len(seen) < times:
        for worker in service.engine.statistics().workers_that_are("leased"):
            if worker.serial not in seen:
                seen.add(worker.serial)
                hit(worker)
        await trio.sleep(0.005)  # polled: a worker sends no message when it begins


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

"""Sources are synchronised while the engine serves: by period, by changes, on request; and they give way to runs."""

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import warm_start
from agents_support import CALL, Project, agent
from git_support import Repository

from agents import embedding, syncing
from agents.service import Service
from engine.errors import Code, Problem
from engine.scheduling.background import background
from engine.scheduling.places import Places
from engine.tenant import DEFAULT_TENANT, Tenant
from engine.workers.zygote import Child, Zygote
from knowledge.access import EVERYTHING
from knowledge.embedding.static import StaticEmbedder
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import Batch, NewDocument, SearchQuery, SourceInfo, StoreError
from knowledge.stores import store_path
from storage import metering
from storage.metering import give_way, in_thread, metered

Open = Callable[..., AbstractAsyncContextManager[Service]]

DOCS = '[connectors.filesystem.docs]\nroot = "docs"\n'


def configure(project: Project, keys: str = "", more: str = "") -> None:
    (project.folder / "docs").mkdir(exist_ok=True)
    (project.folder / "docs/a.md").write_text("alpha word")
    project.configure(DOCS + keys + more)


@asynccontextmanager
async def served(opened: Open) -> AsyncIterator[Service]:
    async with opened() as service, service.syncs.serving():
        yield service


async def source(service: Service) -> SourceInfo:
    (found,) = await service.store.sources(EVERYTHING)
    return found


async def until(what: Callable[[], Any]) -> None:
    """Wait until an async condition holds."""
    with trio.fail_after(15):
        while not await what():  # noqa: ASYNC110
            await trio.sleep(0.02)


def finds(service: Service, word: str) -> Callable[[], Any]:
    async def found() -> bool:
        return bool((await service.store.search(SearchQuery(query=word), EVERYTHING)).hits)

    return found


async def test_a_source_with_a_period_is_synchronised_at_the_start_and_again(project: Project, opened: Open) -> None:
    configure(project, 'every = "1s"\n')
    async with served(opened) as service:
        await until(finds(service, "alpha"))
        (project.folder / "docs/b.md").write_text("beta word")
        await until(finds(service, "beta"))

        async def planned() -> bool:
            info = await source(service)
            return info.next_sync is not None and info.last_sync is not None and info.next_sync >= info.last_sync

        await until(planned)


async def test_an_edit_of_a_watched_folder_can_be_searched_within_two_seconds(project: Project, opened: Open) -> None:
    configure(project, "watch = true\n")
    async with served(opened) as service:
        await until(finds(service, "alpha"))
        for word in ("beta", "gamma"):
            (project.folder / "docs" / word).mkdir()
            (project.folder / "docs" / word / "new.md").write_text(f"{word} word")
            began_s = trio.current_time()
            await until(finds(service, word))
            assert trio.current_time() - began_s < 10  # two on an idle machine
        (project.folder / "docs/a.md").unlink()

        async def gone() -> bool:
            return not (await service.store.search(SearchQuery(query="alpha"), EVERYTHING)).hits

        await until(gone)


async def test_a_sync_on_request_runs_once_at_a_time_and_of_what_is_configured(project: Project, opened: Open) -> None:
    configure(project)
    async with opened() as service:
        with pytest.raises(Problem) as refused:
            await service.syncs.begin(DEFAULT_TENANT, "filesystem:docs")
        assert refused.value.code is Code.UNAVAILABLE
        async with service.syncs.serving():
            async with open_store(service.loaded.config.db.path) as store, store.sync_lock("filesystem:docs"):
                with pytest.raises(Problem, match="another sync of filesystem:docs is running") as refused:
                    await service.syncs.begin(DEFAULT_TENANT, "filesystem:docs")
            assert refused.value.code is Code.CONFLICT
            for tenant, label in ((DEFAULT_TENANT, "filesystem:none"), (Tenant("acme"), "filesystem:docs")):
                with pytest.raises(Problem) as refused:
                    await service.syncs.begin(tenant, label)
                assert refused.value.code is Code.NOT_FOUND
            run = await service.syncs.begin(DEFAULT_TENANT, "filesystem:docs")
            assert (run.source, run.as_json()["state"]) == ("filesystem:docs", "running")
            await until(finds(service, "alpha"))


async def test_a_source_that_fails_is_tried_again_later_and_later_and_says_why(project: Project, opened: Open) -> None:
    pauses = [syncing.pause_s(60, failures) for failures in (0, 1, 2, 6, 60)]
    for pause, least in zip(pauses, (60, 120, 240, 3840, 3840), strict=True):
        assert least <= pause <= least * (1 + syncing.JITTER)
    assert syncing.pause_s(50_000, 5) <= syncing.LONGEST_S * (1 + syncing.JITTER)
    configure(project, 'every = "1s"\n')
    (project.folder / "docs").rename(project.folder / "away")
    async with served(opened) as service:

        async def failed() -> bool:
            return (await source(service)).last_error is not None

        await until(failed)
        (project.folder / "away").rename(project.folder / "docs")
        await until(finds(service, "alpha"))
        assert (await source(service)).last_error is None


async def test_a_restarted_server_does_not_repeat_what_was_just_done_unless_the_clock_went_back(
    project: Project, opened: Open
) -> None:
    configure(project, 'every = "1h"\n')
    async with served(opened) as service:
        await until(finds(service, "alpha"))
    async with opened() as service:
        assert 3500 < await service.syncs._due_in(DEFAULT_TENANT, "filesystem:docs", 3600) <= 3600
        service.syncs.now = lambda: datetime.now(UTC) - timedelta(days=2)
        assert await service.syncs._due_in(DEFAULT_TENANT, "filesystem:docs", 3600) == 0
        service.syncs.now = lambda: datetime.now(UTC) + timedelta(hours=2)
        assert await service.syncs._due_in(DEFAULT_TENANT, "filesystem:docs", 3600) == 0


async def test_a_search_warns_of_a_source_that_is_late(project: Project, opened: Open) -> None:
    configure(project, 'every = "1s"\n')
    async with opened() as service:
        answer = await service.store.search(SearchQuery(query="alpha"), EVERYTHING)
        assert answer.warnings == ("filesystem:docs was never synchronised",)
        async with service.syncs.serving():
            await until(finds(service, "alpha"))
            assert (await service.store.search(SearchQuery(query="alpha"), EVERYTHING)).warnings == ()
        await trio.sleep(3.1)
        for asked in (None, "filesystem", "docs", "filesystem:docs"):
            (warning,) = (await service.store.search(SearchQuery(query="alpha", source=asked), EVERYTHING)).warnings
            assert warning.startswith("filesystem:docs is out of date: its last sync was at 20")
        (warning,) = (await service.store.search(SearchQuery(query="alpha", source="other"), EVERYTHING)).warnings
        assert warning.startswith("there is no such source")


async def test_a_sync_pauses_while_runs_of_others_wait_and_is_charged_to_its_tenant(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    spin = "local n = 0 while os.clock() < 0.4 do n = n + 1 end return { system = 'done', messages = {} }"
    configure(project, more=project.script("spin", agent(spin)))
    charged: list[float] = []
    other = Tenant("other")
    async with opened() as service, background(service.engine, other, "sync:filesystem:docs") as work:
        monkeypatch.setattr(service.engine, "charge", lambda tenant, cpu_s, name: charged.append(cpu_s))
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(service.resolve, "spin", {}, CALL)
            while not service.engine.others_wait(other):  # noqa: ASYNC110
                await trio.sleep(0.001)
            assert not service.engine.others_wait(DEFAULT_TENANT)  # those that wait are its own
            began_s = trio.current_time()
            work.meter.add(0.001)
            await work.rest()
            waited_s = trio.current_time() - began_s
            assert not service.engine.others_wait(other)
            began_s = trio.current_time()
        assert waited_s > 0.3  # six runs of 0.4 s on two workers
        assert charged == [0.001]
        began_s = trio.current_time()
        await work.rest()
        assert trio.current_time() - began_s < 0.2


async def test_a_tenant_whose_runs_always_wait_does_not_keep_a_sync_of_another_one_from_its_end(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(project)
    async with opened() as service, background(service.engine, Tenant("other"), "sync:filesystem:docs") as work:
        monkeypatch.setattr(service.engine, "others_wait", lambda tenant: True)
        work.patience_s = 0.2
        began_s = trio.current_time()
        for _ in range(20):  # documents
            work.meter.add(0.001)
            await work.rest()
        assert 0.5 < trio.current_time() - began_s < 2.0


async def test_runs_that_wait_for_others_of_their_tenant_while_a_slot_is_free_delay_no_sync(
    project: Project, opened: Open
) -> None:
    configure(project)
    async with opened() as service:
        scheduler = service.engine._scheduler
        for _ in range(3):
            scheduler.offer("hog", 0.0, queue_length=9, concurrent=1)
        assert scheduler.next_start(0.0) is not None
        assert (scheduler.next_start(0.0), scheduler.waiting) == (None, True)
        assert not service.engine.others_wait(Tenant("other"))


async def test_a_sync_rests_as_long_as_it_computed_beside_searches_and_waits_for_one_that_is_asked(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(project)
    async with opened() as service, background(service.engine, DEFAULT_TENANT, "sync:filesystem:docs") as work:

        async def rested(cpu_s: float) -> float:
            began_s = trio.current_time()
            work.meter.add(cpu_s)
            await work.rest()
            return trio.current_time() - began_s

        assert await rested(0.3) < 0.2
        await service.call_tool("search", {"query": "alpha"}, CALL)
        assert await rested(0.3) >= 0.3
        with service.engine.answering():
            assert await rested(0.1) >= 0.4  # as after any, and for the end of this one, up to a bound
        monkeypatch.setattr("engine.engine._LATELY_S", 0)
        assert await rested(0.3) < 0.2


async def test_threads_of_a_sync_give_way_while_a_run_computes_and_still_compute(
    project: Project, opened: Open
) -> None:
    spin = "local n = 0 while os.clock() < 0.3 do n = n + 1 end return { system = 'done', messages = {} }"
    configure(project, more=project.script("spin", agent(spin)))

    def steps() -> tuple[float, float]:
        """The CPU seconds of 40 ms in small pieces, and how long they took."""
        began_s, cpu_s = time.monotonic(), time.thread_time()
        while time.thread_time() < cpu_s + 0.04:
            end_s = time.thread_time() + 0.002
            while time.thread_time() < end_s:
                pass
            give_way()
        return time.thread_time() - cpu_s, time.monotonic() - began_s

    async with opened() as service, background(service.engine, Tenant("other"), "sync:filesystem:docs") as work:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.resolve, "spin", {}, CALL)
            while not work.others():  # noqa: ASYNC110
                await trio.sleep(0.001)
            cpu_s, took_s = await work.run(in_thread(steps))
            assert work.others(), "the run outlasts the steps"
            assert cpu_s / took_s < 0.4, "three times as long as it computed, it waits"
        assert not work.others()


async def test_a_thread_of_a_sync_looks_for_runs_before_each_document_and_each_text(tmp_path: Path) -> None:
    looks: list[bool] = []

    async def looked(work: Awaitable[object]) -> int:
        looks.clear()
        await work
        return len(looks)

    with metered() as meter:
        meter.others = lambda: bool(looks.append(True))
        async with open_store(tmp_path / "store", create=True) as store:
            found = [NewDocument(source_id=f"d{n}", body="b", chunks=["one", "two"], digest="d") for n in range(5)]
            assert await looked(store.apply(Batch(source="x:y", upserts=found))) == 5 + 10
            assert await looked(store.next_pending(await store.model_number(StaticEmbedder.model), 0)) == 2
        assert await looked(StaticEmbedder().embed(["one", "two", "three"])) == 3


async def test_a_thread_gives_way_for_a_bounded_time_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> float:
        began_s, waited_s = time.thread_time(), 0.0
        while time.thread_time() < began_s + 0.05:
            at_s = time.monotonic()
            give_way()
            waited_s += time.monotonic() - at_s
        return waited_s

    with metered() as meter:
        meter.others = lambda: True
        assert await in_thread(steps) > 0.1
        looks: list[bool] = []
        meter.others = lambda: not looks.append(True)
        monkeypatch.setattr(metering, "_LONGEST_S", 0.0)  # it may hold a lock
        await in_thread(lambda: [give_way() for _ in range(3)])
        assert len(looks) == 3, "a look each time, and no pause"


async def test_places_for_syncs_go_to_the_tenant_that_has_the_fewest() -> None:
    places, begun = Places(3, 2), list[str]()
    gates = {name: trio.Event() for name in ("a1", "a2", "a3", "a4", "b1", "c1")}

    async def sync(name: str, scope: trio.CancelScope | None = None) -> None:
        with scope or trio.CancelScope():
            async with places.place(name[0]):
                begun.append(name)
                await gates[name].wait()

    async with trio.open_nursery() as nursery:
        cancelled = trio.CancelScope()
        for name in ("a1", "a2", "a3"):
            nursery.start_soon(sync, name, cancelled if name == "a3" else None)
            await trio.testing.wait_all_tasks_blocked()
        assert begun == ["a1", "a2"]  # one place stays free for other tenants
        assert places.is_free("b")
        assert not places.is_free("a")
        for name in ("b1", "a4", "c1"):
            nursery.start_soon(sync, name)
            await trio.testing.wait_all_tasks_blocked()
        assert begun == ["a1", "a2", "b1"]
        cancelled.cancel()
        gates["a1"].set()
        await trio.testing.wait_all_tasks_blocked()
        assert begun == ["a1", "a2", "b1", "c1"]  # which came last, and had none
        for gate in gates.values():
            gate.set()
    assert begun[-1] == "a4"
    assert places.free == 3


async def test_a_sync_waits_while_its_tenant_has_used_up_its_time(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(project)
    async with served(opened) as service:
        left = trio.Event()
        monkeypatch.setattr(service.engine, "may_work", lambda tenant: tenant.id == "other" or left.is_set())
        run = await service.syncs.begin(DEFAULT_TENANT, "filesystem:docs")
        assert run.state == "queued"  # it is deferred, and has not failed
        await trio.sleep(0.4)
        assert not await finds(service, "alpha")()
        assert (await source(service)).last_error is None
        assert service.syncs._places.free == syncing.AT_ONCE  # meanwhile, others sync
        left.set()
        await until(finds(service, "alpha"))


async def test_a_sync_survives_a_control_store_that_fails(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(project, 'every = "1s"\n', '[tenants]\nenabled = true\noperator_key = "the-operators-own-key"\n')
    with monkeypatch.context() as broken:

        async def fails(versions: object, tenant: str) -> int:
            await trio.lowlevel.checkpoint()
            raise Problem(Code.UNAVAILABLE, "the control store is busy")

        broken.setattr("control.versions.versions.Versions.stored_bytes", fails)
        async with served(opened) as service:
            await trio.sleep(0.3)
            broken.undo()
            await until(finds(service, "alpha"))


TENANTS = '[tenants]\nenabled = true\noperator_key = "the-operators-own-key"\n'


async def test_all_that_a_sync_computes_is_in_the_usage_of_its_tenant(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(project.folder / "repository")
    for n in range(30):
        repository.commit(**{f"f{n}_md": f"beta {n}"})
    configure(
        project, 'include_globs = ["**/*"]\n',
        f'[connectors.git.repo]\nurl = "{repository.url}"\n[embedding]\nprovider = "static"\n',
    )  # fmt: skip
    (project.folder / "docs/page.html").write_text("<h1>Page</h1>" + "<p>gamma words</p>" * 30_000)
    readers: list[Child] = []
    fork = Zygote.fork

    async def noting(self: Zygote, **keys: Any) -> Child:
        readers.append(await fork(self, **keys))
        return readers[-1]

    monkeypatch.setattr(Zygote, "fork", noting)
    monkeypatch.setattr(embedding, "EVERY_S", 0.05)
    async with served(opened) as service:

        async def charged(work: str) -> float:
            found = await service.usage.sums_of("default")
            assert all(not each.runs for each in found.values())
            return sum(each.cpu_us / 1e6 for account, each in found.items() if account.agent == work)

        await service.syncs.begin(DEFAULT_TENANT, "filesystem:docs")
        await until(finds(service, "gamma"))
        in_readers_s = sum(each.cpu_s for each in readers)
        await over(service)
        assert await charged("sync:filesystem:docs") > in_readers_s > 0.02  # and what the engine itself computed
        children_s = sum(os.times()[2:4])
        await service.syncs.begin(DEFAULT_TENANT, "git:repo")
        await over(service)
        children_s = sum(os.times()[2:4]) - children_s
        assert await charged("sync:git:repo") > 0.5 * children_s > 0
        await until(partial(charged, "embedding"))


async def over(service: Service) -> None:
    """Wait until no sync runs."""
    with trio.fail_after(15):
        while service.syncs._syncing:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_sources_of_a_suspended_tenant_rest_until_it_is_resumed_and_those_of_a_new_one_begin(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncing, "TENANTS_S", 0.05)
    monkeypatch.setattr(embedding, "EVERY_S", 0.05)
    configure(project, 'every = "1s"\ntenants = ["acme", "late"]\n', TENANTS)
    async with served(opened) as service:
        tenants = service.control.tenants
        await tenants.create("acme", actor="cli")

        def embedded(tenant: str, count: int) -> Callable[[], Any]:
            async def are() -> bool:
                try:
                    sources = await service.stores.store_of(tenant).sources(EVERYTHING)
                except StoreError:  # it is being made
                    return False
                return [each.embedded for each in sources] == [count]

            return are

        await until(embedded("acme", 1))
        await tenants.set_state("acme", "suspended", actor="cli")
        await trio.sleep(0.5)
        (project.folder / "docs/b.md").write_text("beta word")
        await trio.sleep(1.6)
        (before,) = await service.stores.store_of("acme").sources(EVERYTHING)
        assert before.document_count == 1
        path = store_path(service.loaded.config.db.path, "acme")
        async with open_store(path) as store:  # as a command on the machine may
            document = NewDocument(source_id="c.md", body="gamma", chunks=("gamma",), digest="gamma")
            await store.apply(Batch(source="filesystem:docs", upserts=[document]))
        await trio.sleep(0.3)
        assert not await embedded("acme", 2)()
        await tenants.set_state("acme", "active", actor="cli")
        await until(embedded("acme", 2))  # c.md is no file, and is gone
        await tenants.create("late", actor="cli")
        await until(embedded("late", 2))


async def test_a_flood_of_requests_is_one_sync_and_those_of_many_sources_wait_their_turn(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s{n}" for n in range(syncing.AT_ONCE + 3)]
    configure(project, more="".join(f'[connectors.filesystem.{name}]\nroot = "docs"\n' for name in names))
    openings: list[int] = []
    most = 0
    free = trio.Event()
    store = syncing.Syncs._store

    @asynccontextmanager
    async def counted(self: syncing.Syncs, tenant: Tenant) -> AsyncIterator[SqliteStore]:
        nonlocal most
        openings.append(1)
        most = max(most, len(openings))
        async with store(self, tenant) as opened:
            await free.wait()
            yield opened
        openings.pop()

    monkeypatch.setattr(syncing.Syncs, "_store", counted)
    async with served(opened) as service:
        refused = 0
        begun: list[syncing.SyncRun] = []

        async def ask(label: str) -> None:
            nonlocal refused
            try:
                begun.append(await service.syncs.begin(DEFAULT_TENANT, label))
            except Problem as problem:
                refused += problem.code is Code.CONFLICT

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask, "filesystem:s0")
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert (refused, len(openings)) == (49, 1)
            for name in names[1:]:
                nursery.start_soon(ask, f"filesystem:{name}")
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert [each.state for each in begun] == ["queued"] * (len(names) - syncing.AT_ONCE)
            free.set()
        assert [each.state for each in begun].count("running") == syncing.AT_ONCE
        await over(service)
        assert most == syncing.AT_ONCE
        found = await service.store.sources(EVERYTHING)
        assert [each.document_count for each in found if each.source != "filesystem:docs"] == [1] * len(names)


async def test_the_lock_of_a_process_that_is_killed_refuses_no_sync(project: Project, opened: Open) -> None:
    configure(project)
    holds = (
        "import sys, trio\nfrom knowledge.sqlite.store import open_store\n"
        "async def main():\n async with open_store(sys.argv[1]) as store, store.sync_lock('filesystem:docs'):\n"
        "  print('held', flush=True)\n  await trio.sleep_forever()\ntrio.run(main)\n"
    )
    async with served(opened) as service:
        path = str(service.loaded.config.db.path)
        process = await warm_start.open_process([sys.executable, "-c", holds, path], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert (await process.stdout.receive_some()).startswith(b"held")
        with pytest.raises(Problem, match="another sync of filesystem:docs is running") as refused:
            await service.syncs.begin(DEFAULT_TENANT, "filesystem:docs")
        assert refused.value.code is Code.CONFLICT
        process.kill()
        await process.wait()
        await service.syncs.begin(DEFAULT_TENANT, "filesystem:docs")
        await until(finds(service, "alpha"))


async def test_an_edit_while_another_sync_reads_the_folder_is_not_missed(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(project, "watch = true\n")
    async with served(opened) as service:
        await until(finds(service, "alpha"))
        if (first := service.syncs._syncing.get((DEFAULT_TENANT.id, "filesystem:docs"))) is not None:
            await first.wait()  # a document is found before the sync that stored it ends
        with service.syncs._marked(DEFAULT_TENANT, "filesystem:docs"):  # one that has read the folder already
            (project.folder / "docs/b.md").write_text("beta word")
            await trio.sleep(1.0)
            assert not await finds(service, "beta")()
        await until(finds(service, "beta"))

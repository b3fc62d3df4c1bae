"""Sources are synchronised while the engine serves: by period, by changes, on request; and they give way to runs."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from agents_support import CALL, Project, agent

from agents import syncing
from agents.service import Service
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT, Tenant
from knowledge.access import EVERYTHING
from knowledge.sqlite.store import open_store
from knowledge.store import SearchQuery, SourceInfo

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
        assert (await service.store.search(SearchQuery(query="alpha", source="other"), EVERYTHING)).warnings == ()


async def test_a_sync_pauses_while_runs_of_others_wait_and_is_charged_to_its_tenant(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    spin = "local n = 0 while os.clock() < 0.4 do n = n + 1 end return { system = 'done', messages = {} }"
    configure(project, more=project.script("spin", agent(spin)))
    charged: list[float] = []
    async with opened() as service:
        monkeypatch.setattr(service.engine, "charge", lambda tenant, cpu_s: charged.append(cpu_s))
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(service.resolve, "spin", {}, CALL)
            other = Tenant("other")
            while not service.engine.others_wait(other):  # noqa: ASYNC110
                await trio.sleep(0.001)
            assert not service.engine.others_wait(DEFAULT_TENANT)  # those that wait are its own
            began_s = trio.current_time()
            await service.syncs._pace(other, 0.001)
            waited_s = trio.current_time() - began_s
            assert not service.engine.others_wait(other)
            began_s = trio.current_time()
        assert waited_s > 0.3  # six runs of 0.4 s on two workers
        assert charged == [0.001]
        began_s = trio.current_time()
        await service.syncs._pace(other, 0.001)
        assert trio.current_time() - began_s < 0.2


async def test_a_sync_waits_while_its_tenant_has_used_up_its_time(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(project)
    async with served(opened) as service:
        left = trio.Event()
        monkeypatch.setattr(service.engine, "may_work", lambda tenant: left.is_set())
        await service.syncs.begin(DEFAULT_TENANT, "filesystem:docs")
        await trio.sleep(0.4)
        assert not await finds(service, "alpha")()
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

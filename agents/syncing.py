"""Synchronisation while serving: by the period of a source, when its files change, and on request.

A sync is work of its tenant that can wait (`engine.scheduling.background`). Sources of a tenant that is suspended or
deleted are left alone until it is there again.
"""

import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import structlog
import trio

from agents import sources
from control.identity import tenant_of
from control.store import ControlStore
from engine.config import ConfigError, LoadedConfig
from engine.engine import Engine
from engine.errors import Code, Problem
from engine.extraction import open_extractor
from engine.run import new_run_id
from engine.scheduling.background import Deferred, background, quota_left
from engine.scheduling.places import Place, Places, share_of
from engine.tenant import DEFAULT_TENANT, Tenant
from knowledge.access import EVERYTHING
from knowledge.connectors import ConnectorError
from knowledge.extraction import Extractor
from knowledge.sqlite.store import SqliteStore, already_runs, is_locked, open_store
from knowledge.store import StoreError, SyncRunning
from knowledge.stores import Stores, store_path
from knowledge.sync import SyncReport
from knowledge.sync import sync as sync_source
from knowledge.times import format_time

log = structlog.get_logger("agents.syncing")

# Syncs of all tenants side by side, whatever began them; further ones wait. The slow sources of one tenant keep half of
# the places at most (`share_of`).
AT_ONCE = 4
# How often tenants are looked up that were created, changed, suspended, resumed or deleted.
TENANTS_S = 5.0
# Each pause between two syncs is longer by up to this share of the period, so that sources do not fall into step.
JITTER = 0.1
# After failures in a row the period doubles, up to this many times, and never beyond a day.
BACK_OFF = 6
LONGEST_S = 86_400.0
# Changes of files within this time are one: an editor writes a file in several steps.
_BURST_MS = 200
_STEP_MS = 50
# The watch begins with an answer after this time, after which nothing can be missed.
_LOOK_MS = 500
_WATCH_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class SyncRun:
    """One synchronisation under way, or `queued`: it begins when another one ends."""

    id: str
    source: str
    started_at: str
    state: Literal["running", "queued"] = "running"

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "source": self.source, "started_at": self.started_at, "state": self.state}


@dataclass(slots=True)
class Syncs:
    """The synchronisations of a service, with the connectors of its start. They run while it is served (`serving`)."""

    loaded: LoadedConfig
    engine: Engine
    control: ControlStore
    stores: Stores
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _nursery: trio.Nursery | None = None
    _extractor: Extractor | None = None
    _places: Places = field(init=False)
    # Syncs of this process, by tenant and label, also those that wait for a place. The event is set at the end.
    _syncing: dict[tuple[str, str], trio.Event] = field(default_factory=dict)
    # The tenants whose sources are synchronised by themselves, as they were at the last look.
    _present: dict[str, Tenant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._places = Places(AT_ONCE, share_of(AT_ONCE, shared=self.loaded.config.tenants.enabled))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Synchronise sources that have a period or watch their files, until the block ends."""
        async with open_extractor(self.loaded.config) as extractor, trio.open_nursery() as nursery:
            self._nursery, self._extractor = nursery, extractor
            nursery.start_soon(self._schedule)
            try:
                yield
            finally:
                self._nursery = None
                nursery.cancel_scope.cancel()

    async def begin(self, tenant: Tenant, label: str) -> SyncRun:
        """Start a sync of one of the tenant's sources. Raises Problem: not_found, conflict, unavailable.

        A source that is hidden from the caller is not found, as one that is not configured.
        """
        problems = self.loaded.config.connectors.problems(tenant.id)
        if label not in problems or not await self._listed(tenant, label):
            raise Problem(Code.NOT_FOUND, f"no source is configured as {label[:128]!r}")
        if (problem := problems[label]) is not None:
            raise Problem(Code.CONFLICT, problem)
        if self._nursery is None:
            raise Problem(Code.UNAVAILABLE, "sources are not synchronised here: this is not a server")
        try:
            run: SyncRun = await self._nursery.start(self._begun, tenant, label)
        except SyncRunning as error:
            raise Problem(Code.CONFLICT, str(error)) from None
        except (ConfigError, StoreError) as error:
            raise Problem(Code.UNAVAILABLE, str(error)) from None
        return run

    async def _listed(self, tenant: Tenant, label: str) -> bool:
        """Whether the source is in the caller's list of sources. Raises Problem."""
        if tenant.reader.unlimited:
            return True
        try:
            found = await self.stores.store_of(tenant.id).sources(tenant.reader)
        except StoreError as error:
            raise Problem(Code.UNAVAILABLE, str(error)) from None
        return any(each.source == label for each in found)

    async def _begun(
        self, tenant: Tenant, label: str, task_status: trio.TaskStatus[SyncRun] = trio.TASK_STATUS_IGNORED
    ) -> None:
        run = SyncRun(new_run_id(), label, format_time(self.now()))
        begun = False

        def begin(run: SyncRun) -> None:
            nonlocal begun
            if not begun:
                begun = True
                task_status.started(run)

        try:
            with self._marked(tenant, label):
                path = store_path(self.loaded.config.db.path, tenant.id)
                if await trio.to_thread.run_sync(is_locked, path, label):  # by another process
                    raise SyncRunning(already_runs(label))
                if not self._places.is_free(tenant.id) or not self.engine.may_work(tenant):
                    begin(replace(run, state="queued"))
                async with self._places.place(tenant.id) as place:
                    await self._sync(tenant, label, place, partial(begin, run))
        except (ConfigError, StoreError) as error:
            if not begun:  # raised to the caller of `begin`
                raise
            log.warning("a sync failed", source=label, tenant=tenant.id, reason=str(error))

    @contextmanager
    def _marked(self, tenant: Tenant, label: str) -> Iterator[None]:
        """While a sync of the source waits or runs in this process. Raises SyncRunning while another one does."""
        key = (tenant.id, label)
        if key in self._syncing:  # known without a look at the store, however often it is asked for
            raise SyncRunning(already_runs(label))
        self._syncing[key] = trio.Event()
        try:
            yield
        finally:
            self._syncing.pop(key).set()

    async def _sync(self, tenant: Tenant, label: str, place: Place, on_begin: Callable[[], None] | None = None) -> bool:
        """One sync; returns whether it succeeded. Raises ConfigError, StoreError (SyncRunning).

        While its tenant has used up its CPU time, it waits, and others have its place.
        """
        config = self.loaded.config
        assert self._extractor is not None
        if not self.engine.may_work(tenant):
            await place.lent(quota_left(self.engine, tenant))
        source = sources.connector(config, label, self.engine, tenant, self._extractor)
        async with self._store(tenant) as store, background(self.engine, tenant, f"sync:{label}") as work:

            async def pace() -> None:
                try:
                    await work.rest()
                except Deferred:
                    await place.lent(quota_left(self.engine, tenant))

            try:
                report = await work.run(
                    sync_source(
                        store,
                        label,
                        source,
                        max_tokens=config.chunking.max_tokens,
                        overlap_tokens=config.chunking.overlap_tokens,
                        pace=pace,
                        on_begin=on_begin,
                    )
                )
            except SyncRunning:
                raise
            except (ConnectorError, StoreError) as error:
                log.warning("a sync failed", source=label, tenant=tenant.id, reason=str(error))
                if isinstance(error, StoreError):
                    raise
                return False
        _note(report, tenant)
        return True

    @asynccontextmanager
    async def _store(self, tenant: Tenant) -> AsyncIterator[SqliteStore]:
        """The tenant's store, for writing: by connections of its own, so that no query waits for a batch."""
        config = self.loaded.config
        room = self.engine.room_for(tenant)
        if room is not None:
            try:
                room = max(0, room - await self.control.versions.stored_bytes(tenant.id))
            except Problem as problem:  # as with any store that fails: this sync ends, and the server goes on
                raise StoreError(problem.message) from None
        path = store_path(config.db.path, tenant.id)
        async with open_store(
            path, create=True, readers=1, configured=config.connectors.problems(tenant.id), max_bytes=room,
            access=self.stores.access(tenant.id), language=config.retrieval.language,
        ) as store:  # fmt: skip
            yield store

    # ---- by period, and when files change

    async def _schedule(self) -> None:
        """Run what sources of each tenant want by themselves, for as long as the tenant is there and active."""
        connectors = self.loaded.config.connectors
        if not any(_by_itself(connectors.entry(label)) for label in connectors.all_labels()):
            return
        scopes: dict[str, trio.CancelScope] = {}
        async with trio.open_nursery() as nursery:
            while True:
                self._present = await self._tenants()
                for name in scopes.keys() - self._present.keys():
                    scopes.pop(name).cancel()
                for name in self._present.keys() - scopes.keys():
                    scopes[name] = trio.CancelScope()
                    nursery.start_soon(self._keep, name, scopes[name])
                if not self.loaded.config.tenants.enabled:
                    return
                await trio.sleep(TENANTS_S)

    def _tenant(self, name: str) -> Tenant:
        """The tenant as it was at the last look. A task of one that is gone may compute until it is cancelled."""
        return self._present.get(name) or Tenant(name)

    async def _keep(self, name: str, scope: trio.CancelScope) -> None:
        """Keep one tenant's sources up to date."""
        connectors = self.loaded.config.connectors
        every = connectors.every(name)
        with scope:
            async with trio.open_nursery() as nursery:
                for label in connectors.labels(name):
                    if label in every:
                        nursery.start_soon(self._repeat, name, label, every[label])
                    if getattr(connectors.entry(label), "watch", False):
                        nursery.start_soon(self._watch, name, label, connectors.entry(label).root)

    async def _tenants(self) -> dict[str, Tenant]:
        """The active tenants, by name; those of before where that is not known now."""
        if not self.loaded.config.tenants.enabled:
            return {DEFAULT_TENANT.id: DEFAULT_TENANT}
        try:
            records = await self.control.tenants.all()
        except Problem as problem:
            log.warning("sources of tenants are synchronised as before", reason=problem.message)
            return self._present or {DEFAULT_TENANT.id: DEFAULT_TENANT}
        return {record.name: tenant_of(record) for record in records if record.state == "active"}

    async def _repeat(self, name: str, label: str, every_s: float) -> None:
        """Sync at once if that is due, then again and again. Time is counted from the end of the last one."""
        failures = 0
        wait_s = await self._due_in(self._tenant(name), label, every_s)
        while True:
            await self._plan(self._tenant(name), label, wait_s)
            await trio.sleep(wait_s)
            failures = failures + 1 if await self._tried(self._tenant(name), label) is False else 0
            wait_s = pause_s(every_s, failures)

    async def _due_in(self, tenant: Tenant, label: str, every_s: float) -> float:
        """Seconds until the first sync: a server that restarts does not repeat what was just done."""
        with suppress(StoreError):
            for source in await self.stores.store_of(tenant.id).sources(EVERYTHING):
                if source.source == label and source.last_sync is not None and source.last_error is None:
                    ago_s = (self.now() - datetime.fromisoformat(source.last_sync)).total_seconds()
                    # A time in the future is of a clock that went back: it says nothing.
                    return max(0.0, every_s - ago_s) if ago_s >= 0 else 0.0
        return 0.0

    async def _plan(self, tenant: Tenant, label: str, wait_s: float) -> None:
        """Note the time for `sources`."""
        with suppress(StoreError):
            async with self._store(tenant) as store:
                await store.plan(label, format_time(self.now() + timedelta(seconds=wait_s)))

    async def _tried(self, tenant: Tenant, label: str) -> bool | None:
        """One sync that no client asked for; returns whether it succeeded, None where another one was under way."""
        try:
            with self._marked(tenant, label):
                async with self._places.place(tenant.id) as place:
                    return await self._sync(tenant, label, place)
        except SyncRunning:
            return None
        except (ConfigError, StoreError) as error:
            log.warning("a sync failed", source=label, tenant=tenant.id, reason=str(error))
            return False

    async def _watch(self, name: str, label: str, root: Path) -> None:
        """Sync at once, and whenever something below the folder changes.

        Where the kernel gives no more notifications (their number is limited), the folder is polled.
        """
        # Where it is used: commands that list agents load this module, and none of them watches anything.
        from watchfiles import awatch
        from watchfiles._rust_notify import WatchfilesRustInternalError  # not exported elsewhere

        poll = False
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_set_at_the_end, stop)
            while True:
                try:
                    await self._follow(name, label, awatch(
                        root, watch_filter=None, debounce=_BURST_MS, step=_STEP_MS, stop_event=stop,
                        rust_timeout=_LOOK_MS, yield_on_timeout=True, force_polling=poll,
                    ))  # fmt: skip
                except* (OSError, WatchfilesRustInternalError) as errors:
                    poll = not poll
                    log.warning(
                        "a folder cannot be watched", source=label, tenant=name,
                        reason=str(errors.exceptions[0]), instead="it is polled" if poll else "tried again",
                    )  # fmt: skip
                await trio.sleep(_WATCH_AGAIN_S)

    async def _follow(self, name: str, label: str, changes: AsyncGenerator[Collection[object]]) -> None:
        synced = False
        async with aclosing(changes):
            async for changed in changes:  # what changes while a sync runs is in the next answer
                if changed or not synced:
                    synced = True  # one that fails is tried again at the next change, and by its period
                    while await self._tried(self._tenant(name), label) is None:
                        # The one under way may have read the folder before the change.
                        await self._over(name, label)

    async def _over(self, name: str, label: str) -> None:
        """Wait for the end of the sync under way; of one of another process, for a while."""
        if (end := self._syncing.get((name, label))) is not None:
            await end.wait()
        else:
            await trio.sleep(_WATCH_AGAIN_S)


def _by_itself(entry: Any) -> bool:
    """Whether a server synchronises a source with this entry without being asked."""
    return bool(getattr(entry, "every", None) or getattr(entry, "watch", False))


def pause_s(every_s: float, failures: int) -> float:
    """Seconds until the next sync, after so many failures in a row."""
    longest_s = max(every_s, LONGEST_S)
    return min(every_s * 2.0 ** min(failures, BACK_OFF), longest_s) * random.uniform(1.0, 1.0 + JITTER)


async def _set_at_the_end(stop: trio.Event) -> None:
    """The thread of awatch ends at once: it is not abandoned when its task is cancelled."""
    try:
        await trio.sleep_forever()
    finally:
        stop.set()


def _note(report: SyncReport, tenant: Tenant) -> None:
    if report.upserted or report.deleted or report.skipped:
        log.info(
            "synchronised", source=report.source, tenant=tenant.id, upserted=report.upserted, deleted=report.deleted,
            unchanged=report.unchanged, skipped=len(report.skipped) + report.skipped_more,
        )  # fmt: skip

"""The key-value store of scripts, in one file for all tenants: `open_kv` -> `KvStore`.

The file is created by the first write. Changes that come at the same time share a transaction, so that many writers
cost one flush of the disk; each is durable before it is answered (docs/adr/0008).
"""

import math
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import apsw
import structlog
import trio

from storage import kv_rows
from storage.answers import ENTRY_BYTES, Answers
from storage.faults import Named, answer_text, fault_of, opening_text
from storage.kv_rows import Changed, Changes, Entry, KvError, Listed, NotThisStore, Place
from storage.lanes import Lane, at_once, open_lane
from storage.watch import Watch, open_watch

T = TypeVar("T")

log = structlog.get_logger("engine.kv")

NAMED = Named(
    "the key-value store", "[db] path", "restore it from a back-up, or remove it: its keys are lost then",
    "nothing was changed",
)  # fmt: skip
BUSY_TIMEOUT_S = 5.0
READERS = 2
# Changes of one transaction: a queue of this length is some milliseconds of work.
BATCH = 256
# How long entries that have expired may stay in the file.
PRUNE_S = 30.0
# Entries that are answered from memory.
CACHED_BYTES = 4 * 1024 * 1024
# After a failure to open the file, how long it is not tried again.
RETRY_S = 2.0
_CLOSED = "the key-value store cannot be opened; the engine's log says why"


class KvUnavailable(KvError):
    """The store cannot be used now."""


@dataclass(slots=True)
class _Change(Generic[T]):
    """A change that waits for its transaction."""

    work: Callable[[Changes], T]
    done: trio.Event = field(default_factory=trio.Event)
    given_up: bool = False
    answer: T | None = None
    error: Exception | None = None


class KvStore:
    """The keys of all namespaces. Made by `open_kv`, whose block it does not outlive.

    Every method raises KvError: a change that is refused (`kv_rows.KvFull`, ...), or a store that cannot be used.
    """

    def __init__(self, path: Path, stack: AsyncExitStack, clock: Callable[[], float]) -> None:
        self.path = path
        self._stack = stack
        self._clock = clock
        self._opening = trio.Lock()
        self._writer: Lane | None = None
        self._readers: tuple[Lane, ...] = ()
        self._watch: Watch | None = None
        self._answers = Answers(CACHED_BYTES)
        self._queue: deque[_Change[Any]] = deque()
        self._asked = trio.Event()
        self._opened = trio.Event()
        self._not_before = -math.inf

    async def get(self, tenant: str, space: str, key: bytes) -> Entry | None:
        """What a key has; None if it is not there, or has expired."""
        if not await self._is_open():
            return None
        place = Place(tenant, space, key)
        # Read before the entry: a write after this makes a new version, so that no stale entry is cached under it.
        version = None if self._watch is None else self._watch.version()
        cached = None if version is None else self._answers.get(version, place)
        if cached is not None:
            await trio.lowlevel.checkpoint()
            entry = cast(Entry | None, cached.answer)
        else:
            entry = await self._read(partial(kv_rows.get, place=place))
            if version is not None:
                self._answers.keep(version, place, entry, _memory_of)
        return entry if entry is not None and entry.is_alive(self._clock()) else None

    async def listed(
        self, tenant: str, space: str, prefix: bytes, *, after: bytes = b"", limit: int
    ) -> tuple[list[Listed], bytes | None]:
        """Keys with a prefix, and the key to go on after: None at the end. See `kv_rows.listed`."""
        if not await self._is_open():
            return [], None
        now = self._clock()
        return await self._read(lambda db: kv_rows.listed(db, tenant, space, prefix, after, limit, now))

    async def used_bytes(self, tenant: str) -> int:
        """What the tenant's keys count as."""
        if not await self._is_open():
            return 0
        return await self._read(partial(kv_rows.used_bytes, tenant=tenant))

    async def set(
        self, place: Place, value: bytes, *, ttl_s: float | None = None, if_version: int | None = None, max_bytes: int
    ) -> Changed:
        """Set a key, which expires after `ttl_s`; with `if_version` (0: not there) only if that is its version."""
        expires_at = None if ttl_s is None else self._clock() + ttl_s
        return await self._change(lambda changes: changes.set(place, value, expires_at, if_version, max_bytes))

    async def increment(self, place: Place, by: int, *, max_bytes: int) -> tuple[int, int]:
        """Add to an integer; its new value and version."""
        return await self._change(lambda changes: changes.increment(place, by, max_bytes))

    async def delete(self, place: Place, *, if_version: int | None = None) -> Changed:
        """Delete a key; with `if_version` only if that is its version."""
        if not await self._is_open():
            return Changed(False, 0)
        return await self._change(lambda changes: changes.delete(place, if_version))

    async def prune(self) -> int:
        """Remove entries that have expired, in steps. Returns how many."""
        total = 0
        while self._writer is not None:
            removed = await self._answered(
                self._writer.run(partial(at_once, partial(kv_rows.prune, now=self._clock())))
            )
            if not removed:
                break
            total += removed
        return total

    # ---- the file --------------------------------------------------------------------------------------------------

    async def _is_open(self) -> bool:
        """Whether there is a store, which is then open."""
        if self._readers:
            return True
        if not self.path.exists():  # 2 us here, where a thread would take 100
            await trio.lowlevel.checkpoint()
            return False
        await self._open()
        return True

    async def _open(self) -> None:
        """Open the file, making it where there is none."""
        async with self._opening:
            if self._readers:
                return
            if trio.current_time() < self._not_before:
                raise KvUnavailable(_CLOSED)
            try:
                await self._open_now()
            except (apsw.Error, NotThisStore, OSError) as error:
                self._not_before = trio.current_time() + RETRY_S
                why = await trio.to_thread.run_sync(_why, self.path, error)
                log.error("the key-value store cannot be opened", reason=why)
                raise KvUnavailable(_CLOSED) from error
            self._opened.set()

    async def _open_now(self) -> None:
        async with AsyncExitStack() as stack:
            file = await trio.to_thread.run_sync(_resolved, self.path)
            writing = open_lane(file, create=True, reading=False, busy_timeout_s=BUSY_TIMEOUT_S)
            writer = await stack.enter_async_context(writing)
            await writer.run(kv_rows.prepare)
            readers = [
                await stack.enter_async_context(
                    open_lane(file, create=False, reading=True, busy_timeout_s=BUSY_TIMEOUT_S)
                )
                for _ in range(READERS)
            ]
            await readers[0].run(kv_rows.check)
            self._watch = await stack.enter_async_context(open_watch(file))
            self._writer, self._readers = writer, tuple(readers)
            self._stack.push_async_exit(stack.pop_all())

    async def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        return await self._answered(min(self._readers, key=_waiting).run(work))

    async def _answered(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except apsw.Error as error:
            raise await self._told(error) from error

    async def _told(self, error: apsw.Error) -> KvUnavailable:
        log.error("the key-value store failed", reason=f"{type(error).__name__}: {error}")
        return KvUnavailable(answer_text(await trio.to_thread.run_sync(fault_of, error, self.path), NAMED, error))

    # ---- changes ---------------------------------------------------------------------------------------------------

    async def _change(self, work: Callable[[Changes], T]) -> T:
        """Queue a change for the next transaction; wait until that is durable."""
        if not self._readers:
            await self._open()
        change = _Change(work)
        self._queue.append(change)
        self._asked.set()
        try:
            await change.done.wait()
        except trio.Cancelled:
            change.given_up = True  # one that is in a transaction already is made
            raise
        if change.error is not None:
            raise change.error
        return cast(T, change.answer)

    async def keep_writing(self) -> None:
        """Make the changes that are queued, as many as are there in one transaction. Runs until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            while batch := self._batch():
                # A transaction that has begun is finished: its changes are answered, unless their runs are gone.
                with trio.CancelScope(shield=True):  # the busy timeout bounds it
                    await self._commit(batch)

    def _batch(self) -> list[_Change[Any]]:
        batch: list[_Change[Any]] = []
        while self._queue and len(batch) < BATCH:
            change = self._queue.popleft()
            if not change.given_up:
                batch.append(change)
        return batch

    async def _commit(self, batch: list[_Change[Any]]) -> None:
        assert self._writer is not None
        try:
            answers = await self._writer.run(partial(at_once, partial(_made, batch=batch, now=self._clock())))
        except apsw.Error as error:
            text = str(await self._told(error))
            answers = [KvUnavailable(text) for _ in batch]
        except Exception as error:  # a defect: the changes fail, and the writer goes on
            log.exception("the key-value store failed")
            answers = [error] * len(batch)
        for change, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                change.error = answer
            else:
                change.answer = answer
            change.done.set()

    async def keep_pruning(self) -> None:
        """Remove what has expired, now and then. Runs until cancelled."""
        await self._opened.wait()
        while True:
            with suppress(KvError):  # it is in the log; the next change says so too
                await self.prune()
            await trio.sleep(PRUNE_S)


def _made(db: apsw.Connection, batch: list[_Change[Any]], now: float) -> list[Any]:
    """The answers of a batch, made in the caller's transaction: of a change that is refused, its error."""
    changes = Changes(db, now)
    answers: list[Any] = []
    for change in batch:
        try:
            answers.append(change.work(changes))
        except KvError as refused:
            answers.append(refused)
    changes.finish()
    return answers


def _memory_of(entry: Entry | None) -> int:
    # The key is bounded, and within what an entry of the cache counts as in itself or little more.
    return 2 * ENTRY_BYTES + (0 if entry is None else len(entry.value))


def _waiting(lane: Lane) -> int:
    return lane.waiting


def _resolved(path: Path) -> Path:
    """The path with links resolved. Creates its folder, and the file, readable by its owner only. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = Path(os.path.realpath(path))
    if not file.exists():
        file.touch(mode=0o600)
    return file


def _why(path: Path, error: Exception) -> str:
    """Why the file cannot be opened, for the operator."""
    if isinstance(error, apsw.Error):
        return opening_text(fault_of(error, path), NAMED, path, error)
    return f"{path} {error}" if isinstance(error, NotThisStore) else f"{path}: {error}"


@asynccontextmanager
async def open_kv(path: Path, *, clock: Callable[[], float] = time.time) -> AsyncIterator[KvStore]:
    """The key-value store in the file `path`, which need not exist. Nothing is opened before it is used."""
    raised: Exception | None = None
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        store = KvStore(path, stack, clock)
        nursery.start_soon(store.keep_writing)
        nursery.start_soon(store.keep_pruning)
        try:
            yield store
        except Exception as error:
            raised = error  # kept as it is: an exception that leaves the nursery comes out wrapped in a group
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised


# ---- for operators: in a thread, also while engines serve the file ------------------------------------------------


@contextmanager
def _used(path: Path) -> Iterator[apsw.Connection]:
    try:
        with kv_rows.connected(path, BUSY_TIMEOUT_S) as db:
            yield db
    except apsw.Error as error:
        raise KvUnavailable(answer_text(fault_of(error, path), NAMED, error)) from error
    except NotThisStore as other:
        raise KvUnavailable(f"the file of the key-value store {other}") from None


def count_keys(path: Path, tenant: str) -> int:
    """How many keys a tenant has. Raises KvUnavailable."""
    if not path.exists():
        return 0
    with _used(path) as db:
        return kv_rows.count_of(db, tenant)


def remove_keys(path: Path, tenant: str, now: float) -> int:
    """Delete all keys of a tenant; returns how many there were. Its runs are refused from then on, for a while.

    Also makes a file that is not there: else a run would make it, with keys of a tenant that is gone. Raises
    KvUnavailable, OSError.
    """
    _resolved(path)
    with _used(path) as db:
        return kv_rows.remove_tenant(db, tenant, now)


def read_keys(path: Path, tenant: str) -> Iterator[tuple[str, bytes, Entry]]:
    """Every key of a tenant with its space, from one snapshot. Raises KvUnavailable."""
    if path.exists():
        with _used(path) as db:
            yield from kv_rows.all_of(db, tenant)


def write_keys(path: Path, tenant: str, given: Iterator[tuple[str, bytes, Entry]], now: float) -> int:
    """Set keys of a tenant that has none; returns how many. Raises KvUnavailable, and what `given` raises."""
    _resolved(path)
    with _used(path) as db:
        return kv_rows.put_all(db, tenant, given, now)

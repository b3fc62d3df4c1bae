"""The files of teams, one for each tenant: `open_team_files` -> `TeamFiles`. Opened on use, a few at once.

Changes that come at the same time share a transaction, so that many turns cost one flush of the disk; each is durable
before it is answered. A change that is refused leaves nothing.
"""

import math
import os
import re
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import apsw
import structlog
import trio

from storage.faults import Named, answer_text, fault_of, opening_text
from storage.lanes import Lane, at_once, open_lane
from storage.metering import metered
from storage.teams.tables import NotTeams, check_file, prepare
from storage.watch import Watch, open_watch

T = TypeVar("T")

log = structlog.get_logger("engine.teams")

NAMED = Named(
    "the file of this tenant's teams", "[db] path", "restore it from a back-up, or remove it: its teams are lost then",
    "nothing was changed",
)  # fmt: skip
BUSY_TIMEOUT_S = 5.0
# Changes of one transaction: some tens of milliseconds of work.
BATCH = 64
# Files that are open at once. Each is two threads, some 400 KB and eight descriptors.
MAX_OPEN = 16
# How long a file without users stays open.
IDLE_S = 30.0
# After a failure to open a file, how long it is not tried again.
RETRY_S = 2.0
_CLOSED = "the file of this tenant's teams cannot be opened; the engine's log says why"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_BESIDE = ("-wal", "-shm", "-journal")


Charge = Callable[[float], None]


def _free(cpu_s: float) -> None:
    """Charge nobody: the caller is the engine itself, or an operator."""


class TeamsUnavailable(Exception):
    """The file cannot be used now. The text is for clients: without paths, SQL, or text of SQLite's."""


def teams_folder(db_path: Path) -> Path:
    """The folder of the files of teams, `db_path` being that of `[db] path`.

    One of their own: beside the stores in `tenants/`, the file of a tenant `acme.teams` would be another's.
    """
    return db_path.parent / "teams"


def teams_path(db_path: Path, tenant: str) -> Path:
    """The file of a tenant's teams. Raises ValueError for a text that cannot be a tenant's name."""
    if _NAME.fullmatch(tenant) is None:
        raise ValueError(f"{tenant[:64]!r} cannot name the file of a tenant's teams")
    return teams_folder(db_path) / f"{tenant}.sqlite"


def teams_files(db_path: Path, tenant: str) -> list[Path]:
    """The existing files of a tenant's teams."""
    path = teams_path(db_path, tenant)
    return [each for each in (path, *(path.with_name(path.name + suffix) for suffix in _BESIDE)) if each.exists()]


@dataclass(slots=True)
class _Change(Generic[T]):
    """A change that waits for its transaction."""

    work: Callable[[apsw.Connection, float], T]
    done: trio.Event = field(default_factory=trio.Event)
    given_up: bool = False
    answer: T | None = None
    error: Exception | None = None
    cpu_s: float = 0.0


class TeamFile:
    """One open file. `borrowed` lends it."""

    def __init__(self, path: Path, writer: Lane, reader: Lane, watch: Watch | None, clock: Callable[[], float]) -> None:
        self._path = path
        self.identity = _identity(path)
        self._writer, self._reader, self._watch = writer, reader, watch
        self._clock = clock
        self._queue: deque[_Change[Any]] = deque()
        self._asked = trio.Event()

    def version(self) -> int | None:
        """A number that changes as soon as somebody else has written; None if that is not known."""
        return None if self._watch is None else self._watch.version()

    async def read(self, work: Callable[[apsw.Connection], T], charge: Charge = _free) -> T:
        """Call `work` in a transaction that reads. Raises TeamsUnavailable, and what `work` raises.

        `charge` takes the CPU seconds of the work, here and in `change`.
        """
        try:
            with metered() as meter:
                try:
                    return await self._reader.run(partial(at_once, work))
                finally:
                    charge(meter.take())
        except apsw.Error as error:
            raise await self._told(error) from error

    async def change(self, work: Callable[[apsw.Connection, float], T], charge: Charge = _free) -> T:
        """Call `work` with the time, in a transaction that writes; it is durable afterwards, or left no trace.

        Raises TeamsUnavailable, and what `work` raises.
        """
        change = _Change(work)
        self._queue.append(change)
        self._asked.set()
        try:
            await change.done.wait()
        except trio.Cancelled:
            change.given_up = True  # one that is in a transaction already is made
            raise
        finally:
            charge(change.cpu_s)
        if change.error is not None:
            raise change.error
        return cast(T, change.answer)

    async def keep_writing(self) -> None:
        """Make the changes that wait, as many as are there in one transaction. Runs until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            while batch := self._batch():
                # A transaction that has begun is finished: its changes are answered, unless their callers are gone.
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
        try:
            answers = await self._writer.run(partial(at_once, partial(_made, batch=batch, now=self._clock())))
        except apsw.Error as error:
            text = str(await self._told(error))
            answers = [TeamsUnavailable(text) for _ in batch]
        except Exception as error:  # a defect: the changes fail, and the writer goes on
            log.exception("the file of teams failed")
            answers = [error] * len(batch)
        for change, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                change.error = answer
            else:
                change.answer = answer
            change.done.set()

    async def _told(self, error: apsw.Error) -> TeamsUnavailable:
        log.error("the file of teams failed", reason=f"{type(error).__name__}: {error}")
        return TeamsUnavailable(answer_text(await trio.to_thread.run_sync(fault_of, error, self._path), NAMED, error))


def _made(db: apsw.Connection, batch: list[_Change[Any]], now: float) -> list[Any]:
    """The answers of a batch, made in the caller's transaction: of a change that is refused, its error."""
    answers: list[Any] = []
    for change in batch:
        began_s = time.thread_time()
        db.execute("SAVEPOINT one")
        try:
            answers.append(change.work(db, now))
        except apsw.Error:
            raise  # the disk, or a lock: all of the transaction
        except Exception as refused:
            db.execute("ROLLBACK TO one")
            answers.append(refused)
        db.execute("RELEASE one")
        change.cpu_s = time.thread_time() - began_s
    return answers


@dataclass(slots=True)
class _Held:
    """A file that is open, or being opened."""

    file: TeamFile | None = None
    error: Exception | None = None
    opened: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    closed: trio.Event = field(default_factory=trio.Event)
    users: int = 0
    left_at: float = -math.inf


class TeamFiles:
    """The files of all tenants. Made by `open_team_files`, whose block it does not outlive."""

    def __init__(self, db_path: Path, nursery: trio.Nursery, clock: Callable[[], float]) -> None:
        self._db_path, self._nursery, self._clock = db_path, nursery, clock
        # Invariant: at most MAX_OPEN entries, the most recently used at the end; one with users is open.
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._not_before: dict[str, float] = {}
        self._freed = trio.Event()

    def exists(self, tenant: str) -> bool:
        """Whether the tenant has a file. 2 us."""
        return teams_path(self._db_path, tenant).exists()

    def stored_bytes(self, tenant: str) -> int:
        """The bytes on disk of the tenant's teams."""
        path = teams_path(self._db_path, tenant)
        return sum(_size(path.with_name(path.name + suffix)) for suffix in ("", "-wal"))

    def is_current(self, tenant: str, file: TeamFile) -> bool:
        """Whether an open file is still the one at its path: a deleted or imported tenant has another, or none."""
        return file.identity == _identity(teams_path(self._db_path, tenant))

    @asynccontextmanager
    async def borrowed(self, tenant: str, *, create: bool = False) -> AsyncIterator[TeamFile | None]:
        """The tenant's file, open until the block ends; None if there is none. Raises TeamsUnavailable."""
        held = self._held.get(tenant)
        if held is not None and held.file is not None and not self.is_current(tenant, held.file):
            await self.close(tenant)
        if not create and not self.exists(tenant):
            yield None
            return
        held = await self._hold(tenant)
        try:
            await held.opened.wait()
            if held.error is not None:
                raise TeamsUnavailable(str(held.error))
            assert held.file is not None
            yield held.file
        finally:
            held.users -= 1
            held.left_at = trio.current_time()
            self._free()

    async def close(self, tenant: str) -> None:
        """Close the tenant's file if it is open: it is about to be removed. Its users get errors."""
        if (held := self._held.get(tenant)) is not None:
            held.scope.cancel()
            with trio.CancelScope(shield=True):
                await held.closed.wait()

    async def _hold(self, tenant: str) -> _Held:
        """The tenant's entry, with one user more. Waits while MAX_OPEN others are in use."""
        while True:
            held = self._held.get(tenant)
            if held is not None and held.scope.cancel_called:
                await held.closed.wait()
                continue
            if held is not None:
                self._held.move_to_end(tenant)
                held.users += 1
                return held
            if trio.current_time() < self._not_before.get(tenant, -math.inf):
                raise TeamsUnavailable(_CLOSED)
            if len(self._held) < MAX_OPEN:
                held = self._held[tenant] = _Held(users=1)
                self._nursery.start_soon(self._serve, tenant, held)
                return held
            idle = next((each for each in self._held.values() if not each.users and not each.scope.cancel_called), None)
            if idle is not None:
                idle.scope.cancel()
                await idle.closed.wait()
            else:
                freed = self._freed
                await freed.wait()

    def _free(self) -> None:
        self._freed.set()
        self._freed = trio.Event()

    async def _serve(self, tenant: str, held: _Held) -> None:
        """Keep a file open until it is idle, or no longer wanted."""
        try:
            with held.scope:
                async with _open(teams_path(self._db_path, tenant), self._clock) as file:
                    held.file = file
                    self._not_before.pop(tenant, None)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(file.keep_writing)
                        held.opened.set()
                        await self._until_idle(held)
                        nursery.cancel_scope.cancel()
        except (apsw.Error, NotTeams, OSError) as error:
            self._not_before[tenant] = trio.current_time() + RETRY_S
            path = teams_path(self._db_path, tenant)
            with trio.CancelScope(shield=True):
                why = await trio.to_thread.run_sync(_why, path, error)
            log.error("the file of teams cannot be opened", reason=why)
            held.error = TeamsUnavailable(_CLOSED)
        finally:
            if held.error is None and not held.opened.is_set():
                held.error = TeamsUnavailable("the engine is closing this tenant's teams")
            self._held.pop(tenant, None)
            held.opened.set()
            held.closed.set()
            self._free()

    async def _until_idle(self, held: _Held) -> None:
        while True:
            await trio.sleep(IDLE_S if held.users else max(held.left_at + IDLE_S - trio.current_time(), 1.0))
            if not held.users and trio.current_time() - held.left_at >= IDLE_S:
                return


@asynccontextmanager
async def _open(path: Path, clock: Callable[[], float]) -> AsyncIterator[TeamFile]:
    file = await trio.to_thread.run_sync(_resolved, path)
    async with open_lane(file, create=True, reading=False, busy_timeout_s=BUSY_TIMEOUT_S) as writer:
        await writer.run(prepare)
        async with (
            open_lane(file, create=False, reading=True, busy_timeout_s=BUSY_TIMEOUT_S) as reader,
            open_watch(file) as watch,
        ):
            await reader.run(check_file)
            yield TeamFile(file, writer, reader, watch, clock)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _resolved(path: Path) -> Path:
    """The path with links resolved. Creates its folder, and the file, readable by its owner only. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = Path(os.path.realpath(path))
    if not file.exists():
        file.touch(mode=0o600)
    return file


def _why(path: Path, error: Exception) -> str:
    """Why the file cannot be opened, for the operator."""
    if isinstance(error, apsw.Error):
        return opening_text(fault_of(error, path), NAMED, path, error)
    return f"{path} {error}" if isinstance(error, NotTeams) else f"{path}: {error}"


@asynccontextmanager
async def open_team_files(db_path: Path, *, clock: Callable[[], float] = time.time) -> AsyncIterator[TeamFiles]:
    """The files of teams beside `[db] path`. Nothing is opened before it is used."""
    raised: Exception | None = None
    async with trio.open_nursery() as nursery:
        files = TeamFiles(db_path, nursery, clock)
        try:
            yield files
        except Exception as error:
            raised = error  # kept as it is: an exception that leaves the nursery comes out wrapped in a group
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised

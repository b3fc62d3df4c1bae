"""The file of the control store: connections, transactions, and noticing what other processes changed."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw
import structlog
import trio

from control import tables
from engine.errors import Code, Problem
from knowledge.store import StoreError
from storage.faults import Named, answer_text, fault_of, opening_text
from storage.lanes import Lane, at_once, open_lane
from storage.watch import connect_for_looking

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]

log = structlog.get_logger("engine.control")

BUSY_TIMEOUT_S = 5.0

NAMED = Named("the control store", "[tenants] store", "restore it from a back-up", "nothing was changed")


class Database:
    """The control store's file. Made by `open_database`.

    While the file does not exist, reads find an empty store; the first write creates it.
    """

    def __init__(self, path: Path, stack: AsyncExitStack, clock: Callable[[], float]) -> None:
        self.path = path
        self._stack = stack
        self._clock = clock
        self._opening = trio.Lock()
        self._writer: Lane | None = None
        self._reader: Lane | None = None
        # For reads that take long; opened by the first one.
        self._long_reader: Lane | None = None
        self._file = path
        self._empty: Lane | None = None  # in memory, while the file does not exist
        # Read in the task itself: 8 us, where a thread would take 120.
        self._watch: apsw.Connection | None = None
        self._seen = -1
        self._generation = 0

    async def read(self, work: Work[T]) -> T:
        """What `work` returns, from one snapshot. Raises Problem `unavailable`, and what `work` raises."""

        return await _answered(self._run(partial(at_once, work), writing=False), self.path)

    async def read_long(self, work: Work[T]) -> T:
        """As `read`, for work of more than milliseconds: every request may have to wait for what `read` does."""

        return await _answered(self._run(partial(at_once, work), writing=False, long=True), self.path)

    async def write(self, work: Work[T]) -> T:
        """Do `work` in one transaction: all of it, or nothing when it raises. Raises Problem as `read` does."""

        return await _answered(self._run(partial(at_once, work), writing=True), self.path)

    async def outside(self, work: Work[T]) -> T:
        """Do `work` without a transaction around it, for example to truncate the write-ahead log."""
        return await _answered(self._run(work, writing=True), self.path)

    def generation(self) -> int:
        """A number that changes with every control action, of this process or another one. Needs no thread."""
        if self._watch is None:
            return self._generation
        try:
            seen = self._watch.pragma("data_version")
            if seen != self._seen:
                self._seen, self._generation = seen, tables.generation(self._watch)
        except apsw.Error as error:
            # Any row may have changed: a generation that no cache has seen makes all of them read again.
            log.warning("the control store cannot be looked at", reason=str(error))
            self._seen, self._generation = -1, self._generation - 1_000_000
        return self._generation

    async def _run(self, work: Work[T], *, writing: bool, long: bool = False) -> T:
        if self._writer is None and (writing or await trio.to_thread.run_sync(self.path.exists)):
            try:
                await self.open()
            except StoreError as error:
                log.error("the control store cannot be opened", reason=str(error))
                raise Problem(Code.UNAVAILABLE, "the control store cannot be opened; the log says why") from None
        lane = self._writer if writing else self._reader
        if lane is None:
            lane = await self._nothing()
        elif long:
            lane = await self._for_long_reads()
        return await lane.run(work)

    async def _for_long_reads(self) -> Lane:
        async with self._opening:
            if self._long_reader is None:
                opened = open_lane(self._file, create=False, reading=True, busy_timeout_s=BUSY_TIMEOUT_S)
                self._long_reader = await self._stack.enter_async_context(opened)
            return self._long_reader

    async def _nothing(self) -> Lane:
        async with self._opening:
            if self._empty is None:
                opened = open_lane(":memory:", create=True, reading=False, busy_timeout_s=0)
                lane = await self._stack.enter_async_context(opened)
                await lane.run(partial(tables.prepare, file=None, now=self._clock()))
                self._empty = lane
            return self._empty

    async def open(self) -> None:
        """Open the file, making it where there is none. Raises StoreError, naming the path."""
        async with self._opening:
            if self._writer is not None:
                return
            # Links are resolved once, so that all connections are of one file even if a link changes meanwhile.
            file = self._file = await trio.to_thread.run_sync(_resolved, self.path)
            try:
                writing = open_lane(file, create=True, reading=False, busy_timeout_s=BUSY_TIMEOUT_S)
                writer = await self._stack.enter_async_context(writing)
                await writer.run(partial(tables.prepare, file=self.path, now=self._clock()))
                await trio.to_thread.run_sync(_for_its_owner, file)
                reading = open_lane(file, create=False, reading=True, busy_timeout_s=BUSY_TIMEOUT_S)
                self._reader = await self._stack.enter_async_context(reading)
                self._watch = connect_for_looking(file)
                self._stack.callback(self._watch.close)
            except apsw.Error as error:
                fault = await trio.to_thread.run_sync(fault_of, error, file)
                raise StoreError(opening_text(fault, NAMED, self.path, error)) from error
            self._writer = writer


@asynccontextmanager
async def open_database(path: Path, *, create: bool, clock: Callable[[], float]) -> AsyncIterator[Database]:
    """The file at `path`, open until the block ends. Created at once with `create`, else by the first write.

    Raises StoreError for a file that is not a control store, too new, damaged, locked or inaccessible.
    """
    async with AsyncExitStack() as stack:
        database = Database(path, stack, clock)
        if create or await trio.to_thread.run_sync(path.exists):
            await database.open()
        yield database


def _resolved(path: Path) -> Path:
    """The path with links resolved. Creates its folder, and the file, readable by its owner only. Raises StoreError."""
    try:
        if path.is_dir():
            raise StoreError(f"{path} is a directory; a control store is a file ([tenants] store)")
        path.parent.mkdir(parents=True, exist_ok=True)
        file = Path(os.path.realpath(path))
        if not file.exists():
            file.touch(mode=0o600)
        return file
    except OSError as error:
        raise StoreError(f"the control store at {path} cannot be reached: {error.strerror}") from error


def _for_its_owner(path: Path) -> None:
    """SQLite gives its other files the mode of this one. Only the owner may read keys and secrets."""
    try:
        path.chmod(0o600)
    except OSError as error:  # another user's file that we may write to: its mode is up to that user
        log.warning("the mode of the control store cannot be set", reason=error.strerror)


async def _answered(answer: Awaitable[T], file: Path) -> T:
    try:
        return await answer
    except apsw.Error as error:
        log.error("the control store failed", reason=f"{type(error).__name__}: {error}")
        fault = await trio.to_thread.run_sync(fault_of, error, file)
        raise Problem(Code.UNAVAILABLE, answer_text(fault, NAMED, error), retry_after_s=1) from error

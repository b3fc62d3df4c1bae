"""Connections to SQLite files that trio tasks can share: each has its own thread, and waits for locks with backoff."""

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw
import apsw.aio
import trio

from storage.metering import counting

T = TypeVar("T")


@dataclass(slots=True)
class Lane:
    """One connection with its own thread, which runs calls one after the other.

    One call that does all of a query's work in that thread takes 0.12 ms besides the work itself; apsw's `await
    execute` with its fetches takes twice that, and `trio.to_thread` 0.15 ms (measured). A cancelled query stops at
    apsw's next progress check.
    """

    connection: "apsw.AsyncConnection"  # a name that exists in apsw's stubs only
    waiting: int = 0  # calls without an answer so far; the next call goes to the lane with the fewest

    async def run(self, work: Callable[[apsw.Connection], T]) -> T:
        """Call `work` with the connection, in its thread. apsw.Error propagates unchanged."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self.waiting += 1
        try:
            # trio reports a deadline around the call, as a cancellation. apsw's thread may notice it first, and would
            # then raise TooSlowError instead.
            with _setting(apsw.aio.deadline, math.inf):
                answer: T = await self.connection.async_run(counting(_noting_errno), work, self.connection)
                return answer
        finally:
            self.waiting -= 1


def _noting_errno(work: Callable[[apsw.Connection], T], db: apsw.Connection) -> T:
    """Call `work`; attach the errno of the failed system call to an error of SQLite's (`storage.faults`)."""
    try:
        return work(db)
    except (apsw.IOError, apsw.CantOpenError) as error:  # SQLite records it for these only
        error.system_errno = db.system_errno  # type: ignore[union-attr]
        raise


def at_once(work: Callable[[apsw.Connection], T], db: apsw.Connection) -> T:
    """Do `work` in a transaction, which is rolled back if it raises."""
    # Not `with db`: if SQLite has rolled back by itself, as on a full disk, its `__exit__` fails and hides the reason.
    db.execute("BEGIN" if db.readonly("main") else "BEGIN IMMEDIATE")
    try:
        answer = work(db)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return answer


def rows(db: apsw.Connection, sql: str, bindings: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
    """All rows, with the types that the SQL gives them; nothing of the statement stays open."""
    return cast(list[tuple[Any, ...]], db.execute(sql, bindings).fetchall())


@contextmanager
def _setting(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@asynccontextmanager
async def open_lane(file: Path | str, *, create: bool, reading: bool, busy_timeout_s: float) -> AsyncIterator[Lane]:
    """A lane to a SQLite file, closed with the block. Raises apsw.Error."""
    flags = apsw.SQLITE_OPEN_READONLY if reading else apsw.SQLITE_OPEN_READWRITE
    if create:
        flags |= apsw.SQLITE_OPEN_CREATE
    with (
        _setting(cast(ContextVar[Any], apsw.async_controller), apsw.aio.Trio),
        _setting(apsw.aio.check_progress_steps, 10_000),
        # Shielded, so that the close below is reached: else the connection's thread outlives the store.
        trio.CancelScope(shield=True),
    ):
        connection = await apsw.Connection.as_async(str(file), flags=flags)
    try:
        lane = Lane(connection)
        await lane.run(partial(configure, busy_timeout_s=busy_timeout_s))
        yield lane
    finally:
        with trio.CancelScope(shield=True):  # the busy timeout bounds it
            await connection.aclose()


def configure(db: apsw.Connection, busy_timeout_s: float) -> None:
    """What every connection of ours has: waits for locks with backoff, transactions that begin by locking."""
    db.set_busy_handler(_busy_handler(busy_timeout_s))
    db.transaction_mode = "IMMEDIATE" if not db.readonly("main") else "DEFERRED"
    db.pragma("foreign_keys", 1)


def _busy_handler(timeout_s: float) -> Callable[[int], bool]:
    # Not set_busy_timeout(): with it, this build of SQLite waits inside the lock calls (SQLITE_ENABLE_SETLK_TIMEOUT),
    # where two connections that open and close concurrently block each other until both time out.
    started = 0.0

    def again(calls: int) -> bool:
        nonlocal started
        if calls == 0:
            started = time.monotonic()
        time.sleep(min(0.001 * (calls + 1), 0.02))
        return time.monotonic() - started < timeout_s

    return again

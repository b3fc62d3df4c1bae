"""Whether a SQLite file was written to since the last look: told at once, in the task that wants to know."""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import trio

log = logging.getLogger("knowledge")

_IMPATIENT = "engine-impatient"
_UNWATCHED = "a store cannot be watched for changes; no answer of it is kept, and searches cost more: %s"


class _Impatient(apsw.VFS):
    """The file system as SQLite has it, but nobody sleeps in it.

    Where the index of the log was left half written by a process that is frozen, SQLite would try again for ten
    seconds, and with it the event loop; so it has tried a hundred times within a millisecond (measured: 0.3 ms).
    """

    def __init__(self) -> None:
        super().__init__(_IMPATIENT, "")

    def xSleep(self, microseconds: int) -> int:
        return microseconds

    def xFullPathname(self, name: str) -> str:
        # SQLite's own answers SQLITE_OK_SYMLINK (512) for a path with a symbolic link in it, which is no error, and
        # which apsw raises as one. The kernel's answer is the same path.
        return os.path.realpath(name)


_impatient = _Impatient()  # registered for as long as it lives


class Watch:
    """A connection of its own that asks for nothing but the version. Made by `open_watch`.

    A look takes 2.5 us: two locks in the index of the log, which is memory that all processes share, and no wait for
    any. The first look after a change reads one page besides, which was just written. Writers, checkpoints and who
    reads do not hold a look up. What does is the repair of an index that a killed writer left half written: whoever
    looks first reads the whole log (20 ms for 64 MiB); the write of those 48 bytes is the only moment for that.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def version(self) -> int | None:
        """A number that is another one as soon as any other connection has written; None when it cannot be told."""
        try:
            version: int = self._connection.execute("PRAGMA data_version").get
            return version
        except apsw.Error:
            return None


@asynccontextmanager
async def open_watch(file: Path) -> AsyncIterator[Watch | None]:
    """A watch over a file that a lane has open for at least as long, and has read; None where it cannot be watched,
    which the log says.

    Only a file in WAL mode can: in the other modes a look would meet the locks of writers and their journals. With
    lanes on it a file stays in that mode, its log and the log's index stay there, and closing the watch leaves the
    last checkpoint to the lanes.
    """
    connection = await trio.to_thread.run_sync(_connect, file)
    try:
        yield None if connection is None else Watch(connection)
    finally:
        if connection is not None:
            connection.close()


def connect_for_looking(file: Path) -> apsw.Connection:
    """A connection that reads, to be asked in the event loop: nothing that it waits for sleeps. Raises apsw.Error."""
    return apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY, vfs=_IMPATIENT)


def _connect(file: Path) -> apsw.Connection | None:
    try:
        connection = connect_for_looking(file)
    except apsw.Error as error:
        log.warning(_UNWATCHED, f"{type(error).__name__}: {error}")
        return None
    try:
        connection.pragma("data_version")  # opens the log, so that no look has to
        if (mode := connection.pragma("journal_mode")) == "wal":
            return connection
        reason = f"its journal mode is {mode}"
    except apsw.Error as error:
        reason = f"{type(error).__name__}: {error}"
    connection.close()
    log.warning(_UNWATCHED, reason)
    return None

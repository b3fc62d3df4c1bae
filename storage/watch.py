"""Change detection for a SQLite file: whether it was written to since the last check, without a thread or a wait."""

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
    """SQLite's default VFS without sleeping.

    If a process is frozen while it writes the WAL index, SQLite retries for ten seconds, which would block the event
    loop; without sleeping, its hundred attempts take less than a millisecond (measured: 0.3 ms).
    """

    def __init__(self) -> None:
        super().__init__(_IMPATIENT, "")

    def xSleep(self, microseconds: int) -> int:
        return microseconds

    def xFullPathname(self, name: str) -> str:
        # SQLite's own method returns SQLITE_OK_SYMLINK (512) for a path with a symbolic link in it. That is no error,
        # but apsw raises it as one. The kernel resolves to the same path.
        return os.path.realpath(name)


_impatient = _Impatient()  # registered for as long as it lives


class Watch:
    """A separate connection that reads nothing but the data version. Made by `open_watch`.

    A check takes 2.5 us: two locks in the WAL index, which is shared memory, neither of them waited for. The first
    check after a change also reads one page, which was just written. Writers, checkpoints and readers do not delay a
    check. Only recovery does: if a writer is killed while it writes the 48 bytes of the index header, the first
    connection to check reads the whole WAL (20 ms for 64 MiB).
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def version(self) -> int | None:
        """A number that changes as soon as any other connection has written; None if it cannot be read."""
        try:
            version: int = self._connection.execute("PRAGMA data_version").get
            return version
        except apsw.Error:
            return None


@asynccontextmanager
async def open_watch(file: Path) -> AsyncIterator[Watch | None]:
    """A watch over a file that a lane keeps open for at least as long, and has read; None, with a line in the log, if
    it cannot be watched.

    Only a file in WAL mode can be: in other modes a check would meet the locks of writers and their journals. While
    lanes have the file open, it stays in that mode, the WAL and its index stay in place, and closing the watch leaves
    the last checkpoint to the lanes.
    """
    connection = await trio.to_thread.run_sync(_connect, file)
    try:
        yield None if connection is None else Watch(connection)
    finally:
        if connection is not None:
            connection.close()


def connect_for_looking(file: Path) -> apsw.Connection:
    """A read-only connection for use in the event loop: it never sleeps to wait. Raises apsw.Error."""
    return apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY, vfs=_IMPATIENT)


def _connect(file: Path) -> apsw.Connection | None:
    try:
        connection = connect_for_looking(file)
    except apsw.Error as error:
        log.warning(_UNWATCHED, f"{type(error).__name__}: {error}")
        return None
    try:
        connection.pragma("data_version")  # opens the WAL here, so that no check has to
        if (mode := connection.pragma("journal_mode")) == "wal":
            return connection
        reason = f"its journal mode is {mode}"
    except apsw.Error as error:
        reason = f"{type(error).__name__}: {error}"
    connection.close()
    log.warning(_UNWATCHED, reason)
    return None

"""The meaning of SQLite's errors, for every store: one table of faults, each with its error text.

SQLite's own codes do not suffice: FTS5 answers SQLITE_ERROR when the disk is full, a quota or a full disk under the
WAL index is SQLITE_IOERR, and too few descriptors and missing permissions are both SQLITE_CANTOPEN. So the errno of the
failed system call, which a lane records, decides; and after it the state of the file system.
"""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import apsw

# A disk with less free space than this counts as full: since the failed write, it or another writer may have freed some
# pages.
_ROOM_BYTES = 256 * 1024


class Fault(Enum):
    """Why an operation on a store failed."""

    DISK_FULL = "disk full"
    OVER_QUOTA = "over quota"
    FILE_TOO_LARGE = "file too large"
    READ_ONLY_DISK = "read-only disk"
    NO_DESCRIPTORS = "no descriptors"
    FORBIDDEN = "forbidden"
    DISK_FAILED = "disk failed"
    NO_MEMORY = "no memory"
    LOCKED = "locked"
    DAMAGED = "damaged"
    NO_DATABASE = "no database"
    CLOSED = "closed"
    TOO_BIG = "too big"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Named:
    """The names of a store in error texts: its noun, the setting with its path, and the remedy for a damaged one.

    `changed` replaces the remedy in texts for clients, who cannot apply it.
    """

    noun: str
    setting: str
    restore: str
    changed: str | None = None


@dataclass(frozen=True, slots=True)
class _Told:
    """One row: the errors that always mean the fault, the errnos that mean it if the error is vague, and the text.

    `advice` is the part of the text for the operator. `own` says that clients get it too.
    """

    fault: Fault
    errors: tuple[type[apsw.Error], ...]
    errnos: tuple[int, ...]
    what: str
    advice: str
    own: bool = False


_TABLE: tuple[_Told, ...] = (
    _Told(Fault.DISK_FULL, (apsw.FullError,), (errno.ENOSPC,),
          "the disk that holds {store} is full", "make room and try again"),
    _Told(Fault.OVER_QUOTA, (), (errno.EDQUOT,),
          "the disk quota of the owner of {store} is used up", "make room, or raise the quota, and try again"),
    _Told(Fault.FILE_TOO_LARGE, (), (errno.EFBIG,),
          "the file of {store} is as large as it may be", "raise the limit of the process (`ulimit -f`) and try again"),
    _Told(Fault.READ_ONLY_DISK, (), (errno.EROFS,),
          "{store} cannot be written: its file system is read-only", "mount it for writing, or correct {setting}"),
    _Told(Fault.NO_DESCRIPTORS, (), (errno.EMFILE, errno.ENFILE),
          "{store} cannot be opened: too many files are open", "raise the limit (`ulimit -n`) and try again"),
    _Told(Fault.FORBIDDEN, (apsw.ReadOnlyError, apsw.CantOpenError), (errno.EACCES, errno.EPERM),
          "{store} cannot be opened or written", "check the permissions of the file and its folder"),
    _Told(Fault.DISK_FAILED, (apsw.IOError,), (errno.EIO,),
          "the file of {store} cannot be read or written", "check the disk"),
    _Told(Fault.NO_MEMORY, (apsw.NoMemError, apsw.NoLFSError), (errno.ENOMEM,),
          "{store} cannot be used: there is not enough memory", "free some and try again"),
    _Told(Fault.LOCKED, (apsw.BusyError, apsw.LockedError, apsw.ProtocolError), (),
          "{store} is locked by another process", "try again when it is done, or stop it", own=True),
    _Told(Fault.DAMAGED, (apsw.CorruptError, apsw.FormatError), (), "{store} is damaged", "{restore}", own=True),
    _Told(Fault.NO_DATABASE, (apsw.NotADBError,), (),
          "{store} is not a SQLite database", "correct {setting}, or move the file away"),
    _Told(Fault.CLOSED, (apsw.ConnectionClosedError,), (), "{store} is closed", "", own=True),
    _Told(Fault.TOO_BIG, (apsw.TooBigError,), (),
          "a document is too large for {store}", "lower max_extract_bytes of its source", own=True),
)  # fmt: skip

_ROWS = {row.fault: row for row in _TABLE}
_OF_ERRNO = {number: row.fault for row in _TABLE for number in row.errnos}
# These errors only say that something below SQLite failed: the errno and the file system say what.
_VAGUE = (apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.SQLError)


def fault_of(error: apsw.Error, file: Path | None = None) -> Fault:
    """The meaning of an error; `file` is the store's, if it has one. Examines its file system: call it in a thread.

    It does not open the database: closing a descriptor of it would release the locks that this process holds on it
    (fcntl(2), "record locks are automatically released").
    """
    if isinstance(error, _VAGUE):
        noted = _OF_ERRNO.get(getattr(error, "system_errno", 0))
        seen = noted or (None if file is None else _seen(file, error))
        if seen is not None:
            return seen
    return next((row.fault for row in _TABLE if isinstance(error, row.errors)), Fault.OTHER)


def _seen(file: Path, error: apsw.Error) -> Fault | None:
    """The meaning of a vague error, from the state of the store's file system."""
    folder = Path(os.path.realpath(file)).parent
    try:
        disk = os.statvfs(folder)
        if disk.f_flag & os.ST_RDONLY:
            return None if isinstance(error, apsw.SQLError) else Fault.READ_ONLY_DISK
        # Root may use the reserved blocks.
        blocks = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
        if (disk.f_blocks and blocks * disk.f_frsize < _ROOM_BYTES) or (disk.f_files and not disk.f_favail):
            return Fault.DISK_FULL
        if isinstance(error, apsw.CantOpenError):
            os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as failed:
        return _OF_ERRNO.get(failed.errno or 0)
    return None


def opening_text(fault: Fault, store: Named, file: Path, error: BaseException) -> str:
    """Why the store in `file` cannot be opened: one line for the operator."""
    if fault is Fault.NO_DATABASE:
        return f"{file} is not a SQLite database; correct {store.setting}, or move the file away to start a new store"
    if fault is Fault.OTHER:
        return f"{store.noun} at {file} cannot be opened ({type(error).__name__})"
    return _text(_ROWS[fault], store, f"{store.noun} at {file}", None)


def answer_text(fault: Fault, store: Named, error: BaseException) -> str:
    """Why a statement failed, for clients: without paths, SQL, or text of SQLite's."""
    if fault is Fault.NO_DATABASE:
        fault = Fault.DAMAGED  # it was a database when it was opened
    if fault is Fault.OTHER:
        return f"{store.noun} failed ({type(error).__name__}); the log says more"
    return _text(_ROWS[fault], store, store.noun, store.changed)


def _text(row: _Told, store: Named, named: str, changed: str | None) -> str:
    advice = row.advice if row.own or changed is None else changed
    parts: Iterable[str] = (row.what, advice) if advice else (row.what,)
    return "; ".join(parts).format(store=named, setting=store.setting, restore=store.restore)

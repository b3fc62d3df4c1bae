"""What SQLite's errors mean, for every store: one table of faults, and how each is told.

SQLite's own codes do not suffice: FTS5 answers SQLITE_ERROR where the disk is full, a quota or a full disk under the
index of the log is SQLITE_IOERR, and too few descriptors and missing permissions are both SQLITE_CANTOPEN. So the
errno of the failed call is looked at, which a lane notes, and then the file system.
"""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import apsw

# A disk with less than this is full: whoever was refused, or another writer, may have given some pages back since.
_ROOM_BYTES = 256 * 1024


class Fault(Enum):
    """Why a store could not do what it was to do."""

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
    """How texts call a store: its noun, the setting with its path, and what to do with one that is damaged.

    `changed` is put in place of what to do where a client is told who cannot do it.
    """

    noun: str
    setting: str
    restore: str
    changed: str | None = None


@dataclass(frozen=True, slots=True)
class _Told:
    """One row: the errors that always mean the fault, the errnos that do where the error is vague, and the words.

    `advice` is the operator's part of the text. `own` says that clients get it, too.
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
# What these say is only that something is wrong below: the errno and the file system know more.
_VAGUE = (apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.SQLError)


def fault_of(error: apsw.Error, file: Path | None = None) -> Fault:
    """What an error means, `file` being the store's where it has one. Looks at its file system: for a thread.

    The database itself is not opened: closing a descriptor of it would end the locks that this process has on it
    (fcntl(2), "record locks are automatically released").
    """
    if isinstance(error, _VAGUE):
        noted = _OF_ERRNO.get(getattr(error, "system_errno", 0))
        seen = noted or (None if file is None else _seen(file, error))
        if seen is not None:
            return seen
    return next((row.fault for row in _TABLE if isinstance(error, row.errors)), Fault.OTHER)


def _seen(file: Path, error: apsw.Error) -> Fault | None:
    """What the file system of a store says about a vague error."""
    folder = Path(os.path.realpath(file)).parent
    try:
        disk = os.statvfs(folder)
        if disk.f_flag & os.ST_RDONLY:
            return None if isinstance(error, apsw.SQLError) else Fault.READ_ONLY_DISK
        # Root may use the blocks that are kept back for it.
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
    """What a failed statement means, for clients: no paths, no SQL, no text of SQLite's."""
    if fault is Fault.NO_DATABASE:
        fault = Fault.DAMAGED  # it was one when it was opened
    if fault is Fault.OTHER:
        return f"{store.noun} failed ({type(error).__name__}); the log says more"
    return _text(_ROWS[fault], store, store.noun, store.changed)


def _text(row: _Told, store: Named, named: str, changed: str | None) -> str:
    advice = row.advice if row.own or changed is None else changed
    parts: Iterable[str] = (row.what, advice) if advice else (row.what,)
    return "; ".join(parts).format(store=named, setting=store.setting, restore=store.restore)

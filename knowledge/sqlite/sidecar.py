"""The vectors of one model as a matrix: in memory where they are few, else in a file beside the store that is mapped.

The file is derived: it can be removed at any time, and one that is damaged, or of another store or model, is not used.
It may lack what was written since; the store has the rest, and knows which rows are gone (`meaning.py` asks it).
"""

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import apsw

from knowledge.embedding.arrays import Floats, np, npt
from knowledge.sqlite.vectors import SUFFIX, Held
from storage.lanes import rows

_FORMAT = 1
_HEAD_BYTES = 4096
_BLOCK = 1 << 16
# Fewer windows than this are read from the store in milliseconds: no file.
MIN_ROWS = 2000
# Rows that are held beside the file. With more, the file is written anew.
MAX_TAIL = 4000

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Windows in the order of their numbers: the chunk of each, and its vector as a row. `last` is the newest known."""

    last: int
    numbers: Integers
    chunks: Integers
    vectors: Floats

    def followed_by(self, more: "Matrix") -> "Matrix":
        return Matrix(
            more.last,
            np.concatenate((self.numbers, more.numbers)),
            np.concatenate((self.chunks, more.chunks)),
            np.concatenate((self.vectors, more.vectors)),
        )


class Sidecar:
    """The matrix of one open store. Used by the threads of its connections."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = Lock()
        self._mark = b""
        self._mapped: Matrix | None = None
        self._tail: Matrix | None = None

    def parts(self, db: apsw.Connection, held: Held) -> tuple[Matrix, ...]:
        """Every window of the model that the snapshot of `db` has, and maybe some that are gone by now."""
        with self._lock:
            if self._mark != held.mark:
                self._mapped, self._tail, self._mark = self._load(db, held), None, held.mark
            base = self._tail or self._mapped
            more = _read(db, held, 0 if base is None else base.last)
            self._tail = more if self._tail is None else self._tail.followed_by(more)
            if len(self._tail.numbers) > MAX_TAIL or (self._mapped is None and len(self._tail.numbers) >= MIN_ROWS):
                self._rewrite(db, held)
            return tuple(part for part in (self._mapped, self._tail) if part is not None)

    def renew(self) -> None:
        """Most of what was known is gone from the store: the next search reads it anew."""
        with self._lock:
            self._mark = b""
            with suppress(OSError):
                os.unlink(path_of(self._store))

    def _load(self, db: apsw.Connection, held: Held) -> Matrix | None:
        """What the file holds, if it is of this store."""
        found = load(path_of(self._store), held)
        known = found and rows(db, "SELECT 1 FROM windows WHERE n = ? AND model = ?", (found.last, held.n))
        return found if known else None

    def _rewrite(self, db: apsw.Connection, held: Held) -> None:
        """All vectors are read anew, and written where that is possible."""
        whole = _read(db, held, 0)
        self._mapped, self._tail = whole, None
        if self._store == Path():
            return
        with suppress(OSError):  # a folder that may not be written, a full disk: held in memory instead
            write(path_of(self._store), held, whole)
            if not self._store.exists():  # removed meanwhile, with what was beside it
                os.unlink(path_of(self._store))
        self._mapped = load(path_of(self._store), held) or whole


def path_of(store: Path) -> Path:
    """The sidecar of a store's file."""
    return store.with_name(store.name + SUFFIX)


def _read(db: apsw.Connection, held: Held, after: int) -> Matrix:
    sql = "SELECT w.n, w.chunk, v.vector FROM windows w JOIN vectors v ON v.n = w.vector WHERE w.n > ? AND w.model = ?"
    found = rows(db, sql + " ORDER BY w.n", (after, held.n))
    numbers = np.array([row[0] for row in found], np.int64)
    chunks = np.array([row[1] for row in found], np.int64)
    vectors = np.frombuffer(b"".join(row[2] for row in found), "<f4").reshape(len(found), held.model.dims)
    return Matrix(int(numbers[-1]) if found else after, numbers, chunks, vectors)


# --- the file --------------------------------------------------------------------------------------------------------


def write(path: Path, held: Held, matrix: Matrix) -> None:
    """Write the file beside, then rename it, so that it is there as a whole or not at all. Raises OSError."""
    payload = b"".join((matrix.numbers.tobytes(), matrix.chunks.tobytes(), matrix.vectors.tobytes()))
    summed = _sum(np.frombuffer(payload, np.uint8))
    head = json.dumps(_stated(held) | {"rows": len(matrix.numbers), "sum": summed}).encode()
    descriptor, name = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(head.ljust(_HEAD_BYTES))
            file.write(payload)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def load(path: Path, held: Held) -> Matrix | None:
    """The matrix in the file, mapped; None where there is none, or it is not one of this model in this store."""
    try:
        with path.open("rb") as file:
            stated = json.loads(file.read(_HEAD_BYTES))
        data = np.memmap(path, np.uint8, "r", offset=_HEAD_BYTES)
        count, dims = stated.pop("rows"), held.model.dims
        summed = stated.pop("sum")
        if not count or stated != _stated(held) or len(data) != count * (16 + 4 * dims) or _sum(data) != summed:
            return None
        numbers = data[: 8 * count].view(np.int64)
        chunks = data[8 * count : 16 * count].view(np.int64)
        vectors = data[16 * count :].view(np.float32).reshape(count, dims)
        return Matrix(int(numbers[-1]), numbers, chunks, vectors)
    except (OSError, OverflowError, ValueError, TypeError, AttributeError, KeyError):
        return None


def _stated(held: Held) -> dict[str, object]:
    return {"format": _FORMAT, "mark": held.mark.hex(), "dims": held.model.dims}


def _sum(data: npt.NDArray[np.uint8]) -> str:
    """A hash of sums of blocks: notices any byte that differs, at the speed of memory (SHA-256: 0.3 GB/s)."""
    whole = len(data) // _BLOCK * _BLOCK
    sums = data[:whole].view(np.uint64).reshape(-1, _BLOCK // 8).sum(1, dtype=np.uint64)
    return hashlib.sha256(sums.tobytes() + data[whole:].tobytes()).hexdigest()

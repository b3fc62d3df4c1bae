"""The vectors of one model as a matrix: in memory where they are few, else in a file beside the store that is mapped.

The file is derived: it can be removed at any time, and one that is damaged, or of another store or model, is not used.
It may lack what was written since; the store has the rest, and knows which rows are gone (`meaning.py` asks it).
"""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
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
# Rows that are read from the store at once: some 3 MB.
_ROWS_AT_ONCE = 2048
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
            after = 0 if base is None else base.last
            behind = _count(db, held, after)
            known = 0 if self._tail is None else len(self._tail.numbers)
            if known + behind > MAX_TAIL or (self._mapped is None and known + behind >= MIN_ROWS):
                self._rewrite(db, held)
            else:
                more = _read(db, held, after, behind)
                self._tail = more if self._tail is None else self._tail.followed_by(more)
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
        count = _count(db, held, 0)
        whole: Matrix | None = None
        if self._store != Path():
            with suppress(OSError):  # a folder that may not be written, a full disk: held in memory instead
                last = write(path_of(self._store), held, count, _blocks(db, held, 0))
                found = load(path_of(self._store), held)
                whole = found if found is not None and found.last == last else None  # not another process's
                if not self._store.exists():  # removed meanwhile, with what was beside it
                    os.unlink(path_of(self._store))
        self._mapped = whole or _read(db, held, 0, count)
        self._tail = None


def path_of(store: Path) -> Path:
    """The sidecar of a store's file."""
    return store.with_name(store.name + SUFFIX)


def _count(db: apsw.Connection, held: Held, after: int) -> int:
    return int(rows(db, "SELECT count(*) FROM windows WHERE n > ? AND model = ?", (after, held.n))[0][0])


def _blocks(db: apsw.Connection, held: Held, after: int) -> Iterator[Matrix]:
    """The windows behind a number, some at a time: all at once as rows would be several times the matrix."""
    sql = "SELECT w.n, w.chunk, v.vector FROM windows w JOIN vectors v ON v.n = w.vector WHERE w.n > ? AND w.model = ?"
    while found := rows(db, f"{sql} ORDER BY w.n LIMIT {_ROWS_AT_ONCE}", (after, held.n)):
        numbers = np.array([row[0] for row in found], np.int64)
        chunks = np.array([row[1] for row in found], np.int64)
        vectors = np.frombuffer(b"".join(row[2] for row in found), "<f4").reshape(len(found), held.model.dims)
        after = int(numbers[-1])
        yield Matrix(after, numbers, chunks, vectors)


def _read(db: apsw.Connection, held: Held, after: int, count: int) -> Matrix:
    """The windows behind a number, of which the snapshot has so many."""
    numbers, chunks = np.zeros(count, np.int64), np.zeros(count, np.int64)
    vectors = np.zeros((count, held.model.dims), np.float32)
    filled = 0
    for block in _blocks(db, held, after):
        place = slice(filled, filled := filled + len(block.numbers))
        numbers[place], chunks[place], vectors[place] = block.numbers, block.chunks, block.vectors
    return Matrix(int(numbers[filled - 1]) if filled else after, numbers[:filled], chunks[:filled], vectors[:filled])


# --- the file --------------------------------------------------------------------------------------------------------


def write(path: Path, held: Held, count: int, blocks: Iterable[Matrix]) -> int:
    """Write the file beside, then rename it, so that it is there as a whole or not at all. Raises OSError.

    `count` are the rows of all blocks. Returns the last number.
    """
    descriptor, name = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
    try:
        with os.fdopen(descriptor, "r+b") as file:
            filled = last = 0
            for block in blocks:
                last, width = block.last, 4 * held.model.dims
                for start, step, values in (
                    (0, 8, block.numbers),
                    (8 * count, 8, block.chunks),
                    (16 * count, width, block.vectors),
                ):
                    file.seek(_HEAD_BYTES + start + step * filled)
                    file.write(values.tobytes())
                filled += len(block.numbers)
            if filled != count:  # a store that lacks vectors, which a check reports
                raise OSError(errno.EIO, "the store has other vectors than it counts")
            file.flush()
            summed = _sum(np.memmap(name, np.uint8, "r", offset=_HEAD_BYTES))
            file.seek(0)
            file.write(json.dumps(_stated(held) | {"rows": count, "sum": summed}).encode().ljust(_HEAD_BYTES))
        os.replace(name, path)
        return last
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

"""The vectors of one model as a matrix: in memory where they are few, else in a file beside the store that is mapped.

The file is derived: it can be removed at any time, and one that is damaged, or of another store or model, is not used.
It may lack what was written since; the store has the rest, and knows which rows are gone (`meaning.py` asks it).

The file of a large store also has lists of vectors that lie near each other (`knowledge.neighbours`). A thread makes
them, and brings the file up to date; until then, searches compare with every vector.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import apsw

from knowledge.embedding.arrays import Floats, np
from knowledge.neighbours import file as files
from knowledge.neighbours import lists as listing
from knowledge.neighbours.file import Matrix, Part, Shape
from knowledge.neighbours.lists import Centres, Integers
from knowledge.sqlite import writing
from knowledge.sqlite.vectors import SUFFIX, Held, beside_bytes, used_bytes
from knowledge.store import StoreError, SyncRunning
from storage.lanes import configure, rows
from storage.metering import counting

log = logging.getLogger("knowledge")

# Rows that are read from the store at once: some 3 MB.
_ROWS_AT_ONCE = 2048
# Fewer windows than this are read from the store in milliseconds: no file.
MIN_ROWS = 2000
# Rows that are held beside the file. With more, the file is written anew.
MAX_TAIL = 4000
# With so many windows there are lists. All of 220,000 are compared in 27 ms, by lists in 3 (texts, 256 dimensions).
LISTED_ROWS = 200_000
# The file is brought up to date when this part of it is held beside it: comparing with these takes as long as reading
# lists.
_TAIL_SHARE = 50
# No more than this part of it, in memory, where the thread does not come to an end.
_TAIL_MOST = 4
# Centres are of use as long as there are at most so many times the vectors, or as few, that they were made of.
_OTHER_SIZE = 2

# A file is brought up to date so long after the last time, and after a failure.
_APART_S, _FAILED_APART_S = 2.0, 600.0
# How long the thread then rests, for each second that a step took. It has the lowest priority, too.
_REST, _LONGEST_REST_S = 0.25, 0.1
_LOWEST = 19
# Numbers of windows that are read at once, and rows that are copied: some 40 ms.
_NUMBERS_AT_ONCE, _COPIED_AT_ONCE = 50_000, 16_384

# Of all stores of the process: lists of 1,000,000 windows take some 300 MB while they are made.
_ONE_AT_ONCE = threading.Lock()


class _Unusable(Exception):
    """The file cannot be made of this store, as it is now."""


class _Missing(Exception):
    """There is no file to begin with: it was removed, or is of another model by now."""


class _Ended(Exception):
    """The store is being closed."""


class Sidecar:
    """The matrix of one open store. Used by the threads of its connections."""

    def __init__(self, store: Path, max_bytes: int | None = None) -> None:
        self._store, self._max_bytes = store, max_bytes
        self._lock = threading.Lock()
        self._mark = b""
        self._mapped: Matrix | None = None
        self._tail: Matrix | None = None
        self._builder: threading.Thread | None = None
        self._made: tuple[bytes, Matrix] | None = None  # by the thread, for the model of a mark
        self._stale = False  # searches have met many rows that are gone
        self._missing = False  # the thread has found no file
        self._next_s = 0.0  # of `time.monotonic()`: when the thread may begin again
        self._ending = threading.Event()

    def parts(self, db: apsw.Connection, held: Held) -> tuple[Matrix, ...]:
        """Every window of the model that the snapshot of `db` has, and maybe some that are gone by now.

        Of the first one there may be lists.
        """
        with self._lock:
            if self._mark != held.mark:
                self._mapped, self._tail, self._mark = self._load(db, held), None, held.mark
            self._take(db, held)
            if self._missing and not self.is_listing():  # read and written anew
                self._mapped, self._tail, self._missing = self._load(db, held), None, False
            base = self._tail or self._mapped
            after = 0 if base is None else base.last
            behind = _count(db, held, after)
            known = 0 if self._tail is None else len(self._tail.numbers)
            mapped = 0 if self._mapped is None else len(self._mapped.numbers)
            large = mapped + known + behind >= LISTED_ROWS and mapped > 0
            room = max(MAX_TAIL, mapped // _TAIL_MOST) if large else MAX_TAIL
            if known + behind > room or (self._mapped is None and known + behind >= MIN_ROWS):
                self._rewrite(db, held)
                large = _count(db, held, 0) >= LISTED_ROWS
            else:
                more = _read(db, held, after, behind)
                self._tail = more if self._tail is None else self._tail.followed_by(more)
            if large and self._is_behind():
                self._begin(held)
            return tuple(part for part in (self._mapped, self._tail) if part is not None)

    def renew(self) -> None:
        """Most of what was known is gone from the store: the next search reads it anew."""
        with self._lock:
            if self._mapped is not None and self._mapped.lists is not None:
                self._stale = True
                return
            self._mark = b""
            with suppress(OSError):
                os.unlink(path_of(self._store))

    def is_listing(self) -> bool:
        """Whether a thread brings the file up to date."""
        return (builder := self._builder) is not None and builder.is_alive()

    def close(self) -> None:
        """End the thread, if there is one, after its step. None begins after this."""
        with self._lock:  # a search whose store is being closed may be about to begin one
            self._ending.set()
        self.wait()

    def wait(self) -> None:
        """Wait until no thread brings the file up to date."""
        if (builder := self._builder) is not None:
            builder.join()

    # --- in a search, with the lock ----------------------------------------------------------------------------------

    def _load(self, db: apsw.Connection, held: Held) -> Matrix | None:
        """What the file holds, if it is of this store."""
        found = load(path_of(self._store), held)
        return found if found is not None and _is_of(db, held, found) else None

    def _take(self, db: apsw.Connection, held: Held) -> None:
        """Use what the thread has made."""
        made, self._made = self._made, None
        if made is not None and made[0] == held.mark and _is_of(db, held, made[1]):
            self._mapped, self._tail, self._stale = made[1], None, False

    def _is_behind(self) -> bool:
        """Whether the file has no lists, or lacks much, or has much that is gone."""
        if self._mapped is None or self._mapped.lists is None or self._stale:
            return True
        behind = 0 if self._tail is None else len(self._tail.numbers)
        return behind > max(MAX_TAIL, len(self._mapped.numbers) // _TAIL_SHARE)

    def _rewrite(self, db: apsw.Connection, held: Held) -> None:
        """All vectors are read anew, and written where that is possible."""
        count = _count(db, held, 0)
        whole: Matrix | None = None
        if self._store != Path():
            try:
                last = write(path_of(self._store), held, count, _last(db, held), _blocks(db, held, 0))
                found = load(path_of(self._store), held)
                whole = found if found is not None and found.last == last else None  # not another process's
                if not self._store.exists():  # removed meanwhile, with what was beside it
                    os.unlink(path_of(self._store))
            except OSError:  # a folder that may not be written, a full disk: held in memory instead
                self._next_s = time.monotonic() + _FAILED_APART_S  # there is no file that could be brought up to date
        self._mapped = whole or _read(db, held, 0, count)
        self._tail = None

    def _begin(self, held: Held) -> None:
        """Bring the file up to date in a thread, unless that is under way or was just done."""
        if self._store == Path() or self._ending.is_set() or time.monotonic() < self._next_s:
            return
        if self._builder is None or not self._builder.is_alive():
            self._builder = threading.Thread(
                target=counting(self._build), args=(held, self._stale), name="vectors", daemon=True
            )
            self._builder.start()

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _build(self, held: Held, stale: bool) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
            pause = _Pause(self._ending)
            while not _ONE_AT_ONCE.acquire(timeout=_LONGEST_REST_S):
                pause()
            try:
                made = update(self._store, held, self._max_bytes, pause, stale=stale)
            finally:
                _ONE_AT_ONCE.release()
        except _Ended:
            return
        except _Missing:
            self._missing, self._next_s = True, time.monotonic() + _APART_S
        except (_Unusable, OSError, apsw.Error, StoreError) as why:
            log.warning("the vectors of a store were not listed, so that its searches by meaning take longer: %s", why)
            self._next_s = time.monotonic() + _FAILED_APART_S
        else:
            self._made = None if made is None else (held.mark, made)
            self._next_s = time.monotonic() + _APART_S


class _Pause:
    """A rest after each step, which ends with the store."""

    def __init__(self, ending: threading.Event) -> None:
        self._ending, self._began_s = ending, time.thread_time()

    def __call__(self) -> None:
        taken_s = time.thread_time() - self._began_s
        if self._ending.wait(min(_REST * taken_s, _LONGEST_REST_S)):
            raise _Ended
        self._began_s = time.thread_time()


# --- from the store --------------------------------------------------------------------------------------------------


def path_of(store: Path) -> Path:
    """The sidecar of a store's file."""
    return store.with_name(store.name + SUFFIX)


def _count(db: apsw.Connection, held: Held, after: int) -> int:
    return int(rows(db, "SELECT count(*) FROM windows WHERE n > ? AND model = ?", (after, held.n))[0][0])


def _last(db: apsw.Connection, held: Held) -> int:
    found = rows(db, "SELECT n FROM windows WHERE model = ? ORDER BY n DESC LIMIT 1", (held.n,))
    return int(found[0][0]) if found else 0


def _is_of(db: apsw.Connection, held: Held, found: Matrix) -> bool:
    """Whether a matrix has every window of the store up to its last one."""
    if rows(db, "SELECT 1 FROM windows WHERE n = ? AND model = ?", (found.last, held.n)):
        return True  # of a store that went another way, none has this number
    if found.lists is None:
        return False
    # The store was restored from before its last one, or has lost it: what it writes next may have a lower number.
    if not rows(db, "SELECT 1 FROM sqlite_sequence WHERE name = 'windows' AND seq >= ?", (found.last,)):
        return False
    # The last one is gone: a document was changed. Few of the others' numbers are those of another store.
    numbers = _numbers(db, held, found.last)
    return len(found.places(numbers)) == len(numbers)


def _numbers(db: apsw.Connection, held: Held, last: int, pause: Callable[[], None] = lambda: None) -> Integers:
    """The numbers of all windows up to one."""
    sql = "SELECT n FROM windows WHERE n > ? AND n <= ? AND model = ? ORDER BY n LIMIT ?"
    after, parts = 0, [np.zeros(0, np.int64)]
    while found := rows(db, sql, (after, last, held.n, _NUMBERS_AT_ONCE)):
        after = found[-1][0]
        parts.append(np.fromiter((n for (n,) in found), np.int64, len(found)))
        pause()
    return np.concatenate(parts)


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


def load(path: Path, held: Held) -> Matrix | None:
    """The matrix in the file, mapped; None where there is none, or it is not one of this model in this store."""
    return files.load(path, held.mark.hex(), held.model.dims)


def write(path: Path, held: Held, count: int, last: int, blocks: Iterator[Matrix]) -> int:
    """Write a matrix of `count` rows, without lists. Raises OSError. Returns the number of the last row."""
    files.write(path, Shape(held.mark.hex(), held.model.dims, count, last), _in_turn(blocks))
    return last


def _in_turn(blocks: Iterator[Matrix]) -> Iterator[Part]:
    row = 0
    for block in blocks:
        yield "numbers", row, block.numbers
        yield "chunks", row, block.chunks
        yield "vectors", row, block.vectors
        row += len(block.numbers)


def update(
    store: Path, held: Held, max_bytes: int | None, pause: Callable[[], None], *, stale: bool = False
) -> Matrix | None:
    """Write the file anew, with lists, where it has none or is behind; `stale`: in any case. Returns what it holds.

    Returns None where another process does it, or the store has no windows. `pause` is called between steps and may
    raise. Raises OSError, apsw.Error, StoreError, _Missing, _Unusable.
    """
    with suppress(SyncRunning):
        lock = writing.lock_file(store.with_name(f"{store.name}.2.lock"), "listing of vectors")
        try:
            with closing(apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)) as db:
                configure(db, 5.0)
                return _update(db, store, held, max_bytes, pause, stale)
        finally:
            os.close(lock)
    return None


def _update(
    db: apsw.Connection, store: Path, held: Held, max_bytes: int | None, pause: Callable[[], None], stale: bool
) -> Matrix | None:
    path = path_of(store)
    base = load(path, held)
    if base is None:
        raise _Missing
    with db:
        last = _last(db, held)
        if not last:
            return None
        if not _is_of(db, held, base):
            raise _Missing
        if base.lists is not None and base.last == last and not stale:
            return base
        more = _read(db, held, base.last, _count(db, held, base.last))
    # Whatever is written from here on has a higher number, and belongs to the next time. What is removed is here, or
    # not: searches ask the store.
    whole = _Whole(base, more, _numbers(db, held, last, pause))
    made, by = _listed(whole, base, pause)
    order, starts = listing.in_lists(made, len(by.centres))
    shape = Shape(
        held.mark.hex(), held.model.dims, len(whole), last, len(by.centres), by.axes.shape[1], by.rows
    )  # fmt: skip
    size = shape.places()[""]
    if max_bytes is not None and used_bytes(db) - beside_bytes(db, SUFFIX) + size > max_bytes:
        raise _Unusable("the quota of stored bytes has no room for the lists")
    # A name of its own: what a process leaves behind that is killed, the next one writes over.
    files.write(path, shape, _parts(whole, by, order, starts, pause), path.with_name(f"{path.name}.new"))
    if not store.exists():  # removed meanwhile, with what was beside it
        path.unlink(missing_ok=True)
    found = load(path, held)
    return found if found is not None and found.last == last else None


class _Whole:
    """What is in a file and what is not, without what is gone, in the order of its numbers."""

    def __init__(self, base: Matrix, more: Matrix, there: Integers) -> None:
        self._base, self._more = base, more
        old, new = (there[there <= base.last], there[there > base.last])
        # Places in the file, and then in the rest.
        self.old = base.places(old)
        self.places = np.concatenate((self.old, len(base.numbers) + more.places(new)))

    def __len__(self) -> int:
        return len(self.places)

    def numbers(self, which: Integers) -> Integers:
        return np.concatenate((self._base.numbers, self._more.numbers))[self.places[which]]

    def chunks(self, which: Integers) -> Integers:
        return np.concatenate((self._base.chunks, self._more.chunks))[self.places[which]]

    def vectors(self, which: Integers) -> Floats:
        places = self.places[which]
        first = len(self._base.numbers)
        found = np.empty((len(places), self._base.vectors.shape[1]), np.float32)
        old = places < first
        found[old] = self._base.vectors[places[old]]
        found[~old] = self._more.vectors[places[~old] - first]
        return found


def _listed(whole: _Whole, base: Matrix, pause: Callable[[], None]) -> tuple[Integers, Centres]:
    """The list of each vector, and what the lists are made by: as before, where there are about as many vectors."""
    count, lists, known = len(whole), base.lists, 0
    made = np.empty(count, np.int64)
    if lists is not None and lists.by.rows / _OTHER_SIZE <= count <= lists.by.rows * _OTHER_SIZE:
        by, known = lists.by, len(whole.old)
        made[:known] = np.searchsorted(lists.starts, whole.old, side="right") - 1
    else:
        by = listing.centres_of(whole.vectors(listing.sample_places(count, base.vectors.shape[1])), count, pause)
    for start in range(known, count, _COPIED_AT_ONCE):
        which = np.arange(start, min(start + _COPIED_AT_ONCE, count))
        made[which] = listing.assigned(whole.vectors(which), by.centres, pause)
    return made, by


def _parts(whole: _Whole, by: Centres, order: Integers, starts: Integers, pause: Callable[[], None]) -> Iterator[Part]:
    """The arrays of a file with lists."""
    yield "numbers", 0, whole.numbers(order)
    yield "chunks", 0, whole.chunks(order)
    yield "order", 0, np.argsort(order, kind="stable")
    yield "starts", 0, starts
    yield "centres", 0, by.centres
    yield "axes", 0, by.axes
    for start in range(0, len(order), _COPIED_AT_ONCE):
        vectors = whole.vectors(order[start : start + _COPIED_AT_ONCE])
        yield "vectors", start, vectors
        yield "projected", start, vectors @ by.axes
        pause()

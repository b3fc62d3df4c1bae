"""The postings of a store's words, in a mapped file beside it: derived, so that a search need not rank row by row.

The file can be removed at any time. One that is damaged, or of another store, is not used; what was written since is
read from the store while it is little; and as long as the postings are missing, or too far behind, FTS5 ranks
(`matching.py`) and a thread brings them up to date. So no answer ever depends on them.
"""

import logging
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import apsw

from knowledge.embedding.arrays import np
from knowledge.postings import file as files
from knowledge.postings.scores import Collection
from knowledge.postings.segment import Builder, Collision, Flags, Segment
from knowledge.sqlite import indexing, vectors, writing
from knowledge.sqlite.schema import CHUNK_BITS, chunk_range
from knowledge.sqlite.visible import token_count
from knowledge.store import StoreError, SyncRunning
from storage.lanes import configure, rows
from storage.metering import counting

log = logging.getLogger("knowledge")

# Documents that one search reads, and that may be known beside the file, before the file is written anew.
MAX_READ, MAX_BESIDE = 64, 512
# A build begins so long after the last one, and after one that failed.
_APART_S, _FAILED_APART_S = 2.0, 600.0
# Documents that a build reads in one transaction, and how long it then leaves the processor to others: as long as that
# took, a tenth of a second at most.
_STEP_DOCUMENTS = 16
_REST, _LONGEST_REST_S = 1.0, 0.1
# A segment with fewer chunks that are true than this is made anew, with what is new.
_LEAST_CHUNKS = 8192


class _Unusable(Exception):
    """The postings cannot be made of this store, as it is now."""


class _Base(NamedTuple):
    """What a file holds: everything up to the change `at`."""

    at: int
    segments: Sequence[Segment]
    live: Sequence[Flags]


def path_of(store: Path) -> Path:
    """The postings of a store's file."""
    return store.with_name(store.name + indexing.SUFFIX)


class Postings:
    """The postings of one open store. Used by the threads of its connections."""

    def __init__(self, store: Path, max_bytes: int | None) -> None:
        self._store, self._max_bytes = store, max_bytes
        self._lock = threading.Lock()
        # Invariant: `_known` is `_base` and what has changed up to `_at`; None where there is no base.
        self._base: _Base | None = None
        self._known: Collection | None = None
        self._at = 0
        self._beside = 0
        # The file that was read last, and the change that was the last one then: another file, or a later state of the
        # store, may go together.
        self._seen: tuple[object, int] | None = None
        self._builder: threading.Thread | None = None
        self._next_s = 0.0  # of `time.monotonic()`: when the next build may begin
        self._ending = threading.Event()

    def collection(self, db: apsw.Connection) -> Collection | None:
        """What is in the index in the snapshot of `db`; None where that is not known, or the store is small."""
        languages = indexing.languages(db)
        if len(languages) > 1:  # documents of both
            return None
        at = indexing.last_change(db)
        with self._lock:
            if self._known is None or self._at != at:
                self._follow(db, at, languages[0])
            return self._known if self._at == at else None

    def close(self) -> None:
        """End the thread, if there is one, after the documents that it is reading. None begins after this."""
        with self._lock:  # a search whose store is being closed may be about to begin one
            self._ending.set()
        if (builder := self._builder) is not None:
            builder.join()

    def wait(self) -> None:
        """Wait until no thread brings the postings up to date."""
        if (builder := self._builder) is not None:
            builder.join()

    # --- in a search, with the lock ----------------------------------------------------------------------------------

    def _follow(self, db: apsw.Connection, at: int, language: str) -> None:
        if self._known is not None and not indexing.has_change(db, self._at):
            self._known = self._base = None  # another store, or this one as it was before
        changed = self._changed(db)
        if changed is None or len(changed) > MAX_READ:
            self._load(db, at, language)
            changed = self._changed(db)
        if changed is None:
            if indexing.is_large(db):
                self._begin()
            return
        if len(changed) > MAX_READ:
            self._begin()
            return
        known = self._known
        if known is None:
            return
        if changed:
            try:
                more = list(_segments(db, changed, language))
            except _Unusable as why:
                self._fail(why)
                self._known = self._base = None
                return
            segments = [*known.segments, *more]
            live = _living(known.segments, known.parts_live, changed) + [np.ones(len(m.chunks), bool) for m in more]
            self._known = Collection(segments, live, CHUNK_BITS)
            self._beside += len(changed)
        self._at = at
        if self._beside > MAX_BESIDE:
            self._begin()

    def _changed(self, db: apsw.Connection) -> list[int] | None:
        """The documents that were changed since what is known, up to one too many; None where nothing is known."""
        return None if self._known is None else indexing.changed_since(db, self._at, MAX_READ + 1)

    def _load(self, db: apsw.Connection, at: int, language: str) -> None:
        """Read the file, if it is another one than before."""
        path = path_of(self._store)
        found = files.identity(path)
        if found is None or (found, at) == self._seen:
            return
        self._seen = found, at
        base = _loaded(db, path, language)
        if base is not None:
            self._base, self._at, self._beside = base, base.at, 0
            self._known = Collection(base.segments, base.live, CHUNK_BITS)

    def _begin(self) -> None:
        """Bring the file up to date in a thread, unless that is under way or was just done."""
        if self._store == Path() or self._ending.is_set() or time.monotonic() < self._next_s:
            return
        if self._builder is None or not self._builder.is_alive():
            self._builder = threading.Thread(target=counting(self._build), name="postings", daemon=True)
            self._builder.start()

    def _build(self) -> None:
        """In a thread of its own."""
        try:
            update(self._store, self._max_bytes, self._rest)
        except _Ended:
            return
        except (_Unusable, OSError, apsw.Error, StoreError) as why:
            self._fail(why)
        else:
            self._next_s = time.monotonic() + _APART_S

    def _fail(self, why: Exception) -> None:
        log.warning("the postings of a store were not brought up to date, so its searches take longer: %s", why)
        self._next_s = time.monotonic() + _FAILED_APART_S

    def _rest(self, seconds: float) -> None:
        if self._ending.wait(min(seconds * _REST, _LONGEST_REST_S)):
            raise _Ended


class _Ended(Exception):
    """The store is being closed."""


# --- the file --------------------------------------------------------------------------------------------------------


def _loaded(db: apsw.Connection, path: Path, language: str) -> _Base | None:
    """What the file holds, if it is of this store."""
    found = files.read(path)
    if found is None:
        return None
    stated, segments, live = found
    if stated.get("language") != language or not indexing.has_change(db, int(stated.get("at", 0))):
        return None
    return _Base(int(stated["at"]), segments, live)


def described(db: apsw.Connection, file: Path) -> tuple[str, bool] | None:
    """What there is to say of the postings beside a store, and whether they are of use; None where there are none."""
    path = path_of(file)
    if not path.exists():
        return None
    base = _loaded(db, path, indexing.languages(db)[0])
    if base is None:
        return "damaged, or not of this store: searches make it anew", False
    chunks = sum(int(each.sum()) for each in base.live)
    behind = len(indexing.changed_since(db, base.at, -1))
    return f"{chunks:,} chunks, checksum right" + (f", {behind:,} documents behind the store" if behind else ""), True


def update(store: Path, max_bytes: int | None, rest: Callable[[float], None]) -> None:
    """Write the file anew where it is behind its store. Raises OSError, apsw.Error, StoreError, _Unusable.

    `rest` is called between two steps, with the seconds of CPU time that the last one took; it may raise.
    """
    with suppress(SyncRunning), _locked(store):
        db = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
        with closing(db):
            configure(db, 5.0)
            _update(db, store, max_bytes, rest)


class _locked:
    """The lock of those who write the file, in any process."""

    def __init__(self, store: Path) -> None:
        self._path = store.with_name(f"{store.name}.1.lock")

    def __enter__(self) -> None:
        self._descriptor = writing.lock_file(self._path, "making of postings")

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _update(db: apsw.Connection, store: Path, max_bytes: int | None, rest: Callable[[float], None]) -> None:
    path = path_of(store)
    # What is changed while this runs is read in either state, and counts as changed since: it is read once more.
    with db:
        at, languages = indexing.last_change(db), indexing.languages(db)
        base = _loaded(db, path, languages[0])
        if len(languages) > 1 or (base is not None and base.at == at):
            return
        documents, kept = _wanted(db, base)
    made = list(_steps(db, documents, languages[0], rest))
    segments = [*(segment for segment, _ in kept), *made]
    live = [*(live for _, live in kept), *(np.ones(len(each.chunks), bool) for each in made)]
    used = vectors.used_bytes(db) - vectors.beside_bytes(db, indexing.SUFFIX)
    if max_bytes is not None and used + files.size_of(segments) > max_bytes:
        raise _Unusable("the quota of stored bytes has no room for them")
    if indexing.languages(db) != languages:
        return
    new = path.with_name(path.name + ".new")
    try:
        files.write(new, {"at": at, "language": languages[0]}, segments, live)
        new.replace(path)
    finally:
        files.remove(new)
    if not store.exists():  # removed meanwhile, with what was beside it
        files.remove(path)


def _wanted(db: apsw.Connection, base: _Base | None) -> tuple[list[int], list[tuple[Segment, Flags]]]:
    """The documents to read, and the segments that stay, with what is true of each."""
    if base is None:
        return [n for (n,) in rows(db, "SELECT n FROM documents ORDER BY n")], []
    changed = indexing.changed_since(db, base.at, -1)
    live = _living(base.segments, base.live, changed)
    wanted, kept = set(changed), []
    for segment, alive in zip(base.segments, live, strict=True):
        if int(alive.sum()) < _LEAST_CHUNKS:
            wanted.update((np.unique(segment.chunks[alive] >> CHUNK_BITS)).tolist())
        else:
            kept.append((segment, alive))
    return sorted(wanted), kept


def _living(segments: Iterable[Segment], live: Iterable[Flags], changed: Sequence[int]) -> list[Flags]:
    """What is true of segments when these documents have changed."""
    return [
        alive.view(np.bool_) & ~np.isin(segment.chunks >> CHUNK_BITS, changed)
        for segment, alive in zip(segments, live, strict=True)
    ]


# --- from the store --------------------------------------------------------------------------------------------------


def _steps(
    db: apsw.Connection, documents: Sequence[int], language: str, rest: Callable[[float], None]
) -> Iterator[Segment]:
    """Segments of documents, read in small steps."""
    builder, reader = Builder(), _Reader(db, language)
    for start in range(0, len(documents), _STEP_DOCUMENTS):
        began_s = time.thread_time()
        with db:
            for n in documents[start : start + _STEP_DOCUMENTS]:
                reader.read(n, builder)
        if builder.full:
            yield _made(builder)
            builder = Builder()
        rest(time.thread_time() - began_s)
    if builder.chunks:
        yield _made(builder)


def _segments(db: apsw.Connection, documents: Sequence[int], language: str) -> Iterator[Segment]:
    """A segment of documents, in the snapshot of `db`."""
    builder, reader = Builder(), _Reader(db, language)
    for n in sorted(documents):
        reader.read(n, builder)
    if builder.chunks:
        yield _made(builder)


def _made(builder: Builder) -> Segment:
    try:
        return builder.made()
    except Collision:
        raise _Unusable("two words have one hash") from None


class _Reader:
    """Reads documents, in the words that FTS5 makes of them."""

    def __init__(self, db: apsw.Connection, language: str) -> None:
        self._db, self._language = db, language
        self._tokenizer = indexing.Tokenizer(db)

    def read(self, n: int, builder: Builder) -> None:
        """Add a document, if it is there. Raises _Unusable where the index has other words of it."""
        found = rows(self._db, "SELECT title FROM documents WHERE n = ?", (n,))
        if not found:
            return
        texts = rows(self._db, "SELECT text FROM chunks WHERE chunk BETWEEN ? AND ? ORDER BY chunk", chunk_range(n))
        sizes = dict(rows(self._db, "SELECT id, sz FROM words_docsize WHERE id BETWEEN ? AND ?", chunk_range(n)))
        known: dict[str, array[int]] = {}  # titles, which are those of many chunks
        cut = self._tokenizer.words
        for chunk, title, text, title_forms, text_forms in indexing.entries(
            n, found[0][0] or "", [text for (text,) in texts], self._language
        ):
            for column in {title, title_forms} - known.keys():
                known[column] = builder.numbered(cut(column))
            columns = [
                known[title], builder.numbered(cut(text)), known[title_forms], builder.numbered(cut(text_forms)),
            ]  # fmt: skip
            count = builder.add(chunk, columns)
            if chunk not in sizes or token_count(sizes.pop(chunk)) != count:
                raise _Unusable("the index has other words than the texts")
        if sizes:
            raise _Unusable("the index has other chunks than the store")

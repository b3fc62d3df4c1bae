"""The store in one SQLite file: documents, and their chunks in an FTS5 index, changed together in one transaction."""

import copy
import fcntl
import hashlib
import json
import logging
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from sys import getsizeof
from typing import Any, TypeVar, cast

import apsw
import trio

from knowledge import ranking, times
from knowledge.answers import ENTRY_BYTES, OBJECT_BYTES, Answers, text_bytes
from knowledge.faults import Fault, Named, answer_text, fault_of, opening_text
from knowledge.lanes import Lane, at_once, open_lane
from knowledge.store import (
    MAX_CHUNKS,
    MODES,
    Applied,
    Batch,
    Chunk,
    Document,
    EmbeddingsDisabled,
    Hit,
    Listed,
    NewDocument,
    SearchAnswer,
    SearchQuery,
    SourceInfo,
    Stored,
    StoreError,
    StoreStats,
    SyncMark,
)
from knowledge.watch import Watch, open_watch

T = TypeVar("T")

log = logging.getLogger("knowledge")

NAMED = Named("the store", "[db] path", "restore it from a backup, or remove it and sync again")

SCHEMA_VERSION = 1
APPLICATION_ID = 0x6B6E6F77  # "know": tells our files from other programs' SQLite files

# Chunk i of document n is row n * MAX_CHUNKS + i of the index. So the index alone knows which document a match belongs
# to, and a document's chunks are one range.
_CHUNK_BITS = MAX_CHUNKS.bit_length() - 1

_SCHEMA = f"""
CREATE TABLE sources(
    n INTEGER PRIMARY KEY, label TEXT NOT NULL UNIQUE, type TEXT NOT NULL, name TEXT NOT NULL,
    last_sync TEXT, last_error TEXT, checkpoint TEXT
);
CREATE TABLE documents(
    n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, source INTEGER NOT NULL REFERENCES sources(n),
    source_id TEXT NOT NULL, source_url TEXT, title TEXT, author TEXT, created_at TEXT, updated_at TEXT,
    content_type TEXT NOT NULL, chunk_count INTEGER NOT NULL, version TEXT NOT NULL, digest TEXT NOT NULL,
    metadata TEXT NOT NULL, body TEXT NOT NULL,
    UNIQUE(source, source_id)
);
CREATE INDEX documents_by_source ON documents(source, chunk_count);
CREATE VIRTUAL TABLE chunks USING fts5(title, text, tokenize = 'unicode61 remove_diacritics 2');
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""

# A word in the title counts as four in the text: titles are short and say what a document is about.
_TITLE_WEIGHT, _TEXT_WEIGHT = 4.0, 1.0

# bm25() is refused where rows are grouped, so `matches` must not be merged into `best`: LIMIT -1 sees to that, without
# the copy that MATERIALIZED would make. Filters come before the limit, so a document that passes them is found however
# many others rank higher. For the order see ranking.py.
_SEARCH = """
WITH matches AS (
    SELECT rowid AS chunk, bm25(chunks, {title}, {text}) AS rank FROM chunks WHERE chunks MATCH :any LIMIT -1
), best AS (
    SELECT chunk >> {bits} AS n, chunk, min(rank) AS rank FROM matches GROUP BY chunk >> {bits}
)
SELECT d.id, s.label, d.source_id, d.title, d.source_url, d.updated_at, b.chunk, b.rank, ({complete}) AS complete
FROM best b JOIN documents d ON d.n = b.n JOIN sources s ON s.n = d.source
WHERE (:source IS NULL OR :source IN (s.label, s.name, s.type)) AND (:since IS NULL OR d.updated_at >= :since)
ORDER BY complete DESC, b.rank, d.updated_at DESC, d.id LIMIT :limit
"""

# Not part of _SEARCH: there it would be evaluated before the limit, for every document that matches.
_CHUNK_TEXT = "SELECT text FROM chunks WHERE rowid = ?"

_GET = """
SELECT d.n, d.id, s.label, d.source_id, d.source_url, d.title, d.author, d.created_at, d.updated_at,
    d.content_type, d.body, d.metadata
FROM documents d JOIN sources s ON s.n = d.source WHERE d.id = ?
"""

_CHUNKS = "SELECT rowid, text FROM chunks WHERE rowid BETWEEN ? AND ? ORDER BY rowid"

_SOURCES = """
SELECT s.label, count(d.n), coalesce(sum(d.chunk_count), 0), s.last_sync, s.last_error
FROM sources s LEFT JOIN documents d ON d.source = s.n GROUP BY s.n
"""

# Not as a comparison of rows, which would not use the index of labels.
_LIST = """
SELECT d.id, s.label, d.source_id, d.title, d.updated_at, d.content_type, octet_length(d.body)
FROM sources s JOIN documents d ON d.source = s.n
WHERE s.label >= :label AND (s.label > :label OR d.source_id > :source_id)
ORDER BY s.label, d.source_id LIMIT :limit
"""

# Titles have no index of their own; that of words narrows it down to a few documents, and those without any text.
_WORDED = f"d.n IN (SELECT rowid >> {_CHUNK_BITS} FROM chunks WHERE chunks MATCH :match)"
_TITLED = """
SELECT d.id FROM documents d JOIN sources s ON s.n = d.source
WHERE ({worded} OR d.chunk_count = 0) AND s.label = :source AND d.title = :title ORDER BY d.id LIMIT :limit
"""

# Sorted only where words narrow it down: without any, the first ones found are as good as others, and cost no scan.
_ANY_TITLES = """
SELECT DISTINCT d.title FROM documents d JOIN sources s ON s.n = d.source
WHERE d.title <> '' AND (:source IS NULL OR :source IN (s.label, s.name, s.type)) LIMIT :limit
"""
_TITLES = f"""
SELECT DISTINCT d.title FROM documents d JOIN sources s ON s.n = d.source
WHERE {_WORDED} AND d.title <> '' AND (:source IS NULL OR :source IN (s.label, s.name, s.type))
ORDER BY d.title LIMIT :limit
"""

_UPSERT = """
INSERT INTO documents(id, source, source_id, source_url, title, author, created_at, updated_at, content_type,
    chunk_count, version, digest, metadata, body)
VALUES (:id, :source, :source_id, :source_url, :title, :author, :created_at, :updated_at, :content_type,
    :chunk_count, :version, :digest, :metadata, :body)
ON CONFLICT(source, source_id) DO UPDATE SET source_url = excluded.source_url, title = excluded.title,
    author = excluded.author, created_at = excluded.created_at, updated_at = excluded.updated_at,
    content_type = excluded.content_type, chunk_count = excluded.chunk_count, version = excluded.version,
    digest = excluded.digest, metadata = excluded.metadata, body = excluded.body
RETURNING n
"""

# Answers that an open store keeps: some fifty documents of 10 KB with their chunks, or a hundred searches. With all
# stores of tenants open at once (`stores.MAX_OPEN`) that is 65 MiB.
MAX_KEPT_BYTES = 1024 * 1024

# Index pages that one sync may rewrite at its end: some 8 MB.
_MERGE_PAGES = 2000

# Ids are derived, not drawn: a store that is lost and filled again gives its documents the ids they had.
_ID_NAMESPACE = uuid.UUID("8f0d8f0e-3a0c-5d0e-9c56-6b6e6f776c65")

_HYBRID_WARNING = "hybrid search needs an embedder and none is configured; answered by keyword search"
_CUT_WARNING = "the query is too long; only its first words were searched for"


@asynccontextmanager
async def open_store(
    path: str | os.PathLike[str],
    *,
    create: bool = False,
    readonly: bool = False,
    configured: Mapping[str, str | None] | None = None,
    readers: int = 2,
    busy_timeout_s: float = 5.0,
    max_bytes: int | None = None,
) -> AsyncIterator["SqliteStore"]:
    """The store in the file `path`, open until the block ends; `create` makes the file and its folder when missing.

    `configured` maps each source label of the configuration to what is wrong with it, or None. `readers` is the number
    of searches that run side by side. `busy_timeout_s` bounds the wait for another process's lock. `max_bytes` is what
    the store may grow to: a batch that would make it larger is not written.
    Raises StoreError, naming the path, for a file that is missing, locked, damaged, no store of ours, or too new.
    """
    given = Path(path)
    # Links are followed once: all connections, the lock and the log beside the file are of one file, also where a link
    # is changed meanwhile.
    file = await trio.to_thread.run_sync(_resolved, given, create and not readonly)
    async with AsyncExitStack() as stack:
        try:
            writer = None
            if not readonly:
                writer = await stack.enter_async_context(
                    open_lane(file, create=create, reading=False, busy_timeout_s=busy_timeout_s)
                )
                await writer.run(partial(_prepare, file=given, create=create))
            lanes = [
                await stack.enter_async_context(
                    open_lane(file, create=False, reading=True, busy_timeout_s=busy_timeout_s)
                )
                for _ in range(readers)
            ]
            await lanes[0].run(partial(_check_schema, file=given))
            watch = await stack.enter_async_context(open_watch(file))
        except apsw.Error as error:
            fault = await trio.to_thread.run_sync(fault_of, error, file)
            raise StoreError(opening_text(fault, NAMED, given, error)) from error
        yield SqliteStore(file, writer, tuple(lanes), configured or {}, max_bytes, watch)


@asynccontextmanager
async def open_empty_store() -> AsyncIterator["SqliteStore"]:
    """A store without documents, in memory and for reading: what there is where there is no file."""
    async with open_lane(":memory:", create=True, reading=False, busy_timeout_s=0) as lane:
        await lane.run(lambda db: _rows(db, _SCHEMA))
        yield SqliteStore(Path(), None, (lane,), {})


class SqliteStore:
    """A `WritableStore` in one file; made by `open_store`, whose block it does not outlive.

    What `search`, `get` and `sources` found is kept and given again until somebody, in any process, has written to the
    file. They depend on nothing but what is asked and the file: no clock, no model. Without a watch nothing is kept.
    """

    def __init__(
        self,
        file: Path,
        writer: "Lane | None",
        readers: tuple["Lane", ...],
        configured: Mapping[str, str | None],
        max_bytes: int | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._file = file
        self._writer = writer
        self._readers = readers
        self._configured = dict(configured)
        self._max_bytes = max_bytes
        self._watch = watch
        self._answers = Answers(MAX_KEPT_BYTES)

    def with_sources(self, configured: Mapping[str, str | None]) -> "SqliteStore":
        """The same store, with this said to be configured."""
        same = copy.copy(self)
        same._configured = dict(configured)
        return same

    async def search(self, query: SearchQuery) -> SearchAnswer:
        """Find documents; see `Store`. Raises ValueError for an unknown mode or a `since` that is no time."""
        return await self._answer(("search", query), partial(self._search, query), partial(_search_bytes, query))

    async def _search(self, query: SearchQuery) -> SearchAnswer:
        if query.mode not in MODES:
            raise ValueError(f"search mode is {query.mode!r}; it must be one of {', '.join(MODES)}")
        since = None if query.since is None else times.canonical_time(query.since)
        if query.mode == "semantic":
            raise EmbeddingsDisabled(
                "mode 'semantic' requires embeddings; set [embedding] provider in the configuration"
            )
        warnings: tuple[str, ...] = (_HYBRID_WARNING,) if query.mode == "hybrid" else ()
        match = ranking.parse_query(query.query)
        if match.cut:
            warnings += (_CUT_WARNING,)
        if not match.any or query.limit < 1 or not _is_text(query.source):
            await trio.lowlevel.checkpoint()
            return SearchAnswer((), warnings)
        bindings = {"any": match.any, "source": query.source, "since": since, "limit": min(query.limit, 2**31)}
        bindings |= {f"term{index}": term for index, term in enumerate(match.required)}
        work = partial(_search, bindings=bindings, words=match.words, terms=len(match.required))
        return SearchAnswer(await self._read(work), warnings)

    async def get(self, document_id: str) -> Document | None:
        """The document, or None when there is none of that id."""
        bytes_of = partial(_found_bytes, document_id)
        found = await self._answer(("get", document_id), partial(self._get, document_id), bytes_of)
        return None if found is None else found.document()

    async def _get(self, document_id: str) -> "_Found | None":
        if not _is_text(document_id):
            await trio.lowlevel.checkpoint()
            return None
        return await self._read(partial(_get, document_id=document_id))

    async def sources(self) -> tuple[SourceInfo, ...]:
        """Every source with documents or configuration, sorted by label.

        A source is healthy when its configuration is (`configured`) and its last synchronisation did not fail.
        """
        found = await self._answer(("sources",), partial(self._read, _sources), _rows_bytes)
        rows = {row[0]: row[1:] for row in found}
        labels = sorted(self._configured.keys() | {label for label, row in rows.items() if row[0]})
        return tuple(self._source_info(label, *rows.get(label, (0, 0, None, None))) for label in labels)

    def _source_info(
        self, label: str, documents: int, chunks: int, last_sync: str | None, last_error: str | None
    ) -> SourceInfo:
        problem = self._configured.get(label) or (f"the last sync failed: {last_error}" if last_error else None)
        configured = label in self._configured
        return SourceInfo(
            source=label,
            document_count=documents,
            chunk_count=chunks,
            configured=configured,
            healthy=problem is None,
            notes=problem if problem or configured else "not in the configuration; its documents are still served",
            last_sync=last_sync,
        )

    async def documents(self, *, after: tuple[str, str] | None = None, limit: int) -> tuple[Listed, ...]:
        """Documents by source label, then source_id: the first `limit`, or those after a pair of the two."""
        label, source_id = after or ("", "")
        if not _is_text(label) or not _is_text(source_id):
            await trio.lowlevel.checkpoint()
            return ()
        bindings = {"label": label, "source_id": source_id, "limit": limit}
        names = ("id", "source", "source_id", "title", "updated_at", "content_type", "size")
        rows = await self._read(lambda db: _rows(db, _LIST, bindings))
        return tuple(Listed(**dict(zip(names, row, strict=True))) for row in rows)

    async def titled(self, source: str, title: str, *, limit: int) -> tuple[str, ...]:
        """The ids of the documents of one source label that have exactly this title, sorted."""
        if not _is_text(source) or not _is_text(title):
            await trio.lowlevel.checkpoint()
            return ()
        match = ranking.title_prefix(title)
        sql = _TITLED.format(worded=_WORDED if match else "1")
        bindings = {"match": match, "source": source, "title": title, "limit": limit}
        return tuple(row[0] for row in await self._read(lambda db: _rows(db, sql, bindings)))

    async def titles(self, text: str, source: str | None = None, *, limit: int) -> tuple[str, ...]:
        """Titles with all words of `text`, each maybe half typed, sorted; without words any. `source` as searched."""
        match = ranking.title_prefix(text)
        if not _is_text(source) or (text.strip() and not match):  # only punctuation: no title has such a word
            await trio.lowlevel.checkpoint()
            return ()
        bindings = {"match": match, "source": source, "limit": limit}
        rows = await self._read(lambda db: _rows(db, _TITLES if match else _ANY_TITLES, bindings))
        return tuple(sorted(row[0] for row in rows))

    async def revision(self) -> int:
        """A number that changes when any other connection, of this process or another one, has written the file."""
        # Each connection counts for itself, so that only the numbers of one can be compared.
        return int(await _answered(self._readers[0].run(lambda db: db.pragma("data_version")), self._file))

    async def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """A hash of each of these documents, by id; what is not there is missing."""
        asked = json.dumps([each for each in ids if _is_text(each)])
        sql = "SELECT id, digest FROM documents WHERE id IN (SELECT value FROM json_each(?))"
        return dict(await self._read(lambda db: _rows(db, sql, (asked,))))

    async def stats(self) -> StoreStats:
        """Totals over all sources."""
        sources = await self.sources()
        size = await trio.to_thread.run_sync(_size_on_disk, self._file)
        documents, chunks = sum(s.document_count for s in sources), sum(s.chunk_count for s in sources)
        return StoreStats(documents, chunks, 0, size, sources)

    async def export(self) -> dict[str, Any]:
        """Everything as one JSON-able value, of one moment.

        `{"documents": [{id, source, source_id, source_url, title, updated_at, body}], "chunks": [{id, document_id,
        chunk_index, text}]}`; `updated_at` in whole seconds since the epoch; documents by source_id, then source;
        chunks by document_id, then index.
        """
        return await self._read(_export)

    @asynccontextmanager
    async def sync_lock(self, source: str) -> AsyncIterator[None]:
        """Held while a source is synchronised. Raises StoreError when another holder has it, in any process."""
        # The kernel's lock, not a row: it goes with the process that holds it, however that ends.
        self._require_writer()
        digest = hashlib.sha256(source.encode("utf-8", "backslashreplace")).hexdigest()[:12]
        path = self._file.with_name(f"{self._file.name}.{digest}.lock")
        descriptor = await trio.to_thread.run_sync(_lock_file, path, source)
        try:
            yield
        finally:
            os.close(descriptor)

    async def stored(self, source: str) -> dict[str, Stored]:
        """What the store holds of `source`, by source_id."""
        sql = "SELECT source_id, version, digest FROM documents WHERE source = (SELECT n FROM sources WHERE label = ?)"
        rows = await self._read(lambda db: _rows(db, sql, (source,)))
        return {source_id: Stored(version, digest) for source_id, version, digest in rows}

    async def checkpoint(self, source: str) -> str | None:
        """The connector's checkpoint of the last synchronisation that left one."""
        sql = "SELECT checkpoint FROM sources WHERE label = ?"
        rows = await self._read(lambda db: _rows(db, sql, (source,)))
        return rows[0][0] if rows else None

    async def apply(self, batch: Batch) -> Applied:
        """Write a batch in one transaction. A document of a known source_id keeps its id.

        Cancelled midway it is rolled back, or was already written as a whole. Raises StoreError, among others for a
        batch with documents that would make the store larger than `max_bytes`.
        """
        work = partial(at_once, partial(_apply, batch=batch, max_bytes=self._max_bytes))
        return await _answered(self._require_writer().run(work), self._file)

    def _require_writer(self) -> "Lane":
        if self._writer is None:
            raise StoreError("the store is open for reading only; open it for writing to change it")
        return self._writer

    async def _answer(self, question: Hashable, ask: Callable[[], Awaitable[T]], bytes_of: Callable[[T], int]) -> T:
        """The answer to `question` that is kept, or else that of `ask`, which may be kept unless it is an error."""
        # Looked up before anything is read: what is written from here on makes another version, and an answer that
        # already has it is asked for once more, where one that misses it would be given again.
        version = None if self._watch is None else self._watch.version()
        if version is None:
            return await ask()
        kept = self._answers.get(version, question)
        if kept is not None:
            await trio.lowlevel.checkpoint()
            return cast(T, kept.answer)
        answer = await ask()
        self._answers.keep(version, question, answer, bytes_of)
        return answer

    async def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        return await _answered(min(self._readers, key=_waiting).run(work), self._file)


def _waiting(lane: "Lane") -> int:
    return lane.waiting


# --- answers ---------------------------------------------------------------------------------------------------------


async def _answered(answer: Awaitable[T], file: Path) -> T:
    try:
        return await answer
    except apsw.Error as error:
        fault = await trio.to_thread.run_sync(fault_of, error, file)
        if fault is Fault.OTHER:
            log.error("a store failed: %s: %s", type(error).__name__, error)
        raise StoreError(answer_text(fault, NAMED, error)) from error


# --- opening ---------------------------------------------------------------------------------------------------------


def _resolved(file: Path, create: bool) -> Path:
    """The file without links in its path; with `create`, its folder is there then. Raises StoreError."""
    try:
        if file.is_dir():
            raise StoreError(f"{file} is a directory; a store is a file ([db] path)")
        if not create and not file.exists():
            raise StoreError(f"there is no store at {file}; create it (init or sync), or correct [db] path")
        if create:
            file.parent.mkdir(parents=True, exist_ok=True)
        return Path(os.path.realpath(file))
    except OSError as error:
        raise StoreError(f"the store at {file} cannot be reached: {error.strerror}") from error


def _prepare(db: apsw.Connection, file: Path, create: bool) -> None:
    """Make the writer's file a store, if it is empty and `create` says so."""
    if create and _is_empty(db):
        db.pragma("journal_mode", "wal")
        at_once(_fill, db)
    _check_schema(db, file)
    if db.pragma("journal_mode") != "wal":
        db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "NORMAL")  # with WAL: never inconsistent; a power cut may undo the last batches
    db.pragma("journal_size_limit", 64 * 1024 * 1024)


def _fill(db: apsw.Connection) -> None:
    if _is_empty(db):  # the lock is ours; another process may have been faster
        _rows(db, _SCHEMA)


def _is_empty(db: apsw.Connection) -> bool:
    return not _rows(db, "SELECT 1 FROM sqlite_schema LIMIT 1")


def _check_schema(db: apsw.Connection, file: Path) -> None:
    if db.pragma("application_id") != APPLICATION_ID:
        what = "is an empty database" if _is_empty(db) else "is another program's SQLite database"
        raise StoreError(f"{file} {what}, not a store; create the store (init or sync), or correct [db] path")
    version = db.pragma("user_version")
    if version != SCHEMA_VERSION:
        age = "a newer" if version > SCHEMA_VERSION else "an unknown"
        raise StoreError(
            f"the store at {file} was written by {age} version (schema {version}, this one knows {SCHEMA_VERSION}); "
            "use that version, or fill a new store"
        )


def _lock_file(path: Path, source: str) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreError(f"the lock of {source} cannot be taken: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StoreError(f"another sync of {source} is running; wait for it to end") from error
    return descriptor


def _size_on_disk(file: Path) -> int:
    size = 0
    for path in (file, file.with_name(file.name + "-wal")):
        if path.exists():
            size += path.stat().st_size
    return size


# --- queries: each runs in its connection's thread -------------------------------------------------------------------


def _is_text(value: str | None) -> bool:
    """Whether SQLite can hold the text; one with lone surrogates is no text, so nothing stored equals it."""
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        return False
    return True


def _rows(db: apsw.Connection, sql: str, bindings: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
    """All rows, typed by whoever wrote the SQL; nothing of the statement stays open."""
    return cast(list[tuple[Any, ...]], db.execute(sql, bindings).fetchall())


@lru_cache(maxsize=ranking.MAX_TERMS + 1)
def _search_sql(terms: int) -> str:
    matching = (f"SELECT rowid >> {_CHUNK_BITS} FROM chunks WHERE chunks MATCH :term{i}" for i in range(terms))
    complete = "1" if terms == 1 else f"b.n IN ({' INTERSECT '.join(matching)})"
    return _SEARCH.format(title=_TITLE_WEIGHT, text=_TEXT_WEIGHT, bits=_CHUNK_BITS, complete=complete)


def _search(db: apsw.Connection, bindings: dict[str, Any], words: tuple[str, ...], terms: int) -> tuple[Hit, ...]:
    with db:  # one moment: the excerpts are of the chunks that were ranked
        rows = _rows(db, _search_sql(terms), bindings)
        texts = [_rows(db, _CHUNK_TEXT, (row[6],))[0][0] for row in rows]
    scores = ranking.scores([(bool(row[8]), row[7]) for row in rows])
    return tuple(
        Hit(
            id=row[0],
            source=row[1],
            source_id=row[2],
            title=row[3],
            source_url=row[4],
            updated_at=row[5],
            score=score,
            snippet=ranking.snippet(text, words),
        )
        for row, text, score in zip(rows, texts, scores, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """A document as it can be kept: its metadata as JSON, because whoever gets a document may change the dict of it."""

    fields: Mapping[str, Any]  # all the others
    metadata: str

    def document(self) -> Document:
        return Document(**self.fields, metadata=json.loads(self.metadata))


def _get(db: apsw.Connection, document_id: str) -> _Found | None:
    with db:  # one moment: a document and its chunks are of the same version
        rows = _rows(db, _GET, (document_id,))
        if not rows:
            return None
        n, *values, metadata = rows[0]
        chunks = _rows(db, _CHUNKS, _chunk_range(n))
    names = ("id", "source", "source_id", "source_url", "title", "author", "created_at", "updated_at", "content_type")
    fields = dict(zip((*names, "body"), values, strict=True))
    first, _ = _chunk_range(n)
    fields["chunks"] = tuple(Chunk(row - first, text) for row, text in chunks)
    return _Found(fields, metadata)


def _sources(db: apsw.Connection) -> tuple[tuple[Any, ...], ...]:
    return tuple(_rows(db, _SOURCES))


def _chunk_range(n: int) -> tuple[int, int]:
    return n << _CHUNK_BITS, ((n + 1) << _CHUNK_BITS) - 1


def _export(db: apsw.Connection) -> dict[str, Any]:
    keys = ("id", "source", "source_id", "source_url", "title", "updated_at", "body")
    sql = """
        SELECT d.n, d.id, s.label, d.source_id, d.source_url, d.title, d.updated_at, d.body
        FROM documents d JOIN sources s ON s.n = d.source ORDER BY d.source_id, s.label
    """
    with db:
        rows = _rows(db, sql)
        texts = _rows(db, "SELECT rowid, text FROM chunks")
    ids = {row[0]: row[1] for row in rows}
    documents = [dict(zip(keys, row[1:], strict=True)) for row in rows]
    for document in documents:
        document["updated_at"] = times.to_timestamp(document["updated_at"])
    chunks = [_export_chunk(ids[row >> _CHUNK_BITS], row & ((1 << _CHUNK_BITS) - 1), text) for row, text in texts]
    chunks.sort(key=lambda chunk: (chunk["document_id"], chunk["chunk_index"]))
    return {"documents": documents, "chunks": chunks}


def _export_chunk(document_id: str, index: int, text: str) -> dict[str, Any]:
    chunk_id = str(uuid.uuid5(uuid.UUID(document_id), str(index)))
    return {"id": chunk_id, "document_id": document_id, "chunk_index": index, "text": text}


def _apply(db: apsw.Connection, batch: Batch, max_bytes: int | None = None) -> Applied:
    source = _source_row(db, batch.source)
    for document in batch.upserts:
        _upsert(db, source, batch.source, document)
    deleted = sum(_delete(db, source, source_id) for source_id in batch.deletes)
    db.executemany(
        "UPDATE documents SET version = ? WHERE source = ? AND source_id = ?",
        [(version, source, source_id) for source_id, version in batch.versions.items()],
    )
    if batch.mark:
        _mark(db, source, batch.mark)
        # The end of a sync. Every batch left a segment of the index that each query would merge anew: one instead
        # of twelve halves the time of a search (measured). Bounded, so that a large index is merged bit by bit.
        db.execute("INSERT INTO chunks(chunks, rank) VALUES ('merge', ?)", (-_MERGE_PAGES,))
    if batch.upserts and max_bytes is not None and (used := _used_bytes(db)) > max_bytes:
        raise StoreError(
            f"the store would hold {used} bytes; its limit is {max_bytes} (quota stored_bytes); the documents "
            "before these were written, these were not"
        )
    return Applied(len(batch.upserts), deleted, sum(len(document.chunks) for document in batch.upserts))


def _used_bytes(db: apsw.Connection) -> int:
    """The pages in use, with those of the transaction under way. Free ones are used again before the file grows."""
    return int((db.pragma("page_count") - db.pragma("freelist_count")) * db.pragma("page_size"))


def _source_row(db: apsw.Connection, label: str) -> int:
    kind, colon, name = label.partition(":")
    row = (label, kind, name) if colon else (label, "", label)
    db.execute("INSERT INTO sources(label, type, name) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", row)
    return int(_rows(db, "SELECT n FROM sources WHERE label = ?", (label,))[0][0])


def _upsert(db: apsw.Connection, source: int, label: str, document: NewDocument) -> None:
    values = {
        "id": str(uuid.uuid5(_ID_NAMESPACE, f"{label}\0{document.source_id}")),
        "source": source,
        "source_id": document.source_id,
        "source_url": document.source_url,
        "title": document.title,
        "author": document.author,
        "created_at": document.created_at,
        "updated_at": document.updated_at,
        "content_type": document.content_type,
        "chunk_count": len(document.chunks),
        "version": document.version,
        "digest": document.digest,
        "metadata": json.dumps(document.metadata, ensure_ascii=False, allow_nan=False),
        "body": document.body,
    }
    if len(document.chunks) > MAX_CHUNKS:  # they would run into the next document's
        raise StoreError(f"a document has {len(document.chunks)} chunks; the store takes {MAX_CHUNKS} of one")
    n = _rows(db, _UPSERT, values)[0][0]
    first, last = _chunk_range(n)
    db.execute("DELETE FROM chunks WHERE rowid BETWEEN ? AND ?", (first, last))
    db.executemany(
        "INSERT INTO chunks(rowid, title, text) VALUES (?, ?, ?)",
        [(first + index, document.title or "", text) for index, text in enumerate(document.chunks)],
    )


def _delete(db: apsw.Connection, source: int, source_id: str) -> bool:
    sql = "DELETE FROM documents WHERE source = ? AND source_id = ? RETURNING n"
    rows = _rows(db, sql, (source, source_id))
    for (n,) in rows:
        db.execute("DELETE FROM chunks WHERE rowid BETWEEN ? AND ?", _chunk_range(n))
    return bool(rows)


def _mark(db: apsw.Connection, source: int, mark: SyncMark) -> None:
    db.execute(
        "UPDATE sources SET last_sync = coalesce(?, last_sync), last_error = ?, checkpoint = coalesce(?, checkpoint) "
        "WHERE n = ?",
        (mark.at, mark.error, mark.checkpoint, source),
    )


# --- what kept answers take in memory --------------------------------------------------------------------------------

_chunk_text = attrgetter("text")
_hit_texts = attrgetter("id", "source", "source_id", "title", "snippet", "source_url", "updated_at")


def _search_bytes(query: SearchQuery, answer: SearchAnswer) -> int:
    texts = [query.query, query.mode, query.source, query.since, *answer.warnings]
    texts += chain.from_iterable(map(_hit_texts, answer.hits))
    return ENTRY_BYTES + OBJECT_BYTES * len(answer.hits) + text_bytes(texts)


def _found_bytes(document_id: str, found: _Found | None) -> int:
    if found is None:
        return ENTRY_BYTES + text_bytes((document_id,))
    chunks = found.fields["chunks"]
    texts = [document_id, found.metadata, *map(_chunk_text, chunks)]
    texts += [value for value in found.fields.values() if value is not chunks]
    return ENTRY_BYTES + getsizeof(found.fields) + OBJECT_BYTES * len(chunks) + text_bytes(texts)


def _rows_bytes(rows: tuple[tuple[Any, ...], ...]) -> int:
    texts = [value for row in rows for value in row if isinstance(value, str)]
    return ENTRY_BYTES + OBJECT_BYTES * len(rows) + text_bytes(texts)

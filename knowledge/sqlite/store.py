"""The store in one SQLite file: documents, and their chunks in an FTS5 index, changed together in one transaction."""

import copy
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

import apsw
import trio

from knowledge import ranking
from knowledge.access import NOTHING_KNOWN, Reader, SourceAccess
from knowledge.embedding import MAX_QUERY_CHARACTERS, Embedder, Embedders, EmbeddingError, Model, checked
from knowledge.embedding.fusion import DEFAULT, Settings
from knowledge.embedding.queries import QueryVectors
from knowledge.sqlite import access as sees
from knowledge.sqlite import explaining, indexing, integrity, matching, reading, schema, upgrade, vectors, writing
from knowledge.sqlite.access import ALWAYS, Condition
from knowledge.sqlite.vectors import Held, Meant, Pending
from knowledge.store import (
    MODES,
    Applied,
    Batch,
    Document,
    EmbeddingsDisabled,
    Listed,
    SearchAnswer,
    SearchQuery,
    SkippedItem,
    SourceInfo,
    StoreError,
    StoreStats,
    SyncRunning,
    lateness,
)
from storage.answers import Answers
from storage.faults import Fault, Named, answer_text, fault_of, opening_text
from storage.lanes import Lane, at_once, open_lane, rows
from storage.watch import Watch, open_watch

if TYPE_CHECKING:
    from knowledge.postings.scores import Collection
    from knowledge.sqlite.postings import Postings
    from knowledge.sqlite.sidecar import Sidecar

T = TypeVar("T")

log = logging.getLogger("knowledge")

NAMED = Named("the store", "[db] path", "restore it from a backup, or remove it and sync again")

# Answers that an open store caches: some fifty documents of 10 KB with their chunks, or a hundred searches. With all
# stores of tenants open at once (`stores.MAX_OPEN`) that is 65 MiB.
MAX_KEPT_BYTES = 1024 * 1024

_INSTEAD = {"hybrid": "answered by keyword search", "semantic": "nothing can be found by meaning"}
_HYBRID_WARNING = "hybrid search needs an embedder and none is configured; answered by keyword search"
_NO_VECTORS = "no document has vectors yet (engine embed pending makes them)"
_NO_SUCH_SOURCE = "there is no such source; sources lists those there are"
_CUT_WARNING = "the query is too long; only its first words were searched for"


@asynccontextmanager
async def open_store(
    path: str | os.PathLike[str],
    *,
    create: bool = False,
    readonly: bool = False,
    configured: Mapping[str, str | None] | None = None,
    access: SourceAccess = NOTHING_KNOWN,
    readers: int = 2,
    busy_timeout_s: float = 5.0,
    max_bytes: int | None = None,
    language: str | None = None,
    every: Mapping[str, float] | None = None,
    embedders: Embedders | None = None,
    settings: Settings = DEFAULT,
) -> AsyncIterator["SqliteStore"]:
    """The store in the file `path`, open until the block ends; `create` makes the file and its folder when missing.

    `configured` maps each source label of the configuration to what is wrong with it, or None; `access` says which
    labels it gives their documents; `every` maps some of them to the seconds between two synchronisations, so that a
    search can warn of one that is late. `readers` is the number of searches that run in parallel. `busy_timeout_s`
    bounds the wait for another process's lock. `max_bytes` bounds the size of the store: a batch that would exceed it
    is not written. `embedders` make the vectors of queries, and `settings` are those of search by meaning. A store of
    an older version is upgraded in place, also with `readonly`; so is one whose words are indexed in another language
    than `language`, if there is one.
    Raises StoreError, naming the path, for a file that is missing, locked, damaged, not a store, or too new.
    """
    given = Path(path)
    # Links are resolved once, so that all connections, the lock and the log beside the file are of one file even if a
    # link changes meanwhile.
    create = create and not readonly
    file = await trio.to_thread.run_sync(schema.resolved, given, create)
    if create:
        with suppress(OSError):  # what is wrong is said below
            await trio.to_thread.run_sync(schema.appear, file)
    async with AsyncExitStack() as stack:
        try:
            writer = None
            if not readonly:
                writer = await stack.enter_async_context(
                    open_lane(file, create=create, reading=False, busy_timeout_s=busy_timeout_s)
                )
                await writer.run(partial(schema.prepare, file=given, create=create))
                await _upgrade(writer, language)
            lanes = [
                await stack.enter_async_context(
                    open_lane(file, create=False, reading=True, busy_timeout_s=busy_timeout_s)
                )
                for _ in range(readers)
            ]
            # Each one: a connection opens its log when it first reads; so a store has all its descriptors from now on.
            for lane in lanes:
                await lane.run(partial(schema.check, file=given))
            if writer is None and not await lanes[0].run(partial(_is_current, language=language)):
                async with open_lane(file, create=False, reading=False, busy_timeout_s=busy_timeout_s) as upgrading:
                    await _upgrade(upgrading, language)
            watch = await stack.enter_async_context(open_watch(file))
        except apsw.Error as error:
            fault = await trio.to_thread.run_sync(fault_of, error, file)
            raise StoreError(opening_text(fault, NAMED, given, error)) from error
        store = SqliteStore(
            file, writer, tuple(lanes), configured or {}, max_bytes, watch, access, every, embedders, settings
        )
        try:
            yield store
        finally:
            with trio.CancelScope(shield=True):  # a thread that makes postings ends after a few documents
                await store.words.close()
                await store.near.close()


def already_runs(source: str) -> str:
    """The text of SyncRunning."""
    return f"another sync of {source} is running; wait for it to end"


def is_locked(path: str | os.PathLike[str], source: str) -> bool:
    """Whether any process synchronises the source into the store at `path`, which is not opened.

    The kernel releases the lock of a process that is killed. Blocks for three system calls.
    """
    lock = writing.lock_path(Path(os.path.realpath(path)), source)
    if not lock.exists():
        return False
    try:
        os.close(writing.lock_file(lock, f"sync of {source}"))
    except SyncRunning:
        return True
    except StoreError:  # the sync itself will say why it cannot be taken
        return False
    return False


def _is_current(db: apsw.Connection, language: str | None) -> bool:
    return schema.is_current(db) and (language is None or indexing.languages(db) == (language,))


async def _upgrade(writer: Lane, language: str | None) -> None:
    """Bring a store of an older schema up to date, and its words into `language`.

    Each step is a call of its own, so that it can be cancelled.
    """
    if not await writer.run(schema.is_current):
        await writer.run(upgrade.begin)
        while await writer.run(upgrade.step):
            pass
    if language is not None and not await writer.run(partial(_is_current, language=language)):
        await writer.run(partial(indexing.begin, language=language))
        while await writer.run(indexing.step):
            pass


@asynccontextmanager
async def open_empty_store(embedders: Embedders | None = None) -> AsyncIterator["SqliteStore"]:
    """A store without documents, in memory and read-only: it stands in for a store whose file does not exist."""
    async with open_lane(":memory:", create=True, reading=False, busy_timeout_s=0) as lane:
        await lane.run(lambda db: rows(db, schema.SCHEMA))
        yield SqliteStore(Path(), None, (lane,), {}, embedders=embedders)


class _Words:
    """The postings of an open store, from the first search of a large one on; shared by its copies."""

    def __init__(self, file: Path, max_bytes: int | None) -> None:
        self._file, self._max_bytes = file, max_bytes
        self._lock = Lock()
        self._postings: Postings | None = None
        self._closed = False

    def of(self, db: apsw.Connection) -> "Collection | None":
        """Those of the snapshot of `db`, if they are known."""
        with self._lock:
            if self._postings is None:
                if self._file == Path() or not indexing.is_large(db):
                    return None
                from knowledge.sqlite.postings import Postings  # numpy, which most processes never need

                self._postings = Postings(self._file, self._max_bytes)
                if self._closed:  # in the thread of a search that was cancelled
                    self._postings.close()
        return self._postings.collection(db)

    async def close(self) -> None:
        """End the thread that makes them, if there is one. None begins after this."""
        await trio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
        if self._postings is not None:
            self._postings.close()

    async def wait(self) -> None:
        """Wait until none is making them."""
        if self._postings is not None:
            await trio.to_thread.run_sync(self._postings.wait)


class _Near:
    """The vectors of an open store, from the first search by meaning on; shared by its copies."""

    def __init__(self, file: Path, max_bytes: int | None) -> None:
        self._file, self._max_bytes = file, max_bytes
        self._lock = Lock()
        self._sidecar: Sidecar | None = None
        self._closed = False

    def sidecar(self) -> "Sidecar":
        """All of them."""
        with self._lock:
            if self._sidecar is None:
                from knowledge.sqlite.sidecar import Sidecar  # numpy, which most processes never need

                self._sidecar = Sidecar(self._file, self._max_bytes)
                if self._closed:  # in the thread of a search that was cancelled
                    self._sidecar.close()
            return self._sidecar

    def is_listing(self) -> bool:
        """Whether a thread is listing them."""
        return self._sidecar is not None and self._sidecar.is_listing()

    async def close(self) -> None:
        """End the thread that lists them, if there is one. None begins after this."""
        await trio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
        if self._sidecar is not None:
            self._sidecar.close()

    async def wait(self) -> None:
        """Wait until none is listing them."""
        if self._sidecar is not None:
            await trio.to_thread.run_sync(self._sidecar.wait)


class SqliteStore:
    """A `WritableStore` in one file; made by `open_store`, whose block it does not outlive.

    Answers of `search`, `get` and `sources` are cached until any process writes to the file. They depend on the query
    and the file alone: no clock, no model. Without a watch nothing is cached.
    """

    def __init__(
        self,
        file: Path,
        writer: Lane | None,
        readers: tuple[Lane, ...],
        configured: Mapping[str, str | None],
        max_bytes: int | None = None,
        watch: Watch | None = None,
        access: SourceAccess = NOTHING_KNOWN,
        every: Mapping[str, float] | None = None,
        embedders: Embedders | None = None,
        settings: Settings = DEFAULT,
    ) -> None:
        self._file = file
        self._writer = writer
        self._readers = readers
        self._configured = configured
        self._access = access
        self._max_bytes = max_bytes
        self._watch = watch
        self._every = dict(every or {})
        self._answers = Answers(MAX_KEPT_BYTES)
        self._embedders = embedders
        self._settings = settings
        self._queries = QueryVectors()
        self._asking = trio.Semaphore(embedders.at_once if embedders else 1)
        self.words, self.near = _Words(file, max_bytes), _Near(file, max_bytes)

    def with_sources(self, configured: Mapping[str, str | None], access: SourceAccess) -> "SqliteStore":
        """The same store with other configured sources."""
        same = copy.copy(self)
        same._configured, same._access = configured, access
        return same

    def with_settings(self, settings: Settings) -> "SqliteStore":
        """The same store that searches with other settings."""
        same = copy.copy(self)
        same._settings, same._answers = settings, Answers(MAX_KEPT_BYTES)
        return same

    def _seen(self, reader: Reader) -> Condition:
        return sees.condition(reader, self._access)

    async def _late(self, asked: str | None, reader: Reader) -> tuple[str, ...]:
        """A warning for each source, of those that a search is of, whose last synchronisation is too long ago."""
        now = datetime.now(UTC)
        said = [
            lateness(source, self._every.get(source.source), now)
            for source in await self._sources(reader, dict.fromkeys(self._configured))
            if asked in (None, source.source, *source.source.split(":", 1))
        ]
        return tuple(filter(None, said))

    async def search(self, query: SearchQuery, reader: Reader) -> SearchAnswer:
        """Find documents; see `Store`. Raises ValueError for an unknown mode, an invalid `since`, `until` or `path`."""
        ask, bytes_of = partial(self._search, query, reader), partial(reading.search_bytes, query)
        try:
            found: SearchAnswer = await self._answer(("search", query), reader, ask, bytes_of)
        except _ByWords as instead:  # not cached: the embedder may answer the next time
            found = instead.answer
        if any(self._access.distrusts(hit.source) for hit in found.hits):
            found = replace(
                found, hits=tuple(replace(hit, untrusted=self._access.distrusts(hit.source)) for hit in found.hits)
            )
        more: tuple[str, ...] = ()
        if query.source is not None and not found.hits:
            more = await self._unknown(query.source, reader)
        if self._every:  # of the clock: not cached
            more += await self._late(query.source, reader)
        return replace(found, warnings=(*found.warnings, *more)) if more else found

    async def _unknown(self, asked: str, reader: Reader) -> tuple[str, ...]:
        """A warning where no source that the reader may know of is called so. Hidden ones are as absent ones."""
        if any(asked in (each.source, *each.source.split(":", 1)) for each in await self.sources(reader)):
            return ()
        return (_NO_SUCH_SOURCE,)

    async def _search(self, query: SearchQuery, reader: Reader) -> SearchAnswer:
        if query.mode not in MODES:
            raise ValueError(f"search mode is {query.mode!r}; it must be one of {', '.join(MODES)}")
        conditions, seen = matching.conditions(query), self._seen(reader)
        if seen is not ALWAYS:
            conditions += (seen,)
        if query.mode == "semantic" and self._embedders is None:
            raise EmbeddingsDisabled(
                "mode 'semantic' requires embeddings; set [embedding] provider in the configuration"
            )
        match = ranking.parse_query(query.query, prefix=query.prefix)
        warnings: tuple[str, ...] = (_CUT_WARNING,) if match.cut else ()
        if query.limit < 1 or not (reading.is_text(query.source) and reading.is_text(query.path)):
            await trio.lowlevel.checkpoint()
            return SearchAnswer((), warnings)
        query = replace(query, limit=min(query.limit, 2**31))
        by_words = partial(self._by_words, query, conditions, bool(match.terms))
        if query.mode != "keyword":
            meant, why = await self._meant(query, seen, reader)
            warnings = why.warnings + warnings
            if meant is not None:
                found = await self._read(partial(self._by_meaning, query, conditions, meant))
                return replace(found, warnings=warnings)
            if not why.lasting:
                raise _ByWords(replace(await by_words(), warnings=warnings))
        if query.mode == "semantic":  # there are no vectors to compare it with
            about = partial(explaining.search, query=query, conditions=conditions, mode=query.mode)
            return SearchAnswer((), warnings, await self._read(about) if query.explain else None)
        return replace(await by_words(), warnings=warnings)

    async def _by_words(self, query: SearchQuery, conditions: Sequence[Condition], any_words: bool) -> SearchAnswer:
        if not any_words and not query.explain:
            await trio.lowlevel.checkpoint()
            return SearchAnswer(())
        return await self._read(
            partial(reading.search, query=query, conditions=conditions, settings=self._settings, words=self.words.of)
        )

    def _by_meaning(
        self, query: SearchQuery, conditions: Sequence[Condition], meant: Meant, db: apsw.Connection
    ) -> SearchAnswer:
        from knowledge.sqlite import meaning  # numpy, which most processes never need

        return meaning.search(db, query, conditions, meant, self.near.sidecar(), self._settings, self.words.of)

    async def _meant(self, query: SearchQuery, seen: Condition, reader: Reader) -> tuple[Meant | None, "_Why"]:
        """The query's vector; None where it has none, or the store has none to compare it with.

        Raises StoreError where the embedder fails and the query cannot be answered by words.
        """
        if self._embedders is None:
            await trio.lowlevel.checkpoint()
            return None, _Why((_HYBRID_WARNING,))
        if self._embedders.problem is not None and query.mode == "hybrid":
            await trio.lowlevel.checkpoint()
            return None, _Why((f"{self._embedders.problem}; {_INSTEAD['hybrid']}",))
        # Only what the reader may see is counted, and chooses the model: a number of the others is a fact about them.
        shown, held = await self._read(partial(vectors.held, seen=seen))
        answering = _answering(shown, held, self._embedders)
        if answering is None:
            return None, _Why((f"{_NO_VECTORS}; {_INSTEAD[query.mode]}",) if shown else ())
        one, embedder = answering
        try:
            with trio.fail_after(self._embedders.query_s):
                vector = await self._vector(embedder, query.query[:MAX_QUERY_CHARACTERS], reader)
        except (EmbeddingError, trio.TooSlowError) as error:
            late = f"the embedder did not answer within {self._embedders.query_s:g} s"
            problem = str(error) if isinstance(error, EmbeddingError) else late
            if query.mode == "semantic":
                raise StoreError(problem) from None
            return None, _Why((f"{problem}; {_INSTEAD['hybrid']}",), lasting=False)
        behind = shown - one.documents
        warning = f"{behind} of {shown} documents have no vectors yet; these are found by words only"
        return Meant(one, vector), _Why((warning,) if behind else ())

    async def _vector(self, embedder: Embedder, text: str, reader: Reader) -> bytes:
        """The vector of a query. Raises EmbeddingError."""
        vector = self._queries.get(reader, embedder.model, text)
        if vector is None:
            async with self._asking:
                (vector,) = checked(await embedder.embed((text,)), 1, embedder.model)
            self._queries.keep(reader, embedder.model, text, vector)
        return vector

    async def get(self, document_id: str, reader: Reader) -> Document | None:
        """The document, or None when there is none of that id."""
        bytes_of = partial(reading.found_bytes, document_id)
        found = await self._answer(("get", document_id), reader, partial(self._get, document_id, reader), bytes_of)
        if found is None:
            return None
        document: Document = found.document()
        return replace(document, untrusted=True) if self._access.distrusts(document.source) else document

    async def _get(self, document_id: str, reader: Reader) -> reading.CachedDocument | None:
        if not reading.is_text(document_id):
            await trio.lowlevel.checkpoint()
            return None
        return await self._read(partial(reading.get, document_id=document_id, seen=self._seen(reader)))

    async def sources(self, reader: Reader) -> tuple[SourceInfo, ...]:
        """Every source with documents or configuration, sorted by label; see `Store`.

        A source is healthy when its configuration is (`configured`) and its last synchronisation did not fail.
        """
        problems = self._configured
        if not isinstance(problems, dict):  # in a thread: a look at a source may wait for a disk, or a network's
            problems = await trio.to_thread.run_sync(dict, problems, abandon_on_cancel=True)
        return await self._sources(reader, problems)

    async def _sources(self, reader: Reader, problems: Mapping[str, str | None]) -> tuple[SourceInfo, ...]:
        ask = partial(self._read, partial(reading.sources, seen=self._seen(reader)))
        found = await self._answer(("sources",), reader, ask, reading.sources_bytes)
        there = {label: row for label, *row in found}
        labels = {label for label, row in there.items() if row[0]}
        # Whether some of its documents are hidden or there are none makes no difference.
        labels |= {label for label in self._configured if sees.shown(reader, self._access, label)}
        return tuple(
            self._source_info(
                label,
                problems.get(label),
                *there.get(label, (0, 0, None, None)),
                tells_all=sees.tells_all(reader, self._access, label),
            )
            for label in sorted(labels)
        )

    def _source_info(
        self,
        label: str,
        trouble: str | None,
        documents: int,
        chunks: int,
        last_sync: str | None,
        last_error: str | None,
        skipped: str | None = None,
        skipped_count: int | None = None,
        next_sync: str | None = None,
        embedded: int = 0,
        model: str | None = None,
        *,
        tells_all: bool,
    ) -> SourceInfo:
        if not tells_all:  # these may name items that are hidden
            last_error, skipped, skipped_count = last_error and "not shown to this reader", None, None
        problem = trouble or (f"the last sync failed: {last_error}" if last_error else None)
        configured = label in self._configured
        items = tuple(SkippedItem(*item) for item in json.loads(skipped or "[]"))
        return SourceInfo(
            source=label,
            document_count=documents,
            chunk_count=chunks,
            configured=configured,
            healthy=problem is None,
            notes=problem if problem or configured else "not in the configuration; its documents are still served",
            last_sync=last_sync,
            last_error=last_error,
            next_sync=next_sync if configured else None,
            embedded=embedded,
            embedding_model=model,
            skipped=items,
            skipped_more=(skipped_count or 0) - len(items),
            untrusted=self._access.distrusts(label),
        )

    async def documents(
        self, reader: Reader, *, after: tuple[str, str] | None = None, limit: int
    ) -> tuple[Listed, ...]:
        """Documents by source label, then source_id: the first `limit`, or those after a pair of the two."""
        label, source_id = after or ("", "")
        if not reading.is_text(label) or not reading.is_text(source_id):
            await trio.lowlevel.checkpoint()
            return ()
        work = partial(reading.listed, after=(label, source_id), limit=limit, seen=self._seen(reader))
        return await self._read(work)

    async def titled(self, source: str, title: str, reader: Reader, *, limit: int) -> tuple[str, ...]:
        """The ids of the documents of one source label that have exactly this title, sorted."""
        if not reading.is_text(source) or not reading.is_text(title):
            await trio.lowlevel.checkpoint()
            return ()
        match = ranking.title_prefix(title)
        seen = self._seen(reader)
        work = partial(reading.titled, source=source, title=title, match=match, limit=limit, seen=seen)
        return await self._read(work)

    async def titles(self, text: str, source: str | None, reader: Reader, *, limit: int) -> tuple[str, ...]:
        """Titles with all words of `text`, each a prefix, sorted; without words, any. `source` as in `SearchQuery`."""
        match = ranking.title_prefix(text)
        if not reading.is_text(source) or (text.strip() and not match):  # only punctuation: no title has such a word
            await trio.lowlevel.checkpoint()
            return ()
        seen = self._seen(reader)
        return await self._read(partial(reading.titles, match=match, source=source, limit=limit, seen=seen))

    async def revision(self, reader: Reader) -> int:
        """A number that changes when documents have changed, in this process or another one."""
        return await self._read(partial(reading.revision, reader=reader, configured=self._access))

    async def digests(self, ids: Sequence[str], reader: Reader) -> dict[str, str]:
        """A hash of each of these documents, by id; unknown ids are left out."""
        texts = [each for each in ids if reading.is_text(each)]
        return await self._read(partial(reading.digests, ids=texts, seen=self._seen(reader)))

    async def stats(self, reader: Reader) -> StoreStats:
        """Totals over all sources."""
        sources = await self.sources(reader)
        # The file's size is a fact about documents that the reader may not see.
        size = await trio.to_thread.run_sync(reading.size_on_disk, self._file) if reader.unlimited else None
        documents, chunks = sum(s.document_count for s in sources), sum(s.chunk_count for s in sources)
        model = next((s.embedding_model for s in sources if s.embedding_model), None)
        return StoreStats(documents, chunks, sum(s.embedded for s in sources), model, size, sources)

    async def checked(self) -> integrity.Integrity:
        """What is wrong with the file and with the vectors beside it. Reads all of both."""
        return await self._read(partial(integrity.check, file=self._file))

    async def export(self, reader: Reader) -> dict[str, Any]:
        """Everything as one JSON-able value, from one snapshot.

        `{"documents": [{id, source, source_id, source_url, title, updated_at, body}], "chunks": [{id, document_id,
        chunk_index, text}]}`; `updated_at` in whole seconds since the epoch; documents by source_id, then source;
        chunks by document_id, then index.
        """
        return await self._read(partial(reading.export, seen=self._seen(reader)))

    @asynccontextmanager
    async def sync_lock(self, source: str) -> AsyncIterator[None]:
        """Held while a source is synchronised. Raises SyncRunning when another holder has it, in any process.

        The documents that it has are labelled first, if the configuration has changed since they were.
        """
        # A lock of the kernel, not a row: it is released when the process that holds it ends, however that happens.
        self._require_writer()
        path = writing.lock_path(self._file, source)
        descriptor = await trio.to_thread.run_sync(writing.lock_file, path, f"sync of {source}")
        try:
            await self._label(source)
            yield
        finally:
            os.close(descriptor)

    async def _label(self, source: str) -> None:
        access = self._access.sources.get(source)
        if access is None or await self._read(
            partial(sees.is_labelled, source=source, access=access, read_at=self._access.at)
        ):
            return
        after: int | None = -1
        while after is not None:
            step = partial(sees.label_again, source=source, access=access, after=after)
            after = await _answered(self._require_writer().run(partial(at_once, step)), self._file)

    async def plan(self, source: str, at: str | None) -> None:
        """Note when a server synchronises `source` next, for `sources`; None: not by itself."""
        work = partial(at_once, partial(writing.plan, label=source, at=at))
        await _answered(self._require_writer().run(work), self._file)

    # --- vectors: what `knowledge.embed` asks ------------------------------------------------------------------------

    @asynccontextmanager
    async def embedding_lock(self) -> AsyncIterator[None]:
        """Held while vectors are made. Raises StoreError when another holder has it, in any process."""
        self._require_writer()
        path = self._file.with_name(f"{self._file.name}.0.lock")
        descriptor = await trio.to_thread.run_sync(writing.lock_file, path, "embedding of documents")
        try:
            yield
        finally:
            os.close(descriptor)

    async def model_number(self, model: Model) -> int:
        """The store's number of a model."""
        return await self._write(partial(vectors.model_row, model=model))

    async def pending(self, model: Model) -> int:
        """How many documents have no vectors of the model."""
        total, held = await self._read(vectors.held)
        return total - sum(each.documents for each in held if each.has(model))

    async def next_pending(self, model: int, after: int) -> Pending | None:
        """The first document behind number `after` that has no vectors of the model of this number."""
        work = partial(vectors.following, model=model, after=after)
        return await _answered(self._require_writer().run(work), self._file)

    async def write_vectors(self, model: int, pending: Pending, made: Mapping[bytes, bytes]) -> bool:
        """Write the vectors of one document; False where it has changed meanwhile.

        Raises StoreError, also where the store would be larger than `max_bytes`.
        """
        return await self._write(
            partial(vectors.write, model=model, pending=pending, vectors=made, room=self._max_bytes)
        )

    async def sweep_vectors(self, model: int) -> None:
        """Remove all that is not of this model, which every document has vectors of."""
        while await self._write(partial(vectors.sweep, keep=model)):
            pass

    async def remove_vectors(self) -> None:
        """Remove every vector."""
        await self._write(vectors.remove_all)

    async def _write(self, work: Callable[[apsw.Connection], T]) -> T:
        return await _answered(self._require_writer().run(partial(at_once, work)), self._file)

    async def versions(self, source: str) -> dict[str, str]:
        """The version of each document that the store holds of `source`, by source_id."""
        return await self._read(partial(reading.versions, source=source))

    async def stored_digests(self, source: str) -> dict[str, str]:
        """The hash of all that is stored of each document of `source`, by source_id."""
        return await self._read(partial(reading.stored_digests, source=source))

    async def checkpoint(self, source: str) -> str | None:
        """The connector's checkpoint of the last synchronisation that left one."""
        return await self._read(partial(reading.checkpoint, source=source))

    async def apply(self, batch: Batch) -> Applied:
        """Write a batch in one transaction. A document of a known source_id keeps its id.

        When cancelled, the batch is either rolled back or written as a whole. Raises StoreError, also for a batch with
        documents that would make the store larger than `max_bytes`.
        """

        return await self._write(
            partial(writing.apply, batch=batch, configured=self._access, max_bytes=self._max_bytes)
        )

    def _require_writer(self) -> Lane:
        if self._writer is None:
            raise StoreError("the store is open for reading only; open it for writing to change it")
        return self._writer

    async def _answer(
        self, question: Hashable, reader: Reader, ask: Callable[[], Awaitable[T]], bytes_of: Callable[[T], int]
    ) -> T:
        """The cached answer to `question` for a reader, else what `ask` returns, which is then cached."""
        question = (question, reader)
        # Take the version first. A write after this makes a new version, so at worst one query is repeated; taken
        # afterwards, a stale answer could be cached under the new version.
        version = None if self._watch is None else self._watch.version()
        if version is None:
            return await ask()
        kept = self._answers.get(version, question)
        if kept is not None:
            await trio.lowlevel.checkpoint()
            return cast(T, kept.answer)
        answer = await ask()
        self._answers.keep(version, question, answer, lambda answer: bytes_of(answer) + reading.reader_bytes(reader))
        return answer

    async def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        return await _answered(min(self._readers, key=_waiting).run(work), self._file)


class _ByWords(Exception):
    """A search that had to do without its embedder, for now."""

    def __init__(self, answer: SearchAnswer) -> None:
        self.answer = answer


@dataclass(frozen=True, slots=True)
class _Why:
    """What a search by meaning has to say; `lasting` until the store changes, so that its answer can be cached."""

    warnings: tuple[str, ...] = ()
    lasting: bool = True


def _answering(total: int, held: Sequence[Held], embedders: Embedders) -> tuple[Held, Embedder] | None:
    """The model that answers: the configured one where every document has its vectors, else that of most documents.

    So the vectors of the model before answer until those of the new one are complete.
    """
    known = [(each, embedder) for each in held if each.documents and (embedder := embedders.of(each.model))]
    current = [pair for pair in known if pair[1] is embedders.current and pair[0].has(pair[1].model)]
    complete = [pair for pair in current if pair[0].documents >= total]
    return next(iter((*complete, *sorted(known, key=lambda pair: (-pair[0].documents, pair not in current)))), None)


def _waiting(lane: Lane) -> int:
    return lane.waiting


async def _answered(answer: Awaitable[T], file: Path) -> T:
    try:
        return await answer
    except apsw.Error as error:
        fault = await trio.to_thread.run_sync(fault_of, error, file)
        if fault is Fault.OTHER:
            log.error("a store failed: %s: %s", type(error).__name__, error)
        raise StoreError(answer_text(fault, NAMED, error)) from error

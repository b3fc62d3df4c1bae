"""What a store of documents promises: the shapes of its answers and the `Store` protocol that backends satisfy."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from knowledge.access import Reader

Mode = Literal["keyword", "semantic", "hybrid"]
MODES: tuple[Mode, ...] = ("keyword", "semantic", "hybrid")

# What a backend must be able to keep of one document: SQLite takes 10**9 bytes as one text, four to a character.
MAX_BODY_CHARACTERS = 240_000_000
MAX_CHUNKS = 2**24


# The address of a document as a resource of MCP, without its id.
DOCUMENT_URI = "engine://documents/"

# Skipped items that a store keeps of each source, and the length of each of their texts: models read them.
MAX_SKIPPED = 20
MAX_SKIPPED_CHARACTERS = 256

# Passages of one hit, and tokens of all passages of an answer; a token is four bytes, as in chunking.
MAX_PASSAGES = 10
DEFAULT_PASSAGE_TOKENS = 4000
MAX_PASSAGE_TOKENS = 100_000


class StoreError(Exception):
    """The store cannot answer: locked, corrupt, not a store, or not there. The text says which and what to do."""


class SyncRunning(StoreError):
    """Another synchronisation of the source is under way, in this process or another one."""


class EmbeddingsDisabled(Exception):
    """Semantic search was requested and no embedder is configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """One search. `source` matches a whole label (`git:runbooks`), its NAME or its TYPE.

    `since` and `until`, both inclusive, are RFC 3339 in UTC; `path` is a pattern of source_ids (`knowledge.globs`).
    With `prefix`, the last word may be half typed.
    With `passages`, each hit has up to that many of its best chunks. All of an answer's together are at most
    `max_tokens` long: the best hits' come first, the one at the bound is cut, and those after it are left out.
    With `explain`, the answer and its hits say how they were found.
    """

    query: str
    mode: Mode = "keyword"
    limit: int = 12
    source: str | None = None
    since: str | None = None
    until: str | None = None
    path: str | None = None
    prefix: bool = False
    passages: int = 0
    max_tokens: int = DEFAULT_PASSAGE_TOKENS
    explain: bool = False


@dataclass(frozen=True, slots=True)
class Passage:
    """One of a hit's best chunks, or the part of it that `max_tokens` left."""

    text: str
    heading: str | None
    lines: tuple[int, int] | None
    page: int | None

    def cut(self, text: str) -> "Passage":
        """The same passage, with only the beginning of its text."""
        lines = self.lines and (self.lines[0], self.lines[0] + text.count("\n"))
        return Passage(text, self.heading, lines, self.page)


@dataclass(frozen=True, slots=True)
class ExplainedWord:
    """One word of a query: in how many chunks it stands, what it weighs, and whether the hit has it.

    Only chunks of documents that were searched are counted, and these not beyond `explaining.COUNTED`.
    """

    word: str
    df: int
    weight: float
    found: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """How a hit came by its score. What its mode has none of is None.

    `keyword_norm` and `vector_norm` are `bm25` and `cosine` divided by those of the best, `alpha` is the weight of the
    latter. `complete`: it has all words. `certain`: one of few with all words in one chunk, which are first.
    """

    words: tuple[ExplainedWord, ...] = ()
    bm25: float | None = None
    keyword_norm: float | None = None
    cosine: float | None = None
    vector_norm: float | None = None
    alpha: float | None = None
    complete: bool | None = None
    certain: bool | None = None


@dataclass(frozen=True, slots=True)
class ExplainedSearch:
    """How a search went: the mode that answered, and of the documents that may be read, how many were searched.

    `filters` says how many each filter alone leaves. `keyword` and `vector` are the numbers of candidates.
    """

    mode: Mode
    documents: int
    searched: int
    filters: tuple[tuple[str, int], ...]
    keyword: int | None = None
    vector: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One found document. `score` is in 0..1, higher is better; times are `YYYY-MM-DDTHH:MM:SSZ`.

    `heading`, `lines` (the first and the last, from 1) and `page` are those of its best chunk, in the body whose
    SHA-256 is `digest`; `uri` is its address as a resource of MCP. `passages` and `explain` are None unless the query
    wants them. `untrusted`: by the configuration of its source, strangers can write it.
    """

    id: str
    source: str
    source_id: str
    title: str | None
    score: float
    snippet: str
    source_url: str | None
    updated_at: str | None
    heading: str | None = None
    lines: tuple[int, int] | None = None
    page: int | None = None
    digest: str | None = None
    uri: str | None = None
    passages: tuple[Passage, ...] | None = None
    explain: Explained | None = None
    untrusted: bool = False


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """Hits, best first, in a deterministic order, and warnings about how they were found."""

    hits: tuple[Hit, ...]
    warnings: tuple[str, ...] = ()
    explain: ExplainedSearch | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    index: int
    text: str
    lines: tuple[int, int] | None = None
    heading: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document with its chunks. `id` is a UUID that survives re-synchronisation of one source and source_id.

    `lines` is None, or the lines of the stored body that `body` and `chunks` are of; `untrusted` is as of a `Hit`.
    """

    id: str
    source: str
    source_id: str
    source_url: str | None
    title: str | None
    author: str | None
    created_at: str | None
    updated_at: str | None
    content_type: str
    body: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    chunks: tuple[Chunk, ...] = ()
    lines: tuple[int, int] | None = None
    untrusted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One document as a list shows it. `size` is its body's, in bytes of UTF-8."""

    id: str
    source: str
    source_id: str
    title: str | None
    updated_at: str | None
    content_type: str
    size: int


@dataclass(frozen=True, slots=True)
class SkippedItem:
    """An item that the last synchronisation did not store, and why. Both texts are cut to `MAX_SKIPPED_CHARACTERS`."""

    source_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """One source label with its counts and state.

    `last_sync` is the end of the last synchronisation that succeeded; `skipped` are the first items that the last one
    did not store, `skipped_more` counts further ones. `embedded` chunks have vectors of `embedding_model`.
    """

    source: str
    document_count: int
    chunk_count: int
    configured: bool
    healthy: bool
    notes: str | None
    last_sync: str | None
    last_error: str | None = None
    next_sync: str | None = None
    embedded: int = 0
    embedding_model: str | None = None
    skipped: tuple[SkippedItem, ...] = ()
    skipped_more: int = 0
    untrusted: bool = False


class Store(Protocol):
    """The reading half, which the engine serves. Every method raises StoreError when the store cannot answer.

    Every answer is that of a store with only the documents that its `reader` may read.
    """

    async def search(self, query: SearchQuery, reader: Reader) -> SearchAnswer:
        """Find documents. Raises EmbeddingsDisabled for `semantic` without an embedder."""
        ...

    async def get(self, document_id: str, reader: Reader) -> Document | None:
        """The document, or None when there is none of that id."""
        ...

    async def sources(self, reader: Reader) -> tuple[SourceInfo, ...]:
        """Every source with documents or configuration, sorted by label.

        Without the sources whose labels the reader lacks, and those not configured of which it may read no document.
        """
        ...


class BrowsableStore(Store, Protocol):
    """What front ends also read: lists, titles, changes. Every method raises StoreError as `Store` does."""

    async def documents(
        self, reader: Reader, *, after: tuple[str, str] | None = None, limit: int
    ) -> tuple[Listed, ...]:
        """Documents by source label, then source_id: the first `limit`, or those after a pair of the two."""
        ...

    async def titled(self, source: str, title: str, reader: Reader, *, limit: int) -> tuple[str, ...]:
        """The ids of the documents of one source label that have exactly this title, sorted."""
        ...

    async def titles(self, text: str, source: str | None, reader: Reader, *, limit: int) -> tuple[str, ...]:
        """Titles with all words of `text`, each a prefix, sorted; without words, any. `source` as in `SearchQuery`."""
        ...

    async def revision(self, reader: Reader) -> int:
        """A number that changes when documents have changed, in this process or another one."""
        ...

    async def digests(self, ids: Sequence[str], reader: Reader) -> dict[str, str]:
        """A hash of each of these documents, by id; unknown ids are left out."""
        ...


# Where a chunk stands, as `places.Place`: its lines, its headings, its page.
Placed = tuple[int, int, str | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDocument:
    """One document to write. Times are in the store's form (`times.canonical_time`); `metadata` must be JSON-able.

    `version` is the connector's cheap mark for "the same as last time", empty when it cannot be trusted; `digest` is a
    hash of everything that is stored. `pages` are the places in `body` where its pages begin. `access` are the labels
    that the item came with; without any, it has those that the configuration gives it. `places` are those of the
    chunks: found by the store where they are None, while no other batch can be written.
    """

    source_id: str
    body: str
    chunks: Sequence[str]
    digest: str
    version: str = ""
    source_url: str | None = None
    title: str | None = None
    author: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    content_type: str = "text/plain"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    pages: Sequence[int] = ()
    access: frozenset[str] = frozenset()
    places: Sequence[Placed | None] | None = None


@dataclass(frozen=True, slots=True)
class SyncMark:
    """How a synchronisation ended, kept with its source: `at` when it succeeded, else `error`, without host paths.

    With neither, it is under way. `checkpoint` is the connector's, stored as it is; None keeps the previous one.
    `skipped` are the first of the items that were not stored, `skipped_count` is the number of all.
    """

    at: str | None = None
    error: str | None = None
    checkpoint: str | None = None
    skipped: Sequence[tuple[str, str]] = ()
    skipped_count: int = 0


def lateness(source: SourceInfo, every_s: float | None, now: datetime) -> str | None:
    """A sentence about a source that was not synchronised for twice its period, or None."""
    if every_s is None:
        return None
    if source.last_sync is None:
        return f"{source.source} was never synchronised"
    if (now - datetime.fromisoformat(source.last_sync)).total_seconds() > 2 * every_s:
        return f"{source.source} is out of date: its last sync was at {source.last_sync}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Changes to one source that are written together or not at all.

    `versions` renews the version marks of documents whose content did not change.
    """

    source: str
    upserts: Sequence[NewDocument] = ()
    deletes: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    mark: SyncMark | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """What a batch did, in documents and in chunks written."""

    upserted: int
    deleted: int
    chunks: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Totals of what the reader may see.

    `size_bytes` is what the store takes on disk, its write-ahead log included; None for a reader who may not see all.
    """

    documents: int
    chunks: int
    embedded: int
    embedding_model: str | None
    size_bytes: int | None
    sources: tuple[SourceInfo, ...]


class WritableStore(Store, Protocol):
    """The writing half, which synchronisation uses. Every method raises StoreError as the reading half does."""

    def sync_lock(self, source: str) -> AbstractAsyncContextManager[None]:
        """Held while a source is synchronised. Raises SyncRunning when another holder has it, in any process."""
        ...

    async def versions(self, source: str) -> dict[str, str]:
        """The version of each document that the store holds of `source`, by source_id."""
        ...

    async def stored_digests(self, source: str) -> dict[str, str]:
        """The hash of all that is stored of each document of `source`, by source_id."""
        ...

    async def checkpoint(self, source: str) -> str | None:
        """The connector's checkpoint of the last synchronisation that left one."""
        ...

    async def apply(self, batch: Batch) -> Applied:
        """Write a batch in one transaction. A document of a known source_id keeps its id."""
        ...

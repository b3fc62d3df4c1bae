"""Queries of a store, each in its connection's thread; and the sizes of their answers in the cache."""

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from sys import getsizeof
from typing import Any, NamedTuple

import apsw

from knowledge import ranking, times
from knowledge.access import Reader, SourceAccess
from knowledge.chunking import BYTES_PER_TOKEN
from knowledge.embedding.fusion import DEFAULT, Settings
from knowledge.sqlite import explaining, indexing, matching, vectors, visible
from knowledge.sqlite.access import Condition, changes
from knowledge.sqlite.schema import CHUNK_BITS, chunk_range
from knowledge.store import (
    DOCUMENT_URI,
    Chunk,
    Document,
    Explained,
    Hit,
    Listed,
    Passage,
    SearchAnswer,
    SearchQuery,
)
from storage.answers import ENTRY_BYTES, OBJECT_BYTES, text_bytes
from storage.lanes import rows

# Not joined in a search: there they would be evaluated before the limit, for every document that matches.
_CHUNK_TEXT = "SELECT text FROM chunks WHERE chunk = ?"
_PLACE = "SELECT first_line, last_line, page, heading FROM places WHERE chunk = ?"
_BODY = "SELECT sha256 FROM bodies WHERE n = ?"

# The best chunks of the documents that were found.
_PASSAGES = f"""
WITH matches AS (
    SELECT rowid AS chunk, {{rank}} AS rank FROM words
    WHERE words MATCH :any AND rowid >> {CHUNK_BITS} IN (SELECT value FROM json_each(:documents)) LIMIT -1
)
SELECT chunk FROM (
    SELECT chunk, row_number() OVER (PARTITION BY chunk >> {CHUNK_BITS} ORDER BY rank, chunk) AS place FROM matches
) WHERE place <= :passages ORDER BY chunk >> {CHUNK_BITS}, place
"""

_OF_SOURCE = "SELECT source_id, {} FROM documents WHERE source = (SELECT n FROM sources WHERE label = ?)"
_GET = """
SELECT d.n, d.id, s.label, d.source_id, d.source_url, d.title, d.author, d.created_at, d.updated_at,
    d.content_type, d.body, d.metadata
FROM documents d JOIN sources s ON s.n = d.source WHERE d.id = :id AND ({seen})
"""

_CHUNKS = """
SELECT c.chunk, c.text, p.first_line, p.last_line, p.heading FROM chunks c LEFT JOIN places p ON p.chunk = c.chunk
WHERE c.chunk BETWEEN ? AND ? ORDER BY c.chunk
"""

_SOURCES = """
SELECT s.label, count(d.n), coalesce(sum(d.chunk_count), 0), s.last_sync, s.last_error, y.skipped, y.skipped_count,
    y.next_sync
FROM sources s LEFT JOIN documents d ON d.source = s.n AND ({seen}) LEFT JOIN syncs y ON y.source = s.n GROUP BY s.n
"""

# Not as a comparison of rows, which would not use the index of labels.
_LIST = """
SELECT d.id, s.label, d.source_id, d.title, d.updated_at, d.content_type, octet_length(d.body)
FROM sources s JOIN documents d ON d.source = s.n
WHERE s.label >= :label AND (s.label > :label OR d.source_id > :source_id) AND ({seen})
ORDER BY s.label, d.source_id LIMIT :limit
"""

# Titles have no index of their own; the index of words leaves a few documents, and those without any text.
_WORDED = f"d.n IN (SELECT rowid >> {CHUNK_BITS} FROM words WHERE words MATCH :match)"
_TITLED = """
SELECT d.id FROM documents d JOIN sources s ON s.n = d.source
WHERE ({worded} OR d.chunk_count = 0) AND s.label = :source AND d.title = :title AND ({seen})
ORDER BY d.id LIMIT :limit
"""

# Sorted only where words narrow the choice: without any, the first titles found will do, and need no scan.
_ANY_TITLES = """
SELECT DISTINCT d.title FROM documents d JOIN sources s ON s.n = d.source
WHERE d.title <> '' AND (:source IS NULL OR :source IN (s.label, s.name, s.type)) AND ({seen}) LIMIT :limit
"""
_TITLES = f"""
SELECT DISTINCT d.title FROM documents d JOIN sources s ON s.n = d.source
WHERE {_WORDED} AND d.title <> '' AND (:source IS NULL OR :source IN (s.label, s.name, s.type))
    AND ({{seen}})
ORDER BY d.title LIMIT :limit
"""


def is_text(value: str | None) -> bool:
    """Whether SQLite can hold the text. It holds none with lone surrogates, so nothing stored equals one."""
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        return False
    return True


def parsed(db: apsw.Connection, query: SearchQuery) -> ranking.MatchQuery:
    """The words of the query, in the languages of the index."""
    return ranking.parse_query(query.query, prefix=query.prefix, languages=indexing.languages(db))


class Found(NamedTuple):
    """A document that is shown: its row as of `matching.ranked`, the chunk that it is shown by, its score.

    `passages` are the chunks that it may have as passages, the best first; None for those of the words.
    """

    row: tuple[Any, ...]
    chunk: int
    score: float
    passages: Sequence[int] | None = None
    explain: Explained | None = None


def search(
    db: apsw.Connection,
    query: SearchQuery,
    conditions: Sequence[Condition],
    settings: Settings = DEFAULT,
    words: matching.Words = matching.no_postings,
) -> SearchAnswer:
    """The best chunk of each document that matches, or several of them, the best first."""
    with db:  # one snapshot: the excerpts are of the chunks that were ranked
        match = parsed(db, query)
        found = matching.ranked(db, match, conditions, query.limit, settings, words) if match.any else []
        scores = ranking.scores([(bool(each.complete), each.rank) for each, _ in found])
        shown = [Found(row, each.chunk, score) for (each, row), score in zip(found, scores, strict=True)]
        if query.explain:
            explained = explaining.by_words(db, match, [each for each, _ in found], conditions)
            shown = [each._replace(explain=why) for each, why in zip(shown, explained, strict=True)]
        about = explaining.search(db, query, conditions, "keyword", len(found))
        answer = list(hits(db, query, match, conditions, shown))
    return SearchAnswer(tuple(answer), explain=about)


def hits(
    db: apsw.Connection,
    query: SearchQuery,
    match: ranking.MatchQuery,
    conditions: Sequence[Condition],
    found: Sequence[Found],
) -> tuple[Hit, ...]:
    """The hits for these documents, in their order. The caller holds the snapshot that they were found in."""
    passages = _passages(db, query, match, conditions, found) if query.passages > 0 else None
    shown = []
    for each in found:
        # Those of a document stand with the first of its hits.
        its_own = None if passages is None else tuple(passages.pop(each.row[0], ()))
        shown.append(_hit(db, each, match, its_own))
    return tuple(shown)


def _hit(db: apsw.Connection, found: Found, match: ranking.MatchQuery, passages: tuple[Passage, ...] | None) -> Hit:
    n, document_id, source, source_id, title, source_url, updated_at = found.row
    text = rows(db, _CHUNK_TEXT, (found.chunk,))[0][0]
    place = _place(db, found.chunk)
    body = rows(db, _BODY, (n,))
    return Hit(
        id=document_id,
        source=source,
        source_id=source_id,
        title=title,
        source_url=source_url,
        updated_at=updated_at,
        score=found.score,
        snippet=ranking.snippet(text, match.words),
        heading=place.heading,
        lines=place.lines,
        page=place.page,
        digest=body[0][0] if body else None,
        uri=DOCUMENT_URI + document_id,
        passages=passages,
        explain=found.explain,
    )


def _place(db: apsw.Connection, chunk: int) -> Passage:
    """Where a chunk stands, as a passage without its text."""
    for first, last, page, heading in rows(db, _PLACE, (chunk,)):
        return Passage("", heading, (first, last), page)
    return Passage("", None, None, None)


def _passages(
    db: apsw.Connection,
    query: SearchQuery,
    match: ranking.MatchQuery,
    conditions: Sequence[Condition],
    shown: Sequence[Found],
) -> dict[int, list[Passage]]:
    """The best chunks of each document, within `query.max_tokens` together: the first documents have theirs first."""
    documents = list(dict.fromkeys(each.row[0] for each in shown))
    chunks: dict[int, list[int]] = {}
    for each in shown:
        if each.passages is not None:
            chunks.setdefault(each.row[0], list(each.passages[: query.passages]))
    rest = [n for n in documents if n not in chunks]
    if rest:
        sql = _PASSAGES.format(rank=visible.rank(db, match, visible.visible(db, conditions), {}))
        bindings = {"any": match.any, "documents": json.dumps(rest), "passages": query.passages}
        for (chunk,) in rows(db, sql, bindings):
            chunks.setdefault(chunk >> CHUNK_BITS, []).append(chunk)
    found: dict[int, list[Passage]] = {}
    room = query.max_tokens * BYTES_PER_TOKEN
    for n in documents:
        for chunk in chunks.get(n, ()):
            if room <= 0:
                return found
            text = rows(db, _CHUNK_TEXT, (chunk,))[0][0]
            data = text.encode()
            passage = replace(_place(db, chunk), text=text)
            if len(data) > room:
                passage = passage.cut(data[:room].decode(errors="ignore").rstrip())
            room -= len(data)
            if passage.text:
                found.setdefault(n, []).append(passage)
    return found


@dataclass(frozen=True, slots=True)
class CachedDocument:
    """A document as the cache holds it: its metadata as JSON, because a reader may change the dict that it gets."""

    fields: Mapping[str, Any]  # all other fields
    metadata: str

    def document(self) -> Document:
        return Document(**self.fields, metadata=json.loads(self.metadata))


def get(db: apsw.Connection, document_id: str, seen: Condition) -> CachedDocument | None:
    """One document with its chunks."""
    with db:  # one snapshot: a document and its chunks are of the same version
        found = rows(db, _GET.format(seen=seen.sql), {"id": document_id, **seen.bindings})
        if not found:
            return None
        n, *values, metadata = found[0]
        chunks = rows(db, _CHUNKS, chunk_range(n))
    names = ("id", "source", "source_id", "source_url", "title", "author", "created_at", "updated_at", "content_type")
    fields = dict(zip((*names, "body"), values, strict=True))
    first, _ = chunk_range(n)
    fields["chunks"] = tuple(
        Chunk(row - first, text, None if start is None else (start, end), heading)
        for row, text, start, end, heading in chunks
    )
    return CachedDocument(fields, metadata)


def sources(db: apsw.Connection, seen: Condition) -> tuple[tuple[Any, ...], ...]:
    """A row for every source that is stored: label, documents, chunks, last sync, last error, skipped items and how
    many, next sync, chunks with vectors and the model of these.
    """
    with db:
        model, embedded = vectors.embedded(db, seen)
        found = rows(db, _SOURCES.format(seen=seen.sql), dict(seen.bindings))
    return tuple((*row, embedded.get(row[0], 0), model if row[0] in embedded else None) for row in found)


def listed(db: apsw.Connection, after: tuple[str, str], limit: int, seen: Condition) -> tuple[Listed, ...]:
    """Documents by source label, then source_id: the first ones after that pair."""
    bindings = {"label": after[0], "source_id": after[1], "limit": limit, **seen.bindings}
    names = ("id", "source", "source_id", "title", "updated_at", "content_type", "size")
    sql = _LIST.format(seen=seen.sql)
    return tuple(Listed(**dict(zip(names, row, strict=True))) for row in rows(db, sql, bindings))


def titled(
    db: apsw.Connection, source: str, title: str, match: str | None, limit: int, seen: Condition
) -> tuple[str, ...]:
    """The ids of documents of a source label with exactly this title, whose words `match` finds."""
    bindings = {"match": match, "source": source, "title": title, "limit": limit, **seen.bindings}
    sql = _TITLED.format(worded=_WORDED if match else "1", seen=seen.sql)
    return tuple(row[0] for row in rows(db, sql, bindings))


def titles(db: apsw.Connection, match: str | None, source: str | None, limit: int, seen: Condition) -> tuple[str, ...]:
    """Titles whose words `match` finds, or any."""
    sql = (_TITLES if match else _ANY_TITLES).format(seen=seen.sql)
    bindings = {"match": match, "source": source, "limit": limit, **seen.bindings}
    return tuple(sorted(row[0] for row in rows(db, sql, bindings)))


def digests(db: apsw.Connection, ids: list[str], seen: Condition) -> dict[str, str]:
    """The hash of each of these documents that exists, by id."""
    sql = f"""
        SELECT d.id, d.digest FROM documents d JOIN sources s ON s.n = d.source
        WHERE d.id IN (SELECT value FROM json_each(:ids)) AND ({seen.sql})
    """
    return dict(rows(db, sql, {"ids": json.dumps(ids), **seen.bindings}))


def revision(db: apsw.Connection, reader: Reader, configured: SourceAccess) -> int:
    """A number that changes with the documents that the reader sees."""
    text = repr(changes(db, reader, configured))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:6])


def versions(db: apsw.Connection, source: str) -> dict[str, str]:
    """The version of each document of a source label, by source_id."""
    return dict(rows(db, _OF_SOURCE.format("version"), (source,)))


def stored_digests(db: apsw.Connection, source: str) -> dict[str, str]:
    """The hash of each document of a source label, by source_id."""
    return dict(rows(db, _OF_SOURCE.format("digest"), (source,)))


def checkpoint(db: apsw.Connection, source: str) -> str | None:
    """The last checkpoint of a source label."""
    found = rows(db, "SELECT checkpoint FROM sources WHERE label = ?", (source,))
    return found[0][0] if found else None


def export(db: apsw.Connection, seen: Condition) -> dict[str, Any]:
    """As `SqliteStore.export`."""
    keys = ("id", "source", "source_id", "source_url", "title", "updated_at", "body")
    sql = f"""
        SELECT d.n, d.id, s.label, d.source_id, d.source_url, d.title, d.updated_at, d.body
        FROM documents d JOIN sources s ON s.n = d.source WHERE {seen.sql} ORDER BY d.source_id, s.label
    """
    with db:
        found = rows(db, sql, dict(seen.bindings))
        texts = rows(db, "SELECT chunk, text FROM chunks")
    ids = {row[0]: row[1] for row in found}
    documents = [dict(zip(keys, row[1:], strict=True)) for row in found]
    for document in documents:
        document["updated_at"] = times.to_timestamp(document["updated_at"])
    chunks = [
        _export_chunk(ids[row >> CHUNK_BITS], row & ((1 << CHUNK_BITS) - 1), text)
        for row, text in texts
        if row >> CHUNK_BITS in ids
    ]
    chunks.sort(key=lambda chunk: (chunk["document_id"], chunk["chunk_index"]))
    return {"documents": documents, "chunks": chunks}


def _export_chunk(document_id: str, index: int, text: str) -> dict[str, Any]:
    chunk_id = str(uuid.uuid5(uuid.UUID(document_id), str(index)))
    return {"id": chunk_id, "document_id": document_id, "chunk_index": index, "text": text}


def size_on_disk(file: Path) -> int:
    """The bytes of the file, which is no link, its log and what is beside it; 0 if there is none."""
    size = 0
    for path in (file, *(file.with_name(file.name + suffix) for suffix in ("-wal", vectors.SUFFIX, indexing.SUFFIX))):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


# --- sizes of cached answers -----------------------------------------------------------------------------------------

_chunk_text = attrgetter("text")
_chunk_heading = attrgetter("heading")
_hit_texts = attrgetter(
    "id", "source", "source_id", "title", "snippet", "source_url", "updated_at", "heading", "digest", "uri"
)
_passage_texts = attrgetter("text", "heading")
# What an object takes with the pair of its lines, beside its texts.
_PLACED_BYTES = OBJECT_BYTES + 128


def reader_bytes(reader: Reader) -> int:
    """The reader as a part of the question."""
    if reader.unlimited:
        return 0
    conditions = (*reader.labels, *reader.sources)
    return sum(getsizeof(each) + text_bytes(each) for each in conditions)


def search_bytes(query: SearchQuery, answer: SearchAnswer) -> int:
    texts = [query.query, query.mode, query.source, query.since, query.until, query.path, *answer.warnings]
    texts += chain.from_iterable(map(_hit_texts, answer.hits))
    passages = [passage for hit in answer.hits for passage in hit.passages or ()]
    texts += chain.from_iterable(map(_passage_texts, passages))
    words = [word for hit in answer.hits if hit.explain for word in hit.explain.words]
    texts += [each.word for each in words]
    objects = len(answer.hits) * (1 + query.explain) + len(passages) + len(words)
    return ENTRY_BYTES + _PLACED_BYTES * objects + text_bytes(texts)


def found_bytes(document_id: str, found: CachedDocument | None) -> int:
    if found is None:
        return ENTRY_BYTES + text_bytes((document_id,))
    chunks = found.fields["chunks"]
    texts = [document_id, found.metadata, *map(_chunk_text, chunks), *map(_chunk_heading, chunks)]
    texts += [value for value in found.fields.values() if value is not chunks]
    return ENTRY_BYTES + getsizeof(found.fields) + _PLACED_BYTES * len(chunks) + text_bytes(texts)


def sources_bytes(found: tuple[tuple[Any, ...], ...]) -> int:
    texts = [value for row in found for value in row if isinstance(value, str)]
    return ENTRY_BYTES + OBJECT_BYTES * len(found) + text_bytes(texts)

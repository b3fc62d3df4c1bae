"""Changes of a store, in the writer's thread and inside one transaction; and the lock of a sync."""

import fcntl
import hashlib
import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

import apsw

from knowledge import places, textfiles
from knowledge.access import PUBLIC, Access, SourceAccess
from knowledge.sqlite import access, indexing, vectors
from knowledge.sqlite.access import Changed
from knowledge.sqlite.indexing import Worded
from knowledge.sqlite.schema import chunk_range
from knowledge.store import (
    MAX_CHUNKS,
    MAX_SKIPPED,
    MAX_SKIPPED_CHARACTERS,
    Applied,
    Batch,
    NewDocument,
    Placed,
    StoreError,
    SyncMark,
    SyncRunning,
)
from storage.lanes import rows
from storage.metering import give_way

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

_NUMBER = "SELECT n FROM documents WHERE source = ? AND source_id = ?"

# Index pages that one sync may rewrite at its end: some 8 MB.
_MERGE_PAGES = 2000

# Ids are derived, not random: a store that is lost and filled again gives its documents the same ids.
_ID_NAMESPACE = uuid.UUID("8f0d8f0e-3a0c-5d0e-9c56-6b6e6f776c65")


def apply(db: apsw.Connection, batch: Batch, configured: SourceAccess, max_bytes: int | None = None) -> Applied:
    """Write a batch. Raises StoreError where the store would be larger than `max_bytes`."""
    given = configured.sources.get(batch.source)
    source = _source_row(db, batch.source, given)
    changed, worded = Changed(source), dict[int, Worded]()
    for document in batch.upserts:
        give_way()
        labels = document.access or (given or PUBLIC).labels_of(document.source_id)
        n = _upsert(db, changed, batch.source, document, labels)
        worded[n] = Worded(n, document.title, document.chunks)
    if batch.upserts:
        access.note_written(db, source, None if given is None else given.digest)
    deleted = sum(_delete(db, changed, source_id) for source_id in batch.deletes)
    changed.write(db)
    db.executemany(
        "UPDATE documents SET version = ? WHERE source = ? AND source_id = ?",
        [(version, source, source_id) for source_id, version in batch.versions.items()],
    )
    if batch.mark:
        _mark(db, source, batch.mark)
    indexing.index(db, worded.values(), indexing.language(db))
    if batch.mark and (batch.mark.at or batch.mark.error):
        # The end of a sync. Every batch left a segment of the index that each query would merge anew: one instead
        # of twelve halves the time of a search (measured). Bounded, so that a large index is merged bit by bit.
        db.execute("INSERT INTO words(words, rank) VALUES ('merge', ?)", (-_MERGE_PAGES,))
        indexing.sweep(db)
    if batch.upserts and max_bytes is not None and (used := _written_bytes(db)) > max_bytes:
        raise StoreError(
            f"the store would hold {used} bytes; its limit is {max_bytes} (quota stored_bytes); the documents "
            "before these were written, these were not"
        )
    return Applied(len(batch.upserts), deleted, sum(len(document.chunks) for document in batch.upserts))


def _source_row(db: apsw.Connection, label: str, given: Access | None) -> int:
    kind, colon, name = label.partition(":")
    row = (label, kind, name) if colon else (label, "", label)
    made = rows(db, "INSERT INTO sources(label, type, name) VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING n", row)
    if made and given is not None:  # it has no documents yet: none lacks its labels
        access.note_labelled(db, made[0][0], given.digest)
    return int(rows(db, "SELECT n FROM sources WHERE label = ?", (label,))[0][0])


def _upsert(db: apsw.Connection, changed: Changed, label: str, document: NewDocument, labels: frozenset[str]) -> int:
    """Write a document but for its words, and return its number."""
    values = {
        "id": str(uuid.uuid5(_ID_NAMESPACE, f"{label}\0{document.source_id}")),
        "source": changed.source,
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
    if len(document.chunks) > MAX_CHUNKS:  # their rows would overlap those of the next document
        raise StoreError(f"a document has {len(document.chunks)} chunks; the store takes {MAX_CHUNKS} of one")
    there = rows(db, _NUMBER, (changed.source, document.source_id))
    for (n,) in there:
        changed.note(access.labels_of(db, n))
    n = int(rows(db, _UPSERT, values)[0][0])
    changed.note(labels)
    access.put(db, n, labels, own=bool(document.access))
    if there:
        _forget_chunks(db, n)
    write_chunks(db, n, document.chunks)
    place(db, n, document.body, document.content_type, document.chunks, document.pages, found=document.places)
    return n


def _written_bytes(db: apsw.Connection) -> int:
    db.execute("INSERT INTO words(words) VALUES ('flush')")  # else what FTS5 has collected is not in any page yet
    return vectors.used_bytes(db)


def write_chunks(db: apsw.Connection, n: int, chunks: Sequence[str]) -> None:
    """Write the chunks of document `n`, which has none. `indexing.index` writes their words."""
    first, _ = chunk_range(n)
    db.executemany("INSERT INTO chunks(chunk, text) VALUES (?, ?)", enumerate(chunks, first))
    vectors.forget(db, n)


def place(
    db: apsw.Connection,
    n: int,
    body: str,
    content_type: str,
    chunks: Sequence[str],
    pages: Sequence[int] = (),
    found: Sequence[Placed | None] | None = None,
) -> None:
    """Write where the chunks of document `n`, which have no place, stand, and the hash of its body.

    `found` is where they stand, if that is known.
    """
    first, _ = chunk_range(n)
    if found is None:
        found = places.places(body, chunks, markdown=textfiles.is_markdown(content_type), pages=pages)
    db.executemany(
        "INSERT INTO places(chunk, first_line, last_line, heading, page) VALUES (?, ?, ?, ?, ?)",
        [(first + index, *each) for index, each in enumerate(found) if each is not None],
    )
    db.execute("INSERT OR REPLACE INTO bodies(n, sha256) VALUES (?, ?)", (n, hashlib.sha256(body.encode()).hexdigest()))


def _delete(db: apsw.Connection, changed: Changed, source_id: str) -> bool:
    found = rows(db, _NUMBER, (changed.source, source_id))
    for (n,) in found:
        changed.note(access.labels_of(db, n))
        db.execute("DELETE FROM documents WHERE n = ?", (n,))
        db.execute("DELETE FROM labels WHERE n = ?", (n,))
        _forget_chunks(db, n)
        indexing.note(db, (n,))
        db.execute("DELETE FROM bodies WHERE n = ?", (n,))
        vectors.forget(db, n)
    return bool(found)


def _forget_chunks(db: apsw.Connection, n: int) -> None:
    db.execute("DELETE FROM chunks WHERE chunk BETWEEN ? AND ?", chunk_range(n))
    db.execute("DELETE FROM places WHERE chunk BETWEEN ? AND ?", chunk_range(n))
    indexing.forget(db, n)


def _mark(db: apsw.Connection, source: int, mark: SyncMark) -> None:
    if mark.at is None and mark.error is None:
        db.execute("UPDATE sources SET checkpoint = coalesce(?, checkpoint) WHERE n = ?", (mark.checkpoint, source))
        return
    kept = [[_shown(text) for text in item] for item in mark.skipped[:MAX_SKIPPED]]
    db.execute(
        "INSERT INTO syncs(source, skipped, skipped_count) VALUES (?, ?, ?) "
        "ON CONFLICT DO UPDATE SET skipped = excluded.skipped, skipped_count = excluded.skipped_count",
        (source, json.dumps(kept, ensure_ascii=False), max(mark.skipped_count, len(mark.skipped))),
    )
    db.execute(
        "UPDATE sources SET last_sync = coalesce(?, last_sync), last_error = ?, checkpoint = coalesce(?, checkpoint) "
        "WHERE n = ?",
        (mark.at, mark.error, mark.checkpoint, source),
    )


def _shown(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_SKIPPED_CHARACTERS else text[: MAX_SKIPPED_CHARACTERS - 1] + "…"


def plan(db: apsw.Connection, label: str, at: str | None) -> None:
    """Write when a server synchronises a source next; None: not by itself."""
    sql = "INSERT INTO syncs(source, next_sync) VALUES (?, ?) ON CONFLICT DO UPDATE SET next_sync = excluded.next_sync"
    db.execute(sql, (_source_row(db, label, None), at))


def lock_file(path: Path, work: str) -> int:
    """A descriptor that holds the lock of some work until it is closed. Raises SyncRunning where it is taken."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreError(f"the lock of the {work} cannot be taken: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise SyncRunning(f"another {work} is running; wait for it to end") from error
    return descriptor


def lock_path(file: Path, source: str) -> Path:
    """The lock of synchronisations of a source, `file` being the store's."""
    digest = hashlib.sha256(source.encode("utf-8", "backslashreplace")).hexdigest()[:12]
    return file.with_name(f"{file.name}.{digest}.lock")

"""Vectors in a store: which documents have some, of which model; writing and removing them. In a connection's thread.

A document's chunks are cut into windows (`knowledge.embedding.windows`). A window points to the vector of its text, and
equal texts share one, so that text which did not change is not embedded again.
"""

import hashlib
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import apsw

from knowledge import places, textfiles
from knowledge.embedding import Model
from knowledge.embedding.windows import MAX_WINDOWS, RECIPE, parts, window
from knowledge.sqlite import indexing
from knowledge.sqlite.access import ALWAYS, Condition
from knowledge.sqlite.schema import chunk_range
from knowledge.store import StoreError
from storage.lanes import rows
from storage.metering import give_way

# What the name of a store's file has behind it in that of its sidecar (`sidecar.py`).
SUFFIX = ".vectors"

# Numbers of windows leave gaps of random size: a sidecar that knows a number which is still there is of this store, and
# not of one that was restored from a backup and then went another way.
_GAP = 1 << 20
# Rows that one transaction removes of a model whose vectors are not needed any more.
_REMOVED_AT_ONCE = 5000

_PENDING = """
SELECT d.n, d.digest, d.title, b.sha256 FROM documents d LEFT JOIN bodies b ON b.n = d.n
WHERE d.n > ? AND d.n NOT IN (SELECT document FROM embedded WHERE model = ?) ORDER BY d.n LIMIT 1
"""
_CHUNKS = """
SELECT c.chunk, c.text, p.heading FROM chunks c LEFT JOIN places p ON p.chunk = c.chunk
WHERE c.chunk BETWEEN ? AND ? ORDER BY c.chunk
"""


@dataclass(frozen=True, slots=True)
class Pending:
    """A document that has no vectors of a model. `windows` are pairs of a chunk's row and a text's hash.

    `texts` are those that no vector is known of, by their hash.
    """

    n: int
    version: tuple[str, str | None]
    windows: Sequence[tuple[int, bytes]]
    texts: Mapping[bytes, str]


@dataclass(frozen=True, slots=True)
class Held:
    """One model that a store has vectors of, and of how many documents.

    `recipe` says of which windows (`windows.RECIPE`): those of an older one answer until the new ones are there.
    """

    n: int
    model: Model
    documents: int
    mark: bytes
    recipe: int

    def has(self, model: Model) -> bool:
        """Whether these are the vectors that the model makes now."""
        return (self.model, self.recipe) == (model, RECIPE)


@dataclass(frozen=True, slots=True)
class Meant:
    """What a query means: its vector, of a model whose vectors the store has."""

    held: Held
    vector: bytes


def held(db: apsw.Connection, seen: Condition = ALWAYS) -> tuple[int, tuple[Held, ...]]:
    """How many documents there are that meet the condition, and the models, those of most of them first."""
    among = "documents d"
    if seen is not ALWAYS:
        among += f" JOIN sources s ON s.n = d.source WHERE {seen.sql}"
    total = rows(db, f"SELECT count(*) FROM {among}", dict(seen.bindings))[0][0]
    counted = "embedded" if seen is ALWAYS else f"(SELECT * FROM embedded WHERE document IN (SELECT d.n FROM {among}))"
    found = rows(
        db,
        "SELECT m.n, count(e.document), m.mark, m.recipe, m.name, m.dims, m.weights FROM models m "
        f"LEFT JOIN {counted} e ON e.model = m.n GROUP BY m.n ORDER BY count(e.document) DESC, m.n",
        dict(seen.bindings),
    )
    return total, tuple(Held(n, Model(*model), documents, mark, recipe) for n, documents, mark, recipe, *model in found)


def model_row(db: apsw.Connection, model: Model) -> int:
    """The row of a model, with windows of this version, made if it is new."""
    values = (model.name, model.dims, model.weights, RECIPE)
    found = rows(db, "SELECT n FROM models WHERE (name, dims, weights, recipe) = (?, ?, ?, ?)", values)
    if not found:
        sql = "INSERT INTO models(name, dims, weights, recipe, mark) VALUES (?, ?, ?, ?, randomblob(16)) RETURNING n"
        found = rows(db, sql, values)
    return int(found[0][0])


def following(db: apsw.Connection, model: int, after: int) -> Pending | None:
    """The next document that has no vectors of the model."""
    # Outside of a transaction, which would hold up writers: `write` notices what changes meanwhile.
    for n, digest, title, sha256 in rows(db, _PENDING, (after, model)):
        texts = {}
        found = []
        for chunk, text in windows(db, n, title):
            hashed = hashlib.sha256(text.encode()).digest()
            texts[hashed] = text
            found.append((chunk, hashed))
        known = [hashed for hashed in texts if _vector(db, model, hashed) is not None]
        for hashed in known:
            del texts[hashed]
        return Pending(n, (digest, sha256), found, texts)
    return None


def windows(db: apsw.Connection, n: int, title: str | None) -> Iterator[tuple[int, str]]:
    """The windows of a document, each with its chunk."""
    cut, count = list[_Cut](), 0
    for chunk, text, heading in rows(db, _CHUNKS, chunk_range(n)):
        give_way()
        own = None if heading is None else str(heading)
        found = parts(str(text), title, own)[: MAX_WINDOWS - count]
        cut.append(_Cut(int(str(chunk)), str(text), own, found))
        count += len(found)
        if count == MAX_WINDOWS:
            break
    below = _below(db, n, cut)
    for each in cut:
        for index, part in enumerate(each.parts):
            yield each.chunk, window(part, title, below.get((each.chunk, index), each.heading))


class _Cut(NamedTuple):
    """A chunk, the headings above its beginning, and its parts."""

    chunk: int
    text: str
    heading: str | None
    parts: Sequence[str]


def _below(db: apsw.Connection, n: int, cut: Sequence[_Cut]) -> dict[tuple[int, int], str | None]:
    """By chunk and index, the headings above the parts that do not begin a chunk: they may have passed others."""
    if all(len(each.parts) < 2 for each in cut):
        return {}
    for body, content_type in rows(db, "SELECT body, content_type FROM documents WHERE n = ?", (n,)):
        if textfiles.is_markdown(content_type):
            spans = dict[tuple[int, int], tuple[int, int]]()
            for each, whole in zip(cut, places.spans(body, [each.text for each in cut]), strict=True):
                give_way()
                for index, span in enumerate(places.spans(each.text, each.parts)):
                    if whole is not None and span is not None and index:
                        spans[each.chunk, index] = (whole[0] + span[0], whole[0] + span[1])
            # Chunks may overlap.
            keys = sorted(spans, key=lambda key: spans[key])
            return dict(zip(keys, places.headings(body, map(spans.__getitem__, keys)), strict=True))
    return {}


def _vector(db: apsw.Connection, model: int, hashed: bytes) -> int | None:
    found = rows(db, "SELECT n FROM vectors WHERE model = ? AND text = ?", (model, hashed))
    return found[0][0] if found else None


def write(
    db: apsw.Connection, model: int, pending: Pending, vectors: Mapping[bytes, bytes], room: int | None = None
) -> bool:
    """Write the vectors of one document; False where the document has changed since, or is gone.

    Raises StoreError where the store would take more than `room` bytes.
    """
    sql = "SELECT d.digest, b.sha256 FROM documents d LEFT JOIN bodies b ON b.n = d.n WHERE d.n = ?"
    if rows(db, sql, (pending.n,)) != [pending.version] or not rows(db, "SELECT 1 FROM models WHERE n = ?", (model,)):
        return False
    db.executemany(
        "INSERT INTO vectors(model, text, vector) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        [(model, hashed, vector) for hashed, vector in vectors.items()],
    )
    known = [(chunk, _vector(db, model, hashed)) for chunk, hashed in pending.windows]
    if any(vector is None for _, vector in known):  # swept since they were looked up
        return False
    last = rows(db, "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'windows'")[0][0]
    first = last + random.randrange(1, _GAP)
    _forget(db, pending.n, model)
    db.executemany(
        "INSERT INTO windows(n, model, chunk, vector) VALUES (?, ?, ?, ?)",
        [(first + index, model, chunk, vector) for index, (chunk, vector) in enumerate(known)],
    )
    db.execute("INSERT INTO embedded(model, document) VALUES (?, ?)", (model, pending.n))
    if room is not None and (used := used_bytes(db)) > room:
        raise StoreError(
            f"with more vectors the store would hold {used} bytes; its limit is {room} (quota stored_bytes)"
        )
    return True


def used_bytes(db: apsw.Connection) -> int:
    """The bytes of pages in use, the current transaction's included, and of the files beside them.

    Free pages are reused before the file grows.
    """
    pages = int((db.pragma("page_count") - db.pragma("freelist_count")) * db.pragma("page_size"))
    return pages + sum(beside_bytes(db, suffix) for suffix in (SUFFIX, indexing.SUFFIX))


def beside_bytes(db: apsw.Connection, suffix: str) -> int:
    """The bytes of a file beside the store; 0 where there is none."""
    try:
        return os.stat(db.filename + suffix).st_size
    except OSError:
        return 0


def forget(db: apsw.Connection, n: int) -> None:
    """A document has changed or is gone: what is known of its meaning is not true any more."""
    for (model,) in rows(db, "SELECT n FROM models"):
        _forget(db, n, model)


def _forget(db: apsw.Connection, n: int, model: int) -> None:
    db.execute("DELETE FROM windows WHERE chunk BETWEEN ? AND ? AND model = ?", (*chunk_range(n), model))
    db.execute("DELETE FROM embedded WHERE model = ? AND document = ?", (model, n))


def sweep(db: apsw.Connection, keep: int) -> bool:
    """Remove some of what no search needs: other models', and vectors of texts that are gone. False when none is left.

    To be called when every document has vectors of the model `keep`.
    """
    removed = 0
    for table in ("windows", "vectors"):
        sql = f"DELETE FROM {table} WHERE n IN (SELECT n FROM {table} WHERE model <> ? LIMIT {_REMOVED_AT_ONCE})"
        db.execute(sql, (keep,))
        removed += db.changes()
    if not removed:
        db.execute("DELETE FROM embedded WHERE model <> ?", (keep,))
        db.execute("DELETE FROM models WHERE n <> ?", (keep,))
        gone = "SELECT n FROM vectors WHERE n NOT IN (SELECT vector FROM windows)"
        db.execute(f"DELETE FROM vectors WHERE n IN ({gone} LIMIT {_REMOVED_AT_ONCE})")
        removed = db.changes()
    return removed > 0


def remove_all(db: apsw.Connection) -> None:
    """Remove every vector, so that all documents are pending."""
    for table in ("windows", "embedded", "vectors", "models"):
        db.execute(f"DELETE FROM {table}")


def embedded(db: apsw.Connection, seen: Condition) -> tuple[str | None, dict[str, int]]:
    """By source label, how many chunks of documents that meet the condition have vectors; and of which model.

    It is the model of most documents.
    """
    first = next((each for each in held(db, seen)[1] if each.documents), None)
    sql = f"""
        SELECT s.label, sum(d.chunk_count) FROM embedded e JOIN documents d ON d.n = e.document
        JOIN sources s ON s.n = d.source
        WHERE e.model = :model AND ({seen.sql})
        GROUP BY s.n
    """
    if first is None:
        return None, {}
    return first.model.name, dict(rows(db, sql, {"model": first.n, **seen.bindings}))

"""What the store is measured beside: an FTS5 table, a matrix of numpy. And the vectors of a store, read and written."""

import re
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw
import trio

from benchmarks.aims.store.corpus import Page
from knowledge.embedding import Model
from knowledge.embedding.arrays import Floats, np, npt, packed_rows
from knowledge.sqlite.schema import CHUNK_BITS
from knowledge.sync import BATCH_DOCUMENTS

DIMS = 256
# Vectors lie about so many directions, as texts are about topics; `SPREAD` is how far from them.
TOPICS, SPREAD = 400, 0.8
_AT_ONCE = 50_000

_WORD = re.compile(r"[^\W_]+")
_TABLE = "CREATE VIRTUAL TABLE bare USING fts5(title, text, tokenize = 'unicode61 remove_diacritics 2')"
_SEARCH = "SELECT rowid FROM bare WHERE bare MATCH ? ORDER BY bm25(bare) LIMIT ?"

Integers = npt.NDArray[np.int64]


# ---- words --------------------------------------------------------------------------------------------------------


class BareIndex:
    """An index of words with the settings of SQLite that the store has."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def insert(self, documents: Sequence[Page]) -> float:
        """The CPU seconds of inserting their chunks, in transactions of as many documents as those of a sync."""
        began_s = time.process_time()
        for start in range(0, len(documents), BATCH_DOCUMENTS):
            batch = documents[start : start + BATCH_DOCUMENTS]
            with self._db:
                rows = ((page.title, chunk) for page in batch for chunk in page.chunks)
                self._db.executemany("INSERT INTO bare(title, text) VALUES (?, ?)", rows)
        return time.process_time() - began_s

    def ask(self, texts: Sequence[str], limit: int) -> list[float]:
        """CPU microseconds of each question as `OR` of its words, ranked by `bm25()`; after one that is not counted."""
        taken = []
        for text in (texts[-1], *texts):
            began = time.process_time_ns()
            expression = " OR ".join(f'"{word}"' for word in dict.fromkeys(_WORD.findall(text)))
            list(self._db.execute(_SEARCH, (expression, limit)))
            taken.append((time.process_time_ns() - began) / 1e3)
        return taken[1:]


@contextmanager
def bare_index(path: Path) -> Iterator[BareIndex]:
    """The index in a file, which is made when there is none."""
    db = apsw.Connection(str(path))
    try:
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "NORMAL")
        if not db.table_exists(None, "bare"):
            db.execute(_TABLE)
        yield BareIndex(db)
    finally:
        db.close()


# ---- vectors ------------------------------------------------------------------------------------------------------


class DrawnEmbedder:
    """Vectors that are drawn by a hash of the text: a search is measured without the time of a model."""

    model = Model("drawn", DIMS)

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """As `Embedder`."""
        await trio.lowlevel.checkpoint()
        return _packed(texts)


_CENTRES = np.random.default_rng(0).standard_normal((TOPICS, DIMS), np.float32)


def _packed(texts: Sequence[str]) -> list[bytes]:
    seeds = [zlib.crc32(text.encode()) for text in texts]
    noise = np.stack([np.random.default_rng(seed).standard_normal(DIMS, np.float32) for seed in seeds])
    return packed_rows(_CENTRES[[seed % TOPICS for seed in seeds]] + np.float32(SPREAD) * noise)


def vectors_of(texts: Sequence[str]) -> list[Floats]:
    """What `DrawnEmbedder` answers for texts."""
    return [np.frombuffer(vector, np.float32) for vector in _packed(texts)]


def matrix_of(path: Path) -> Floats:
    """All vectors of a store."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        rows = db.execute("SELECT vector FROM vectors ORDER BY n")
        found = b"".join(vector for (vector,) in rows if isinstance(vector, bytes))
    finally:
        db.close()
    return np.frombuffer(found, np.float32).reshape(-1, DIMS)


def ask_matrix(matrix: Floats, texts: Sequence[str], wanted: int) -> list[float]:
    """CPU microseconds of each question as one product with all vectors and a choice of the largest."""
    queries = vectors_of(texts)
    taken = []
    for vector in (queries[-1], *queries):
        began = time.process_time_ns()
        cosines = matrix @ vector
        best = np.argpartition(cosines, -wanted)[-wanted:]
        best[np.argsort(-cosines[best])]
        taken.append((time.process_time_ns() - began) / 1e3)
    return taken[1:]


def nearest(documents: Integers, matrix: Floats, vector: Floats, count: int) -> set[int]:
    """The nearest documents, where row `i` of the matrix is of document `documents[i]`."""
    cosines = matrix @ vector
    found: dict[int, None] = {}
    for place in np.argsort(-cosines):
        found[int(documents[place])] = None
        if len(found) == count:
            break
    return set(found)


def fill_windows(path: Path, model: int, count: int) -> tuple[Integers, Floats]:
    """Give the documents of a store `count` windows of drawn vectors, in turns.

    Returns the document of each, whose `source_id` is a number, and its vector.
    """
    drawn = np.random.default_rng(0)
    matrix = np.empty((count, DIMS), np.float32)
    with apsw.Connection(str(path)) as db:
        rows = db.execute("SELECT n, source_id FROM documents ORDER BY n")
        known = [(int(str(n)), int(str(source_id))) for n, source_id in rows]
        for start in range(0, count, _AT_ONCE):
            end = min(start + _AT_ONCE, count)
            noise = np.float32(SPREAD) * drawn.standard_normal((end - start, DIMS), np.float32)
            packed = packed_rows(_CENTRES[drawn.integers(0, TOPICS, end - start)] + noise)
            matrix[start:end] = np.frombuffer(b"".join(packed), np.float32).reshape(-1, DIMS)
            db.executemany(
                "INSERT INTO vectors(n, model, text, vector) VALUES (?, ?, ?, ?)",
                [(n, model, n.to_bytes(8), vector) for n, vector in enumerate(packed, start + 1)],
            )
            db.executemany(
                "INSERT INTO windows(n, model, chunk, vector) VALUES (?, ?, ?, ?)",
                [(n + 1, model, known[n % len(known)][0] << CHUNK_BITS, n + 1) for n in range(start, end)],
            )
        db.execute("INSERT INTO embedded(model, document) SELECT ?, n FROM documents", (model,))
    return np.array([known[n % len(known)][1] for n in range(count)], np.int64), matrix

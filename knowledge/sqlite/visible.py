"""Ranks as they are in a store that has only the documents which a reader may read.

FTS5's `bm25()` counts words over all rows, so a rank would tell how often a word stands in documents that are hidden.
For a reader from whom some are hidden, `visible_bm25()` takes its place: the same sums, of what the reader may read. It
takes three times the time (measured).
"""

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import apsw

from knowledge import ranking
from knowledge.sqlite.access import Condition
from knowledge.sqlite.schema import CHUNK_BITS
from storage.lanes import rows

# A word in the title counts as four in the text: titles are short and say what a document is about. A form counts as
# half its word: the word itself ranks higher.
WEIGHTS = (4.0, 1.0, 2.0, 0.5)
_BY_ALL = f"bm25(words, {', '.join(map(str, WEIGHTS))})"
_BY_VISIBLE = "visible_bm25(words)"

# Those of FTS5's `bm25()`.
_K1, _B = 1.2, 0.75
_LEAST_IDF = 1e-6

# What is kept of readers, for each connection: a byte a document.
_KEPT_READERS = 4


@dataclass(frozen=True, slots=True)
class Visible:
    """What a reader may read: documents, by their number, and the chunks and tokens that these have."""

    flags: bytes
    chunks: int
    tokens: int

    def count(self, db: apsw.Connection, expression: str) -> int:
        """How many of its rows an expression matches."""
        flags = self.flags
        found = rows(db, f"SELECT rowid >> {CHUNK_BITS} FROM words WHERE words MATCH ?", (expression,))
        return sum([flags[n] for (n,) in found])


def idf(count: int, chunks: int) -> float:
    """How much a phrase in `count` of the chunks weighs, as in FTS5."""
    return max(_LEAST_IDF, math.log((chunks - count + 0.5) / (count + 0.5)))


@dataclass(slots=True)
class _Ranks:
    """The function `visible_bm25()` of one connection, and what it is computed from: that of the query under way."""

    flags: bytes = b""
    idfs: Sequence[float] = ()
    average: float = 1.0
    known: OrderedDict[str, tuple[tuple[int, int], Visible | None]] = field(default_factory=OrderedDict)

    def rank(self, row: "apsw.FTS5ExtensionApi", /, *_: object) -> float:
        """The operations of FTS5's, in its order, so that the last bit is the same."""
        if not self.flags[row.rowid >> CHUNK_BITS]:
            return 0.0  # will not be shown
        if row.phrase_count != len(self.idfs):
            raise RuntimeError("an expression has other phrases than were counted")
        length = _K1 * (1 - _B + _B * float(row.column_size(-1)) / self.average)
        score = 0.0
        for phrase, weight in enumerate(self.idfs):
            frequency = 0.0
            for column, places in zip(WEIGHTS, row.phrase_locations(phrase), strict=True):
                frequency += column * len(places)
            score += weight * ((frequency * (_K1 + 1.0)) / (frequency + length))
        return -1.0 * score


def frequency(row: "apsw.FTS5ExtensionApi", /, *_: object) -> float:
    """How much the first phrase of an expression counts in a row."""
    return sum(column * len(places) for column, places in zip(WEIGHTS, row.phrase_locations(0), strict=True))


_ranks: WeakKeyDictionary[apsw.Connection, _Ranks] = WeakKeyDictionary()
_ranks_lock = threading.Lock()  # connections are of many threads


def _ranks_of(db: apsw.Connection) -> _Ranks:
    with _ranks_lock:
        found = _ranks.get(db)
        if found is None:
            found = _ranks[db] = _Ranks()
            db.register_fts5_function("visible_bm25", found.rank)
            db.register_fts5_function("frequency", frequency)
    return found


def frequencies(db: apsw.Connection, phrase: str, most: int) -> list[tuple[int, float]] | None:
    """The rows that have a phrase, in ascending order, and how much it counts in each; None where these are too many.

    Of all rows, hidden ones too.
    """
    sql = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)"
    if rows(db, sql, (phrase, most + 1))[0][0] > most:
        return None
    _ranks_of(db)
    found = rows(db, "SELECT rowid, frequency(words) FROM words WHERE words MATCH ? ORDER BY rowid", (phrase,))
    return [(row, weighed) for row, weighed in found]


def visible(db: apsw.Connection, conditions: Sequence[Condition]) -> Visible | None:
    """What the reader may read; None where nothing is hidden. Inside a transaction.

    `conditions` are those of a search: its filters have no effect.
    """
    seen = [each for each in conditions if not each.name]
    if not seen:
        return None
    ranks = _ranks_of(db)
    key = json.dumps([(each.sql, {k: v for k, v in each.bindings.items() if k != "now"}) for each in seen])
    version = (int(db.pragma("data_version")), db.total_changes())
    kept = ranks.known.get(key)
    if kept is None or kept[0] != version:
        kept = ranks.known[key] = (version, _read(db, seen))
    ranks.known.move_to_end(key)
    while len(ranks.known) > _KEPT_READERS:
        ranks.known.popitem(last=False)
    return kept[1]


def _read(db: apsw.Connection, seen: Sequence[Condition]) -> Visible | None:
    sql = "SELECT d.n, d.chunk_count FROM documents d JOIN sources s ON s.n = d.source WHERE "
    bindings = {name: value for each in seen for name, value in each.bindings.items()}
    found = rows(db, sql + " AND ".join(f"({each.sql})" for each in seen), bindings)
    chunks = sum(count for _, count in found)
    every, last = rows(db, f"SELECT count(*), coalesce(max(id) >> {CHUNK_BITS}, 0) FROM words_docsize")[0]
    if chunks == every:
        return None
    flags = bytearray(max(last, *(n for n, _ in found), 0) + 1)
    for n, _ in found:
        flags[n] = 1
    sizes = rows(db, f"SELECT id >> {CHUNK_BITS}, sz FROM words_docsize")
    tokens = sum(token_count(size) for n, size in sizes if flags[n])
    return Visible(bytes(flags), chunks, tokens)


def token_count(size: bytes) -> int:
    """The tokens of a row: of each column a number, in groups of seven bits."""
    total = value = 0
    for byte in size:
        value = value << 7 | byte & 127
        if byte < 128:
            total += value
            value = 0
    return total


def rank(db: apsw.Connection, match: ranking.MatchQuery, visible: Visible | None, counts: Mapping[str, int]) -> str:
    """SQL for the rank of a row that matches `match.any`, until the next call. `counts` are those known already."""
    if visible is None:
        return _BY_ALL
    ranks = _ranks_of(db)
    found = dict(counts)
    for phrase in match.phrases:
        if phrase not in found:
            found[phrase] = visible.count(db, phrase)
    ranks.flags = visible.flags
    ranks.average = visible.tokens / visible.chunks if visible.chunks else 1.0
    ranks.idfs = [idf(found[phrase], visible.chunks) for phrase in match.phrases]
    return _BY_VISIBLE

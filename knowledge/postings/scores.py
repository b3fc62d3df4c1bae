"""Ranks from postings: the sums of FTS5's `bm25()`, by its operations in its order, so to the last bit the same.

A segment's chunks that are not true any more (of documents that were changed or deleted) have no effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from knowledge.embedding.arrays import np, npt
from knowledge.postings.segment import PER_UNIT, Doubles, Flags, Integers, Segment, key_of

# Those of FTS5's `bm25()`.
K1, B = 1.2, 0.75


class Posted(NamedTuple):
    """The rows of a collection that have a phrase, each once, and how much it counts there."""

    rows: Integers
    frequencies: Doubles


class Collection:
    """Segments as one: row `i` is a chunk, and the rows of a document are neighbours. It does not change."""

    def __init__(self, segments: Sequence[Segment], live: Sequence[Flags], chunk_bits: int) -> None:
        self.segments, self.parts_live = tuple(segments), tuple(live)
        self.chunks: Integers = _joined([each.chunks for each in segments], np.int64)
        self.sizes: Doubles = _joined([each.sizes for each in segments], np.int64).astype(np.float64)
        self.live: Flags = _joined([each.view(np.bool_) for each in live], np.bool_)
        self.all_live = bool(self.live.all())
        self.offsets = [0]
        for each in segments:
            self.offsets.append(self.offsets[-1] + len(each.chunks))
        documents = self.chunks >> chunk_bits
        new = np.diff(documents, prepend=-1) != 0
        # A document that was written again stands in two segments, maybe next to each other.
        new[[start for start in self.offsets[:-1] if start < len(new)]] = True
        self.starts: Integers = np.flatnonzero(new)
        self.places: Integers = np.cumsum(new) - 1  # of each row, its document in `documents`
        self.documents: Integers = documents[self.starts]
        self.count = int(self.live.sum())
        self.tokens = int(self.sizes[self.live].sum())
        self._lengths: tuple[float, Doubles] = (0.0, self.sizes)

    @cached_property
    def _by_chunk(self) -> tuple[Integers, Integers]:
        rows = np.flatnonzero(self.live)
        rows = rows[np.argsort(self.chunks[rows])]
        return self.chunks[rows], rows

    def lengths(self, average: float) -> Doubles:
        """What `bm25()` adds to a frequency, for each row."""
        known = self._lengths  # of one average: replaced as a whole, as threads share a collection
        if known[0] != average:
            known = self._lengths = (average, K1 * ((1 - B) + (B * self.sizes) / average))
        return known[1]

    def count_any(self, words: Sequence[str]) -> int:
        """How many rows have one of these words."""
        found = [self.word(word).rows for word in words]
        if len(found) < 2:
            return sum(map(len, found))
        has = np.zeros(len(self.chunks), bool)
        for each in found:
            has[each] = True
        return int(np.count_nonzero(has))

    def word(self, word: str) -> Posted:
        """Where a word stands."""
        key = key_of(word)
        rows, frequencies = list[Integers](), list[Doubles]()
        for segment, start in zip(self.segments, self.offsets, strict=False):
            if (posted := segment.postings(key)) is not None:
                rows.append(posted[0].astype(np.int64) + start)
                frequencies.append(posted[1].astype(np.float64) * PER_UNIT)
        return self._alive(Posted(_joined(rows, np.int64), _joined(frequencies, np.float64)))

    def given(self, chunks: Sequence[int], frequencies: Sequence[float]) -> Posted | None:
        """The rows of chunks; None where one of them is not known."""
        known, rows = self._by_chunk
        wanted = np.array(chunks, np.int64)
        places = np.searchsorted(known, wanted)
        if len(wanted) and (places[-1] >= len(known) or not np.array_equal(known[places], wanted)):
            return None
        return Posted(rows[places], np.array(frequencies, np.float64))

    def among(self, posted: Posted, flags: bytes) -> Posted:
        """Of documents alone whose flag is set; `flags` has one for each number in the store."""
        known = np.frombuffer(flags, np.bool_)
        # Documents that are gone still have rows here, and maybe higher numbers than those that are left.
        shown = known[np.minimum(self.documents, len(known) - 1)] & (self.documents < len(known))
        kept = shown[self.places[posted.rows]]
        return Posted(posted.rows[kept], posted.frequencies[kept])

    def _alive(self, posted: Posted) -> Posted:
        if self.all_live:
            return posted
        kept = self.live[posted.rows]
        return Posted(posted.rows[kept], posted.frequencies[kept])

    def scores(self, phrases: Sequence[Posted], idfs: Sequence[float], average: float) -> Doubles:
        """The negated rank of each row; 0 for one that has none of the phrases."""
        found = np.zeros(len(self.chunks))
        lengths = self.lengths(average)
        for (rows, frequencies), weight in zip(phrases, idfs, strict=True):
            found[rows] += weight * ((frequencies * (K1 + 1.0)) / (frequencies + lengths[rows]))
        return found


@dataclass(frozen=True, slots=True)
class Best:
    """Documents, by their place in the collection, the best first: those that have all words, then by their score."""

    places: Integers
    scores: Doubles
    complete: Flags


def of_documents(collection: Collection, scores: Doubles) -> Doubles:
    """The score of each document's best chunk."""
    return np.maximum.reduceat(scores, collection.starts) if len(scores) else scores


def with_all(collection: Collection, terms: Sequence[Sequence[Posted]]) -> Flags:
    """Which documents have each term, in any of its phrases."""
    found = np.ones(len(collection.documents), bool)
    for term in terms:
        has = np.zeros(len(collection.documents), bool)
        for posted in term:
            has[collection.places[posted.rows]] = True
        found &= has
    return found


def best(scores: Doubles, complete: Flags, most: int) -> Best:
    """The first `most` of the documents that have a score, and no others; of equals at the end, any."""
    kept = list[Integers]()
    for group in (complete, ~complete):
        places = np.flatnonzero(group & (scores > 0))
        room = most - sum(map(len, kept))
        if len(places) > room:
            places = places[np.argpartition(-scores[places], room - 1)[:room]] if room > 0 else places[:0]
        kept.append(places[np.argsort(-scores[places], kind="stable")])
    places = np.concatenate(kept)
    return Best(places, scores[places], complete[places])


def chunk(collection: Collection, place: int, scores: Doubles) -> int:
    """The chunk that gave a document its score: the first of equals."""
    first = int(collection.starts[place])
    last = int(collection.starts[place + 1]) if place + 1 < len(collection.starts) else len(scores)
    return int(collection.chunks[first + int(np.argmax(scores[first:last]))])


def _joined(arrays: Sequence[npt.NDArray[np.generic]], kind: type[np.generic]) -> npt.NDArray:  # type: ignore[type-arg]
    return np.concatenate(arrays) if arrays else np.zeros(0, kind)

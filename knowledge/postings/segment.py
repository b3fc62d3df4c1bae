"""A segment: the words of some chunks, each with the chunks that have it and how much it counts there."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from knowledge.embedding.arrays import np, npt

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# What an occurrence counts in each column of the index, in units of its lightest: title, text, and the forms of both.
UNITS = (8, 2, 4, 1)
PER_UNIT = 0.5

# A segment is written when it has this many chunks or words: 60 MB at most while it is made, for ordinary documents.
SEGMENT_CHUNKS = 16_384
SEGMENT_WORDS = 3_000_000

_ROWS_OF_16_BITS = 1 << 16


class Collision(Exception):
    """Two words have the same hash."""


def key_of(word: str) -> int:
    """The hash by which a segment knows a word."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())


@dataclass(frozen=True, slots=True)
class Segment:
    """The chunks in ascending order, with the words that each has; and the postings of word `i`, by its hash.

    Those are `rows[starts[i] : starts[i + 1]]`, places in `chunks`, with as many `units` each.
    """

    chunks: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.uint32]
    keys: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]
    rows: npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
    units: npt.NDArray[np.uint8] | npt.NDArray[np.uint32]

    def postings(self, key: int) -> tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.unsignedinteger]] | None:
        """The rows that have a word, and its units in each."""
        place = int(np.searchsorted(self.keys, np.uint64(key)))
        if place == len(self.keys) or int(self.keys[place]) != key:
            return None
        first, last = int(self.starts[place]), int(self.starts[place + 1])
        return self.rows[first:last], self.units[first:last]


class _Numbers(dict[str, int]):
    """A number for each word."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


class Builder:
    """Makes a segment of chunks that are added in ascending order."""

    def __init__(self) -> None:
        self._chunks = array("q")
        self._numbers = _Numbers()
        self._words = array("I")
        self._lengths = array("I")  # of each chunk four: its columns

    @property
    def chunks(self) -> int:
        return len(self._chunks)

    @property
    def full(self) -> bool:
        """Whether the segment has enough. Whole documents only: the last one may make it larger."""
        return len(self._chunks) >= SEGMENT_CHUNKS or len(self._words) >= SEGMENT_WORDS

    def numbered(self, words: Sequence[str]) -> "array[int]":
        """Words as numbers."""
        return array("I", map(self._numbers.__getitem__, words))

    def add(self, chunk: int, columns: "Sequence[array[int]]") -> int:
        """Add a chunk, the words of its columns as numbers. Returns how many it has."""
        lengths = [len(words) for words in columns]
        for words in columns:
            self._words.extend(words)
        self._chunks.append(chunk)
        self._lengths.extend(lengths)
        return sum(lengths)

    def made(self) -> Segment:
        """The segment. Raises Collision."""
        chunks = len(self._chunks)
        lengths = np.array(self._lengths, np.int64)
        # A word, its chunk and the column, in one number.
        pairs = np.array(self._words, np.int64) << 34
        pairs |= np.repeat(np.arange(4 * chunks, dtype=np.int64), lengths)
        pairs.sort()
        first = np.flatnonzero(np.diff(pairs >> 2, prepend=-1))
        weights = np.array(UNITS, np.uint32)[pairs & 3]
        units = np.add.reduceat(weights, first) if len(first) else weights
        pairs = pairs[first] >> 2
        counts = np.bincount(pairs >> 32, minlength=len(self._numbers)).astype(np.int64)
        keys = np.fromiter(map(key_of, self._numbers), np.uint64, len(self._numbers))
        if len(np.unique(keys)) != len(keys):
            raise Collision
        # The words in the order of their keys, with their postings.
        order = np.argsort(keys)
        before = np.cumsum(counts) - counts
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts[order])))
        moved = np.repeat(before[order] - starts[:-1], counts[order]) + np.arange(len(pairs))
        rows, units = (pairs[moved] & 0xFFFFFFFF).astype(np.uint32), units[moved]
        small = not len(units) or int(units.max()) < 256
        sizes = lengths.reshape(-1, 4).sum(1).astype(np.uint32)
        return Segment(
            np.array(self._chunks, np.int64),
            sizes,
            keys[order],
            starts,
            rows.astype(np.uint16) if chunks <= _ROWS_OF_16_BITS else rows,
            units.astype(np.uint8) if small else units,
        )

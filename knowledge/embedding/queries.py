"""Vectors of recent queries, so that pages of one answer, and the same words in another mode, cost no model. Pure."""

from collections import OrderedDict
from collections.abc import Hashable

from knowledge.embedding import Model

# A hundred queries of a sentence, with vectors of 384 numbers.
MAX_BYTES = 256 * 1024
_BESIDE = 200  # of each entry


class QueryVectors:
    """The most recently used ones, up to MAX_BYTES.

    `asker` is part of the key: how fast a search answers must not say what other readers searched for.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        # Invariant: `_bytes` is the sum of all entries; the least recently used one is the first.
        self._kept: OrderedDict[tuple[Hashable, Model, str], bytes] = OrderedDict()
        self._bytes = 0

    def get(self, asker: Hashable, model: Model, text: str) -> bytes | None:
        """The vector, if it is kept."""
        key = (asker, model, text)
        if (found := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
        return found

    def keep(self, asker: Hashable, model: Model, text: str, vector: bytes) -> None:
        """Keep it; the least recently used ones make room."""
        key = (asker, model, text)
        self._bytes -= _size(key[2], self._kept.pop(key, None))
        self._kept[key] = vector
        self._bytes += _size(text, vector)
        while self._bytes > self._max_bytes:
            (_, _, oldest), gone = self._kept.popitem(last=False)
            self._bytes -= _size(oldest, gone)


def _size(text: str, vector: bytes | None) -> int:
    return 0 if vector is None else 4 * len(text) + len(vector) + _BESIDE

"""The cache of a store's answers, valid until a connection writes to the file; bounded in bytes."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from sys import getsizeof
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

# An entry without its texts: its key, its places in the order and in the table. An upper bound (measured: 420).
ENTRY_BYTES = 512
# An object of a few fields in an answer, a hit or a chunk: its numbers, and its place in the tuple.
OBJECT_BYTES = 128
# How many questions that came once are remembered: 70 KB.
MAX_ONCE = 1024


class CachedAnswer(NamedTuple):
    """An answer and its size in memory, in bytes."""

    answer: Any
    size: int


class Answers:
    """An LRU cache of answers at one version of a store, by question.

    A version is any number that differs from all before it once the store has changed. Answers of two versions are
    never held together: the first question at another version empties the cache.

    An answer is cached when its question comes for the second time. Caching one costs some 12 us (measured: of 10 KB;
    half of it is memory outside the processor's cache), which a question that comes once does not pay; and a scan of
    all documents evicts nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._version: int | None = None
        # Invariant: all entries are of _version, the most recently used at the end; their sizes add up to _bytes, which
        # is at most _max_bytes.
        self._entries: OrderedDict[Hashable, CachedAnswer] = OrderedDict()
        self._bytes = 0
        # Hashes of questions that came once at _version. If two questions share a hash, the second is cached too early.
        self._once: set[int] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, version: int, question: Hashable) -> CachedAnswer | None:
        """The cached answer at `version`, which the caller has just read; None if there is none."""
        if version != self._version:
            self._version = version
            self._entries.clear()
            self._once.clear()
            self._bytes = 0
            return None
        kept = self._entries.get(question)
        if kept is not None:
            self._entries.move_to_end(question)
        return kept

    def keep(self, version: int, question: Hashable, answer: T, bytes_of: Callable[[T], int]) -> None:
        """Cache an answer, which was computed after `version` was read, if its question came before.

        An answer at another version than that of the last `get` is not cached: the store changed while it was computed.
        Nor is one larger than the bound.
        """
        if version != self._version:
            return
        mark = hash(question)
        if mark not in self._once:
            if len(self._once) >= MAX_ONCE:
                self._once.clear()
            self._once.add(mark)
            return
        self._once.remove(mark)
        size = bytes_of(answer)
        if size > self._max_bytes:
            return
        before = self._entries.pop(question, None)
        if before is not None:
            self._bytes -= before.size
        self._entries[question] = CachedAnswer(answer, size)
        self._bytes += size
        while self._bytes > self._max_bytes:
            _, gone = self._entries.popitem(last=False)
            self._bytes -= gone.size


def text_bytes(texts: Collection[str | None]) -> int:
    """An upper bound of what texts take in memory. Encoding one that is not ASCII leaves its UTF-8 in the object.

    That is at most twice the size of the text itself, and is counted for all texts when one is not ASCII.
    """
    size = sum(map(getsizeof, texts))
    return size if all(map(str.isascii, filter(None, texts))) else 3 * size

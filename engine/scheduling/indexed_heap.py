"""A priority queue whose items may change their key or be removed. Pure."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
Key = tuple[float, float, int]

# Up to this many stale entries, the heap is not rebuilt.
_SPARE = 16


class IndexedHeap(Generic[Item]):
    """A binary heap with lazy deletion. `put`, `drop` and `first` are O(log n) amortized; memory is O(n).

    Keys must be unique: end each with a number that no other item has. A stale entry may have the key of a later entry
    of the same item; comparing the two never calls the item's `<`, as a tuple skips elements that are identical.
    """

    __slots__ = ("_entries", "_heap")

    def __init__(self) -> None:
        self._entries: dict[Item, tuple[Key, Item]] = {}
        # Invariant: a heap that holds every value of _entries. All other entries in it are stale: they are skipped when
        # they reach the top, and dropped once they are the majority.
        self._heap: list[tuple[Key, Item]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, item: Item, key: Key) -> None:
        """Add an item, or change its key."""
        entry = self._entries.get(item)
        if entry is not None and entry[0] == key:
            return
        entry = self._entries[item] = (key, item)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + _SPARE:
            self._heap = list(self._entries.values())
            heapify(self._heap)

    def drop(self, item: Item) -> None:
        """Remove an item, if it is present."""
        if self._entries.pop(item, None) is not None and not self._entries:
            self._heap.clear()

    def clear(self) -> None:
        """Remove every item."""
        self._entries.clear()
        self._heap.clear()

    def first(self) -> tuple[Key, Item] | None:
        """The smallest key with its item, which stays; None when empty."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if self._entries.get(entry[1]) is entry:
                return entry
            heappop(heap)
        return None

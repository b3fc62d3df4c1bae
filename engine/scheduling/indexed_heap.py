"""Items by key, the least first: a priority queue whose items may change their key or leave. Pure."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
Key = tuple[float, float, int]

# So many outdated entries are not worth a new heap.
_SPARE = 16


class IndexedHeap(Generic[Item]):
    """`put`, `drop` and `first` take O(log n) steps each, averaged over a series of them; memory is O(n).

    No two items may have the same key: a number of its own at the end of the key sees to that.
    """

    __slots__ = ("_entries", "_heap")

    def __init__(self) -> None:
        self._entries: dict[Item, tuple[Key, Item]] = {}
        # Invariant: a heap of every value of _entries. What else is in it is outdated: such entries are passed over
        # when they come first, and thrown out when they are the most.
        self._heap: list[tuple[Key, Item]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, item: Item, key: Key) -> None:
        """Add an item, or give it this key in place of the one it has."""
        entry = self._entries.get(item)
        if entry is not None and entry[0] == key:
            return
        entry = self._entries[item] = (key, item)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + _SPARE:
            self._heap = list(self._entries.values())
            heapify(self._heap)

    def drop(self, item: Item) -> None:
        """Take an item out, if it is here."""
        if self._entries.pop(item, None) is not None and not self._entries:
            self._heap.clear()

    def clear(self) -> None:
        """Take every item out."""
        self._entries.clear()
        self._heap.clear()

    def first(self) -> tuple[Key, Item] | None:
        """The item with the least key, with that key; it stays. None when there is no item."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if self._entries.get(entry[1]) is entry:
                return entry
            heappop(heap)
        return None

"""The cache of a worker's compiled scripts, so that each script is sent and compiled once. Pure.

The supervisor and the worker each hold a `ScriptCache` and apply the same runs to it in the same order, so the
supervisor knows what the worker has without asking.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

# Bounds of one worker's cache: more scripts than a tenant uses at a time, and the bytes of all their sources.
MAX_SCRIPTS = 64
MAX_BYTES = 2 << 20

# A script's key: the digest of its source, and its name in tracebacks.
Key = tuple[str, str]
T = TypeVar("T")


class ScriptCache(Generic[T]):
    """An LRU cache of scripts, each with a value that its owner chooses."""

    def __init__(self) -> None:
        # Invariant: least recently used first; at most MAX_SCRIPTS, whose sizes add up to `_bytes`, at most MAX_BYTES.
        self._scripts: OrderedDict[Key, tuple[int, T]] = OrderedDict()
        self._bytes = 0

    def use(self, key: Key) -> T | None:
        """The script's value, or None when it is not cached. Makes the script the most recently used."""
        found = self._scripts.get(key)
        if found is None:
            return None
        self._scripts.move_to_end(key)
        return found[1]

    def add(self, key: Key, size: int, value: T) -> None:
        """Add a script of `size` bytes of source, which is not cached. Evicts the least recently used to make room."""
        assert key not in self._scripts
        if size > MAX_BYTES:
            return
        while self._scripts and (len(self._scripts) >= MAX_SCRIPTS or self._bytes + size > MAX_BYTES):
            _, (freed, _) = self._scripts.popitem(last=False)
            self._bytes -= freed
        self._scripts[key] = (size, value)
        self._bytes += size

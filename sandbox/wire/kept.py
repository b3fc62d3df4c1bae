"""What a worker keeps of the scripts that it has run, so that each is sent and compiled once. Pure.

The supervisor and the worker each hold one `Kept`. Both are told of the same runs in the same order, so the supervisor
knows what the worker has without asking.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

# Bounds of one worker's: more scripts than a tenant uses at a time, and what their sources together may take.
MAX_SCRIPTS = 64
MAX_BYTES = 2 << 20

# A script is named by the digest of its source and by what tracebacks call it.
Key = tuple[str, str]
T = TypeVar("T")


class Kept(Generic[T]):
    """The scripts that were used last, each with something of its holder's."""

    def __init__(self) -> None:
        # Invariant: least recently used first; at most MAX_SCRIPTS, whose sizes add up to `_bytes`, at most MAX_BYTES.
        self._scripts: OrderedDict[Key, tuple[int, T]] = OrderedDict()
        self._bytes = 0

    def use(self, key: Key) -> T | None:
        """What is kept with this script, which now is the last used; None when the script is not kept."""
        found = self._scripts.get(key)
        if found is None:
            return None
        self._scripts.move_to_end(key)
        return found[1]

    def keep(self, key: Key, size: int, what: T) -> None:
        """Keep a script that was not kept, of `size` bytes of source; those that were used longest ago make room."""
        assert key not in self._scripts
        if size > MAX_BYTES:
            return
        while self._scripts and (len(self._scripts) >= MAX_SCRIPTS or self._bytes + size > MAX_BYTES):
            _, (freed, _) = self._scripts.popitem(last=False)
            self._bytes -= freed
        self._scripts[key] = (size, what)
        self._bytes += size

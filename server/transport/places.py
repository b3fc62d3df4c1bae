"""The places for connections, and which connection is closed for a new one when none are left. Pure."""

from enum import IntEnum, auto
from typing import Generic, Protocol, TypeVar

# How long a client may take to send a body, or to read an answer, before its connection may be closed for a new one.
GRACE_S = 1.0


class Phase(IntEnum):
    """What a connection waits for."""

    # For the client to close, after the last answer.
    CLOSING = auto()
    # For a request.
    IDLE = auto()
    # For the rest of a head; for the rest of a body.
    HEAD = auto()
    BODY = auto()
    # For the client to read what is written.
    TAKING = auto()
    # For the answer.
    BUSY = auto()


# The phases in which a connection may be closed for a new one, in order of preference, each with the least time in it.
# Never while a request is being answered.
_SPARE = ((Phase.CLOSING, 0.0), (Phase.IDLE, 0.0), (Phase.HEAD, 0.0), (Phase.BODY, GRACE_S), (Phase.TAKING, GRACE_S))


class Placed(Protocol):
    """The holder of a place: its phase, and the time since it is in it."""

    phase: Phase | None
    since: float


T = TypeVar("T", bound=Placed)


class Places(Generic[T]):
    """Holders by phase, ordered by the time since they are in it. Every operation is O(1)."""

    def __init__(self) -> None:
        # Invariant: each is in the dictionary of its phase only, in the order of entry.
        self._by: dict[Phase, dict[T, None]] = {phase: {} for phase in Phase}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def move(self, one: T, old: Phase | None, new: Phase | None) -> None:
        """Move a holder to another phase; None for `old` adds it, None for `new` removes it."""
        if old is not None:
            del self._by[old][one]
            self._count -= 1
        if new is not None:
            self._by[new][one] = None
            self._count += 1

    def oldest(self, phase: Phase, before: float) -> T | None:
        """The holder that has been in a phase for longest, if it entered before that time."""
        for one in self._by[phase]:
            return one if one.since <= before else None
        return None

    def spare(self, now: float) -> T | None:
        """The holder to close for a new one, if any."""
        for phase, grace in _SPARE:
            if (one := self.oldest(phase, now - grace)) is not None:
                return one
        return None

    def all(self) -> list[T]:
        """All holders."""
        return [one for ones in self._by.values() for one in ones]

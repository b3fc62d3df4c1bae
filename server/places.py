"""Who has one of the places for connections, and who loses it when there are none left. Pure."""

from enum import IntEnum, auto
from typing import Generic, Protocol, TypeVar

# For so long a client may take to send a body, or to take an answer, before it makes room for another connection.
GRACE_S = 1.0


class Phase(IntEnum):
    """What a connection waits for."""

    # To be closed by the client, after the last answer.
    CLOSING = auto()
    # A request.
    IDLE = auto()
    # The rest of a head, and of a body.
    HEAD = auto()
    BODY = auto()
    # The client to take what is written.
    TAKING = auto()
    # The answer.
    BUSY = auto()


# Who makes room, in this order, and since when it must have waited. Who waits for an answer does not.
_SPARE = ((Phase.CLOSING, 0.0), (Phase.IDLE, 0.0), (Phase.HEAD, 0.0), (Phase.BODY, GRACE_S), (Phase.TAKING, GRACE_S))


class Placed(Protocol):
    """What has a place: in which phase, and since when."""

    phase: Phase | None
    since: float


T = TypeVar("T", bound=Placed)


class Places(Generic[T]):
    """Those that are here, by phase, and by the time that they have been in it. Every step is O(1)."""

    def __init__(self) -> None:
        # Invariant: each is in the dictionary of its phase, those that came first into it first.
        self._by: dict[Phase, dict[T, None]] = {phase: {} for phase in Phase}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def move(self, one: T, old: Phase | None, new: Phase | None) -> None:
        """One goes from a phase to another; None: it comes or goes."""
        if old is not None:
            del self._by[old][one]
            self._count -= 1
        if new is not None:
            self._by[new][one] = None
            self._count += 1

    def oldest(self, phase: Phase, before: float) -> T | None:
        """The one that has been in a phase for longest, if it came into it before that time."""
        for one in self._by[phase]:
            return one if one.since <= before else None
        return None

    def spare(self, now: float) -> T | None:
        """The one that makes room for another, if any does."""
        for phase, grace in _SPARE:
            if (one := self.oldest(phase, now - grace)) is not None:
                return one
        return None

    def all(self) -> list[T]:
        """Everything that is here."""
        return [one for ones in self._by.values() for one in ones]

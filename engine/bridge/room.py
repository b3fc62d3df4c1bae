"""What host calls hold in the supervisor: arguments that wait, bodies on their way, answers not yet taken. Pure.

Each run, each tenant and the engine have a bound in bytes. A decoded value counts as `VALUE_BYTES`, so that a call of
many small values holds no more than one of few large ones.
"""

from dataclasses import dataclass, field

from sandbox.wire.limits import MIB, Limits

# What Python needs for a value at least: an empty dictionary takes 64 bytes, and 8 in the list around it.
VALUE_BYTES = 72
# What calls of one tenant, and all of them, may hold; one run may always hold what its own limits stand for.
TENANT_BYTES = 128 * MIB
ENGINE_BYTES = 512 * MIB
# Arguments and answers of at most this size are not counted: 64 calls of a run hold no more than 1 MiB of them.
SMALL_BYTES = 16 * 1024


class NoRoom(Exception):
    """A bound would be passed. The text names it; it is safe to show to the script."""


def run_bytes(limits: Limits) -> int:
    """What the calls of one run may hold: its largest arguments with their largest body, and the largest answer."""
    return 8 * MIB + 2 * limits.output_bytes + 3 * max(limits.http_bytes, limits.fs_bytes)


@dataclass(slots=True)
class Rooms:
    """The bytes that are held for all runs of an engine."""

    tenant_bytes: int = TENANT_BYTES
    engine_bytes: int = ENGINE_BYTES
    held: int = 0
    # Invariant: an entry for every tenant that holds something, and no other; their sum is `held`.
    tenants: dict[str, int] = field(default_factory=dict)


class Room:
    """The bytes that are held for one run. `close` gives back what is left."""

    __slots__ = ("_bound", "_rooms", "_tenant", "held")

    def __init__(self, rooms: Rooms, tenant: str, limits: Limits) -> None:
        self._rooms, self._tenant = rooms, tenant
        self._bound = run_bytes(limits)
        self.held = 0

    def take(self, size: int) -> None:
        """Hold this many bytes more. Raises NoRoom; then nothing more is held."""
        rooms = self._rooms
        if self.held + size > self._bound:
            raise NoRoom(_beyond("this run's", self._bound, "output_bytes, http_bytes and fs_bytes of its limits"))
        of_tenant = rooms.tenants.get(self._tenant, 0)
        if of_tenant + size > (bound := max(rooms.tenant_bytes, self._bound)):
            raise NoRoom(_beyond("the tenant's", bound, "a bound of the engine's"))
        if rooms.held + size > max(rooms.engine_bytes, self._bound):
            raise NoRoom("the engine holds as many bytes of host calls as it may; try again later")
        self.held += size
        rooms.held += size
        rooms.tenants[self._tenant] = of_tenant + size

    def give(self, size: int) -> None:
        """Let go of as many bytes, of those that are held."""
        rooms = self._rooms
        size = min(size, self.held)
        if not size:
            return
        self.held -= size
        rooms.held -= size
        left = rooms.tenants[self._tenant] - size
        if left:
            rooms.tenants[self._tenant] = left
        else:
            del rooms.tenants[self._tenant]

    def close(self) -> None:
        """The run has ended."""
        self.give(self.held)


class Hold:
    """What one call holds of its run's room."""

    __slots__ = ("_room", "size")

    def __init__(self, room: Room) -> None:
        self._room = room
        self.size = 0

    def take(self, size: int) -> None:
        """Raises NoRoom."""
        self._room.take(size)
        self.size += size

    def release(self) -> None:
        self._room.give(self.size)
        self.size = 0


def _beyond(whose: str, bound: int, source: str) -> str:
    return f"{whose} host calls under way would hold more than {bound} bytes ({source}); make fewer at once"

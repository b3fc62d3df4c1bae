"""What host calls hold in the supervisor's memory: queued arguments, bodies in transit, answers not yet sent. Pure.

Each run, each tenant and the engine have a bound in bytes. A decoded value counts as `VALUE_BYTES`, so that a call with
many small values is bounded as one with a few large ones.
"""

from dataclasses import dataclass, field

from sandbox.wire.limits import MIB, Limits

# Bytes of a small value in Python: an empty dictionary takes 64 bytes, and 8 in the list around it.
VALUE_BYTES = 72
# Bounds on the calls of one tenant and of all tenants; one run may always hold what its own limits permit.
TENANT_BYTES = 128 * MIB
ENGINE_BYTES = 512 * MIB
# Arguments and answers up to this size are not counted: 64 calls of a run hold at most 1 MiB of them.
SMALL_BYTES = 16 * 1024


class NoRoom(Exception):
    """A bound would be exceeded. The text names it; it is safe to show to the script."""


def run_bytes(limits: Limits) -> int:
    """Bound on the calls of one run: its largest arguments with their largest body, and the largest answer."""
    return 8 * MIB + 2 * limits.output_bytes + 3 * max(limits.http_bytes, limits.fs_bytes)


@dataclass(slots=True)
class Rooms:
    """The bytes held for all runs of an engine."""

    tenant_bytes: int = TENANT_BYTES
    engine_bytes: int = ENGINE_BYTES
    held: int = 0
    # Invariant: exactly the tenants that hold something; their sum is `held`.
    tenants: dict[str, int] = field(default_factory=dict)


class Room:
    """The bytes held for one run. `close` releases the rest."""

    __slots__ = ("_bound", "_rooms", "_tenant", "held")

    def __init__(self, rooms: Rooms, tenant: str, limits: Limits) -> None:
        self._rooms, self._tenant = rooms, tenant
        self._bound = run_bytes(limits)
        self.held = 0

    def take(self, size: int) -> None:
        """Hold this many more bytes. Raises NoRoom; then nothing has changed."""
        rooms = self._rooms
        if self.held + size > self._bound:
            raise NoRoom(_beyond("this run's", self._bound, "output_bytes, http_bytes and fs_bytes of its limits"))
        of_tenant = rooms.tenants.get(self._tenant, 0)
        if of_tenant + size > (bound := max(rooms.tenant_bytes, self._bound)):
            raise NoRoom(_beyond("the tenant's", bound, "a bound of the engine's"))
        if rooms.held + size > max(rooms.engine_bytes, self._bound):
            raise NoRoom("host calls of all tenants hold as much memory as the engine allows; try again later")
        self.held += size
        rooms.held += size
        rooms.tenants[self._tenant] = of_tenant + size

    def give(self, size: int) -> None:
        """Release this many of the held bytes."""
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
        """Release everything: the run has ended."""
        self.give(self.held)


class Hold:
    """One call's part of its run's room."""

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

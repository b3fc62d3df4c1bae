"""Places that tenants share: so many for all, at most half of them for one, and the next one for who has the fewest."""

from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio


def share_of(count: int, *, shared: bool) -> int:
    """How many of the places one tenant may have: not all, where another tenant may come."""
    return max(count // 2, 1) if shared else count


@dataclass(slots=True)
class Places:
    """`share` places of one tenant at most; of those that wait, the next is for the tenant that has the fewest."""

    count: int
    share: int
    held: Counter[str] = field(default_factory=Counter)
    # By tenant, in the order of their coming; each with a number that says who of two tenants came first.
    _waiting: dict[str, deque[tuple[int, trio.Event]]] = field(default_factory=dict)
    _came: int = 0

    @property
    def free(self) -> int:
        return self.count - self.held.total()

    def is_free(self, tenant: str) -> bool:
        """Whether the tenant would get a place at once."""
        return self.free > 0 and self.held[tenant] < self.share

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator["Place"]:
        """A place for the tenant, until the end of the block."""
        await self.acquire(tenant)
        place = Place(self, tenant)
        try:
            yield place
        finally:
            if place.held:
                self.release(tenant)

    async def acquire(self, tenant: str) -> None:
        """Wait for a place; `release` must follow."""
        self._came += 1
        mine = (self._came, trio.Event())
        self._waiting.setdefault(tenant, deque()).append(mine)
        self._grant()
        turn = mine[1]
        try:
            await turn.wait()
        except trio.Cancelled:
            if turn.is_set():
                self.release(tenant)
            else:
                self._waiting[tenant].remove(mine)
                self._drop_empty(tenant)
            raise

    def release(self, tenant: str) -> None:
        """Give a place back."""
        self.held[tenant] -= 1
        if not self.held[tenant]:
            del self.held[tenant]
        self._grant()

    def _grant(self) -> None:
        while able := [tenant for tenant in self._waiting if self.is_free(tenant)]:
            tenant = min(able, key=lambda each: (self.held[each], self._waiting[each][0][0]))
            _, turn = self._waiting[tenant].popleft()
            self._drop_empty(tenant)
            self.held[tenant] += 1
            turn.set()

    def _drop_empty(self, tenant: str) -> None:
        if not self._waiting[tenant]:
            del self._waiting[tenant]


@dataclass(slots=True)
class Place:
    """One of the places, inside its block."""

    places: Places
    tenant: str
    held: bool = True

    async def lent(self, wait: Awaitable[None]) -> None:
        """Wait with the place free for another one."""
        self.held = False
        self.places.release(self.tenant)
        await wait
        await self.places.acquire(self.tenant)
        self.held = True

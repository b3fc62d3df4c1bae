"""Notifications of changes in the lists of agents and tools. Pure."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Change:
    """The lists that differ from before. `tenant` owns them; None stands for all tenants."""

    agents: bool
    tools: bool
    tenant: str | None = None


@dataclass(slots=True)
class Changes:
    """Calls every subscriber for every change, synchronously in the task that made it. Subscribers must not block."""

    _hearers: list[Callable[[Change], None]] = field(default_factory=list)

    @contextmanager
    def heard_by(self, hearer: Callable[[Change], None]) -> Iterator[None]:
        """Call `hearer` with changes while the block lasts."""
        self._hearers.append(hearer)
        try:
            yield
        finally:
            self._hearers.remove(hearer)

    def tell(self, change: Change) -> None:
        for hearer in list(self._hearers):
            hearer(change)

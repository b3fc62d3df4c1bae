"""Who wants to hear that what can be called has changed, and telling them. Pure."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Change:
    """Which lists differ from before. `tenant` is whose they are; None is everybody's."""

    agents: bool
    tools: bool
    tenant: str | None = None


@dataclass(slots=True)
class Changes:
    """Tells of every change, at once and in the task that made it. Those who hear must not wait."""

    _hearers: list[Callable[[Change], None]] = field(default_factory=list)

    @contextmanager
    def heard_by(self, hearer: Callable[[Change], None]) -> Iterator[None]:
        """Tell `hearer` of changes while the block lasts."""
        self._hearers.append(hearer)
        try:
            yield
        finally:
            self._hearers.remove(hearer)

    def tell(self, change: Change) -> None:
        for hearer in list(self._hearers):
            hearer(change)

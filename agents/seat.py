"""Who asks in a team: the address of a call, which the engine binds to a key or to a turn. Never a parameter."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class Sitting(Protocol):
    """A turn that runs in this process: it answers the tools that its script or its model calls."""

    async def call(self, name: str, given: Mapping[str, Any]) -> Any:
        """The answer of a team's tool. Raises Problem."""
        ...


@dataclass(frozen=True, slots=True)
class Seat:
    """USER of `team`, or the turn that has this `lease`, or the one of `sitting`. A lease is secret: no log has it."""

    team: str | None = None
    lease: str | None = None
    sitting: Sitting | None = None

    @classmethod
    def of(cls, params: Mapping[str, str]) -> "Seat | None":
        """The seat that the query of an address names: `?team=NAME` or `?lease=TOKEN`."""
        team, lease = params.get("team"), params.get("lease")
        return None if team is None and lease is None else cls(team, lease)

    def __repr__(self) -> str:
        return f"<Seat of {self.team or 'a turn'}>"

"""What a team keeps of an agent that is the persona of a member: its content at that moment. Pure."""

from typing import Any, Protocol, runtime_checkable

import msgspec

from agents.agent import AgentInfo
from storage.teams.events import Runner


class Captured(msgspec.Struct, frozen=True):
    """The content of an agent. `system` is its text for models and clients; of a script, what it is in a prompt.

    `text` is what its runner reads: the source of a script with the files that it requires, the files of a document.
    """

    runner: Runner
    system: str
    tools: tuple[str, ...]
    text: Any = None


@runtime_checkable
class Capturable(Protocol):
    """An agent that may be a persona."""

    @property
    def info(self) -> AgentInfo: ...

    def captured(self) -> Captured:
        """Its content. Raises Problem bad_request if it cannot run turns."""
        ...

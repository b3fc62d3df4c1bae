"""The tools that a running document offers to its model, beside those of the tenant and other documents."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from agents.agent import Call
from agents.chatmd.program import Unavailable


class Offered(Protocol):
    """A tool as a running document offers it to the model. `parameters` is a JSON Schema of an object.

    `read_only` and `destructive` describe its side effects, as in `agents.tool.ToolInfo`.
    """

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Any]: ...

    @property
    def read_only(self) -> bool: ...

    @property
    def destructive(self) -> bool | None: ...

    async def call(self, arguments: Mapping[str, Any], call: Call) -> str:
        """The answer for the model. It checks its arguments itself. Raises Problem, whose message goes to the model."""
        ...


class McpTools(NamedTuple):
    """The tools that MCP servers give to a run, and those that they do not."""

    offered: list[Offered]
    unavailable: list[Unavailable]


# The tools that are wanted of one server, in their order; None for all.
Names = tuple[str, ...] | None

"""What a tool is to everybody above it: a name, JSON Schemas, honest annotations, and an answer when called."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from agents.agent import Call
from engine.run import RunResult


class ToolInfo(BaseModel):
    """What discovery shows of a tool. `parameters` and `returns` are JSON Schema 2020-12 objects.

    The last four say what it does to the world (MCP, tool annotations); None where nobody knows.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    builtin: bool
    parameters: Mapping[str, Any]
    returns: Mapping[str, Any] | None = None
    title: str | None = None
    read_only: bool = False
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


@dataclass(frozen=True, slots=True)
class Called:
    """A tool's answer (its flat JSON value) and, where a script made it, the run that it cost."""

    value: Any
    run: RunResult | None = None


class Tool(Protocol):
    """A tool of any kind. Parameters are validated before `execute` sees them; it raises `engine.errors.Problem`."""

    @property
    def info(self) -> ToolInfo: ...

    async def execute(self, params: Mapping[str, Any], call: Call) -> Called: ...

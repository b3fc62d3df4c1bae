"""The interface of tools: name, JSON Schemas, annotations, and `execute`, which returns an answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from agents.agent import Call
from engine.run import RunResult
from sandbox.wire.outcome import Outcome


class ToolInfo(BaseModel):
    """A tool in lists. `parameters` and `returns` are JSON Schema 2020-12 objects.

    The last four describe its side effects (MCP, tool annotations); None if unknown.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

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


def envelope_warnings(info: ToolInfo) -> tuple[str, ...]:
    """A warning if the tool has a parameter that requests also use as their envelope, else nothing."""
    if "arguments" not in info.parameters["properties"]:
        return ()
    return ("a parameter is called 'arguments'; a request with only that parameter is taken for the envelope",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """The figures of a document's run. `cost_usd` is None if its model has no price.

    `estimated`: some server reported no tokens, so bytes were counted. `closed_by` is the limit that ended the run,
    also if its last turn gave an answer; None if the model ended it.
    """

    run_id: str
    outcome: Outcome
    model: str
    turns: int
    tool_calls: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_usd: float | None
    estimated: bool
    closed_by: str | None

    def as_json(self) -> dict[str, Any]:
        # `asdict` takes 51 us, this 1.5, and a run is shown twice: in its answer and in the log.
        return {name: getattr(self, name) for name in self.__slots__} | {"outcome": self.outcome.value}


@dataclass(frozen=True, slots=True)
class Called:
    """A tool's answer (its flat JSON value) and, if a script or a model made it, the usage of that run."""

    value: Any
    run: RunResult | None = None
    model_run: ModelRun | None = None


class Tool(Protocol):
    """A tool of any kind. Parameters are validated before `execute` sees them; it raises `engine.errors.Problem`."""

    @property
    def info(self) -> ToolInfo: ...

    async def execute(self, params: Mapping[str, Any], call: Call) -> Called: ...

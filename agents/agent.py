"""The interface of agents: name, description, tools, arguments, and `resolve`, which returns a prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from agents.asking import Ask
from engine.bridge import HostContext
from engine.run import SILENT, Hearers, RunResult
from engine.tenant import Tenant


class AgentArgument(BaseModel):
    """One argument of an agent. Every field is always present in answers."""

    model_config = ConfigDict(frozen=True, strict=True)

    name: str
    description: str = ""
    required: bool = False
    # The allowed values; None allows any.
    enum: Annotated[tuple[str, ...], Field(strict=False, fail_fast=True)] | None = None


class AgentInfo(BaseModel):
    """An agent in lists (`GET /agents/list`, MCP `prompts/list`)."""

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    tools: tuple[str, ...]
    # Its kind, as clients know it: toml, lua, python.
    source: str
    arguments: tuple[AgentArgument, ...] = ()
    title: str | None = None
    # Where MCP clients find it: in the list of prompts, of tools, or both.
    expose: tuple[Literal["prompt", "tool"], ...] = ("prompt",)


class PromptMessage(BaseModel):
    """One message at the start of a conversation."""

    model_config = ConfigDict(frozen=True, strict=True)

    role: Literal["user", "assistant", "system"]
    content: str


class AgentPrompt(BaseModel):
    """A resolved agent: the answer of `POST /agents/NAME/prompt`. Lists may also be tuples of plain values."""

    model_config = ConfigDict(frozen=True)

    system: str
    tools: tuple[str, ...]
    messages: tuple[PromptMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """The context of a call, passed to every agent and tool: the tenant, and the hearers of the run.

    `inside` is the enclosing run: a tool called by a script shares that run's budgets. `callers` are the tools in
    execution around a call from Python code, outermost first; for a call from a script they are in `inside`. `ask` asks
    the caller during the call; None: it cannot be asked.
    """

    tenant: Tenant
    hearers: Hearers = SILENT
    inside: HostContext | None = None
    callers: tuple[str, ...] = ()
    ask: Ask | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """A prompt and, if a script made it, the usage of that run."""

    prompt: AgentPrompt
    run: RunResult | None = None


class Agent(Protocol):
    """An agent of any kind. `resolve` raises `engine.errors.Problem` for every error that the caller should see."""

    @property
    def info(self) -> AgentInfo: ...

    async def resolve(self, arguments: Mapping[str, Any], call: Call) -> Resolved: ...


@runtime_checkable
class Completes(Protocol):
    """An agent that completes partly typed arguments."""

    async def complete(self, argument: str, value: str, given: Mapping[str, str], call: Call) -> tuple[str, ...] | None:
        """Values for an argument with `value` typed so far; `given` are the other arguments. None: no completion.

        Raises Problem as `resolve` does.
        """
        ...

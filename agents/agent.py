"""What an agent is to everybody above it: a name, a description, tools, arguments, and a prompt when asked for one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from engine.bridge import HostContext
from engine.run import CallRecord, LogLine, RunResult
from engine.tenant import Tenant


class AgentArgument(BaseModel):
    """One argument a caller may give. Every field is always present in answers."""

    model_config = ConfigDict(frozen=True, strict=True)

    name: str
    description: str = ""
    required: bool = False
    # The values that it may have; None means any.
    enum: Annotated[tuple[str, ...], Field(strict=False, fail_fast=True)] | None = None


class AgentInfo(BaseModel):
    """What discovery shows of an agent (`GET /agents/list`, MCP `prompts/list`)."""

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    tools: tuple[str, ...]
    source: Literal["toml", "lua", "python", "chatmd"]
    arguments: tuple[AgentArgument, ...] = ()
    title: str | None = None
    # Where MCP clients find it: among the prompts, or the tools, or both.
    expose: tuple[Literal["prompt", "tool"], ...] = ("prompt",)


class PromptMessage(BaseModel):
    """One message that a conversation starts with."""

    model_config = ConfigDict(frozen=True, strict=True)

    role: Literal["user", "assistant", "system"]
    content: str


class AgentPrompt(BaseModel):
    """A resolved agent: the answer of `POST /agents/NAME/prompt`. Lists may come as tuples of plain values."""

    model_config = ConfigDict(frozen=True)

    system: str
    tools: tuple[str, ...]
    messages: tuple[PromptMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """Who is asking, and where progress, log lines and host calls are told while the run lasts.

    `inside` is the run on whose behalf this is called: a tool called by a script shares that run's budgets.
    `callers` are the tools that are being executed around this call, outermost first, where it is Python code that
    calls; a script's are in `inside`. Passed to every agent and tool.
    """

    tenant: Tenant
    on_progress: Callable[[float, str | None], None] | None = None
    on_log: Callable[[LogLine], None] | None = None
    on_call: Callable[[CallRecord], None] | None = None
    inside: HostContext | None = None
    callers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resolved:
    """A prompt and, where a script made it, the run that it cost."""

    prompt: AgentPrompt
    run: RunResult | None = None


class Agent(Protocol):
    """An agent of any kind. `resolve` raises `engine.errors.Problem` for everything a caller should hear of."""

    @property
    def info(self) -> AgentInfo: ...

    async def resolve(self, arguments: Mapping[str, Any], call: Call) -> Resolved: ...


@runtime_checkable
class Completes(Protocol):
    """An agent that can say what an argument may become, while it is typed."""

    async def complete(self, argument: str, value: str, given: Mapping[str, str], call: Call) -> tuple[str, ...] | None:
        """Values for an argument of which `value` is typed; `given` are the others. None: it has nothing to say.

        Raises Problem as `resolve` does.
        """
        ...

"""What an agent is to everybody above it: a name, a description, tools, arguments, and a prompt when asked for one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from engine.run import LogLine, RunResult
from engine.tenant import Tenant


class AgentArgument(BaseModel):
    """One argument a caller may give. Every field is always present in answers."""

    model_config = ConfigDict(frozen=True, strict=True)

    name: str
    description: str = ""
    required: bool = False


class AgentInfo(BaseModel):
    """What discovery shows of an agent (`GET /agents/list`, MCP `prompts/list`)."""

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    tools: tuple[str, ...]
    source: Literal["toml", "lua", "python", "chatmd"]
    arguments: tuple[AgentArgument, ...] = ()


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
    """Who is asking, and where progress and log lines go while the run lasts. Passed to every agent and tool."""

    tenant: Tenant
    on_progress: Callable[[float, str | None], None] | None = None
    on_log: Callable[[LogLine], None] | None = None


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

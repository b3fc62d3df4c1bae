"""The interface of agents: name, description, tools, arguments, and `resolve`, which returns a prompt."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from agents.asking import Ask
from agents.seat import Seat
from engine.bridge import HostContext
from engine.run import SILENT, Hearers, RunResult
from engine.tenant import Tenant


class AgentArgument(BaseModel):
    """One argument of an agent. Every field is always present in answers."""

    model_config = ConfigDict(frozen=True, strict=True, defer_build=True)

    name: str
    description: str = ""
    required: bool = False
    # The allowed values; None allows any.
    enum: Annotated[tuple[str, ...], Field(strict=False, fail_fast=True)] | None = None


class AgentInfo(BaseModel):
    """An agent in lists (`GET /agents/list`, MCP `prompts/list`)."""

    model_config = ConfigDict(frozen=True, defer_build=True)

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

    model_config = ConfigDict(frozen=True, strict=True, defer_build=True)

    role: Literal["user", "assistant", "system"]
    content: str


class TextBlock(BaseModel):
    """Text of a message."""

    model_config = ConfigDict(frozen=True, strict=True, defer_build=True)

    type: Literal["text"] = "text"
    text: str


class ImageBlock(BaseModel):
    """An image of a message, in base64."""

    model_config = ConfigDict(frozen=True, strict=True, defer_build=True)

    type: Literal["image"] = "image"
    data: str
    mime_type: str


class LinkBlock(BaseModel):
    """An address of a message, which the client reads or not."""

    model_config = ConfigDict(frozen=True, strict=True, defer_build=True)

    type: Literal["resource_link"] = "resource_link"
    uri: str
    name: str
    mime_type: str | None = None


@dataclass(frozen=True, slots=True)
class ResourceBlock:
    """A text of a message that stands under an address of its own. REST has it as text."""

    uri: str
    text: str
    mime_type: str


Block = TextBlock | ImageBlock | LinkBlock | ResourceBlock


class BlockMessage(PromptMessage):
    """A message that is more than text. `content` is its text alone."""

    blocks: tuple[TextBlock | ImageBlock | LinkBlock, ...]


class AgentPrompt(BaseModel):
    """A resolved agent: the answer of `POST /agents/NAME/prompt`. Lists may also be tuples of plain values."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    system: str
    tools: tuple[str, ...]
    messages: tuple[BlockMessage | PromptMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """The context of a call, passed to every agent and tool: the tenant, and the hearers of the run.

    `inside` is the enclosing run: a tool called by a script shares that run's budgets. `callers` are the tools in
    execution around a call from Python code, outermost first; for a call from a script they are in `inside`. `ask` asks
    the caller during the call; None: it cannot be asked. `seat` says for whom of which team the tools of teams act.
    """

    tenant: Tenant
    hearers: Hearers = SILENT
    inside: HostContext | None = None
    callers: tuple[str, ...] = ()
    ask: Ask | None = None
    seat: Seat | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """A prompt and, if a script made it, the usage of that run.

    `blocks` are the roles and blocks of a prompt that is more than texts, its system text included, in order; `about`
    are facts for clients, by name.
    """

    prompt: AgentPrompt
    run: RunResult | None = None
    blocks: tuple[tuple[Literal["user", "assistant", "system"], Block], ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """About how many characters its blocks have."""
        return sum(_size(block) for _, block in self.blocks)


def _size(block: Block) -> int:
    match block:
        case ImageBlock():
            return len(block.data)
        case LinkBlock():
            return len(block.uri)
    return len(block.text)


@runtime_checkable
class Sourced(Protocol):
    """An agent that has a source for its callers."""

    def source(self, tenant: Tenant) -> Mapping[str, Any]:
        """The source as the tenant sees it, and facts about it."""
        ...


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

"""Checking what scripts say of themselves and return: plain values in, typed ones out, errors that name the path."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agents.agent import AgentArgument, AgentPrompt, PromptMessage

M = TypeVar("M", bound=BaseModel)


class WrongShape(Exception):
    """A value that is not what it must be; the text names the path in it and what was seen."""


@dataclass(frozen=True, slots=True)
class Words:
    """How a message speaks of values: in Lua's words for scripts, in JSON's for everything else."""

    first: int  # the number of a list's first item
    nothing: str
    named: str
    named_fields: str
    listed: str


LUA = Words(1, "nil", "a table", "a table with named fields", "a table")
JSON = Words(0, "null", "an object", "an object", "a list")


class ToolAnnotations(BaseModel):
    """What a tool says that it does to the world, in MCP's words. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")

    read_only: bool | None = Field(default=None, alias="readOnlyHint")
    destructive: bool | None = Field(default=None, alias="destructiveHint")
    idempotent: bool | None = Field(default=None, alias="idempotentHint")
    open_world: bool | None = Field(default=None, alias="openWorldHint")


class AgentDeclaration(BaseModel):
    """What `agent` declares. Unknown fields are the script's own business."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str | None = None
    title: str | None = None
    description: str | None = None
    tools: list[str] = []
    arguments: list[AgentArgument] = []
    functions: list[str] = []


class ToolDeclaration(BaseModel):
    """What `tool` declares. Its two schemas are checked apart (`agents.schema`)."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str | None = None
    title: str | None = None
    description: str | None = None
    tools: list[str] = []
    parameters: Any = None
    returns: Any = None
    annotations: ToolAnnotations | None = None
    functions: list[str] = []


class _Answer(BaseModel):
    """What `agent.resolve` returns. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")

    system: str
    tools: list[str] | None = None
    messages: list[PromptMessage] = []


def agent_declaration(value: Any, words: Words = LUA) -> AgentDeclaration:
    """What an agent declares; that of a script was described in a worker. Raises WrongShape."""
    return _checked(AgentDeclaration, value, "agent", ("tools", "arguments"), words)


def tool_declaration(value: Any, words: Words = LUA) -> ToolDeclaration:
    """What a tool declares; that of a script was described in a worker. Raises WrongShape."""
    said = _checked(ToolDeclaration, value, "tool", ("tools",), words)
    if said.annotations is not None and said.annotations.read_only and said.annotations.destructive:
        raise WrongShape("tool.annotations: readOnlyHint and destructiveHint contradict each other")
    return said


def completions(value: Any, words: Words = LUA) -> tuple[str, ...] | None:
    """The values in an answer of `complete`; None when it has nothing to say. Raises WrongShape."""
    if value is None or value == {}:  # Lua has one empty table
        return None if value is None else ()
    if not isinstance(value, list):
        raise WrongShape(f"the answer of agent.complete must be a list of strings, got {_type(value, words)}")
    for position, each in enumerate(value, words.first):
        if not isinstance(each, str):
            raise WrongShape(f"the answer of agent.complete: [{position}] must be a string, got {_type(each, words)}")
    return tuple(value)


def narrowed(declared: Sequence[str], allowed: Sequence[str] | None) -> tuple[str, ...]:
    """The tools that an agent or tool declares, less what its configuration leaves out with `tools` (None: nothing)."""
    return tuple(tool for tool in declared if allowed is None or tool in allowed)


def agent_prompt(value: Any, declared: tuple[str, ...], words: Words = LUA) -> AgentPrompt:
    """The prompt in an answer of `resolve`. Its tools may only narrow the declared list. Raises WrongShape."""
    answer = _checked(_Answer, value, "the answer of agent.resolve", ("tools", "messages"), words)
    tools = declared if answer.tools is None else tuple(answer.tools)
    if extra := [tool for tool in tools if tool not in declared]:
        raise WrongShape(
            f"the answer of agent.resolve: tools names {extra[0]!r}, which agent.tools does not declare; "
            "resolve may narrow the list, never widen it"
        )
    return AgentPrompt(system=answer.system, tools=tools, messages=tuple(answer.messages))


def _checked(model: type[M], value: Any, what: str, lists: tuple[str, ...], words: Words) -> M:
    if not isinstance(value, dict):
        raise WrongShape(f"{what} is {_type(value, words)}, not {words.named_fields}")
    # Lua has one empty table: in these places it is a list.
    plain = {key: [] if words is LUA and key in lists and item == {} else item for key, item in value.items()}
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = "".join(f"[{part + words.first}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise WrongShape(f"{what}: {path.lstrip('.')} {_wrong(first['type'], first['input'], words)}") from None


def _wrong(kind: str, seen: Any, words: Words) -> str:
    expected = {
        "missing": "is missing",
        "string_type": "must be a string",
        "list_type": "must be a list",
        "bool_type": "must be true or false",
        "literal_error": "must be 'user', 'assistant' or 'system'",
    }.get(kind, f"must be {words.named}")
    if kind == "missing":
        return expected
    shown = repr(seen[:32]) if isinstance(seen, str) else _type(seen, words)
    return f"{expected}, got {shown}"


def _type(value: Any, words: Words) -> str:
    match value:
        case None:
            return words.nothing
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return words.listed
        case _:
            return words.named

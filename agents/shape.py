"""Checking what scripts say of themselves and return: plain values in, typed ones out, errors that name the path."""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agents.agent import AgentArgument, AgentPrompt, PromptMessage

M = TypeVar("M", bound=BaseModel)


class WrongShape(Exception):
    """A value that is not what it must be; the text names the path in it and what was seen."""


class AgentDeclaration(BaseModel):
    """What `agent` declares. Unknown fields are the script's own business."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str | None = None
    description: str | None = None
    tools: list[str] = []
    arguments: list[AgentArgument] = []
    functions: list[str] = []


class ToolDeclaration(BaseModel):
    """What `tool` declares. Its two schemas are checked apart (`agents.schema`)."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str | None = None
    description: str | None = None
    parameters: Any = None
    returns: Any = None
    functions: list[str] = []


class _Answer(BaseModel):
    """What `agent.resolve` returns. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")

    system: str
    tools: list[str] | None = None
    messages: list[PromptMessage] = []


def agent_declaration(value: Any) -> AgentDeclaration:
    """The declaration of an agent, as described in a worker. Raises WrongShape."""
    return _checked(AgentDeclaration, value, "agent", ("tools", "arguments"))


def tool_declaration(value: Any) -> ToolDeclaration:
    """The declaration of a tool, as described in a worker. Raises WrongShape."""
    return _checked(ToolDeclaration, value, "tool", ())


def agent_prompt(value: Any, declared: tuple[str, ...]) -> AgentPrompt:
    """The prompt in an answer of `resolve`. Its tools may only narrow the declared list. Raises WrongShape."""
    answer = _checked(_Answer, value, "the answer of agent.resolve", ("tools", "messages"))
    tools = declared if answer.tools is None else tuple(answer.tools)
    if extra := [tool for tool in tools if tool not in declared]:
        raise WrongShape(
            f"the answer of agent.resolve: tools names {extra[0]!r}, which agent.tools does not declare; "
            "resolve may narrow the list, never widen it"
        )
    return AgentPrompt(system=answer.system, tools=tools, messages=tuple(answer.messages))


def _checked(model: type[M], value: Any, what: str, lists: tuple[str, ...]) -> M:
    if not isinstance(value, dict):
        raise WrongShape(f"{what} is {_lua_type(value)}, not a table with named fields")
    # Lua has one empty table: in these places it is a list.
    plain = {key: [] if key in lists and item == {} else item for key, item in value.items()}
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise WrongShape(f"{what}: {path.lstrip('.')} {_wrong(first['type'], first['input'])}") from None


def _wrong(kind: str, seen: Any) -> str:
    expected = {
        "missing": "is missing",
        "string_type": "must be a string",
        "list_type": "must be a list",
        "bool_type": "must be true or false",
        "literal_error": "must be 'user', 'assistant' or 'system'",
    }.get(kind, "must be a table")
    if kind == "missing":
        return expected
    shown = repr(seen[:32]) if isinstance(seen, str) else _lua_type(seen)
    return f"{expected}, got {shown}"


def _lua_type(value: Any) -> str:
    match value:
        case None:
            return "nil"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case _:
            return "a table"

"""Validation of scripts' declarations and answers: plain values in, typed ones out, errors that name the path."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agents.agent import AgentArgument, AgentPrompt, PromptMessage
from engine.names import nearest

M = TypeVar("M", bound=BaseModel)

# Bounds on the lists that a script declares or returns: more than a client shows or a model reads. Checked before the
# items are, as each wrong item costs an error.
MAX_ITEMS = {"tools": 256, "arguments": 64, "functions": 256, "messages": 1_024, "enum": 256}
MAX_COMPLETIONS = 10_000
# Bound on one value of a completion, which is chosen from a list: in characters.
MAX_COMPLETION_CHARS = 4_096
# The most keys of a table, and characters of each, that are compared with the name of one that is missing.
MAX_SEARCHED = 16
MAX_SEARCHED_CHARS = 64
# Bounds on a script's declaration, which is stored with its version and shown by every list: a title, a description,
# and all texts together except schemas (`agents.shapes.schema` has their bounds). In bytes of UTF-8.
MAX_TITLE_BYTES = 1_024
MAX_DESCRIPTION_BYTES = 16 * 1024
MAX_DECLARATION_BYTES = 64 * 1024

# Validation stops at the first error, which is the one reported.
Names = Annotated[list[str], Field(fail_fast=True)]


def missing(root: str, name: str, functions: Sequence[str]) -> str:
    """The error for a table without this function, which names the most similar one of `functions`."""
    near = nearest(name, list(functions))
    hint = f"; {root}.{near} may be a misspelling of it" if near else ""
    return f"{root}.{name} is missing or not a function{hint}"


class WrongShape(Exception):
    """A value of the wrong shape; the text names the path in it and the value seen."""


@dataclass(frozen=True, slots=True)
class Words:
    """The names of types in messages: Lua's for scripts, JSON's for everything else."""

    first: int  # the number of a list's first item
    nothing: str
    named: str
    named_fields: str
    listed: str


LUA = Words(1, "nil", "a table", "a table with named fields", "a table")
JSON = Words(0, "null", "an object", "an object", "a list")


class ToolAnnotations(BaseModel):
    """A tool's declared side effects, in MCP's words. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)

    read_only: bool | None = Field(default=None, alias="readOnlyHint")
    destructive: bool | None = Field(default=None, alias="destructiveHint")
    idempotent: bool | None = Field(default=None, alias="idempotentHint")
    open_world: bool | None = Field(default=None, alias="openWorldHint")


class AgentDeclaration(BaseModel):
    """The declaration in `agent`. Unknown fields are left to the script."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)

    name: str | None = None
    title: str | None = None
    description: str | None = None
    tools: Names = []
    arguments: Annotated[list[AgentArgument], Field(fail_fast=True)] = []
    functions: Names = []


class ToolDeclaration(BaseModel):
    """The declaration in `tool`. `agents.shapes.schema` checks its two schemas."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)

    name: str | None = None
    title: str | None = None
    description: str | None = None
    tools: Names = []
    parameters: Any = None
    returns: Any = None
    annotations: ToolAnnotations | None = None
    functions: Names = []


class _Resolved(BaseModel):
    """The return value of `agent.resolve`. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)

    system: str
    tools: Names | None = None
    messages: Annotated[list[PromptMessage], Field(fail_fast=True)] = []


def agent_declaration(value: Any, words: Words = LUA) -> AgentDeclaration:
    """An agent's declaration; a script's comes from a worker. Raises WrongShape."""
    said = _checked(AgentDeclaration, value, "agent", ("tools", "arguments"), words)
    check_texts(said, "agent", said.arguments)
    return said.model_copy(update={"tools": list(dict.fromkeys(said.tools))})


def tool_declaration(value: Any, words: Words = LUA) -> ToolDeclaration:
    """A tool's declaration; a script's comes from a worker. Raises WrongShape."""
    said = _checked(ToolDeclaration, value, "tool", ("tools",), words)
    if said.annotations is not None and said.annotations.read_only and said.annotations.destructive:
        raise WrongShape("tool.annotations: readOnlyHint and destructiveHint contradict each other")
    check_texts(said, "tool")
    return said.model_copy(update={"tools": list(dict.fromkeys(said.tools))})


def declared_again(said: AgentDeclaration | ToolDeclaration) -> dict[str, Any]:
    """The declaration as plain data, without unknown fields, to be stored and parsed again."""
    return said.model_dump(mode="json", by_alias=True, exclude_none=True)


def completions(value: Any, words: Words = LUA) -> tuple[str, ...] | None:
    """The values in an answer of `complete`; None if it offers none. Raises WrongShape."""
    if value is None or value == {}:  # Lua has one empty table
        return None if value is None else ()
    if not isinstance(value, list):
        raise WrongShape(f"the answer of agent.complete must be a list of strings, got {_type(value, words)}")
    if len(value) > MAX_COMPLETIONS:
        raise WrongShape(f"the answer of agent.complete has {len(value)} values; the most is {MAX_COMPLETIONS}")
    for position, each in enumerate(value, words.first):
        if not isinstance(each, str):
            raise WrongShape(f"the answer of agent.complete: [{position}] must be a string, got {_type(each, words)}")
        if len(each) > MAX_COMPLETION_CHARS:
            raise WrongShape(
                f"the answer of agent.complete: [{position}] has {len(each)} characters; the most is "
                f"{MAX_COMPLETION_CHARS}"
            )
    return tuple(value)


def turn_answer(value: Any, words: Words = LUA) -> tuple[Any, str | None]:
    """The state and the output in an answer of `on_messages`: a table with neither, one or both. Raises WrongShape."""
    if value is None:
        return None, None
    if not isinstance(value, dict):
        if value == []:  # Lua has one empty table
            return None, None
        raise WrongShape(f"the answer of agent.on_messages is {_type(value, words)}, not {words.named_fields}")
    if (unknown := next((key for key in value if key not in ("state", "output")), None)) is not None:
        raise WrongShape(
            f"the answer of agent.on_messages: unknown field {str(unknown)[:64]!r}; it has state and output"
        )
    output = value.get("output")
    if output is not None and not isinstance(output, str):
        raise WrongShape(f"the answer of agent.on_messages: output must be a string, got {_type(output, words)}")
    return value.get("state"), output


def narrowed(declared: Sequence[str], allowed: Sequence[str] | None) -> tuple[str, ...]:
    """The declared tools of an agent or tool that its configuration allows with `tools` (None allows all)."""
    wanted = declared if allowed is None else set(allowed).intersection(declared)
    return tuple(tool for tool in declared if tool in wanted)


def agent_prompt(value: Any, declared: tuple[str, ...], words: Words = LUA) -> AgentPrompt:
    """The prompt in an answer of `resolve`. Its tools may only narrow the declared list. Raises WrongShape."""
    answer = _checked(_Resolved, value, "the answer of agent.resolve", ("tools", "messages"), words)
    tools = declared if answer.tools is None else tuple(dict.fromkeys(answer.tools))
    if beyond := set(tools).difference(declared):
        extra = next(tool for tool in tools if tool in beyond)
        raise WrongShape(
            f"the answer of agent.resolve: tools names {extra[:64]!r}, which agent.tools does not declare; "
            "resolve may narrow the list, never widen it"
        )
    return AgentPrompt(system=answer.system, tools=tools, messages=tuple(answer.messages))


def _checked(model: type[M], value: Any, what: str, lists: tuple[str, ...], words: Words) -> M:
    if not isinstance(value, dict):
        raise WrongShape(f"{what} is {_type(value, words)}, not {words.named_fields}")
    # Lua has one empty table: in these places it is a list.
    plain = {key: [] if words is LUA and key in lists and item == {} else item for key, item in value.items()}
    _check_lengths(plain, what)
    for position, argument in enumerate(
        plain["arguments"] if isinstance(plain.get("arguments"), list) else (), words.first
    ):
        if isinstance(argument, dict):
            _check_lengths(argument, f"{what}: arguments[{position}]")
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = "".join(f"[{part + words.first}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        hint = _mistyped(str(first["loc"][-1]), first["input"]) if first["type"] == "missing" else ""
        raise WrongShape(f"{what}: {path.lstrip('.')} {_wrong(first['type'], first['input'], words)}{hint}") from None


def _mistyped(name: str, given: Any) -> str:
    """The key that resembles this missing one, as a hint. A table of many keys is not searched."""
    keys = list(given) if isinstance(given, dict) and len(given) <= MAX_SEARCHED else []
    near = nearest(name, [key for key in keys if len(key) <= MAX_SEARCHED_CHARS])
    return f"; {near!r} may be a misspelling of it" if near else ""


def _check_lengths(value: Mapping[str, Any], what: str) -> None:
    for name, items in value.items():
        if type(items) is list and len(items) > MAX_ITEMS.get(name, len(items)):
            raise WrongShape(f"{what}: {name} has {len(items)} items; the most is {MAX_ITEMS[name]}")


def check_texts(said: AgentDeclaration | ToolDeclaration, what: str, arguments: Sequence[AgentArgument] = ()) -> None:
    """Raise WrongShape for texts that are too long for lists of agents and tools."""
    every = [said.name or "", said.title or "", said.description or "", *said.tools, *said.functions]
    for argument in arguments:
        every += [argument.name, argument.description, *(argument.enum or ())]
    sizes = [
        ("title", said.title or "", MAX_TITLE_BYTES),
        ("description", said.description or "", MAX_DESCRIPTION_BYTES),
        *(("arguments: a description", each.description, MAX_DESCRIPTION_BYTES) for each in arguments),
    ]
    for name, text, most in sizes:
        if (size := len(text.encode(errors="surrogatepass"))) > most:
            raise WrongShape(f"{what}: {name} is {size} bytes long; the most is {most}")
    if (size := sum(len(text.encode(errors="surrogatepass")) for text in every)) > MAX_DECLARATION_BYTES:
        raise WrongShape(f"{what}: its texts are {size} bytes; the most for all but schemas is {MAX_DECLARATION_BYTES}")


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

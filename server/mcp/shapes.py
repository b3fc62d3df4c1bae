"""The MCP forms of tools, prompts, documents and errors. Pure; `server.mcp.handlers` finds the objects.

A document's address is `engine://documents/ID`, or `engine://sources/SOURCE/TITLE`, each part percent-encoded.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import mcp_types as t
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from agents.agent import AgentInfo, AgentPrompt, Block, ImageBlock, LinkBlock, ResourceBlock, TextBlock
from agents.documents import DOCUMENT_URI, Document, Listed
from agents.tool import Called, ToolInfo
from engine.errors import Problem
from server.problems import INVALID_PARAMS, details, encode, tool_error_text

_BY_ID = DOCUMENT_URI
_BY_TITLE = "engine://sources/"
DOCUMENT_TEMPLATE = _BY_ID + "{id}"
TITLE_TEMPLATE = _BY_TITLE + "{source}/{title}"

# A completion has at most this many values (specification, completion).
MAX_VALUES = 100


def title_of(name: str) -> str:
    """A display name: `create_jira_ticket` is `Create jira ticket`."""
    words = name.replace("_", " ").replace("-", " ").strip()
    return words[:1].upper() + words[1:] or name


# ---- tools -------------------------------------------------------------------------------------------------------


def tool_of(info: ToolInfo, handshake: bool) -> t.Tool:
    """A tool as MCP lists it. The annotations claim only what is known or declared by the script."""
    returns = info.returns
    if returns is not None and handshake and not _is_object_schema(returns):
        # Before 2026-07-28 structured content must be an object; calls wrap the value in the same way.
        returns = {"type": "object", "properties": {"result": returns}, "required": ["result"]}
    return t.Tool(
        name=info.name,
        title=info.title or title_of(info.name),
        description=info.description,
        input_schema={"type": "object", **info.parameters},
        output_schema=None if returns is None else dict(returns),
        annotations=t.ToolAnnotations(
            read_only_hint=info.read_only,
            destructive_hint=info.destructive,
            idempotent_hint=info.idempotent,
            open_world_hint=info.open_world,
        ),
    )


def _is_object_schema(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object"


def is_wrapped(value: Any, returns: Mapping[str, Any] | None, handshake: bool) -> bool:
    """Whether an answer is wrapped in `{"result": ...}`: before 2026-07-28 structured content must be an object."""
    return handshake and not (isinstance(value, dict) and (returns is None or _is_object_schema(returns)))


def meta_of(called: Called) -> dict[str, Any] | None:
    """The `_meta` of a tool's result: what models did for it, if it called any."""
    return None if called.model_run is None else {"engine/run": called.model_run.as_json()}


def result_of(text: str, structured: Any, wrapped: bool) -> t.CallToolResult:
    """A tool's answer: the value itself, and as text for clients that read only text."""
    return t.CallToolResult(
        content=[t.TextContent(type="text", text=text)],
        structured_content={"result": structured} if wrapped else structured,
    )


def failure_of(problem: Problem) -> t.CallToolResult:
    """A failed call as a result, so that the model can read it and try something else; `_meta` carries it as data."""
    told = {} if problem.run is None else {"engine/run": dict(problem.run)}
    return t.CallToolResult(
        content=[t.TextContent(type="text", text=tool_error_text(problem))],
        is_error=True,
        _meta={"engine/error": details(problem), **told},
    )


# ---- prompts -----------------------------------------------------------------------------------------------------


def prompt_of(info: AgentInfo) -> t.Prompt:
    return t.Prompt(
        name=info.name,
        title=info.title or title_of(info.name),
        description=info.description,
        arguments=[
            t.PromptArgument(name=each.name, description=each.description, required=each.required)
            for each in info.arguments
        ],
    )


def texts_of(prompt: AgentPrompt) -> list[tuple[str, str]]:
    """A prompt as roles and texts. MCP has only `user` and `assistant`: the system text comes first, as `user`."""
    return [("user", prompt.system), *((message.role, message.content) for message in prompt.messages)]


def messages_of(texts: Iterable[tuple[str, str]]) -> list[t.PromptMessage]:
    """Roles and texts as messages."""
    return [
        t.PromptMessage(
            role="assistant" if role == "assistant" else "user", content=t.TextContent(type="text", text=text)
        )
        for role, text in texts
    ]


def blocks_of(blocks: Iterable[tuple[str, Block]], held: Callable[[str], str]) -> list[t.PromptMessage]:
    """Roles and blocks as messages. `held` returns what stands for a long text."""
    return [
        t.PromptMessage(role="assistant" if role == "assistant" else "user", content=_content(block, held))
        for role, block in blocks
    ]


def _content(block: Block, held: Callable[[str], str]) -> t.ContentBlock:
    match block:
        case ImageBlock():
            return t.ImageContent(type="image", data=held(block.data), mime_type=block.mime_type)
        case LinkBlock():
            return t.ResourceLink(type="resource_link", uri=block.uri, name=block.name, mime_type=block.mime_type)
        case ResourceBlock():
            contents = t.TextResourceContents(uri=block.uri, mime_type=block.mime_type, text=held(block.text))
            return t.EmbeddedResource(type="resource", resource=contents)
        case TextBlock():
            return t.TextContent(type="text", text=held(block.text))


# ---- documents ---------------------------------------------------------------------------------------------------


def uri_of(identifier: str) -> str:
    """A document's address."""
    return _BY_ID + quote(identifier, safe="")


def document_id(uri: str) -> str | None:
    """The id in a document's address, or None if it has another form."""
    found = uri.removeprefix(_BY_ID)
    return unquote(found) if found and found != uri and "/" not in found else None


def source_and_title(uri: str) -> tuple[str, str] | None:
    """Source label and title in an address by title, or None if it has another form."""
    source, slash, title = uri.removeprefix(_BY_TITLE).partition("/")
    if not uri.startswith(_BY_TITLE) or not slash or not source or not title or "/" in title:
        return None
    return unquote(source), unquote(title)


def resource_of(document: Listed) -> t.Resource:
    """A document in a list: its name is its path in the source, its title is for display."""
    return t.Resource(
        uri=uri_of(document.id),
        name=f"{document.source}/{document.source_id}",
        title=document.title or title_of(document.source_id),
        description=f"From {document.source}",
        mime_type=document.content_type,
        size=document.size,
        annotations=_annotations(document.updated_at),
    )


def contents_of(document: Document, uri: str) -> t.TextResourceContents:
    """A document's text, under the requested address."""
    told: dict[str, object] = {
        "id": document.id,
        "source": document.source,
        "source_id": document.source_id,
        "source_url": document.source_url,
        "title": document.title,
        "updated_at": document.updated_at,
        "untrusted": document.untrusted,
    }
    return t.TextResourceContents(
        uri=uri, mime_type=document.content_type, text=document.body, _meta={"engine/document": told}
    )


def _annotations(updated_at: str | None) -> t.Annotations | None:
    return None if updated_at is None else t.Annotations(last_modified=updated_at)


TEMPLATES: Sequence[t.ResourceTemplate] = (
    t.ResourceTemplate(
        uri_template=DOCUMENT_TEMPLATE,
        name="document",
        title="A document by its id",
        description="The id is that of a search result",
    ),
    t.ResourceTemplate(
        uri_template=TITLE_TEMPLATE,
        name="document-by-title",
        title="A document by its source and title",
        description="The source is a label such as filesystem:runbooks; both parts are percent-encoded",
    ),
)


# ---- completions -------------------------------------------------------------------------------------------------


def completion_of(values: Sequence[str], *, all_of_them: bool = True) -> t.CompleteResult:
    """Values to choose from: at most 100 of them. The total is given only if these are all there are."""
    total = len(values) if all_of_them else None
    more = len(values) > MAX_VALUES
    return t.CompleteResult(completion=t.Completion(values=list(values[:MAX_VALUES]), total=total, has_more=more))


def matching(values: Iterable[str], typed: str) -> list[str]:
    """The values that complete the typed text: first those that begin with it, then those that contain it."""
    folded = typed.casefold()
    found = [value for value in values if folded in value.casefold()]
    return sorted(found, key=lambda value: not value.casefold().startswith(folded))


# ---- tasks -------------------------------------------------------------------------------------------------------


class TaskParams(t.RequestParams):
    """The params of a method about one task."""

    task_id: str


class TaskAnswers(TaskParams):
    """Answers to the questions of a task."""

    input_responses: t.InputResponses


def task_ids(asked: t.SubscriptionFilter) -> list[str]:
    """The tasks that a subscription names. Raises MCPError for what is no list of ids."""
    ids = (asked.model_extra or {}).get("taskIds")
    if ids is None:
        return []
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        raise MCPError(INVALID_PARAMS, "params.notifications.taskIds must be a list of strings")
    return ids


# ---- wrong params ------------------------------------------------------------------------------------------------

_WANTED = {
    "missing": "is missing",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "list_type": "must be a list",
}


def wrong_params(error: ValidationError, method: str, params: Any) -> str:
    """The error in the params of a message, with its path: `params.arguments.service must be a string`."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path: list[str] = []
    inside = params
    for part in first["loc"]:
        # A part that is not in the message is the name of a Python class that pydantic tried.
        if isinstance(inside, dict) and part in inside:
            path.append(str(part)[:64])
            inside = inside[part]
        elif first["type"] == "missing" and part == first["loc"][-1]:
            path.append(str(part))
    hint = ": a prompt's arguments are strings" if (method, path[:1]) == ("prompts/get", ["arguments"]) else ""
    return f"{'.'.join(['params', *path])} {_WANTED.get(first['type'], 'is not what it must be')}{hint}"


def size_of(info: ToolInfo | AgentInfo) -> int:
    """About how many characters a tool or an agent takes in a list; a schema counts by its size as JSON."""
    if isinstance(info, AgentInfo):
        return len(info.description) + sum(len(each.description) for each in info.arguments)
    return len(info.description) + len(encode(info.parameters)) + (len(encode(info.returns)) if info.returns else 0)


def wrong_token(params: Any) -> str | None:
    """The error in the progress token of a message; None if it is valid or absent. `params` are as received."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(meta, dict) or "progressToken" not in meta:
        return None
    token = meta["progressToken"]
    if isinstance(token, str | int) and not isinstance(token, bool):
        return None
    return "params._meta.progressToken must be a string or a whole number"

"""From what an MCP server says to what a model gets: tools with bounded schemas, results as text. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import mcp_types as t
import orjson

from agents.chatmd.program import Unavailable
from agents.shapes.schema import MAX_SCHEMA_CHARS
from engine.names import nearest

MAX_TOOLS = 128
MAX_SCHEMAS_CHARS = 4 * MAX_SCHEMA_CHARS
MAX_NAME = 128
_DESCRIPTION = 4_096


class Listed(NamedTuple):
    """A tool of a server that a document may use."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    read_only: bool
    destructive: bool | None


class Choice(NamedTuple):
    """What a document gets of a server's tools."""

    tools: list[Listed]
    unavailable: list[Unavailable]


def chosen(tools: Iterable[t.Tool], wanted: Iterable[str] | None, server: str) -> Choice:
    """The wanted tools (None: all) of those that a server lists. The first of a name counts."""
    found: dict[str, t.Tool] = {}
    for tool in tools:
        found.setdefault(tool.name, tool)
    names = list(found) if wanted is None else list(dict.fromkeys(wanted))
    choice, left = Choice([], []), MAX_SCHEMAS_CHARS
    for name in names:
        shown = name[:MAX_NAME]
        if name not in found:
            near = nearest(name, [each[:MAX_NAME] for each in found])
            hint = f"; did you mean {near!r}?" if near else ""
            choice.unavailable.append(Unavailable(shown, f"the MCP server {server!r} has no such tool{hint}"))
        elif len(choice.tools) == MAX_TOOLS:
            choice.unavailable.append(Unavailable(shown, f"the MCP server {server!r} has more than {MAX_TOOLS} tools"))
            break
        elif isinstance(size := _size(found[name], min(left, MAX_SCHEMA_CHARS)), str):
            choice.unavailable.append(Unavailable(shown, f"the MCP server {server!r} declares it with {size}"))
        else:
            left -= size
            choice.tools.append(_listed(found[name]))
    return choice


def _size(tool: t.Tool, left: int) -> int | str:
    """The size of its schema; or what is wrong with it."""
    if not 0 < len(tool.name) <= MAX_NAME:
        return f"a name of more than {MAX_NAME} characters, or none"
    try:
        size = len(orjson.dumps(tool.input_schema))
    except TypeError:  # nested too deep
        return "a schema that is nested too deep"
    if size > left:
        return f"a schema of {size:,} bytes; {left:,} are left ({MAX_SCHEMAS_CHARS:,} for all its tools together)"
    return size


def _listed(tool: t.Tool) -> Listed:
    hints = tool.annotations or t.ToolAnnotations()
    schema = {"type": "object", "properties": {}, **tool.input_schema}
    description = (tool.description or tool.title or "")[:_DESCRIPTION]
    return Listed(tool.name, description, schema, bool(hints.read_only_hint), hints.destructive_hint)


def text_of(result: t.CallToolResult) -> str:
    """The text of a result. What is no text is named, with its size; a structured result counts where there is none."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        return orjson.dumps(result.structured_content).decode()
    return "\n".join(parts)


def _part(block: t.ContentBlock) -> str:
    match block:
        case t.TextContent():
            return block.text
        case t.EmbeddedResource(resource=t.TextResourceContents() as resource):
            return resource.text
        case t.EmbeddedResource(resource=t.BlobResourceContents() as resource):
            return _left_out("resource", resource.mime_type, resource.blob, str(resource.uri))
        case t.ResourceLink():
            return f"[resource {block.uri}]"
        case t.ImageContent() | t.AudioContent():
            return _left_out(block.type, block.mime_type, block.data)
    raise TypeError(block)  # the union has no other


def _left_out(what: str, kind: str | None, data: str, uri: str = "") -> str:
    words = " ".join(filter(None, (what, uri, kind)))
    size = len(data.rstrip("=")) * 3 // 4  # of base64
    return f"[{words}, {size:,} bytes, left out]"

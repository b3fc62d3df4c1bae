"""The elements of ChatMD, and what the reader and the checks know of each. Everything else reads this list."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

# The value of an attribute; True for a flag, which has none.
Value = str | bool
Attributes = dict[str, Value]


class Content(Enum):
    """What is between an element's tags."""

    NODES = auto()  # text and elements
    VOID = auto()  # nothing; the tag that ends it may be left out, in lenient mode
    RECORD = auto()  # what a model or a tool said: text up to the literal tag that ends it
    OPAQUE = auto()  # as RECORD, of an element that this engine ignores


class ElementSpec(NamedTuple):
    """One row. `required` attributes need a value that is not empty; `allowed` is None where others are ignored."""

    content: Content = Content.NODES
    required: tuple[str, ...] = ()
    allowed: tuple[str, ...] | None = None


ELEMENTS: Mapping[str, ElementSpec] = {
    "config": ElementSpec(Content.VOID),
    "system": ElementSpec(),
    "developer": ElementSpec(),
    "user": ElementSpec(),
    "assistant": ElementSpec(Content.RECORD),
    "msg": ElementSpec(required=("role",)),
    "tool": ElementSpec(),
    "read": ElementSpec(Content.VOID, required=("id", "path")),
    "tool_call": ElementSpec(Content.RECORD, required=("tool_call_id", "function_name")),
    "tool_response": ElementSpec(Content.RECORD, required=("tool_call_id",)),
    "reasoning": ElementSpec(Content.RECORD, required=("id",)),
    "summary": ElementSpec(Content.RECORD),
    "import": ElementSpec(Content.VOID, required=("src",), allowed=("src", "namespace")),
    "doc": ElementSpec(Content.VOID, required=("src",)),
    "img": ElementSpec(Content.VOID, required=("src",)),
    "agent": ElementSpec(required=("src",)),
    "script": ElementSpec(Content.OPAQUE),
    "shell_access": ElementSpec(Content.OPAQUE),
    "moderator_runtime": ElementSpec(Content.OPAQUE),
}

VOIDS = frozenset(name for name, spec in ELEMENTS.items() if spec.content is Content.VOID)
# Elements whose text ends at a literal tag.
LITERAL = frozenset(name for name, spec in ELEMENTS.items() if spec.content in (Content.RECORD, Content.OPAQUE))
IGNORED = frozenset(name for name, spec in ELEMENTS.items() if spec.content is Content.OPAQUE)

# `read` is an element of these tools alone; elsewhere it is text.
READ_TOOLS = ("read_file", "get_contents")
# A tool has at most one of these; with none it is a tool that the engine has.
TOOL_KINDS = ("command", "agent", "mcp_server")
# Where an import is replaced by what it names: the top of a document, and these. (`msg`: by its role.)
IMPORTING = ("user", "system", "developer", "agent")
IMPORTING_ROLES = ("user", "system", "developer")


def may_import(name: str, attributes: Mapping[str, Value]) -> bool:
    """Whether imports inside this element are replaced."""
    return name in IMPORTING or (name == "msg" and attributes.get("role") in IMPORTING_ROLES)

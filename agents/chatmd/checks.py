"""What each element of a tree needs: attributes, and that they fit together."""

import re
from collections.abc import Callable, Iterable, Iterator

from agents.chatmd.diagnostics import Position
from agents.chatmd.tree import Element, Node, walk
from agents.chatmd.vocabulary import ELEMENTS, IGNORED, TOOL_KINDS, may_import

_NAMESPACE = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")

# Code, message and place of a finding.
Found = tuple[str, str, Position]


def check(element: Element) -> Iterator[Found]:
    """What is wrong with one element, by itself. Only those in `CHECKED` can be wrong."""
    name = element.name
    if name in IGNORED:
        yield ("not-supported", f"<{name}> is not supported: it is ignored, nothing of it is executed", element.at)
    elif name in _NEEDING:
        yield from _attributes(element)
    if name in _OF:
        yield from _OF[name](element)


_NEEDING = frozenset(name for name, spec in ELEMENTS.items() if spec.required or spec.allowed is not None)


def _attributes(element: Element) -> Iterator[Found]:
    spec = ELEMENTS[element.name]
    for name in spec.required:
        if not element.value(name):
            yield ("missing-attribute", f"<{element.name}> needs {name}", element.at)
    for name in element.attributes if spec.allowed is not None else ():
        if name not in (spec.allowed or ()):
            yield ("unknown-attribute", f"<{element.name}> has no attribute {name}", element.at)


def second_configs(nodes: Iterable[Node]) -> Iterator[Found]:
    """The configurations that do not count."""
    configs = [node for node in nodes if isinstance(node, Element) and node.name == "config"]
    for each in configs[1:]:
        yield ("second-config", "a second <config>; the first one counts", each.at)


def namespaces(nodes: Iterable[Node]) -> Iterator[Found]:
    """Namespaces of imports: each a name, and one of a kind among those side by side."""
    nodes = list(nodes)
    yield from _side_by_side(nodes)
    for element in walk(nodes):
        if may_import(element.name, element.attributes):
            yield from _side_by_side(element.children)


def _side_by_side(nodes: Iterable[Node]) -> Iterator[Found]:
    taken = set()
    for node in nodes:
        if not isinstance(node, Element) or node.name != "import" or "namespace" not in node.attributes:
            continue
        name = node.value("namespace")
        if not _NAMESPACE.fullmatch(name):
            yield ("import-namespace", f"<import>: the namespace {name!r} is no name", node.at)
        elif name in taken:
            yield ("import-namespace", f"<import>: another import has the namespace {name}", node.at)
        taken.add(name)


def _message(element: Element) -> Iterator[Found]:
    """A status is that of a stored message, which has an id."""
    is_assistant = element.name == "assistant" or element.attributes.get("role") == "assistant"
    if is_assistant and "status" in element.attributes and "id" not in element.attributes:
        yield ("status-without-id", f"<{element.name}> has status, and no id", element.at)


def _tool(element: Element) -> Iterator[Found]:
    kinds = [kind for kind in TOOL_KINDS if kind in element.attributes]
    name = element.value("name")
    if not name and kinds != ["mcp_server"]:
        yield ("missing-attribute", "<tool> needs name", element.at)
    for kind in kinds:
        if not element.value(kind):
            yield ("missing-attribute", f"<tool>: {kind} is empty", element.at)
    shown = name or "a tool"
    if len(kinds) > 1:
        yield ("tool-kinds", f"<tool>: {shown} has {' and '.join(kinds)}; one is the most", element.at)
    elif why := unavailable(element):
        yield ("tool-unavailable", f"<tool>: {shown} is not available: {why}", element.at)


def unavailable(tool: Element) -> str:
    """Why this engine never runs a tool, or nothing."""
    kind = tool.attributes.get("type")
    if "command" in tool.attributes:
        return "commands are not run"
    if kind is not None:
        return f"tools of type {kind} are not run" if isinstance(kind, str) and kind else "its type is not known"
    if tool.value("mcp_server").startswith("stdio:"):
        return "MCP servers are not started as processes"
    return ""


_OF: dict[str, Callable[[Element], Iterator[Found]]] = {"assistant": _message, "msg": _message, "tool": _tool}
CHECKED = IGNORED | _NEEDING | frozenset(_OF)

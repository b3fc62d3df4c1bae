"""A tree as text. What is written reads back as the same tree, without a warning about its spelling."""

import re
from collections.abc import Iterable

from agents.chatmd.lexer import RAW_CLOSE, RAW_OPEN
from agents.chatmd.tree import Element, Node, Text
from agents.chatmd.vocabulary import Attributes, Value

# Text with one of these is written in RAW blocks, whether or not it would be read as something else.
_NEEDS_RAW = re.compile(r"<[A-Za-z_/!]|<\Z|RAW\|")
_DECODED = re.compile("&(?=(?:amp|lt|gt|quot|apos);)")


def write(nodes: Iterable[Node]) -> str:
    """The text of a document with these nodes, each on a line of its own."""
    return "".join(f"{_element(node) if isinstance(node, Element) else text(node.text)}\n" for node in nodes)


def _element(element: Element) -> str:
    if not element.children:
        return tag(element.name, element.attributes, closed=True)
    inner = "".join(text(node.text) if isinstance(node, Text) else _element(node) for node in element.children)
    return f"{tag(element.name, element.attributes)}{inner}</{element.name}>"


def tag(name: str, attributes: Attributes, *, closed: bool = False, between: str = " ") -> str:
    """A tag that begins an element, or is all of it. `between` stands before each attribute."""
    written = "".join(between + attribute(key, value) for key, value in attributes.items())
    if closed and between != " " and attributes:
        return f"<{name}{written}\n/>"
    return f"<{name}{written}{'/' if closed else ''}>"


def attribute(name: str, value: Value) -> str:
    """One attribute as it stands in a tag."""
    if value is True or value is False:
        return name
    value = _DECODED.sub("&amp;", value).replace("<", "&lt;").replace(">", "&gt;")
    if value.endswith("\\"):  # it would take the quotation mark into the value; such a value has no white space
        return f"{name}={value.replace(chr(34), '&quot;').replace(chr(39), '&apos;')}"
    if '"' in value and "'" not in value:
        return f"{name}='{value}'"
    return f'{name}="{value.replace(chr(34), "&quot;")}"'


def text(content: str) -> str:
    """Text inside an element."""
    return raw(content) if _NEEDS_RAW.search(content) else content


def raw(content: str) -> str:
    """Text in as many RAW blocks as it takes: one that holds `|RAW` is cut behind the bar."""
    blocks = []
    while (end := content.find(RAW_CLOSE)) >= 0:
        blocks.append(content[: end + 1])
        content = content[end + 1 :]
    return "".join(f"{RAW_OPEN}{block}{RAW_CLOSE}" for block in [*blocks, content])

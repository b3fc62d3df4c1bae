"""A document as a tree: elements and texts, each with its place."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from agents.chatmd.diagnostics import Position
from agents.chatmd.vocabulary import Attributes, Value

# Bound on levels of elements. Whoever walks a tree may recurse; real documents have four.
MAX_DEPTH = 64


class Text(msgspec.Struct, frozen=True, gc=False):
    """Text, as a model gets it: without comments, with what stood in RAW blocks. Never empty, never beside another."""

    text: str
    at: Position


class Element(msgspec.Struct, frozen=True, gc=False):
    """An element. Its attributes have their last value; a flag is True."""

    name: str
    attributes: Attributes
    children: "tuple[Element | Text, ...]"
    at: Position

    def value(self, attribute: str) -> str:
        """The text of an attribute; empty for a flag, and where there is none."""
        value = self.attributes.get(attribute)
        return value if isinstance(value, str) else ""


Node = Element | Text


class Comment(msgspec.Struct, frozen=True, gc=False):
    """A comment, without its delimiters. Comments are not in the tree."""

    text: str
    at: Position


class Document(msgspec.Struct, frozen=True, gc=False):
    """The elements of a file. At the top there is no text."""

    nodes: tuple[Element, ...] = ()
    comments: tuple[Comment, ...] = ()

    def as_json(self) -> list[dict[str, Any]]:
        """The form that outside tools read."""
        return [_as_json(node) for node in self.nodes]


def _as_json(node: Node) -> dict[str, Any]:
    at = [node.at.line, node.at.column]
    if isinstance(node, Text):
        return {"text": node.text, "at": at}
    children = [_as_json(child) for child in node.children]
    return {"element": node.name, "attributes": node.attributes, "children": children, "at": at}


def walk(nodes: Iterable[Node]) -> Iterator[Element]:
    """Every element, each before those inside it."""
    left = list(nodes)
    left.reverse()
    while left:
        node = left.pop()
        if type(node) is Element:
            yield node
            if node.children:
                left.extend(reversed(node.children))


def height(nodes: Iterable[Node]) -> int:
    """The levels of elements in these nodes."""
    levels = 0
    for node in nodes:
        if isinstance(node, Element):
            levels = max(levels, 1 + (height(node.children) if node.children else 0))
    return levels


Meaning = tuple[str, "tuple[tuple[str, Value], ...]", "tuple[Meaning, ...]"] | str


def meaning(nodes: Iterable[Node]) -> tuple[Meaning, ...]:
    """The tree without its places, to compare two."""
    return tuple(
        node.text if isinstance(node, Text) else (node.name, tuple(node.attributes.items()), meaning(node.children))
        for node in nodes
    )

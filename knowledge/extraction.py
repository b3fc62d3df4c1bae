"""Files that are no text: what connectors hand them to, and what they get. Pure."""

from dataclasses import dataclass
from typing import Protocol


class Unreadable(Exception):
    """One item cannot be read; the others can. The text is the reason, without host paths."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of a file. `pages` are the places in `body` where its pages begin, in order; empty without pages."""

    body: str
    title: str
    content_type: str
    pages: tuple[int, ...] = ()


class Extractor(Protocol):
    """Reads files of formats such as PDF."""

    def takes(self, name: str, data: bytes, content_type: str | None = None) -> bool:
        """Whether the file is of a format for it: by its name, by the type that a server gives, or by how it begins."""
        ...

    async def extract(self, name: str, data: bytes, content_type: str | None = None) -> Extracted:
        """The text of a file that it takes. Raises Unreadable."""
        ...


class TextOnly:
    """An Extractor for those who have none: every file is text."""

    def takes(self, name: str, data: bytes, content_type: str | None = None) -> bool:
        return False

    async def extract(self, name: str, data: bytes, content_type: str | None = None) -> Extracted:
        raise Unreadable("no extractor")


TEXT_ONLY = TextOnly()

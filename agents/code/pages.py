"""HTML pages that documents want as text, each converted in a confined process of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agents.chatmd.building import NotConverted
from engine.config import Config
from engine.extraction import Extractor, open_extractor
from knowledge.connectors import Unfinished
from knowledge.extraction import Unreadable


class Converter:
    """Made by `open_pages`, whose block it does not outlive."""

    def __init__(self, extractor: Extractor) -> None:
        self._extractor = extractor

    async def text(self, page: bytes, *, markdown: bool) -> str | NotConverted:
        """As the protocol says."""
        try:
            return await self._extractor.page(page, markdown=markdown)
        except (Unreadable, Unfinished) as why:
            return NotConverted(str(why))


@asynccontextmanager
async def open_pages(config: Config) -> AsyncIterator[Converter]:
    """What converts pages. Its processes start with the first one, and end with the block."""
    async with open_extractor(config) as extractor:
        yield Converter(extractor)

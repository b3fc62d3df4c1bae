"""A tenant's documents for front ends: in pages, by id or title, and a check for changes."""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from engine.errors import Code, Problem
from knowledge.access import Reader
from knowledge.store import DOCUMENT_URI, BrowsableStore, Document, Listed, StoreError

__all__ = ["DOCUMENT_URI", "Document", "Documents", "Listed", "answered"]

T = TypeVar("T")


async def answered(answer: Awaitable[T]) -> T:
    """Await an answer of the store. Raises Problem `unavailable` if the store fails."""
    try:
        return await answer
    except StoreError as error:
        raise Problem(Code.UNAVAILABLE, f"the knowledge store cannot answer: {error}", retry_after_s=1) from None


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of one store that one reader may read. Every method raises Problem `unavailable` if it fails."""

    _store: BrowsableStore
    _reader: Reader

    async def page(self, after: tuple[str, str] | None, limit: int) -> tuple[Listed, ...]:
        """Documents ordered by source label, then source_id: the first ones, or those after a pair of the two."""
        return await answered(self._store.documents(self._reader, after=after, limit=limit))

    async def get(self, document_id: str) -> Document | None:
        """The document with this id, or None."""
        return await answered(self._store.get(document_id, self._reader))

    async def titled(self, source: str, title: str, limit: int) -> tuple[Document, ...]:
        """The documents of one source label with exactly this title."""
        ids = await answered(self._store.titled(source, title, self._reader, limit=limit))
        found = [await self.get(each) for each in ids]
        return tuple(document for document in found if document is not None)

    async def sources(self) -> tuple[str, ...]:
        """The labels of all sources, sorted."""
        return tuple(source.source for source in await answered(self._store.sources(self._reader)))

    async def titles(self, text: str, source: str | None, limit: int) -> tuple[str, ...]:
        """Titles that contain all words of `text`, or words beginning with them, from one source or from all."""
        return await answered(self._store.titles(text, source, self._reader, limit=limit))

    async def revision(self) -> int:
        """A number that changes whenever documents have changed, also through another process."""
        return await answered(self._store.revision(self._reader))

    async def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """A hash of each of these documents, by id; without those that do not exist."""
        return await answered(self._store.digests(ids, self._reader))

"""A tenant's documents as front ends read them: in pages, by id or title, and whether they changed."""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from engine.errors import Code, Problem
from knowledge.store import BrowsableStore, Document, Listed, StoreError

__all__ = ["Document", "Documents", "Listed", "answered"]

T = TypeVar("T")


async def answered(answer: Awaitable[T]) -> T:
    """What the store answers. Raises Problem `unavailable` when it cannot."""
    try:
        return await answer
    except StoreError as error:
        raise Problem(Code.UNAVAILABLE, f"the knowledge store cannot answer: {error}", retry_after_s=1) from None


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of one store. Every method raises Problem `unavailable` when the store cannot answer."""

    _store: BrowsableStore

    async def page(self, after: tuple[str, str] | None, limit: int) -> tuple[Listed, ...]:
        """Documents by source label, then source_id: the first ones, or those after a pair of the two."""
        return await answered(self._store.documents(after=after, limit=limit))

    async def get(self, document_id: str) -> Document | None:
        """The document, or None when there is none of that id."""
        return await answered(self._store.get(document_id))

    async def titled(self, source: str, title: str, limit: int) -> tuple[Document, ...]:
        """The documents of one source label that have exactly this title."""
        found = [await self.get(each) for each in await answered(self._store.titled(source, title, limit=limit))]
        return tuple(document for document in found if document is not None)

    async def sources(self) -> tuple[str, ...]:
        """The labels of all sources, sorted."""
        return tuple(source.source for source in await answered(self._store.sources()))

    async def titles(self, text: str, source: str | None, limit: int) -> tuple[str, ...]:
        """Titles that have all words of `text`, each maybe half typed, of one source or of all."""
        return await answered(self._store.titles(text, source, limit=limit))

    async def revision(self) -> int:
        """A number that changes when documents may have changed, whoever changed them."""
        return await answered(self._store.revision())

    async def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """A hash of each of these documents, by id; what is not there is missing."""
        return await answered(self._store.digests(ids))

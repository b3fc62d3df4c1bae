"""What a hit is: a document by its best chunk, by its best ones on average, or a chunk."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from knowledge.access import EVERYTHING
from knowledge.embed import embed_pending
from knowledge.embedding import Embedders
from knowledge.embedding.fusion import Settings
from knowledge.embedding.static import StaticEmbedder
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import MODES, Batch, Hit, NewDocument, SearchQuery

SOURCE = "filesystem:notes"
PUMPS = ("the pump and the valve of the pump", "a pump", "old pump rooms, and much else besides", "flour, water, salt")


@asynccontextmanager
async def opened(path: Path, **shape: Any) -> AsyncIterator[SqliteStore]:
    embedder = StaticEmbedder()
    async with open_store(path, create=True, embedders=Embedders(embedder), settings=Settings(**shape)) as store:
        documents = [
            NewDocument(source_id=source_id, body="\n\n".join(chunks), chunks=chunks, digest="d")
            for source_id, chunks in {"pumps.md": PUMPS, "best.md": ("a pump pump", "bread", "yeast")}.items()
        ]
        await store.apply(Batch(source=SOURCE, upserts=documents))
        await embed_pending(store, embedder)
        yield store


async def ask(store: SqliteStore, query: str, **fields: Any) -> tuple[Hit, ...]:
    return (await store.search(SearchQuery(query=query, **fields), EVERYTHING)).hits


@pytest.mark.parametrize("mode", MODES)
async def test_chunks_are_hits_of_their_own_up_to_so_many_of_a_document(path: Path, mode: Any) -> None:
    async with opened(path, group_by="chunk", max_chunks_per_doc=2) as store:
        hits = await ask(store, "pump", mode=mode, passages=2, explain=True)
        assert sorted(hit.source_id for hit in hits)[-2:] == ["pumps.md", "pumps.md"]
        assert sum(hit.source_id == "pumps.md" for hit in hits) == 2
        assert len({(hit.id, hit.lines) for hit in hits}) == len({(hit.id, hit.snippet) for hit in hits}) == len(hits)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        first = next(hit for hit in hits if hit.source_id == "pumps.md")
        later = next(hit for hit in hits if hit.source_id == "pumps.md" and hit is not first)
        assert len(first.passages or ()) == 2
        assert later.passages == ()
        assert await ask(store, "pump", mode=mode, passages=2, explain=True, limit=1) == hits[:1]
    async with open_store(path, settings=Settings(group_by="chunk", max_chunks_per_doc=1)) as store:
        assert [hit.source_id for hit in await ask(store, "pump")] == ["best.md", "pumps.md"]


async def test_a_document_ranks_as_its_best_chunks_on_average(path: Path) -> None:
    async with opened(path, group_by="chunk") as store:
        chunks = await ask(store, "pump", explain=True)
        ranks = [hit.explain.bm25 for hit in chunks if hit.explain and hit.source_id == "pumps.md"]
        cosines = [
            hit.explain.cosine for hit in await ask(store, "pump", mode="semantic", explain=True)
            if hit.explain and hit.source_id == "pumps.md"
        ]  # fmt: skip
    async with opened(path, doc_agg="avg", max_chunks_per_doc=2) as store:
        hits = await ask(store, "pump", explain=True)
        assert [hit.source_id for hit in hits] == ["best.md", "pumps.md"]
        assert hits[1].explain
        assert hits[1].explain.bm25 == pytest.approx(sum(each or 0 for each in ranks[:2]) / 2, abs=1e-5)
        assert hits[1].snippet == chunks[1].snippet  # shown by its best chunk
        near = {hit.source_id: hit.explain for hit in await ask(store, "pump", mode="semantic", explain=True)}
        assert near["pumps.md"]
        assert near["pumps.md"].cosine == pytest.approx(sum(each or 0 for each in cosines[:2]) / 2, abs=1e-5)
        both = {hit.source_id: hit.explain for hit in await ask(store, "pump", mode="hybrid", explain=True)}
        assert both["pumps.md"]
        assert (both["pumps.md"].bm25, both["pumps.md"].cosine) == (hits[1].explain.bm25, near["pumps.md"].cosine)

"""The documents of `corpus/`, with their chunks as the engine cuts them, and a store that holds them."""

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from knowledge import chunking, places, textfiles
from knowledge.embed import embed_pending
from knowledge.embedding import Embedder, Embedders
from knowledge.embedding.fusion import Settings
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import Batch, NewDocument

CORPUS = Path(__file__).with_name("corpus")
SOURCE = "filesystem:corpus"
# The engine's default size of chunks ([chunking] max_tokens).
MAX_TOKENS = 700


@dataclass(frozen=True, slots=True)
class Chunk:
    source_id: str
    title: str
    text: str
    lines: tuple[int, int]


def documents() -> list[NewDocument]:
    """All of them, as a source of files makes them."""
    found = []
    for path in sorted(CORPUS.rglob("*.md")):
        data = path.read_bytes()
        text = textfiles.text_of(path.name, data)
        found.append(
            NewDocument(
                source_id=path.relative_to(CORPUS).as_posix(),
                title=text.title,
                body=text.body,
                chunks=chunking.split(text.body, max_tokens=MAX_TOKENS),
                digest=hashlib.sha256(data).hexdigest(),
                content_type=text.content_type,
            )
        )
    return found


def chunks(documents: Sequence[NewDocument]) -> list[Chunk]:
    return [
        Chunk(each.source_id, each.title or "", text, (place.first, place.last))
        for each in documents
        for text, place in zip(each.chunks, places.places(each.body, each.chunks, markdown=True), strict=True)
        if place is not None
    ]


@asynccontextmanager
async def filled(
    file: Path, documents: Sequence[NewDocument], embedder: Embedder, settings: Settings
) -> AsyncIterator[SqliteStore]:
    """A store in `file` with the documents and their vectors; what it has already is not made again."""
    async with open_store(file, create=True, embedders=Embedders(embedder), settings=settings, language="en") as store:
        await store.apply(Batch(source=SOURCE, upserts=documents))
        report = await embed_pending(store, embedder)
        if report.failed:
            raise RuntimeError(f"{report.failed} documents have no vectors: {report.error}")
        yield store

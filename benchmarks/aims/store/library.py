"""A store that is filled from folders, and a bare index of the same chunks."""

import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.aims.harness import one_round
from benchmarks.aims.store.bare import DrawnEmbedder, bare_index
from benchmarks.aims.store.corpus import MAX_TOKENS, SECTIONS, Page, pages, questions
from knowledge.connectors.filesystem import FilesystemConnector
from knowledge.embed import embed_pending
from knowledge.embedding import Embedders
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.sync import sync

# Turns of the synchronisation, each of a part of the documents, in a folder of its own.
PARTS = 5


@dataclass(slots=True)
class Library:
    """The files of a filled store and of the bare index, and the turns that filled them, in CPU seconds of a part."""

    folder: Path
    asked: Sequence[str]
    ours_s: list[float] = field(default_factory=list)
    bare_s: list[float] = field(default_factory=list)
    megabytes: float = 0.0

    @property
    def store(self) -> Path:
        return self.folder / "store.sqlite"

    @property
    def bare(self) -> Path:
        return self.folder / "bare.sqlite"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[SqliteStore]:
        """The store, with no answer cached."""
        async with open_store(self.store, embedders=Embedders(DrawnEmbedder())) as store:
            yield store


async def filled(folder: Path, chunks: int, asked: int) -> Library:
    """A library of so many chunks, synchronised from Markdown, and then with vectors."""
    documents = list(pages(chunks // SECTIONS))
    library = Library(folder, questions(documents, asked))
    library.megabytes = sum(len(page.body) for page in documents) / 1e6 / PARTS
    parts = [documents[number::PARTS] for number in range(PARTS)]
    for number, part in enumerate(parts):
        write_files(folder / f"part{number}", part)
    async with open_store(library.store, create=True) as store:
        with bare_index(library.bare) as bare:
            for number, part in enumerate(parts):
                for turn in one_round(("ours", "bare"), number):
                    if turn == "bare":
                        library.bare_s.append(bare.insert(part))
                        continue
                    began_s = time.process_time()
                    connector = FilesystemConnector(folder / f"part{number}")
                    await sync(store, f"filesystem:part{number}", connector, max_tokens=MAX_TOKENS)
                    library.ours_s.append(time.process_time() - began_s)
        await embed_pending(store, DrawnEmbedder(), batch_size=1024)
    return library


def write_files(folder: Path, documents: Sequence[Page]) -> None:
    """Each document as a file."""
    past = time.time() - 3600
    for page in documents:
        path = folder / page.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page.body)
        os.utime(path, (past, past))

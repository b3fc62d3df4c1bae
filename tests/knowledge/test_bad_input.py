"""Input that is wrong in ways that no other file of tests has: it is named once, and what was stored stays."""

import struct
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from knowledge.access import EVERYTHING
from knowledge.connectors import Emitted, Event, Found, Item
from knowledge.connectors.filesystem import FilesystemConnector
from knowledge.embed import embed_pending
from knowledge.embedding import Model
from knowledge.sqlite.store import open_store
from knowledge.store import SearchQuery
from knowledge.sync import sync

LABEL = "filesystem:docs"


async def test_a_file_that_is_one_line_of_megabytes_is_cut_and_found(path: Path, root: Path) -> None:
    (root / "line.md").write_text("filler " * 300_000 + "needle")
    (root / "empty.md").write_text("")
    async with open_store(path, create=True) as store:
        report = await sync(store, LABEL, FilesystemConnector(root))
        (hit,) = (await store.search(SearchQuery(query="needle"), EVERYTHING)).hits
    assert (report.fetched, report.skipped, hit.source_id, hit.lines) == (2, [], "line.md", (1, 1))


async def test_a_scan_that_goes_back_to_yesterdays_checkpoint_repeats_work_and_loses_nothing(path: Path) -> None:
    begun: list[str | None] = []

    class Log:
        last = "10"

        async def stream(self, checkpoint: str | None) -> AsyncGenerator[Event]:
            begun.append(checkpoint)
            for n in range(int(checkpoint or 0), 10):
                yield Emitted(Found(source_id=f"i{n}"), Item(body=f"word {n}"), str(n + 1))
            yield Emitted(Found(source_id="i9"), Item(body="word 9"), self.last)

    log = Log()
    async with open_store(path, create=True) as store:
        for last in ("10", "3", "10", "10"):
            log.last = last
            await sync(store, "script:log", log)
            found = await store.search(SearchQuery(query="word", limit=100), EVERYTHING)
            assert {hit.source_id for hit in found.hits} == {f"i{n}" for n in range(10)}
    assert begun == [None, "10", "3", "10"]


async def test_vectors_that_are_no_numbers_are_not_stored_and_the_next_pass_mends_it(path: Path, root: Path) -> None:
    class Broken:
        model = Model("broken", 2)
        value = float("nan")

        async def embed(self, texts: Sequence[str]) -> list[bytes]:
            return [struct.pack("<2f", self.value, 0.0) for _ in texts]

    embedder = Broken()
    (root / "a.md").write_text("alpha")
    async with open_store(path, create=True) as store:
        await sync(store, LABEL, FilesystemConnector(root))
        for value in (float("nan"), float("inf")):
            embedder.value = value
            report = await embed_pending(store, embedder)
            assert (report.embedded, report.failed) == (0, 1)
            assert report.error is not None
        embedder.value = 1.0
        assert (await embed_pending(store, embedder)).embedded == 1

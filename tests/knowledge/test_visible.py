"""Answers are those of a store with nothing but what the reader may read: scores, order, excerpts, to the last bit."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from effort import effort
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knowledge.access import EVERYTHING, Access, Reader, SourceAccess
from knowledge.embed import embed_pending
from knowledge.embedding import Embedders, Model
from knowledge.embedding.fusion import Settings
from knowledge.sqlite import matching
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import MODES, Batch, NewDocument, SearchAnswer, SearchQuery

SOURCES = ("filesystem:notes", "git:notes")
PLAIN, HR = Reader.of([]), Reader.of(["hr"])
READERS = (PLAIN, HR, Reader.of(["hr"], ["git"]), Reader.of(None, ["filesystem:notes"]))
WORDS = ["the", "of", "queue", "queues", "refund", "refunds", "broker", "window_s", "悬空", "悬空引用", '"the queue"']


class Counts:
    """An embedder whose vector is how often each word occurs."""

    model = Model("counts", len(WORDS))

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        return [self.vector([text.split().count(word) for word in WORDS]) for text in texts]

    def vector(self, counts: Sequence[int]) -> bytes:
        length = sum(n * n for n in counts) ** 0.5 or 1
        return struct.pack(f"<{len(WORDS)}f", *(n / length for n in counts))


CHUNKS = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join), min_size=1, max_size=3)
LABELS = st.sampled_from([frozenset[str](), frozenset({"hr"}), frozenset({"legal"})])
DOCUMENTS = st.lists(st.tuples(CHUNKS, LABELS, st.sampled_from(SOURCES)), min_size=1, max_size=20)
QUERIES = st.builds(
    SearchQuery, query=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join),
    mode=st.sampled_from(MODES), limit=st.integers(1, 4), source=st.sampled_from([None, "git"]),
    passages=st.sampled_from([0, 2]), explain=st.booleans(), prefix=st.booleans(),
)  # fmt: skip


SHAPES = st.sampled_from([
    Settings(), Settings(doc_agg="avg", max_chunks_per_doc=2), Settings(group_by="chunk", max_chunks_per_doc=2)
])  # fmt: skip


def made(number: int, chunks: Sequence[str], labels: frozenset[str]) -> NewDocument:
    return NewDocument(
        source_id=f"d{number}", body="", chunks=chunks, digest="d", title=chunks[0] if number % 2 else None,
        updated_at=f"2026-01-0{number % 4 + 1}T00:00:00Z", access=labels,
    )  # fmt: skip


async def fill(store: SqliteStore, documents: Sequence[tuple[int, Sequence[str], frozenset[str], str]]) -> None:
    for source in SOURCES:
        upserts = [made(n, chunks, labels) for n, chunks, labels, of in documents if of == source]
        await store.apply(Batch(source=source, upserts=upserts))
    await embed_pending(store, Counts())


@settings(max_examples=effort(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    documents=DOCUMENTS, queries=st.lists(QUERIES, min_size=1, max_size=6), reader=st.sampled_from(READERS),
    prune=st.booleans(), shape=SHAPES,
)  # fmt: skip
def test_every_search_answers_as_a_store_of_what_the_reader_may_read(
    documents: list[Any],
    queries: list[SearchQuery],
    reader: Reader,
    prune: bool,
    shape: Settings,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("stores")
    numbered = [(n, *each) for n, each in enumerate(documents)]

    async def scenario() -> None:
        embedders = Embedders(Counts())
        async with (
            open_store(folder / "whole", create=True, embedders=embedders, settings=shape) as whole,
            open_store(folder / "shadow", create=True, embedders=embedders, settings=shape) as shadow,
        ):
            await fill(whole, numbered)
            await fill(shadow, [each for each in numbered if reader.sees(each[3], each[2])])
            for query in queries:
                assert await whole.search(query, reader) == await shadow.search(query, EVERYTHING)

    with pytest.MonkeyPatch.context() as patch:
        if prune:
            patch.setattr(matching, "_MANY_ROWS", 0)
            patch.setattr(matching, "_ROWS_PER_DOCUMENT", 1)
            patch.setattr(matching, "_TOO_MANY", 1.1)
        trio.run(scenario)


async def search(store: SqliteStore, query: str, reader: Reader) -> SearchAnswer:
    return await store.search(SearchQuery(query=query), reader)


async def test_how_often_a_word_stands_in_hidden_documents_does_not_show(path: Path) -> None:
    source = SOURCES[0]
    async with open_store(path, create=True, access=SourceAccess({source: Access.of()})) as store:
        open_ones = [
            made(0, ["salary of a queue"], frozenset()),
            made(2, ["broker of a window, and more"], frozenset()),
        ]
        fillers = [made(n, ["nothing to see"], frozenset()) for n in range(10, 20)]
        await store.apply(Batch(source=source, upserts=[*open_ones, *fillers]))
        before = {reader: await search(store, "salary broker", reader) for reader in (PLAIN, EVERYTHING)}
        assert before[PLAIN] == before[EVERYTHING]
        secrets = [made(n, ["salary salary"], frozenset({"hr"})) for n in range(20, 30)]
        await store.apply(Batch(source=source, upserts=secrets))
        assert await search(store, "salary broker", PLAIN) == before[PLAIN]
        now = await search(store, "salary broker", EVERYTHING)
        scores = {hit.source_id: hit.score for hit in now.hits}
        assert scores["d2"] > scores["d0"]  # to those who may read them, it is not rare any more
        await store.apply(Batch(source=source, deletes=[each.source_id for each in secrets]))
        assert await search(store, "salary broker", EVERYTHING) == before[EVERYTHING]


class Alike:
    """An embedder whose vectors are as near to a query's, but for a difference behind the last digit of scores."""

    model = Model("alike", 2)

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        cosines = [1.0 if text == "query" else 0.9 - 2e-7 * ("less" in text) for text in texts]
        return [struct.pack("<2f", cosine, (1 - cosine * cosine) ** 0.5) for cosine in cosines]


async def test_last_digits_of_a_product_which_hidden_rows_have_an_effect_on_do_not_choose_the_candidates(
    path: Path,
) -> None:
    async with open_store(path, create=True, embedders=Embedders(Alike())) as store:
        documents = [made(n, [f"text {n}" if n else "less"], frozenset()) for n in range(400)]
        await store.apply(Batch(source=SOURCES[0], upserts=documents))
        await embed_pending(store, Alike())
        found = await store.search(SearchQuery(query="query", mode="semantic", limit=80), PLAIN)
        assert len({hit.score for hit in found.hits}) == 1
        assert sorted(int(hit.source_id[1:]) for hit in found.hits) == list(range(80))

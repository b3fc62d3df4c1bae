"""`explain`: why a hit stands where it stands, what the filters left, and nothing of what is hidden."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from knowledge.access import EVERYTHING, Access, Reader, SourceAccess
from knowledge.embed import embed_pending
from knowledge.embedding import Embedder, Embedders
from knowledge.embedding.static import StaticEmbedder
from knowledge.ranking import MAX_TERMS
from knowledge.sqlite import explaining, matching
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import Batch, NewDocument, SearchAnswer, SearchQuery
from storage.lanes import rows

SOURCE, SECRET = "filesystem:notes", "filesystem:secret"
ACCESS = SourceAccess({SECRET: Access.of(["hr"])})
PLAIN = Reader.of([])


def document(source_id: str, text: str, **fields: Any) -> NewDocument:
    return NewDocument(source_id=source_id, body=text, chunks=(text,), digest=text, **fields)


NOTES = (
    document("both.md", "the pump has a valve", updated_at="2026-02-01T00:00:00Z"),
    document("pump.md", "a pump and another pump", updated_at="2026-01-01T00:00:00Z"),
    document("bread.md", "flour, water and salt"),
)


@asynccontextmanager
async def opened(path: Path, *secrets: NewDocument, embedder: Embedder | None = None) -> AsyncIterator[SqliteStore]:
    embedders = None if embedder is None else Embedders(embedder)
    async with open_store(path, create=True, access=ACCESS, embedders=embedders) as store:
        await store.apply(Batch(source=SOURCE, upserts=NOTES))
        await store.apply(Batch(source=SECRET, upserts=secrets))
        if embedder is not None:
            await embed_pending(store, embedder)
        yield store


async def ask(store: SqliteStore, query: str, reader: Reader = EVERYTHING, **fields: Any) -> SearchAnswer:
    return await store.search(SearchQuery(query=query, explain=True, **fields), reader)


def words(answer: SearchAnswer, index: int = 0) -> Sequence[tuple[str, int, bool]]:
    explained = answer.hits[index].explain
    assert explained is not None
    return [(each.word, each.df, each.found) for each in explained.words]


async def test_a_search_by_words_says_what_each_word_weighs_and_what_the_hit_has_of_them(path: Path) -> None:
    async with opened(path) as store:
        answer = await ask(store, "pump valve unheard")
        assert [hit.source_id for hit in answer.hits] == ["both.md", "pump.md"]
        assert words(answer) == [("pump", 2, True), ("valve", 1, True), ("unheard", 0, False)]
        assert words(answer, 1) == [("pump", 2, True), ("valve", 1, False), ("unheard", 0, False)]
        first, second = (hit.explain for hit in answer.hits)
        assert first is not None
        assert second is not None
        assert first.words[1].weight > first.words[0].weight > first.words[2].weight == 0
        assert (first.keyword_norm, first.complete) == (1.0, False)
        assert first.bm25 is not None
        assert second.bm25 is not None
        assert second.keyword_norm == pytest.approx(second.bm25 / first.bm25, abs=1e-5)
        assert [hit.score for hit in answer.hits] == pytest.approx([first.keyword_norm, second.keyword_norm], abs=1e-5)
        assert (first.cosine, first.vector_norm, first.alpha, first.certain) == (None, None, None, None)
        complete = (await ask(store, "pump valve")).hits[0].explain
        assert complete is not None
        assert complete.complete
        plain = await store.search(SearchQuery(query="pump valve unheard"), EVERYTHING)
        assert (plain.explain, {hit.explain for hit in plain.hits}) == (None, {None})


async def test_a_search_by_both_adds_what_it_says_it_adds(path: Path) -> None:
    async with opened(path, embedder=StaticEmbedder()) as store:
        answer = await ask(store, "pump water valve", mode="hybrid")
        for hit in answer.hits:
            why = hit.explain
            assert why is not None
            assert why.alpha is not None
            assert why.keyword_norm is not None
            assert why.vector_norm is not None
            assert why.certain is (False if why.certain is not None else None)
            assert hit.score == pytest.approx(
                why.alpha * why.vector_norm + (1 - why.alpha) * why.keyword_norm, abs=1e-5
            )
        assert answer.explain is not None
        assert (answer.explain.mode, answer.explain.keyword, answer.explain.vector) == ("hybrid", 3, 3)
        certain = (await ask(store, "pump valve", mode="hybrid")).hits[0].explain
        assert certain is not None
        assert certain.certain
        near = await ask(store, "machines that move water", mode="semantic")
        assert near.explain is not None
        assert (near.explain.keyword, near.explain.vector) == (None, 3)
        why = near.hits[0].explain
        assert why is not None
        assert why.cosine == why.vector_norm == near.hits[0].score
        assert (why.words, why.bm25, why.keyword_norm, why.alpha) == ((), None, None, None)


async def test_it_says_what_each_filter_leaves_and_what_all_of_them_do(path: Path) -> None:
    async with opened(path, document("pay.md", "pump money")) as store:
        answer = await ask(store, "pump", source="notes", since="2026-01-15", path="b*")
        assert answer.explain is not None
        assert (answer.explain.documents, answer.explain.searched) == (4, 1)
        assert answer.explain.filters == (("source", 3), ("since", 1), ("path", 2))
        assert words(answer) == [("pump", 1, True)]  # of the one that was searched
        nothing = await ask(store, "...", source="notes")
        assert nothing.hits == ()
        assert nothing.explain is not None
        assert (nothing.explain.documents, nothing.explain.searched, nothing.explain.keyword) == (4, 3, 0)
        instead = await ask(store, "pump", mode="hybrid")
        assert instead.explain is not None
        assert instead.explain.mode == "keyword"  # that of the answer: there is no embedder


@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid"])
async def test_what_a_reader_may_not_see_is_not_counted(path: Path, tmp_path: Path, mode: Any) -> None:
    secrets = [document(f"s{n}.md", f"pump valve payroll {n}") for n in range(20)]
    async with (
        opened(path, *secrets, embedder=StaticEmbedder()) as store,
        opened(tmp_path / "shadow.sqlite", embedder=StaticEmbedder()) as shadow,
    ):
        for query in ("pump", "payroll", "valve payroll"):
            here, there = await ask(store, query, PLAIN, mode=mode), await ask(shadow, query, mode=mode)
            assert [each.explain and each.explain.words for each in here.hits] == [
                each.explain and each.explain.words for each in there.hits
            ]
            assert here.explain == there.explain


async def test_its_work_is_bounded_by_the_words_that_count(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "COUNTED", 2)
    async with opened(path, *(document(f"s{n}.md", "pump") for n in range(9))) as store:
        answer = await ask(store, " ".join(["pump", *(f"word{n}" for n in range(99))]))
        assert words(answer)[0] == ("pump", 2, True)
        assert len(words(answer)) == MAX_TERMS


async def test_documents_with_a_half_typed_word_are_collected_once_and_not_for_each_hit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counted(db: Any, sql: str, bindings: Any = ()) -> Any:
        given = bindings.values() if isinstance(bindings, dict) else bindings
        asked.extend(each for each in given if isinstance(each, str) and each.endswith(" *"))
        return rows(db, sql, bindings)

    for module in (explaining, matching):
        monkeypatch.setattr(module, "rows", counted)
    texts = [f"drain {'pump pumps' if n % 2 else 'valve'}{n}" for n in range(20)]
    async with opened(path, *(document(f"s{n}.md", text) for n, text in enumerate(texts))) as store:
        answer = await ask(store, "drain pum", prefix=True, limit=30)
        found = {
            hit.source_id: hit.explain and hit.explain.words[1].found for hit in answer.hits if hit.source_id[0] == "s"
        }
        assert found == {f"s{n}.md": bool(n % 2) for n in range(20)}
        assert len(asked) < 8

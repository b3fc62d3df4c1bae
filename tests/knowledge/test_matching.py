"""Ranks of few rows give the hits that ranks of all rows give."""

from typing import Any

import apsw
import pytest
from effort import effort
from hypothesis import given, settings
from hypothesis import strategies as st

from knowledge import ranking
from knowledge.access import NOTHING_KNOWN
from knowledge.embedding.fusion import DEFAULT, Settings
from knowledge.sqlite import matching, schema, visible, writing
from knowledge.store import Batch, NewDocument, SearchQuery

# From frequent to rare, with forms in common.
WORDS = ["the", "of", "to", "queue", "queues", "refund", "refunds", "broker", "window_s", "悬空", "悬空引用"]
FREQUENT_FIRST = st.integers(0, 60).map(lambda n: WORDS[min(int((n / 60) ** 3 * len(WORDS)), len(WORDS) - 1)])
TEXTS = st.lists(st.lists(FREQUENT_FIRST, min_size=1, max_size=8).map(" ".join), min_size=1, max_size=3)


def store_of(documents: list[list[str]]) -> apsw.Connection:
    db = apsw.Connection(":memory:")
    db.execute(schema.SCHEMA)
    upserts = [
        NewDocument(
            source_id=f"{n % 3}/{n}", body="", chunks=chunks, digest="d", title=chunks[0] if n % 2 else None,
            updated_at=f"2026-01-0{n % 4 + 1}T00:00:00Z",
        )
        for n, chunks in enumerate(documents)
    ]  # fmt: skip
    writing.apply(db, Batch(source="filesystem:notes", upserts=upserts), NOTHING_KNOWN)
    return db


def hits(db: apsw.Connection, query: SearchQuery, shape: Settings = DEFAULT) -> list[Any]:
    match = ranking.parse_query(query.query, languages=("en",))
    return matching.ranked(db, match, matching.conditions(query), query.limit, shape)


SHAPES = (DEFAULT, Settings(group_by="chunk", max_chunks_per_doc=2), Settings(doc_agg="avg", max_chunks_per_doc=2))


@settings(max_examples=effort(60), deadline=None)
@given(
    st.lists(TEXTS, min_size=1, max_size=40),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join),
    st.integers(1, 8),
    st.sampled_from([None, "0/*", "1/*"]),
    st.sampled_from(SHAPES),
)
def test_ranks_of_few_rows_give_the_hits_that_ranks_of_all_give(
    documents: list[list[str]], words: str, limit: int, path: str | None, shape: Settings
) -> None:
    db, query = store_of(documents), SearchQuery(query=words, limit=limit, path=path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "_SPARE", 1000)
        patch.setattr(matching, "_MANY_ROWS", 10**9)
        every = hits(db, query, shape)
    for spare in (1, 3, 100):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(matching, "_SPARE", spare)
            patch.setattr(matching, "_MANY_ROWS", 0)
            patch.setattr(matching, "_ROWS_PER_DOCUMENT", 1)
            patch.setattr(matching, "_TOO_MANY", 1.1)
            assert hits(db, query, shape) == every
    db.close()


def test_the_order_of_equal_chunks_is_theirs_in_the_document() -> None:
    db = store_of([["one pump", "two pump", "six pump"]])
    found = hits(db, SearchQuery(query="pump"), Settings(group_by="chunk"))
    assert [each.chunk & 3 for each, _ in found] == [0, 1, 2]
    db.close()


def test_the_worth_of_a_word_is_never_less_than_what_it_adds() -> None:
    db = store_of([["needle " * times, *["hay"] * 9] for times in range(1, 20)])
    needle = "FROM words WHERE words MATCH 'needle'"
    count, chunks = (db.execute(sql).get for sql in (f"SELECT count(*) {needle}", "SELECT count(*) FROM chunks"))
    best = db.execute(f"SELECT min(rank) {needle} AND rank MATCH 'bm25({', '.join(map(str, visible.WEIGHTS))})'").get
    assert 0 < -best < matching._most(count, chunks)
    db.close()

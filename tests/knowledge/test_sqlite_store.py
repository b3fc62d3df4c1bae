import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import trio.testing
import warm_start
from effort import effort
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knowledge.access import EVERYTHING, Access, Reader, SourceAccess
from knowledge.sqlite import schema
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import (
    MODES,
    Batch,
    EmbeddingsDisabled,
    Hit,
    Mode,
    NewDocument,
    SearchQuery,
    StoreError,
    SyncMark,
)

SOURCE = "filesystem:notes"


def document(source_id: str, *texts: str, **fields: Any) -> NewDocument:
    fields.setdefault("title", source_id)
    return NewDocument(source_id=source_id, body="\n\n".join(texts), chunks=texts or ("",), digest="d", **fields)


async def fill(store: SqliteStore, *documents: NewDocument, source: str = SOURCE) -> None:
    await store.apply(Batch(source=source, upserts=documents))


async def search(store: SqliteStore, query: str, **fields: Any) -> tuple[Hit, ...]:
    return (await store.search(SearchQuery(query=query, **fields), EVERYTHING)).hits


def names(hits: Sequence[Hit]) -> list[str]:
    return [hit.source_id for hit in hits]


def contents(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with open_store(path, create=True) as opened:
        yield opened


# --- searching


async def test_documents_with_all_words_come_before_those_with_some(store: SqliteStore) -> None:
    await fill(
        store,
        document("one.md", "deploy deploy deploy deploy"),
        document("both.md", "a long text in which the words rust and much later deploy occur " + "filler " * 50),
        document("none.md", "nothing of interest"),
    )
    hits = await search(store, "rust deploy")
    assert names(hits) == ["both.md", "one.md"]
    assert hits[0].score > hits[1].score


async def test_words_spread_over_the_chunks_and_title_of_a_document_count_as_all(store: SqliteStore) -> None:
    await fill(
        store,
        document("spread.md", "alpha " + "filler " * 40, "beta " + "filler " * 40, title="Gamma"),
        document("near.md", "alpha beta alpha beta"),
    )
    assert names(await search(store, "alpha beta gamma")) == ["spread.md", "near.md"]


async def test_a_document_is_found_once_with_its_best_chunk_as_snippet(store: SqliteStore) -> None:
    await fill(store, document("a.md", "zebra among many other words " + "x " * 300, "zebra zebra zebra", "zebra y"))
    (hit,) = await search(store, "zebra")
    assert hit.snippet == "zebra zebra zebra"


async def test_a_word_in_the_title_counts_more_than_one_in_the_text(store: SqliteStore) -> None:
    await fill(
        store,
        document("text.md", "some words about rollback here", title="Other"),
        document("title.md", "some words about other things", title="Rollback"),
    )
    assert names(await search(store, "rollback")) == ["title.md", "text.md"]


async def test_a_single_hit_scores_one_and_all_scores_are_in_zero_to_one(store: SqliteStore) -> None:
    await fill(store, document("a.md", "unique common"), document("b.md", "common " * 5), document("c.md", "common x"))
    assert [hit.score for hit in await search(store, "unique")] == [1.0]
    found = [hit.score for hit in await search(store, "unique common")]
    assert found == sorted(found, reverse=True)
    assert all(0 <= score <= 1 for score in found)


async def test_ties_go_to_the_newer_document_then_to_the_smaller_id_and_never_change(store: SqliteStore) -> None:
    dates = {"old.md": "2024-01-01T00:00:00Z", "new.md": "2025-01-01T00:00:00Z", "undated.md": None}
    await fill(store, *(document(name, "same words", title="t", updated_at=at) for name, at in dates.items()))
    await fill(store, *(document(f"{n}.md", "same words", title="t", updated_at=None) for n in range(5)))
    hits = await search(store, "same words")
    assert names(hits)[:2] == ["new.md", "old.md"]
    assert [hit.id for hit in hits[2:]] == sorted(hit.id for hit in hits[2:])
    assert await search(store, "same words") == hits


async def test_filters_come_before_ranking_so_a_low_ranking_hit_is_still_found(store: SqliteStore) -> None:
    await fill(
        store, *(document(f"{n}.md", "needle needle needle", updated_at="2024-01-01T00:00:00Z") for n in range(150))
    )
    weak = document("weak.md", "one needle in a hay stack of words " + "hay " * 200, updated_at="2025-06-01T12:00:00Z")
    await fill(store, weak, source="git:runbooks")
    for source in ("git:runbooks", "runbooks", "git"):
        assert names(await search(store, "needle", source=source, limit=3)) == ["weak.md"]
    assert names(await search(store, "needle", since="2025-01-01", limit=3)) == ["weak.md"]
    assert len(await search(store, "needle", source="filesystem", limit=200)) == 150


async def test_a_source_filter_matches_whole_labels_names_and_types_only(store: SqliteStore) -> None:
    await fill(store, document("a.md", "word"), source="git:runbooks")
    for source in ("run", "git:run", "Git", "%", "", "git:", ":runbooks", "\ud800", "\0"):
        assert await search(store, "word", source=source) == ()


async def test_since_is_inclusive_takes_dates_and_times_and_leaves_out_documents_without_one(
    store: SqliteStore,
) -> None:
    await fill(store, document("a.md", "word", updated_at="2025-06-01T12:00:00Z"), document("b.md", "word"))
    for since in ("2025-06-01", "2025-06-01T12:00:00Z", "2025-06-01T14:00:00+02:00", "2025-06-01t12:00:00.5z"):
        assert names(await search(store, "word", since=since)) == ["a.md"]
    for since in ("2025-06-02", "2025-06-01T12:00:01Z"):
        assert await search(store, "word", since=since) == ()


@pytest.mark.parametrize("since", ["", "yesterday", "2025-13-01", "2025-6-1", "20250601", "2025-06-01T25:00:00Z"])
async def test_a_since_that_is_no_time_is_a_value_error_that_shows_it(store: SqliteStore, since: str) -> None:
    with pytest.raises(ValueError, match="is not a date"):
        await store.search(SearchQuery(query="word", since=since), EVERYTHING)
    assert await search(store, "word") == ()


async def test_until_and_path_come_before_ranking_too(store: SqliteStore) -> None:
    await fill(
        store,
        document("docs/a.md", "needle " * 9, updated_at="2025-06-01T12:00:00Z"),
        document("docs/x/b.txt", "needle needle", updated_at="2025-07-01T12:00:00Z"),
        document("c.md", "needle and other words"),
    )
    assert names(await search(store, "needle", until="2025-06-01")) == ["docs/a.md"]
    assert names(await search(store, "needle", since="2025-06-02", until="2025-07-01T12:00:00Z")) == ["docs/x/b.txt"]
    for path, found in {"*.md": {"docs/a.md", "c.md"}, "docs/**": {"docs/a.md", "docs/x/b.txt"}, "{c,d}.md": {"c.md"},
                        "[": None, "\ud800": set(), "": set()}.items():  # fmt: skip
        if found is None:
            with pytest.raises(ValueError, match="without its counterpart"):
                await search(store, "needle", path=path)
        else:
            assert set(names(await search(store, "needle", path=path, limit=9))) == found, path


async def test_with_prefix_the_last_word_may_be_half_typed(store: SqliteStore) -> None:
    await fill(
        store,
        document("a.md", "hay " * 99 + "how to roll back a rollback of payments", title="A"),
        document("b.md", "rolling payments.breaker.window_s", title="B"),
    )
    assert await search(store, "rollb") == ()
    (hit,) = await search(store, "rollb", prefix=True)
    assert "rollback" in hit.snippet
    assert names(await search(store, "payments roll", prefix=True)) == ["b.md", "a.md"]
    assert names(await search(store, "Payments.Breaker.wind", prefix=True))[0] == "b.md"
    # Not in a phrase, not before the end, and not from one character alone.
    for query in ('"payments rol"', "rol ", "rol!", "p", "", "rol pa\0"):
        assert await search(store, query, prefix=True) == await search(store, query), query


async def test_a_hit_says_where_it_stands_and_what_it_was_found_in(store: SqliteStore) -> None:
    text = "# Alpha\n\nintro\n\n## Beta\n\nthe needle"
    written = NewDocument(
        source_id="a.md", body=f"\n{text}\n", chunks=("# Alpha\n\nintro", "## Beta\n\nthe needle"), digest="d",
        content_type="text/markdown",
    )  # fmt: skip
    await fill(store, written)
    (hit,) = await search(store, "needle")
    assert (hit.heading, hit.lines, hit.page) == ("Alpha > Beta", (6, 8), None)
    assert hit.digest == hashlib.sha256(written.body.encode()).hexdigest()
    assert hit.uri == f"engine://documents/{hit.id}"
    assert hit.passages is None
    found = await store.get(hit.id, EVERYTHING)
    assert found is not None
    assert [(chunk.heading, chunk.lines) for chunk in found.chunks] == [("Alpha", (2, 4)), ("Alpha > Beta", (6, 8))]
    await fill(store, NewDocument(source_id="a.md", body="a needle", chunks=("a needle",), digest="e"))
    (hit,) = await search(store, "needle")
    assert (hit.heading, hit.lines) == (None, (1, 1))


async def test_passages_are_the_best_chunks_of_each_hit_within_the_tokens(store: SqliteStore) -> None:
    await fill(
        store,
        document("a.md", "needle in hay " + "hay " * 50, "nothing", "needle needle needle", "needle twice needle"),
        document("b.md", "a needle at\nthe second place " + "hay " * 90),
    )
    hits = await search(store, "needle", passages=2)
    assert [[passage.text[:20] for passage in hit.passages or ()] for hit in hits] == [
        ["needle needle needle", "needle twice needle"],
        ["a needle at\nthe seco"],
    ]
    assert [hit.lines for hit in hits] == [hit.passages[0].lines for hit in hits if hit.passages]
    # 11 tokens are 44 bytes: all of the first document's 20 + 19, and five of the other.
    first, second = await search(store, "needle", passages=2, max_tokens=11)
    assert [len(passage.text) for passage in first.passages or ()] == [20, 19]
    assert [(passage.text, passage.lines) for passage in second.passages or ()] == [("a nee", (1, 1))]
    first, second = await search(store, "needle", passages=2, max_tokens=1)
    assert [passage.text for passage in first.passages or ()] == ["need"]
    assert second.passages == ()


async def test_the_words_of_a_batch_are_one_segment_of_the_index_however_many_documents_it_has(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    async with open_store(path, create=True) as store:
        for turn in ("first", "changed"):  # each search merges all segments
            await fill(store, *(document(f"{n}.md", f"{turn} {n}") for n in range(20)))
            assert len(await search(store, turn, limit=30)) == 20
            with apsw.Connection(str(path)) as db:
                segments = db.execute("SELECT count(DISTINCT segid) FROM words_idx").fetchall()
            assert segments == [(1 if turn == "first" else 2,)]


async def test_of_two_versions_of_a_document_in_one_batch_the_later_is_found(store: SqliteStore) -> None:
    await fill(store, document("a.md", "early"), document("b.md", "other"), document("a.md", "late"))
    assert [names(await search(store, word)) for word in ("early", "late", "other")] == [[], ["a.md"], ["b.md"]]


async def test_limit_bounds_the_hits_and_may_be_anything(store: SqliteStore) -> None:
    await fill(store, *(document(f"{n}.md", "word") for n in range(5)))
    assert [len(await search(store, "word", limit=n)) for n in (-1, 0, 1, 5, 100, 2**70)] == [0, 0, 1, 5, 5, 5]


async def test_hybrid_without_an_embedder_is_answered_by_keyword_with_a_warning(store: SqliteStore) -> None:
    await fill(store, document("a.md", "word"))
    answer = await store.search(SearchQuery(query="word", mode="hybrid"), EVERYTHING)
    assert names(answer.hits) == ["a.md"]
    assert any("embedder" in warning for warning in answer.warnings)
    assert (await store.search(SearchQuery(query="word"), EVERYTHING)).warnings == ()


async def test_semantic_without_an_embedder_raises_and_keyword_still_works(store: SqliteStore) -> None:
    await fill(store, document("a.md", "word"))
    with pytest.raises(EmbeddingsDisabled, match="embeddings"):
        await store.search(SearchQuery(query="word", mode="semantic"), EVERYTHING)
    assert names(await search(store, "word")) == ["a.md"]


async def test_an_unknown_mode_is_refused_with_the_known_ones(store: SqliteStore) -> None:
    mode: Any = "psychic"
    with pytest.raises(ValueError, match="keyword, semantic, hybrid"):
        await store.search(SearchQuery(query="word", mode=mode), EVERYTHING)


async def test_a_query_without_a_word_finds_nothing(store: SqliteStore) -> None:
    await fill(store, document("a.md", "word"))
    for query in ("", " ", '"', "*", "🎉", "\0"):
        assert await search(store, query) == ()


@settings(max_examples=effort(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    query=st.text(alphabet=st.characters()),
    source=st.none() | st.text(alphabet=st.characters()),
    mode=st.sampled_from([mode for mode in MODES if mode != "semantic"]),
)
def test_no_query_and_no_source_text_raises(tmp_path: Path, query: str, source: str | None, mode: Mode) -> None:
    async def main() -> None:
        async with open_store(tmp_path / "store.sqlite", create=True, readers=1) as store:
            await fill(store, document("a.md", "foo NOT bar", query.encode("utf-8", "replace").decode()))
            await store.search(SearchQuery(query=query, source=source, mode=mode), EVERYTHING)
            await store.get(query, EVERYTHING)

    trio.run(main)


async def test_the_empty_chunk_of_an_empty_document_is_found_by_its_title(store: SqliteStore) -> None:
    await fill(store, document("empty.md", title="Placeholder"))
    (hit,) = await search(store, "placeholder")
    assert hit.snippet == ""


# --- getting and writing


async def test_get_returns_everything_that_was_written(store: SqliteStore) -> None:
    written = NewDocument(
        source_id="docs/a.md",
        body="First.\r\n\r\nSecond. 🎉\0",
        chunks=("First.", "Second. 🎉\0"),
        digest="d",
        source_url="https://example.org/a",
        title="A",
        author="Ada",
        created_at="2025-01-01T00:00:00Z",
        updated_at="2025-01-02T00:00:00Z",
        content_type="text/markdown",
        metadata={"tags": ["x", 1, None], "é": {"deep": True}},
    )
    await fill(store, written)
    (hit,) = await search(store, "second")
    got = await store.get(hit.id, EVERYTHING)
    assert got is not None
    assert (got.id, got.source, hit.source) == (hit.id, SOURCE, SOURCE)
    for name in (
        "source_id",
        "body",
        "source_url",
        "title",
        "author",
        "created_at",
        "updated_at",
        "content_type",
        "metadata",
    ):
        assert getattr(got, name) == getattr(written, name)
    assert [(chunk.index, chunk.text) for chunk in got.chunks] == list(enumerate(written.chunks))


ABSENT = "c42ec093-0e53-4b92-a5cf-730a082033ef"


@pytest.mark.parametrize("document_id", ["", "nothing", ABSENT, "\0", "\ud800", "' OR 1=1"])
async def test_get_of_an_id_that_is_none_is_none(store: SqliteStore, document_id: str) -> None:
    await fill(store, document("a.md", "word"))
    assert await store.get(document_id, EVERYTHING) is None


async def test_an_id_is_a_uuid_that_survives_rewriting_deleting_and_a_new_store(path: Path, tmp_path: Path) -> None:
    ids = []
    async with open_store(path, create=True) as store:
        for batch in (
            Batch(source=SOURCE, upserts=[document("a.md", "word")]),
            Batch(source=SOURCE, upserts=[document("a.md", "word changed")]),
            Batch(source=SOURCE, upserts=[document("a.md", "word back")], deletes=["other.md"]),
        ):
            await store.apply(batch)
            ids.append((await search(store, "word"))[0].id)
        await store.apply(Batch(source=SOURCE, deletes=["a.md"]))
        await fill(store, document("a.md", "word"))
        ids.append((await search(store, "word"))[0].id)
    async with open_store(tmp_path / "other.sqlite", create=True) as store:
        await fill(store, document("a.md", "word"))
        await fill(store, document("a.md", "word"), source="git:notes")
        ids.append((await search(store, "word", source=SOURCE))[0].id)
        assert (await search(store, "word", source="git:notes"))[0].id != ids[0]
    assert len(set(ids)) == 1
    assert str(uuid.UUID(ids[0])) == ids[0]


async def test_rewriting_replaces_the_chunks_and_forgets_the_old_words(
    store: SqliteStore, assert_consistent: Callable[[], None]
) -> None:
    await fill(store, document("a.md", "old one", "old two", "old three", title="Ancient"), document("b.md", "other"))
    await fill(store, document("a.md", "new one", title="Modern"))
    assert await search(store, "old") == await search(store, "ancient") == ()
    assert names(await search(store, "new")) == names(await search(store, "modern")) == ["a.md"]
    assert (await store.stats(EVERYTHING)).chunks == 2
    assert_consistent()


async def test_deleting_takes_the_document_and_its_chunks_of_that_source_only(
    store: SqliteStore, assert_consistent: Callable[[], None]
) -> None:
    await fill(store, document("a.md", "word", "word"), document("b.md", "word"))
    await fill(store, document("a.md", "word"), source="git:notes")
    applied = await store.apply(Batch(source=SOURCE, deletes=["a.md", "never-was.md"]))
    assert applied.deleted == 1
    assert {(hit.source, hit.source_id) for hit in await search(store, "word")} == {
        (SOURCE, "b.md"),
        ("git:notes", "a.md"),
    }
    assert_consistent()


async def test_a_batch_is_written_whole_or_not_at_all(
    store: SqliteStore, assert_consistent: Callable[[], None]
) -> None:
    await fill(store, document("kept.md", "word"))
    bad = document("bad.md", "word", metadata={"not": object()})
    with pytest.raises(TypeError):
        await store.apply(Batch(source=SOURCE, upserts=[document("good.md", "word"), bad], deletes=["kept.md"]))
    assert names(await search(store, "word")) == ["kept.md"]
    assert_consistent()
    await fill(store, document("good.md", "word"))
    assert len(await search(store, "word")) == 2


async def test_sources_merges_what_is_stored_with_what_is_configured(path: Path) -> None:
    configured = {"filesystem:notes": None, "git:empty": None, "s3:broken": "bucket is missing"}
    async with open_store(path, create=True, configured=configured) as store:
        await fill(store, document("a.md", "one", "two"), document("b.md", "three"))
        await store.apply(Batch(source=SOURCE, mark=SyncMark(at="2025-01-01T00:00:00Z")))
        await fill(store, document("c.md", "word"), source="git:gone")
        infos = {info.source: info for info in await store.sources(EVERYTHING)}
    assert list(infos) == ["filesystem:notes", "git:empty", "git:gone", "s3:broken"]
    notes = infos["filesystem:notes"]
    assert (notes.document_count, notes.chunk_count, notes.last_sync) == (2, 3, "2025-01-01T00:00:00Z")
    assert (notes.configured, notes.healthy, notes.notes) == (True, True, None)
    assert (infos["git:empty"].document_count, infos["git:empty"].last_sync) == (0, None)
    assert (infos["git:gone"].configured, infos["git:gone"].healthy) == (False, True)
    assert (infos["s3:broken"].healthy, infos["s3:broken"].notes) == (False, "bucket is missing")


async def test_a_failed_sync_makes_a_source_unhealthy_until_one_succeeds(path: Path) -> None:
    async with open_store(path, create=True, configured={SOURCE: None}) as store:
        await store.apply(Batch(source=SOURCE, mark=SyncMark(at="2025-01-01T00:00:00Z", checkpoint="sha1")))
        await store.apply(Batch(source=SOURCE, mark=SyncMark(error="its root folder is gone")))
        (info,) = await store.sources(EVERYTHING)
        assert (info.healthy, info.notes) == (False, "the last sync failed: its root folder is gone")
        assert info.last_sync == "2025-01-01T00:00:00Z"
        assert await store.checkpoint(SOURCE) == "sha1"
        await store.apply(Batch(source=SOURCE, mark=SyncMark(at="2025-02-01T00:00:00Z")))
        (info,) = await store.sources(EVERYTHING)
        assert (info.healthy, info.notes, info.last_sync) == (True, None, "2025-02-01T00:00:00Z")


async def test_stats_counts_documents_chunks_and_bytes(store: SqliteStore) -> None:
    await fill(store, document("a.md", "one", "two"), document("b.md", "three"))
    stats = await store.stats(EVERYTHING)
    assert (stats.documents, stats.chunks, stats.embedded) == (2, 3, 0)
    assert stats.size_bytes > 0
    assert [info.source for info in stats.sources] == [SOURCE]


async def test_export_is_json_in_a_fixed_order(store: SqliteStore) -> None:
    await fill(store, document("b.md", "three", updated_at="1970-01-02T00:00:00Z"), document("a.md", "one", "two"))
    await fill(store, document("a.md", "four"), source="another:source")
    exported = json.loads(json.dumps(await store.export(EVERYTHING)))
    assert [(d["source_id"], d["source"]) for d in exported["documents"]] == [
        ("a.md", "another:source"),
        ("a.md", SOURCE),
        ("b.md", SOURCE),
    ]
    assert [d["updated_at"] for d in exported["documents"]] == [None, None, 86400]
    assert exported["documents"][2].keys() == {"id", "source", "source_id", "source_url", "title", "updated_at", "body"}
    chunks = exported["chunks"]
    assert {(c["text"], c["chunk_index"]) for c in chunks} == {("one", 0), ("two", 1), ("three", 0), ("four", 0)}
    assert chunks == sorted(chunks, key=lambda c: (c["document_id"], c["chunk_index"]))
    assert len({c["id"] for c in chunks}) == 4
    assert json.loads(json.dumps(await store.export(EVERYTHING))) == exported


# --- side by side


async def test_searches_go_on_while_another_connection_writes(store: SqliteStore, path: Path) -> None:
    await fill(store, document("a.md", "word"))
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE; DELETE FROM documents")
    assert names(await search(store, "word")) == ["a.md"]
    other.execute("ROLLBACK")
    other.close()


async def test_searches_run_beside_batches_and_see_each_batch_whole(
    store: SqliteStore, assert_consistent: Callable[[], None]
) -> None:
    await fill(store, *(document(f"{n}.md", "round0 marker") for n in range(20)))
    done = trio.Event()

    async def write() -> None:
        for number in range(1, 15):
            await fill(store, *(document(f"{n}.md", f"round{number} marker") for n in range(20)))
        done.set()

    async def read() -> None:
        while not done.is_set():
            hits = await search(store, "marker", limit=50)
            assert len(hits) == 20
            assert len({hit.snippet for hit in hits}) == 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        for _ in range(3):
            nursery.start_soon(read)
    assert_consistent()


async def test_a_search_that_is_waiting_can_be_cancelled_and_the_store_goes_on(path: Path) -> None:
    async with open_store(path, create=True, readers=1) as store:
        await fill(store, document("a.md", "word"))
        gate, entered = threading.Event(), threading.Event()

        def hold(db: apsw.Connection) -> None:
            entered.set()
            gate.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(store._read, hold)
            await trio.to_thread.run_sync(entered.wait)
            with trio.CancelScope() as scope:
                scope.cancel()
                await search(store, "word")
            assert scope.cancelled_caught
            async with trio.open_nursery() as inner:
                inner.start_soon(search, store, "word")
                await trio.testing.wait_all_tasks_blocked()
                inner.cancel_scope.cancel()
            gate.set()
        assert names(await search(store, "word")) == ["a.md"]


async def test_a_long_query_stops_soon_after_it_is_cancelled(path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    async with open_store(path, create=True, readers=1) as store:
        await fill(store, document("a.md", "word"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store._read, lambda db: db.execute(endless).fetchall())
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert names(await search(store, "word")) == ["a.md"]  # on the same connection: it would wait for ever


async def test_a_cancelled_write_leaves_all_of_a_batch_or_nothing(
    store: SqliteStore, assert_consistent: Callable[[], None]
) -> None:
    for attempt in range(20):
        async with trio.open_nursery() as nursery:
            batch = [document(f"{attempt}-{n}.md", f"attempt{attempt}", "more") for n in range(30)]
            nursery.start_soon(fill, store, *batch)
            for _ in range(attempt // 4):
                await trio.testing.wait_all_tasks_blocked(0.0001)
            nursery.cancel_scope.cancel()
    await fill(store, document("last.md", "attempt"))  # the writer's thread is done with the others after this
    counts = {len(await search(store, f"attempt{attempt}", limit=100)) for attempt in range(20)}
    assert counts <= {0, 30}
    assert_consistent()


async def test_closing_the_store_ends_its_threads_and_later_calls_say_that_it_is_closed(path: Path) -> None:
    before = set(threading.enumerate())
    async with open_store(path, create=True) as store:
        started = [thread for thread in threading.enumerate() if thread not in before and "apsw" in thread.name]
    for thread in started:
        await trio.to_thread.run_sync(thread.join)
    with pytest.raises(StoreError, match="closed"):
        await store.search(SearchQuery(query="word"), EVERYTHING)


async def test_one_sync_lock_of_a_label_is_held_at_a_time_and_others_are_free(store: SqliteStore) -> None:
    async with store.sync_lock(SOURCE):
        with pytest.raises(StoreError, match="another sync of filesystem:notes is running"):
            async with store.sync_lock(SOURCE):
                pass
        async with store.sync_lock("git:other"):
            pass
    async with store.sync_lock(SOURCE):
        pass


async def test_the_sync_lock_of_a_killed_process_is_free_again(store: SqliteStore, path: Path) -> None:
    script = (
        "import sys, trio\n"
        "from knowledge.sqlite.store import open_store\n"
        "async def main():\n"
        "    async with open_store(sys.argv[1]) as store, store.sync_lock(sys.argv[2]):\n"
        "        print('locked', flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", script, str(path), SOURCE]
    child = await warm_start.open_process(command, stdout=subprocess.PIPE, env=environment)
    try:
        assert child.stdout is not None
        assert await child.stdout.receive_some()
        with pytest.raises(StoreError, match="another sync"):
            async with store.sync_lock(SOURCE):
                pass
    finally:
        child.kill()
        await child.wait()
    await child.stdout.aclose()
    async with store.sync_lock(SOURCE):
        pass


# --- opening what is not there or not right


async def opening_error(path: Path, **options: Any) -> str:
    with pytest.raises(StoreError) as caught:
        async with open_store(path, **({"busy_timeout_s": 0.05} | options)):
            pass
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


async def test_a_missing_file_is_an_error_and_is_not_created(path: Path) -> None:
    assert "no store at" in await opening_error(path)
    assert "no store at" in await opening_error(path, readonly=True, create=True)
    assert contents(path) is None


async def test_a_directory_is_an_error(tmp_path: Path) -> None:
    assert "is a directory" in await opening_error(tmp_path, create=True)


async def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    put(tmp_path / "file", b"x")
    assert "cannot be reached" in await opening_error(tmp_path / "file" / "store.sqlite", create=True)


@pytest.mark.parametrize("options", [{}, {"create": True}, {"readonly": True}])
async def test_a_file_that_is_not_sqlite_is_an_error_and_is_left_alone(path: Path, options: dict[str, Any]) -> None:
    put(path, b"This is not a database, however much one may want it to be one.\n" * 20)
    before = contents(path)
    assert "is not a SQLite database" in await opening_error(path, **options)
    assert contents(path) == before


@pytest.mark.parametrize("options", [{}, {"create": True}, {"readonly": True}])
async def test_another_programs_database_is_an_error_and_is_left_alone(path: Path, options: dict[str, Any]) -> None:
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE theirs(x)")
    other.close()
    before = contents(path)
    assert "another program" in await opening_error(path, **options)
    assert contents(path) == before


async def test_an_empty_file_is_an_error_unless_a_store_may_be_created(path: Path) -> None:
    put(path, b"")
    assert "empty" in await opening_error(path)
    assert "empty" in await opening_error(path, readonly=True)
    async with open_store(path, create=True) as store:
        await fill(store, document("a.md", "word"))


async def test_a_newer_schema_is_an_error_that_names_both_versions(path: Path) -> None:
    async with open_store(path, create=True):
        pass
    db = apsw.Connection(str(path))
    db.pragma("user_version", 99)
    db.close()
    text = await opening_error(path)
    assert "newer version (schema 99, this one knows 2)" in text


async def test_a_locked_database_is_an_error_within_the_busy_timeout_and_opens_afterwards(path: Path) -> None:
    async with open_store(path, create=True) as store:
        await fill(store, document("a.md", "word"))
    holder = apsw.Connection(str(path))
    holder.execute("PRAGMA locking_mode = exclusive; ").fetchall()
    holder.execute("BEGIN EXCLUSIVE; DELETE FROM documents WHERE 0")
    assert "locked by another process" in await opening_error(path)
    holder.execute("ROLLBACK")
    holder.close()
    async with open_store(path) as store:
        assert names(await search(store, "word")) == ["a.md"]


async def test_a_write_lock_held_elsewhere_is_an_error_without_a_path_and_the_next_write_works(path: Path) -> None:
    async with open_store(path, create=True, busy_timeout_s=0.05) as store:
        holder = apsw.Connection(str(path))
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another process") as caught:
            await fill(store, document("a.md", "word"))
        assert str(path.parent) not in str(caught.value)
        assert await search(store, "word") == ()
        holder.execute("ROLLBACK")
        holder.close()
        await fill(store, document("a.md", "word"))
        assert names(await search(store, "word")) == ["a.md"]


async def test_a_corrupt_file_is_an_error_without_a_path_and_a_new_store_works(path: Path) -> None:
    async with open_store(path, create=True) as store:
        await fill(store, *(document(f"{n}.md", f"word{n} " * 300, "common") for n in range(200)))
    data = contents(path) or b""
    put(path, data[:4096] + b"\x5a" * (len(data) - 4096))
    with pytest.raises(StoreError, match="damaged") as caught:
        async with open_store(path) as store:
            await search(store, "common")
    assert caught.value.__cause__ is not None
    await trio.Path(path).unlink()
    async with open_store(path, create=True) as store:
        await fill(store, document("a.md", "word"))
        assert names(await search(store, "word")) == ["a.md"]


async def test_a_cut_off_file_is_an_error(path: Path) -> None:
    async with open_store(path, create=True) as store:
        await fill(store, *(document(f"{n}.md", f"word{n} " * 300) for n in range(50)))
    put(path, (contents(path) or b"")[:6000])
    with pytest.raises(StoreError, match="damaged"):
        async with open_store(path) as store:
            await search(store, "word1")


async def test_a_failed_opening_leaves_no_thread_behind(path: Path) -> None:
    before = {thread for thread in threading.enumerate() if "apsw" in thread.name}
    put(path, b"not a database " * 100)
    await opening_error(path)
    for thread in {thread for thread in threading.enumerate() if "apsw" in thread.name} - before:
        await trio.to_thread.run_sync(thread.join)


async def test_a_store_open_for_reading_answers_and_refuses_to_write(path: Path) -> None:
    async with open_store(path, create=True) as store:
        await fill(store, document("a.md", "word"))
    async with open_store(path, readonly=True) as store:
        assert names(await search(store, "word")) == ["a.md"]
        with pytest.raises(StoreError, match="reading only"):
            await fill(store, document("b.md", "word"))
        with pytest.raises(StoreError, match="reading only"):
            async with store.sync_lock(SOURCE):
                pass


async def test_creating_makes_the_folder_and_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "store.sqlite"
    async with open_store(path, create=True) as store:
        await fill(store, document("a.md", "word"))
    async with open_store(path, create=True) as store:
        assert names(await search(store, "word")) == ["a.md"]


async def test_two_may_create_the_same_store_at_once(path: Path) -> None:
    async def create(name: str) -> None:
        async with open_store(path, create=True) as store:
            await fill(store, document(name, "word"))

    async with trio.open_nursery() as nursery:
        for n in range(4):
            nursery.start_soon(create, f"{n}.md")
    async with open_store(path) as store:
        assert len(await search(store, "word")) == 4


async def test_documents_are_listed_by_source_and_id_in_pages_that_neither_repeat_nor_skip(store: SqliteStore) -> None:
    await fill(store, *(document(f"b{n}", "text") for n in range(5)), source="git:z")
    await fill(store, *(document(f"a{n}", "é") for n in range(5)), source="filesystem:a")
    seen = []
    after = None
    while page := await store.documents(EVERYTHING, after=after, limit=3):
        seen += [(each.source, each.source_id) for each in page]
        after = seen[-1]
        await store.apply(Batch(source="filesystem:a", deletes=["a0"]))  # what was shown already may go
    assert seen == [("filesystem:a", f"a{n}") for n in range(5)] + [("git:z", f"b{n}") for n in range(5)]
    first = (await store.documents(EVERYTHING, limit=1))[0]
    assert (first.source_id, first.title, first.size, first.content_type) == ("a1", "a1", 2, "text/plain")
    assert await store.documents(EVERYTHING, after=("\ud800", ""), limit=3) == ()


async def test_a_document_is_found_by_source_and_title_even_without_any_text(store: SqliteStore) -> None:
    empty = NewDocument(source_id="empty", body="", chunks=(), digest="d", title="An empty page")
    await fill(store, document("one", "x", title="Über uns"), document("two", "x", title="Über uns"), empty)
    await fill(store, document("one", "x", title="Über uns"), source="git:z")
    found = await store.titled(SOURCE, "Über uns", EVERYTHING, limit=9)
    assert {(await store.get(each, EVERYTHING)).source_id for each in found} == {"one", "two"}
    assert len(await store.titled(SOURCE, "An empty page", EVERYTHING, limit=9)) == 1
    assert await store.titled(SOURCE, "über", EVERYTHING, limit=9) == ()
    assert await store.titled("git:none", "Über uns", EVERYTHING, limit=9) == ()
    assert await store.titled(SOURCE, "\ud800", EVERYTHING, limit=9) == ()


async def test_titles_are_completed_from_half_a_word(store: SqliteStore) -> None:
    titles = ("Payments API runbook", "Payments of invoices", "Café on call", "", "C++ style")
    await fill(store, *(document(f"d{n}", "payments", title=title) for n, title in enumerate(titles)))
    await fill(store, document("x", "x", title="Payroll"), source="git:z")
    assert await store.titles("pay", None, EVERYTHING, limit=9) == (
        "Payments API runbook",
        "Payments of invoices",
        "Payroll",
    )
    assert await store.titles("run payments invoices", None, EVERYTHING, limit=9) == ()
    assert await store.titles("run payments", None, EVERYTHING, limit=9) == ("Payments API runbook",)
    assert await store.titles("pay", "z", EVERYTHING, limit=9) == ("Payroll",)
    assert await store.titles("pay", None, EVERYTHING, limit=1) == ("Payments API runbook",)
    assert await store.titles("CAFE", None, EVERYTHING, limit=9) == ("Café on call",)
    assert len(await store.titles("", None, EVERYTHING, limit=9)) == 5
    for odd in ("+++", '" OR *', "title : (", "\ud800", "\0"):
        assert await store.titles(odd, None, EVERYTHING, limit=9) == (), odd


async def test_the_revision_tells_of_changes_and_digests_of_which(path: Path) -> None:
    async with open_store(path, create=True) as ours, open_store(path) as theirs:
        revision = await ours.revision(EVERYTHING)
        assert await ours.revision(EVERYTHING) == revision
        await fill(theirs, document("a", "x"))
        changed = await ours.revision(EVERYTHING)
        assert changed != revision
        (listed,) = await ours.documents(EVERYTHING, limit=9)
        assert await ours.digests([listed.id, "nothing", "\ud800"], EVERYTHING) == {listed.id: "d"}
        assert await ours.digests([], EVERYTHING) == {}
        assert await ours.revision(EVERYTHING) == changed
        await ours.apply(Batch(source=SOURCE, deletes=["a"]))
        assert await ours.revision(EVERYTHING) != changed
        assert await ours.digests([listed.id], EVERYTHING) == {}


# --- sources that the configuration says something of


async def test_what_comes_from_an_untrusted_source_says_so(path: Path) -> None:
    access = SourceAccess({"git:issues": Access.of(untrusted=True)})
    async with open_store(path, create=True) as store:
        for source in ("git:issues", "git:docs"):
            one = NewDocument(source_id="a.md", body="a needle", chunks=("a needle",), digest="d")
            await store.apply(Batch(source=source, upserts=[one]))
    async with open_store(path, access=access) as store:
        for _ in range(2):  # the second answer is a cached one
            hits = (await store.search(SearchQuery(query="needle"), EVERYTHING)).hits
            assert {hit.source: hit.untrusted for hit in hits} == {"git:issues": True, "git:docs": False}
            documents = [await store.get(hit.id, EVERYTHING) for hit in hits]
            assert [each and each.untrusted for each in documents] == [hit.untrusted for hit in hits]
        sources = {each.source: each.untrusted for each in await store.sources(EVERYTHING)}
        assert sources == {"git:issues": True, "git:docs": False}


async def test_a_search_of_a_source_that_there_is_not_says_so_and_a_hidden_one_is_as_an_absent_one(path: Path) -> None:
    access = SourceAccess({"git:pay": Access.of(["hr"])})
    configured = {"git:pay": None, "git:empty": None}
    async with open_store(path, create=True, access=access, configured=configured) as store:
        one = NewDocument(source_id="a.md", body="a needle", chunks=("a needle",), digest="d")
        await store.apply(Batch(source="git:pay", upserts=[one]))
        said = {
            (source, reader): (await store.search(SearchQuery(query="xylophone", source=source), reader)).warnings
            for source in ("pay", "git:pay", "empty", "git", "none")
            for reader in (EVERYTHING, Reader.of([]))
        }
    unknown = ("there is no such source; sources lists those there are",)
    for (source, reader), warnings in said.items():
        hidden = source in ("pay", "git:pay") and reader != EVERYTHING
        assert warnings == (unknown if source == "none" or hidden else ()), (source, reader)


async def test_a_new_store_appears_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.sqlite"
    link, seen = os.link, []

    def appear(made: Path, file: Path) -> None:
        seen.append(file.exists())
        link(made, file)
        db = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
        schema.check(db, file)
        seen.append(db.pragma("journal_mode"))
        db.close()

    monkeypatch.setattr(os, "link", appear)
    async with open_store(path, create=True) as store:
        await fill(store, document("a", "word"))
        assert names(await search(store, "word")) == ["a"]
    assert seen == [False, "wal"]
    assert os.listdir(tmp_path) == ["store.sqlite"]


async def test_a_store_is_made_where_files_cannot_be_linked_or_one_that_is_empty_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(made: Path, file: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(file))

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "empty.sqlite").touch()
    for name in ("new.sqlite", "empty.sqlite"):
        async with open_store(tmp_path / name, create=True) as store:
            await fill(store, document("a", "word"))
            assert names(await search(store, "word")) == ["a"]
    assert sorted(os.listdir(tmp_path)) == ["empty.sqlite", "new.sqlite"]

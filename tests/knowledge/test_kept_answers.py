"""A store gives an answer again only where asking the file once more would give the same."""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import warm_start

from knowledge.access import EVERYTHING
from knowledge.sqlite import reading
from knowledge.sqlite.access import Condition
from knowledge.sqlite.store import MAX_KEPT_BYTES, SqliteStore, open_store
from knowledge.store import Batch, Document, NewDocument, SearchQuery, StoreError
from knowledge.stores import open_stores, remove_store, store_path
from storage import watch
from storage.lanes import Lane

SOURCE = "filesystem:notes"
WORD = SearchQuery(query="word")

# Another process: with every line that it reads it writes the document "a" once more, and says which text it has now.
WRITER = """
import sys, trio
from knowledge.sqlite.store import open_store
from knowledge.store import Batch, NewDocument

async def main():
    async with open_store(sys.argv[1]) as store:
        print("open", flush=True)
        number = 0
        while await trio.to_thread.run_sync(sys.stdin.readline):
            number += 1
            text = f"word {number}"
            document = NewDocument(source_id="a", body=text, chunks=[text], digest=text)
            await store.apply(Batch(source="filesystem:notes", upserts=[document]))
            print(text, flush=True)

trio.run(main)
"""


def document(source_id: str, text: str, **fields: Any) -> NewDocument:
    return NewDocument(source_id=source_id, body=text, chunks=[text], digest=text, **fields)


async def fill(store: SqliteStore, *documents: NewDocument) -> None:
    await store.apply(Batch(source=SOURCE, upserts=documents))


async def id_of(store: SqliteStore, source_id: str) -> str:
    return next(each.id for each in await store.documents(EVERYTHING, limit=100) if each.source_id == source_id)


async def body(store: SqliteStore, document_id: str) -> str | None:
    found = await store.get(document_id, EVERYTHING)
    return None if found is None else found.body


async def snippets(store: SqliteStore) -> list[str]:
    return [hit.snippet for hit in (await store.search(WORD, EVERYTHING)).hits]


async def count(store: SqliteStore) -> int:
    return sum(each.document_count for each in await store.sources(EVERYTHING))


@contextmanager
def another_process(path: Path) -> Iterator[Callable[[], str]]:
    """Another process that has the store open. Calling what this gives has it write, and returns what is there then."""
    command = [sys.executable, "-c", WRITER, str(path)]
    with warm_start.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin as ask, process.stdout as say:
            assert say.readline() == "open\n"

            def write() -> str:
                ask.write("\n")
                ask.flush()
                return say.readline().strip()

            yield write


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with open_store(path, create=True, readers=3) as opened:
        yield opened


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every question that went to a lane from here on."""
    calls: list[str] = []
    run = Lane.run

    async def noting(lane: Lane, work: Callable[[apsw.Connection], Any]) -> Any:
        calls.append(getattr(work, "func", work).__name__)
        return await run(lane, work)

    monkeypatch.setattr(Lane, "run", noting)
    return calls


# --- kept


async def test_a_question_is_answered_without_asking_the_file_when_it_comes_for_the_third_time(
    store: SqliteStore, asked: list[str]
) -> None:
    await fill(store, document("a", "word one"))
    document_id = await id_of(store, "a")
    asked.clear()

    async def answers() -> list[Any]:
        return [
            await store.get(document_id, EVERYTHING),
            await store.search(WORD, EVERYTHING),
            await store.sources(EVERYTHING),
            await store.get("none", EVERYTHING),
        ]

    first = await answers()
    assert isinstance(first[0], Document)
    assert await answers() == first
    assert asked == ["get", "search", "sources", "get"] * 2
    assert await answers() == first
    assert len(asked) == 8


async def test_searches_that_differ_in_anything_are_different_questions(store: SqliteStore, asked: list[str]) -> None:
    await fill(
        store,
        document("a", "word", updated_at="2025-01-01T00:00:00Z"),
        document("b", "word", updated_at="2026-01-01T00:00:00Z"),
    )
    asked.clear()
    for _ in range(4):
        assert len((await store.search(WORD, EVERYTHING)).hits) == 2
        assert len((await store.search(SearchQuery(query="word", limit=1), EVERYTHING)).hits) == 1
        assert len((await store.search(SearchQuery(query="word", since="2025-06-01"), EVERYTHING)).hits) == 1
        assert len((await store.search(SearchQuery(query="word", source="git"), EVERYTHING)).hits) == 0
        assert (await store.search(SearchQuery(query="word", mode="hybrid"), EVERYTHING)).warnings
        assert not (await store.search(SearchQuery(query="word", mode="keyword"), EVERYTHING)).warnings
        assert (await store.search(SearchQuery(query="word", explain=True), EVERYTHING)).explain
    # Six questions, as the last but one is the first; each is asked twice. Where a source has no hit: is there one?
    assert sorted(asked) == ["search"] * 12 + ["sources"] * 2


async def test_an_id_never_finds_the_answer_to_a_question_of_another_kind(store: SqliteStore) -> None:
    await fill(store, document("a", "word"))
    for _ in range(2):
        await store.sources(EVERYTHING)
        await store.search(WORD, EVERYTHING)
    for odd in ("sources", "search", "word", "", "()", "('sources',)"):
        assert await store.get(odd, EVERYTHING) is None


async def test_changing_a_returned_document_changes_no_other_copy(store: SqliteStore) -> None:
    metadata = {"tags": ["x"], "deep": {"er": [1]}}
    await fill(store, document("a", "word", metadata=metadata), document("b", "word"))
    for name, expected in (("a", metadata), ("b", {})):
        for _ in range(3):
            found = await store.get(await id_of(store, name), EVERYTHING)
            assert found is not None
            assert found.metadata == expected
            assert isinstance(found.metadata, dict)
            found.metadata.get("deep", {}).update(er=None)
            found.metadata.update(tags="mine", more="mine")


async def test_answers_stay_within_their_bound_and_those_not_asked_for_longest_go_first(
    store: SqliteStore, asked: list[str]
) -> None:
    size = MAX_KEPT_BYTES // 10
    await fill(store, *(document(str(n), "x" * size) for n in range(6)), document("huge", "x" * MAX_KEPT_BYTES))
    ids = [await id_of(store, str(n)) for n in range(6)]
    huge = await id_of(store, "huge")
    for each in (ids[0], ids[1], ids[2], ids[3], ids[0], ids[4]):  # body and chunk each take a tenth: four fit
        for _ in range(2):
            await store.get(each, EVERYTHING)
        assert store._answers._bytes <= MAX_KEPT_BYTES
    asked.clear()
    await store.get(ids[0], EVERYTHING)
    assert asked == []
    await store.get(ids[1], EVERYTHING)
    assert asked == ["get"]
    asked.clear()
    for _ in range(4):
        assert await body(store, huge) == "x" * MAX_KEPT_BYTES
    for each in (ids[0], ids[2], ids[3], ids[4]):
        await store.get(each, EVERYTHING)
    assert asked == ["get"] * 4  # what can never be kept drives nothing out


# --- and forgotten


async def test_what_this_process_writes_is_found_by_the_next_question(store: SqliteStore) -> None:
    await fill(store, document("a", "word 0"))
    document_id = await id_of(store, "a")
    for number in range(1, 30):
        text = f"word {number}"
        await fill(store, document("a", text), document(f"more {number}", "else"))
        for _ in range(3):
            assert (await body(store, document_id), await snippets(store)) == (text, [text])
            assert await count(store) == number + 1
    await store.apply(Batch(source=SOURCE, deletes=["a"]))
    assert (await body(store, document_id), await snippets(store), await count(store)) == (None, [], 29)
    await fill(store, document("a", "word again"))
    assert (await body(store, document_id), await snippets(store)) == ("word again", ["word again"])


@pytest.mark.parametrize("readonly", [False, True])
async def test_what_another_process_writes_is_found_by_the_next_question(path: Path, readonly: bool) -> None:
    async with open_store(path, create=True) as first:
        await fill(first, document("a", "word 0"))
    async with open_store(path, readonly=readonly) as store:
        document_id = await id_of(store, "a")
        with another_process(path) as write:
            for number in range(1, 60):
                # Questions all the while it writes, so that some are under way as it commits.
                async with trio.open_nursery() as nursery:
                    for _ in range(number % 4):
                        nursery.start_soon(body, store, document_id)
                        nursery.start_soon(snippets, store)
                    said = await trio.to_thread.run_sync(write)
                assert said == f"word {number}"
                for _ in range(3):
                    assert (await body(store, document_id), await snippets(store)) == (said, [said])


async def test_what_is_not_committed_changes_no_answer(store: SqliteStore, path: Path, asked: list[str]) -> None:
    await fill(store, document("a", "word"))
    document_id = await id_of(store, "a")
    for _ in range(2):
        await store.get(document_id, EVERYTHING)
    asked.clear()
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE; UPDATE documents SET body = 'changed'")
    assert await body(store, document_id) == "word"
    other.execute("ROLLBACK; PRAGMA wal_checkpoint(PASSIVE)")
    assert await body(store, document_id) == "word"
    assert asked == []
    other.execute("UPDATE documents SET body = 'changed'; PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    assert await body(store, document_id) == "changed"


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Semaphore, threading.Event]]:
    """All but the first `get` release the first when they have read, and hand over once the second is set."""
    read, hand_over = threading.Semaphore(0), threading.Event()
    get = reading.get
    calls = itertools.count(1)

    def slowly(db: apsw.Connection, document_id: str, seen: Condition) -> Any:
        found = get(db, document_id, seen)
        if next(calls) > 1:
            read.release()
            hand_over.wait()
        return found

    monkeypatch.setattr(reading, "get", slowly)
    yield read, hand_over
    hand_over.set()


@pytest.mark.parametrize("noticed", [False, True])
async def test_an_answer_that_was_read_before_a_write_is_not_kept_as_one_from_after_it(
    store: SqliteStore, held: tuple[threading.Semaphore, threading.Event], noticed: bool
) -> None:
    read, hand_over = held
    await fill(store, document("a", "word old"))
    document_id = await id_of(store, "a")
    await store.get(document_id, EVERYTHING)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(store.get, document_id, EVERYTHING)
            await trio.to_thread.run_sync(read.acquire)
        await fill(store, document("a", "word new"))
        if noticed:  # by another reader, before the old answer is there
            assert await snippets(store) == ["word new"]
        hand_over.set()
    assert await body(store, document_id) == "word new"


async def test_a_cancelled_question_leaves_nothing_and_the_next_one_is_answered(
    store: SqliteStore, held: tuple[threading.Semaphore, threading.Event], asked: list[str]
) -> None:
    read, hand_over = held
    await fill(store, document("a", "word"))
    document_id = await id_of(store, "a")
    await store.get(document_id, EVERYTHING)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.get, document_id, EVERYTHING)
        await trio.to_thread.run_sync(read.acquire)
        nursery.cancel_scope.cancel()
        hand_over.set()
    asked.clear()
    assert len(store._answers) == 0
    assert await body(store, document_id) == await body(store, document_id) == "word"
    assert len(asked) == 1
    with trio.CancelScope() as scope:  # what is kept can be cancelled like what is asked
        scope.cancel()
        await store.get(document_id, EVERYTHING)
    assert scope.cancelled_caught


async def test_an_error_is_not_kept(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(store, document("a", "word"))
    document_id = await id_of(store, "a")

    def fails(db: apsw.Connection, document_id: str, seen: Condition) -> None:
        raise apsw.BusyError("locked")

    await store.get(document_id, EVERYTHING)
    with monkeypatch.context() as patched:
        patched.setattr(reading, "get", fails)
        for _ in range(2):
            with pytest.raises(StoreError, match="locked"):
                await store.get(document_id, EVERYTHING)
    assert await body(store, document_id) == "word"
    for _ in range(2):
        with pytest.raises(ValueError, match="is not a date"):
            await store.search(SearchQuery(query="word", since="soon"), EVERYTHING)


# --- files that are not there any more


async def test_a_closed_store_gives_none_of_the_answers_that_it_kept(path: Path) -> None:
    async with open_store(path, create=True) as store:
        await fill(store, document("a", "word"))
        document_id = await id_of(store, "a")
        for _ in range(2):
            assert await body(store, document_id) == "word"
            await store.search(WORD, EVERYTHING)
            await store.sources(EVERYTHING)
    searching = partial(store.search, WORD, EVERYTHING)
    for question in (partial(store.get, document_id, EVERYTHING), searching, partial(store.sources, EVERYTHING)):
        with pytest.raises(StoreError, match="closed"):
            await question()


async def test_a_tenants_answers_go_with_its_file(path: Path, tmp_path: Path) -> None:
    acme, other = store_path(path, "acme"), tmp_path / "other.sqlite"
    for file, text in ((acme, "word old"), (other, "word new")):
        async with open_store(file, create=True) as filled:
            await fill(filled, document("a", text))
            document_id = await id_of(filled, "a")
    async with open_stores({}, partial(store_path, path), lambda tenant: {}) as stores:
        store: Any = stores.store_of("acme")
        for _ in range(3):
            assert (await body(store, document_id), await snippets(store)) == ("word old", ["word old"])
        assert await body(stores.store_of("zeta"), document_id) is None  # type: ignore[arg-type]
        os.replace(other, acme)
        assert (await body(store, document_id), await snippets(store)) == ("word new", ["word new"])
        moved = acme.rename(tmp_path / "moved.sqlite")
        assert (await body(store, document_id), await snippets(store)) == (None, [])
        moved.rename(acme)
        assert await body(store, document_id) == "word new"
        remove_store(acme)
        assert (await body(store, document_id), await snippets(store), await store.sources(EVERYTHING)) == (
            None,
            [],
            (),
        )


# --- where a look tells nothing


async def test_a_file_without_a_write_ahead_log_is_asked_every_time_also_when_it_gets_one(
    path: Path, asked: list[str]
) -> None:
    async with open_store(path, create=True) as first:
        await fill(first, document("a", "word 0"))
        document_id = await id_of(first, "a")
    other = apsw.Connection(str(path))
    assert other.pragma("journal_mode", "delete") == "delete"
    async with open_store(path, readonly=True) as store:
        asked.clear()
        for number in range(10):
            other.execute("UPDATE documents SET body = ?", (f"word {number}",))
            for _ in range(3):
                assert await body(store, document_id) == f"word {number}"
            if number == 5:
                assert other.pragma("journal_mode", "wal") == "wal"
        assert asked == ["get"] * 30
    other.close()


async def test_while_a_change_of_the_file_cannot_be_noticed_it_is_read_every_time(
    store: SqliteStore, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store, document("a", "word"))
    document_id = await id_of(store, "a")
    for _ in range(2):
        assert await body(store, document_id) == "word"
    asked.clear()
    with monkeypatch.context() as patched:
        patched.setattr(watch.Watch, "version", lambda self: None)
        for _ in range(2):
            assert await body(store, document_id) == "word"
    assert asked == ["get", "get"]
    assert await body(store, document_id) == "word"
    assert len(asked) == 2


async def test_an_index_that_a_frozen_writer_left_half_written_makes_no_look_sleep(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store, document("a", "word"))
    asked_for: list[int] = []

    def sleeps_not(vfs: watch._Impatient, microseconds: int) -> int:
        asked_for.append(microseconds)
        return microseconds

    monkeypatch.setattr(watch._Impatient, "xSleep", sleeps_not)
    writer = apsw.Connection(str(path))
    async with watch.open_watch(path) as watching:
        assert watching is not None
        before = watching.version()
        assert before is not None
        writer.execute("BEGIN IMMEDIATE")  # has the lock that who wants to repair the index needs
        with path.with_name(path.name + "-shm").open("r+b") as index:
            index.seek(8)
            index.write(b"\xff\xff\xff\xff")  # one of two copies of the header is not like the other
        assert watching.version() is None
        assert sum(asked_for) > 1_000_000
        writer.execute("ROLLBACK")
        assert watching.version() not in (None, before)
    writer.close()

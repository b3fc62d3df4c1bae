"""Postings beside a store: every answer is the one that FTS5's ranks give, whatever happens to store and file."""

import fcntl
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from effort import effort
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knowledge.access import EVERYTHING, Reader
from knowledge.embed import embed_pending
from knowledge.embedding import Embedders, Model
from knowledge.postings import file as files
from knowledge.postings import segment
from knowledge.sqlite import indexing, matching, postings, reading
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import Batch, NewDocument, SearchAnswer, SearchQuery

SOURCES = ("filesystem:notes", "git:notes")
READERS = (EVERYTHING, Reader.of([]), Reader.of(["hr"]), Reader.of(None, ["filesystem:notes"]))
WORDS = [
    "the", "of", "queue", "queues", "Refund", "refunds", "broker", "window_s", "getUserName", "悬空", "悬空引用abc",
    "Café", "cafes", "naïve\u0301", "2024", "a-b", "payments.breaker.window_s", "ﬁne", "x" * 40_000,
]  # fmt: skip
ASKED = [*(word for word in WORDS if len(word) < 50), '"the queue"', '"悬空 broker"', "que", "user name", "zzz", "!"]

TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)
LABELS = st.sampled_from([frozenset[str](), frozenset({"hr"}), frozenset({"legal"})])
UPSERTS = st.tuples(
    st.integers(0, 15), st.lists(TEXTS, min_size=0, max_size=4), LABELS, st.sampled_from([None, "the queue", "Café"])
)
QUERIES = st.builds(
    SearchQuery, query=st.lists(st.sampled_from(ASKED), min_size=1, max_size=4).map(" ".join),
    limit=st.integers(1, 4), source=st.sampled_from([None, "git"]), path=st.sampled_from([None, "d1*"]),
    since=st.sampled_from([None, "2026-01-03"]), passages=st.sampled_from([0, 2]), explain=st.booleans(),
    prefix=st.booleans(),
)  # fmt: skip
# What happens to a store: documents written and deleted, a pause in which postings are made, the file gone, a search.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(SOURCES), st.lists(UPSERTS, max_size=6, unique_by=lambda u: u[0])),
        st.tuples(st.just("delete"), st.sampled_from(SOURCES), st.lists(st.integers(0, 15), max_size=3)),
        st.tuples(st.just("wait")),
        st.tuples(st.just("remove")),
        st.tuples(st.just("ask"), st.lists(QUERIES, min_size=1, max_size=4), st.sampled_from(READERS)),
    ),
    min_size=2, max_size=14,
)  # fmt: skip


def made(name: str, chunks: Sequence[str], labels: frozenset[str] = frozenset(), **fields: Any) -> NewDocument:
    day = sum(name.encode()) % 4 + 1
    return NewDocument(
        source_id=name, body="", chunks=chunks, digest="d", updated_at=f"2026-01-0{day}T00:00:00Z", access=labels,
        **fields,
    )  # fmt: skip


@contextmanager
def small() -> Iterator[pytest.MonkeyPatch]:
    """With postings for few chunks, in segments of few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing, "MIN_CHUNKS", 1)
        patch.setattr(segment, "SEGMENT_CHUNKS", 6)
        for name, value in {
            "MAX_READ": 2, "MAX_BESIDE": 3, "_APART_S": 0.0, "_LEAST_CHUNKS": 3, "_STEP_DOCUMENTS": 2, "_REST": 0.0,
        }.items():  # fmt: skip
            patch.setattr(postings, name, value)
        yield patch


@pytest.fixture(name="small")
def small_fixture() -> Iterator[pytest.MonkeyPatch]:
    with small() as patch:
        yield patch


@asynccontextmanager
async def by_fts5(path: Path, embedders: Embedders | None = None) -> AsyncIterator[SqliteStore]:
    """The store as it answers without postings."""
    async with open_store(path, readonly=True, embedders=embedders) as store:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store.words, "of", matching.no_postings)
            yield store


class Watched:
    """The answers that were computed by postings."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        before = matching._ByPostings.best

        def best(search: Any, limit: int, most: int) -> Any:
            self.count += 1
            return before(search, limit, most)

        patch.setattr(matching._ByPostings, "best", best)


@pytest.fixture
def watched(small: pytest.MonkeyPatch) -> Watched:
    return Watched(small)


async def ready(store: SqliteStore) -> None:
    """Wait until the postings of a store that nothing else writes are up to date."""
    for _ in range(3):
        await store.search(SearchQuery(query=f"word {time.monotonic_ns()}"), EVERYTHING)
        await store.words.wait()


@settings(max_examples=effort(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=STEPS)
def test_every_answer_is_the_one_of_fts5(steps: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("stores") / "store"

    async def scenario() -> None:
        async with open_store(path, create=True) as store, by_fts5(path) as oracle:
            for step in steps:
                match step:
                    case ("write", source, upserts):
                        found = [made(f"d{n}", chunks, labels, title=t) for n, chunks, labels, t in upserts]
                        await store.apply(Batch(source=source, upserts=found))
                    case ("delete", source, numbers):
                        await store.apply(Batch(source=source, deletes=[f"d{n}" for n in numbers]))
                    case ("wait",):
                        await ready(store)
                    case ("remove",):
                        postings.path_of(path).unlink(missing_ok=True)
                    case ("ask", queries, reader):
                        for query in queries:
                            assert await store.search(query, reader) == await oracle.search(query, reader)

    with small():
        trio.run(scenario)


DOCUMENTS = [made(f"d{n}", [f"queue number {n}", f"the refund of {n % 7}"], title=f"Paper {n}") for n in range(40)]
QUESTIONS = ["queue 7", "the refund", "refunds paper", '"queue number" 3', "que", "nothing"]


async def filled(path: Path) -> None:
    async with open_store(path, create=True) as store:
        await store.apply(Batch(source=SOURCES[0], upserts=DOCUMENTS))
        await ready(store)
    assert postings.path_of(path).exists()


async def answers(store: SqliteStore) -> list[SearchAnswer]:
    return [await store.search(SearchQuery(query=each, prefix=True), EVERYTHING) for each in QUESTIONS]


async def right(store: SqliteStore, path: Path) -> bool:
    async with by_fts5(path) as oracle:
        return await answers(store) == await answers(oracle)


async def test_a_file_that_is_there_answers_the_first_search(path: Path, watched: Watched) -> None:
    await filled(path)
    watched.count = 0
    async with open_store(path, readonly=True) as store:
        assert await right(store, path)
    assert watched.count == len(QUESTIONS)


class Lengths:
    """An embedder whose vector is made of how long a text and its words are."""

    model = Model("lengths", 3)

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        return [self.vector(len(text) % 5 + 1, len(text.split()), len(set(text))) for text in texts]

    def vector(self, *numbers: int) -> bytes:
        length = sum(n * n for n in numbers) ** 0.5
        return struct.pack("<3f", *(n / length for n in numbers))


async def test_hybrid_search_and_explain_are_those_of_fts5(path: Path, watched: Watched) -> None:
    await filled(path)
    embedders = Embedders(Lengths())
    async with open_store(path, embedders=embedders) as store, by_fts5(path, embedders) as oracle:
        await embed_pending(store, Lengths())
        for text in QUESTIONS:
            for reader in READERS:
                for source in (None, "filesystem"):
                    query = SearchQuery(query=text, mode="hybrid", source=source, explain=True, prefix=True, limit=5)
                    answer = await store.search(query, reader)
                    assert answer == await oracle.search(query, reader)
                    assert not answer.warnings
    assert watched.count


def cut_short(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 100)


def change_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-200] ^= 1
    file.write_bytes(data)


def change_its_head(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"at": ', b'"at":1', 1))


def write_again(file: Path, version: int = files._FORMAT, **changed: int) -> None:
    found = files.read(file)
    assert found is not None
    stated, segments, live = found
    other = file.with_name("other")  # what is read is mapped: not to be written over
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_FORMAT", version)
        files.write(other, stated | changed, segments, live)
    other.replace(file)


def of_another_version(file: Path) -> None:
    write_again(file, version=0)


def of_another_store(file: Path) -> None:
    write_again(file, at=7)


@pytest.mark.parametrize(
    "damage", [Path.unlink, cut_short, change_a_byte, change_its_head, of_another_version, of_another_store]
)
async def test_a_file_that_is_damaged_is_not_used_and_made_anew(path: Path, watched: Watched, damage: Any) -> None:
    await filled(path)
    damage(postings.path_of(path))
    watched.count = 0
    async with open_store(path) as store:
        if damage is not Path.unlink:
            described = (await store.checked()).words
            assert described is not None
            assert not described[1]
        assert await store.search(SearchQuery(query="refunds"), EVERYTHING)
        assert watched.count == 0
        await ready(store)
        watched.count = 0
        assert await right(store, path)
        assert watched.count == len(QUESTIONS)
        assert (await store.checked()).words == ("80 chunks, checksum right", True)


async def test_a_store_that_was_restored_from_a_backup_does_not_use_postings_that_are_newer(
    path: Path, watched: Watched, tmp_path: Path
) -> None:
    await filled(path)
    backup = tmp_path / "backup"
    with sqlite3.connect(path) as db:
        db.execute("VACUUM INTO ?", (str(backup),))
    async with open_store(path) as store:
        await store.apply(Batch(source=SOURCES[0], deletes=[f"d{n}" for n in range(30)]))
        await ready(store)
    for each in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        each.unlink(missing_ok=True)
    shutil.copy(backup, path)
    async with open_store(path) as store:
        changed = [made(f"d{n}", ["another refund of the queue"]) for n in range(5)]
        await store.apply(Batch(source=SOURCES[0], upserts=changed))
        assert await right(store, path)
        await ready(store)
        assert await right(store, path)


async def test_a_reader_from_whom_documents_are_hidden_finds_the_others_after_the_newest_is_gone(
    path: Path, watched: Watched
) -> None:
    labels = [frozenset({"hr"}) if n % 3 == 0 else frozenset[str]() for n in range(30)]
    async with open_store(path, create=True) as store:
        documents = [made(f"d{n}", [f"refund queue {n}"], access) for n, access in enumerate(labels)]
        await store.apply(Batch(source=SOURCES[0], upserts=documents))
        await ready(store)
        await store.apply(Batch(source=SOURCES[0], deletes=["d29", "d28"]))
        watched.count = 0
        found = await store.search(SearchQuery(query="refund queue", limit=100), Reader.of([]))
        shown = {each.source_id for each, access in zip(documents[:28], labels, strict=False) if not access}
        assert {hit.source_id for hit in found.hits} == shown
        assert watched.count


async def test_a_folder_that_cannot_be_written_and_a_full_disk_leave_the_answers_as_they_are(
    path: Path, small: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write", full)
        async with open_store(path, create=True) as store:
            await store.apply(Batch(source=SOURCES[0], upserts=DOCUMENTS))
            await ready(store)
            assert await right(store, path)
    assert caplog.text.count("No space left on device") == 1  # not with every search
    assert not [each for each in path.parent.iterdir() if ".words" in each.name]
    async with open_store(path) as store:
        await ready(store)
        assert postings.path_of(path).exists()
        assert await right(store, path)


async def test_a_store_without_room_in_its_quota_has_no_postings(path: Path, small: pytest.MonkeyPatch) -> None:
    async with open_store(path, create=True) as store:
        await store.apply(Batch(source=SOURCES[0], upserts=DOCUMENTS))
    async with open_store(path, max_bytes=reading.size_on_disk(path)) as store:
        await ready(store)
        assert not postings.path_of(path).exists()
        assert await right(store, path)


async def test_what_another_process_has_written_is_found_and_its_file_is_taken(path: Path, watched: Watched) -> None:
    await filled(path)
    async with open_store(path, readonly=True) as serving:
        assert await right(serving, path)
        async with open_store(path) as syncing:
            await syncing.apply(Batch(source=SOURCES[0], upserts=[made("d3", ["a queue that is new"])]))
            watched.count = 0
            assert await right(serving, path)  # a document is read beside the file
            assert watched.count == len(QUESTIONS)
            await syncing.apply(Batch(source=SOURCES[1], upserts=DOCUMENTS))
            assert await right(serving, path)
            await ready(syncing)
        watched.count = 0
        assert await right(serving, path)
        assert watched.count == len(QUESTIONS)


async def test_while_another_process_makes_the_file_fts5_answers(path: Path, watched: Watched) -> None:
    await filled(path)
    postings.path_of(path).unlink()
    lock = os.open(path.with_name(path.name + ".1.lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        watched.count = 0
        async with open_store(path, readonly=True) as store:
            await ready(store)
            assert await right(store, path)
        assert watched.count == 0
    finally:
        os.close(lock)
    async with open_store(path, readonly=True) as store:
        await ready(store)
        assert await right(store, path)
    assert watched.count


_MAKE = """
import sys
from pathlib import Path
from knowledge.postings import file
from knowledge.sqlite import postings
write = file.write
def slowly(path, *rest):
    write(path, *rest)
    print("written", flush=True)
    sys.stdin.read()
file.write = slowly
postings.update(Path(sys.argv[1]), None, lambda seconds: None)
"""


def killed_while_writing(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _MAKE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as it:
        assert it.stdout
        assert it.stdout.readline() == b"written\n"
        it.send_signal(signal.SIGKILL)


async def test_a_process_that_is_killed_before_the_file_is_in_its_place_leaves_nothing_that_matters(
    path: Path, watched: Watched
) -> None:
    await filled(path)
    async with open_store(path) as store:
        await store.apply(Batch(source=SOURCES[0], upserts=[made("new", ["a refund"])], deletes=["d1"]))
    killed_while_writing(path)
    async with open_store(path) as store:
        watched.count = 0
        assert await right(store, path)
        assert watched.count == len(QUESTIONS)
        await store.apply(Batch(source=SOURCES[1], upserts=DOCUMENTS))
        await ready(store)
        assert await right(store, path)
    assert not [each for each in path.parent.iterdir() if each.name.endswith(".new")]


async def test_another_language_of_the_index_makes_other_postings(path: Path, watched: Watched) -> None:
    await filled(path)
    async with open_store(path, language="de") as store:
        assert await right(store, path)
        await ready(store)
        watched.count = 0
        assert await right(store, path)
    assert watched.count == len(QUESTIONS)


async def test_words_of_an_index_that_its_texts_do_not_have_are_ranked_by_fts5(path: Path, watched: Watched) -> None:
    async with open_store(path, create=True) as store:
        await store.apply(Batch(source=SOURCES[0], upserts=DOCUMENTS))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE chunks SET text = text || ' and more' WHERE chunk = (SELECT max(chunk) FROM chunks)")
    async with open_store(path) as store:
        await ready(store)
        assert await right(store, path)
    assert watched.count == 0


async def test_a_search_that_goes_on_while_its_store_is_closed_begins_no_thread(
    path: Path, small: pytest.MonkeyPatch
) -> None:
    async with open_store(path, create=True) as store:
        await store.apply(Batch(source=SOURCES[0], upserts=DOCUMENTS))
    with apsw.Connection(str(path)) as db:  # what the thread of a cancelled search still does
        assert store.words.of(db) is None
    await store.words.wait()
    assert not postings.path_of(path).exists()


async def test_a_small_store_has_no_postings(path: Path) -> None:
    async with open_store(path, create=True) as store:
        await store.apply(Batch(source=SOURCES[0], upserts=DOCUMENTS))
        await ready(store)
    assert not postings.path_of(path).exists()


async def test_changes_that_are_long_past_are_forgotten_and_the_file_is_made_of_all(
    path: Path, watched: Watched
) -> None:
    await filled(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing, "_REMEMBERED", 3)
        async with open_store(path) as store:
            await store.apply(Batch(source=SOURCES[0], upserts=DOCUMENTS[:10]))
            with sqlite3.connect(path) as db:
                indexing_rows = "SELECT count(*) FROM word_changes"
                before = db.execute(indexing_rows).fetchone()[0]
            from knowledge.store import SyncMark

            await store.apply(Batch(source=SOURCES[0], mark=SyncMark(at="2026-01-01T00:00:00Z")))
            with sqlite3.connect(path) as db:
                assert db.execute(indexing_rows).fetchone()[0] == 4 < before
            assert await right(store, path)
            await ready(store)
            watched.count = 0
            assert await right(store, path)
    assert watched.count == len(QUESTIONS)

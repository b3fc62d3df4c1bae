"""Lists of near vectors beside a large store: the nearest are found, and nothing is wrong whatever happens to them."""

import fcntl
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from knowledge import stores
from knowledge.access import EVERYTHING, Reader
from knowledge.embed import embed_pending
from knowledge.embedding import Embedders, Model
from knowledge.embedding.arrays import Floats, np, packed_rows
from knowledge.embedding.fusion import Settings
from knowledge.neighbours import file as files
from knowledge.neighbours import lists
from knowledge.sqlite import meaning, sidecar, vectors
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import Batch, NewDocument, SearchQuery
from knowledge.stores import open_stores, remove_store, store_path, stored_bytes

SOURCE = "filesystem:notes"
DIMS, TOPICS, COUNT = 32, 12, 300


@dataclass
class Topics:
    """An embedder whose vectors lie about some topics: a text is a topic and a number."""

    model: Model = field(default_factory=lambda: Model("topics", DIMS))

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        return packed_rows(np.stack([self.vector(text) for text in texts]))

    def vector(self, text: str) -> Floats:
        topic, number = (int(word) for word in text.split()[-2:])
        centre, noise = (np.random.default_rng(seed).standard_normal(DIMS) for seed in (topic, 1000 + number))
        return (centre + 0.5 * noise).astype(np.float32)


def document(number: int, topic: int | None = None, **fields: Any) -> NewDocument:
    text = f"{number % TOPICS if topic is None else topic} {number}"
    return NewDocument(source_id=f"{number}.md", body=text, chunks=(text,), digest=text, **fields)


DOCUMENTS = [document(number) for number in range(COUNT)]
QUESTIONS = [f"{topic} {9000 + topic}" for topic in range(TOPICS)]


@contextmanager
def lists_of_few() -> Iterator[pytest.MonkeyPatch]:
    """Lists of few windows, of which searches read few."""
    with pytest.MonkeyPatch.context() as patch:
        for where, name, value in (
            (sidecar, "MIN_ROWS", 20), (sidecar, "MAX_TAIL", 10), (sidecar, "LISTED_ROWS", 100),
            (sidecar, "_APART_S", 0.0), (sidecar, "_REST", 0.0), (meaning, "_LISTED", 30), (meaning, "_LISTED_EACH", 0),
            (meaning, "_DEAD", 5),
            (lists, "_WATCHED", 12), (lists, "_SHARES", (0.1, 0.15, 0.2, 0.4)),
        ):  # fmt: skip
            patch.setattr(where, name, value)
        yield patch


@pytest.fixture(autouse=True, name="small")
def small_fixture() -> Iterator[pytest.MonkeyPatch]:
    with lists_of_few() as patch:
        yield patch


class Watched:
    """How many searches were answered by lists."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        before = meaning._Near.best

        def best(near: Any, wanted: int) -> Any:
            self.count += near._lists is not None
            return before(near, wanted)

        patch.setattr(meaning._Near, "best", best)


@pytest.fixture
def watched(small: pytest.MonkeyPatch) -> Watched:
    return Watched(small)


class Without(sidecar.Sidecar):
    """The same vectors without lists."""

    def parts(self, db: apsw.Connection, held: vectors.Held) -> tuple[files.Matrix, ...]:
        return tuple(replace(part, lists=None) for part in super().parts(db, held))

    def _begin(self, held: vectors.Held) -> None:
        pass


@asynccontextmanager
async def opened(path: Path, **fields: Any) -> AsyncIterator[SqliteStore]:
    async with open_store(path, create=True, embedders=Embedders(Topics()), **fields) as store:
        yield store


@asynccontextmanager
async def exact(path: Path) -> AsyncIterator[SqliteStore]:
    """The store as it answers when it compares with every window."""
    async with opened(path) as store:
        store.near._sidecar = Without(path)
        yield store


async def fill(store: SqliteStore, documents: Sequence[NewDocument], deletes: Sequence[str] = ()) -> None:
    await store.apply(Batch(source=SOURCE, upserts=documents, deletes=deletes))
    await embed_pending(store, Topics())


async def ready(store: SqliteStore) -> None:
    """Wait until the lists of a store that nothing else writes are up to date."""
    for _ in range(2):
        text = f"1 {time.monotonic_ns() % 10**9}"  # no cached answer
        await store.search(SearchQuery(query=text, mode="semantic", limit=1), EVERYTHING)
        await store.near.wait()


async def answers(store: SqliteStore, reader: Reader = EVERYTHING, **fields: Any) -> list[dict[str, float]]:
    """What is found for each question."""
    found = []
    for text in QUESTIONS:
        query = SearchQuery(**({"query": text, "mode": "semantic", "limit": 10} | fields))
        found.append({hit.source_id: hit.score for hit in (await store.search(query, reader)).hits})
    return found


async def right(store: SqliteStore, path: Path) -> bool:
    async with exact(path) as oracle:
        return await answers(store) == await answers(oracle)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with lists, for tests to copy."""
    path = tmp_path_factory.mktemp("template") / "store"

    async def made() -> None:
        async with opened(path) as store:
            await fill(store, DOCUMENTS)
            await ready(store)

    with lists_of_few():
        trio.run(made)
    assert sidecar_of(path).lists is not None
    return path


@pytest.fixture
def embedded(path: Path, template: Path) -> Path:
    """A store with vectors and no file beside it."""
    return shutil.copy(template, path)


@pytest.fixture
def filled(embedded: Path, template: Path) -> Path:
    """A store with lists."""
    shutil.copy(sidecar.path_of(template), sidecar.path_of(embedded))
    return embedded


def contents(path: Path) -> bytes:
    return path.read_bytes()


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


def sidecar_of(path: Path) -> files.Matrix:
    with apsw.Connection(str(path)) as db:
        (held,) = vectors.held(db)[1]
        found = sidecar.load(sidecar.path_of(path), held)
    assert found is not None
    return found


# --- lists of vectors


def drawn(count: int, seed: int) -> Floats:
    chance = np.random.default_rng(seed)
    topics = np.random.default_rng(0).standard_normal((60, 64), np.float32)
    found: Floats = topics[chance.integers(0, 60, count)] + 0.7 * chance.standard_normal((count, 64), np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def listed(rows: Floats) -> tuple[lists.Lists, Floats]:
    by = lists.centres_of(rows[lists.sample_places(*rows.shape)], len(rows), lambda: None)
    order, starts = lists.in_lists(lists.assigned(rows, by.centres, lambda: None), len(by.centres))
    rows = rows[order]
    return lists.Lists(by, np.argsort(order), starts, rows @ by.axes), rows


def test_the_nearest_are_found_by_reading_a_part_of_all_and_equal_vectors_have_equal_lists(
    small: pytest.MonkeyPatch,
) -> None:
    small.undo()
    vectors, asked = drawn(20_000, 1), drawn(40, 2)
    known, rows = listed(vectors)
    found, read = [], []
    for query in asked:
        places = lists.near(known, query, 2000)
        nearest = np.argsort(-(rows @ query))[:10]
        found.append(np.isin(nearest, places).mean())
        read.append(len(places))
    assert np.mean(found) >= 0.98
    assert max(read) == 2000
    again, _ = listed(vectors)
    for name in ("order", "starts", "projected"):
        assert getattr(known, name).tobytes() == getattr(again, name).tobytes()


def test_lists_of_equal_or_empty_vectors_are_found_like_others() -> None:
    for rows in (np.ones((500, 8), np.float32), np.zeros((500, 8), np.float32), np.eye(8, dtype=np.float32)):
        known, _ = listed(rows)
        assert len(lists.near(known, rows[0], 5)) == 5
        assert sorted(known.order.tolist()) == list(range(len(rows)))


# --- searches


async def test_lists_find_what_is_nearest_with_the_score_that_it_has(filled: Path, watched: Watched) -> None:
    async with opened(filled) as store, exact(filled) as oracle:
        found, expected = await answers(store), await answers(oracle)
        assert watched.count >= len(QUESTIONS)
        same = [len(one.keys() & other.keys()) / 10 for one, other in zip(found, expected, strict=True)]
        assert sum(same) / len(same) >= 0.98
        for one, other in zip(found, expected, strict=True):
            assert {name: one[name] for name in one if name in other} == {
                name: other[name] for name in other if name in one
            }
        # Hybrid search looks at documents that no list was read for.
        more = [SearchQuery(query=f"{n % TOPICS} {n}", mode="hybrid", passages=2, explain=True) for n in range(10)]
        for query in more:
            one, other = await store.search(query, EVERYTHING), await oracle.search(query, EVERYTHING)
            assert one.hits[0] == other.hits[0]
        assert len((await store.search(SearchQuery(query="1 5", mode="semantic", limit=100), EVERYTHING)).hits) == 100


@pytest.mark.parametrize("settings", [Settings(group_by="chunk", max_chunks_per_doc=2), Settings(doc_agg="avg")])
async def test_chunks_and_averages_of_documents_are_those_of_all_their_windows(
    path: Path, settings: Settings, watched: Watched
) -> None:
    chance = random.Random(6)
    parts = [
        [f"{n % TOPICS} {n}", f"{chance.randrange(TOPICS)} {n + 500}", f"{n % TOPICS} {n + 900}"] for n in range(100)
    ]
    async with opened(path, settings=settings) as store:
        await fill(store, [replace(document(n), chunks=chunks) for n, chunks in enumerate(parts)])
        await ready(store)
        found = [await store.search(SearchQuery(query=t, mode="semantic", limit=5), EVERYTHING) for t in QUESTIONS]
        again = store.with_settings(settings)  # which has no cached answers
        store.near._sidecar = Without(path)
        expected = [await again.search(SearchQuery(query=t, mode="semantic", limit=5), EVERYTHING) for t in QUESTIONS]
    assert watched.count >= len(QUESTIONS)
    shown = [{(hit.id, hit.snippet, hit.score) for hit in answer.hits} for answer in (*found, *expected)]
    same = [len(one & other) / 5 for one, other in zip(shown, shown[len(QUESTIONS) :], strict=False)]
    assert sum(same) / len(same) >= 0.98


async def test_a_filter_and_a_reader_from_whom_documents_are_hidden_are_answered_by_all_that_they_leave(
    path: Path, tmp_path: Path, watched: Watched
) -> None:
    shown = [document(n, updated_at=f"202{n % 5}-01-01T00:00:00Z") for n in range(150)]
    hidden = [document(n, access=["hr"]) for n in range(150, 300)]
    for file, documents in ((path, [*shown, *hidden]), (tmp_path / "without", shown)):
        async with opened(file) as store:
            await fill(store, documents)
            await ready(store)
    staff = Reader.of(["staff"])
    async with opened(path) as store, exact(tmp_path / "without") as without:
        watched.count = 0
        assert await answers(store, staff) == await answers(without)
        assert await answers(store, staff, path="1*") == await answers(without, path="1*")
        assert await answers(store, path="1?.md") == await answers(without, path="1?.md")
        assert await answers(store, since="2024-01-01") == await answers(without, since="2024-01-01")
        assert watched.count == 0
        await answers(store, Reader.of(["hr"]))  # sees every document
        assert watched.count == len(QUESTIONS)


@pytest.mark.usefixtures("watched")
async def test_what_was_written_and_deleted_since_is_found_and_is_not(filled: Path) -> None:
    chance = random.Random(4)
    held = {n: n % TOPICS for n in range(COUNT)}
    async with opened(filled) as writer, opened(filled, readonly=True) as reader:
        for turn in range(4):
            changed = {n: chance.randrange(TOPICS) for n in chance.sample(range(400), 12)}
            gone = chance.sample(sorted(held.keys() - changed.keys()), 10)
            held = {n: topic for n, topic in (held | changed).items() if n not in gone}
            await fill(writer, [document(n, topic) for n, topic in changed.items()], [f"{n}.md" for n in gone])
            for found in await answers(reader):
                assert found.keys() <= {f"{n}.md" for n in held}
            for n, topic in changed.items():
                query = SearchQuery(query=f"{topic} {n}", mode="semantic", limit=1)
                assert [hit.source_id for hit in (await reader.search(query, EVERYTHING)).hits] == [f"{n}.md"]
            if turn == 1:
                await ready(reader)
        await ready(writer)
    assert len(sidecar_of(filled).numbers) <= len(held) + 10  # what is gone has left it


async def test_a_file_of_which_the_last_document_has_changed_is_used(filled: Path, watched: Watched) -> None:
    async with opened(filled) as store:
        await fill(store, [document(COUNT - 1, 3)])
    before = sidecar.path_of(filled).stat().st_mtime_ns
    watched.count = 0
    async with opened(filled) as store:
        await answers(store)
        assert watched.count == len(QUESTIONS)
    assert sidecar.path_of(filled).stat().st_mtime_ns == before


async def test_lists_grow_with_the_store_and_are_made_anew_when_it_has_doubled(filled: Path) -> None:
    by = sidecar_of(filled).lists
    assert by is not None
    async with opened(filled) as store:
        await fill(store, [document(n) for n in range(COUNT, COUNT + 60)])
        await ready(store)
        grown = sidecar_of(filled)
        assert grown.lists is not None
        assert grown.lists.by.centres.tobytes() == by.by.centres.tobytes()
        assert len(grown.numbers) == COUNT + 60
        await fill(store, [document(n) for n in range(COUNT + 60, 3 * COUNT)])
        await ready(store)
        assert await answers(store)
    anew = sidecar_of(filled).lists
    assert anew is not None
    assert (len(anew.starts), anew.by.rows) == (31, 3 * COUNT)


async def test_a_store_restored_from_a_backup_does_not_use_newer_lists(filled: Path) -> None:
    backup = contents(filled)
    async with opened(filled) as store:
        await fill(store, [document(n) for n in range(COUNT, COUNT + 60)])
        await ready(store)
    put(filled, backup)
    async with opened(filled) as store:
        await fill(store, [document(n, 5) for n in range(COUNT, COUNT + 40)])
        query = SearchQuery(query=f"5 {COUNT + 7}", mode="semantic", limit=1)
        assert [hit.source_id for hit in (await store.search(query, EVERYTHING)).hits] == [f"{COUNT + 7}.md"]
        await ready(store)
        assert [hit.source_id for hit in (await store.search(query, EVERYTHING)).hits] == [f"{COUNT + 7}.md"]


async def test_what_is_written_after_a_restore_and_a_search_is_found(filled: Path, small: pytest.MonkeyPatch) -> None:
    small.setattr(meaning, "_DEAD", 200)  # as where few of the nearest windows are gone
    backup = contents(filled)
    async with opened(filled) as store:
        await fill(store, [document(n) for n in range(COUNT, COUNT + 60)])
        await ready(store)
    put(filled, backup)
    async with opened(filled) as store:
        await answers(store)  # reads the file, which has all windows of this store, and later ones
        await fill(store, [document(n, 5) for n in range(COUNT, COUNT + 40)])
        query = SearchQuery(query=f"5 {COUNT + 7}", mode="semantic", limit=1)
        assert [hit.source_id for hit in (await store.search(query, EVERYTHING)).hits] == [f"{COUNT + 7}.md"]


async def test_another_model_has_lists_of_its_own(filled: Path, watched: Watched) -> None:
    class Shorter(Topics):
        def vector(self, text: str) -> Floats:
            return super().vector(text)[:16]

    shorter = Shorter(Model("shorter", 16))
    async with open_store(filled, embedders=Embedders(shorter)) as store:
        await embed_pending(store, shorter)
        await ready(store)
        watched.count = 0
        assert all(await answers(store))
        assert watched.count == len(QUESTIONS)
        found = sidecar_of(filled)
        assert (found.vectors.shape, found.lists is not None) == ((COUNT, 16), True)


# --- the file


def cut_short(file: Path) -> None:
    other = file.with_name("other")  # what is read is mapped: not to be written over
    other.write_bytes(file.read_bytes()[:-100])
    other.replace(file)


def changed(place: int) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[place] ^= 1
        other = file.with_name("other")
        other.write_bytes(data)
        other.replace(file)

    return change


def of_another_version(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(file.read_bytes().replace(b'"format": 2', b'"format": 3', 1))
    other.replace(file)


def of_a_later_window(file: Path) -> None:
    """As if the file had what was written since."""
    data = file.read_bytes()
    at = data.index(b'"last": ') + len(b'"last": ')
    other = file.with_name("other")
    other.write_bytes(data[:at] + b"9" + data[at + 1 :])
    other.replace(file)


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, cut_short, of_another_version, of_a_later_window, *map(changed, (3, 4096, 4800, 12_000, -5))],
)
async def test_a_file_that_is_damaged_is_not_used_and_made_anew(filled: Path, watched: Watched, damage: Any) -> None:
    damage(sidecar.path_of(filled))
    async with opened(filled) as store:
        if damage is not Path.unlink:
            assert not (await store.checked()).usable
        found = (await answers(store))[0]
        async with exact(filled) as oracle:
            assert found == (await answers(oracle))[0]
        await ready(store)
        watched.count = 0
        await answers(store, limit=9)
        assert watched.count == len(QUESTIONS)
        assert (await store.checked()).sidecar == f"{COUNT} windows of topics, checksum right, in 17 lists"


async def test_a_file_that_is_removed_while_its_store_is_open_is_made_anew(embedded: Path, watched: Watched) -> None:
    async with opened(embedded) as store:
        store.near.sidecar()._next_s = math.inf  # no lists yet
        await answers(store)
        sidecar.path_of(embedded).unlink()
        store.near.sidecar()._next_s = 0.0
        await ready(store)
        await ready(store)
        watched.count = 0
        await answers(store, limit=9)
        assert watched.count == len(QUESTIONS)
    assert sidecar_of(embedded).lists is not None


async def test_a_full_disk_and_a_quota_without_room_leave_searches_to_compare_with_all(
    embedded: Path, small: pytest.MonkeyPatch, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    path = embedded
    before = files.write

    def full(path: Path, shape: files.Shape, parts: Any, name: Path | None = None) -> None:
        if shape.lists:
            next(iter(parts))
            raise OSError(28, "No space left on device")
        before(path, shape, parts, name)

    small.setattr(files, "write", full)
    async with opened(path) as store:
        await ready(store)
        assert await right(store, path)
    assert caplog.text.count("No space left on device") == 1  # not with every search
    small.setattr(files, "write", before)
    async with opened(path, max_bytes=stored_bytes(path)) as store:
        await ready(store)
        assert await right(store, path)
    assert "quota" in caplog.text
    assert (watched.count, sidecar_of(path).lists) == (0, None)
    async with opened(path) as store:
        await ready(store)
        await answers(store)
    assert watched.count >= len(QUESTIONS)


async def test_while_another_process_makes_lists_all_windows_are_compared_and_its_file_is_taken(
    embedded: Path, watched: Watched
) -> None:
    path = embedded
    lock = os.open(path.with_name(path.name + ".2.lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with opened(path, readonly=True) as store:
            await ready(store)
            assert await right(store, path)
            assert watched.count == 0
            os.close(lock)
            lock = -1
            async with opened(path) as other:
                await ready(other)
            made = sidecar.path_of(path).stat().st_ino
            await ready(store)
            watched.count = 0
            await answers(store, limit=9)
            assert watched.count == len(QUESTIONS)
            assert sidecar.path_of(path).stat().st_ino == made  # and not made once more
    finally:
        if lock >= 0:
            os.close(lock)


_MAKE = """
import sys
from pathlib import Path
import apsw
from knowledge.neighbours import file
from knowledge.sqlite import sidecar, vectors
path = Path(sys.argv[1])
with apsw.Connection(str(path)) as db:
    (held,) = vectors.held(db)[1]
before = sidecar._parts
def slowly(*given):
    for part in before(*given):
        yield part
        if part[0] == "vectors":
            print("half", flush=True)
            sys.stdin.read()
sidecar._parts = slowly
sidecar.update(path, held, None, lambda: None, stale=True)
"""


def kill_while_writing(path: Path) -> None:
    command = [sys.executable, "-c", _MAKE, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as it:
        assert it.stdout
        assert it.stdout.readline() == b"half\n"
        it.send_signal(signal.SIGKILL)


async def test_a_process_that_is_killed_while_it_writes_leaves_nothing_that_matters(
    filled: Path, watched: Watched
) -> None:
    kill_while_writing(filled)
    left = filled.with_name(filled.name + ".vectors.new")
    assert left.exists()
    watched.count = 0
    async with opened(filled) as store:
        await answers(store)
        assert watched.count == len(QUESTIONS)
        await fill(store, [document(n) for n in range(COUNT, COUNT + 60)])
        await ready(store)
    assert not left.exists()  # the next one has written over it
    assert len(sidecar_of(filled).numbers) == COUNT + 60
    left.touch()
    assert left in remove_store(filled)


async def test_a_store_that_is_closed_ends_the_thread_that_makes_lists(
    embedded: Path, small: pytest.MonkeyPatch, watched: Watched
) -> None:
    path = embedded
    small.setattr(sidecar, "_REST", 1e6)
    small.setattr(sidecar, "_LONGEST_REST_S", 60.0)
    with trio.fail_after(20):
        async with opened(path) as store:
            await answers(store)
    assert sidecar_of(path).lists is None
    small.setattr(sidecar, "_REST", 0.0)
    async with opened(path) as store:
        await ready(store)
        await answers(store)
    assert watched.count >= len(QUESTIONS)


async def test_lists_of_one_store_are_made_at_a_time_and_a_thread_that_waits_ends_with_its_store(
    embedded: Path,
) -> None:
    with trio.fail_after(20), sidecar._ONE_AT_ONCE:  # another store's are being made
        async with opened(embedded) as store:
            await answers(store)
            assert store.near.is_listing()
        assert not store.near.is_listing()
    assert sidecar_of(embedded).lists is None
    async with opened(embedded) as store:
        await ready(store)
    assert sidecar_of(embedded).lists is not None


async def test_a_search_that_goes_on_while_its_store_is_closed_begins_no_thread(embedded: Path) -> None:
    async with opened(embedded) as store:
        pass
    with apsw.Connection(str(embedded)) as db:  # what the thread of a cancelled search still does
        (held,) = vectors.held(db)[1]
        store.near.sidecar().parts(db, held)
    assert not store.near.is_listing()
    assert sidecar_of(embedded).lists is None


async def test_a_tenant_that_is_idle_keeps_its_store_open_until_its_lists_are_made(
    tmp_path: Path, template: Path, small: pytest.MonkeyPatch
) -> None:
    small.setattr(stores, "IDLE_S", 0.02)
    file = store_path(tmp_path / "store", "acme")
    put(file, contents(template))
    go_on = threading.Event()
    small.setattr(lists, "centres_of", lambda *given, before=lists.centres_of: go_on.wait(20) and before(*given))
    path_of = partial(store_path, tmp_path / "store")
    with trio.fail_after(20):
        async with open_stores({}, path_of, lambda tenant: {}, embedders=Embedders(Topics())) as opened_stores:
            await opened_stores.store_of("acme").search(SearchQuery(query="1 5", mode="semantic"), EVERYTHING)
            await trio.sleep(0.2)
            assert opened_stores.open
            go_on.set()
            while True:
                await trio.sleep(0.01)
                if not opened_stores.open:
                    break
    assert sidecar_of(file).lists is not None

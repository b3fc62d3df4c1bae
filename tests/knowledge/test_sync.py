import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import trio.testing
import warm_start

from knowledge import sync as sync_module
from knowledge.access import EVERYTHING
from knowledge.connectors import ConnectorError, Found, Item, Skipped, Unreadable
from knowledge.connectors.filesystem import FilesystemConnector
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import SearchQuery, StoreError
from knowledge.sync import SyncProgress, SyncReport, sync

LABEL = "filesystem:notes"


class Shelf:
    """A connector over a dict of items; reading or listing may fail, wait, or be counted."""

    def __init__(self, **items: str | Item | Exception) -> None:
        self.items = {name.replace("_", "."): item for name, item in items.items()}
        self.versions: dict[str, str] = {}
        self.skipped: list[Skipped] = []
        self.scan_error: Exception | None = None
        self.reads: list[str] = []
        self.before_read: Callable[[str], Any] | None = None

    async def scan(self) -> AsyncIterator[Found | Skipped]:
        await trio.lowlevel.checkpoint()
        for name, item in self.items.items():
            updated_at = item.updated_at if isinstance(item, Item) else None
            yield Found(source_id=name, version=self.versions.get(name, ""), updated_at=updated_at)
        for entry in self.skipped:
            yield entry
        if self.scan_error:
            raise self.scan_error

    async def read(self, found: Found) -> Item:
        self.reads.append(found.source_id)
        if self.before_read:
            await self.before_read(found.source_id)
        item = self.items[found.source_id]
        if isinstance(item, Exception):
            raise item
        return item if isinstance(item, Item) else Item(body=item)


def dated(updated_at: str, body: str = "word") -> Item:
    return Item(body=body, updated_at=updated_at)


def counts(report: SyncReport) -> tuple[int, int, int, int]:
    return report.fetched, report.upserted, report.unchanged, report.deleted


async def stored(store: SqliteStore, query: str = "word") -> set[str]:
    return {hit.source_id for hit in (await store.search(SearchQuery(query=query, limit=1000), EVERYTHING)).hits}


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def remove(root: Path, name: str) -> None:
    (root / name).unlink()


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with open_store(path, create=True, configured={LABEL: None}) as opened:
        yield opened


async def test_files_are_synchronised_changed_ones_again_and_deleted_ones_away(store: SqliteStore, root: Path) -> None:
    for name in ("a.md", "b.md", "sub/c.md"):
        write(root, name, f"# {name}\n\nword")
    connector = FilesystemConnector(root)
    assert counts(await sync(store, LABEL, connector)) == (3, 3, 0, 0)
    assert counts(await sync(store, LABEL, connector)) == (3, 0, 3, 0)
    write(root, "b.md", "# b.md\n\nchanged word")
    remove(root, "sub/c.md")
    assert counts(await sync(store, LABEL, connector)) == (2, 1, 1, 1)
    assert await stored(store) == {"a.md", "b.md"}
    assert await stored(store, "changed") == {"b.md"}
    (info,) = await store.sources(EVERYTHING)
    assert info.last_sync is not None


async def test_an_edit_in_the_same_second_of_the_same_size_is_not_missed(store: SqliteStore, root: Path) -> None:
    connector = FilesystemConnector(root)
    for round_number in range(5):
        write(root, "a.md", f"word{round_number}")
        os.utime(root / "a.md", (1_700_000_000, 1_700_000_000))
        await sync(store, LABEL, connector)
        assert await stored(store, f"word{round_number}") == {"a.md"}


async def test_a_touched_file_is_written_again_with_its_new_time(store: SqliteStore, root: Path) -> None:
    write(root, "a.md", "word")
    connector = FilesystemConnector(root)
    await sync(store, LABEL, connector)
    os.utime(root / "a.md", (1_700_000_000, 1_700_000_000))
    assert counts(await sync(store, LABEL, connector)) == (1, 1, 0, 0)
    (hit,) = (await store.search(SearchQuery(query="word"), EVERYTHING)).hits
    assert hit.updated_at == "2023-11-14T22:13:20Z"


async def test_an_item_whose_version_is_known_is_not_even_read(store: SqliteStore) -> None:
    shelf = Shelf(a="word", b="word")
    shelf.versions = {"a": "v1"}
    await sync(store, LABEL, shelf)
    shelf.reads.clear()
    assert (await sync(store, LABEL, shelf)).unchanged == 2
    assert shelf.reads == ["b"]  # without a version it has to be read, and compared


async def test_a_new_version_with_the_same_content_is_remembered_and_not_written(store: SqliteStore) -> None:
    shelf = Shelf(a="word")
    shelf.versions = {"a": "v1"}
    await sync(store, LABEL, shelf)
    shelf.versions = {"a": "v2"}
    assert counts(await sync(store, LABEL, shelf)) == (1, 0, 1, 0)
    shelf.reads.clear()
    await sync(store, LABEL, shelf)
    assert shelf.reads == []


async def test_a_full_sync_reads_and_writes_everything_and_keeps_the_ids(store: SqliteStore) -> None:
    shelf = Shelf(a="word", b="word")
    shelf.versions = {"a": "v1", "b": "v1"}
    await sync(store, LABEL, shelf)
    before = {hit.id for hit in (await store.search(SearchQuery(query="word"), EVERYTHING)).hits}
    for _ in range(2):
        assert counts(await sync(store, LABEL, shelf, full=True)) == (2, 2, 0, 0)
    assert {hit.id for hit in (await store.search(SearchQuery(query="word"), EVERYTHING)).hits} == before


async def test_other_chunk_bounds_cut_every_document_anew(store: SqliteStore) -> None:
    shelf = Shelf(a="word " * 100)
    shelf.versions = {"a": "v1"}
    assert (await sync(store, LABEL, shelf)).chunks == 1
    report = await sync(store, LABEL, shelf, max_tokens=10, overlap_tokens=2)
    assert report.upserted == 1
    assert report.chunks > 10
    assert (await store.stats(EVERYTHING)).chunks == report.chunks


async def test_one_item_that_cannot_be_read_costs_no_other_and_is_reported(store: SqliteStore, root: Path) -> None:
    shelf = Shelf(
        a="word",
        broken=Unreadable("extraction failed"),
        bug=RuntimeError("secret path /etc/x"),
        surrogate="\ud800 word",
        metadata=Item(body="word", metadata={"x": {1, 2}}),
        time=Item(body="word", updated_at="yesterday"),
        z="word",
    )
    report = await sync(store, LABEL, shelf)
    assert await stored(store) == {"a", "z"}
    assert dict(report.skipped) == {
        "broken": "extraction failed",
        "bug": "failed with RuntimeError",
        "surrogate": "holds text that is not Unicode (a lone surrogate)",
        "metadata": "failed with TypeError",
        "time": "failed with ValueError",
    }


async def test_binary_and_large_files_are_skipped_with_reasons_and_the_rest_is_there(
    store: SqliteStore, root: Path
) -> None:
    write(root, "good.md", "word")
    write(root, "large.md", "word " * 100)
    os.write(descriptor := os.open(root / "binary.md", os.O_WRONLY | os.O_CREAT), b"\xff\xfe\x00")
    os.close(descriptor)
    report = await sync(store, LABEL, FilesystemConnector(root, max_extract_bytes=100))
    assert await stored(store) == {"good.md"}
    reasons = dict(report.skipped)
    assert reasons.keys() == {"large.md", "binary.md"}
    assert "not UTF-8" in reasons["binary.md"]
    assert "max_extract_bytes is 100" in reasons["large.md"]


async def test_an_item_that_cannot_be_read_any_more_keeps_its_document(store: SqliteStore) -> None:
    shelf = Shelf(a="word", b="word", deep_c="word")
    await sync(store, LABEL, shelf)
    shelf.items = {"a": Unreadable("disk error")}
    shelf.skipped = [
        Skipped(source_id="b", reason="too large"),
        Skipped(source_id="deep.", reason="locked", below=True),
    ]
    assert (await sync(store, LABEL, shelf)).deleted == 0
    assert await stored(store) == {"a", "b", "deep.c"}


async def test_a_narrowed_sync_deletes_nothing(store: SqliteStore) -> None:
    await sync(store, LABEL, Shelf(gone="word", kept="word"))
    narrow = Shelf(kept="word")
    for options in ({"limit": 5}, {"since": "2020-01-01"}, {"until": "2030-01-01"}):
        narrowing: dict[str, Any] = options
        assert (await sync(store, LABEL, narrow, **narrowing)).deleted == 0
    assert (await sync(store, LABEL, narrow)).deleted == 1
    assert await stored(store) == {"kept"}


async def test_a_failed_scan_changes_nothing_but_the_state_and_the_next_sync_works(store: SqliteStore) -> None:
    await sync(store, LABEL, Shelf(a="word", b="word"))
    for error in (ConnectorError("its root is gone"), OSError("/a/path"), RuntimeError("bug")):
        shelf = Shelf(a="changed")
        shelf.scan_error = error
        with pytest.raises(ConnectorError):
            await sync(store, LABEL, shelf)
        assert await stored(store) == {"a", "b"}
        (info,) = await store.sources(EVERYTHING)
        assert not info.healthy
        assert "/a/path" not in (info.notes or "")
    assert counts(await sync(store, LABEL, Shelf(a="changed"))) == (1, 1, 0, 1)
    (info,) = await store.sources(EVERYTHING)
    assert (info.healthy, info.notes) == (True, None)


async def test_since_and_until_are_inclusive_days_and_items_without_a_time_pass(store: SqliteStore) -> None:
    shelf = Shelf(
        early=dated("2025-01-01T23:59:59Z"),
        first=dated("2025-01-02T00:00:00Z"),
        last=dated("2025-01-03T23:59:59Z"),
        late=dated("2025-01-04T00:00:00Z"),
        undated="word",
    )
    report = await sync(store, LABEL, shelf, since="2025-01-02", until="2025-01-03")
    assert report.fetched == 3
    assert await stored(store) == {"first", "last", "undated"}
    assert (await sync(store, LABEL, shelf)).upserted == 2  # what was left out is not lost


async def test_a_limit_bounds_what_is_written_and_repeating_it_gets_through_everything(store: SqliteStore) -> None:
    shelf = Shelf(a="word", b="word", c="word", d="word", e="word")
    assert [(await sync(store, LABEL, shelf, limit=2)).upserted for _ in range(4)] == [2, 2, 1, 0]
    assert await stored(store) == {"a", "b", "c", "d", "e"}


@pytest.mark.parametrize("options", [{"limit": 0}, {"since": "x"}, {"until": ""}, {"max_tokens": 0}])
async def test_a_bad_argument_is_a_value_error_before_anything_happens(
    store: SqliteStore, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  each has its own text, tested where it is made
        await sync(store, LABEL, Shelf(a="word"), **options)
    assert (await sync(store, LABEL, Shelf(a="word"))).upserted == 1


async def test_a_dry_run_reports_what_would_happen_and_writes_nothing(store: SqliteStore) -> None:
    await sync(store, LABEL, Shelf(a="word", gone="word"))
    before = await store.sources(EVERYTHING)
    report = await sync(store, LABEL, Shelf(a="changed word", new="word"), dry_run=True)
    assert report.dry_run
    assert counts(report) == (2, 2, 0, 1)
    assert report.chunks == 2
    assert await stored(store) == {"a", "gone"}
    assert await store.sources(EVERYTHING) == before


async def test_progress_is_told_in_order_with_a_total_once_it_is_known(store: SqliteStore) -> None:
    told: list[SyncProgress] = []
    await sync(store, LABEL, Shelf(a="word", b="word"), on_progress=told.append)
    assert [(step.phase, step.n, step.total) for step in told] == [
        ("discovering", 0, None),
        ("discovering", 2, None),
        ("ingesting", 0, 2),
        ("ingesting", 1, 2),
        ("ingesting", 2, 2),
    ]
    assert {step.source for step in told} == {LABEL}


async def test_an_item_listed_twice_is_taken_once_and_reported(store: SqliteStore) -> None:
    shelf = Shelf(a="word")

    async def twice() -> AsyncIterator[Found | Skipped]:
        yield Found(source_id="a")
        yield Found(source_id="a")

    shelf.scan = twice  # type: ignore[method-assign]
    report = await sync(store, LABEL, shelf)
    assert (report.upserted, report.skipped) == (1, [("a", "listed twice; the first was taken")])


async def test_two_syncs_of_one_label_exclude_each_other_and_other_labels_go_on(store: SqliteStore) -> None:
    reading, go_on = trio.Event(), trio.Event()
    shelf = Shelf(a="word")

    async def wait(name: str) -> None:
        reading.set()
        await go_on.wait()

    shelf.before_read = wait
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sync, store, LABEL, shelf)
        await reading.wait()
        with pytest.raises(StoreError, match="another sync of filesystem:notes is running"):
            await sync(store, LABEL, Shelf(b="word"))
        assert (await sync(store, "filesystem:other", Shelf(c="word"))).upserted == 1
        go_on.set()
    assert (await sync(store, LABEL, Shelf(a="word"))).unchanged == 1


async def test_a_cancelled_sync_leaves_whole_documents_and_the_next_one_does_the_rest(
    store: SqliteStore, assert_consistent: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_module, "BATCH_DOCUMENTS", 3)
    shelf = Shelf(**{f"item{n:02}": f"word {n}\n\n" * 400 for n in range(20)})
    with trio.CancelScope() as scope:

        async def cancel_late(name: str) -> None:
            if name == "item10":
                scope.cancel()
            await trio.lowlevel.checkpoint()

        shelf.before_read = cancel_late
        await sync(store, LABEL, shelf)
    assert scope.cancelled_caught
    assert_consistent()
    assert await stored(store) == {f"item{n:02}" for n in range(9)}
    shelf.before_read = None
    assert counts(await sync(store, LABEL, shelf)) == (20, 11, 9, 0)
    assert_consistent()


async def test_a_killed_sync_leaves_a_consistent_store_and_the_next_one_does_the_rest(
    path: Path, root: Path, assert_consistent: Callable[[], None]
) -> None:
    for n in range(300):
        write(root, f"{n:03}.md", f"# Document {n}\n\n" + f"word {n} filler\n\n" * 200)
    script = (
        "import sys, trio\n"
        "from knowledge.connectors.filesystem import FilesystemConnector\n"
        "from knowledge.sqlite.store import open_store\n"
        "from knowledge.sync import sync\n"
        "def tell(step):\n"
        "    if step.phase == 'ingesting' and step.n == 200:\n"
        "        print('midway', flush=True)\n"
        "async def main():\n"
        "    async with open_store(sys.argv[1], create=True) as store:\n"
        "        await sync(store, sys.argv[2], FilesystemConnector(sys.argv[3]), on_progress=tell)\n"
        "trio.run(main)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", script, str(path), LABEL, str(root)]
    child = await warm_start.open_process(command, stdout=subprocess.PIPE, env=environment)
    try:
        assert child.stdout is not None
        assert await child.stdout.receive_some()
    finally:
        child.kill()
        await child.wait()
    await child.stdout.aclose()
    async with open_store(path) as store:
        already = len(await stored(store))
        assert already >= 128
        report = await sync(store, LABEL, FilesystemConnector(root))
        assert counts(report) == (300, 300 - already, already, 0)
        assert len(await stored(store)) == 300
    assert_consistent()


async def test_a_store_that_is_locked_midway_fails_the_sync_and_the_next_one_works(path: Path) -> None:
    async with open_store(path, create=True, busy_timeout_s=0.05) as store:
        await sync(store, LABEL, Shelf(a="word"))
        holder = apsw.Connection(str(path))
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            await sync(store, LABEL, Shelf(a="changed"))
        holder.execute("ROLLBACK")
        holder.close()
        assert counts(await sync(store, LABEL, Shelf(a="changed"))) == (1, 1, 0, 0)


async def test_searches_are_answered_while_a_sync_writes(store: SqliteStore) -> None:
    await sync(store, LABEL, Shelf(**{f"item{n}": "word" for n in range(50)}))
    answers = []
    async with trio.open_nursery() as nursery:

        async def look() -> None:
            while True:
                answers.append(len(await stored(store)))

        nursery.start_soon(look)
        await sync(store, LABEL, Shelf(**{f"item{n}": "word again " * 500 for n in range(50)}))
        nursery.cancel_scope.cancel()
    assert set(answers) == {50}


async def test_nothing_that_a_strangers_text_makes_slow_is_done_by_the_writer(
    store: SqliteStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_the_writer(*args: object, **keys: object) -> list[None]:
        raise AssertionError("places were looked for while no other batch can be written")

    (root / "deep.md").write_text("# Alpha\n\n## Beta\n\nneedle\n" + "#\n" * 50_000)
    with monkeypatch.context() as patched:
        patched.setattr("knowledge.sqlite.writing.places.places", in_the_writer)
        await sync(store, LABEL, FilesystemConnector(root))
    (hit,) = (await store.search(SearchQuery(query="needle"), EVERYTHING)).hits
    assert (hit.heading, hit.lines and hit.lines[0]) == ("Alpha > Beta", 1)

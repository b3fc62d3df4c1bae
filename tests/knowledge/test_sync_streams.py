"""Sources that are stored while they are read: checkpoints, deletions, failures, kills."""

import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import warm_start
from hypothesis import given
from hypothesis import strategies as st

from knowledge import sync as sync_module
from knowledge.access import EVERYTHING
from knowledge.connectors import Complete, ConnectorError, Emitted, Event, Found, Gone, Item, Partial, Reached, Skipped
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import SearchQuery, StoreError
from knowledge.sync import SyncReport, sync

LABEL = "script:feed"


class Feed:
    """A connector that streams events; an exception among them is raised."""

    def __init__(self, *events: Event | Exception) -> None:
        self.events = events
        self.began: list[str | None] = []
        self.given = 0

    async def stream(self, checkpoint: str | None) -> AsyncIterator[Event]:
        self.began.append(checkpoint)
        for event in self.events:
            await trio.lowlevel.checkpoint()
            if isinstance(event, Exception):
                raise event
            self.given += 1
            yield event


def item(source_id: str, body: str = "word", checkpoint: str | None = None, updated_at: str | None = None) -> Emitted:
    found = Found(source_id=source_id, updated_at=updated_at)
    return Emitted(found, Item(body=body, updated_at=updated_at), checkpoint)


def counts(report: SyncReport) -> tuple[int, int, int, int]:
    return report.fetched, report.upserted, report.unchanged, report.deleted


async def stored(store: SqliteStore, query: str = "word") -> set[str]:
    return {hit.source_id for hit in (await store.search(SearchQuery(query=query, limit=1000), EVERYTHING)).hits}


async def next_checkpoint(store: SqliteStore, **options: Any) -> str | None:
    feed = Feed()
    await sync(store, LABEL, feed, dry_run=True, **options)
    return feed.began[0]


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with open_store(path, create=True, configured={LABEL: None}) as opened:
        yield opened


async def test_the_next_scan_begins_at_the_checkpoint_and_a_full_one_at_the_beginning(store: SqliteStore) -> None:
    feed = Feed(item("a"), item("b"), Reached("page 2"))
    assert counts(await sync(store, LABEL, feed)) == (2, 2, 0, 0)
    await sync(store, LABEL, feed)
    await sync(store, LABEL, feed, full=True)
    assert feed.began == [None, "page 2", None]
    assert await stored(store) == {"a", "b"}


async def test_other_chunk_bounds_begin_anew_so_that_every_document_is_cut_again(store: SqliteStore) -> None:
    await sync(store, LABEL, Feed(item("a"), Reached("end")))
    assert await next_checkpoint(store) == "end"
    assert await next_checkpoint(store, max_tokens=50) is None


async def test_only_a_complete_scan_deletes_what_it_did_not_name(store: SqliteStore) -> None:
    await sync(store, LABEL, Feed(item("a"), item("b"), item("c"), item("d")))
    assert (await sync(store, LABEL, Feed(item("a")))).deleted == 0
    assert (await sync(store, LABEL, Feed(item("a"), Gone("b"), Gone("x")))).deleted == 1
    assert await stored(store) == {"a", "c", "d"}
    kept = Feed(item("a"), Skipped(source_id="c", reason="too large"), Complete())
    assert counts(await sync(store, LABEL, kept)) == (1, 0, 1, 1)
    assert await stored(store) == {"a", "c"}


async def test_a_complete_scan_with_an_item_that_has_no_name_deletes_nothing(store: SqliteStore) -> None:
    await sync(store, LABEL, Feed(item("a"), item("b")))
    await sync(store, LABEL, Feed(item("a"), Partial(), Complete()))
    assert await stored(store) == {"a", "b"}


async def test_the_last_word_on_an_item_counts(store: SqliteStore) -> None:
    feed = Feed(item("a", "word one"), item("a", "word two"), item("b"), Gone("b"), item("c"), Gone("c"), item("c"))
    report = await sync(store, LABEL, feed)
    assert (report.upserted, report.deleted) == (5, 2)
    assert await stored(store) == {"a", "c"}
    assert await stored(store, "two") == {"a"}


@pytest.mark.parametrize("options", [{"limit": 2}, {"until": "2026-01-31"}, {"since": "2026-02-02"}])
async def test_no_checkpoint_passes_what_was_left_out(store: SqliteStore, options: dict[str, Any]) -> None:
    dates = ("2026-01-01", "2026-01-02", "2026-02-01", "2026-02-03")
    events = [item(f"i{n}", checkpoint=str(n), updated_at=f"{date}T00:00:00Z") for n, date in enumerate(dates)]
    await sync(store, LABEL, Feed(*events, Gone("i0"), Reached("end")), **options)
    expected = {"limit": "1", "until": "1", "since": None}[next(iter(options))]
    assert await next_checkpoint(store) == expected
    feed = Feed(*events[int(expected or -1) + 1 :], Reached("end"))
    await sync(store, LABEL, feed)
    assert await stored(store) == {"i0", "i1", "i2", "i3"}
    assert await next_checkpoint(store) == "end"


async def test_an_item_that_fails_holds_the_checkpoint_and_one_that_is_refused_does_not(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = await sync(store, LABEL, Feed(item("a", checkpoint="1"), item("b", "\ud800", "2")))
    assert report.skipped == [("b", "holds text that is not Unicode (a lone surrogate)")]
    assert await next_checkpoint(store) == "2"

    def fails(*arguments: object) -> str:
        raise OSError("a passing fault")

    with monkeypatch.context() as changed:
        changed.setattr(sync_module, "_digest", fails)
        await sync(store, LABEL, Feed(item("c", checkpoint="3")))
    assert await next_checkpoint(store) == "2"
    await sync(store, LABEL, Feed(item("c", checkpoint="3")))
    assert await next_checkpoint(store) == "3"


async def test_a_scan_that_fails_midway_keeps_what_came_before_and_says_so(store: SqliteStore) -> None:
    feed = Feed(item("a", checkpoint="1"), item("b"), Skipped(source_id="c", reason="too large"), ValueError("/etc"))
    with pytest.raises(ConnectorError, match=r"^listing it failed with ValueError$"):
        await sync(store, LABEL, feed)
    assert await stored(store) == {"a", "b"}
    assert await next_checkpoint(store) == "1"
    (info,) = await store.sources(EVERYTHING)
    assert (info.healthy, info.last_error, info.last_sync) == (False, "listing it failed with ValueError", None)
    assert [(each.source_id, each.reason) for each in info.skipped] == [("c", "too large")]
    await sync(store, LABEL, Feed(item("b"), item("c"), Complete()))
    (info,) = await store.sources(EVERYTHING)
    assert (info.healthy, info.last_error, info.skipped) == (True, None, ())
    assert await stored(store) == {"b", "c"}


async def test_items_are_stored_while_the_scan_goes_on_and_at_most_a_batch_waits(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_module, "BATCH_DOCUMENTS", 5)
    feed = Feed(*(item(f"i{n:03}") for n in range(50)))
    waiting: list[int] = []
    apply = SqliteStore.apply

    async def slow(self: SqliteStore, batch: Any) -> Any:
        applied = await apply(self, batch)
        waiting.append(feed.given - len(await stored(self)))
        return applied

    monkeypatch.setattr(SqliteStore, "apply", slow)
    await sync(store, LABEL, feed)
    assert len(waiting) == 11
    assert max(waiting) == 0


async def test_a_full_disk_leaves_the_checkpoint_before_what_was_not_stored(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_module, "BATCH_DOCUMENTS", 2)
    events = [item(f"i{n}", checkpoint=str(n)) for n in range(6)]
    apply, written = SqliteStore.apply, []

    async def fills_up(self: SqliteStore, batch: Any) -> Any:
        written.append(batch)
        if len(written) > 1:
            raise StoreError("the disk is full")
        return await apply(self, batch)

    with monkeypatch.context() as changed:
        changed.setattr(SqliteStore, "apply", fills_up)
        with pytest.raises(StoreError, match="full"):
            await sync(store, LABEL, Feed(*events))
    assert await next_checkpoint(store) == "1"
    await sync(store, LABEL, Feed(*events[2:]))
    assert await stored(store) == {f"i{n}" for n in range(6)}


async def test_a_clock_that_goes_back_costs_nothing(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    class Earlier(sync_module.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return sync_module.datetime(2001, 1, 1, tzinfo=tz)

    await sync(store, LABEL, Feed(item("a"), Reached("1")))
    monkeypatch.setattr(sync_module, "datetime", Earlier)
    feed = Feed(item("a", "word changed"), item("b"), Reached("2"))
    assert counts(await sync(store, LABEL, feed)) == (2, 2, 0, 0)
    assert feed.began == ["1"]
    (info,) = await store.sources(EVERYTHING)
    assert info.last_sync == "2001-01-01T00:00:00Z"


async def test_skipped_items_are_bounded_in_number_and_length_and_the_rest_is_counted(store: SqliteStore) -> None:
    skipped = [Skipped(source_id=f"{n}" + "x" * 1000, reason="r" * 1000) for n in range(1500)]
    report = await sync(store, LABEL, Feed(*skipped))
    assert (len(report.skipped), report.skipped_more) == (1000, 500)
    (info,) = await store.sources(EVERYTHING)
    assert (len(info.skipped), info.skipped_more) == (20, 1480)
    assert {(len(each.source_id), len(each.reason)) for each in info.skipped} == {(256, 256)}


_EVENTS = st.lists(
    st.one_of(
        st.builds(item, st.sampled_from("abcd"), st.sampled_from(["word 1", "word 2"]), st.none()),
        st.builds(Gone, st.sampled_from("abcd")),
        st.builds(Reached, st.just("?")),
    ),
    max_size=12,
)


@given(events=_EVENTS, limits=st.lists(st.integers(1, 3), max_size=4), size=st.integers(1, 4))
def test_a_feed_that_is_followed_in_parts_ends_as_one_that_is_followed_at_once(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event], limits: list[int], size: int
) -> None:
    """A checkpoint is the number of events before it: whatever was cut short, the next scan has to give no more."""
    numbered = [Reached(str(n)) if isinstance(event, Reached) else event for n, event in enumerate(events)]

    class Log:
        async def stream(self, checkpoint: str | None) -> AsyncIterator[Event]:
            await trio.lowlevel.checkpoint()
            for event in numbered[int(checkpoint or 0) :]:
                yield event

    async def follow(name: str, *steps: int | None) -> dict[str, str]:
        path = tmp_path_factory.mktemp("feed") / name
        async with open_store(path, create=True, readers=1) as store:
            for limit in steps:
                await sync(store, LABEL, Log(), limit=limit)
            return {each["source_id"]: each["body"] for each in (await store.export(EVERYTHING))["documents"]}

    async def both() -> None:
        assert await follow("parts", *limits, None) == await follow("whole", None)

    kept = sync_module.BATCH_DOCUMENTS
    try:
        sync_module.BATCH_DOCUMENTS = size
        trio.run(both)
    finally:
        sync_module.BATCH_DOCUMENTS = kept


_CHILD = """
import sys, trio
from knowledge import sync as module
from knowledge.connectors import Complete, Emitted, Found, Gone, Item
from knowledge.sqlite.store import open_store

class Log:
    async def stream(self, checkpoint):
        for n in range(int(checkpoint or 0), 400):
            await trio.sleep(0)
            if n % 10 == 9:
                yield Gone(f"i{n - 5}")
            yield Emitted(Found(source_id=f"i{n}"), Item(body=f"word {n}\\n\\n" * 50), str(n + 1))
            if n == 20:
                print("begun", flush=True)

async def main():
    module.BATCH_DOCUMENTS = 8
    async with open_store(sys.argv[1], create=True) as store:
        await module.sync(store, "script:feed", Log())

trio.run(main)
"""


async def test_a_feed_that_is_killed_at_any_moment_goes_on_to_what_an_undisturbed_one_gives(
    path: Path, assert_consistent: Callable[[], None]
) -> None:
    chance = random.Random(7)

    async def child(store: Path, after_s: float) -> None:
        process = await warm_start.open_process([sys.executable, "-c", _CHILD, str(store)], stdout=-1)
        assert process.stdout is not None
        with trio.move_on_after(20):
            await process.stdout.receive_some()
            with trio.move_on_after(after_s):
                await process.wait()
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await process.stdout.aclose()

    for _ in range(5):
        await child(path, chance.uniform(0, 0.15))
    await child(path, 20)
    calm = path.with_name("calm.sqlite")
    await child(calm, 20)
    exported = []
    for each in (path, calm):
        async with open_store(each) as store:
            exported.append((await store.export(EVERYTHING), await store.checkpoint(LABEL)))
    assert exported[0] == exported[1]
    assert exported[0][1] == "700/0 400"
    assert_consistent()

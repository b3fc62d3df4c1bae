"""Stores whose path has symbolic links in it: links are followed once, and what is noticed is of the same file."""

import logging
import os
from pathlib import Path

import apsw
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knowledge.access import EVERYTHING
from knowledge.sqlite.store import open_store
from knowledge.store import Batch, NewDocument, SearchQuery, StoreError
from knowledge.stores import store_files, stored_bytes
from storage.watch import connect_for_looking, open_watch

SOURCE = "filesystem:docs"


def batch(name: str, text: str) -> Batch:
    return Batch(source=SOURCE, upserts=[NewDocument(source_id=name, body=text, chunks=(text,), digest=text)])


# How a path gets to a place: a folder of its own, or a link to one, absolute, relative, or through another link.
steps = st.lists(st.sampled_from(["folder", "absolute", "relative", "chain", "up"]), max_size=5)


def path_by(base: Path, kinds: list[str], last: str) -> Path:
    here = base
    for depth, kind in enumerate(kinds):
        real, link = here / f"real{depth}", here / f"link{depth}"
        real.mkdir(parents=True)
        match kind:
            case "folder":
                link = real
            case "absolute":
                link.symlink_to(real.resolve())
            case "relative":
                link.symlink_to(real.name)
            case "chain":
                (here / f"other{depth}").symlink_to(real.name)
                link.symlink_to(f"./other{depth}")
            case "up":
                link.symlink_to(f"{real.name}/../{real.name}")
        here = link
    if last == "file":
        (here / "linked.sqlite").symlink_to("store.sqlite")
        return here / "linked.sqlite"
    return here / "store.sqlite"


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(kinds=steps, last=st.sampled_from(["folder", "file"]))
def test_however_links_lead_to_a_store_it_is_watched_and_changes_of_others_are_seen(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], last: str
) -> None:
    base = tmp_path_factory.mktemp("links")
    path = path_by(base, kinds, last)

    async def main() -> None:
        async with open_store(path, create=True) as writer, open_store(path, readonly=True) as reader:
            await writer.apply(batch("a.md", "first word"))
            async with open_watch(path) as watch:
                assert watch is not None
                before = watch.version()
                question = SearchQuery(query="word")
                for _ in range(3):
                    assert len((await reader.search(question, EVERYTHING)).hits) == 1
                await writer.apply(batch("b.md", "second word"))
                assert before is not None
                assert watch.version() not in (None, before)
                assert len((await reader.search(question, EVERYTHING)).hits) == 2
            assert stored_bytes(path) == (await writer.stats(EVERYTHING)).size_bytes > 4096

    trio.run(main)


async def test_a_link_that_is_changed_while_a_store_is_open_changes_nothing_for_it(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        async with open_store(tmp_path / name / "store.sqlite", create=True) as store:
            await store.apply(batch(f"{name}.md", f"word {name}"))
    link = tmp_path / "data"
    link.symlink_to("old")
    question = SearchQuery(query="word")
    async with open_store(link / "store.sqlite") as store:
        assert [hit.source_id for hit in (await store.search(question, EVERYTHING)).hits] == ["old.md"]
        (tmp_path / "next").symlink_to("new")
        os.replace(tmp_path / "next", link)
        async with open_store(link / "store.sqlite") as other:
            await other.apply(batch("more.md", "word more"))
        await store.apply(batch("late.md", "word late"))
        for _ in range(3):
            assert {hit.source_id for hit in (await store.search(question, EVERYTHING)).hits} == {"old.md", "late.md"}
        async with store.sync_lock(SOURCE):
            assert [each.name for each in (tmp_path / "new").glob("*.lock")] == []
    async with open_store(link / "store.sqlite") as store:
        assert {hit.source_id for hit in (await store.search(question, EVERYTHING)).hits} == {"new.md", "more.md"}


async def test_a_store_by_two_names_has_one_lock(tmp_path: Path) -> None:
    path, alias = tmp_path / "store.sqlite", tmp_path / "alias.sqlite"
    alias.symlink_to(path)
    async with open_store(path, create=True) as store, open_store(alias) as same, store.sync_lock(SOURCE):
        with pytest.raises(StoreError, match="another sync"):
            async with same.sync_lock(SOURCE):
                pass
    assert set(store_files(alias)) == {alias, *store_files(path)}


async def test_links_that_lead_nowhere_or_round_are_told(tmp_path: Path) -> None:
    loop, gone = tmp_path / "loop.sqlite", tmp_path / "gone.sqlite"
    loop.symlink_to("loop.sqlite")
    gone.symlink_to("nothing/store.sqlite")
    for path in (loop, gone):
        with pytest.raises(StoreError, match=path.name):
            async with open_store(path, readonly=True):
                pass
        with pytest.raises(StoreError, match=path.name):
            async with open_store(path, create=True):
                pass
        with pytest.raises(apsw.Error):
            connect_for_looking(path)
    async with open_store(tmp_path / "good.sqlite", create=True) as store:
        assert (await store.stats(EVERYTHING)).documents == 0


async def test_a_store_that_cannot_be_watched_is_used_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.sqlite"
    async with open_store(path, create=True) as store:
        await store.apply(batch("a.md", "word"))
    database = apsw.Connection(str(path))
    database.pragma("journal_mode", "delete")
    database.close()
    with caplog.at_level(logging.WARNING, logger="knowledge"):
        async with open_store(path, readonly=True) as store:
            assert len((await store.search(SearchQuery(query="word"), EVERYTHING)).hits) == 1
    assert ["cannot be watched" in record.getMessage() for record in caplog.records] == [True]
    assert "journal mode is delete" in caplog.text

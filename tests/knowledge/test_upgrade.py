"""A store of an older version is upgraded in place, in steps that may be killed, and answers as a new one does."""

from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from document_texts import DOCUMENTS
from effort import effort
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knowledge import chunking
from knowledge.access import EVERYTHING
from knowledge.sqlite import upgrade
from knowledge.sqlite.store import open_store
from knowledge.store import Batch, NewDocument, SearchQuery, StoreError

# The tables of schema 1, as its version made them.
SCHEMA_1 = """
CREATE TABLE sources(
    n INTEGER PRIMARY KEY, label TEXT NOT NULL UNIQUE, type TEXT NOT NULL, name TEXT NOT NULL,
    last_sync TEXT, last_error TEXT, checkpoint TEXT
);
CREATE TABLE documents(
    n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, source INTEGER NOT NULL REFERENCES sources(n),
    source_id TEXT NOT NULL, source_url TEXT, title TEXT, author TEXT, created_at TEXT, updated_at TEXT,
    content_type TEXT NOT NULL, chunk_count INTEGER NOT NULL, version TEXT NOT NULL, digest TEXT NOT NULL,
    metadata TEXT NOT NULL, body TEXT NOT NULL,
    UNIQUE(source, source_id)
);
CREATE INDEX documents_by_source ON documents(source, chunk_count);
CREATE VIRTUAL TABLE chunks USING fts5(title, text, tokenize = 'unicode61 remove_diacritics 2');
PRAGMA application_id = 1802399607;
PRAGMA user_version = 1;
"""


def documents(bodies: list[str]) -> list[NewDocument]:
    return [
        NewDocument(
            source_id=f"{n}.md", body=body, chunks=chunking.split(body, max_tokens=5), digest="d",
            title=f"needle {n}", content_type="text/markdown",
        )
        for n, body in enumerate(bodies)
    ]  # fmt: skip


def write_old(path: Path, source: str, written: list[NewDocument]) -> None:
    """A store as schema 1 had it, with the ids of today's rule."""
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    db.execute(SCHEMA_1)
    kind, _, name = source.partition(":")
    db.execute("INSERT INTO sources(n, label, type, name) VALUES (1, ?, ?, ?)", (source, kind, name))
    for n, each in enumerate(written, 1):
        db.execute(
            "INSERT INTO documents(n, id, source, source_id, title, content_type, chunk_count, version, digest, "
            "metadata, body) VALUES (?, ?, 1, ?, ?, ?, ?, '', 'd', '{}', ?)",
            (n, f"old-{n}", each.source_id, each.title, each.content_type, len(each.chunks), each.body),
        )
        db.executemany(
            "INSERT INTO chunks(rowid, title, text) VALUES (?, ?, ?)",
            [((n << 24) + index, each.title, text) for index, text in enumerate(each.chunks)],
        )
    db.close()


SOURCE = "filesystem:notes"
BODIES = ["# One\n\nfirst words here\n\n## Two\n\nsecond words are there", "", "plain\n" * 30]


async def answers(path: Path, **options: Any) -> Any:
    async with open_store(path, **options) as store:
        hits = (await store.search(SearchQuery(query="needle words plain", passages=9), EVERYTHING)).hits
        places = [[(hit.source_id, hit.heading, hit.lines, hit.digest, hit.passages)] for hit in hits]
        return sorted(map(repr, places)), (await store.stats(EVERYTHING)).chunks


async def answers_of_new(path: Path, written: list[NewDocument]) -> Any:
    async with open_store(path, create=True) as store:
        await store.apply(Batch(source=SOURCE, upserts=written))
    return await answers(path)


@pytest.mark.parametrize("readonly", [False, True])
async def test_an_old_store_answers_as_a_new_one_once_it_is_opened(tmp_path: Path, readonly: bool) -> None:
    write_old(tmp_path / "old.sqlite", SOURCE, documents(BODIES))
    upgraded = await answers(tmp_path / "old.sqlite", readonly=readonly)
    assert upgraded == await answers_of_new(tmp_path / "new.sqlite", documents(BODIES))
    assert await answers(tmp_path / "old.sqlite") == upgraded


@settings(max_examples=effort(15), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(DOCUMENTS, max_size=5))
def test_any_old_store_answers_as_a_new_one(tmp_path_factory: pytest.TempPathFactory, bodies: list[str]) -> None:
    folder = tmp_path_factory.mktemp("stores")

    async def main() -> None:
        write_old(folder / "old.sqlite", SOURCE, documents(bodies))
        assert await answers(folder / "old.sqlite") == await answers_of_new(folder / "new.sqlite", documents(bodies))

    trio.run(main)


async def test_an_upgrade_that_is_killed_between_steps_is_finished_by_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, "STEP_DOCUMENTS", 1)
    for steps in range(len(BODIES) + 1):
        path = tmp_path / f"{steps}.sqlite"
        write_old(path, SOURCE, documents(BODIES))
        db = apsw.Connection(str(path))
        upgrade.begin(db)
        for _ in range(steps):
            assert upgrade.step(db)
        db.close()
        assert await answers(path) == await answers_of_new(tmp_path / f"new{steps}.sqlite", documents(BODIES))


async def test_two_may_upgrade_the_same_store_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "STEP_DOCUMENTS", 1)
    path = tmp_path / "old.sqlite"
    write_old(path, SOURCE, documents(BODIES * 10))
    found: list[Any] = []

    async def one() -> None:
        found.append(await answers(path))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        nursery.start_soon(one)
    assert found[0] == found[1]


async def test_an_old_store_that_cannot_be_written_is_an_error_and_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    write_old(path, SOURCE, documents(BODIES))
    locked = apsw.Connection(str(path))
    locked.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError):
        async with open_store(path, readonly=True, busy_timeout_s=0.1):
            pass
    locked.execute("ROLLBACK")
    assert locked.pragma("user_version") == 1
    locked.close()
    assert (await answers(path))[1]

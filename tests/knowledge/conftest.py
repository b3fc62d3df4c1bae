"""What the tests of stores and of synchronisation share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from knowledge.sqlite import indexing, schema
from knowledge.sqlite.indexing import Worded


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's store is; nothing is there yet."""
    return tmp_path / "store.sqlite"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder."""
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def assert_consistent(path: Path) -> Callable[[], None]:
    """Asserts that SQLite, the index and the store's own counts agree."""

    def check() -> None:
        db = apsw.Connection(str(path))
        assert db.pragma("integrity_check") == "ok"
        db.execute("INSERT INTO words(words) VALUES ('integrity-check')")
        counted = "SELECT count(*) FROM chunks WHERE chunk >> 24 = n"
        assert db.execute(f"SELECT source_id FROM documents WHERE chunk_count != ({counted})").fetchall() == []
        assert db.execute("SELECT count(*) FROM chunks WHERE chunk >> 24 NOT IN (SELECT n FROM documents)").get == 0
        assert terms(db, "main") == terms(_indexed_anew(db), "main")
        db.close()

    return check


def terms(db: apsw.Connection, name: str) -> list[tuple[Any, ...]]:
    """Every word of the index of a store, with its row, column and place."""
    db.execute(f"CREATE VIRTUAL TABLE temp.instances USING fts5vocab({name}, words, instance)")
    found = db.execute("SELECT term, doc, col, offset FROM temp.instances ORDER BY doc, col, offset").fetchall()
    db.execute("DROP TABLE temp.instances")
    return found


def _indexed_anew(db: apsw.Connection) -> apsw.Connection:
    """A store in memory whose words are those that the texts of `db` have."""
    anew = apsw.Connection(":memory:")
    anew.execute(schema.SCHEMA)
    for n, title in db.execute("SELECT n, title FROM documents"):
        texts = db.execute("SELECT text FROM chunks WHERE chunk >> 24 = ? ORDER BY chunk", (n,)).fetchall()
        indexing.index(anew, [Worded(n, title, [text for (text,) in texts])], indexing.language(db))
    return anew

"""What the tests of stores and of synchronisation share."""

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest


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
        db.execute("INSERT INTO chunks(chunks, rank) VALUES ('integrity-check', 1)")
        counted = "SELECT count(*) FROM chunks WHERE rowid >> 24 = n"
        assert db.execute(f"SELECT source_id FROM documents WHERE chunk_count != ({counted})").fetchall() == []
        assert db.execute("SELECT count(*) FROM chunks WHERE rowid >> 24 NOT IN (SELECT n FROM documents)").get == 0
        db.close()

    return check

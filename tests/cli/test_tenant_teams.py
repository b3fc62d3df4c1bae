"""The teams of a tenant: exported, imported, in the back-up, and deleted with it."""

import tarfile
from pathlib import Path
from typing import Any

import apsw
import pytest
from cli_support import Engine

from storage.teams import rows as stored
from storage.teams.events import USER, AgentCreated, MessageEnqueued, TeamCreated
from storage.teams.rows import Rows
from storage.teams.store import teams_path
from storage.teams.tables import prepare

CONFIG = "[tenants]\nenabled = true\n[teams]\nenabled = true\n"
UID = "00000000-0000-4000-8000-000000000001"


def file_in(folder: Path) -> Path:
    return teams_path(folder / "data" / "engine.sqlite", "acme")


def fill(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = apsw.Connection(str(path))
    prepare(db)
    with db:
        rows = Rows.created(db, TeamCreated(name="press", uid=UID, budget={"agents": 3}), 1.0)
        rows.append(
            AgentCreated(agent=1, id="a", name="lead", parent=USER, role="worker", runner="client", instructions="x")
        )
        rows.append(MessageEnqueued(message=1, id="m", sender=USER, recipient=1, kind="request", text="hello"))
    db.close()


def content(path: Path) -> list[Any]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        (team,) = stored.teams(db)
        rows = Rows(db, team, 2.0)
        return [team, rows.agents(), rows.waiting(1), [each.event for each in rows.events_after(0, 100)]]
    finally:
        db.close()


@pytest.fixture
def engine(tmp_path: Path, engine: Engine) -> Engine:
    (tmp_path / "engine.toml").write_text(CONFIG)
    assert engine("tenant", "create", "acme").code == 0
    fill(file_in(tmp_path))
    return engine


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    other = tmp_path / "other"
    other.mkdir()
    (other / "engine.toml").write_text(CONFIG)
    return other


def test_an_export_has_the_teams_and_an_import_makes_them_anew_from_their_events(
    engine: Engine, tmp_path: Path, elsewhere: Path
) -> None:
    assert engine("tenant", "export", "acme", "-o", "acme.tar").code == 0
    assert engine("tenant", "import", str(tmp_path / "acme.tar"), cwd=elsewhere).code == 0
    assert content(file_in(elsewhere)) == content(file_in(tmp_path))


def test_an_import_takes_no_trigger_and_no_table_of_a_changed_export(
    engine: Engine, tmp_path: Path, elsewhere: Path
) -> None:
    db = apsw.Connection(str(file_in(tmp_path)))
    db.execute("UPDATE teams SET budget = '{\"agents\": 1000}'")
    db.execute("CREATE TRIGGER more AFTER INSERT ON events BEGIN DELETE FROM agents; END")
    db.close()
    assert engine("tenant", "export", "acme", "-o", "acme.tar").code == 0
    assert engine("tenant", "import", str(tmp_path / "acme.tar"), cwd=elsewhere).code == 0
    team, agents, waiting, _ = content(file_in(elsewhere))
    assert (team.budget, len(agents), len(waiting)) == ({"agents": 3}, 1, 1)
    db = apsw.Connection(str(file_in(elsewhere)))
    assert db.execute("SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'").get == 0
    db.close()


def test_an_export_whose_teams_are_another_programs_file_is_refused(
    engine: Engine, tmp_path: Path, elsewhere: Path
) -> None:
    assert engine("tenant", "export", "acme", "-o", "acme.tar").code == 0
    other = tmp_path / "changed.tar"
    (tmp_path / "teams.sqlite").write_bytes(b"nothing of SQLite")
    with tarfile.open(tmp_path / "acme.tar") as given, tarfile.open(other, "w") as changed:
        for member in given:
            if member.name != "teams.sqlite":
                changed.addfile(member, given.extractfile(member))
        changed.add(tmp_path / "teams.sqlite", "teams.sqlite")
    refused = engine("tenant", "import", str(other), cwd=elsewhere)
    assert refused.code != 0
    assert "teams.sqlite" in refused.err
    assert engine("tenant", "import", str(tmp_path / "acme.tar"), cwd=elsewhere).code == 0


def test_a_backup_has_the_teams_and_a_deletion_removes_them(engine: Engine, tmp_path: Path) -> None:
    assert engine("tenant", "backup", "saved").code == 0
    assert content(tmp_path / "saved" / "teams" / "acme.sqlite") == content(file_in(tmp_path))
    assert engine("tenant", "delete", "acme", "--yes").code == 0
    assert not file_in(tmp_path).exists()

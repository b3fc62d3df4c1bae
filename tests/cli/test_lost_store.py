"""A control store that was lost or emptied while files of tenants are there is reported; a restored one is right."""

import shutil
from pathlib import Path

import pytest
from cli_support import Engine
from every_command import begin


def warnings(engine: Engine) -> list[str]:
    return [text for text in engine("doctor", "--json").json["warnings"] if "not in the control store" in text]


@pytest.mark.parametrize("how", ["emptied", "missing"])
@pytest.mark.parametrize("files", ["documents", "packages", "packages of default"])
def test_a_control_store_that_was_lost_beside_tenants_files_is_told(
    tmp_path: Path, engine: Engine, how: str, files: str
) -> None:
    begin(tmp_path)
    config = tmp_path / "engine.toml"
    config.write_text(config.read_text() + 'tenants = ["*"]\n')
    owner = "default" if files == "packages of default" else "acme"
    assert engine("sync", "all").code == 0
    assert engine("tenant", "create", "acme").code == 0
    made = ("sync", "all") if files == "documents" else ("agent", "publish", "agent")
    assert engine(*made, "--tenant", owner).code == 0
    assert warnings(engine) == []
    control = tmp_path / "data" / "engine.control.sqlite"
    shutil.copy(control, tmp_path / "kept")
    control.unlink()
    if how == "emptied":
        control.touch()
    (told,) = warnings(engine)
    assert f"({owner})" in told
    assert "restore it from a back-up" in told
    listed = engine("agent", "list")
    assert listed.code == 0
    assert "not in the control store" in listed.err
    for each in tmp_path.glob("data/engine.control.sqlite*"):
        each.unlink()
    shutil.copy(tmp_path / "kept", control)
    assert warnings(engine) == []
    assert engine("tenant", "show", "acme").code == 0


def test_without_tenants_and_with_nothing_beside_it_a_new_store_is_no_news(tmp_path: Path, engine: Engine) -> None:
    begin(tmp_path)
    assert warnings(engine) == []
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "engine.control.sqlite").touch()
    assert warnings(engine) == []

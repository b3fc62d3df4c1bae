"""Data behind symbolic links: every command does there what it does without them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_support import Ended, Engine
from effort import part
from every_command import LINES, Life, begin, unlisted


def linked_folder(project: Path, elsewhere: Path) -> None:
    (elsewhere / "data").mkdir()
    (project / "data").symlink_to(elsewhere / "data")


def linked_in_the_middle(project: Path, elsewhere: Path) -> None:
    (elsewhere / "a" / "data").mkdir(parents=True)
    (project / "deep").symlink_to(elsewhere / "a")
    (project / "data").symlink_to("deep/data")


def linked_by_a_chain_of_relative_links(project: Path, elsewhere: Path) -> None:
    (project / "real").mkdir()
    (project / "one").symlink_to("real")
    (project / "two").symlink_to("./one/../one")
    (project / "data").symlink_to(Path("two"))


def linked_files(project: Path, elsewhere: Path) -> None:
    (project / "data" / "tenants").mkdir(parents=True)
    for name in ("engine.sqlite", "engine.control.sqlite", "tenants/acme.sqlite"):
        (project / "data" / name).symlink_to(elsewhere / name.replace("/", "-"))


def linked_folder_of_tenants(project: Path, elsewhere: Path) -> None:
    (project / "data").mkdir()
    (elsewhere / "tenants").mkdir()
    (project / "data" / "tenants").symlink_to(elsewhere / "tenants")


# What is a link: the folder of the data, in one way or another, its files, or a folder in it.
LAYOUTS = {
    linked_by_a_chain_of_relative_links: "folder", linked_folder: "folder", linked_in_the_middle: "folder",
    linked_files: "files", linked_folder_of_tenants: "folder in it",
}  # fmt: skip


def life(engine: Engine, project: Path) -> dict[str, Ended]:
    begin(project)
    lived = Life()
    return {line.name: lived.run(engine, line, cwd=project) for line in LINES}


def test_every_command_is_listed() -> None:
    assert unlisted() == set()


@pytest.fixture(scope="session")
def plain() -> dict[str, Ended]:
    """What each command answered without links, once some test has filled it in."""
    return {}


@pytest.mark.whole
@pytest.mark.parametrize(
    "linked", part(LAYOUTS, lambda layout: LAYOUTS[layout], one_in=3), ids=lambda layout: layout.__name__
)
def test_every_command_works_with_linked_data_as_it_does_without(
    linked: Callable[[Path, Path], None], tmp_path: Path, engine: Engine, plain: dict[str, Ended]
) -> None:
    projects = {name: tmp_path / name for name in ("plain", "linked", "elsewhere")}
    for folder in projects.values():
        folder.mkdir()
    linked(projects["linked"], projects["elsewhere"])
    plain.update(plain or life(engine, projects["plain"]))
    found = life(engine, projects["linked"])
    for line in LINES:
        expected, got = plain[line.name], found[line.name]
        assert expected.code == 0, (line.name, expected)
        assert (got.code, got.err) == (0, expected.err), (line.name, got)
        if not line.varies:
            assert got.out == expected.out, line.name


def test_a_deleted_tenant_leaves_nothing_behind_the_link_either(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "elsewhere").mkdir()
    begin(tmp_path)
    linked_files(tmp_path, tmp_path / "elsewhere")
    (tmp_path / "engine.toml").write_text((tmp_path / "engine.toml").read_text() + 'tenants = ["acme"]\n')
    assert engine("tenant", "create", "acme").code == 0
    assert engine("sync", "all", "--tenant", "acme").code == 0
    behind = tmp_path / "elsewhere" / "tenants-acme.sqlite"
    assert behind.stat().st_size > 0
    assert engine("tenant", "delete", "acme", "--yes").code == 0
    assert [name for name in os.listdir(tmp_path / "elsewhere") if name.startswith("tenants-acme")] == []
    assert not os.path.lexists(tmp_path / "data" / "tenants" / "acme.sqlite")

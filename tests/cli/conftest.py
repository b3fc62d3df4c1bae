"""Fixtures of the command line's tests: it is run in a directory of the test's own."""

import shutil
import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cli_support import Engine, command_line, in_this_process


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Engine:
    """The command line in `tmp_path`, in this process: one of its own takes half a second to start."""
    return in_this_process(tmp_path, monkeypatch, capsys)


@pytest.fixture
def process(tmp_path: Path) -> Engine:
    """The command line in `tmp_path`, as a process."""
    return partial(command_line, cwd=tmp_path)


def write_docs(project: Path) -> Path:
    folder = project / "docs"
    folder.mkdir()
    (folder / "alpha.md").write_text("# Alpha\n\nRust programming is a craft.\n")
    (folder / "beta.md").write_text("# Beta\n\nDeployments go out on Tuesdays.\n")
    (folder / "gamma.txt").write_text("Deployments are rolled back on Wednesdays.\n")
    (project / "engine.toml").write_text('[connectors.filesystem.docs]\nroot = "docs"\n')
    return folder


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder of three documents and a configuration that has it as filesystem:docs."""
    return write_docs(tmp_path)


@pytest.fixture(scope="session")
def filled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose store holds the three documents: made once, as most tests only read it."""
    project = tmp_path_factory.mktemp("filled")
    write_docs(project)
    assert command_line("sync", "all", cwd=project).code == 0
    return project


@pytest.fixture
def filled(engine: Engine, filled_once: Path, tmp_path: Path) -> Engine:
    """The command line in a project of its own, whose store holds the three documents."""
    shutil.copytree(filled_once, tmp_path, dirs_exist_ok=True)
    return engine

"""The command line as its users have it: a process, in a directory of its own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Ended:
    """A command line that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Engine = Callable[..., Ended]


def command_line(*arguments: str, cwd: Path, **environ: str) -> Ended:
    """Run the command line in `cwd`, with an environment that holds nothing of ours but what is given."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ENGINE_", "CTX_"))}
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=cwd,
        env=inherited | environ,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert "Traceback (most recent call last)" not in done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """The command line in `tmp_path`."""
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

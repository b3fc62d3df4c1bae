"""The command line as its users have it: as a process, or in this one, which is quicker."""

import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warm_start

from cli.main import run

# What of the environment steers the engine: no test gets its maker's.
OURS = ("ENGINE_", "CTX_")
TRACEBACK = "Traceback (most recent call last)"


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


def inherited() -> dict[str, str]:
    """The environment without anything of ours."""
    return {key: value for key, value in os.environ.items() if not key.startswith(OURS)}


def command_line(*arguments: str, cwd: Path, **environ: str) -> Ended:
    """Run the command line in `cwd`, with an environment that holds nothing of ours but what is given."""
    done = warm_start.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=cwd,
        env=inherited() | environ,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert TRACEBACK not in done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


def in_this_process(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Engine:
    """The command line in `folder`, or in `cwd`, with `stdin` as its input and nothing of ours in the environment but
    what is given."""

    def command(*arguments: str, stdin: bytes = b"", cwd: Path = folder, **environ: str) -> Ended:
        with monkeypatch.context() as changed:
            changed.chdir(cwd)
            for key in os.environ.keys() - inherited().keys():
                changed.delenv(key)
            for key, value in environ.items():
                changed.setenv(key, value)
            changed.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False, buffer=io.BytesIO(stdin)))
            capsys.readouterr()
            code = run(arguments)
        ended = Ended(code, *capsys.readouterr())
        assert TRACEBACK not in ended.err
        return ended

    return command

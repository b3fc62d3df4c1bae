"""Started under small limits (ulimit), the engine works, or says in one line which limit it is."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import Engine, inherited
from effort import part

AGENT = "[sandbox]\nworkers = 2\n[agents.script.hello]\npath = 'hello.lua'\n"
SCRIPT = "agent = {}\nfunction agent.resolve() return { system = 'good day' } end\n"

# From what an interpreter can hardly start with to what is enough: descriptors, KiB of address space.
FILES = (6, 9, 14, 20, 32, 48, 64, 66, 100, 155, 163, 300)
SPACE = (40_000, 70_000, 110_000, 300_000, 600_000, 786_000, 1_000_000)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "engine.toml").write_text(AGENT)
    (tmp_path / "hello.lua").write_text(SCRIPT)
    return tmp_path


def limited(limit: str, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    limits = " && ".join(f"ulimit {one}" for one in limit.split(", "))
    line = shlex.join([sys.executable, "-m", "cli.main", *command])
    return subprocess.run(
        ["sh", "-c", f"{limits} && exec {line}"],
        cwd=folder, env=inherited(), capture_output=True, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip


LIMITS = (*(f"-n {n}" for n in FILES), *(f"-v {n}" for n in SPACE))


@pytest.mark.whole
@pytest.mark.parametrize("limit", part(LIMITS, lambda limit: limit[:2], one_in=2))
def test_an_agent_is_tested_or_one_line_names_the_limit(limit: str, project: Path) -> None:
    done = limited(limit, project, "agent", "test", "hello")
    if done.returncode == 0:
        assert "good day" in done.stdout
        return
    assert done.returncode == 2, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    assert f"ulimit {limit[:2]}" in lines[0]


@pytest.mark.parametrize("limit", ["-n 64", "-v 700000"])
def test_a_server_that_has_not_enough_room_does_not_start_and_says_what_is_needed(limit: str, project: Path) -> None:
    done = limited(limit, project, "serve", "--bind", "127.0.0.1:0")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"ulimit {limit[:2]}" in done.stderr
    assert "are needed" in done.stderr


def test_where_there_is_room_it_works_under_limits(project: Path, engine: Engine) -> None:
    """The ceiling of memory decides how much address space there must be, and the number of workers how many files."""
    (project / "engine.toml").write_text(AGENT + "[limits.max]\nmemory_bytes = 67108864\n")
    done = limited("-n 170, -v 800000", project, "agent", "test", "hello")
    assert (done.returncode, "good day" in done.stdout) == (0, True), done.stderr
    assert engine("agent", "test", "hello").code == 0

"""Standard streams that are closed, full, or unread: a line at the most, the right exit code, no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_support import Engine, inherited
from effort import part
from every_command import LINES, Life, Line, begin
from forked import FAULTS

from cli.main import main
from cli.streams import OutputFailed, _Out

FORKED = Path(__file__).with_name("forked.py")


@pytest.fixture
def project(tmp_path: Path, engine: Engine) -> dict[str, list[str]]:
    """A project in which every line was run once; the words of each, with what it asked for."""
    begin(tmp_path)
    life, words = Life(), {}
    for line in LINES:
        words[line.name] = life.words(line)
        assert life.run(engine, line).code == 0
    return words


def with_faults(project: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(FORKED)], input=json.dumps(jobs), cwd=project, env=inherited(), capture_output=True,
        text=True, check=True, timeout=300,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


# What only reads ends as it does otherwise; the others cannot all be done a second time.
_READING = ("search", "get", "sources", "stats", "export", "audit", "completions", "bench", "mcp-config")


def faults_of(number: int, line: Line) -> tuple[str, ...]:
    """All of them for some; a full output and one in turn for the rest; one of what starts workers, which is slow."""
    if line.words[0] in ("search", "completions", "key"):
        return FAULTS
    heavy = line.words[0] in ("doctor", "agent", "tool")
    return tuple({FAULTS[number % len(FAULTS)]} | (set() if heavy else {"full stdout"}))


def kind_of(case: tuple[Line, str]) -> tuple[str, str]:
    """Commands of a group have what they do in common."""
    return case[0].words[0], case[1]


@pytest.mark.whole
def test_no_command_says_more_than_a_line_of_a_broken_stream(tmp_path: Path, project: dict[str, list[str]]) -> None:
    asked = [(line, fault) for number, line in enumerate(LINES) for fault in faults_of(number, line)]
    asked = part(asked, kind_of, one_in=4)
    jobs = [{"words": project[line.name], "stdin": line.stdin.decode(), "fault": fault} for line, fault in asked]
    for (line, fault), ended in zip(asked, with_faults(tmp_path, jobs), strict=True):
        said = (line.name, fault, ended)
        errors = [text for text in ended["err"].splitlines() if text.startswith("error:")]
        assert ended["code"] in (0, 1, 2), said
        assert "Traceback" not in ended["err"] + ended["out"], said
        assert "Exception ignored" not in ended["err"], said
        assert len(errors) <= 1, said
        if fault == "full stdout":
            # These print nothing: the two versions are the same.
            silent = line.name.startswith("tenant export") or line.words[1:2] == ("diff",)
            assert ended["code"] != 0 or silent, said
        else:
            assert not any("standard output" in text for text in errors), said
            assert ended["code"] == 0 or line.words[0] not in _READING, said
        if fault in ("closed stdout", "all closed"):
            assert ended["out"] == "", said
        if fault in ("closed stderr", "full stderr"):
            assert "error:" not in ended["out"], said


def shell(command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", f'engine() {{ "{sys.executable}" -m cli.main "$@"; }}; {command}'],
        cwd=cwd, env=inherited(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


SHELLS = (
    ("engine init >&-", 0, "", ""),
    ("rm engine.toml; engine init >/dev/full", 2, "", "error: standard output: No space left on device\n"),
    ("rm engine.toml; engine init 2>&- <&-", 0, None, ""),
    ("engine nope >&-", 2, "", None),
    ("engine --help | true; exit ${PIPESTATUS[0]}", 0, "", ""),
    (
        "engine serve --stdio >&-", 2, "",
        "error: --stdio needs standard input, output and error, and one of them is closed\n",
    ),
)  # fmt: skip


def test_streams_that_a_shell_has_broken(tmp_path: Path) -> None:
    for command, code, out, err in SHELLS:
        ended = shell(command, tmp_path)
        assert ended.returncode == code, (command, ended)
        assert out in (None, ended.stdout), command
        assert err in (None, ended.stderr), command
    assert shell("engine stats", tmp_path).returncode in (0, 2)


def test_a_log_on_a_disk_that_is_full_is_dropped_and_goes_on_when_there_is_room() -> None:
    reading, writing = os.pipe()
    try:
        keeping = os.dup(writing)
        os.dup2(os.open("/dev/full", os.O_WRONLY), writing)
        log = _Out(writing, telling=False)
        assert log.write(b"lost") == 4
        os.dup2(keeping, writing)
        assert log.write(b"kept") == 4
        assert os.read(reading, 100) == b"kept"
        os.dup2(os.open("/dev/full", os.O_WRONLY), writing)
        told = _Out(writing, telling=True)
        with pytest.raises(OutputFailed):
            told.write(b"lost")
        assert told.write(b"lost") == 4
    finally:
        for descriptor in (reading, writing, keeping):
            os.close(descriptor)


def test_the_program_begins_in_a_module_that_imports_nothing_of_its_own() -> None:
    code = "import sys; before = set(sys.modules); import cli.main; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['cli', 'cli.main']"
    assert main.__module__ == "cli.main"

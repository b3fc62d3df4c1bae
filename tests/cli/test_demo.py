"""`engine demo`: a folder that serves, made from what an installation carries; what was there stays."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import warm_start
from cli_support import Engine, inherited

from cli.commands.demo import configuration, write
from cli.output import Exit
from engine.config import load_config

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@contextmanager
def served(folder: Path, *words: str) -> Iterator[tuple[str, list[str]]]:
    """A server of the demo, started in `folder`: its address and the lines before it."""
    process = warm_start.Popen(
        [sys.executable, "-m", "cli.main", "demo", *words, "--bind", "127.0.0.1:0"],
        cwd=folder, env=inherited(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    before: list[str] = []
    try:
        assert process.stdout is not None
        for line in iter(process.stdout.readline, ""):
            before.append(line)
            if "listening on" in line:
                yield line.split()[-1], before
                break
        else:
            raise AssertionError((before, process.stderr and process.stderr.read()))
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


def asked(url: str, path: str, body: object) -> dict[str, object]:
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def test_the_demo_serves_agents_tools_and_documents_from_a_folder_of_its_own(tmp_path: Path) -> None:
    with served(tmp_path) as (url, before):
        assert any(line.startswith("Wrote the demo: engine-demo") for line in before)
        assert any(line.startswith("Filled filesystem:runbooks") for line in before)
        found = asked(url, "/tools/search", {"query": "card declines", "limit": 3})
        assert found["results"]
        prompt = asked(url, "/agents/incident-responder/prompt", {"service": "payments-api", "severity": "P1"})
        assert prompt["messages"]
        answer = asked(url, "/tools/hello_world", {"input": "What is the weather?"})
        assert answer["result"].startswith("I'm afraid I don't have real-time weather data")
    assert sorted(path.name for path in (tmp_path / "engine-demo").iterdir()) == [
        ".data", "agents", "engine.toml", "knowledge", "prompts", "tools",
    ]  # fmt: skip
    edited = tmp_path / "engine-demo" / "agents" / "onboarding-guide.lua"
    edited.write_text("agent = { description = 'mine' }\nfunction agent.resolve() return { system = 'edited' } end\n")
    with served(tmp_path, "engine-demo") as (url, before):
        assert any(line.startswith("Found the demo") for line in before)
        assert not any(line.startswith("Filled") for line in before)
        assert asked(url, "/agents/onboarding-guide/prompt", {})["system"] == "edited"


def test_every_path_of_the_configuration_is_there_in_the_folder_that_was_written(tmp_path: Path) -> None:
    assert write(tmp_path / "demo") is True
    folder = tmp_path / "demo"
    here = load_config(folder / "engine.toml", environ={}, cwd=folder).config
    there = load_config(EXAMPLES / "engine.toml", environ={}, cwd=EXAMPLES.parent).config
    assert "examples/" not in (folder / "engine.toml").read_text()
    for name, entry in here.agents.script.items():
        assert (folder / entry.path).read_bytes() == (EXAMPLES.parent / there.agents.script[name].path).read_bytes()
    assert here.db.path.is_relative_to(folder)


def test_a_folder_of_other_things_is_refused_and_left_as_it_is(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    ended = engine("demo", "mine", "--bind", "127.0.0.1:0")
    assert ended.code == 2
    assert "mine is no folder of the demo: it has notes.txt" in ended.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_write_that_was_cut_off_is_completed_by_the_next_one(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "engine.toml").unlink()
    (tmp_path / "tools" / "error-budget.lua").unlink()
    (tmp_path / "agents" / "onboarding-guide.lua").write_text("mine")
    assert write(tmp_path) is True
    assert (tmp_path / "tools" / "error-budget.lua").exists()
    assert (tmp_path / "agents" / "onboarding-guide.lua").read_text() == "mine"
    assert write(tmp_path) is False


def test_the_words_of_the_configuration_are_those_of_its_new_place() -> None:
    assert configuration('path = "examples/agents/a.lua" # here, the repository root') == (
        'path = "agents/a.lua" # here, this folder'
    )
    with pytest.raises(Exit):
        write(Path(sys.prefix))

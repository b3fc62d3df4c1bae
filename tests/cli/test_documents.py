"""`engine tool test` and `dev` with documents: the result, what it cost, its first request, another model."""

import json
import shutil
from pathlib import Path

import pytest
from cli_support import Engine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIG = """
[models.one]
api = "script"
path = "one.toml"
price = { input = 1, output = 5 }
[models.two]
api = "script"
path = "two.toml"
[agents.chatmd]
dir = "prompts"
[tools.script.count]
path = "count.lua"
"""
COUNT = 'tool = { description = "x" }\nfunction tool.execute() return { count = 3 } end\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "engine.toml").write_text(CONFIG)
    (tmp_path / "count.lua").write_text(COUNT)
    (tmp_path / "one.toml").write_text(
        '[[reply]]\nwhen = "please count"\ntool_calls = [{ name = "count" }]\n[[reply]]\ntext = "from one"\n'
    )
    (tmp_path / "two.toml").write_text('[[reply]]\ntext = "from two"\n[[reply]]\nstatus = 401\n')
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    (prompts / "hello.chatmd").write_text('<tool name="count"/>\n<system>Be polite.</system>\n')
    return tmp_path


def test_a_document_runs_with_its_tools_and_tells_what_it_used(folder: Path, engine: Engine) -> None:
    ended = engine("tool", "test", "hello", "--param", "input=please count")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(
        "Tool: hello\nSource: chatmd (prompts/hello.chatmd)\n\nResult:\n  from one\n\nCalled in "
    )
    assert "Outcome: ok · model one · 2 turns, 1 tool call · " in ended.out
    assert ended.out.rstrip().endswith(" USD")
    ended = engine("tool", "test", "hello", "--param", "input=x", "--model", "two", "--json")
    told = json.loads(ended.out)
    assert (told["result"], told["run"]["model"], told["outcome"]) == ("from two", "two", "ok")
    assert told["run_id"] == told["run"]["run_id"]


def test_the_path_of_a_document_is_run_with_the_configured_tools_and_models(folder: Path, engine: Engine) -> None:
    shutil.copy(folder / "prompts" / "hello.chatmd", folder / "draft.chatmd")
    ended = engine("tool", "test", "draft.chatmd", "--param", "input=please count")
    assert (ended.code, ended.err) == (0, "")
    assert "Source: chatmd (draft.chatmd)" in ended.out
    assert "2 turns, 1 tool call" in ended.out
    (folder / "draft.chatmd").write_text("<user>never closed")
    ended = engine("tool", "test", "draft.chatmd", "--param", "input=x")
    assert ended.code == 2
    assert "did not load: unclosed: draft.chatmd:1:1" in ended.err


def test_a_dry_run_shows_the_first_request_and_asks_no_model(folder: Path, engine: Engine) -> None:
    ended = engine("tool", "test", "hello", "--param", "input=please count", "--dry-run", "--json")
    assert ended.code == 0
    told = json.loads(ended.out)
    assert told["model"] == "one"
    assert told["request"]["messages"] == [
        {"role": "system", "content": "Be polite."}, {"role": "user", "content": "please count"},
    ]  # fmt: skip
    assert told["request"]["tools"][0]["function"]["name"] == "count"
    assert told["request"]["max_completion_tokens"] == 4096
    ended = engine("tool", "test", "hello", "--param", "input=x", "--dry-run")
    assert "First request to the model 'one':" in ended.out
    assert ended.out.endswith("\nNothing was sent.\n")


def test_what_does_not_fit_a_document_is_said(folder: Path, engine: Engine) -> None:
    cases = {
        ("hello",): "error: rejected: missing required parameter",
        ("hello", "--param", "input=x", "--model", "three"): "its model 'three' is not one of yours: one, two",
        ("count", "--dry-run"): "--model and --dry-run are for documents; 'count' is none",
        ("count", "--model", "two"): "--model and --dry-run are for documents; 'count' is none",
        ("draft.chatmd", "--source", "count"): "--source is for the path of a script",
    }
    for words, said in cases.items():
        ended = engine("tool", "test", *words)
        assert ended.code != 0, words
        assert said in ended.err, words
    ended = engine("tool", "list")
    assert "hello   " in ended.out
    assert "chatmd" in ended.out

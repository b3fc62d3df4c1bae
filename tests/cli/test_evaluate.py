"""`engine eval`: figures of a user's own questions, and what got worse."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from cli.commands.knowledge.evaluate import Swept
from cli.evaluation import SWEPT
from engine.config.models import RetrievalConfig

QUESTIONS = {"known": "rust", "unknown": "xylophone", "sync": "synchronised"}


def write(path: Path, answers: dict[str, str]) -> None:
    lines = [
        {"id": name, "question": QUESTIONS[name], "kind": "exact", "answers": [{"source_id": answer}]}
        for name, answer in answers.items()
    ]
    path.write_text("\n".join(map(json.dumps, lines)))


@pytest.fixture
def first(filled: Any, tmp_path: Path) -> dict[str, str]:
    """For each question, the document that a search finds first."""
    found = {name: filled("search", text, "--json").json["results"] for name, text in QUESTIONS.items()}
    return {name: results[0]["source_id"] if results else "nowhere.md" for name, results in found.items()}


def test_ranks_are_those_of_a_search(filled: Any, tmp_path: Path, first: dict[str, str]) -> None:
    write(tmp_path / "questions.jsonl", first)
    ended = filled("eval", "questions.jsonl", "--json")
    assert (ended.code, ended.err) == (0, "")
    ranks = ended.json["modes"]["keyword"]["ranks"]
    assert ranks == {name: None if answer == "nowhere.md" else 1 for name, answer in first.items()}
    assert ended.out == filled("eval", "questions.jsonl", "--json").out
    assert "keyword  exact" in filled("eval", "questions.jsonl").out


def test_what_got_worse_is_named(filled: Any, tmp_path: Path, first: dict[str, str]) -> None:
    write(tmp_path / "questions.jsonl", first)
    (tmp_path / "before.json").write_text(filled("eval", "questions.jsonl", "--json").out)
    write(tmp_path / "questions.jsonl", first | {"known": "nowhere.md"})
    ended = filled("eval", "questions.jsonl", "--against", "before.json")
    assert ended.code == 0
    assert ended.out.endswith("1 question worse than before:\n  keyword, rank 1 → none: known: rust\n")
    found = filled("eval", "questions.jsonl", "--against", "before.json", "--json").json
    assert found["worse"] == [{"id": "known", "mode": "keyword", "before": 1, "now": None}]
    changed = found["change"]["keyword"]
    assert (changed["questions"], changed["mrr"]) == (3, round(-1 / 3, 4))
    assert changed["mrr_interval"][0] <= changed["mrr"] <= changed["mrr_interval"][1] == 0
    assert "keyword: MRR@10 -0.333 over 3 questions of both, at 95 % -1.000 to 0.000\n" in ended.out


def test_a_sweep_tries_values_of_a_setting(filled: Any, tmp_path: Path, first: dict[str, str]) -> None:
    filled("embed", "pending")
    write(tmp_path / "questions.jsonl", first)
    found = filled("eval", "questions.jsonl", "--sweep", "hybrid_alpha", "--json").json
    assert list(found["modes"]) == ["hybrid"]
    assert found["sweep"]["setting"] == "hybrid_alpha"
    tried = {each["value"]: each for each in found["sweep"]["values"]}
    assert list(tried) == list(SWEPT["hybrid_alpha"])
    usual = found["modes"]["hybrid"]
    assert (tried[0.9]["all"], tried[0.9]["kinds"]) == (usual["all"], usual["kinds"])  # 0.9 is the default
    (tmp_path / "engine.toml").write_text((tmp_path / "engine.toml").read_text() + "[retrieval]\nhybrid_alpha = 0.3\n")
    other = filled("eval", "questions.jsonl", "--mode", "hybrid", "--json").json["modes"]["hybrid"]
    assert other["all"] == tried[0.3]["all"]
    shown = filled("eval", "questions.jsonl", "--sweep", "candidate_k_vector").out.splitlines()
    assert shown[4].split() == ["candidate_k_vector", "MRR@10", "95", "%", "RECALL@10", "exact"]
    assert [line.split()[0] for line in shown[5:]] == ["10", "20", "40", "80", "160", "320"]
    assert filled("eval", "questions.jsonl", "--sweep", "final_limit").code == 2


def test_the_values_of_a_sweep_are_of_settings_that_there_are() -> None:
    assert tuple(SWEPT) == get_args(Swept)
    for name, values in SWEPT.items():
        for value in values:
            RetrievalConfig.model_validate({name: value})


NO_RESULTS = (
    "", "[]", "{}", '{"modes": {"keyword": {"ranks": {"a": "1"}}}}', '{"modes": {"keyword": {"ranks": {"a": 0}}}}',
    '{"modes": []}', "[" * 99999,
)  # fmt: skip


@pytest.mark.parametrize("text", NO_RESULTS)
def test_what_is_no_earlier_result_is_refused(filled: Any, tmp_path: Path, first: dict[str, str], text: str) -> None:
    write(tmp_path / "questions.jsonl", first)
    (tmp_path / "before.json").write_text(text)
    ended = filled("eval", "questions.jsonl", "--against", "before.json")
    assert (ended.code, ended.err) == (2, "error: before.json is not a result of engine eval --json\n")


def test_a_mistake_in_the_questions_is_named_with_its_line(filled: Any, tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text('{"id": "a"}')
    ended = filled("eval", "questions.jsonl")
    assert (ended.code, ended.err) == (2, "error: questions.jsonl: line 1: a question must have 'question', a text\n")
    (tmp_path / "questions.jsonl").write_bytes(b"\xff")
    assert filled("eval", "questions.jsonl").code == 2
    assert filled("eval", "nosuch.jsonl").code == 2

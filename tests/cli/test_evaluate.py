"""`engine eval`: figures of a user's own questions, and what got worse."""

import json
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"modes": {"keyword": {"ranks": {"a": "1"}}}}', '{"modes": []}', "[" * 99999]
)
def test_what_is_no_earlier_result_is_refused(filled: Any, tmp_path: Path, first: dict[str, str], text: str) -> None:
    write(tmp_path / "questions.jsonl", first)
    (tmp_path / "before.json").write_text(text)
    ended = filled("eval", "questions.jsonl", "--against", "before.json")
    assert (ended.code, ended.err) == (2, "error: before.json: is no result of engine eval --json\n")


def test_a_mistake_in_the_questions_is_named_with_its_line(filled: Any, tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text('{"id": "a"}')
    ended = filled("eval", "questions.jsonl")
    assert (ended.code, ended.err) == (2, "error: questions.jsonl: line 1: a question must have 'question', a text\n")
    (tmp_path / "questions.jsonl").write_bytes(b"\xff")
    assert filled("eval", "questions.jsonl").code == 2
    assert filled("eval", "nosuch.jsonl").code == 2

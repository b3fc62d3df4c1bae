"""Ranks, MRR, recall and intervals of questions whose answers are known."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.evaluation import DEPTH, Result, interval, parse_questions, report, result_of, summary, worse
from knowledge.store import Hit


def hit(source_id: str, heading: str | None = None) -> Hit:
    return Hit(
        id="x", source="a:b", source_id=source_id, title=None, score=1, snippet="", source_url=None, updated_at=None,
        heading=heading,
    )  # fmt: skip


def line(**fields: Any) -> str:
    return json.dumps({"id": "q", "question": "why?", "kind": "exact", "answers": [{"source_id": "a.md"}]} | fields)


def test_the_first_answer_counts_for_the_rank_and_all_for_recall() -> None:
    (question,) = parse_questions(line(answers=[{"source_id": "a.md"}, {"source_id": "b.md", "heading": "Beta"}]))
    hits = [hit("c.md"), hit("b.md", "Alpha > Gamma"), hit("b.md", "Alpha > Beta"), hit("a.md")]
    assert result_of(question, hits) == Result(3, 1.0)
    assert result_of(question, hits[:3]) == Result(3, 0.5)
    assert result_of(question, hits[:2]) == Result(None, 0.0)
    assert result_of(question, [hit("c.md")] * DEPTH + [hit("a.md")]) == Result(None, 0.0)


def test_figures_are_of_all_and_by_kind() -> None:
    questions = parse_questions("\n".join((line(id="1"), line(id="2", kind="reworded"), "", line(id="3"))))
    found = report(questions, {"1": Result(1, 1.0), "2": Result(None, 0.0), "3": Result(4, 0.5)})
    assert found["all"]["mrr"] == round((1 + 0.25) / 3, 4)
    assert found["kinds"]["exact"] | {"mrr_interval": []} == {
        "questions": 2, "mrr": 0.625, "mrr_interval": [], "recall": 0.75,
    }  # fmt: skip
    assert found["kinds"]["reworded"]["mrr_interval"] == [0, 0]
    assert found["ranks"] == {"1": 1, "2": None, "3": 4}


@given(st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]), min_size=1, max_size=40))
def test_an_interval_holds_values_of_the_range_and_is_the_same_each_time(values: list[float]) -> None:
    low, high = interval(values)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9
    assert (low, high) == interval(values)


def test_an_interval_holds_the_mean_and_narrows_with_more_questions() -> None:
    few, many = interval([0.0, 1.0] * 5), interval([0.0, 1.0] * 200)
    assert few[0] < many[0] < 0.5 < many[1] < few[1]
    assert 0.15 < many[1] - few[0] < 0.45
    assert summary([Result(1, 1.0)] * 3)["mrr_interval"] == [1, 1]


def test_what_got_worse_is_named_and_what_is_new_is_not() -> None:
    before = {"keyword": {"ranks": {"a": 1, "b": 3, "c": None, "d": 2, "gone": 1}}, "hybrid": {"ranks": {"a": 1}}}
    now = {"keyword": {"ranks": {"a": 2, "b": None, "c": 9, "d": 2, "new": None}}}
    assert worse(before, now) == [
        {"id": "a", "mode": "keyword", "before": 1, "now": 2},
        {"id": "b", "mode": "keyword", "before": 3, "now": None},
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no question"), ("{", "line 1: "), (line() + "\n[]", "line 2: a question must be an object"),
        (line() + "\n" + line(), "line 2: the id 'q' is there twice"), (line(id=3), "must have 'id', a text"),
        (line(answers=[]), "at least one answer"), (line(answers=[{}]), "an answer must have 'source_id'"),
        (line(answers=[{"source_id": "a", "heading": 1}]), "heading must be a text"), (line(question=" "), "empty"),
        (line(sourceid="a"), "unknown key 'sourceid'"), ("[" * 100_000, "line 1: "),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_questions(text)


def test_an_answer_may_name_the_headings_above_it_as_a_hit_shows_them() -> None:
    for named, found in (("Alpha > Beta", True), ("Alpha > Beta > Gamma", True), ("Beta > Gamma", False), ("A", False)):
        (question,) = parse_questions(line(answers=[{"source_id": "b.md", "heading": named}]))
        result = result_of(question, [hit("b.md", "Alpha > Beta > Gamma")])
        assert (result.rank == 1) is found

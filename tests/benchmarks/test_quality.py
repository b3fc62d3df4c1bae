"""The questions of `benchmarks/quality`: each has its answers, and none changed after weights were chosen by them."""

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.quality import corpus, figures, questions, rules, words
from benchmarks.quality.figures import Found, Result
from benchmarks.quality.questions import Answer, Question

HERE = Path(questions.__file__).parent
SHA256 = "4d23c1aae33f4e55f242616d72e6b464e4e2c6297354d45de599066d2a573137"
CORPUS_SHA256 = "973480a13b5f6cf598d8739dbf8a8b884d1a7fb0006f45e455333dc129fb520a"


@pytest.fixture(scope="module")
def documents() -> dict[str, str]:
    corpus = HERE / "corpus"
    return {
        path.relative_to(corpus).as_posix(): path.read_text(encoding="utf-8") for path in sorted(corpus.rglob("*.md"))
    }


@pytest.fixture(scope="module")
def asked() -> list[Question]:
    return questions.parse((HERE / "questions.jsonl").read_text(encoding="utf-8"))


def test_the_questions_and_the_documents_are_those_that_weights_were_chosen_by(documents: dict[str, str]) -> None:
    assert hashlib.sha256((HERE / "questions.jsonl").read_bytes()).hexdigest() == SHA256
    whole = hashlib.sha256()
    for source_id in sorted(documents):
        whole.update(f"{source_id}\0{hashlib.sha256(documents[source_id].encode()).hexdigest()}\n".encode())
    assert whole.hexdigest() == CORPUS_SHA256


def test_every_answer_exists_and_disjoint_questions_share_no_word_with_it(
    asked: list[Question], documents: dict[str, str]
) -> None:
    assert list(questions.problems(asked, documents)) == []


def test_half_of_the_questions_share_no_word_with_their_answers(asked: list[Question]) -> None:
    kinds = Counter(each.kind for each in asked)
    answered = kinds.total() - kinds["none"]
    assert answered >= 240
    assert kinds["disjoint"] >= answered / 2
    assert kinds["exact"] >= 80
    assert kinds["reworded"] >= 40
    assert kinds["none"] == 20


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"question": "which rules hold for `deploys`"}, "one: shares deploy, rule with a.md, All > Rules"),
        ({"answers": (Answer("a.md", "Rule"),)}, "one: 0 sections 'Rule' in a.md"),
        ({"answers": (Answer("b.md", "Rules"),)}, "one: 0 sections 'Rules' in b.md"),
        ({"answers": ()}, "one: of kind disjoint with 0 answers"),
        ({"kind": "none"}, "one: of kind none with 1 answers"),
        ({"kind": "exact"}, "one: no answer has ship"),
        ({"kind": "reworded"}, "one: shares no words with an answer"),
        ({"kind": "other"}, "one: there is no kind 'other'"),
    ],
)
def test_a_question_that_breaks_a_rule_is_named(changed: dict[str, object], problem: str) -> None:
    documents = {"a.md": "# All\n\n## Rules\n\nThe deployRule of teams.\n\n## Empty\n"}
    sound = Question("one", "when may I ship", "disjoint", (Answer("a.md", "All > Rules"),))
    assert list(questions.problems([sound], documents)) == []
    assert list(questions.problems([replace(sound, **changed)], documents)) == [problem]


def test_questions_that_are_there_twice_are_named() -> None:
    first = Question("one", "the menu of today", "none", ())
    again = [
        "one: the id is there twice",
        "one: asks with the same words as one",
    ]
    assert list(questions.problems([first, replace(first, question="today's menu")], {})) == again


def test_a_section_ends_where_the_next_heading_begins_and_code_has_no_headings() -> None:
    body = "# One\n\ntext\n## Two\n```\n# no heading\n```\n# Three\nend"
    found = [(each.heading, each.first, each.last) for each in questions.sections(body)]
    assert found == [("One", 1, 3), ("One > Two", 4, 7), ("Three", 8, 9)]


def test_the_rank_is_that_of_the_first_document_and_of_the_first_passage_with_an_answer() -> None:
    places = {"a.md": [(10, 20)], "b.md": [(1, 5)]}
    hits = [Found("x.md", (1, 9)), Found("a.md", (21, 30)), Found("b.md", (5, 9)), Found("a.md")]
    assert figures.result_of(places, hits) == Result(rank=2, recall=1.0, section=3)
    assert figures.result_of(places, [Found("x.md")] * 10 + hits) == Result(None, 0.0, None)


def test_the_report_has_both_halves_by_kind_and_the_same_intervals_each_time(asked: list[Question]) -> None:
    answered = [each for each in asked if each.answers]
    results = {each.id: Result(1 if each.kind == "exact" else None, 0.5, None) for each in answered}
    found = figures.report(answered, results)
    assert found == figures.report(answered, results)
    assert sum(found[half]["all"]["questions"] for half in figures.HALVES) == len(answered)
    for half in figures.HALVES:
        assert found[half]["exact"]["mrr"] == 1
        assert found[half]["disjoint"]["mrr"] == 0
        low, high = found[half]["all"]["mrr_interval"]
        assert low < found[half]["all"]["mrr"] < high


def test_a_question_that_stands_lower_or_is_not_found_any_more_is_worse() -> None:
    before = {"rule": {"ranks": {"a": 1, "b": 2, "c": None, "d": 3}}, "gone": {"ranks": {"a": 1}}}
    now = {"rule": {"ranks": {"a": 2, "b": 1, "c": 9, "d": None, "new": None}}, "new": {"ranks": {"a": None}}}
    assert figures.worse(before, now) == [("rule", "a", 1, 2), ("rule", "d", 3, None)]


def test_the_other_rules_order_by_both_sides() -> None:
    by_words, by_meaning = {"w": 9.0, "both": 8.0, "bad": 1.0}, {"m": 0.9, "both": 0.8, "bad": 0.1}
    assert rules.ctx(by_words, by_meaning) == ["both", "m", "w", "bad"]
    assert rules.rrf(by_words, by_meaning) == ["both", "bad", "m", "w"]
    assert rules.ctx({}, {"m": 0.5}) == ["m"]
    assert rules.rrf({}, {}) == []


def test_bare_fts5_finds_any_word_and_only_porter_finds_stems() -> None:
    chunks = [corpus.Chunk("a.md", "Title", "refunds are paid", (1, 1)), corpus.Chunk("b.md", "", "nothing", (1, 1))]
    found = {
        tokenizer: [chunk.source_id for chunk, _ in words.search(chunks, {"q": "a refund?"}, tokenizer)["q"]]
        for tokenizer in ("unicode61", "porter")
    }
    assert found == {"unicode61": [], "porter": ["a.md"]}

"""The questions of `benchmarks/quality`: each has its answers, and none changed after weights were chosen by them."""

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.quality import questions
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

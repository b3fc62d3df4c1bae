"""The questions, and what holds for them: each answer is a section of a document, `disjoint` ones share no word. Pure.

A section is the text below a heading up to the next heading, whatever its level; its words are also those of the
headings above it, from the title of the document on, as a search sees these with the text.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import Stemmer

# `exact`: terms, names and phrases of the text. `reworded`: as users ask, with some of its words. `disjoint`: no word
# that says something is in the section that answers. `none`: the documents have no answer.
KINDS = ("exact", "reworded", "disjoint", "none")

# Words that say nothing of what is asked: articles, pronouns, prepositions, conjunctions, auxiliaries, question words,
# and adverbs of degree and of time. Whatever else is in a question is a word of its content.
_FUNCTION_WORDS = """
a about above after again against all also although always am among an and any anybody anyone are aren't as at be
because been before being below between both but by can cannot could couldn't did didn't do does doesn't doing
don't down during each either ever every few for from further had has have having he her here hers him his how
i if in into is isn't it its it's just let many may me might more most much must my neither no nor not now of off
on once one only onto or other our out over own per same shall she should so some still such than that that's the
their them then there these they this those through to too under until up us very was we were what when where
whether which while who whom whose why will with within without would yet you your
"""
STOP = frozenset(_FUNCTION_WORDS.split())

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*)")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_SEPARATOR = " > "


@dataclass(frozen=True, slots=True)
class Answer:
    source_id: str
    heading: str


@dataclass(frozen=True, slots=True)
class Question:
    id: str
    question: str
    kind: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """The lines `first` to `last` of a document, from 1, with the headings above them, the outermost first."""

    headings: tuple[str, ...]
    text: str
    first: int
    last: int

    @property
    def heading(self) -> str:
        return _SEPARATOR.join(self.headings)


def parse(text: str) -> list[Question]:
    """The questions of a file with a JSON object on each line."""
    found = []
    for line in text.splitlines():
        given = json.loads(line)
        answers = tuple(Answer(**each) for each in given["answers"])
        found.append(Question(given["id"], given["question"], given["kind"], answers))
    return found


def sections(body: str) -> Iterator[Section]:
    path: list[tuple[int, str]] = []
    lines: list[str] = []
    first, fenced = 1, False
    for number, line in enumerate(body.split("\n"), 1):
        if _FENCE.match(line):
            fenced = not fenced
        heading = None if fenced else _HEADING.match(line)
        if heading is None:
            lines.append(line)
            continue
        if path:
            yield Section(tuple(text for _, text in path), "\n".join(lines), first, number - 1)
        level = len(heading[1])
        path = [*(each for each in path if each[0] < level), (level, " ".join(heading[2].split()))]
        lines, first = [], number
    if path:
        yield Section(tuple(text for _, text in path), "\n".join(lines), first, first + len(lines))


def answering(body: str, heading: str) -> list[Section]:
    """The sections with text that a heading names: by itself, or with headings above it."""
    return [
        each
        for each in sections(body)
        if each.text.strip() and f"{_SEPARATOR}{each.heading}".endswith(f"{_SEPARATOR}{heading}")
    ]


def problems(questions: list[Question], documents: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the questions, one line each."""
    ids: set[str] = set()
    asked: dict[frozenset[str], str] = {}
    for each in questions:
        if each.id in ids:
            yield f"{each.id}: the id is there twice"
        ids.add(each.id)
        said = content(each.question)
        if said in asked:
            yield f"{each.id}: asks with the same words as {asked[said]}"
        asked[said] = each.id
        if each.kind not in KINDS:
            yield f"{each.id}: there is no kind {each.kind!r}"
        if bool(each.answers) == (each.kind == "none"):
            yield f"{each.id}: of kind {each.kind} with {len(each.answers)} answers"
        yield from _answer_problems(each, said, documents)


def _answer_problems(question: Question, said: frozenset[str], documents: Mapping[str, str]) -> Iterator[str]:
    most: frozenset[str] = frozenset()
    for answer in question.answers:
        found = answering(documents.get(answer.source_id, ""), answer.heading)
        if len(found) != 1:
            yield f"{question.id}: {len(found)} sections {answer.heading!r} in {answer.source_id}"
            continue
        shared = said & content(f"{found[0].heading}\n{found[0].text}")
        most = max(most, shared, key=len)
        if question.kind == "disjoint" and shared:
            yield f"{question.id}: shares {', '.join(sorted(shared))} with {answer.source_id}, {answer.heading}"
    if question.kind == "exact" and most != said:
        yield f"{question.id}: no answer has {', '.join(sorted(said - most))}"
    if question.kind == "reworded" and (not most or most == said):
        yield f"{question.id}: shares {'all' if most else 'no'} words with an answer"


def content(text: str) -> frozenset[str]:
    """The stems of the words that say something; of `payments_api` and `getUserName` the parts, too."""
    found = set()
    for word in _WORD.findall(text.replace("’", "'")):
        for part in {word, *_CASE.split(word)}:
            if part.lower() not in STOP and len(part) > 1:
                found.add(_stem(part.lower().removesuffix("'s")))
    return frozenset(found)


@cache
def _stem(word: str) -> str:
    return str(_STEMMER.stemWord(word))


_STEMMER = Stemmer.Stemmer("english")

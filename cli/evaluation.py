"""How well a search answers questions whose answers are known: ranks, MRR, recall, and what got worse. Pure."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from knowledge.places import SEPARATOR
from knowledge.store import Hit

# How many hits count.
DEPTH = 10
# The settings that a sweep can try, and the values.
SWEPT: Mapping[str, Sequence[float]] = MappingProxyType({
    "hybrid_alpha": tuple(tenth / 10 for tenth in range(11)),
    "candidate_k_keyword": (10, 20, 40, 80, 160, 320),
    "candidate_k_vector": (10, 20, 40, 80, 160, 320),
})  # fmt: skip
MAX_QUESTIONS = 10_000

_SAMPLES = 1000
_INTERVAL = 0.95


@dataclass(frozen=True, slots=True)
class Answer:
    """A document that answers a question, or, with a heading, one section of it."""

    source_id: str
    heading: str | None = None

    def is_hit(self, hit: Hit) -> bool:
        if hit.source_id != self.source_id:
            return False
        if self.heading is None:
            return True
        above = hit.heading or ""
        return self.heading in above.split(SEPARATOR) or f"{above}{SEPARATOR}".startswith(f"{self.heading}{SEPARATOR}")


@dataclass(frozen=True, slots=True)
class Question:
    id: str
    question: str
    kind: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """One question's outcome: the rank of its first answer, None beyond `DEPTH`, and the share of answers found."""

    rank: int | None
    recall: float

    @property
    def reciprocal(self) -> float:
        return 0.0 if self.rank is None else 1 / self.rank


def parse_questions(text: str) -> list[Question]:
    """The questions of a file with a JSON object per line. Raises ValueError, naming the line."""
    found: dict[str, Question] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            question = _question(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from None
        if question.id in found:
            raise ValueError(f"line {number}: the id {question.id!r} is there twice")
        if len(found) == MAX_QUESTIONS:
            raise ValueError(f"line {number}: a file has at most {MAX_QUESTIONS} questions")
        found[question.id] = question
    if not found:
        raise ValueError("there is no question")
    return list(found.values())


def _question(given: Any) -> Question:
    fields = _fields(given, "a question", ("id", "question", "kind"), ("answers",))
    answers = fields["answers"]
    if not isinstance(answers, list) or not answers:
        raise ValueError("answers must be a list with at least one answer")
    found = [_fields(each, "an answer", ("source_id",), ("heading",)) for each in answers]
    if any(not isinstance(each["heading"], str | None) for each in found):
        raise ValueError("heading must be a text")
    if not fields["question"].strip():
        raise ValueError("question is empty")
    named = tuple(Answer(each["source_id"], each["heading"]) for each in found)
    return Question(fields["id"], fields["question"], fields["kind"], named)


def _fields(given: Any, what: str, texts: Sequence[str], others: Sequence[str]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"{what} must be an object")
    if unknown := sorted(given.keys() - {*texts, *others}):
        raise ValueError(f"{what} has an unknown key {unknown[0]!r}")
    for name in texts:
        if not isinstance(given.get(name), str):
            raise ValueError(f"{what} must have {name!r}, a text")
    return {name: given.get(name) for name in (*texts, *others)}


def result_of(question: Question, hits: Sequence[Hit]) -> Result:
    """Where the answers of a question stand among its hits."""
    hits = hits[:DEPTH]
    ranks = [rank for rank, hit in enumerate(hits, 1) if any(answer.is_hit(hit) for answer in question.answers)]
    found = sum(any(answer.is_hit(hit) for hit in hits) for answer in question.answers)
    return Result(ranks[0] if ranks else None, found / len(question.answers))


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """MRR@10 with its interval, recall@10, and how many questions these are of."""
    reciprocals = [each.reciprocal for each in results]
    low, high = interval(reciprocals)
    return {
        "questions": len(results),
        "mrr": _rounded(sum(reciprocals) / len(results)),
        "mrr_interval": [_rounded(low), _rounded(high)],
        "recall": _rounded(sum(each.recall for each in results) / len(results)),
    }


def report(questions: Sequence[Question], results: Mapping[str, Result]) -> dict[str, Any]:
    """The figures over all questions and by kind, and the rank of each question."""
    kinds = sorted({each.kind for each in questions})
    return {
        "all": summary([results[each.id] for each in questions]),
        "kinds": {kind: summary([results[each.id] for each in questions if each.kind == kind]) for kind in kinds},
        "ranks": {each.id: results[each.id].rank for each in questions},
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval of the mean of these values at 95 %, by bootstrap. Equal values give equal intervals."""
    means = sorted(_resampled(values, sample) for sample in range(_SAMPLES))
    cut = int(_SAMPLES * (1 - _INTERVAL) / 2)
    return means[cut], means[_SAMPLES - 1 - cut]


def _resampled(values: Sequence[float], sample: int) -> float:
    """The mean of as many values, drawn with replacement: by a hash, so that every run draws the same."""
    drawn = hashlib.shake_128(sample.to_bytes(4, "big")).digest(4 * len(values))
    count = len(values)
    return sum(values[int.from_bytes(drawn[at : at + 4], "big") % count] for at in range(0, 4 * count, 4)) / count


def worse(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The questions of both reports whose first answer stands lower now, or no longer among the hits."""
    found = []
    for mode in sorted(before.keys() & now.keys()):
        old, new = before[mode]["ranks"], now[mode]["ranks"]
        for name in sorted(old.keys() & new.keys()):
            if _place(new[name]) > _place(old[name]):
                found.append({"id": name, "mode": mode, "before": old[name], "now": new[name]})
    return found


def change(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """By mode of both reports, how much MRR has changed on the questions of both, with its interval."""
    found = {}
    for mode in sorted(before.keys() & now.keys()):
        old, new = before[mode]["ranks"], now[mode]["ranks"]
        changes = [_reciprocal(new[name]) - _reciprocal(old[name]) for name in sorted(old.keys() & new.keys())]
        if changes:
            low, high = interval(changes)
            mean = _rounded(sum(changes) / len(changes))
            bounds = [_rounded(low), _rounded(high)]
            found[mode] = {"questions": len(changes), "mrr": mean, "mrr_interval": bounds}
    return found


def _reciprocal(rank: int | None) -> float:
    return Result(rank, 0).reciprocal


def _place(rank: int | None) -> int:
    return DEPTH + 1 if rank is None else rank


def _rounded(value: float) -> float:
    return round(value, 4)

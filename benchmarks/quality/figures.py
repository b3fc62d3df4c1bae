"""Ranks of answers, and what is said of many of them: MRR, recall, an interval; by kind and half. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.quality.questions import Question

# How many hits count.
DEPTH = 10

# Weights are chosen by the questions of one half, and what they are worth is said of the other.
HALVES = ("tuning", "held back")

_SAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Found:
    """One hit: a document, and the first and last line that it is shown by, where a rule has such."""

    source_id: str
    lines: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The ranks of the first right document and of the first hit inside of an answer; None beyond `DEPTH`.

    `recall` is the share of the documents with an answer that are among the hits.
    """

    rank: int | None
    recall: float
    section: int | None


# By document, the lines of the sections that answer a question.
Places = Mapping[str, Sequence[tuple[int, int]]]


def result_of(places: Places, hits: Sequence[Found]) -> Result:
    hits = hits[:DEPTH]
    right = [rank for rank, hit in enumerate(hits, 1) if hit.source_id in places]
    inside = [rank for rank, hit in enumerate(hits, 1) if _is_inside(hit, places.get(hit.source_id, ()))]
    return Result(
        right[0] if right else None,
        len({hit.source_id for hit in hits} & places.keys()) / len(places),
        inside[0] if inside else None,
    )


def _is_inside(hit: Found, sections: Sequence[tuple[int, int]]) -> bool:
    return hit.lines is not None and any(hit.lines[0] <= last and first <= hit.lines[1] for first, last in sections)


def half_of(question_id: str) -> str:
    return HALVES[hashlib.sha256(question_id.encode()).digest()[0] & 1]


def report(questions: Sequence[Question], results: Mapping[str, Result]) -> dict[str, Any]:
    """The figures of each half, over all questions and by kind, and the rank of each question."""
    found: dict[str, Any] = {}
    for half in HALVES:
        asked = [each for each in questions if half_of(each.id) == half]
        kinds = dict.fromkeys(each.kind for each in asked)
        found[half] = {
            "all": summary([results[each.id] for each in asked]),
            **{kind: summary([results[each.id] for each in asked if each.kind == kind]) for kind in kinds},
        }
    return found | {"ranks": {each.id: results[each.id].rank for each in questions}}


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """MRR and recall with intervals at 95 % by bootstrap, and the MRR of hits inside of an answer."""
    return {
        "questions": len(results),
        **_mean("mrr", [_reciprocal(each.rank) for each in results]),
        **_mean("recall", [each.recall for each in results]),
        **_mean("section_mrr", [_reciprocal(each.section) for each in results]),
    }


def _reciprocal(rank: int | None) -> float:
    return 0.0 if rank is None else 1 / rank


def _mean(name: str, values: Sequence[float]) -> dict[str, Any]:
    drawn = np.random.default_rng(0).choice(np.array(values), (_SAMPLES, len(values))).mean(1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return {
        name: round(sum(values) / len(values), 4),
        f"{name}_interval": [round(float(low), 4), round(float(high), 4)],
    }


def worse(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str, int | None, int | None]]:
    """Of the rules of both results: the rule, the question, its rank before and now, where it stands lower now."""
    return [
        (rule, question, before[rule]["ranks"][question], rank)
        for rule in now
        if rule in before
        for question, rank in now[rule]["ranks"].items()
        if question in before[rule]["ranks"] and _place(rank) > _place(before[rule]["ranks"][question])
    ]


def _place(rank: int | None) -> int:
    return DEPTH + 1 if rank is None else rank

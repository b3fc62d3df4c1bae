"""One order from two: how well documents fit by words, and by meaning. Pure, and deterministic.

Both scores are divided by the best of their kind and added with a weight, alpha for meaning. Against the other ways, on
the same questions: ranks lose how much better a hit is, and min-max depends on how many candidates there are, as its
zero is the worst of them.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

# Scores are rounded to this many digits, so that the order in which a processor adds does not decide about a place.
DIGITS = 6
# The share of alpha that is left where a hit by words covers the whole query. It falls with this power of what is
# covered, so only where next to nothing is missing: half of the words of most questions stand in some chunk that does
# not answer them. Chosen with `python -m benchmarks.quality`.
COVERED = 0.3
COVERED_POWER = 8
# Where so many documents or fewer have all words of a query together, these come before all others. Half of a page of
# ten hits: what has the same meaning in other words still stands on it.
CERTAIN = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """`[retrieval]`: the weight of meaning, how many documents are candidates by words and by meaning, what a hit is.

    A hit is a document, or with `group_by` a chunk, of which a document has up to `max_chunks_per_doc`. A document
    ranks as its best chunk does, or with `doc_agg` as so many of its best do on average.
    """

    hybrid_alpha: float = 0.95
    candidate_k_keyword: int = 80
    candidate_k_vector: int = 80
    group_by: Literal["document", "chunk"] = "document"
    doc_agg: Literal["max", "avg"] = "max"
    max_chunks_per_doc: int = 3

    @property
    def by_chunk(self) -> bool:
        return self.group_by == "chunk"

    @property
    def averages(self) -> bool:
        return self.doc_agg == "avg" and not self.by_chunk


DEFAULT = Settings()


@dataclass(frozen=True, slots=True)
class Scored:
    """One document's place in the order. `keyword_norm` and `vector_norm` are in 0..1."""

    score: float
    keyword_norm: float
    vector_norm: float
    cosine: float | None


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a query: in how many chunks it stands, its weight, and whether the best hit by words has it."""

    df: int
    weight: float
    covered: bool


def weight(df: int, chunks: int) -> float:
    """How much a word says: 0 for one that no chunk has, as it cannot tell documents apart."""
    return math.log(1 + (chunks - df + 0.5) / (df + 0.5)) if df else 0.0


def coverage(words: Sequence[Word], chunks: int) -> float:
    """The share of the query's weight that the best hit by words has; words that no chunk has weigh most."""
    total = sum(word.weight if word.df else weight(1, chunks) for word in words)
    return sum(word.weight for word in words if word.covered) / total if total else 0.0


def alpha(configured: float, covered: float) -> float:
    """The weight of meaning: the configured one, lowered where words cover the query."""
    return round(configured * (1 - (1 - COVERED) * min(1.0, max(0.0, covered)) ** COVERED_POWER), DIGITS)


def normalised(values: Mapping[int, float]) -> dict[int, float]:
    """Each value divided by the best; what is not above 0 is 0."""
    best = max(values.values(), default=0.0)
    if best <= 0:
        return dict.fromkeys(values, 0.0)
    return {key: round(max(0.0, value / best), DIGITS) for key, value in values.items()}


def fuse(
    keyword: Mapping[int, float],
    cosines: Mapping[int, float],
    weight_of_meaning: float,
    certain: Collection[int] = (),
) -> dict[int, Scored]:
    """Scores of all documents of both. `keyword` and `cosines` are by document; higher is better.

    `certain` are those that have all the words of the query where no others have: with any, their scores take 0.5 to 1,
    and the others' 0 to 0.5, as by words alone (`ranking.scores`).
    """
    words, meanings = normalised(keyword), normalised(cosines)
    both, fused = keyword.keys() | cosines.keys(), {}
    some_certain = not both.isdisjoint(certain)
    for key in both:
        word, meaning = words.get(key, 0.0), meanings.get(key, 0.0)
        score = round(weight_of_meaning * meaning + (1 - weight_of_meaning) * word, DIGITS)
        if some_certain:
            score = round((1 + score if key in certain else score) / 2, DIGITS)
        fused[key] = Scored(score, word, meaning, cosines.get(key))
    return fused

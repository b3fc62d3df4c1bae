"""Other ways to make one order of two: what the engine's own is measured beside. Pure."""

from collections.abc import Mapping, Sequence

# context-harness's `hybrid_alpha`, the weight of meaning.
CTX_ALPHA = 0.6
# As most programs with this rule have it.
RRF_K = 60


def ctx(words: Mapping[str, float], cosines: Mapping[str, float]) -> list[str]:
    """The rule of context-harness: both scores brought to 0..1 by the best and the worst of them, and added."""
    word, meaning = _min_max(words), _min_max(cosines)
    return _ordered(
        {
            key: CTX_ALPHA * meaning.get(key, 0.0) + (1 - CTX_ALPHA) * word.get(key, 0.0)
            for key in words.keys() | cosines.keys()
        }
    )


def rrf(words: Mapping[str, float], cosines: Mapping[str, float]) -> list[str]:
    """Reciprocal rank fusion: the sum of 1 divided by the rank plus a constant."""
    scores: dict[str, float] = {}
    for side in (words, cosines):
        for rank, key in enumerate(_ordered(side), 1):
            scores[key] = scores.get(key, 0.0) + 1 / (RRF_K + rank)
    return _ordered(scores)


def _min_max(values: Mapping[str, float]) -> dict[str, float]:
    if not values:
        return {}
    low, high = min(values.values()), max(values.values())
    return {key: (value - low) / (high - low) if high > low else 1.0 for key, value in values.items()}


def _ordered(scores: Mapping[str, float]) -> list[str]:
    order: Sequence[str] = sorted(scores)
    return sorted(order, key=lambda key: scores[key], reverse=True)

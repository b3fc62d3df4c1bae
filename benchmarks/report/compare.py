"""Whether two results differ, or only by noise.

A single run has thousands of latencies, but they are correlated in time: a busy second slows all of its requests. A
test that assumes independent requests would report a difference for every second pair of equal runs. So each result's
measured time is divided into forty blocks, and stretches of four adjacent blocks are resampled with replacement (a
circular block bootstrap). The spread of the ratio between the two results gives its 99 % interval. Only if the whole
interval is beyond five percent is it a difference; else it is noise.

One run each cannot show the variation between runs (other load on the machine, another day): the five percent allow for
it on a quiet machine. Repeat both, in turns, before relying on a slightly larger difference.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from benchmarks.load.histogram import Histogram

METRICS = ("p50", "p90", "p99", "mean", "rate", "errors")
# Five metrics are tested together; at 95 % every fourth pair of equal runs would show a difference.
CONFIDENCE = 0.99
DRAWS = 1000
# With fewer blocks, the estimate of their spread is too uncertain.
LEAST_BLOCKS = 8
# Adjacent blocks that are resampled together, as they are correlated.
STRETCH = 4
# Allowed difference between two runs of the same thing: a ratio, and for errors a share of the requests.
ALIKE = 0.05
ALIKE_ERRORS = 0.001

_SEED = 1


class CompareError(Exception):
    """A file is not a result, or the results cannot be compared. One line."""


@dataclass(frozen=True, slots=True)
class _Block:
    """The figures of one block: counts by index into the common list of values, answers, errors, all requests."""

    counts: tuple[tuple[int, int], ...]
    sum_s: float
    measured: int
    ended: float
    errors: int
    asked: int


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric in A and B. `change` is B's relative to A (0.1: ten percent more; for `errors`, the difference of the
    shares), with its interval; None if it cannot be computed."""

    metric: str
    a: float | None
    b: float | None
    change: float | None
    low: float | None
    high: float | None
    verdict: Literal["higher", "lower", "noise", "unknown"]

    def as_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric, "a": self.a, "b": self.b, "change": self.change, "low": self.low, "high": self.high,
            "verdict": self.verdict,
        }  # fmt: skip


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    """Every metric of two results. Raises CompareError if one is not a result of this tester."""
    blocks = [_blocks(each, name) for each, name in ((a, "the first"), (b, "the second"))]
    values = sorted({value for side in blocks for block in side for value, _ in block.counts})
    place = {value: position for position, value in enumerate(values)}
    sides = [
        [
            _Block(
                tuple((place[value], count) for value, count in block.counts),
                block.sum_s, block.measured, block.ended, block.errors, block.asked,
            )
            for block in side
        ]
        for side in blocks
    ]  # fmt: skip
    drawn: list[list[dict[str, float | None]]] = []
    for side, seed in zip(sides, ("a", "b"), strict=True):
        chance = random.Random(f"{_SEED}/{seed}")
        drawn.append([_figures(_draw(side, chance), values) for _ in range(DRAWS if side else 0)])
    enough = all(sum(1 for block in side if block.asked) >= LEAST_BLOCKS for side in sides)
    return [_difference(metric, _value(a, metric), _value(b, metric), drawn, enough) for metric in METRICS]


def _draw(side: Sequence[_Block], chance: random.Random) -> list[_Block]:
    """A resample of as many blocks, in stretches of adjacent ones; the last block is adjacent to the first."""
    starts = (chance.randrange(len(side)) for _ in range(math.ceil(len(side) / STRETCH)))
    return [side[(start + step) % len(side)] for start in starts for step in range(STRETCH)][: len(side)]


def _value(result: Mapping[str, Any], metric: str) -> float | None:
    """The metric from the result, to three significant digits."""
    if metric == "rate":
        return float(result["rate"])
    if metric == "errors":
        return float(result["errors_share"])
    found = result["latency"][f"{metric}_ms"]
    return None if found is None else float(found)


def _blocks(result: Mapping[str, Any], name: str) -> list[_Block]:
    try:
        if result["schema"] != 1:
            raise CompareError(f"{name} file is a result of schema {result['schema']!r}; this version knows 1")
        elapsed, interval = float(result["elapsed_s"]), float(result["series"]["interval_s"])
        found = []
        for block in result["series"]["blocks"]:
            if block["at_s"] + interval > elapsed + interval / 2:
                break  # an interrupt ended the load before it
            latencies = Histogram.from_wire(block["latencies"])
            found.append(
                _Block(
                    tuple(latencies.counts().items()),
                    latencies.sum_s,
                    latencies.count,
                    float(block["rate"]),
                    int(block["errors"]),
                    int(block["asked"]),
                )
            )
        for metric in METRICS:
            _value(result, metric)
    except (KeyError, TypeError, ValueError) as error:
        raise CompareError(f"{name} file is not a result of `engine bench` ({error})") from None
    return found


def _figures(blocks: Sequence[_Block], values: Sequence[int]) -> dict[str, float | None]:
    """The metrics of these blocks together."""
    counts = [0] * len(values)
    for block in blocks:
        for position, count in block.counts:
            counts[position] += count
    sums = list(accumulate(counts))
    total = sums[-1] if sums else 0
    asked = sum(block.asked for block in blocks)
    found: dict[str, float | None] = {}
    for metric, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        wanted = max(1, math.ceil(share * total))
        found[metric] = values[bisect_left(sums, wanted)] / 1e3 if total else None
    measured = sum(block.measured for block in blocks)
    found["mean"] = sum(block.sum_s for block in blocks) / measured * 1e3 if measured else None
    found["rate"] = sum(block.ended for block in blocks) / len(blocks)
    found["errors"] = sum(block.errors for block in blocks) / asked if asked else None
    return found


def _difference(
    metric: str, a: float | None, b: float | None, drawn: list[list[dict[str, float | None]]], enough: bool
) -> Difference:
    relative = metric != "errors"
    changes = sorted(
        found
        for one, two in zip(*drawn, strict=True)
        if (found := _change(one[metric], two[metric], relative=relative)) is not None
    ) if enough else []  # fmt: skip
    change = _change(a, b, relative=relative)
    if change is None or len(changes) < DRAWS / 2:
        return Difference(metric, a, b, change, None, None, "unknown")
    edge = (1 - CONFIDENCE) / 2
    low, high = changes[math.floor(edge * len(changes))], changes[math.ceil((1 - edge) * len(changes)) - 1]
    verdict: Literal["higher", "lower", "noise"] = "noise"
    alike = ALIKE if relative else ALIKE_ERRORS
    if low > alike:
        verdict = "higher"
    elif high < -alike:
        verdict = "lower"
    return Difference(metric, a, b, change, low, high, verdict)


def _change(a: float | None, b: float | None, *, relative: bool) -> float | None:
    if a is None or b is None:
        return None
    if not relative:
        return b - a
    return b / a - 1 if a > 0 else None


# ---- in words ---------------------------------------------------------------------------------------------------


# Allowed difference of the load averages at the start, in parts of a core.
_LOAD_DIFFERS = 0.5


def unlike(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Differences in what the two results measured, one line each."""
    found = []
    for key in ("target", "scenario", "era"):
        if a.get(key) != b.get(key):
            found.append(f"the {key} differs: {a.get(key)} and {b.get(key)}")
    if a.get("scenario") == b.get("scenario") and a.get("scenario_text") != b.get("scenario_text"):
        found.append("the scenario's file was another one")
    for key in ("model", "rate", "concurrency", "spacing", "tenants", "hostile_percent"):
        one, two = a["load"].get(key), b["load"].get(key)
        if one != two:
            found.append(f"the load's {key} differs: {one} and {two}")
    for key in ("cores", "processor", "kernel", "python"):
        one, two = a["machine"].get(key), b["machine"].get(key)
        if one != two:
            found.append(f"the machine's {key} differs: {one} and {two}")
    one, two = float(a["machine"].get("load", 0)), float(b["machine"].get("load", 0))
    if abs(one - two) > _LOAD_DIFFERS * max(1, int(a["machine"].get("cores", 1))):
        found.append(f"the machine was not equally busy with other things: load average {one:g} and {two:g}")
    for name, result in (("first", a), ("second", b)):
        if not result["valid"]:
            found.append(f"the {name} result is not valid: {'; '.join(result['invalid_because'])}")
        if result["interrupted"]:
            found.append(f"the {name} result is of a load that was interrupted")
    return found


_WORSE = {"higher": "slower", "lower": "faster"}


def in_words(difference: Difference) -> str:
    """The conclusion for one metric."""
    if difference.verdict == "unknown":
        return "too little was measured to tell"
    assert difference.change is not None
    assert difference.low is not None
    assert difference.high is not None
    if difference.metric == "errors":
        span = f"{difference.low * 100:+.2f} to {difference.high * 100:+.2f} points"
        word = {"higher": "more errors", "lower": "fewer errors", "noise": "noise"}[difference.verdict]
        return f"{word} ({span})"
    span = f"{difference.low:+.1%} to {difference.high:+.1%}"
    if difference.verdict == "noise":
        return f"noise ({span})"
    word = difference.verdict if difference.metric == "rate" else _WORSE[difference.verdict]
    return f"{word} by {abs(difference.change):.1%} ({span})"


def summary(differences: Sequence[Difference], doubts: Sequence[str]) -> str:
    """The overall conclusion. `doubts` are the findings of `unlike`."""
    real = [each.metric for each in differences if each.verdict in ("higher", "lower")]
    if real and doubts:
        return f"The figures differ in {', '.join(real)}, but what is marked with ! may be why."
    if real:
        return f"The results differ in {', '.join(real)}."
    if all(each.verdict == "unknown" for each in differences):
        return "Nothing can be told: too little was measured."
    return "The difference is noise: the two results cannot be told apart."

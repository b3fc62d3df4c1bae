"""Thresholds: `--fail-if 'p99>20ms'`. One that holds fails the command.

`METRIC OP VALUE[UNIT]`: the metric is `p50 p90 p99 p99.9 max mean` (milliseconds, or with a unit `ms` or `s`), `rate`
(answers a second), `errors` (of the measured requests, those that did not end as the scenario expects, and those that
were dropped) or `outcome.NAME`. The last two are counts, or shares with the unit `%`. OP is `> >= < <=`.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LATENCIES = ("p50", "p90", "p99", "p99.9", "max", "mean")
METRICS = (*LATENCIES, "rate", "errors", "outcome.NAME")

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_FORM = re.compile(r"\s*([a-z0-9_.-]+)\s*(>=|<=|>|<)\s*(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|%)?\s*", re.ASCII)
_OUTCOME = re.compile(r"outcome\.[a-z0-9_-]{1,64}", re.ASCII)


class ThresholdError(Exception):
    """A threshold has invalid syntax. One line with the expected form."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """One threshold. `bound` is in milliseconds for latencies; a share (0..1) if `share` is set."""

    text: str
    metric: str
    operator: str
    bound: float
    share: bool = False

    def value(self, result: Mapping[str, Any]) -> float | None:
        """The metric in the result (the JSON); None if it has no value."""
        if self.metric in LATENCIES:
            found = result["latency"][f"{self.metric}_ms"]
            return None if found is None else float(found)
        if self.metric == "rate":
            return float(result["rate"])
        everything = result["measured"] + result["dropped"]
        if self.metric == "errors":
            count = result["errors"]
        else:
            count = result["outcomes"].get(self.metric.removeprefix("outcome."), 0)
        if not self.share:
            return float(count)
        return count / everything if everything else None

    def holds(self, result: Mapping[str, Any]) -> bool:
        """Whether the condition holds, which fails the command. It holds too if the metric has no value: there is no
        measurement to the contrary.
        """
        value = self.value(result)
        return value is None or _OPERATORS[self.operator](value, self.bound)

    def describe(self, result: Mapping[str, Any]) -> str:
        """One line about it, with the value seen."""
        value = self.value(result)
        if value is None:
            return f"{self.text}: cannot be told, as no request ended in the measured time"
        if self.metric in LATENCIES:
            seen = f"{value:g} ms"
        elif self.share:
            seen = f"{value:.3%}"
        else:
            seen = f"{value:g}" + (" a second" if self.metric == "rate" else "")
        return f"{self.text}: {self.metric} is {seen}"


def parse(text: str) -> Threshold:
    """Parse a threshold. Raises ThresholdError."""
    if (found := _FORM.fullmatch(text)) is None:
        raise ThresholdError(f"{text!r}: expected METRIC OP VALUE, such as 'p99>20ms' or 'errors>1%'")
    metric, op, number, unit = found.groups()
    bound = float(number)
    if metric in LATENCIES:
        if unit == "%":
            raise ThresholdError(f"{text!r}: {metric} is a time; its unit is ms or s")
        return Threshold(text.strip(), metric, op, bound * (1000 if unit == "s" else 1))
    if metric == "rate":
        if unit is not None:
            raise ThresholdError(f"{text!r}: rate is a number a second and takes no unit")
        return Threshold(text.strip(), metric, op, bound)
    if metric != "errors" and not _OUTCOME.fullmatch(metric):
        raise ThresholdError(f"{text!r}: unknown metric {metric!r}; known: {', '.join(METRICS)}")
    if unit in ("ms", "s"):
        raise ThresholdError(f"{text!r}: {metric} is a count, or a share with %")
    if unit == "%" and bound > 100:
        raise ThresholdError(f"{text!r}: a share is at most 100%")
    return Threshold(text.strip(), metric, op, bound / 100 if unit == "%" else bound, share=unit == "%")

"""Thresholds: what can be said, what they hold against, and what is refused."""

from typing import Any

import pytest
from bench_support import account_of, result_for
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.account import Recorder
from benchmarks.load.schedule import Load
from benchmarks.report.fail_if import ThresholdError, parse


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    """100 requests at 10 a second: 95 in 10 ms, 5 failed in 100 ms."""
    return result_for(account_of([10.0] * 95 + [100.0] * 5, errors=5))


@pytest.mark.parametrize(("text", "holds"), [
    ("p50>20ms", False), ("p50>9.9ms", True), ("p99>0.05s", True), ("p99 > 50 ms", True), ("p99>=100ms", True),
    ("p99.9>1s", False), ("max<100ms", False), ("max<=100ms", True), ("mean>14", True), ("p90>11", False),
    ("rate<10", True), ("rate<9.8", False), ("rate>=9.9", True),
    ("errors>0", True), ("errors>5", False), ("errors>=5", True), ("errors>4%", True), ("errors>5%", False),
    ("outcome.script_error>4", True), ("outcome.script_error>5%", False), ("outcome.queue_full>0", False),
    ("outcome.ok<96%", True), ("outcome.ok<95%", False),
])  # fmt: skip
def test_a_threshold_holds_or_not(result: dict[str, Any], text: str, holds: bool) -> None:
    assert parse(text).holds(result) is holds


@pytest.mark.parametrize(("text", "told"), [
    ("p50>20ms", "p50>20ms: p50 is 10.007 ms"),
    ("errors>1%", "errors>1%: errors is 5.000%"),
    ("outcome.ok<1", "outcome.ok<1: outcome.ok is 95"),
    ("rate<5", "rate<5: rate is 9.9 a second"),
])  # fmt: skip
def test_what_was_seen_is_told(result: dict[str, Any], text: str, told: str) -> None:
    assert parse(text).describe(result) == told


def test_what_cannot_be_told_counts_as_failed() -> None:
    nothing = result_for(Recorder(Load(rate=1, duration_s=1, warm_up_s=0)))
    for text in ("p99>1s", "errors>1%", "outcome.ok<1%"):
        assert parse(text).holds(nothing)
        assert "cannot be told" in parse(text).describe(nothing)
    assert not parse("errors>0").holds(nothing)


@pytest.mark.parametrize(("text", "reason"), [
    ("", "expected METRIC OP VALUE"), ("p99", "expected METRIC OP VALUE"), ("p99>", "expected METRIC OP VALUE"),
    ("p99>-1", "expected METRIC OP VALUE"), ("p99>1e3", "expected METRIC OP VALUE"), ("p99>nan", "expected METRIC OP"),
    ("p99==1", "expected METRIC OP VALUE"), ("p99>1m", "expected METRIC OP VALUE"), ("p99 20ms", "expected METRIC"),
    ("p98>1ms", "unknown metric 'p98'; known: p50, p90"), ("outcome.>1", "unknown metric"), ("late>1", "unknown"),
    ("p99>5%", "p99 is a time"), ("rate<5ms", "takes no unit"), ("rate<5%", "takes no unit"),
    ("errors>5ms", "a count, or a share"), ("outcome.ok<5s", "a count, or a share"), ("errors>101%", "at most 100%"),
    ("p99>１ms", "expected METRIC OP VALUE"),
])  # fmt: skip
def test_what_cannot_be_understood_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ThresholdError, match=reason):
        parse(text)


@given(st.text(max_size=30))
def test_any_text_is_a_threshold_or_refused(text: str) -> None:
    try:
        told = f"{parse(text).bound:.3f}"
    except ThresholdError as error:
        told = str(error)
    assert len(told.splitlines()) == 1

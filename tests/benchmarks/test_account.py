"""Counting: histograms that keep what is recorded, accounts that add up, and when figures are not valid."""

import json

import pytest
from bench_support import ASK, account_of, result_for
from effort import effort
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.load.account import (
    BLOCKS,
    LAG_MATTERS_MS,
    TESTER,
    Answer,
    OwnFigures,
    Recorder,
    doubts,
    phases,
)
from benchmarks.load.histogram import COARSE, FINE, Histogram
from benchmarks.load.schedule import Load, Request

DURATIONS = st.lists(st.floats(0, 60, allow_nan=False), min_size=1, max_size=200)


def histogram(seconds: list[float], digits: int = FINE) -> Histogram:
    found = Histogram(digits)
    for each in seconds:
        found.record(each)
    return found


# ---- histograms --------------------------------------------------------------------------------------------------


@settings(max_examples=effort(50))
@given(DURATIONS, st.sampled_from([1.0, 50.0, 90.0, 99.0, 100.0]))
def test_a_percentile_is_the_nearest_rank_to_a_tenth_of_a_percent(seconds: list[float], percent: float) -> None:
    ranked = sorted(seconds)
    rank = max(1, int(percent / 100 * len(ranked) + 0.5))
    found = histogram(seconds).percentiles_ms([percent])[percent]
    assert found == pytest.approx(ranked[rank - 1] * 1e3, rel=0.001, abs=0.001)


@settings(max_examples=20)
@given(DURATIONS, DURATIONS, st.sampled_from([FINE, COARSE]))
def test_joined_histograms_are_the_histogram_of_everything(one: list[float], two: list[float], digits: int) -> None:
    joined = histogram(one, digits)
    joined.add(histogram(two, digits))
    whole = histogram([*one, *two], digits)
    assert joined.summary() == whole.summary()
    assert joined.counts() == whole.counts()


@settings(max_examples=20)
@given(st.lists(st.floats(0, 60, allow_nan=False), max_size=50), st.sampled_from([FINE, COARSE]))
def test_a_histogram_comes_back_from_json_as_it_was(seconds: list[float], digits: int) -> None:
    one = histogram(seconds, digits)
    two = Histogram.from_wire(json.loads(json.dumps(one.wire())))
    assert (two.count, two.summary(), two.counts()) == (one.count, one.summary(), one.counts())


def test_sum_and_maximum_are_exact_and_nothing_is_told_of_nothing() -> None:
    found = histogram([0.0012345, 0.1234567]).summary()
    assert found["max_ms"] == 123.457
    assert found["mean_ms"] == 62.346
    assert set(Histogram().summary().values()) == {None}


def test_what_takes_longer_than_an_hour_is_counted_all_the_same() -> None:
    found = histogram([7200.0])
    assert (found.count, found.summary()["max_ms"]) == (1, 7_200_000)
    assert found.percentiles_ms([50.0])[50.0] == pytest.approx(3_600_000, rel=0.001)


@pytest.mark.parametrize("wire", [{}, {"digits": 3}, {"digits": 3, "hdr": "x", "sum_s": 0, "max_s": 0}, {"digits": 99}])
def test_what_is_no_histogram_is_said_to_be_none(wire: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a histogram"):
        Histogram.from_wire(wire)


# ---- accounts ----------------------------------------------------------------------------------------------------


def test_accounts_of_several_processes_add_up() -> None:
    one, two = account_of([1.0] * 50, errors=5), account_of([3.0] * 50)
    for account in (one, two):
        account.drop(0.5)
    joined = Recorder(one.load)
    for account in (one, two):
        joined.add(json.loads(json.dumps(account.wire())))
    assert joined.outcomes == {"ok": 95, "script_error": 5}
    assert (joined.measured, joined.expected, joined.errors, joined.dropped) == (100, 95, 5, 2)
    assert joined.latencies.summary()["mean_ms"] == 2.0
    assert joined.by["outcome"]["ok"].count == 95
    assert sum(block.latencies.count for block in joined.blocks) == 100
    assert sum(block.dropped for block in joined.blocks) == 2


def test_every_block_has_the_requests_that_were_meant_to_leave_in_it() -> None:
    account = account_of([float(number) for number in range(1, 401)], rate=10)
    assert len(account.blocks) == BLOCKS
    assert [block.latencies.count for block in account.blocks] == [10] * BLOCKS
    assert account.blocks[3].latencies.summary()["max_ms"] == 40


def test_the_result_has_the_keys_of_the_contract_and_is_json() -> None:
    account = account_of([5.0] * 99 + [50.0], errors=1)
    result = json.loads(json.dumps(result_for(account), allow_nan=False))
    assert result["schema"] == 1
    assert set(result["latency"]) == {"p50_ms", "p90_ms", "p99_ms", "p99.9_ms", "max_ms", "mean_ms"}
    assert result["latency"] | {"p99_ms": 0, "p99.9_ms": 0} == {
        "p50_ms": 5.003, "p90_ms": 5.003, "p99_ms": 0, "p99.9_ms": 0, "max_ms": 50.0, "mean_ms": 5.45,
    }  # fmt: skip
    assert result["outcomes"] == {"ok": 99, "script_error": 1}
    assert (result["rate"], result["late"], result["dropped"], result["valid"]) == (9.9, 0, 0, True)
    assert (result["errors"], result["errors_share"]) == (1, 0.01)
    assert result["load"]["model"] == "open"
    assert result["load"]["rate"] == 10
    assert result["machine"]["cores"] == 2
    assert [percent for percent, _ in result["curve"]][-3:] == [98.0, 99.0, 100.0]


# ---- doubts ------------------------------------------------------------------------------------------------------


def lagging(lag_ms: float, latency_ms: float, count: int = 300) -> Recorder:
    account = Recorder(Load(rate=10, duration_s=100, warm_up_s=0))
    for number in range(count):
        account.sent(1.0, 1.0 + lag_ms / 1000)
        account.ended(Request(ASK, "default", number), 1.0, 1.0 + latency_ms / 1000, Answer(outcome="ok"))
    return account


def test_a_tester_that_was_on_time_and_idle_is_believed() -> None:
    assert doubts(lagging(0.2, 5), OwnFigures(cpu_shares=(0.5, 0.1))) == []


@pytest.mark.parametrize(("lag", "latency", "doubted"), [
    (5, 10, True), (5, 100, False), (LAG_MATTERS_MS - 0.1, 2, False), (50, 100, True),
])  # fmt: skip
def test_lateness_matters_by_its_part_of_the_latency(lag: float, latency: float, doubted: bool) -> None:
    found = doubts(lagging(lag, latency), OwnFigures())
    assert bool(found) == doubted
    if doubted:
        assert "late by" in found[0]
        assert "at p99" in found[0]


def test_of_few_requests_one_late_one_decides_nothing() -> None:
    account = lagging(0.1, 5, count=50)
    account.sent(1.0, 1.050)
    assert doubts(account, OwnFigures()) == []
    assert "at p90" in doubts(lagging(50, 60, count=50), OwnFigures())[0]


def test_in_one_process_with_the_engine_more_is_the_engines_own() -> None:
    assert doubts(lagging(5, 10), OwnFigures(alone=False)) == []
    assert doubts(lagging(5, 10), OwnFigures(cpu_shares=(0.99,), alone=False)) == []
    assert doubts(lagging(50, 60), OwnFigures(alone=False))


def test_other_reasons_are_named() -> None:
    account = lagging(0.1, 5)
    account.drop_rest(7)
    account.outcomes[TESTER] = 3
    found = " ".join(doubts(account, OwnFigures(cpu_shares=(0.2, 0.95))))
    assert "before 7 of the requests could be sent" in found
    assert "95% of a core" in found
    assert "for 3 of the requests" in found
    assert doubts(Recorder(Load()), OwnFigures()) == ["no request ended in the measured time"]


def test_phases_are_cut_where_something_joins() -> None:
    assert phases([0.0], 10, 1) == []
    assert phases([0.5], 10, 1) == [(6.0, "alone"), (float("inf"), "with the others")]
    assert [name for _, name in phases([0.2, 0.6, 0.6], 10, 0)] == ["alone", "with others 1", "with others 2"]

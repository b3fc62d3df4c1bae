"""Comparing two results: a difference is found, noise is called noise, and a ramp finds where it breaks."""

import random
from typing import Any

import pytest
from bench_support import account_of, result_for

from benchmarks.report.compare import CompareError, compare, in_words, summary, unlike
from benchmarks.report.ramp import Ramp


def latencies(mean_ms: float, seed: str, count: int = 1000) -> list[float]:
    """Latencies as servers have them: most near the mean, a long tail, and seconds that are slow as a whole."""
    chance = random.Random(seed)
    found, slow = [], 1.0
    for number in range(count):
        if number % 50 == 0:
            slow = chance.lognormvariate(0, 0.05)
        found.append(mean_ms * slow * chance.lognormvariate(0, 0.3))
    return found


def result(mean_ms: float, seed: str, *, errors: int = 0, rate: float = 100) -> dict[str, Any]:
    return result_for(account_of(latencies(mean_ms, seed), errors=errors, rate=rate))


def test_two_runs_of_the_same_are_called_noise() -> None:
    for number in range(2):
        differences = compare(result(10, f"a{number}"), result(10, f"b{number}"))
        assert {each.verdict for each in differences} == {"noise"}
        assert summary(differences, []) == "The difference is noise: the two results cannot be told apart."


def test_a_result_does_not_differ_from_itself() -> None:
    same = result(10, "same")
    for each in compare(same, same):
        assert each.verdict == "noise"
        assert each.change == 0


def test_a_slower_one_is_found_with_its_interval() -> None:
    differences = {each.metric: each for each in compare(result(10, "a"), result(12, "b"))}
    for metric in ("p50", "p90", "mean"):
        found = differences[metric]
        assert found.verdict == "higher"
        assert found.low is not None
        assert found.high is not None
        assert found.low < 0.2 < found.high
        assert in_words(found).startswith("slower by")
    assert differences["rate"].verdict == "noise"
    assert summary(list(differences.values()), []).startswith("The results differ in p50, p90")
    other_way = {each.metric: each for each in compare(result(12, "b"), result(10, "a"))}
    assert in_words(other_way["p50"]).startswith("faster by")


def test_more_errors_and_another_rate_are_found() -> None:
    differences = {each.metric: each for each in compare(result(10, "a"), result(10, "b", errors=500))}
    assert differences["errors"].verdict == "higher"
    assert differences["errors"].change == 0.5
    assert in_words(differences["errors"]).startswith("more errors")
    rates = {each.metric: each for each in compare(result(10, "a"), result(10, "b", rate=150))}
    assert in_words(rates["rate"]).startswith("higher by 49.8%")


def test_too_little_is_said_to_be_too_little() -> None:
    differences = compare(result_for(account_of([10.0] * 5)), result_for(account_of([20.0] * 5)))
    assert {each.verdict for each in differences} == {"unknown"}
    assert summary(differences, []) == "Nothing can be told: too little was measured."
    nothing = compare(result_for(account_of([10.0] * 100)), result(10, "a") | {"elapsed_s": 0.0})
    assert {each.verdict for each in nothing} == {"unknown"}


def test_what_makes_a_comparison_unfair_is_named() -> None:
    a = result(10, "a")
    assert unlike(a, a) == []
    assert unlike(a, a | {"scenario_text": "rate = 3"}) == ["the scenario's file was another one"]
    b = a | {
        "scenario": "incident", "load": a["load"] | {"rate": 7.0}, "machine": a["machine"] | {"cores": 8, "load": 3.0},
        "valid": False, "invalid_because": ["the tester slept"],
    }  # fmt: skip
    found = " / ".join(unlike(a, b))
    for part in (
        "scenario differs: noop and incident", "rate differs: 100 and 7.0", "cores differs", "not equally busy",
        "second result is not valid: the tester slept",
    ):  # fmt: skip
        assert part in found
    assert "may be why" in summary(compare(a, result(20, "b")), unlike(a, b))


@pytest.mark.parametrize("change", [
    {"schema": 2}, {"series": {}}, {"series": {"interval_s": 1, "blocks": [{}]}}, {"latency": {}}, {"elapsed_s": "x"},
])  # fmt: skip
def test_what_is_no_result_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CompareError, match="first file is"):
        compare(result(10, "a") | change, result(10, "b"))


# ---- ramp --------------------------------------------------------------------------------------------------------


def climbed(ramp: Ramp, breaks_above: float, *, hiccups: set[int] = frozenset()) -> list[float]:  # type: ignore[assignment]
    """The rates that are tried on a target that breaks above one; at a hiccup it fails for no reason."""
    tried: list[float] = []
    while (rate := ramp.next_rate()) is not None:
        assert len(tried) < 60
        ramp.tell(rate, rate <= breaks_above and len(tried) not in hiccups)
        tried.append(rate)
    return tried


@pytest.mark.parametrize("breaks_above", [10, 11, 19.9, 137, 1000, 4321])
def test_a_ramp_finds_where_it_breaks(breaks_above: float) -> None:
    ramp = Ramp(10, 10_000, precision=0.1)
    tried = climbed(ramp, breaks_above)
    assert ramp.best is not None
    assert breaks_above / 1.1 <= ramp.best <= breaks_above
    assert not ramp.limited
    assert len(tried) < 30


def test_a_ramp_that_never_breaks_ends_at_its_highest_rate() -> None:
    ramp = Ramp(10, 500)
    assert climbed(ramp, 1e9) == [10, 20, 40, 80, 160, 320, 500]
    assert ramp.best == 500
    assert ramp.limited


def test_a_ramp_that_breaks_at_once_has_no_answer_and_tried_twice() -> None:
    ramp = Ramp(10, 500)
    assert climbed(ramp, 1) == [10, 10]
    assert ramp.best is None


def test_one_bad_moment_does_not_decide_a_ramp() -> None:
    ramp = Ramp(10, 10_000)
    climbed(ramp, 1000, hiccups={0, 3, 6})
    assert ramp.best is not None
    assert 900 <= ramp.best <= 1000

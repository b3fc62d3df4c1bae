"""Quotas: buckets and windows hold exactly what they say at any rate of requests; and what a refusal says."""

import math

import pytest
from effort import effort
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import Config
from engine.errors import Code
from engine.quota import (
    MINUTE_S,
    QUOTAS,
    BoundQuotas,
    Bucket,
    Ledger,
    Totals,
    Window,
    bind_quotas,
)
from engine.tenant import DEFAULT_TENANT, Tenant

PLENTY = Totals(1e6, 1e6, 1000)
gaps = st.floats(0, 30, allow_nan=False)


def quotas(**own: float) -> BoundQuotas:
    return bind_quotas(Tenant("t", quotas=own), {}, 2)


# Which quota holds ---------------------------------------------------------------------------------------------


def test_the_list_of_quotas_is_that_of_the_configuration() -> None:
    assert {name: spec.default for name, spec in QUOTAS.items()} == Config().tenants.quota


def test_a_tenants_own_quota_goes_before_the_configured_one_and_says_whose_it_is() -> None:
    bound = bind_quotas(Tenant("t", quotas={"burst": 7}), {"burst": 50, "queue_length": 3}, workers=2)
    assert (bound["burst"], bound.sources["burst"]) == (7, "tenant")
    assert (bound["queue_length"], bound.sources["queue_length"]) == (3, "engine")
    assert (bound["concurrent_runs"], bound.sources["concurrent_runs"]) == (2, "engine")
    assert set(bound.values) == set(QUOTAS)


# Requests --------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 2), max_size=200), st.floats(0.5, 50), st.integers(1, 20))
def test_no_stretch_of_time_sees_more_requests_than_burst_and_rate_allow(
    steps: list[float], rate: float, burst: int
) -> None:
    ledger, bound = Ledger(PLENTY, 0.0), quotas(requests_per_second=rate, burst=burst)
    now, taken = 0.0, []
    for step in steps:
        now += step
        if ledger.request("t", bound, now) is None:
            taken.append(now)
    for i, first in enumerate(taken):
        for count, last in enumerate(taken[i:], 1):
            assert count <= burst + rate * (last - first) + 1e-6


@given(st.floats(0.5, 50), st.integers(1, 20))
def test_a_refused_request_is_taken_after_exactly_the_pause_that_was_told(rate: float, burst: int) -> None:
    ledger, bound = Ledger(PLENTY, 0.0), quotas(requests_per_second=rate, burst=burst)
    for _ in range(burst):
        assert ledger.request("t", bound, 0.0) is None
    refused = ledger.request("t", bound, 0.0)
    assert refused is not None
    assert ledger.request("t", bound, refused.retry_after_s / 2) is not None
    assert ledger.request("t", bound, refused.retry_after_s) is None


def test_refused_requests_use_nothing_up() -> None:
    ledger, bound = Ledger(PLENTY, 0.0), quotas(requests_per_second=1, burst=1)
    assert ledger.request("t", bound, 0.0) is None
    for _ in range(1000):
        assert ledger.request("t", bound, 0.5) is not None
    assert ledger.request("t", bound, 1.0) is None


@given(st.lists(st.floats(0, 2), max_size=200), st.floats(0.01, 50), st.integers(1, 20))
def test_as_many_requests_as_are_told_to_be_left_are_taken_at_once_and_not_one_more(
    steps: list[float], rate: float, burst: int
) -> None:
    ledger, bound = Ledger(PLENTY, 0.0), quotas(requests_per_second=rate, burst=burst)
    assert ledger.requests_left("t", bound, 0.0) == (burst, math.ceil(burst / rate), burst, 0)
    now = 0.0
    for step in steps:
        now += step
        ledger.request("t", bound, now)
    left = ledger.requests_left("t", bound, now)
    later = now + left.reset_s
    assert ledger.requests_left("t", bound, later).left == burst, "it is full when it was told to be"
    for _ in range(left.left):
        assert ledger.request("t", bound, now) is None
    assert ledger.request("t", bound, now) is not None


def test_what_is_left_after_a_change_of_the_quota_is_never_more_than_it() -> None:
    ledger = Ledger(PLENTY, 0.0)
    ledger.request("t", quotas(burst=40), 0.0)
    assert ledger.requests_left("t", quotas(burst=3), 0.0).left == 3


def test_a_changed_quota_holds_from_the_next_request_on() -> None:
    ledger = Ledger(PLENTY, 0.0)
    assert ledger.request("t", quotas(burst=100), 0.0) is None
    narrow = quotas(burst=1, requests_per_second=1)
    assert ledger.request("t", narrow, 0.0) is None
    assert ledger.request("t", narrow, 0.0) is not None


def test_one_tenant_that_uses_up_the_engines_bucket_keeps_out_itself_and_not_one_that_asks_rarely() -> None:
    ledger, bound = Ledger(Totals(10, 100, 1000), 0.0), quotas(requests_per_second=10, burst=90)
    outcomes = [ledger.request("greedy", bound, 0.0) for _ in range(90)]
    refused = [outcome for outcome in outcomes if outcome is not None]
    assert outcomes[:40] == [None] * 40
    assert len(refused) > 30
    assert {(each.source, each.used, each.bound) for each in refused} == {("engine", None, 10)}
    assert ledger.request("modest", bound, 0.0) is None


def test_a_clock_that_steps_back_neither_gives_nor_takes() -> None:
    bucket = Bucket.full(1.0, 2.0, 100.0)
    bucket.take()
    bucket.refill(50.0)
    assert (bucket.level, bucket.at) == (1.0, 100.0)


# By the minute -------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(gaps, st.floats(0.01, 5)), max_size=60), st.floats(1, 20))
def test_no_minute_holds_more_than_the_quota_but_for_the_run_that_passed_it(
    runs: list[tuple[float, float]], bound: float
) -> None:
    ledger, limits = Ledger(PLENTY, 0.0), quotas(cpu_seconds_per_minute=bound)
    now, spent = 0.0, []
    for gap, cpu_s in runs:
        now += gap
        if ledger.may_begin("t", limits, now) is None:
            ledger.cpu("t", limits, cpu_s, now)
            spent.append((now, cpu_s))
    for i, (first, _) in enumerate(spent):
        inside = [cpu_s for at, cpu_s in spent[i:] if at < first + MINUTE_S]
        assert sum(inside[:-1]) < bound + 1e-6


@given(st.lists(gaps, min_size=1, max_size=80), st.integers(1, 10))
def test_no_minute_holds_more_host_calls_than_the_quota(steps: list[float], bound: int) -> None:
    ledger, limits = Ledger(PLENTY, 0.0), quotas(host_calls_per_minute=bound)
    now, made = 0.0, []
    for step in steps:
        now += step
        if ledger.host_call("t", limits, now) is None:
            made.append(now)
    for i, first in enumerate(made):
        assert sum(at < first + MINUTE_S for at in made[i:]) <= bound


@given(st.lists(st.tuples(gaps, st.floats(0.01, 5)), min_size=1, max_size=30), st.floats(0.5, 10))
def test_a_run_is_let_in_after_exactly_the_pause_that_was_told(spent: list[tuple[float, float]], bound: float) -> None:
    window, now = Window(), 0.0
    for gap, amount in spent:
        now += gap
        window.add(amount, now)
    wait_s = window.wait_s(bound, now)
    assert 0 <= wait_s <= MINUTE_S + 1
    assert window.used(now + wait_s + 1e-6) < bound + 1e-9


@given(st.lists(st.tuples(gaps, st.floats(0, 5)), max_size=60))
@settings(max_examples=effort(50))
def test_a_window_counts_everything_of_the_last_minute_and_nothing_older_than_a_second_more(
    amounts: list[tuple[float, float]],
) -> None:
    window, now, added = Window(), 0.0, []
    for gap, amount in amounts:
        now += gap
        window.add(amount, now)
        added.append((now, amount))
    used = window.used(now)
    assert used >= sum(amount for at, amount in added if at > now - MINUTE_S) - 1e-6
    assert used <= sum(amount for at, amount in added if at > now - MINUTE_S - 1) + 1e-6


def test_what_was_used_is_told() -> None:
    ledger, limits = Ledger(PLENTY, 0.0), quotas()
    ledger.cpu("t", limits, 1.25, 10.0)
    ledger.host_call("t", limits, 10.0)
    none = {"requests_per_second": 0, "burst": 0, "cpu_seconds_per_minute": 0.0, "host_calls_per_minute": 0}
    assert ledger.used("t", 10.0) == none | {"cpu_seconds_per_minute": 1.25, "host_calls_per_minute": 1}
    assert ledger.used("t", 100.0) == none
    assert ledger.used("unknown", 10.0) == none


def test_tenants_of_long_ago_are_forgotten_and_those_of_now_are_not() -> None:
    ledger, bound = Ledger(Totals(1e6, 1e6, 1000), 0.0), quotas(requests_per_second=1, burst=2)
    for number in range(1000):
        ledger.request(f"t{number}", bound, 0.0)
    ledger.request("now", bound, 1000.0)
    ledger.request("now", bound, 1000.0)
    assert len(ledger._meters) == 1
    assert ledger.request("now", bound, 1000.0) is not None


def test_a_tenant_that_returns_before_its_minute_is_over_finds_what_it_had_used() -> None:
    ledger, bound = Ledger(PLENTY, 0.0), quotas(cpu_seconds_per_minute=1)
    ledger.cpu("t", bound, 2.0, 0.0)
    for number in range(50):
        ledger.request("other", bound, float(number))
    assert ledger.may_begin("t", bound, 50.0) is not None
    assert ledger.may_begin("t", bound, 61.0) is None


# What a refusal tells --------------------------------------------------------------------------------------------


def test_a_refusal_names_the_quota_what_was_used_who_set_it_and_when_to_come_back() -> None:
    ledger, bound = Ledger(PLENTY, 0.0), quotas(cpu_seconds_per_minute=2)
    ledger.cpu("t", bound, 3.5, 10.0)
    over = ledger.may_begin("t", bound, 20.0)
    assert over is not None
    problem = over.problem()
    assert problem.code is Code.QUOTA_EXCEEDED
    assert problem.message == "this tenant used 2 seconds of CPU time within a minute (quota.cpu_seconds_per_minute)"
    assert problem.limit is not None
    assert problem.limit.as_json() == {
        "name": "cpu_seconds_per_minute", "bound": 2, "used": 3.5, "unit": "s", "source": "tenant",
    }  # fmt: skip
    assert problem.retry_after_s == pytest.approx(51)


def test_every_quota_has_a_sentence_for_its_refusal() -> None:
    for spec in QUOTAS.values():
        text = spec.refusal.format(bound=1, used=1, needed=1)
        assert text.startswith(("this tenant", "1 runs of this tenant"))
        assert "{" not in text


def test_without_tenants_no_quota_has_a_name_of_its_own() -> None:
    bound = bind_quotas(DEFAULT_TENANT, Config().tenants.quota, 4)
    assert set(bound.sources.values()) == {"engine"}
    assert all(math.isfinite(value) for value in bound.values.values())


def test_requests_are_shown_as_used_within_the_last_second_and_of_the_bucket() -> None:
    ledger, bound = Ledger(PLENTY, 0.0), quotas(requests_per_second=4, burst=10)
    assert (ledger.used("t", 0.0)["requests_per_second"], ledger.used("t", 0.0)["burst"]) == (0, 0)
    for _ in range(12):
        ledger.request("t", bound, 10.5)
    seen = [(ledger.used("t", now)["requests_per_second"], ledger.used("t", now)["burst"])
            for now in (10.5, 10.9, 11.0, 11.5, 12.0, 14.0)]  # fmt: skip
    assert seen == [(10, 10), (10, 9), (10, 8), (5, 6), (0, 4), (0, 0)], "the two that were refused count nowhere"
    assert ledger.used("t", 9.0)["requests_per_second"] == 0, "a clock that steps back adds nothing"

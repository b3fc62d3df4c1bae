"""What models cost: reservations never exceed the quotas, settled amounts are exact, the books have each call once."""

import contextlib
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Code, Problem
from engine.metrics import Metrics
from engine.models.reserving import Price
from engine.models.shapes import Usage as Tokens
from engine.quota import MINUTE_S, BoundQuotas, Exceeded, bind_quotas
from engine.spending.meter import DAY_S, LEAST_OUTPUT, Held, Meter, micro
from engine.spending.spending import Spending
from engine.tenant import Tenant
from engine.usage import Accounts, Book, report

NOON = 20_000 * DAY_S + DAY_S / 2
PRICE = Price(Fraction(3), Fraction(3, 10), Fraction(15))


def quotas(**own: float) -> BoundQuotas:
    return bind_quotas(Tenant("t", quotas=own), {}, 2)


def held(meter: Meter, bound: BoundQuotas, asked: Held, now: float = 0.0, epoch_s: float = NOON, **how: Any) -> Held:
    found = meter.hold("t", bound, asked, how.get("prices"), now, epoch_s)
    assert isinstance(found, Held), found
    return found


def refused(meter: Meter, bound: BoundQuotas, asked: Held, now: float = 0.0, **how: Any) -> Exceeded:
    found = meter.hold("t", bound, asked, how.get("prices"), now, how.get("epoch_s", NOON))
    assert isinstance(found, Exceeded), found
    return found


# Arithmetic ------------------------------------------------------------------------------------------------------


@dataclass
class Call:
    gap: float
    input: int
    output: int
    share: float  # of the reservation that is used
    lasts: int  # settled after so many further calls


calls = st.builds(
    Call, st.floats(0, 40), st.integers(1, 5000), st.integers(1, 5000), st.floats(0, 1), st.integers(0, 4)
)  # fmt: skip


@given(st.lists(calls, max_size=60), st.integers(1, 20_000), st.floats(0.001, 1))
def test_no_minute_and_no_day_holds_more_than_the_quotas_if_servers_keep_to_the_bounds(
    given_calls: list[Call], tokens: int, dollars: float
) -> None:
    meter, bound = Meter(), quotas(model_tokens_per_minute=tokens, cost_usd_per_day=dollars)
    now, open_calls, settled = 0.0, [], []

    def settle_due(number: int) -> None:
        for each in [each for each in open_calls if each[0] <= number]:
            open_calls.remove(each)
            _, reserved, share = each
            used, cost = int(reserved.tokens * share), int(reserved.cost * share)
            meter.settle("t", reserved, used, cost, now, NOON + now)
            settled.append((now, used, cost))

    for number, call in enumerate(given_calls):
        now += call.gap
        settle_due(number)
        found = meter.hold("t", bound, Held(call.input, call.output, 0), PRICE, now, NOON + now)
        if isinstance(found, Held):
            assert min(call.output, LEAST_OUTPUT) <= found.output <= call.output
            open_calls.append((number + call.lasts, found, call.share))
        reserved_now = sum(each.tokens for _, each, _ in open_calls)
        minute = sum(used for at, used, _ in settled if at > now - MINUTE_S)
        assert reserved_now + minute <= tokens
        assert sum(each.cost for _, each, _ in open_calls) + sum(cost for *_, cost in settled) <= micro(dollars)
    settle_due(len(given_calls) + 4)
    assert meter.used("t", now, NOON + now)["cost_usd_per_day"] == sum(cost for *_, cost in settled) / 1e6


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(300, 100_000))
def test_an_answers_bound_is_lowered_to_what_the_money_pays_and_not_a_token_further(
    input: int, output: int, left: int
) -> None:
    bound = quotas(cost_usd_per_day=left / 1e6, model_tokens_per_minute=1_000_000)
    found = Meter().hold("t", bound, Held(input, output, 0), PRICE, 0.0, NOON)
    if isinstance(found, Held):
        assert found.cost == PRICE.most(input, found.output) <= left
        assert found.output == output or PRICE.most(input, found.output + 1) > left
    else:
        assert found.name == "cost_usd_per_day"
        assert PRICE.most(input, min(output, LEAST_OUTPUT)) > left


def test_a_refusal_for_tokens_says_after_which_pause_the_call_is_taken() -> None:
    meter, bound = Meter(), quotas(model_tokens_per_minute=1000)
    first = held(meter, bound, Held(300, 300, 0))
    meter.settle("t", first, 600, 0, 10.0, NOON)
    over = refused(meter, bound, Held(500, 100, 0), 20.0)
    assert (over.name, over.used, over.bound) == ("model_tokens_per_minute", 600, 1000)
    assert isinstance(refused(meter, bound, Held(500, 100, 0), 20.0 + over.retry_after_s - 0.1), Exceeded)
    assert held(meter, bound, Held(500, 100, 0), 20.0 + over.retry_after_s).tokens == 600


def test_a_call_that_is_larger_than_the_quota_hears_what_it_needs_and_is_not_asked_back_soon() -> None:
    tokens = refused(Meter(), quotas(model_tokens_per_minute=1000), Held(900, 300, 0))
    assert (tokens.used, tokens.needed, tokens.retry_after_s) == (0, 900 + LEAST_OUTPUT, MINUTE_S)
    assert f"this call needs {900 + LEAST_OUTPUT}; the limit is 1000" in tokens.message
    bound = quotas(cost_usd_per_day=0.000001)
    money = refused(Meter(), bound, Held(900, 300, 0), prices=PRICE)
    assert (money.needed, money.retry_after_s) == (PRICE.most(900, LEAST_OUTPUT) / 1e6, DAY_S / 2)


def test_what_a_call_reserves_is_refused_to_others_until_it_is_settled() -> None:
    meter, bound = Meter(), quotas(model_tokens_per_minute=1000, cost_usd_per_day=1)
    first = held(meter, bound, Held(100, 800, 0))
    assert refused(meter, bound, Held(100, 300, 0)).retry_after_s == 1.0
    meter.settle("t", first, 150, 0, 0.0, NOON)
    assert held(meter, bound, Held(100, 300, 0)) == Held(100, 300, 0)


def test_money_is_that_of_the_day_in_utc_and_a_refusal_says_when_it_ends() -> None:
    meter, bound, midnight = Meter(), quotas(cost_usd_per_day=0.01), NOON + DAY_S / 2
    first = held(meter, bound, Held(100, 300, 0), prices=PRICE)
    meter.settle("t", first, 400, 9_999, 0.0, NOON)
    over = refused(meter, bound, Held(100, 300, 0), prices=PRICE, epoch_s=midnight - 60)
    assert (over.name, over.used, over.retry_after_s) == ("cost_usd_per_day", 0.009999, 60)
    assert "0.009999 USD" in over.message
    assert "quota.cost_usd_per_day" in over.message
    assert held(meter, bound, Held(100, 300, 0), prices=PRICE, epoch_s=midnight).cost == PRICE.most(100, 300)


def test_a_clock_that_is_set_back_over_midnight_gives_no_money_again() -> None:
    meter, bound, midnight = Meter(), quotas(cost_usd_per_day=0.01), NOON + DAY_S / 2
    meter.settle("t", held(meter, bound, Held(1, 1, 0), epoch_s=midnight), 2, 10_000, 0.0, midnight)
    assert refused(meter, bound, Held(1, 1, 0), prices=PRICE, epoch_s=midnight - 1).name == "cost_usd_per_day"


def test_a_model_without_a_price_uses_no_money() -> None:
    meter, bound = Meter(), quotas(cost_usd_per_day=0.000001)
    assert held(meter, bound, Held(1000, 1000, 0)).cost == 0


def test_runs_at_once_are_counted_and_none_is_also_a_number() -> None:
    meter, bound = Meter(), quotas(model_runs=2)
    assert [meter.begin("t", bound, 0.0, NOON) for _ in range(2)] == [None, None]
    over = meter.begin("t", bound, 0.0, NOON)
    assert over is not None
    assert (over.name, over.used, over.bound) == ("model_runs", 2, 2)
    assert meter.begin("other", bound, 0.0, NOON) is None
    meter.end("t")
    assert meter.begin("t", bound, 0.0, NOON) is None
    assert meter.begin("none", quotas(model_runs=0), 0.0, NOON) is not None


def test_a_tenant_is_dropped_the_day_after_unless_it_runs() -> None:
    meter = Meter()
    for tenant in ("idle", "busy"):
        assert meter.begin(tenant, quotas(), 0.0, NOON) is None
    meter.end("idle")
    meter.forget(3600.0, NOON + 3600)
    assert meter.knows("idle", NOON)
    meter.forget(DAY_S, NOON + DAY_S)
    assert (meter.knows("idle", NOON), meter.knows("busy", NOON)) == (False, True)


# A run ----------------------------------------------------------------------------------------------------------


@dataclass
class Opened:
    spending: Spending
    book: Book
    metrics: Metrics
    tenant: Tenant

    def used(self) -> dict[str, float]:
        return self.spending.used(self.tenant)

    def shown(self) -> dict[str, Any]:
        return report(self.book.sums_of("t"))


def opened(*, counted: bool = True, **own: float) -> Opened:
    metrics, tenant = Metrics(), Tenant("t", quotas=own, key="k1")
    book = Book(lambda: NOON)
    accounts = Accounts(metrics, book)
    return Opened(Spending(accounts, lambda each: bind_quotas(each, {}, 2), counted=counted), book, metrics, tenant)


async def test_an_answered_call_is_booked_once_with_its_tokens_its_money_and_its_run() -> None:
    its = opened()
    async with its.spending.model_run(its.tenant, "agent:greeter") as run:
        for model in ("small", "small", "large"):
            with run.call(model, 100, 300, PRICE) as call:
                assert call.output == 300
                call.used(Tokens(90, 40, 10), PRICE.cost(Tokens(90, 40, 10)))
        assert its.used()["model_runs"] == 1
    cost = math.ceil(50 * 3 + 40 * 0.3 + 10 * 15)
    one = {"model_calls": 1, "input_tokens": 90, "cached_tokens": 40, "output_tokens": 10, "cost_usd": cost / 1e6}
    shown = its.shown()
    two = {name: 2 * value for name, value in one.items()}
    assert shown["by_model"] == [{"model": "large", **one}, {"model": "small", **two}]
    for row in (shown["total"], shown["by_agent"][0], shown["by_key"][0]):
        assert {name: row[name] for name in one} == {name: 3 * value for name, value in one.items()}
    assert its.used() == {"model_tokens_per_minute": 300, "cost_usd_per_day": 3 * cost / 1e6, "model_runs": 0}
    text = its.metrics.render().decode()
    assert 'engine_model_calls_total{model="small",outcome="ok"} 2.0' in text
    assert 'engine_model_tokens_total{kind="cached",model="large"} 40.0' in text
    assert "engine_model_seconds_count 3.0" in text


async def test_a_call_that_fails_without_an_answer_costs_nothing_and_is_counted_by_its_code() -> None:
    its = opened()
    async with its.spending.model_run(its.tenant, "agent:greeter") as run:
        with pytest.raises(Problem), run.call("small", 100, 300, PRICE):
            raise Problem(Code.MODEL_ERROR, "it answers 401")
        with run.call("small", 100, 300, PRICE) as call:
            call.used(Tokens(1, 0, 1), 5)
    assert its.used()["cost_usd_per_day"] == 0.000005
    assert its.shown()["by_model"][0]["model_calls"] == 1
    assert 'engine_model_calls_total{model="small",outcome="model_error"} 1.0' in its.metrics.render().decode()


async def test_a_call_that_is_cancelled_counts_as_reserved_unless_it_says_what_it_used() -> None:
    its = opened()
    for told in (False, True):
        async with its.spending.model_run(its.tenant, "agent:greeter") as run:
            with trio.CancelScope() as scope, run.call("small", 100, 300, PRICE) as call:
                scope.cancel()
                if told:
                    call.used(Tokens(7, 0, 3, estimated=True), 1)
                await trio.lowlevel.checkpoint()
    assert its.used()["model_tokens_per_minute"] == 400 + 10
    shown = its.shown()["by_model"][0]
    assert (shown["model_calls"], shown["input_tokens"], shown["output_tokens"]) == (0, 7, 3)
    assert 'engine_model_calls_total{model="small",outcome="cancelled"} 2.0' in its.metrics.render().decode()


async def test_a_call_whose_model_is_late_counts_as_reserved_whatever_was_heard() -> None:
    its = opened()
    for told in (False, True):
        async with its.spending.model_run(its.tenant, "agent:greeter") as run:
            with contextlib.suppress(Problem), run.call("small", 100, 300, PRICE) as call:
                if told:
                    call.used(Tokens(7, 0, 3, estimated=True), 1)
                call.late = True
                raise Problem(Code.MODEL_ERROR, "it takes longer than 1 s")
    assert its.used()["model_tokens_per_minute"] == 800
    assert its.used()["cost_usd_per_day"] == 2 * PRICE.most(100, 300) / 1e6
    assert its.shown()["by_model"][0]["input_tokens"] == 7  # the books have what is known


async def one_more(its: Opened) -> None:
    async with its.spending.model_run(its.tenant, "agent:greeter") as run:
        with run.call("small", 100, 400, PRICE):
            raise AssertionError("it must not be sent")


@pytest.mark.parametrize("name", ["model_runs", "model_tokens_per_minute", "cost_usd_per_day"])
async def test_a_refusal_names_its_quota_and_the_next_run_works(name: str) -> None:
    its = opened(**{name: {"model_runs": 1, "model_tokens_per_minute": 500, "cost_usd_per_day": 0.01}[name]})
    async with its.spending.model_run(its.tenant, "agent:greeter") as run:
        with run.call("small", 100, 400, PRICE), pytest.raises(Problem) as refusal:
            await one_more(its)
    assert refusal.value.code is Code.QUOTA_EXCEEDED
    assert refusal.value.limit is not None
    assert (refusal.value.limit.name, refusal.value.limit.source) == (name, "tenant")
    assert refusal.value.retry_after_s
    async with its.spending.model_run(its.tenant, "agent:greeter") as run:
        with run.call("small", 100, 400, PRICE) as call:
            call.used(Tokens(100, 0, 50), 10)


async def test_what_was_spent_before_a_restart_counts_today() -> None:
    its, asked = opened(cost_usd_per_day=1), []

    async def spent(tenant: str, day: str) -> int:
        asked.append((tenant, day))
        return 999_000

    its.spending.spent = spent
    async with its.spending.model_run(its.tenant, "agent:greeter") as run:
        with pytest.raises(Problem, match="cost_usd_per_day"), run.call("small", 100, 400, PRICE):
            raise AssertionError("it must not be sent")
    async with its.spending.model_run(its.tenant, "agent:greeter"):
        pass
    assert len(asked) == 1
    assert its.used()["cost_usd_per_day"] == 0.999


async def test_without_tenants_calls_are_booked_and_have_no_quotas() -> None:
    its = opened(counted=False, model_runs=0, model_tokens_per_minute=1, cost_usd_per_day=0.000001)
    async with its.spending.model_run(its.tenant, "agent:greeter") as run:
        with run.call("small", 100, 400, PRICE) as call:
            call.used(Tokens(100, 0, 50), 900)
    assert its.used() == {}
    assert its.shown()["total"]["cost_usd"] == 0.0009

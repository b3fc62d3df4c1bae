"""Tokens and money before and after a call, by property: no reservation passes what is left, and sums are exact."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.models.reserving import (
    Left,
    Price,
    Reserved,
    Short,
    estimated,
    reserve,
    settle,
    take,
    tokens_of,
)
from engine.models.shapes import Usage

DOLLARS = st.integers(0, 10_000).map(lambda cents: cents / 100)
PRICES = st.builds(Price.of, DOLLARS, st.none() | DOLLARS, DOLLARS)
SIZES = st.integers(0, 2_000_000)
LEFT = st.builds(Left, st.integers(-10, 1_000_000), st.none() | st.integers(-10, 10_000_000))
OUTPUTS = st.integers(1, 100_000)


@given(LEFT, SIZES, OUTPUTS, st.integers(1, 500_000), PRICES)
def test_a_reservation_never_passes_what_is_left(left: Left, size: int, most: int, context: int, price: Price) -> None:
    found = reserve(left, size, most, context, price)
    if isinstance(found, Short):
        assert found.needed > found.bound
        return
    assert found.input == -(-size // 4) <= context
    assert 1 <= found.output <= most
    rest = take(left, found)
    assert rest.tokens >= 0
    assert left.cost is None or (rest.cost is not None and rest.cost >= 0)


@given(LEFT, SIZES, OUTPUTS, PRICES, st.data())
def test_what_an_answer_within_its_reservation_costs_is_within_it_too(
    left: Left, size: int, most: int, price: Price, data: st.DataObject
) -> None:
    found = reserve(left, size, most, 10**9, price)
    if isinstance(found, Short):
        return
    input = data.draw(st.integers(0, found.input))
    usage = Usage(input, data.draw(st.integers(0, input)), data.draw(st.integers(0, found.output)))
    assert 0 <= price.cost(usage) <= found.cost
    after = settle(take(left, found), found, usage, price)
    assert after.tokens == left.tokens - usage.input - usage.output
    assert after.cost == (None if left.cost is None else left.cost - price.cost(usage))


@given(LEFT, SIZES, OUTPUTS, PRICES)
def test_one_more_token_than_reserved_would_pass_a_bound(left: Left, size: int, most: int, price: Price) -> None:
    found = reserve(left, size, most, 10**9, price)
    if isinstance(found, Short) or found.output == most:
        return
    too_many = found.input + found.output + 1 > left.tokens
    too_dear = left.cost is not None and price.most(found.input, found.output + 1) > left.cost
    assert too_many or too_dear


@pytest.mark.parametrize(
    ("left", "size", "context", "short"),
    [
        (Left(100), 404, 100, Short("context_tokens", 100, 101)),
        (Left(100), 400, 100, Short("model_tokens", 100, 101)),
        (Left(1000, 299), 400, 100, Short("cost_usd", 299, 302)),
    ],
)
def test_what_is_short_is_named_with_what_is_needed(left: Left, size: int, context: int, short: Short) -> None:
    assert reserve(left, size, 10, context, Price.of(3, 0.3, 2)) == short


def test_prices_are_exact_and_a_call_is_rounded_up_to_a_micro_dollar() -> None:
    price = Price.of(0.15, 0.075, 0.6)
    assert (price.input, price.cached_input, price.output) == (Fraction(15, 100), Fraction(75, 1000), Fraction(6, 10))
    assert price.cost(Usage(1_000_000, 0, 0)) == 150_000
    assert price.cost(Usage(1_000_000, 1_000_000, 1_000_000)) == 675_000
    assert price.cost(Usage(1, 0, 0)) == 1
    assert price.cost(Usage(0, 0, 0)) == 0
    assert Price.of(3, None, 15).cost(Usage(100, 100, 10)) == 450


def test_the_answers_bound_is_lowered_to_what_is_left() -> None:
    price = Price.of(1, None, 2)
    assert reserve(Left(1000, None), 400, 4096, 10_000, price) == Reserved(100, 900, 1900)
    assert reserve(Left(10_000, 300), 400, 4096, 10_000, price) == Reserved(100, 100, 300)
    assert reserve(Left(10_000, 300), 400, 50, 10_000, price) == Reserved(100, 50, 200)


@given(SIZES, SIZES)
def test_an_answer_without_usage_counts_four_bytes_a_token(request: int, answer: int) -> None:
    assert estimated(request, answer) == Usage(tokens_of(request), 0, tokens_of(answer), estimated=True)
    assert tokens_of(request) * 4 - 4 < request <= tokens_of(request) * 4

"""Tokens and money, reserved before a call and settled after it. Pure.

A token of input counts as four bytes of the whole request body. Money is in whole micro-dollars, rounded up for each
call: a price in dollars for a million tokens is one in micro-dollars for a token.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Literal

from engine.models.shapes import Usage

BYTES_A_TOKEN = 4
MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Micro-dollars a token, exactly as configured."""

    input: Fraction
    cached_input: Fraction
    output: Fraction

    @classmethod
    def of(cls, input: float, cached_input: float | None, output: float) -> "Price":
        """From dollars for a million tokens; without a price of their own, cached tokens cost what others do."""
        exact = [_exact(each) for each in (input, input if cached_input is None else cached_input, output)]
        return cls(*exact)

    def cost(self, usage: Usage) -> int:
        """What an answer cost, in micro-dollars."""
        if self is FREE:
            return 0
        cached = min(usage.cached, usage.input)
        return ceil(
            (usage.input - cached) * self.input + cached * self.cached_input + usage.output * self.output,
        )

    def most(self, input: int, output: int) -> int:
        """The most that so many tokens can cost, whatever of the input is cached."""
        if self is FREE:
            return 0
        return ceil(input * max(self.input, self.cached_input) + output * self.output)


def _exact(number: float) -> Fraction:
    return Fraction(Decimal(repr(number)))  # 0.15 as it is written, not the nearest binary number


FREE = Price(Fraction(0), Fraction(0), Fraction(0))


def tokens_of(size: int) -> int:
    """The tokens that so many bytes count as."""
    return -(-size // BYTES_A_TOKEN)


def estimated(request_bytes: int, answer_bytes: int) -> Usage:
    """The usage of an answer whose server reports none."""
    return Usage(tokens_of(request_bytes), 0, tokens_of(answer_bytes), estimated=True)


NOTHING = Usage(0, 0, 0)


def added(one: Usage, other: Usage) -> Usage:
    """Both together."""
    return Usage(
        one.input + other.input, one.cached + other.cached, one.output + other.output,
        one.estimated or other.estimated,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Left:
    """What a run may still use: tokens, and micro-dollars (None: no bound). Below 0 after a server reported more."""

    tokens: int
    cost: int | None = None


@dataclass(frozen=True, slots=True)
class Reserved:
    """A call's share: `output` is the bound of its answer, `cost` the most that it can cost. Its retries share it."""

    input: int
    output: int
    cost: int


@dataclass(frozen=True, slots=True)
class Short:
    """What is left is not enough for a call: which bound, and what the call needs at least."""

    limit: Literal["context_tokens", "model_tokens", "cost_usd"]
    bound: int
    needed: int


def reserve(left: Left, request_bytes: int, most_output: int, context_tokens: int, price: Price) -> Reserved | Short:
    """The share of a call with a body of this size, whose answer may have `most_output` tokens if they are left."""
    input = tokens_of(request_bytes)
    if input > context_tokens:
        return Short("context_tokens", context_tokens, input)
    if left.tokens < input + 1:
        return Short("model_tokens", left.tokens, input + 1)
    output = min(most_output, left.tokens - input)
    if left.cost is not None:
        if price.most(input, 1) > left.cost:
            return Short("cost_usd", left.cost, price.most(input, 1))
        if price.output:
            affordable = (left.cost - input * max(price.input, price.cached_input)) / price.output
            output = min(output, int(affordable))
    return Reserved(input, output, price.most(input, output))


def take(left: Left, reserved: Reserved) -> Left:
    """What is left while the call is under way."""
    cost = None if left.cost is None else left.cost - reserved.cost
    return Left(left.tokens - reserved.input - reserved.output, cost)


def settle(left: Left, reserved: Reserved, usage: Usage, price: Price) -> Left:
    """What is left after it: the reservation is returned, and what the server reports is taken."""
    cost = None if left.cost is None else left.cost + reserved.cost - price.cost(usage)
    return Left(left.tokens + reserved.input + reserved.output - usage.input - usage.output, cost)

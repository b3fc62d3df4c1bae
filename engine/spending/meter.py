"""The use of the quotas of models by tenant: runs at once, tokens within a minute, money within a day. Pure.

Money is in whole micro-dollars. The caller passes the time: `now` in seconds of any clock, `epoch_s` since 1970 (UTC).
"""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple, Protocol

from engine.quota import MINUTE_S, BoundQuotas, Exceeded, Window
from engine.usage import MICRO

DAY_S = 86_400
# An answer that may have fewer tokens than this is not worth its input: then the call has to wait for its quota.
LEAST_OUTPUT = 256
# Until a reservation of another call is settled, which may be at any time.
_SOON_S = 1.0


class Prices(Protocol):
    """The most that a call can cost, in micro-dollars; more for more tokens."""

    def most(self, input: int, output: int) -> int: ...


class Held(NamedTuple):
    """What a call has reserved: the tokens of its input, the bound of its answer, and the most that it can cost."""

    input: int
    output: int
    cost: int

    @property
    def tokens(self) -> int:
        return self.input + self.output


@dataclass(slots=True)
class _Spent:
    # Invariant: `held_*` are the sums of the reservations that are not settled yet.
    runs: int = 0
    held_tokens: int = 0
    held_cost: int = 0
    tokens: Window = field(default_factory=Window)
    day: int = 0
    cost: int = 0
    last_used: float = 0.0


class Meter:
    """The tenants that spend, or have within the day. One that spends nothing costs nothing."""

    def __init__(self) -> None:
        self._spent: dict[str, _Spent] = {}

    def begin(self, tenant: str, quotas: BoundQuotas, now: float, epoch_s: float) -> Exceeded | None:
        """Count a run that asks models. Returns the quota if it is refused; else `end` must follow."""
        spent = self._of(tenant, now, epoch_s)
        if spent.runs >= quotas["model_runs"]:
            return _exceeded("model_runs", quotas, spent.runs, _SOON_S)
        spent.runs += 1
        return None

    def end(self, tenant: str) -> None:
        """A run has ended."""
        self._spent[tenant].runs -= 1

    def knows(self, tenant: str, epoch_s: float) -> bool:
        """Whether what the tenant has spent on this day is known; else `recall` it."""
        spent = self._spent.get(tenant)
        return spent is not None and spent.day == _day(epoch_s)

    def recall(self, tenant: str, cost: int, now: float, epoch_s: float) -> None:
        """The tenant had spent this much on this day before anything that is counted here."""
        self._of(tenant, now, epoch_s).cost += cost

    def hold(
        self, tenant: str, quotas: BoundQuotas, asked: Held, prices: Prices | None, now: float, epoch_s: float
    ) -> Held | Exceeded:
        """Reserve a call: its input and as much of its answer as is left, but at least `LEAST_OUTPUT` or all of it.

        `asked.cost` is not read: the money is what `prices` say of the tokens. Without prices a call costs nothing.
        """
        spent = self._of(tenant, now, epoch_s)
        least = min(asked.output, LEAST_OUTPUT)
        bound = int(quotas["model_tokens_per_minute"])
        left = bound - int(spent.tokens.used(now)) - spent.held_tokens
        if left < (needed := asked.input + least):
            # A call that is larger than the quota never fits: every 429 has a time, and that one must not be soon.
            wait_s = MINUTE_S if needed > bound else _wait_s(spent, bound - spent.held_tokens - needed, now)
            return _exceeded("model_tokens_per_minute", quotas, bound - left, wait_s, needed)
        output, cost = min(asked.output, left - asked.input), 0
        if prices is not None:
            left = micro(quotas["cost_usd_per_day"]) - spent.cost - spent.held_cost
            if (most := prices.most(asked.input, least)) > left:
                used = (spent.cost + spent.held_cost) / MICRO
                return _exceeded("cost_usd_per_day", quotas, used, DAY_S - epoch_s % DAY_S, most / MICRO)
            output = _affordable(prices, asked.input, least, output, left)
            cost = prices.most(asked.input, output)
        spent.held_tokens += asked.input + output
        spent.held_cost += cost
        return Held(asked.input, output, cost)

    def settle(self, tenant: str, held: Held, tokens: int, cost: int, now: float, epoch_s: float) -> None:
        """The call has ended: its reservation is returned, and what it used is counted."""
        spent = self._of(tenant, now, epoch_s)
        spent.held_tokens -= held.tokens
        spent.held_cost -= held.cost
        spent.cost += cost
        if tokens:
            spent.tokens.add(tokens, now)

    def used(self, tenant: str, now: float, epoch_s: float) -> dict[str, float]:
        """The tenant's use of these quotas, with what is reserved."""
        spent = self._spent.get(tenant)
        if spent is None:
            return {"model_tokens_per_minute": 0, "cost_usd_per_day": 0, "model_runs": 0}
        today = spent.cost if spent.day == _day(epoch_s) else 0
        return {
            "model_tokens_per_minute": int(spent.tokens.used(now)) + spent.held_tokens,
            "cost_usd_per_day": (today + spent.held_cost) / MICRO,
            "model_runs": spent.runs,
        }

    def counted(self) -> dict[str, tuple[int, int]]:
        """By tenant: the day since 1970, and what counts on it in micro-dollars, with what is reserved."""
        return {tenant: (spent.day, spent.cost + spent.held_cost) for tenant, spent in self._spent.items()}

    def forget(self, now: float, epoch_s: float) -> None:
        """Drop the tenants whose figures are those of one that never spent."""
        idle = [
            tenant
            for tenant, spent in self._spent.items()
            if not spent.runs and now - spent.last_used > 2 * MINUTE_S and spent.day != _day(epoch_s)
        ]
        for tenant in idle:
            del self._spent[tenant]

    def _of(self, tenant: str, now: float, epoch_s: float) -> _Spent:
        spent = self._spent.get(tenant)
        if spent is None:
            spent = self._spent[tenant] = _Spent(day=_day(epoch_s))
        elif spent.day < _day(epoch_s):  # a clock that was set back does not begin the day again
            spent.day, spent.cost = _day(epoch_s), 0
        spent.last_used = now
        return spent


def micro(dollars: float) -> int:
    """Whole micro-dollars of an amount as it is written: 0.1 is 100,000."""
    return int(Decimal(repr(dollars)) * MICRO)


def _day(epoch_s: float) -> int:
    return int(epoch_s // DAY_S)


def _wait_s(spent: _Spent, room: int, now: float) -> float:
    # What is used must fall to `room`; if reservations are in the way, one of them ends at any time.
    return spent.tokens.wait_s(room + 1, now) if room >= 0 and spent.tokens.total > room else _SOON_S


def _affordable(prices: Prices, input: int, least: int, most: int, left: int) -> int:
    """The most tokens of an answer from `least` to `most` that cost no more than is left; `least` do not."""
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if prices.most(input, middle) <= left else (least, middle - 1)
    return least


def _exceeded(name: str, quotas: BoundQuotas, used: float, wait_s: float, needed: float = 0) -> Exceeded:
    return Exceeded(name, quotas[name], used, quotas.sources[name], wait_s, needed)

"""The schedule: when each request is due, and which one it is. Pure arithmetic, in seconds from the start of the load.

The load has a warm-up and a measured time, in this order. Everything is a function of its arguments and the seed.
"""

import math
import random
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal, Protocol

from benchmarks.scenario import Ask, weights

Spacing = Literal["even", "poisson"]


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the load that this process makes: number `index` of `count`."""

    index: int = 0
    count: int = 1

    def part(self, total: int) -> int:
        """This process's part of a whole number."""
        return total // self.count + (self.index < total % self.count)


WHOLE = Share()


@dataclass(frozen=True, slots=True)
class Load:
    """The amount of requests, and the duration. Exactly one of `rate` (a second) and `concurrency` is set.

    `max_in_flight` bounds the requests in flight in the open model, over all processes; `timeout_s` is the time-out for
    an answer.
    """

    rate: float | None = 50.0
    concurrency: int | None = None
    duration_s: float = 10.0
    warm_up_s: float = 1.0
    timeout_s: float = 30.0
    max_in_flight: int = 1000
    spacing: Spacing = "even"
    seed: int = 1

    @property
    def total_s(self) -> float:
        return self.warm_up_s + self.duration_s

    def moment(self, share: float) -> float:
        """The moment after this share of the measured time; 0 is the start of the load, warm-up included."""
        return 0.0 if share <= 0 else self.warm_up_s + share * self.duration_s


@dataclass(frozen=True, slots=True)
class Request:
    """One request: what to call, for which tenant, and its unique number."""

    ask: Ask
    tenant: str
    number: int


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests in one rhythm: at `times` the rate of the load, from `start` on."""

    asks: tuple[Ask, ...]
    shares: tuple[float, ...]
    times: float
    start: float
    main: bool


def streams(asks: Sequence[Ask], zipf: float, load: Load) -> list[Stream]:
    """The main stream, at the rate of the load, and one for each additional kind of request."""
    main = [ask for ask in asks if ask.beside is None]
    found = [Stream(tuple(main), tuple(weights(main, zipf)), 1.0, 0.0, True)]
    for ask in asks:
        if ask.beside is not None:
            found.append(Stream((ask,), (1.0,), ask.beside, load.moment(ask.start), False))
    return found


class Arrivals(Protocol):
    """The due times of one stream, in ascending order."""

    def next(self) -> float | None:
        """The next time, or None after the last one."""
        ...

    def rest(self, since: float) -> int:
        """The number of times from `since` on that were not taken. For random arrivals, the expected number."""
        ...


class Even:
    """Evenly spaced: every process takes each `count`th time."""

    def __init__(self, rate: float, start: float, end: float, share: Share = WHOLE) -> None:
        self._rate, self._start, self._share = rate, start, share
        # The tolerance prevents one request too many, such as an eleventh, by rounding.
        self._total = max(0, math.ceil(((end - start) * rate - share.index) / share.count - 1e-9))
        self._taken = 0

    def next(self) -> float | None:
        if self._taken >= self._total:
            return None
        at = self._start + (self._taken * self._share.count + self._share.index) / self._rate
        self._taken += 1
        return at

    def rest(self, since: float) -> int:
        first = math.ceil(((since - self._start) * self._rate - self._share.index) / self._share.count - 1e-9)
        return max(0, self._total - max(self._taken, first))


class Poisson:
    """Random and independent, as from many users: exponential gaps."""

    def __init__(self, rate: float, start: float, end: float, share: Share, random: random.Random) -> None:
        self._rate, self._end, self._random = rate / share.count, end, random
        self._at = start

    def next(self) -> float | None:
        self._at += self._random.expovariate(self._rate)
        return self._at if self._at < self._end else None

    def rest(self, since: float) -> int:
        return max(0, round((self._end - max(self._at, since)) * self._rate))


def arrivals(stream: Stream, load: Load, share: Share, number: int) -> Arrivals:
    """The due times of the stream with this number, in this process."""
    assert load.rate is not None
    rate = load.rate * stream.times
    if load.spacing == "even":
        return Even(rate, stream.start, load.total_s, share)
    return Poisson(rate, stream.start, load.total_s, share, _random(load, share, number, "arrivals"))


class Chooser:
    """Chooses the next request of one stream in one process."""

    def __init__(self, stream: Stream, tenants: Sequence[str], zipf: float, load: Load, share: Share, number: int):
        self._stream, self._share, self._tenants = stream, share, tenants
        self._random = _random(load, share, number, "requests")
        self._asks = list(accumulate(stream.shares))
        raw = [1 / rank**zipf for rank in range(1, len(tenants) + 1)]
        self._chances = list(accumulate(each / sum(raw) for each in raw))
        self._count = 0

    def next(self) -> Request:
        ask = self._stream.asks[_index(self._asks, self._random.random())]
        tenant = ask.tenant or self._tenants[_index(self._chances, self._random.random())]
        number = self._count * self._share.count + self._share.index
        self._count += 1
        return Request(ask, tenant, number)


def _index(sums: list[float], where: float) -> int:
    return min(bisect(sums, where), len(sums) - 1)  # the last sum may fall short of 1 by rounding


def _random(load: Load, share: Share, number: int, purpose: str) -> random.Random:
    return random.Random(f"{load.seed}/{share.index}/{share.count}/{number}/{purpose}")


def tenant_names(count: int) -> tuple[str, ...]:
    """The tenants of a load: `default` if there is only one."""
    return ("default",) if count == 1 else tuple(f"tenant-{number}" for number in range(1, count + 1))


def stepped(load: Load, rate: float, number: int) -> Load:
    """The load of one step of a ramp: another rate, and other random numbers than the step before."""
    return replace(load, rate=rate, seed=load.seed + number)

"""What a tenant may use, and whether it may use more now. Pure: the caller passes the time.

A quota bounds a tenant over time or as a whole; a limit (`sandbox.wire.limits`) bounds one run. Requests have a token
bucket. Quotas by the minute have a sliding window, so that no 60 seconds, wherever they begin, hold more than the
quota: a bucket would let twice as much through.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from engine.errors import Code, LimitUse, Problem
from engine.tenant import LimitSource, Tenant

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class QuotaSpec:
    """One quota. `default` None means the number of workers; `refusal` is the message when it is used up.

    Values are whole numbers of at least `least`, or, if that is None, any number above 0.
    """

    name: str
    unit: Literal["s", "bytes", "count", "USD"]
    default: float | None
    least: int | None
    reason: str
    enforced_by: str
    refusal: str


QUOTAS: dict[str, QuotaSpec] = {
    spec.name: spec
    for spec in (
        QuotaSpec(
            "requests_per_second", "count", 20, None,
            "reading and refusing a request takes time of the supervisor, which all tenants share",
            "a token bucket in front of REST and MCP",
            "this tenant sends more than {bound} requests per second",
        ),
        QuotaSpec(
            "burst", "count", 40, 1,
            "clients start with several requests at once: two seconds' worth",
            "the size of that bucket",
            "this tenant sent more than {bound} requests at once",
        ),
        QuotaSpec(
            "concurrent_runs", "count", None, 1,
            "more concurrent runs than workers would only take turns",
            "the scheduler: further runs wait, or are refused with on_limit = \"reject\"",
            "this tenant has {used} runs under way; the limit is {bound}",
        ),
        QuotaSpec(
            "queue_length", "count", 100, 0,
            "runs in a longer queue would reach their time-out before their turn",
            "the scheduler, when the run is offered",
            "this tenant has {used} runs queued; the limit is {bound}",
        ),
        QuotaSpec(
            "cpu_seconds_per_minute", "s", 30, None,
            "half of one core, all the time",
            "the scheduler before a run starts, its turn while it runs",
            "this tenant used {bound} seconds of CPU time within a minute",
        ),
        QuotaSpec(
            "host_calls_per_minute", "count", 6_000, 1,
            "each costs the supervisor time, of which 0.3 ms count as the tenant's CPU time",
            "the scheduler before a run starts, the supervisor at every call",
            "this tenant made {bound} host calls within a minute",
        ),
        QuotaSpec(
            "stored_bytes", "bytes", 1024 << 20, 1,
            "a disk that one tenant fills is full for all tenants",
            "the writer of documents or published files, before it writes",
            "this tenant has stored {used} bytes; the limit is {bound}",
        ),
        QuotaSpec(
            "kv_bytes", "bytes", 64 << 20, 1,
            "keys that scripts set and never delete fill the disk",
            "the key-value store, in the transaction of a change",
            "this tenant's keys have {used} bytes; the limit is {bound}",
        ),
        QuotaSpec(
            "model_runs", "count", 16, 0,
            "each waits for a model without a worker, but holds a conversation in memory",
            "the start of a run that asks a model",
            "this tenant has {used} runs with a model under way; the limit is {bound}",
        ),
        QuotaSpec(
            "model_tokens_per_minute", "count", 200_000, 1,
            "the providers' rates are for all tenants together",
            "each call of a model, before it: its input and the bound of its answer are reserved",
            "this tenant used or reserved {used} tokens of models within a minute, and this call needs {needed}; "
            "the limit is {bound}",
        ),
        QuotaSpec(
            "cost_usd_per_day", "USD", 10, None,
            "tokens are money, and a loop may ask all night",
            "each call of a model with a price, before it: the most that it can cost is reserved",
            "this tenant spent or reserved {used} USD for models today, and this call needs {needed}; "
            "the limit is {bound}",
        ),
    )
}  # fmt: skip

# After this long without a request, a tenant's meter may be dropped: a new one is the same.
_FORGET_S = 2 * MINUTE_S


@dataclass(frozen=True, slots=True)
class BoundQuotas:
    """A tenant's quotas and who set each: the tenant's own record, or the engine's configuration."""

    values: Mapping[str, float]
    sources: Mapping[str, LimitSource]

    def __getitem__(self, name: str) -> float:
        return self.values[name]


def bind_quotas(tenant: Tenant, defaults: Mapping[str, float | None], workers: int) -> BoundQuotas:
    """Every quota of `QUOTAS` for one tenant: its own, else the configured default, else that of the list."""
    values: dict[str, float] = {}
    sources: dict[str, LimitSource] = {}
    for name, spec in QUOTAS.items():
        if name in tenant.quotas:
            values[name], sources[name] = tenant.quotas[name], "tenant"
            continue
        default = defaults.get(name, spec.default)
        values[name], sources[name] = workers if default is None else default, "engine"
    return BoundQuotas(values, sources)


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A quota that is used up: its name and bound, the amount used, who set it, and the seconds until a retry.

    `needed` is what a call of a model asks for at least.
    """

    name: str
    bound: float
    used: float | None
    source: LimitSource
    retry_after_s: float
    needed: float = 0

    @property
    def message(self) -> str:
        """One sentence for the caller."""
        spec = QUOTAS[self.name]
        whole = "" if self.used is not None else "all tenants together send more requests than the engine accepts"
        said = whole or spec.refusal.format(
            bound=_number(self.bound), used=_number(self.used or 0), needed=_number(self.needed)
        )
        return f"{said} (quota.{self.name})"

    def limit_use(self) -> LimitUse:
        """As an error shows it."""
        return LimitUse(self.name, self.bound, self.used, QUOTAS[self.name].unit, self.source)

    def problem(self, code: Code = Code.QUOTA_EXCEEDED) -> Problem:
        """As a refusal."""
        return Problem(code, self.message, limit=self.limit_use(), retry_after_s=self.retry_after_s)


def _number(value: float) -> str:
    return f"{value:g}" if value < 1e6 else f"{value:.0f}"


@dataclass(slots=True)
class Bucket:
    """A token bucket: `size` tokens at most, `rate` more each second. Times in the caller's clock seconds."""

    rate: float
    size: float
    at: float
    level: float

    @classmethod
    def full(cls, rate: float, size: float, now: float) -> "Bucket":
        return cls(rate, size, now, size)

    def refill(self, now: float) -> None:
        """Add the tokens since the last call. A clock that goes backwards removes none."""
        self.level = min(self.size, self.level + max(0.0, now - self.at) * self.rate)
        self.at = max(self.at, now)

    def wait_s(self) -> float:
        """How long until there is one token; 0 if there is one. Call `refill` first."""
        # After a refill of exactly this wait, rounding may leave the level just below one: that counts as one.
        return 0.0 if self.level >= 1 - 1e-9 else (1 - self.level) / self.rate

    def take(self) -> None:
        """Take one token. `wait_s` must be 0."""
        self.level = max(0.0, self.level - 1)


@dataclass(slots=True)
class Window:
    """The amount used within the last minute, by the second: an amount counts for 60 to 61 seconds."""

    total: float = 0.0
    _slots: deque[list[float]] = field(default_factory=deque)  # [second, amount], oldest first

    def add(self, amount: float, now: float) -> None:
        second = math.floor(now)
        if self._slots and self._slots[-1][0] >= second:
            self._slots[-1][1] += amount
        else:
            self._slots.append([second, amount])
        self.total += amount

    def used(self, now: float) -> float:
        """The amount of the last minute."""
        while self._slots and now >= self._slots[0][0] + 1 + MINUTE_S:
            self.total -= self._slots.popleft()[1]
        if not self._slots:
            self.total = 0.0  # drops rounding errors
        return self.total

    def wait_s(self, bound: float, now: float) -> float:
        """How long until less than `bound` is used, if nothing is added; 0 if it is now."""
        left = self.used(now)
        if left < bound:
            return 0.0
        for second, amount in self._slots:
            left -= amount
            if left < bound:
                return second + 1 + MINUTE_S - now
        return MINUTE_S  # rounding: all amounts have expired by then


@dataclass(slots=True)
class Pace:
    """Requests within the last second, by the clock's second and the one before it, of which a part still counts."""

    second: int = 0
    count: int = 0
    before: int = 0

    def add(self, now: float) -> None:
        self._advance(math.floor(now))
        self.count += 1

    def used(self, now: float) -> int:
        self._advance(math.floor(now))
        return self.count + round(self.before * (1 - (now - self.second)))

    def _advance(self, second: int) -> None:
        if second > self.second:  # a clock that goes backwards changes nothing
            self.before = self.count if second == self.second + 1 else 0
            self.second, self.count = second, 0


class RequestsLeft(NamedTuple):
    """A tenant's bucket of requests, in whole numbers: its size, the seconds that it takes to fill, what is left in it,
    and the seconds until it is full.
    """

    quota: int
    window_s: int
    left: int
    reset_s: int


@dataclass(slots=True)
class _Meter:
    requests: Bucket
    pace: Pace = field(default_factory=Pace)
    cpu_s: Window = field(default_factory=Window)
    host_calls: Window = field(default_factory=Window)
    last_used: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """What all tenants together may use: `requests_per_second` with `burst`, and `queue_length` waiting runs."""

    requests_per_second: float
    burst: float
    queue_length: int


class Ledger:
    """The use of quotas by tenant. Holds tenants of the last minutes only: idle ones cost nothing."""

    def __init__(self, totals: Totals, now: float) -> None:
        self._all = Bucket.full(totals.requests_per_second, totals.burst, now)
        # Invariant: ordered by last_used, oldest first.
        self._meters: OrderedDict[str, _Meter] = OrderedDict()

    def request(self, tenant: str, quotas: BoundQuotas, now: float) -> Exceeded | None:
        """Count one request of this tenant. Returns what it exceeds if it is refused; then it is not counted.

        When the engine's own bucket runs low, a tenant is refused once it has used more of its bucket than is left in
        the engine's: so the busy tenants are refused, and not one that calls rarely. (The rule of A. Choudhury and E.
        Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998.)
        """
        meter = self._meter(tenant, quotas, now)
        own, engine = meter.requests, self._all
        rate, burst = quotas["requests_per_second"], quotas["burst"]
        if (own.rate, own.size) != (rate, burst):  # the operator changed them
            own.refill(now)
            own.rate, own.size, own.level = rate, burst, min(own.level, burst)
        own.refill(now)
        engine.refill(now)
        if wait_s := own.wait_s():
            return Exceeded("requests_per_second", rate, rate, quotas.sources["requests_per_second"], wait_s)
        if wait_s := engine.wait_s():
            return Exceeded("requests_per_second", engine.rate, None, "engine", wait_s)
        if own.size - own.level >= engine.level:
            missing = own.size - own.level - engine.level + 1
            return Exceeded("requests_per_second", engine.rate, None, "engine", missing / (rate + engine.rate))
        own.take()
        engine.take()
        meter.pace.add(now)
        return None

    def requests_left(self, tenant: str, quotas: BoundQuotas, now: float) -> RequestsLeft:
        """The tenant's bucket as it is now."""
        rate, size = quotas["requests_per_second"], quotas["burst"]
        meter = self._meters.get(tenant)
        level = size
        if meter is not None:
            own = meter.requests
            level = min(size, own.level + max(0.0, now - own.at) * rate)
        # As `wait_s` has it: a level a hair below a whole number counts as that number.
        left = math.floor(level + 1e-9)
        return RequestsLeft(int(size), math.ceil(size / rate), left, math.ceil((size - level) / rate))

    def may_begin(self, tenant: str, quotas: BoundQuotas, now: float) -> Exceeded | None:
        """The quota by the minute that keeps a run of this tenant from starting now, or None."""
        meter = self._meters.get(tenant)
        if meter is None:
            return None
        return self._over(meter.cpu_s, "cpu_seconds_per_minute", quotas, now) or self._over(
            meter.host_calls, "host_calls_per_minute", quotas, now
        )

    def cpu(self, tenant: str, quotas: BoundQuotas, seconds: float, now: float) -> Exceeded | None:
        """Count CPU time of a run. Returns the quota if it is used up now."""
        return self._spend(self._meter(tenant, quotas, now).cpu_s, "cpu_seconds_per_minute", quotas, seconds, now)

    def host_call(self, tenant: str, quotas: BoundQuotas, now: float) -> Exceeded | None:
        """Count a host call. Returns the quota if it was used up before: then the call must not be answered."""
        window = self._meter(tenant, quotas, now).host_calls
        if over := self._over(window, "host_calls_per_minute", quotas, now):
            return over
        window.add(1, now)
        return None

    def used(self, tenant: str, now: float) -> dict[str, float]:
        """The tenant's use of the quotas that are counted here: of the bucket, within a second or a minute."""
        meter = self._meters.get(tenant)
        if meter is None:
            return {"requests_per_second": 0, "burst": 0, "cpu_seconds_per_minute": 0.0, "host_calls_per_minute": 0}
        own = meter.requests
        level = min(own.size, own.level + max(0.0, now - own.at) * own.rate)
        return {
            "requests_per_second": meter.pace.used(now),
            "burst": math.ceil(own.size - level),
            "cpu_seconds_per_minute": round(meter.cpu_s.used(now), 3),
            "host_calls_per_minute": int(meter.host_calls.used(now)),
        }

    @staticmethod
    def _over(window: Window, name: str, quotas: BoundQuotas, now: float) -> Exceeded | None:
        wait_s = window.wait_s(quotas[name], now)
        return Exceeded(name, quotas[name], round(window.total, 3), quotas.sources[name], wait_s) if wait_s else None

    @staticmethod
    def _spend(window: Window, name: str, quotas: BoundQuotas, amount: float, now: float) -> Exceeded | None:
        window.add(amount, now)
        return Ledger._over(window, name, quotas, now)

    def _meter(self, tenant: str, quotas: BoundQuotas, now: float) -> _Meter:
        meter = self._meters.get(tenant)
        if meter is None:
            bucket = Bucket.full(quotas["requests_per_second"], quotas["burst"], now)
            meter = self._meters[tenant] = _Meter(bucket)
        else:
            self._meters.move_to_end(tenant)
        meter.last_used = now
        while self._is_blank(next(iter(self._meters.values())), now):
            self._meters.popitem(last=False)
        return meter

    @staticmethod
    def _is_blank(meter: _Meter, now: float) -> bool:
        """Whether it equals a new one: its minute is over and its bucket full again."""
        idle_s = now - meter.last_used
        return idle_s > _FORGET_S and meter.requests.level + idle_s * meter.requests.rate >= meter.requests.size


def as_json(quotas: BoundQuotas, used: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """As `GET /limits` shows them: `{NAME: {value, unit, source, used}}`; `used` is null if nothing is counted."""
    return {
        name: {
            "value": quotas[name], "unit": spec.unit, "source": quotas.sources[name], "used": used.get(name),
        }
        for name, spec in QUOTAS.items()
    }  # fmt: skip

"""`Spending`: the admission of runs that ask models, and the account of each call of a model."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Protocol

import trio

from engine.errors import Problem, leaf
from engine.quota import BoundQuotas, Exceeded
from engine.spending.meter import DAY_S, Held, Meter, Prices
from engine.tenant import Tenant
from engine.usage import Accounts


class Tokens(Protocol):
    """What an answer cost in tokens; `input` includes `cached`."""

    @property
    def input(self) -> int: ...

    @property
    def cached(self) -> int: ...

    @property
    def output(self) -> int: ...


class Spending:
    """What the tenants' runs spend on models. Without tenants there are no quotas, and calls are booked alone."""

    def __init__(self, accounts: Accounts, quotas_for: Callable[[Tenant], BoundQuotas], *, counted: bool) -> None:
        # What a tenant has spent on a day (a date in UTC), in micro-dollars, as the books have it; may raise Problem.
        # May be replaced once the engine is open.
        self.spent: Callable[[str, str], Awaitable[int]] | None = None
        self._accounts = accounts
        self._quotas_for = quotas_for
        self._meter = Meter() if counted else None
        self._recalling = trio.Lock()

    @asynccontextmanager
    async def model_run(self, tenant: Tenant, agent: str) -> AsyncIterator["RunSpending"]:
        """A run that asks models; `agent` is its name in the books: `agent:NAME` or `tool:NAME`.

        Raises Problem `quota_exceeded` (model_runs), and `unavailable` if the books cannot be read.
        """
        meter = self._meter
        if meter is None:
            yield RunSpending(tenant, agent, self._accounts, None, self._quotas_for)
            return
        await self._recall(tenant, meter)
        over = meter.begin(tenant.id, self._quotas_for(tenant), trio.current_time(), time.time())
        if over is not None:
            raise over.problem()
        try:
            yield RunSpending(tenant, agent, self._accounts, meter, self._quotas_for)
        finally:
            meter.end(tenant.id)
            meter.forget(trio.current_time(), time.time())

    def used(self, tenant: Tenant) -> dict[str, float]:
        """The tenant's use of the quotas of models."""
        return {} if self._meter is None else self._meter.used(tenant.id, trio.current_time(), time.time())

    def counted(self) -> dict[str, tuple[str, int]]:
        """By tenant: a date in UTC, and what counts on it in micro-dollars, calls under way with all they reserved."""
        found = {} if self._meter is None else self._meter.counted()
        return {tenant: (_date(day * DAY_S), cost) for tenant, (day, cost) in found.items()}

    async def _recall(self, tenant: Tenant, meter: Meter) -> None:
        """Read what the tenant has spent today, once a day: a restart gives no tenant its money again."""
        if self.spent is None or meter.knows(tenant.id, time.time()):
            return
        async with self._recalling:
            now = time.time()
            if meter.knows(tenant.id, now):
                return
            # A run that began yesterday may settle meanwhile: then the day is known, and its cost is in the books.
            cost = await self.spent(tenant.id, _date(now))
            if not meter.knows(tenant.id, time.time()):
                meter.recall(tenant.id, cost, trio.current_time(), time.time())


class RunSpending:
    """One run that asks models, inside its block."""

    def __init__(
        self, tenant: Tenant, agent: str, accounts: Accounts, meter: Meter | None,
        quotas_for: Callable[[Tenant], BoundQuotas],
    ) -> None:  # fmt: skip
        self._tenant = tenant
        self._agent = agent
        self._accounts = accounts
        self._meter = meter
        self._quotas_for = quotas_for

    @contextmanager
    def call(self, model: str, input: int, output: int, prices: Prices | None) -> Iterator["CallSpending"]:
        """One call of a model, its retries included: `input` tokens, and an answer of at most `output`.

        Inside the block, `output` of what it yields bounds the answer, and `used` takes what was used. A block that
        ends without it has used nothing, unless it was cancelled: then its reservation counts whole in the quotas, as
        it does for an answer that is `late`.
        Raises Problem `quota_exceeded` (model_tokens_per_minute, cost_usd_per_day): then nothing may be sent.
        """
        held = self._hold(Held(input, output, 0), prices)
        began, spending, outcome = trio.current_time(), CallSpending(held.output), "failed"
        try:
            yield spending
            outcome = "ok"
        except BaseException as error:
            outcome = _outcome_of(error)
            raise
        finally:
            self._settle(spending, held, outcome)
            tokens, cost = spending.tokens, spending.cost
            self._accounts.model_called(
                self._tenant, self._agent, model, outcome, trio.current_time() - began,
                *((0, 0, 0) if tokens is None else (tokens.input, tokens.cached, tokens.output)), cost,
            )  # fmt: skip

    def _hold(self, asked: Held, prices: Prices | None) -> Held:
        if self._meter is None:
            return asked
        quotas = self._quotas_for(self._tenant)
        held = self._meter.hold(self._tenant.id, quotas, asked, prices, trio.current_time(), time.time())
        if isinstance(held, Exceeded):
            raise held.problem()
        return held

    def _settle(self, spending: "CallSpending", held: Held, outcome: str) -> None:
        if self._meter is None:
            return
        used, cost = 0, spending.cost
        if spending.tokens is not None:
            used = spending.tokens.input + spending.tokens.output
        elif outcome == "cancelled":
            used, cost = held.tokens, held.cost
        if spending.late:
            used, cost = max(used, held.tokens), max(cost, held.cost)
        self._meter.settle(self._tenant.id, held, used, cost, trio.current_time(), time.time())


class CallSpending:
    """What one call spends: `output` is the bound of its answer, in tokens."""

    def __init__(self, output: int) -> None:
        self.output = output
        self.tokens: Tokens | None = None
        self.cost = 0
        # The model was still at work when its time was over, perhaps without a word: a model that thinks is paid, too.
        self.late = False

    def used(self, tokens: Tokens, cost: int | None) -> None:
        """What the call used, as its server reports it or as bytes were counted; `cost` in micro-dollars."""
        self.tokens, self.cost = tokens, cost or 0


def _date(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).date().isoformat()


def _outcome_of(error: BaseException) -> str:
    inner = leaf(error)
    if isinstance(inner, Problem):
        return inner.code.value
    if isinstance(inner, BaseExceptionGroup):
        return "cancelled" if inner.split(trio.Cancelled)[1] is None else "failed"
    return "cancelled" if isinstance(inner, trio.Cancelled) else "failed"

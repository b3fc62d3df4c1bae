"""`open_engine` -> `Engine.execute`: the one entrance through which every front end runs scripts."""

import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import structlog
import trio

from engine import execution
from engine.bridge import Bridge, HostContext, HostFunction
from engine.bridge.mocks import Mocks
from engine.config import Config
from engine.egress.redaction import NOTHING_SECRET, Redactor
from engine.egress.secrets import EMPTY_VAULT, NO_REFERENCES, NoSecrets, References, SecretSource
from engine.errors import Code, LimitUse, Problem, ungrouped
from engine.host.lag import LoopWatch, watched
from engine.metrics import Metrics
from engine.quota import BoundQuotas, Exceeded, Ledger, RequestsLeft, Totals, as_json, bind_quotas
from engine.run import SILENT, Hearers, Prepared, RunRequest, RunResult, Usage
from engine.scheduling.scheduler import NotAdmitted, Scheduler, Ticket
from engine.scheduling.turns import Turn, Turns
from engine.spending.spending import Spending
from engine.tenant import DEFAULT_TENANT, BoundLimits, Tenant, bind_limits, within
from engine.usage import Accounts, Book
from engine.workers import ulimits as room
from engine.workers.pool import NoWorker, Pool, PoolSettings, WorkerState, open_pool
from sandbox.wire.layers import REQUIRED
from sandbox.wire.limits import SPECS
from sandbox.wire.messages import LayerState
from sandbox.wire.outcome import Outcome

log = structlog.get_logger("engine")

# Places for suspended runs; each keeps its worker. A tenant may hold as many places as it leaves free, so that endless
# loops of several tenants cannot take them all.
SUSPENDED = 12
# Queue bound for runs that describe a script, whatever the tenant's: the loader bounds how many it starts at a time.
DESCRIBED_AT_ONCE = 1_000
# Size of the cache of bound limits, and of that of redactors; a full one is cleared.
LIMITS_KEPT = 1024
# How often workers without a run are inspected: 1 us each, and 8 for the memory of one that has computed since.
INSPECT_S = 0.25
# How deep tools may call tools: each run waits for the one it called, and keeps its worker.
MAX_DEPTH = 4

# After a question to a store the next one may come at any time for so long.
_LATELY_S = 1.0


class SandboxUnavailable(Exception):
    """A required layer is missing, or no worker can be made, so the engine does not start. One line says which and why.

    `layers` is what a worker reported, if there was one.
    """

    def __init__(self, message: str, layers: tuple["LayerStatus", ...] = ()) -> None:
        super().__init__(message)
        self.layers = layers


@dataclass(frozen=True, slots=True)
class LayerStatus:
    """One layer as a worker reported it, and whether the configuration requires it."""

    name: str
    state: LayerState
    detail: str
    required: bool


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """One live worker. `tenant` is None until its first run."""

    serial: int
    pid: int
    state: WorkerState
    tenant: str | None
    runs: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """What an engine does at one moment. Of the runs under way, `running` have a slot and `suspended` have none."""

    workers: tuple[WorkerStatistics, ...]
    spawned: int
    running: int
    suspended: int
    queued: int

    def workers_that_are(self, state: WorkerState) -> list[WorkerStatistics]:
        return [worker for worker in self.workers if worker.state == state]


class ToolWitness(Protocol):
    """Hears of the calls of runs with a model: `agent` is the run's name without `agent:`. Neither method blocks."""

    def refused(self, tenant: Tenant, agent: str, tool: str) -> None:
        """A model asked for a tool that the run may not call."""
        ...

    def decided(self, tenant: Tenant, agent: str, tool: str, *, allowed: bool) -> None:
        """A person was asked whether a tool may be called."""
        ...


class Engine:
    """A running engine. Made by `open_engine`; nothing that it started outlives that block."""

    def __init__(self, config: Config, pool: Pool, bridge: Bridge, metrics: Metrics) -> None:
        self.metrics = metrics
        self.loop = LoopWatch()
        self.draining = False
        # Who is told of tools that models are refused, and of what persons decide; by `tell_tools`.
        self.tool_witness: ToolWitness | None = None
        # Where tenants' secrets come from. May be replaced once the engine is open.
        self.secrets: SecretSource = NoSecrets()
        self._config = config
        self._pool = pool
        self._bridge = bridge
        self.host_calls = bridge.names
        tenants = config.tenants
        total = tenants.total
        self._scheduler = Scheduler(
            pool.settings.workers,
            pool.settings.workers + pool.settings.suspended,
            total.queue_length if tenants.enabled else None,
        )
        # The use of quotas. None for a single tenant: then only its queue and its concurrent runs are bounded, and
        # nothing is counted by the minute.
        self._ledger = (
            Ledger(Totals(total.requests_per_second, total.burst, total.queue_length), trio.current_time())
            if tenants.enabled
            else None
        )
        # Questions to stores that are being answered, and when the last answer was.
        self._answering = 0
        self._answered_at = -math.inf
        # The cache of bound limits: the configuration's do not change, and there are few combinations.
        self._limits: dict[tuple[object, ...], BoundLimits] = {}
        self._usual_quotas = bind_quotas(DEFAULT_TENANT, tenants.quota, pool.settings.workers)
        # By the values that they mask. To make one takes about thirty forms of each value.
        self._redactors: dict[tuple[str, ...], Redactor] = {}
        # The cost of runs that is not on disk yet.
        self.book = Book(time.time)
        self.accounts = Accounts(metrics, self.book)
        self.spending = Spending(self.accounts, self.quotas_for, counted=tenants.enabled)
        self._turns = Turns(self._scheduler, self._ledger, self._has_started, self._time_out)
        # Invariant: one event for every ticket in the scheduler's queues, oldest first. A ticket that starts at once
        # never has one.
        self._starts: dict[Ticket, trio.Event] = {}
        self._idle = trio.Event()
        self._idle.set()
        # Nested runs, by depth. They need no slot of their own: their caller holds one and uses no CPU. One limiter for
        # each depth, so that nested runs cannot deadlock.
        self._nested = [trio.CapacityLimiter(places) for places in pool.settings.nested_places]

    @property
    def layers(self) -> tuple[LayerStatus, ...]:
        """The layers of confinement, as the newest worker reported them."""
        required = required_layers(self._config)
        return tuple(LayerStatus(r.name, r.state, r.detail, r.name in required) for r in self._pool.layers)

    def tell_denied(self, hearer: Callable[[RunRequest, str], None]) -> None:
        """Call `hearer` for every host call that asks for more than was granted, with the run and the call's name."""
        self._bridge.on_denied = hearer

    def tell_tools(self, witness: ToolWitness) -> None:
        """Tell `witness` of tools that models are refused, and of what persons decide about calls."""
        self.tool_witness = witness

    def mock_calls(self, mocks: Mocks | None) -> None:
        """Let these rows answer host calls from now on, in place of their handlers; None: no longer."""
        self._bridge.mocks = mocks

    def parameters_of(self, host_call: str) -> tuple[str, ...]:
        """The names of a host call's arguments."""
        return self._bridge.parameters(host_call)

    def limits_for(self, asked: dict[str, float], tenant: Tenant) -> BoundLimits:
        """The limits of a run of this tenant whose script asks for `asked`."""
        key = (*asked.items(), None, *tenant.ceilings.items())
        bound = self._limits.get(key)
        if bound is None:
            if len(self._limits) >= LIMITS_KEPT:
                self._limits.clear()
            bound = bind_limits(asked, tenant, self._config.limits.defaults, self._config.limits.max)
            self._limits[key] = bound
        return bound

    def quotas_for(self, tenant: Tenant) -> BoundQuotas:
        """The tenant's quotas: its own, else those of `[tenants.quota]`."""
        if not tenant.quotas:
            return self._usual_quotas
        return bind_quotas(tenant, self._config.tenants.quota, self._pool.settings.workers)

    def count_request(self, tenant: Tenant) -> None:
        """Count a request of this tenant, of whatever kind. Raises Problem rate_limited; then it is not counted."""
        if self._ledger is not None:
            over = self._ledger.request(tenant.id, self.quotas_for(tenant), trio.current_time())
            if over is not None:
                raise over.problem(Code.RATE_LIMITED)

    def requests_left(self, tenant: Tenant) -> RequestsLeft | None:
        """How many requests the tenant may send now; None where there is one tenant, whose requests have no quota."""
        if self._ledger is None:
            return None
        return self._ledger.requests_left(tenant.id, self.quotas_for(tenant), trio.current_time())

    @contextmanager
    def work_for(self, tenant: Tenant) -> Iterator[None]:
        """Charge the supervisor's work in the block to the tenant's `cpu_seconds_per_minute`.

        Raises Problem quota_exceeded, before the work, once the quota is used up. Nothing may be awaited inside: the
        time is the thread's CPU clock, which counts every task.
        """
        ledger = self._ledger
        if ledger is None:
            yield
            return
        quotas = self.quotas_for(tenant)
        if (over := ledger.may_begin(tenant.id, quotas, trio.current_time())) is not None:
            raise over.problem()
        began_s = time.thread_time()
        try:
            yield
        finally:
            took_s = time.thread_time() - began_s
            self.loop.worked(tenant.id, took_s)
            ledger.cpu(tenant.id, quotas, took_s, trio.current_time())

    def charge(self, tenant: Tenant, cpu_s: float, work: str | None = None) -> None:
        """Charge a tenant for CPU time that the supervisor used for it, even beyond its quota.

        With `work`, the name of what was done, it is a row of the tenant's usage.
        """
        if work is not None:
            self.book.worked(tenant.id, work, cpu_s)
        if self._ledger is not None:
            self._ledger.cpu(tenant.id, self.quotas_for(tenant), cpu_s, trio.current_time())

    def may_work(self, tenant: Tenant) -> bool:
        """Whether the tenant has CPU time left for work that can wait."""
        return self._ledger is None or (
            self._ledger.may_begin(tenant.id, self.quotas_for(tenant), trio.current_time()) is None
        )

    def others_wait(self, tenant: Tenant) -> bool:
        """Whether a run waits for a slot, unless all of those that wait for their start are of this tenant.

        Where a slot is free, it waits for something else, like the end of another run of its tenant.
        """
        scheduler = self._scheduler
        if scheduler.running < scheduler.slots:
            return False
        return scheduler.waiting and (not scheduler.queued or scheduler.queued > scheduler.queued_of(tenant.id))

    @property
    def config(self) -> Config:
        """The configuration that it was started with."""
        return self._config

    @property
    def computing(self) -> bool:
        """Whether any run holds a slot and does not wait for the host. Threads may call it."""
        return any(ticket.waiting_since is None for ticket in self._scheduler.on_slots)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A question to a store, without a run, is answered inside the block."""
        self._answering += 1
        try:
            yield
        finally:
            self._answering -= 1
            self._answered_at = trio.current_time()

    @property
    def in_question(self) -> bool:
        """Whether a question to a store is being answered."""
        return self._answering > 0

    @property
    def asked_lately(self) -> bool:
        """Whether one is, or was a moment ago, so that the next one may come at any time."""
        return self._answering > 0 or trio.current_time() < self._answered_at + _LATELY_S

    def room_for(self, tenant: Tenant) -> int | None:
        """How many bytes the tenant may store in all; None for a single tenant, which owns the disk."""
        return None if self._ledger is None else int(self.quotas_for(tenant)["stored_bytes"])

    def show_quotas(self, tenant: Tenant, stored: Mapping[str, float]) -> dict[str, dict[str, Any]]:
        """The tenant's quotas in force, as `GET /limits` shows them. `stored` is the use of those of stored data."""
        quotas = as_json(self.quotas_for(tenant), {**self._quota_use(tenant), **stored})
        if self._ledger is None:
            return {name: quotas[name] for name in ("concurrent_runs", "queue_length", "kv_bytes")}
        return quotas

    def _quota_use(self, tenant: Tenant) -> dict[str, float]:
        used: dict[str, float] = {
            "concurrent_runs": self._scheduler.begun_of(tenant.id),
            "queue_length": self._scheduler.queued_of(tenant.id),
        }
        if self._ledger is None:
            return used
        return used | self._ledger.used(tenant.id, trio.current_time()) | self.spending.used(tenant)

    async def execute(
        self, request: RunRequest, inside: HostContext | None = None, hearers: Hearers = SILENT
    ) -> RunResult:
        """Admit, queue, run. A script's failure is a result; a refusal before the start is a Problem.

        `inside` is the run that this one is nested in: they share a turn, a deadline and budgets.
        Raises Problem: quota_exceeded, queue_full, queue_timeout (the tenant's), unavailable (draining, or no worker
        can be made), bad_request (an argument that is not text); and MissingSecret. Cancelling kills the run's worker
        and reaps it first.
        """
        prepared = await self._prepare(request, hearers)
        if inside is not None:
            return await self._execute_nested(prepared, inside)
        if self.draining:
            raise Problem(Code.UNAVAILABLE, "the engine is shutting down", retry_after_s=1)
        await trio.lowlevel.checkpoint_if_cancelled()
        quotas = self.quotas_for(request.tenant)
        asked_at = trio.current_time()
        try:
            ticket = await self._admit(request, quotas)
        except Problem:
            refused = Usage(queue_s=trio.current_time() - asked_at)
            self.accounts.ended(request.tenant, f"{request.root}:{request.label}", Outcome.REJECTED, refused)
            raise
        turn = self._turns.begin(request.tenant, quotas, ticket)
        try:
            assert ticket.started_at is not None
            queue_s = ticket.started_at - ticket.offered_at
            self.metrics.queue_seconds.observe(queue_s)
            return await self._run(prepared, turn, queue_s)
        finally:
            self._turns.end(turn)
            self._note_idle()

    async def _prepare(self, request: RunRequest, hearers: Hearers) -> Prepared:
        """Raises MissingSecret when `request.config` names a secret that it may not use, or that is not set."""
        own = self._redactor(request.masked) if request.masked else NOTHING_SECRET
        if request.method is None:  # to describe a script takes no configuration
            return Prepared(request, request.config, NO_REFERENCES, own, hearers)
        vault = await self.secrets.vault(request.tenant.id)
        # Most tenants have no secrets: a shared constant spares each run making its own.
        references = References(vault, request.authority.secrets) if vault is not EMPTY_VAULT else NO_REFERENCES
        return Prepared(request, references.placed(request.config), references, vault.redactor(own), hearers)

    def _redactor(self, masked: tuple[str, ...]) -> Redactor:
        found = self._redactors.get(masked)
        if found is None:
            if len(self._redactors) >= LIMITS_KEPT:
                self._redactors.clear()
            found = self._redactors[masked] = Redactor(masked)
        return found

    async def _execute_nested(self, prepared: Prepared, inside: HostContext) -> RunResult:
        """Run inside another run, within its remaining limits. Its deadline cancels this run, too."""
        request = prepared.request
        depth = len(request.callers)
        assert 1 <= depth <= MAX_DEPTH
        assert inside.turn is not None
        started = trio.current_time()
        async with self._nested[depth - 1]:
            request = msgspec.structs.replace(request, limits=within(request.limits, inside.remaining()))
            prepared = msgspec.structs.replace(prepared, request=request)
            result = await self._run(prepared, inside.turn, trio.current_time() - started, nested=True)
        inside.charge(result.usage)
        return result

    async def _run(self, prepared: Prepared, turn: Turn, queue_s: float, *, nested: bool = False) -> RunResult:
        """Run on a leased worker."""
        request = prepared.request
        try:
            worker = await self._pool.lease(request.tenant.id, request.limits.values.cpu_s, nested=nested)
        except NoWorker as error:
            log.error("no worker for a run", reason=str(error))
            raise Problem(Code.UNAVAILABLE, "no worker can be made at the moment", retry_after_s=1) from None
        clean = False
        try:
            result = await execution.execute(prepared, worker, turn, self._bridge, self.accounts, queue_s)
            clean = result.outcome.spec.worker_survives
            return result
        finally:
            self._pool.give_back(worker, clean=clean)

    async def _admit(self, request: RunRequest, quotas: BoundQuotas) -> Ticket:
        """A place in the tenant's queue, then a start; or a typed refusal at once."""
        tenant, now = request.tenant, trio.current_time()
        # All scripts are described at once when they are loaded; the tenant's queue must not refuse them.
        describes = request.method is None
        if self._ledger is not None and (over := self._ledger.may_begin(tenant.id, quotas, now)) is not None:
            raise over.problem()
        offered = self._scheduler.offer(
            tenant.id,
            now,
            queue_length=max(DESCRIBED_AT_ONCE if describes else 0, int(quotas["queue_length"])),
            weight=tenant.weight,
            concurrent=int(quotas["concurrent_runs"]),
            may_wait=describes or self._config.tenants.on_limit == "queue",
            at_once=True,
        )
        if isinstance(offered, NotAdmitted):
            raise _no_room(offered, quotas)
        self._idle = trio.Event() if self._idle.is_set() else self._idle
        if offered.started_at is not None:  # most runs start at once: no event, no cancel scope, no checkpoint
            return offered
        started = self._starts[offered] = trio.Event()
        if self._scheduler.queued_of(tenant.id) == 1:
            self._turns.make_room()
        else:  # preemption for this tenant was considered when its first waiting run came
            self._turns.start_waiting()
        try:
            await started.wait()
        except BaseException:
            if offered.started_at is not None:
                # Race: its caller went away, but the run got its slot before this task was cancelled. Give the slot to
                # the next run, or it is lost for good.
                self._scheduler.finish(offered, 0.0)
                self._turns.start_waiting()
            elif self._starts.pop(offered, None) is not None:  # else it had timed out
                self._scheduler.withdraw(offered)
            self._note_idle()
            raise
        if offered.started_at is not None:
            return offered
        bound = self._config.limits.queue_timeout_s
        raise Problem(
            Code.QUEUE_TIMEOUT,
            f"no worker became free within {bound:g} s (limits.queue_timeout_s)",
            limit=LimitUse("queue_timeout_s", bound, bound, "s", "engine"),
            retry_after_s=1,
        )

    def _time_out(self, now: float) -> None:
        """Fail runs whose queue time-out has passed. One sweep for all: a cancel scope for each would cost 8 us."""
        offered_before = now - self._config.limits.queue_timeout_s
        while self._starts:
            ticket, waiting = next(iter(self._starts.items()))
            if ticket.offered_at > offered_before:
                break
            del self._starts[ticket]
            self._scheduler.withdraw(ticket)
            waiting.set()
        self._note_idle()

    def _has_started(self, ticket: Ticket) -> None:
        if (waiting := self._starts.pop(ticket, None)) is not None:
            waiting.set()

    def _note_idle(self) -> None:
        if self._scheduler.running == 0 and not self._starts:
            self._idle.set()

    async def drain(self) -> None:
        """Refuse new runs and wait until the present ones have ended. The caller bounds the wait."""
        self.draining = True
        await self._idle.wait()

    def health(self) -> dict[str, Any]:
        """The engine's part of `GET /health`: worker counts, queue, loop, layers, and why no worker can be made."""
        return {
            "workers": self._pool.counts(),
            "queued": self._scheduler.queued,
            "loop_lag_ms": self.loop.lag().as_json(),
            "trouble": self._pool.trouble,
            "layers": [
                {"name": r.name, "state": r.state, "detail": r.detail, "required": r.required} for r in self.layers
            ],
        }

    def statistics(self) -> EngineStatistics:
        """What the engine does now: for debugging, and for tests."""
        workers = tuple(
            WorkerStatistics(each.serial, each.pid, state, each.tenant, each.runs, each.resident_bytes)
            for state, workers in self._pool.by_state().items()
            for each in workers
        )
        scheduler = self._scheduler
        suspended = scheduler.begun - scheduler.running
        return EngineStatistics(workers, self._pool.spawned, scheduler.running, suspended, scheduler.queued)

    def render_metrics(self) -> bytes:
        """Prometheus text."""
        metrics = self.metrics
        metrics.workers, metrics.spawned = self._pool.counts(), self._pool.spawned
        metrics.layers = {layer.name: layer.state == "active" for layer in self.layers}
        metrics.queued, metrics.lag = self._scheduler.queued, self.loop.lag()
        return metrics.render()

    async def watch(self) -> None:
        """The engine's background work. Runs until cancelled."""
        with watched(self.loop):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(inspect_workers, self._pool, self.metrics)
                nursery.start_soon(self._turns.watch)


async def inspect_workers(pool: Pool, metrics: Metrics) -> None:
    """End workers that compute or grow without a run, and update the gauge of all workers' memory.

    Runs until cancelled.
    """
    while True:
        for worker, deed in pool.inspect():
            metrics.security_events += 1
            log.warning("security event", event_kind=f"a worker {deed}", tenant=worker.tenant)
        metrics.worker_memory_bytes = sum(worker.resident_bytes for worker in pool.live() if worker.alive)
        await trio.sleep(INSPECT_S)


def _no_room(refused: NotAdmitted, quotas: BoundQuotas) -> Problem:
    """The refusal of a run. The length of the engine's own queue is not shown: it counts other tenants' runs."""
    if refused.engine_wide:
        use = LimitUse("queue_length", refused.bound, None, "count", "engine")
        message = "the queue of the whole engine is full (tenants.total.queue_length)"
        return Problem(Code.QUEUE_FULL, message, limit=use, retry_after_s=1)
    over = Exceeded(refused.name, refused.bound, refused.used, quotas.sources[refused.name], 1)
    return over.problem(Code.QUEUE_FULL if refused.name == "queue_length" else Code.QUOTA_EXCEEDED)


def required_layers(config: Config) -> frozenset[str]:
    """The layers without which the engine refuses to start."""
    required = config.sandbox.require
    return frozenset(REQUIRED if required is None else required)


def pool_settings(config: Config) -> PoolSettings:
    """The pool's settings from the configuration. The ceilings bound workers, as these outlive single runs."""
    ceilings = {name: config.limits.max.get(name, spec.ceiling) for name, spec in SPECS.items()}
    return PoolSettings(
        workers=config.sandbox.workers or len(os.sched_getaffinity(0)),
        max_depth=MAX_DEPTH,
        suspended=SUSPENDED,
        reserve=config.sandbox.reserve,
        isolation=config.sandbox.isolation,
        max_runs_per_worker=config.sandbox.max_runs_per_worker,
        cpu_s=ceilings["cpu_s"],
        memory_bytes=int(ceilings["memory_bytes"]),
        layers_off=config.sandbox.disable,
    )


def require_room(config: Config) -> None:
    """Raise SandboxUnavailable when the limits of this process (ulimit) are too low for the configuration."""
    missing = room.take(pool_settings(config))
    if missing is not None:
        raise SandboxUnavailable(missing)


@asynccontextmanager
async def open_engine(config: Config, host_functions: Iterable[HostFunction] = ()) -> AsyncIterator[Engine]:
    """An engine with confined workers, ready to execute. Raises SandboxUnavailable.

    `host_functions` are the host calls that scripts may be granted; those of the knowledge store are in
    `engine.bridge.knowledge`.
    """
    require_room(config)
    with ungrouped():
        try:
            async with open_pool(pool_settings(config)) as pool:
                engine = Engine(config, pool, Bridge(host_functions), Metrics())
                _require(engine.layers)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(engine.watch)
                    yield engine
                    nursery.cancel_scope.cancel()
        except NoWorker as error:
            raise SandboxUnavailable(f"no worker can be made: {error}") from None


def _require(layers: tuple[LayerStatus, ...]) -> None:
    missing = [layer for layer in layers if layer.required and layer.state != "active"]
    if missing:
        reasons = "; ".join(f"{layer.name} is {layer.state} ({layer.detail})" for layer in missing)
        raise SandboxUnavailable(
            f"a required layer of the sandbox is missing: {reasons} (see [sandbox] require)", layers
        )

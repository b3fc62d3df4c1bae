"""`open_engine` -> `Engine.execute`: the one door through which every front end runs scripts."""

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import structlog
import trio

from engine import supervisor
from engine.bridge import Bridge, HostContext, HostFunction
from engine.config import Config
from engine.errors import Code, LimitUse, Problem
from engine.metrics import Metrics
from engine.pool import NoWorker, Pool, PoolSettings, open_pool
from engine.run import RunRequest, RunResult
from engine.scheduler import Refused, Scheduler, Ticket
from engine.supervisor import Meter
from engine.tenant import BoundLimits, Tenant, bind_limits, within
from sandbox.layers import REQUIRED
from sandbox.limits import SPECS
from sandbox.messages import LayerState
from sandbox.outcome import Outcome

log = structlog.get_logger("engine")

# Runs of one tenant that may wait for a worker.
QUEUE_LENGTH = 100
# Tools may call tools so far down: a run waits for the one below it, and each holds a worker.
MAX_DEPTH = 4


class SandboxUnavailable(Exception):
    """A required layer is missing, or no worker can be made: nothing is served. One line that says which and why.

    `layers` is what a worker found, if there was one.
    """

    def __init__(self, message: str, layers: tuple["LayerStatus", ...] = ()) -> None:
        super().__init__(message)
        self.layers = layers


@dataclass(frozen=True, slots=True)
class LayerStatus:
    """One layer as found in effect in a worker, and whether the configuration insists on it."""

    name: str
    state: LayerState
    detail: str
    required: bool


class Engine:
    """A running engine. Made by `open_engine`; nothing that it started outlives that block."""

    def __init__(self, config: Config, pool: Pool, bridge: Bridge, metrics: Metrics) -> None:
        self.metrics = metrics
        self.draining = False
        self._config = config
        self._pool = pool
        self._bridge = bridge
        self._meter = Meter(pool, metrics)
        self._scheduler = Scheduler(pool.settings.workers)
        # Invariant: one event for every ticket that waits in the scheduler's queues; one that starts as soon as it is
        # offered never has one.
        self._starts: dict[Ticket, trio.Event] = {}
        self._idle = trio.Event()
        self._idle.set()
        # Runs on behalf of others, by depth. They need no turn: the run that waits for one has it, and uses no CPU
        # meanwhile. Each depth has places of its own, so that none waits for one that waits for it.
        self._nested = [trio.CapacityLimiter(places) for places in pool.settings.nested_places]

    @property
    def layers(self) -> tuple[LayerStatus, ...]:
        """What confines the workers, as the last one that was made found it."""
        required = required_layers(self._config)
        return tuple(LayerStatus(r.name, r.state, r.detail, r.name in required) for r in self._pool.layers)

    def limits_for(self, asked: dict[str, float], tenant: Tenant) -> BoundLimits:
        """The limits of a run of this tenant that asks for these."""
        return bind_limits(asked, tenant, self._config.limits.defaults, self._config.limits.max)

    async def execute(self, request: RunRequest, inside: HostContext | None = None) -> RunResult:
        """Admit, queue, run. A script's failure is a result; a refusal before the start is a Problem.

        `inside` is the run on whose behalf this one is made: it shares that run's turn, deadline and budgets.
        Raises Problem: queue_full, queue_timeout (the tenant's), unavailable (draining, or no worker can be made),
        bad_request (an argument that is not text). Cancelling kills the run's worker and reaps it first.
        """
        if inside is not None:
            return await self._execute_nested(request, inside)
        if self.draining:
            raise Problem(Code.UNAVAILABLE, "the engine is shutting down", retry_after_s=1)
        await trio.lowlevel.checkpoint_if_cancelled()
        ticket = await self._admit(request.tenant)
        assert ticket.started_at is not None
        queue_s = ticket.started_at - ticket.offered_at
        self.metrics.queue_seconds.observe(queue_s)
        cpu_s = 0.0
        try:
            result = await self._run(request, queue_s)
            cpu_s = result.usage.cpu_s + result.usage.nested_cpu_s
            return result
        finally:
            self._scheduler.finish(ticket, cpu_s)
            self._start_waiting()

    async def _execute_nested(self, request: RunRequest, inside: HostContext) -> RunResult:
        """Run on behalf of another run, within what that has left. Its deadline cancels this too."""
        depth = len(request.callers)
        assert 1 <= depth <= MAX_DEPTH
        started = trio.current_time()
        async with self._nested[depth - 1]:
            request = replace(request, limits=within(request.limits, inside.left()))
            result = await self._run(request, trio.current_time() - started, nested=True)
        inside.charge(result.usage)
        return result

    async def _run(self, request: RunRequest, queue_s: float, *, nested: bool = False) -> RunResult:
        """Run on a worker of the tenant's."""
        try:
            worker = await self._pool.lease(request.tenant.id, request.limits["cpu_s"], nested=nested)
        except NoWorker as error:
            log.error("no worker for a run", reason=str(error))
            raise Problem(Code.UNAVAILABLE, "no worker can be made at the moment", retry_after_s=1) from None
        clean = False
        try:
            result = await supervisor.execute(request, worker, self._meter, self._bridge, self.metrics, queue_s)
            clean = result.outcome.worker_survives
            return result
        finally:
            self._pool.give_back(worker, clean=clean)

    async def _admit(self, tenant: Tenant) -> Ticket:
        """A place in the tenant's queue, then a start; or a typed refusal at once."""
        offered = self._scheduler.offer(tenant.id, trio.current_time(), queue_length=QUEUE_LENGTH, weight=tenant.weight)
        if isinstance(offered, Refused):
            self.metrics.ended[Outcome.REJECTED].inc()
            raise Problem(
                Code.QUEUE_FULL,
                f"{offered.length} runs of this tenant wait already; the limit is {offered.bound} (quota.queue_length)",
                limit=LimitUse("queue_length", offered.bound, offered.length, "count", "engine"),
                retry_after_s=1,
            )
        self._idle = trio.Event() if self._idle.is_set() else self._idle
        self._start_waiting()
        if offered.started_at is not None:  # at once, as most are: no event, no scope, no trip through the scheduler
            return offered
        started = self._starts[offered] = trio.Event()
        bound = self._config.limits.queue_timeout_s
        try:
            with trio.move_on_after(bound):
                await started.wait()
        finally:
            if not started.is_set():
                del self._starts[offered]
                self._scheduler.withdraw(offered)
                self._note_idle()
        if started.is_set():
            return offered
        self.metrics.ended[Outcome.REJECTED].inc()
        raise Problem(
            Code.QUEUE_TIMEOUT,
            f"no worker became free within {bound:g} s (limits.queue_timeout_s)",
            limit=LimitUse("queue_timeout_s", bound, bound, "s", "engine"),
            retry_after_s=1,
        )

    def _start_waiting(self) -> None:
        while (ticket := self._scheduler.next_start(trio.current_time())) is not None:
            if (waiting := self._starts.pop(ticket, None)) is not None:
                waiting.set()
        self._note_idle()

    def _note_idle(self) -> None:
        if self._scheduler.running == 0 and not self._starts:
            self._idle.set()

    async def drain(self) -> None:
        """Refuse new runs and wait until those under way have ended. The caller bounds the wait."""
        self.draining = True
        await self._idle.wait()

    def health(self) -> dict[str, Any]:
        """What `GET /health` shows of the engine: worker counts, queue, layers, and trouble if there is any."""
        return {
            "workers": self._pool.counts(),
            "queued": self._scheduler.queued,
            "trouble": self._pool.trouble,
            "layers": [
                {"name": r.name, "state": r.state, "detail": r.detail, "required": r.required} for r in self.layers
            ],
        }

    def render_metrics(self) -> bytes:
        """Prometheus text."""
        for state, count in self._pool.counts().items():
            self.metrics.workers.labels(state).set(count)
        for layer in self.layers:
            self.metrics.layer.labels(layer.name).set(layer.state == "active")
        self.metrics.queued.set(self._scheduler.queued)
        return self.metrics.render()

    async def watch(self) -> None:
        """The engine's background work. Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._meter.enforce_cpu)
            nursery.start_soon(self._meter.measure_memory)


def required_layers(config: Config) -> frozenset[str]:
    """The layers without which the engine refuses to start."""
    required = config.sandbox.require
    return frozenset(REQUIRED if required is None else required)


def pool_settings(config: Config) -> PoolSettings:
    """How the configuration sizes the pool. Workers are bounded by the ceilings, as they outlive single runs."""
    ceilings = {name: config.limits.max.get(name, spec.ceiling) for name, spec in SPECS.items()}
    return PoolSettings(
        workers=config.sandbox.workers or len(os.sched_getaffinity(0)),
        max_depth=MAX_DEPTH,
        reserve=config.sandbox.reserve,
        isolation=config.sandbox.isolation,
        max_runs_per_worker=config.sandbox.max_runs_per_worker,
        cpu_s=ceilings["cpu_s"],
        memory_bytes=int(ceilings["memory_bytes"]),
        layers_off=config.sandbox.disable,
    )


@asynccontextmanager
async def open_engine(config: Config, host_functions: Iterable[HostFunction] = ()) -> AsyncIterator[Engine]:
    """An engine with confined workers, ready to execute. Raises SandboxUnavailable.

    `host_functions` are the host calls that scripts may be granted; those of the knowledge store are in
    `engine.bridge.knowledge`.
    """
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
    except BaseExceptionGroup as group:
        # Our nurseries wrap what the block raised; whoever opened us wants it as it was.
        if (leaf := _only_leaf(group)) is None:
            raise
        raise leaf from leaf.__cause__


def _require(layers: tuple[LayerStatus, ...]) -> None:
    missing = [layer for layer in layers if layer.required and layer.state != "active"]
    if missing:
        reasons = "; ".join(f"{layer.name} is {layer.state} ({layer.detail})" for layer in missing)
        raise SandboxUnavailable(
            f"a required layer of the sandbox is missing: {reasons} (see [sandbox] require)", layers
        )


def _only_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup):
        if len(inner.exceptions) != 1:
            return None
        inner = inner.exceptions[0]
    return inner

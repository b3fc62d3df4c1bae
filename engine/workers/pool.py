"""The workers: a pristine reserve, leases by tenant, recycling, replacement."""

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import structlog
import trio

from engine.workers.worker import Worker, WorkerLost
from engine.workers.zygote import Zygote, ZygoteLost, open_zygote
from sandbox.wire.limits import MIB
from sandbox.wire.messages import LayerReport

log = structlog.get_logger("engine.pool")

# Delay before the reserve is refilled after a lease. A fork keeps two cores busy for longer than most runs last, so the
# run goes first; no lease waits while the reserve holds another worker.
REFILL_AFTER_S = 0.002

# Delay after a failed fork; doubles from the first figure to the second.
_BACKOFF_S = (0.05, 5.0)


WorkerState = Literal["pristine", "idle", "leased", "closing"]


class NoWorker(Exception):
    """No worker can be made now. The text gives the reason, for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """`workers` may be leased at once; `reserve` more wait, pristine; `suspended` more may hold suspended runs.

    `max_depth` is how deep runs may be nested: a run that waits for another keeps its worker. `cpu_s` and
    `memory_bytes` are the engine's ceilings for one run.
    """

    workers: int
    reserve: int = 2
    max_depth: int = 0
    suspended: int = 0
    isolation: Literal["tenant", "execution"] = "tenant"
    max_runs_per_worker: int = 10_000
    cpu_s: float = 60.0
    memory_bytes: int = 512 * MIB
    layers_off: tuple[str, ...] = ()
    # Workers of one zygote share its address space layout and hash seed, so it is replaced after this many forks.
    # Starting a zygote takes about 0.1 s, while runs continue: negligible at this interval.
    forks_per_zygote: int = 1_000

    @property
    def lifetime_cpu_s(self) -> float:
        """RLIMIT_CPU of a worker: room for several runs, one of which may use all that can be granted."""
        return 2 * self.cpu_s

    @property
    def nested_places(self) -> tuple[int, ...]:
        """How many nested runs may be under way, by depth: few are needed, and half as many at each depth."""
        return tuple(max(1, self.workers >> depth) for depth in range(self.max_depth))

    @property
    def at_most(self) -> int:
        """The most workers at once, not counting those that are ending."""
        return self.workers + self.suspended + self.reserve + sum(self.nested_places)

    @property
    def fleet_processes(self) -> int:
        """The most processes of one zygote, with the zygote and its launcher.

        Four times the workers: those that are ending count until they are reaped, and a burst of them (every run killed
        at once, and its successor as well) must not make a fork fail.
        """
        return 4 * self.at_most + 2

    @property
    def fleet_memory_bytes(self) -> int:
        """The most memory of one zygote's workers: each at its ceiling, with what the interpreter needs besides."""
        return self.at_most * (self.memory_bytes + 64 * MIB) + 256 * MIB


class Pool:
    """The workers of one engine.

    Invariant: a worker that is ready and not reaped is in exactly one of _pristine, _idle, _leased, _closing.
    """

    def __init__(self, settings: PoolSettings, nursery: trio.Nursery) -> None:
        self.settings = settings
        self._nursery = nursery
        self._zygote: Zygote | None = None
        self._renewing = trio.Lock()
        self._pristine: list[Worker] = []
        self._idle: OrderedDict[int, Worker] = OrderedDict()  # by serial, longest idle first
        self._leased: dict[int, Worker] = {}
        self._closing: dict[int, Worker] = {}
        self._refill = trio.Event()
        # Bound on leased plus idle workers: running slots, plus places for suspended runs (an unused place keeps
        # another tenant's worker warm: a fork costs more than most runs), plus nested runs once there has been one.
        self._places = settings.workers + settings.suspended
        self.layers: tuple[LayerReport, ...] = ()
        self.spawned = 0
        self._closed = False
        # Why the last attempt to make a worker failed; None after one that worked.
        self.trouble: str | None = None

    def by_state(self) -> dict[WorkerState, list[Worker]]:
        """Every worker that is ready and not reaped, by state; idle ones longest idle first."""
        return {
            "pristine": [*self._pristine],
            "idle": [*self._idle.values()],
            "leased": [*self._leased.values()],
            "closing": [*self._closing.values()],
        }

    def counts(self) -> dict[str, int]:
        """The number of workers in each state."""
        return {state: len(workers) for state, workers in self.by_state().items()}

    def live(self) -> list[Worker]:
        """Every worker, for metering."""
        return list(chain.from_iterable(self.by_state().values()))

    async def lease(self, tenant: str, cpu_s: float, *, nested: bool = False) -> Worker:
        """A worker for one run of this tenant that may use `cpu_s`: an idle one of the tenant, else a pristine one.

        `nested`: another leased run waits for this one, which raises the bound on idle workers.
        The caller must end the lease with `give_back`. Raises NoWorker.
        """
        worker = self._take_idle(tenant, cpu_s) or self._take_pristine() or await self._spawn_for_lease()
        if nested:
            self._places = self.settings.workers + self.settings.suspended + self.settings.nested_places[0]
        worker.tenant = tenant
        self._leased[worker.serial] = worker
        return worker

    def give_back(self, worker: Worker, *, clean: bool) -> None:
        """End a lease. Only a worker that ended its run cleanly is used again, by the same tenant."""
        del self._leased[worker.serial]
        recycle = (
            clean
            and worker.alive
            and worker.zygote is self._zygote
            and worker.resident_bytes <= worker.memory_bound
            and self.settings.isolation == "tenant"
            and worker.runs < self.settings.max_runs_per_worker
        )
        if recycle:
            self._idle[worker.serial] = worker
        else:
            self._retire(worker)
        self._trim()

    def _take_idle(self, tenant: str, cpu_s: float) -> Worker | None:
        for worker in reversed(self._idle.values()):  # the most recently used: its caches are warm
            if worker.tenant != tenant:
                continue
            if not worker.alive or worker.cpu_s() + cpu_s > self.settings.lifetime_cpu_s:
                self._retire(self._idle.pop(worker.serial))
                return self._take_idle(tenant, cpu_s)
            return self._idle.pop(worker.serial)
        return None

    def _take_pristine(self) -> Worker | None:
        while self._pristine:
            worker = self._pristine.pop()
            self._refill.set()
            if worker.alive:
                return worker
            self._retire(worker)
        return None

    def _trim(self) -> None:
        """Retire idle workers, longest idle first, until leased and idle ones are within `_places`."""
        while self._idle and len(self._idle) + len(self._leased) > self._places:
            worker = self._idle.popitem(last=False)[1]
            worker.settle()
            self._retire(worker)

    async def _spawn_for_lease(self) -> Worker:
        try:
            return await self._spawn()
        except (ZygoteLost, WorkerLost) as error:
            raise NoWorker(str(error)) from None

    async def _spawn(self) -> Worker:
        try:
            zygote = await self._current_zygote()
            child = await zygote.fork(
                cpu_s=self.settings.lifetime_cpu_s,
                memory_bytes=self.settings.memory_bytes,
                layers_off=self.settings.layers_off,
            )
            worker = Worker(child, zygote)
            try:
                await worker.ready()
            except BaseException:
                await worker.close()
                raise
        except (ZygoteLost, WorkerLost) as error:
            self.trouble = str(error)
            raise
        if self._closed:
            await worker.close()
            raise WorkerLost("the engine is closing")
        self.trouble = None
        self.spawned += 1
        self.layers = worker.layers
        return worker

    async def _current_zygote(self) -> Zygote:
        """The zygote, or a new one if it has ended or forked enough. The old one ends with its last leased worker."""
        async with self._renewing:
            zygote = self._zygote
            if zygote is None or zygote.lost.is_set() or zygote.forks >= self.settings.forks_per_zygote:
                self._zygote = await self._nursery.start(self._host_zygote)
                if zygote is not None:
                    zygote.retire()
                for worker in [w for w in self._pristine if w.zygote is zygote]:
                    self._pristine.remove(worker)
                    self._retire(worker)
                for worker in [w for w in self._idle.values() if w.zygote is zygote]:
                    del self._idle[worker.serial]
                    worker.settle()
                    self._retire(worker)
                self._refill.set()  # a lease, too, may have replaced the zygote
            assert self._zygote is not None
            return self._zygote

    async def _host_zygote(self, task_status: trio.TaskStatus[Zygote]) -> None:
        async with open_zygote(
            memory_bytes=self.settings.fleet_memory_bytes,
            processes=self.settings.fleet_processes,
            layers_off=self.settings.layers_off,
        ) as zygote:
            task_status.started(zygote)
            await zygote.ended()
            if zygote.lost.is_set() and not self._closed:
                log.error("the zygote ended; its workers ended with it")

    def inspect(self) -> list[tuple[Worker, str]]:
        """Measure and charge the workers that have no run, and retire those that compute or grow without one.

        Returns the retired workers, each with what it did.
        """
        caught = []
        for worker in [*self._pristine, *self._idle.values()]:
            worker.settle()
            if (reason := worker.misdeed()) is not None:
                caught.append((worker, reason))
                if self._idle.pop(worker.serial, None) is None:
                    self._pristine.remove(worker)
                    self._refill.set()
                self._retire(worker)
        return caught

    def _retire(self, worker: Worker) -> None:
        self._closing[worker.serial] = worker
        self._nursery.start_soon(self._close, worker)

    async def _close(self, worker: Worker) -> None:
        await worker.close()
        self._closing.pop(worker.serial, None)

    async def keep_reserve(self) -> None:
        """Keep the pristine reserve full, so that leases do not wait for a fork. Runs until cancelled."""
        pause = _BACKOFF_S[0]
        while True:
            self._refill = trio.Event()  # before the forks: a lease during them must start the next pass
            if self._pristine:
                await trio.sleep(REFILL_AFTER_S)
            try:
                while len(self._pristine) < self.settings.reserve and not self._closed:
                    self._pristine.append(await self._spawn())
                pause = _BACKOFF_S[0]
            except (ZygoteLost, WorkerLost) as error:
                if self._closed:
                    return
                log.error("cannot make a worker", reason=str(error), next_try_s=pause)
                await trio.sleep(pause)
                pause = min(2 * pause, _BACKOFF_S[1])
                self._refill.set()
            await self._refill.wait()

    async def close(self) -> None:
        """End every worker and wait until it is reaped. Called at the end of the engine, when no lease is left."""
        self._closed = True
        for worker in [*self._pristine, *self._idle.values(), *self._leased.values()]:
            self._retire(worker)
        self._pristine.clear()
        self._idle.clear()
        self._leased.clear()
        with trio.CancelScope(shield=True):  # safe to shield: SIGKILL cannot be refused
            for worker in list(self._closing.values()):
                await worker.closed.wait()


@asynccontextmanager
async def open_pool(settings: PoolSettings) -> AsyncIterator[Pool]:
    """A pool that holds at least one confined worker. Raises NoWorker when not even one can be made."""
    failed: NoWorker | None = None
    async with trio.open_nursery() as nursery:
        pool = Pool(settings, nursery)
        try:
            pool._pristine.append(await pool._spawn_for_lease())
        except NoWorker as error:
            failed = error
        else:
            nursery.start_soon(pool.keep_reserve)
            try:
                yield pool
            finally:
                await pool.close()
        nursery.cancel_scope.cancel()
    if failed is not None:  # raised outside of the nursery, which would wrap it in a group
        raise failed

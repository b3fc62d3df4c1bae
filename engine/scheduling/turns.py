"""Turns at computing: suspends and resumes workers, and holds CPU time to limits and quotas.

The scheduler decides which runs compute. This module carries that out, and reads the CPU clocks of workers for the
scheduler, for the limits of runs and for the quotas of tenants. A turn belongs to one admitted run and to every run
nested in it: while the turn is suspended, none of their workers computes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from engine.quota import BoundQuotas, Exceeded, Ledger
from engine.scheduling.scheduler import Scheduler, Ticket
from engine.tenant import Tenant
from engine.workers.verdict import Mark
from engine.workers.worker import Worker
from sandbox.wire.outcome import Outcome

# How often the clocks of running workers are read (1 us each): while a run waits for a slot, and otherwise. A run is
# stopped at most this long after its CPU budget is used up, plus the time of the kill.
BUSY_POLL_S = 0.005
POLL_S = 0.02
# Flat charge for the supervisor's work on a host call: an answer from memory takes 0.1 ms, a search 0.5.
HOST_CALL_S = 0.0003
# A turn is charged as CPU time at least this share of the time in which it holds a slot.
HELD_SHARE = 0.1


@dataclass(slots=True)
class _Budget:
    """CPU seconds: what the run on a worker was granted, and what remains of that after its nested runs."""

    granted_s: float
    limit_s: float


class Turn:
    """One admitted run, and the workers that compute for it."""

    def __init__(self, tenant: Tenant, quotas: BoundQuotas, ticket: Ticket, ledger: Ledger | None) -> None:
        self.tenant = tenant
        self.ticket = ticket
        self._quotas = quotas
        self._ledger = ledger
        self._workers: dict[Worker, _Budget] = {}  # those with a run of this turn under way
        self._cpu_before_s = 0.0  # of runs that have ended, and of the supervisor for them (`worked`)
        self._calls = 0
        self._held_s = 0.0  # how long it held slots, before its present one
        self._held_since = trio.current_time()
        self._counted_s = 0.0  # already charged to the tenant's quota
        self._woken = False  # whether a worker has joined since the turn was suspended

    @contextmanager
    def run_on(self, worker: Worker, cpu_s: float) -> Iterator[None]:
        """Charge what the worker does inside the block to this turn; its run may use `cpu_s`.

        The worker computes at once, or, if the turn is suspended, when it is resumed.
        """
        worker.begin()
        self._join(worker, cpu_s)
        try:
            yield
        finally:
            worker.end()
            self._leave(worker)

    def _join(self, worker: Worker, cpu_s: float) -> None:
        self._workers[worker] = _Budget(cpu_s, cpu_s)
        worker.payer = self
        self._cpu_before_s += worker.owed_s
        if self.ticket.suspended:
            worker.suspend()
            self._woken = True

    def _leave(self, worker: Worker) -> None:
        del self._workers[worker]
        self._cpu_before_s += worker.run_cpu_s() + worker.judging_cpu_s
        if self.ticket.suspended:
            worker.resume()  # it was suspended after its answer: the next lease must find it able to run

    def cpu_left(self, worker: Worker) -> float:
        """CPU seconds that the run on this worker may still use."""
        return max(0.0, self._workers[worker].limit_s - worker.run_cpu_s())

    def spend(self, worker: Worker, cpu_s: float) -> None:
        """A nested run used CPU time: the budget of the run on this worker shrinks at once."""
        budget = self._workers[worker]
        budget.limit_s -= cpu_s
        _kill_if_over(worker, budget)

    def worked(self, cpu_s: float) -> None:
        """Add CPU time that the supervisor used for a run of this turn, beyond the flat charge for each host call."""
        self._cpu_before_s += cpu_s

    def enforce(self) -> None:
        """Kill workers whose runs are over their CPU budget or hold more memory than they may."""
        for worker, budget in self._workers.items():
            _kill_if_over(worker, budget)
            worker.hold_memory()

    def cpu_s(self) -> float:
        """CPU seconds used in this turn by workers, and by the supervisor beyond its flat charges."""
        used = self._cpu_before_s
        for worker in self._workers:
            used += worker.run_cpu_s()
        return used

    def computed_s(self) -> float:
        """CPU seconds used in this turn, with the flat charge for its host calls."""
        return self.cpu_s() + self._calls * HOST_CALL_S

    def cost_s(self, now: float) -> float:
        """What the scheduler charges the tenant: `computed_s`, or a share of the time holding a slot if that is more.

        A run that makes one host call after the other computes little but still occupies its slot: without this charge
        its virtual time would stand still, and tenants that have used less would wait long.
        """
        held_s = self._held_s + (0.0 if self.ticket.suspended else now - self._held_since)
        return max(self.computed_s(), held_s * HELD_SHARE)

    def host_call(self) -> Exceeded | None:
        """Count a host call of this turn. Ends the turn if the tenant may make no more, and returns what it exceeds."""
        self._calls += 1
        if self._ledger is None:
            return None
        over = self._ledger.host_call(self.tenant.id, self._quotas, trio.current_time())
        if over is not None:
            self.end(Mark(Outcome.CALL_LIMIT, quota=over))
        return over

    def charge(self, now: float) -> None:
        """Charge the tenant's quota for what was used since the last call, and end the turn if the quota is used up."""
        if self._ledger is None:
            return
        used = self.computed_s()
        over = self._ledger.cpu(self.tenant.id, self._quotas, used - self._counted_s, now)
        self._counted_s = used
        if over is not None:
            self.end(Mark(Outcome.CPU_LIMIT, quota=over))

    def pay(self, cpu_s: float) -> None:
        """Charge the tenant for what a worker used after its run in this turn."""
        if self._ledger is not None:
            self._ledger.cpu(self.tenant.id, self._quotas, cpu_s, trio.current_time())

    def end(self, mark: Mark) -> None:
        """Kill every worker of this turn, for this reason."""
        for worker in self._workers:
            worker.kill(mark)

    @property
    def computing(self) -> bool:
        """Whether a worker of this turn has something to compute before the host answers.

        True without workers: the run is about to get one, or to end.
        """
        return self._woken or not self._workers or not all(worker.awaiting for worker in self._workers)

    def suspend(self, now: float) -> None:
        """Stop all its workers: it has lost its slot."""
        self._held_s += now - self._held_since
        self._woken = False
        for worker in self._workers:
            worker.suspend()

    def resume(self, now: float) -> None:
        """Let its workers compute: it has a slot again."""
        self._held_since = now
        self._woken = False
        for worker in self._workers:
            worker.resume()


def _kill_if_over(worker: Worker, budget: _Budget) -> None:
    used = worker.run_cpu_s()
    if used > budget.limit_s:
        # Counts what nested runs used: the limit that the script knows is the one it began with.
        worker.kill(Mark(Outcome.CPU_LIMIT, "cpu_s", round(used + budget.granted_s - budget.limit_s, 3)))


class Turns:
    """Every turn that has begun and not ended.

    `on_start(ticket)` is called when a queued run gets a slot, `on_tick(now)` after each review of `watch`: at least
    every `POLL_S` while anything runs.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        ledger: Ledger | None,
        on_start: Callable[[Ticket], None],
        on_tick: Callable[[float], None],
    ) -> None:
        self._scheduler = scheduler
        self._ledger = ledger
        self._on_start = on_start
        self._on_tick = on_tick
        # Invariant: exactly the tickets that have begun and not ended.
        self._turns: dict[Ticket, Turn] = {}
        self._work = trio.Event()
        # The present pause of `watch`, or the last one, whose deadline has no effect any more.
        self._pause = trio.CancelScope()

    def begin(self, tenant: Tenant, quotas: BoundQuotas, ticket: Ticket) -> Turn:
        """The turn of a run that starts now."""
        turn = self._turns[ticket] = Turn(tenant, quotas, ticket, self._ledger)
        self._work.set()
        return turn

    def end(self, turn: Turn) -> None:
        """Charge for a run that has ended, whatever its outcome, and give its slot to a waiting one."""
        now = trio.current_time()
        del self._turns[turn.ticket]
        turn.charge(now)
        self._scheduler.finish(turn.ticket, turn.cost_s(now))
        self.start_waiting()

    def start_waiting(self) -> None:
        """Give every free slot to a waiting run."""
        self._fill(trio.current_time())

    def make_room(self) -> None:
        """A tenant has queued its first run: preempt for it if no slot is free."""
        now = trio.current_time()
        self._fill(now)
        if self._scheduler.waiting:
            self.review(now)
            # The pause may have begun when no run waited.
            self._pause.deadline = min(self._pause.deadline, now + self._pause_s())

    def _pause_s(self) -> float:
        return BUSY_POLL_S if self._scheduler.waiting else POLL_S

    def _fill(self, now: float) -> None:
        while (ticket := self._scheduler.next_start(now)) is not None:
            turn = self._turns.get(ticket)
            if turn is None:
                self._on_start(ticket)
            else:
                turn.resume(now)

    def review(self, now: float) -> None:
        """Report CPU use and waits to the scheduler, and carry out its decisions."""
        for ticket, turn in self._turns.items():
            turn.charge(now)
            if not ticket.suspended:
                self._scheduler.use(ticket, turn.computed_s(), turn.cost_s(now))
                if turn.computing:
                    ticket.waiting_since = None
                elif ticket.waiting_since is None:
                    ticket.waiting_since = now
            elif ticket.waiting_since is not None and turn.computing:
                self._scheduler.wake(ticket, now)
        # Bounded: each pass preempts one run for one that has used less, so at most every slot changes hands.
        for _ in range(self._scheduler.slots):
            victim = self._scheduler.preempt(now)
            if victim is None:
                break
            self._turns[victim].suspend(now)
            self._fill(now)
        self._fill(now)

    async def watch(self) -> None:
        """Enforce budgets and review while anything runs. Runs until cancelled."""
        while True:
            if not self._turns:
                self._work = trio.Event()
                await self._work.wait()
            with trio.CancelScope(deadline=trio.current_time() + self._pause_s()) as self._pause:
                await trio.sleep_forever()
            for turn in self._turns.values():
                turn.enforce()
            now = trio.current_time()
            self.review(now)
            self._on_tick(now)

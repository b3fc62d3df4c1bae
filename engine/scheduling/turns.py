"""Turns at computing: which runs compute now, who is put aside for whom, and what the CPU time of all that is held to.

The scheduler decides; here workers are halted and let go on, and their CPU clocks read, for the scheduler, for the
limits of runs and for the quotas of tenants. A turn belongs to one admitted run and to every run that is made on its
behalf: while it is put aside, none of their workers computes.
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

# How often running workers' clocks are read (1 us each): while a run waits for a slot, and else. A run is stopped at
# most this long after its CPU budget, plus the time of the kill.
BUSY_POLL_S = 0.005
POLL_S = 0.02
# About what a host call costs the supervisor: 0.1 ms where it is answered from memory, 0.5 for a search.
HOST_CALL_S = 0.0003
# How much of the time with a slot counts as used, at least.
HELD_COUNTS = 0.1


@dataclass(slots=True)
class _Budget:
    """CPU seconds: what the run on a worker was granted, and what is left of that after what others used for it."""

    granted_s: float
    limit_s: float


class Turn:
    """One admitted run, and the workers that compute for it."""

    def __init__(self, tenant: Tenant, quotas: BoundQuotas, ticket: Ticket, ledger: Ledger | None) -> None:
        self.tenant = tenant
        self.ticket = ticket
        self._quotas = quotas
        self._ledger = ledger
        self._workers: dict[Worker, _Budget] = {}  # with a run of this turn under way
        self._cpu_before_s = 0.0  # of workers that have left, and of the supervisor for them (`worked`)
        self._calls = 0
        self._held_s = 0.0  # how long it had a slot, before it got the one that it has
        self._held_since = trio.current_time()
        self._counted_s = 0.0  # what the tenant's quota was charged already
        self._woken = False

    @contextmanager
    def run_on(self, worker: Worker, cpu_s: float) -> Iterator[None]:
        """A run on this worker, which may use `cpu_s`: what the worker does in the block counts as this turn's.

        It computes at once, or when the turn goes on.
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
            worker.resume()  # it answered, and was halted after that: whoever gets it next must find it able to work

    def cpu_left(self, worker: Worker) -> float:
        """CPU seconds that the run on this worker may still use."""
        return max(0.0, self._workers[worker].limit_s - worker.run_cpu_s())

    def spend(self, worker: Worker, cpu_s: float) -> None:
        """Another run used CPU time on behalf of the one on this worker: its budget shrinks, at once."""
        budget = self._workers[worker]
        budget.limit_s -= cpu_s
        _judge(worker, budget)

    def worked(self, cpu_s: float) -> None:
        """The supervisor used CPU time for a run of this turn, beyond the flat figure for each host call."""
        self._cpu_before_s += cpu_s

    def enforce(self) -> None:
        """End runs that have used up their budgets, or hold more memory than they may."""
        for worker, budget in self._workers.items():
            _judge(worker, budget)
            worker.hold_memory()

    def cpu_s(self) -> float:
        """CPU seconds that were used in this turn."""
        used = self._cpu_before_s
        for worker in self._workers:
            used += worker.run_cpu_s()
        return used

    def computed_s(self) -> float:
        """CPU seconds that were used for it: in this turn, and by the supervisor for its host calls."""
        return self.cpu_s() + self._calls * HOST_CALL_S

    def cost_s(self, now: float) -> float:
        """What its tenant is charged in the fair pick: `computed_s`, or a part of the time for which it held a slot if
        that is more.

        A run that asks the host for one thing after the other computes little, but its slot is nobody else's meanwhile:
        who has used less would wait for long if its account stood still.
        """
        held_s = self._held_s + (0.0 if self.ticket.suspended else now - self._held_since)
        return max(self.computed_s(), held_s * HELD_COUNTS)

    def host_call(self) -> Exceeded | None:
        """A run of this turn makes a host call. What it exceeds, when the tenant may make no more: then it ends."""
        self._calls += 1
        if self._ledger is None:
            return None
        over = self._ledger.host_call(self.tenant.id, self._quotas, trio.current_time())
        if over is not None:
            self.end(Mark(Outcome.CALL_LIMIT, quota=over))
        return over

    def charge(self, now: float) -> None:
        """Charge the tenant's quota for what was used since the last time, and end the turn if it is used up."""
        if self._ledger is None:
            return
        used = self.computed_s()
        over = self._ledger.cpu(self.tenant.id, self._quotas, used - self._counted_s, now)
        self._counted_s = used
        if over is not None:
            self.end(Mark(Outcome.CPU_LIMIT, quota=over))

    def pay(self, cpu_s: float) -> None:
        """Charge the tenant for what a worker used after its run of this turn."""
        if self._ledger is not None:
            self._ledger.cpu(self.tenant.id, self._quotas, cpu_s, trio.current_time())

    def end(self, mark: Mark) -> None:
        """Kill every worker of this turn, for this reason."""
        for worker in self._workers:
            worker.kill(mark)

    @property
    def computing(self) -> bool:
        """Whether anything is left to compute before the host answers."""
        return self._woken or not self._workers or not all(worker.awaiting for worker in self._workers)

    def suspend(self, now: float) -> None:
        """It was put aside: let none of its workers compute."""
        self._held_s += now - self._held_since
        self._woken = False
        for worker in self._workers:
            worker.suspend()

    def resume(self, now: float) -> None:
        """It has a slot again."""
        self._held_since = now
        self._woken = False
        for worker in self._workers:
            worker.resume()


def _judge(worker: Worker, budget: _Budget) -> None:
    used = worker.run_cpu_s()
    if used > budget.limit_s:
        # What others used counts as used: the limit that the script knows is the one it began with.
        worker.kill(Mark(Outcome.CPU_LIMIT, "cpu_s", round(used + budget.granted_s - budget.limit_s, 3)))


class Turns:
    """Every turn that has begun and not ended. `started` is called with a run that was given its start, `looked` with
    the time whenever the clocks were looked at: at least every `POLL_S` while anything runs.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        ledger: Ledger | None,
        started: Callable[[Ticket], None],
        looked: Callable[[float], None],
    ) -> None:
        self._scheduler = scheduler
        self._ledger = ledger
        self._started = started
        self._looked = looked
        # Invariant: exactly the tickets that have begun and not ended.
        self._turns: dict[Ticket, Turn] = {}
        self._work = trio.Event()
        # The pause of `watch` that is under way, or the last one.
        self._pause = trio.CancelScope()

    def begin(self, tenant: Tenant, quotas: BoundQuotas, ticket: Ticket) -> Turn:
        """A run has its start."""
        turn = self._turns[ticket] = Turn(tenant, quotas, ticket, self._ledger)
        self._work.set()
        return turn

    def end(self, turn: Turn) -> None:
        """The run has ended, however that was: charge for it, and start who waits."""
        now = trio.current_time()
        del self._turns[turn.ticket]
        turn.charge(now)
        self._scheduler.finish(turn.ticket, turn.cost_s(now))
        self.start_waiting()

    def start_waiting(self) -> None:
        """Give every free slot to whose turn it is."""
        self._fill(trio.current_time())

    def make_room(self) -> None:
        """A tenant that had nothing waiting has now: where no slot is free, look whether one should be."""
        now = trio.current_time()
        self._fill(now)
        if self._scheduler.waiting:
            self.review(now)
            # The pause may have begun when nobody waited.
            self._pause.deadline = min(self._pause.deadline, now + self._pause_s())

    def _pause_s(self) -> float:
        return BUSY_POLL_S if self._scheduler.waiting else POLL_S

    def _fill(self, now: float) -> None:
        while (ticket := self._scheduler.next_start(now)) is not None:
            turn = self._turns.get(ticket)
            if turn is None:
                self._started(ticket)
            else:
                turn.resume(now)

    def review(self, now: float) -> None:
        """Tell the scheduler what has been used and who waits, and carry out what it says."""
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
        # Bounded: each pass puts one run aside for one that has used less, and at most every slot changes hands.
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
            self._looked(now)

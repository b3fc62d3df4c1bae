"""The scheduler as it reads without any index: every question is answered by looking at every tenant.

What `engine.scheduling.scheduler` decides in O(log n) must be what this decides: `test_scheduler_model.py` drives both.
"""

from collections import deque
from dataclasses import dataclass, field

from engine.scheduling.scheduler import ASSUMED_CPU_S, FAR_AHEAD_S, PATIENCE_S, SLICE_S, NotAdmitted, Ticket


@dataclass(slots=True)
class _Flow:
    weight: float = 1.0
    virtual: float = 0.0
    concurrent: int | None = None
    running: int = 0
    begun: int = 0
    queue: deque[Ticket] = field(default_factory=deque)
    ready: deque[Ticket] = field(default_factory=deque)  # suspended, and able to compute

    @property
    def active(self) -> bool:
        return bool(self.queue) or self.begun > 0


class PlainScheduler:
    """Admits, queues and picks. Its caller starts what `next_start` returns and reports back with `finish`.

    `slots` runs use the CPU at once; `places` may have begun and not ended, suspended ones included. `total_queue`
    bounds all queues together.
    """

    def __init__(self, slots: int, places: int | None = None, total_queue: int | None = None) -> None:
        self.slots = slots
        self.places = max(2 * slots, places or 0)
        self.total_queue = total_queue
        # Invariant: the sums of `running` and of `begun` over all flows; running <= slots, begun <= places.
        self.running = 0
        self.begun = 0
        # Invariant: every tenant with a queued or begun ticket is here; others may be forgotten at any time.
        self._flows: dict[str, _Flow] = {}
        # Invariant: exactly the tickets that hold a slot, in the order in which they got it.
        self._on_slots: dict[Ticket, None] = {}
        self._present = 0.0

    @property
    def queued(self) -> int:
        """How many admitted runs wait for their start."""
        return sum(len(flow.queue) for flow in self._flows.values())

    @property
    def waiting(self) -> bool:
        """Whether any run waits for a slot: a queued one, or a suspended one that can compute."""
        return any(flow.queue or flow.ready for flow in self._flows.values())

    @property
    def on_slots(self) -> tuple[Ticket, ...]:
        """The runs that hold a slot."""
        return tuple(self._on_slots)

    def queued_of(self, tenant: str) -> int:
        """How many runs of one tenant wait for their start."""
        flow = self._flows.get(tenant)
        return 0 if flow is None else len(flow.queue)

    def begun_of(self, tenant: str) -> int:
        """How many runs of one tenant have begun and not ended."""
        flow = self._flows.get(tenant)
        return 0 if flow is None else flow.begun

    def offer(
        self,
        tenant: str,
        now: float,
        *,
        queue_length: int,
        weight: float = 1.0,
        concurrent: int | None = None,
        may_wait: bool = True,
    ) -> Ticket | NotAdmitted:
        """Admit one run into its tenant's queue, or refuse it at once.

        Refused when it cannot start now and `queue_length` others already wait, or it is not to wait at all
        (`may_wait`), or all queues together are as good as full: a tenant may fill as much of `total_queue` as is left
        for others, so that one that has nothing waiting still finds room. `concurrent` bounds the tenant's begun runs.
        """
        flow = self._flows.setdefault(tenant, _Flow())
        flow.concurrent = concurrent
        if self.running >= self.slots or not self._may_begin(flow):
            refused = self._refusal(flow, queue_length, may_wait)
            if refused is not None:
                self._forget_idle()
                return refused
        self._come_back(flow)
        flow.weight = weight
        ticket = Ticket(tenant, now)
        flow.queue.append(ticket)
        return ticket

    def _refusal(self, flow: _Flow, queue_length: int, may_wait: bool) -> NotAdmitted | None:
        length = len(flow.queue)
        if not may_wait:
            if flow.concurrent is not None and flow.begun >= flow.concurrent:
                return NotAdmitted("concurrent_runs", flow.begun, flow.concurrent)
            return NotAdmitted("queue_length", length, 0)
        if length >= queue_length:
            return NotAdmitted("queue_length", length, queue_length)
        if self.total_queue is not None and length >= self.total_queue - self.queued:
            return NotAdmitted("queue_length", length, self.total_queue, engine_wide=True)
        return None

    def next_start(self, now: float) -> Ticket | None:
        """The run to start or resume now, or None when no slot is free or no run can use one.

        Ties: who has waited longest. A run to resume has a `started_at`; it holds its slot again.
        """
        if self.running >= self.slots:
            return None
        flow = self._first()
        if flow is None:
            return None
        self._note_present()
        if flow.ready:
            ticket = flow.ready.popleft()
            ticket.suspended = False
            ticket.resumed_with = ticket.computed
        else:
            ticket = flow.queue.popleft()
            ticket.started_at = now
            ticket.charged = ASSUMED_CPU_S
            flow.virtual += ASSUMED_CPU_S / flow.weight
            flow.begun += 1
            self.begun += 1
        flow.running += 1
        self.running += 1
        self._on_slots[ticket] = None
        return ticket

    def use(self, ticket: Ticket, cpu_s: float, charge_s: float = 0.0) -> None:
        """A started run has used `cpu_s` seconds of CPU so far; its tenant is charged `charge_s`, if that is more."""
        ticket.computed = max(ticket.computed, cpu_s)
        charge_s = max(charge_s, cpu_s)
        if charge_s > ticket.charged:
            flow = self._flows[ticket.tenant]
            flow.virtual += (charge_s - ticket.charged) / flow.weight
            ticket.charged = charge_s

    def preempt(self, now: float) -> Ticket | None:
        """Take the slot from a run that should lose it to a waiting one, and return that run; None if there is none.

        The caller stops it, and then asks `next_start`. First who only waits for the host, longest first; then the
        tenant that has used most, if that is no less than who waits has, and its run had its slice. A run that waits
        for the host is not resumed before `wake`.
        """
        if self.running < self.slots:
            return None
        first = self._first()
        if first is None:
            return None
        idle = [t for t in self._on_slots if t.waiting_since is not None and now - t.waiting_since >= PATIENCE_S]
        if idle:
            return self._suspend(min(idle, key=lambda t: t.waiting_since or 0.0), now)
        busy = [
            (self._flows[t.tenant].virtual, -number, t)
            for number, t in enumerate(self._on_slots)
            if self._flows[t.tenant] is not first
            and (t.computed - t.resumed_with >= SLICE_S or self._is_far_ahead(t, first))
        ]
        if not busy or max(busy)[0] < first.virtual:
            return None
        return self._suspend(max(busy)[2], now)

    def _is_far_ahead(self, ticket: Ticket, of: _Flow) -> bool:
        flow = self._flows[ticket.tenant]
        assumed_s = ASSUMED_CPU_S - ticket.computed if ticket.charged == ASSUMED_CPU_S else 0.0
        return ticket.computed > 0 and flow.virtual - assumed_s / flow.weight >= of.virtual + FAR_AHEAD_S

    def _suspend(self, ticket: Ticket, now: float) -> Ticket:
        flow = self._flows[ticket.tenant]
        flow.running -= 1
        self.running -= 1
        del self._on_slots[ticket]
        ticket.suspended = True
        if ticket.waiting_since is None:
            ticket.ready_at = now
            flow.ready.append(ticket)
        return ticket

    def wake(self, ticket: Ticket, now: float) -> None:
        """A run that was suspended while it waited for the host can compute again."""
        if ticket.suspended and ticket.waiting_since is not None:
            flow = self._flows[ticket.tenant]
            self._come_back(flow)
            ticket.ready_at = now
            flow.ready.append(ticket)
        ticket.waiting_since = None

    def finish(self, ticket: Ticket, cpu_s: float) -> None:
        """A started run ended after `cpu_s` seconds of CPU: free its slot and place, and charge its tenant."""
        flow = self._flows[ticket.tenant]
        competed = self._competes(flow)
        if not ticket.suspended:
            flow.running -= 1
            self.running -= 1
            del self._on_slots[ticket]
        elif ticket.waiting_since is None:
            flow.ready.remove(ticket)
        flow.begun -= 1
        self.begun -= 1
        flow.virtual += (max(cpu_s, ticket.computed) - ticket.charged) / flow.weight
        if not competed and self._competes(flow):  # the next of its queue had waited for this one's place alone
            self._note_present(apart_from=flow)
            flow.virtual = max(flow.virtual, self._present)
        self._forget_idle()

    def withdraw(self, ticket: Ticket) -> None:
        """A queued run is no longer wanted: its caller went away or waited too long."""
        self._flows[ticket.tenant].queue.remove(ticket)
        self._forget_idle()

    def _first(self) -> _Flow | None:
        """The tenant whose turn it is, of those that could use a slot."""
        best: _Flow | None = None
        best_key = (0.0, 0.0)
        for flow in self._flows.values():
            if flow.ready:
                key = (flow.virtual, flow.ready[0].ready_at)
            elif flow.queue and self._may_begin(flow):
                key = (flow.virtual, flow.queue[0].offered_at)
            else:
                continue
            if best is None or key < best_key:
                best, best_key = flow, key
        return best

    def _may_begin(self, flow: _Flow) -> bool:
        """Whether one more run of this tenant may begin. It may hold as many places as it leaves for others."""
        if flow.concurrent is not None and flow.begun >= flow.concurrent:
            return False
        return flow.begun < self.places - self.begun

    def _competes(self, flow: _Flow) -> bool:
        """Whether it has a slot, or could use one. One that only waits for the host, or for its own runs, is away."""
        return flow.running > 0 or bool(flow.ready) or (bool(flow.queue) and self._may_begin(flow))

    def _come_back(self, flow: _Flow) -> None:
        """A tenant that was away will want a slot: what it did not use meanwhile is not saved up for it."""
        if self._competes(flow):
            return
        self._note_present()
        # Never before one that has not begun: or newcomers, one after the other, would keep it from its start.
        credit = SLICE_S if all(a.begun for a in self._flows.values() if a.active) else 0.0
        flow.virtual = max(flow.virtual, self._present - credit)

    def _note_present(self, apart_from: _Flow | None = None) -> None:
        """The present is the least virtual time of those who compete, and never goes back."""
        competing = (a.virtual for a in self._flows.values() if a is not apart_from and self._competes(a))
        self._present = max(self._present, min(competing, default=self._present))

    def _forget_idle(self) -> None:
        # An idle tenant's debt expires once the present has passed it; until then it is kept, or idling for a moment
        # would wipe it out.
        if not any(flow.active for flow in self._flows.values()):
            self._flows.clear()  # no tenant waits, so there is no fairness to keep
            self._present = 0.0
            return
        self._note_present()
        past = self._present - SLICE_S
        for name in [n for n, a in self._flows.items() if not a.active and a.virtual <= past]:
            del self._flows[name]

"""Which run is next: admission, a bounded queue per tenant, and a fair pick by CPU time used. Pure: no clock, no trio.

The pick is start-time fair queueing over CPU seconds: each tenant is a flow whose virtual time advances by
`cpu_s / weight` of what its runs use; the flow with the least virtual time goes first. A flow that was idle returns at
the present virtual time, so that idle time earns no credit (P. Goyal et al., "Start-time Fair Queuing", SIGCOMM 1996);
or one slice before it, when every other flow has a run under way: a tenant that calls rarely goes before one that never
stops.

A run that has started may lose its slot: one that computes for long, or waits for the host, is suspended as soon as a
tenant that has used less is waiting (`preempt`), and is resumed when its turn comes again. Without preemption, two
endless loops would hold two slots until their limits, however many tenants wait.

No step visits every tenant: flows are kept sorted in the orders in which they are needed (`_arrange`), so a step is
O(log n) in the number of tenants, and a run costs about as much with a thousand tenants as with one.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Literal

from engine.scheduling.indexed_heap import IndexedHeap, Key

# Charged to a run when it starts, until its CPU time is known: otherwise one tenant could start many runs at once on a
# virtual time that has not moved yet.
ASSUMED_CPU_S = 0.005
# A run keeps its slot for at least this much CPU time. Five times what a typical run needs: few are ever preempted.
SLICE_S = 0.005
# Preempt before the slice ends when the waiting tenant is behind by this much, as a tenant that calls rarely always is:
# its run is short, so the rest of a slice would dominate its latency. Just under the credit of a returning tenant, for
# rounding.
FAR_AHEAD_S = 0.9 * SLICE_S
# A run that waits for the host longer than this loses its slot to one that can compute.
PATIENCE_S = 0.005


@dataclass(eq=False, slots=True)
class Ticket:
    """One admitted run: queued, then started (perhaps suspended and resumed), then finished; or withdrawn.

    Times are in seconds of the caller's clock. `waiting_since` is when the run began to wait for the host, None while
    it computes; the caller maintains it, and `wake` clears it.
    """

    tenant: str
    offered_at: float
    started_at: float | None = None
    waiting_since: float | None = None
    suspended: bool = False
    # When it became ready to be resumed; only while suspended.
    ready_at: float = 0.0
    # CPU seconds: charged to its tenant; used so far; used by the time it last got its slot.
    charged: float = 0.0
    computed: float = 0.0
    resumed_with: float = 0.0


@dataclass(frozen=True, slots=True)
class NotAdmitted:
    """`name` is the quota, `used` and `bound` count runs; `engine_wide` if the bound is not the tenant's own."""

    name: Literal["queue_length", "concurrent_runs"]
    used: int
    bound: int
    engine_wide: bool = False


@dataclass(eq=False, slots=True)
class _Flow:
    """One tenant, in the terms of fair queueing."""

    name: str
    # Older flows have lower numbers: the last tie-break of every order.
    number: int
    weight: float = 1.0
    virtual: float = 0.0  # CPU seconds charged, divided by `weight`; `_come_back` moves it forward
    concurrent: int | None = None  # bound on `begun`
    running: int = 0  # runs on slots
    begun: int = 0  # runs that have begun and not ended: on slots, suspended, or waiting for the host
    queue: OrderedDict[Ticket, None] = field(default_factory=OrderedDict)  # an ordered set: any ticket may be withdrawn
    ready: deque[Ticket] = field(default_factory=deque)  # suspended, and able to compute
    # Its key in the scheduler's `_wanting`, None if it is in none of these orders.
    needs: int | None = None

    @property
    def active(self) -> bool:
        return bool(self.queue) or self.begun > 0

    @property
    def at_bound(self) -> bool:
        return self.concurrent is not None and self.begun >= self.concurrent


class Scheduler:
    """Admits, queues and picks. The caller starts what `next_start` returns and reports its end with `finish`.

    `slots` runs use the CPU at once; `places` bounds the runs that have begun and not ended, suspended ones included.
    There are at least twice as many places as slots: a tenant holds at most half of the places, and one that is alone
    must be able to use every slot.
    `total_queue` bounds all queues together.
    """

    def __init__(self, slots: int, places: int | None = None, total_queue: int | None = None) -> None:
        self.slots = slots
        self.places = max(2 * slots, places or 0)
        self.total_queue = total_queue
        # Invariant: the sums of `running`, `begun` and the lengths of queues over all flows; running <= slots,
        # begun <= places.
        self.running = 0
        self.begun = 0
        self.queued = 0
        # Invariant: every tenant with a queued or begun ticket is here; idle ones may be dropped at any time.
        self._flows: dict[str, _Flow] = {}
        self._numbers = 0  # how many flows there ever were
        # Invariant: exactly the tickets that hold a slot, in the order in which they got it.
        self._on_slots: dict[Ticket, None] = {}
        self._present = 0.0
        # The orders of flows. `_arrange` restores the following invariants after every change of a flow.
        # Invariant: exactly the flows with a run that is ready or queued, by how many places must be free before they
        # can use a slot: 0 to resume a run, `begun + 1` to begin another (no tenant may hold more places than it leaves
        # free), `_never` for a tenant at its bound. No order in it is empty. Within an order: by virtual time, then
        # longest wait, then age. There are few orders: flows that have begun 1, 2, ... k runs hold k(k+1)/2 of the
        # places.
        self._never = self.places + 1
        self._wanting: dict[int, IndexedHeap[_Flow]] = {}
        # Invariant: exactly the flows with a run on a slot, and exactly those with no run at all; by virtual time.
        self._computing: IndexedHeap[_Flow] = IndexedHeap()
        self._idle: IndexedHeap[_Flow] = IndexedHeap()
        # Invariant: exactly the flows with a queued run and none begun.
        self._unbegun: set[_Flow] = set()

    @property
    def waiting(self) -> bool:
        """Whether any run waits for a slot: a queued one, or a suspended one that can compute."""
        return self.queued > 0 or bool(self._wanting.get(0))

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
        at_once: bool = False,
    ) -> Ticket | NotAdmitted:
        """Admit one run into its tenant's queue, or refuse it at once.

        With `at_once`, the run starts here if no run waits and a slot is free: `next_start` would return it next.

        `NotAdmitted` if the run cannot start now and `queue_length` runs of the tenant already wait, or it may not wait
        (`may_wait`), or all queues together are nearly full: a tenant may fill as much of `total_queue` as it leaves
        free, so that one with nothing queued still finds room. `concurrent` bounds the tenant's begun runs.
        """
        flow = self._flows.get(tenant)
        if flow is None:
            self._numbers += 1
            flow = self._flows[tenant] = _Flow(tenant, self._numbers, concurrent=concurrent)
        elif flow.concurrent != concurrent:
            flow.concurrent = concurrent
            self._arrange(flow)
        if self.running >= self.slots or not self._may_begin(flow):
            refused = self._refusal(flow, queue_length, may_wait)
            if refused is not None:
                self._arrange(flow)  # it may be new
                self._forget_idle()
                return refused
        self._come_back(flow)
        flow.weight = weight
        ticket = Ticket(tenant, now)
        if at_once and self.running < self.slots and not self.waiting and self._may_begin(flow):
            self._note_present([((flow.virtual, now, flow.number), flow)])
            self._begin(flow, ticket, now)
            return ticket
        flow.queue[ticket] = None
        self.queued += 1
        self._arrange(flow)
        return ticket

    def _refusal(self, flow: _Flow, queue_length: int, may_wait: bool) -> NotAdmitted | None:
        length = len(flow.queue)
        if not may_wait:
            if flow.concurrent is not None and flow.at_bound:
                return NotAdmitted("concurrent_runs", flow.begun, flow.concurrent)
            return NotAdmitted("queue_length", length, 0)
        if length >= queue_length:
            return NotAdmitted("queue_length", length, queue_length)
        if self.total_queue is not None and length >= self.total_queue - self.queued:
            return NotAdmitted("queue_length", length, self.total_queue, engine_wide=True)
        return None

    def next_start(self, now: float) -> Ticket | None:
        """The run to start or resume now, or None when no slot is free or no run can use one.

        Ties go to the longest wait. A run to resume has a `started_at`; it holds its slot again from here on.
        """
        if self.running >= self.slots:
            return None
        heads = self._heads()
        if not heads:
            return None
        self._note_present(heads)
        flow = min(heads)[1]
        if flow.ready:
            ticket = flow.ready.popleft()
            ticket.suspended = False
            ticket.resumed_with = ticket.computed
            self._take_slot(flow, ticket)
        else:
            ticket, _ = flow.queue.popitem(last=False)
            self.queued -= 1
            self._begin(flow, ticket, now)
        return ticket

    def _begin(self, flow: _Flow, ticket: Ticket, now: float) -> None:
        ticket.started_at = now
        ticket.charged = ASSUMED_CPU_S
        flow.virtual += ASSUMED_CPU_S / flow.weight
        flow.begun += 1
        self.begun += 1
        self._take_slot(flow, ticket)

    def _take_slot(self, flow: _Flow, ticket: Ticket) -> None:
        flow.running += 1
        self.running += 1
        self._on_slots[ticket] = None
        self._arrange(flow)

    def use(self, ticket: Ticket, cpu_s: float, charge_s: float = 0.0) -> None:
        """Record that a started run has used `cpu_s` seconds of CPU so far; `charge_s` is charged instead if larger."""
        ticket.computed = max(ticket.computed, cpu_s)
        charge_s = max(charge_s, cpu_s)
        if charge_s > ticket.charged:
            flow = self._flows[ticket.tenant]
            flow.virtual += (charge_s - ticket.charged) / flow.weight
            ticket.charged = charge_s
            self._arrange(flow)

    def preempt(self, now: float) -> Ticket | None:
        """Take the slot from a run that should lose it to a waiting one, and return that run; None if there is none.

        The caller suspends the run and then calls `next_start`. Candidates are, first, runs that wait for the host,
        longest first; then the run of the tenant that has used most, if that is no less than the waiting tenant has
        used, and the run has had its slice, or its tenant is far ahead and the run has computed at all. A run that
        waits for the host is not resumed before `wake`.
        """
        if self.running < self.slots:
            return None
        heads = self._heads()
        if not heads:
            return None
        first = min(heads)[1]
        stalled = [t for t in self._on_slots if t.waiting_since is not None and now - t.waiting_since >= PATIENCE_S]
        if stalled:
            return self._suspend(min(stalled, key=lambda t: t.waiting_since or 0.0), now)
        busy = []
        for number, ticket in enumerate(self._on_slots):
            flow = self._flows[ticket.tenant]
            had_slice = ticket.computed - ticket.resumed_with >= SLICE_S
            if flow is not first and (had_slice or self._is_far_ahead(ticket, first)):
                busy.append((flow.virtual, -number, ticket))
        if not busy or max(busy)[0] < first.virtual:
            return None
        return self._suspend(max(busy)[2], now)

    def _is_far_ahead(self, ticket: Ticket, other: _Flow) -> bool:
        """Whether this run has computed, and its tenant has used more than the flow `other` by `FAR_AHEAD_S`."""
        flow = self._flows[ticket.tenant]
        # The part of the charge at its start that it has not used yet.
        assumed_s = ASSUMED_CPU_S - ticket.computed if ticket.charged == ASSUMED_CPU_S else 0.0
        return ticket.computed > 0 and flow.virtual - assumed_s / flow.weight >= other.virtual + FAR_AHEAD_S

    def _suspend(self, ticket: Ticket, now: float) -> Ticket:
        flow = self._flows[ticket.tenant]
        flow.running -= 1
        self.running -= 1
        del self._on_slots[ticket]
        ticket.suspended = True
        if ticket.waiting_since is None:
            ticket.ready_at = now
            flow.ready.append(ticket)
        self._arrange(flow)
        return ticket

    def wake(self, ticket: Ticket, now: float) -> None:
        """Record that a run which was suspended while it waited for the host can compute again."""
        if ticket.suspended and ticket.waiting_since is not None:
            flow = self._flows[ticket.tenant]
            self._come_back(flow)
            ticket.ready_at = now
            flow.ready.append(ticket)
            self._arrange(flow)
        ticket.waiting_since = None

    def finish(self, ticket: Ticket, cpu_s: float) -> None:
        """End a started run that used `cpu_s` seconds of CPU: free its slot and place, and charge its tenant."""
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
        if not competed and self._competes(flow):  # its next queued run had waited only for this place
            self._leave_wanting(flow)  # so that the present does not depend on this flow
            self._note_present(self._heads())
            flow.virtual = max(flow.virtual, self._present)
        self._arrange(flow)
        self._forget_idle()

    def withdraw(self, ticket: Ticket) -> None:
        """Remove a queued run: its caller disconnected, or its time in the queue is over."""
        flow = self._flows[ticket.tenant]
        del flow.queue[ticket]
        self.queued -= 1
        self._arrange(flow)
        self._forget_idle()

    # ---- the orders of flows -------------------------------------------------------------------------------------

    def _arrange(self, flow: _Flow) -> None:
        """Put a flow into its place in every order. Call it after each change of the flow."""
        needs, since = self._needs(flow)
        key = (flow.virtual, since, flow.number)
        if needs != flow.needs:
            self._leave_wanting(flow)
        if needs is not None:
            order = self._wanting.get(needs)
            if order is None:
                order = self._wanting[needs] = IndexedHeap()
            order.put(flow, key)
            flow.needs = needs
        if flow.running:
            self._computing.put(flow, key)
        else:
            self._computing.drop(flow)
        if flow.active:
            self._idle.drop(flow)
        else:
            self._idle.put(flow, key)
        if flow.queue and not flow.begun:
            self._unbegun.add(flow)
        else:
            self._unbegun.discard(flow)

    def _leave_wanting(self, flow: _Flow) -> None:
        if flow.needs is not None:
            order = self._wanting[flow.needs]
            order.drop(flow)
            if not order:
                del self._wanting[flow.needs]
            flow.needs = None

    def _needs(self, flow: _Flow) -> tuple[int | None, float]:
        """How many places must be free before it can use a slot (None: it needs no slot), and since when it waits."""
        if flow.ready:
            return 0, flow.ready[0].ready_at
        if flow.queue:
            return self._never if flow.at_bound else flow.begun + 1, next(iter(flow.queue)).offered_at
        return None, 0.0

    def _heads(self) -> list[tuple[Key, _Flow]]:
        """The heads of the orders whose flows could use a slot now. The smallest of them is the next to run."""
        free = self.places - self.begun
        return [head for needs, order in self._wanting.items() if needs <= free and (head := order.first()) is not None]

    def _may_begin(self, flow: _Flow) -> bool:
        """Whether one more run of this tenant may begin. It may hold as many places as it leaves free."""
        return not flow.at_bound and flow.begun < self.places - self.begun

    def _competes(self, flow: _Flow) -> bool:
        """Whether it has a slot or could use one; not if it waits only for the host, or for its own runs."""
        return flow.running > 0 or bool(flow.ready) or (bool(flow.queue) and self._may_begin(flow))

    def _come_back(self, flow: _Flow) -> None:
        """Move a flow that is about to compete again up to the present: time that it did not use is not credited."""
        if self._competes(flow):
            return
        self._note_present(self._heads())
        # No credit while a flow waits for its first run: newcomers, one after the other, would starve it.
        credit = 0.0 if self._unbegun else SLICE_S
        flow.virtual = max(flow.virtual, self._present - credit)

    def _note_present(self, heads: list[tuple[Key, _Flow]]) -> None:
        """Advance the present to the least virtual time of the competing flows; never back. Takes `_heads()`."""
        computing = self._computing.first()
        competing = heads if computing is None else [*heads, computing]
        if competing:
            self._present = max(self._present, min(competing)[0][0])

    def _forget_idle(self) -> None:
        # An idle flow's debt expires once the present has passed it; before that, idling for a moment must not cancel
        # it.
        if not self.queued and not self.begun:  # no flow competes
            self._flows.clear()
            self._idle.clear()
            self._present = 0.0
            return
        self._note_present(self._heads())
        past = self._present - SLICE_S
        while (head := self._idle.first()) is not None and head[0][0] <= past:
            self._idle.drop(head[1])
            del self._flows[head[1].name]

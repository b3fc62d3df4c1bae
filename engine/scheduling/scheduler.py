"""Who runs next: admission, one bounded queue a tenant, and a fair pick by CPU time used. Pure: no clock, no trio.

The pick is start-time fair queueing over CPU seconds: every tenant carries a virtual time that advances by
`cpu_s / weight` of what its runs use; the tenant with the least goes first. A tenant that was away comes back at the
present virtual time, so that idling saves nothing up (P. Goyal et al., "Start-time Fair Queuing", SIGCOMM 1996); or
one slice before it, where everybody else computes already: who asks rarely goes before who never stops.

A run that has started need not keep its slot: one that computes for long, or waits for the host, is put aside as soon
as somebody who has used less waits (`preempt`), and goes on when it is its turn again. Without that, two endless loops
would hold two slots until their limits, whoever else is there.

No step looks at every tenant: accounts are kept in the orders in which they are asked for (`_arrange`), so that a step
costs O(log n) of n tenants, and a thousand cost a run about what one does.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Literal

from engine.scheduling.least import Key, Least

# What a run is charged when it starts, until its true CPU time is known: keeps one tenant from starting many runs
# at once on a virtual time that has not moved yet.
ASSUMED_CPU_S = 0.005
# A run keeps its slot at least for this much CPU time. Five times what a typical run needs: few are ever put aside.
SLICE_S = 0.005
# Or for none, where one waits whose tenant has used less by this much, as who asks rarely has: the rest of a slice
# would be most of the time that its run takes. Who was away has a slice of credit; this is a little less, for rounding.
FAR_AHEAD_S = 0.9 * SLICE_S
# A run that waits for the host longer than this gives its slot to one that can compute.
PATIENCE_S = 0.005


@dataclass(eq=False, slots=True)
class Ticket:
    """One admitted run: queued, then started (and perhaps put aside and resumed), then finished; or withdrawn.

    Times are in the caller's clock seconds. `waiting_since` is when it began to wait for the host, None while it
    computes; the caller keeps it true.
    """

    tenant: str
    offered_at: float
    started_at: float | None = None
    waiting_since: float | None = None
    aside: bool = False
    # When it became ready to go on, while it is put aside.
    ready_at: float = 0.0
    # CPU seconds that its tenant was charged; what it has computed, and had when it last got its slot.
    charged: float = 0.0
    computed: float = 0.0
    resumed_with: float = 0.0


@dataclass(frozen=True, slots=True)
class Refused:
    """Not admitted: `name` is the quota, `used` and `bound` are runs; `engine_wide` when it is not the tenant's own."""

    name: Literal["queue_length", "concurrent_runs"]
    used: int
    bound: int
    engine_wide: bool = False


@dataclass(eq=False, slots=True)
class _Account:
    name: str
    # Older accounts have lower numbers: of two that are equal in all else, the older one goes first.
    number: int
    weight: float = 1.0
    virtual: float = 0.0
    concurrent: int | None = None
    running: int = 0
    begun: int = 0
    queue: OrderedDict[Ticket, None] = field(default_factory=OrderedDict)  # a set in order: any one may be withdrawn
    ready: deque[Ticket] = field(default_factory=deque)  # put aside, able to go on
    # In which of the scheduler's `_wanting` it is, if in any.
    needs: int | None = None

    @property
    def active(self) -> bool:
        return bool(self.queue) or self.begun > 0

    @property
    def at_bound(self) -> bool:
        return self.concurrent is not None and self.begun >= self.concurrent


class Scheduler:
    """Admits, queues and picks. Whoever calls it starts what `next_start` returns and reports back with `finish`.

    `slots` runs use the CPU at once; `places` may have begun and not ended, those put aside included. `total_queue`
    bounds all queues together.
    """

    def __init__(self, slots: int, places: int | None = None, total_queue: int | None = None) -> None:
        self.slots = slots
        self.places = max(2 * slots, places or 0)
        self.total_queue = total_queue
        # Invariant: the sums of `running`, `begun` and the lengths of queues over all accounts; running <= slots,
        # begun <= places.
        self.running = 0
        self.begun = 0
        self.queued = 0
        # Invariant: every tenant with a queued or begun ticket is here; others may be forgotten at any time.
        self._accounts: dict[str, _Account] = {}
        self._numbers = 0  # how many accounts there ever were
        # Invariant: exactly the tickets that hold a slot, in the order in which they got it.
        self._on_slots: dict[Ticket, None] = {}
        self._present = 0.0
        # Where each account stands; `_arrange` keeps all of it so, after every change of an account.
        # Invariant: exactly the accounts with a run that is ready or queued, by how many places must be free so that
        # they could use a slot: none for who goes on, `begun + 1` for who begins one more (nobody may hold more places
        # than it leaves for others), `_never` for who has as many under way as it may. No order in it is empty. In each
        # order: by virtual time, then by who has waited longest, then by age. There are few orders: accounts that have
        # begun 1, 2, ... k runs hold k(k+1)/2 of the places.
        self._never = self.places + 1
        self._wanting: dict[int, Least[_Account]] = {}
        # Invariant: exactly the accounts with a run on a slot, and exactly those with no run at all; by virtual time.
        self._computing: Least[_Account] = Least()
        self._idle: Least[_Account] = Least()
        # Invariant: exactly the accounts with a queued run and none begun.
        self._unbegun: set[_Account] = set()

    @property
    def waiting(self) -> bool:
        """Whether any run waits for a slot: one that has not started, or one that was put aside."""
        return self.queued > 0 or bool(self._wanting.get(0))

    @property
    def on_slots(self) -> tuple[Ticket, ...]:
        """The runs that hold a slot."""
        return tuple(self._on_slots)

    def queued_of(self, tenant: str) -> int:
        """How many runs of one tenant wait for their start."""
        account = self._accounts.get(tenant)
        return 0 if account is None else len(account.queue)

    def begun_of(self, tenant: str) -> int:
        """How many runs of one tenant have begun and not ended."""
        account = self._accounts.get(tenant)
        return 0 if account is None else account.begun

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
    ) -> Ticket | Refused:
        """Admit one run into its tenant's queue, or refuse it at once.

        With `at_once` it has started when nobody else waits and a slot is free: what `next_start` would say next.

        Refused when it cannot start now and `queue_length` others already wait, or it is not to wait at all
        (`may_wait`), or all queues together are as good as full: a tenant may fill as much of `total_queue` as is left
        for others, so that one that has nothing waiting still finds room. `concurrent` bounds the tenant's begun runs.
        """
        account = self._accounts.get(tenant)
        if account is None:
            self._numbers += 1
            account = self._accounts[tenant] = _Account(tenant, self._numbers, concurrent=concurrent)
        elif account.concurrent != concurrent:
            account.concurrent = concurrent
            self._arrange(account)
        if self.running >= self.slots or not self._may_begin(account):
            refused = self._refusal(account, queue_length, may_wait)
            if refused is not None:
                self._arrange(account)  # it may be a new one
                self._forget_idle()
                return refused
        self._come_back(account)
        account.weight = weight
        ticket = Ticket(tenant, now)
        if at_once and self.running < self.slots and not self.waiting and self._may_begin(account):
            self._note_present([((account.virtual, now, account.number), account)])
            self._begin(account, ticket, now)
            return ticket
        account.queue[ticket] = None
        self.queued += 1
        self._arrange(account)
        return ticket

    def _refusal(self, account: _Account, queue_length: int, may_wait: bool) -> Refused | None:
        length = len(account.queue)
        if not may_wait:
            if account.concurrent is not None and account.at_bound:
                return Refused("concurrent_runs", account.begun, account.concurrent)
            return Refused("queue_length", length, 0)
        if length >= queue_length:
            return Refused("queue_length", length, queue_length)
        if self.total_queue is not None and length >= self.total_queue - self.queued:
            return Refused("queue_length", length, self.total_queue, engine_wide=True)
        return None

    def next_start(self, now: float) -> Ticket | None:
        """The run to start or resume now, or None when no slot is free or nobody can use one.

        Ties: who has waited longest. A run that was put aside is told by its `started_at`; its slot is its own again.
        """
        if self.running >= self.slots:
            return None
        heads = self._heads()
        if not heads:
            return None
        self._note_present(heads)
        account = min(heads)[1]
        if account.ready:
            ticket = account.ready.popleft()
            ticket.aside = False
            ticket.resumed_with = ticket.computed
            self._take_slot(account, ticket)
        else:
            ticket, _ = account.queue.popitem(last=False)
            self.queued -= 1
            self._begin(account, ticket, now)
        return ticket

    def _begin(self, account: _Account, ticket: Ticket, now: float) -> None:
        ticket.started_at = now
        ticket.charged = ASSUMED_CPU_S
        account.virtual += ASSUMED_CPU_S / account.weight
        account.begun += 1
        self.begun += 1
        self._take_slot(account, ticket)

    def _take_slot(self, account: _Account, ticket: Ticket) -> None:
        account.running += 1
        self.running += 1
        self._on_slots[ticket] = None
        self._arrange(account)

    def use(self, ticket: Ticket, cpu_s: float, charge_s: float = 0.0) -> None:
        """A started run has used `cpu_s` seconds of CPU so far; its tenant is charged `charge_s`, if that is more."""
        ticket.computed = max(ticket.computed, cpu_s)
        charge_s = max(charge_s, cpu_s)
        if charge_s > ticket.charged:
            account = self._accounts[ticket.tenant]
            account.virtual += (charge_s - ticket.charged) / account.weight
            ticket.charged = charge_s
            self._arrange(account)

    def preempt(self, now: float) -> Ticket | None:
        """Put a run aside for one that should have its slot, and return it; None when there is no such pair.

        The caller stops it, and then asks `next_start`. First who only waits for the host, longest first; then the
        tenant that has used most, if that is no less than who waits has, and its run had its slice; or has used more by
        far, and its run has computed at all. A run that waits for the host is not resumed before `wake`.
        """
        if self.running < self.slots:
            return None
        heads = self._heads()
        if not heads:
            return None
        first = min(heads)[1]
        idle = [t for t in self._on_slots if t.waiting_since is not None and now - t.waiting_since >= PATIENCE_S]
        if idle:
            return self._put_aside(min(idle, key=lambda t: t.waiting_since or 0.0), now)
        busy = []
        for number, ticket in enumerate(self._on_slots):
            account = self._accounts[ticket.tenant]
            had_slice = ticket.computed - ticket.resumed_with >= SLICE_S
            if account is not first and (had_slice or self._is_far_ahead(ticket, first)):
                busy.append((account.virtual, -number, ticket))
        if not busy or max(busy)[0] < first.virtual:
            return None
        return self._put_aside(max(busy)[2], now)

    def _is_far_ahead(self, ticket: Ticket, of: _Account) -> bool:
        """Whether this run has computed, and its tenant has used more than another one by far."""
        account = self._accounts[ticket.tenant]
        assumed_s = ASSUMED_CPU_S - ticket.computed if ticket.charged == ASSUMED_CPU_S else 0.0
        return ticket.computed > 0 and account.virtual - assumed_s / account.weight >= of.virtual + FAR_AHEAD_S

    def _put_aside(self, ticket: Ticket, now: float) -> Ticket:
        account = self._accounts[ticket.tenant]
        account.running -= 1
        self.running -= 1
        del self._on_slots[ticket]
        ticket.aside = True
        if ticket.waiting_since is None:
            ticket.ready_at = now
            account.ready.append(ticket)
        self._arrange(account)
        return ticket

    def wake(self, ticket: Ticket, now: float) -> None:
        """A run that was put aside while it waited for the host can go on."""
        if ticket.aside and ticket.waiting_since is not None:
            account = self._accounts[ticket.tenant]
            self._come_back(account)
            ticket.ready_at = now
            account.ready.append(ticket)
            self._arrange(account)
        ticket.waiting_since = None

    def finish(self, ticket: Ticket, cpu_s: float) -> None:
        """A started run ended after `cpu_s` seconds of CPU: free its slot and place, and charge its tenant."""
        account = self._accounts[ticket.tenant]
        competed = self._competes(account)
        if not ticket.aside:
            account.running -= 1
            self.running -= 1
            del self._on_slots[ticket]
        elif ticket.waiting_since is None:
            account.ready.remove(ticket)
        account.begun -= 1
        self.begun -= 1
        account.virtual += (max(cpu_s, ticket.computed) - ticket.charged) / account.weight
        if not competed and self._competes(account):  # the next of its queue had waited for this one's place alone
            self._leave_wanting(account)  # the present is what it is without this one
            self._note_present(self._heads())
            account.virtual = max(account.virtual, self._present)
        self._arrange(account)
        self._forget_idle()

    def withdraw(self, ticket: Ticket) -> None:
        """A queued run is no longer wanted: its caller went away or waited too long."""
        account = self._accounts[ticket.tenant]
        del account.queue[ticket]
        self.queued -= 1
        self._arrange(account)
        self._forget_idle()

    # ---- where accounts stand ---------------------------------------------------------------------------------------

    def _arrange(self, account: _Account) -> None:
        """Put an account where it belongs in every order. To be called after each change of it."""
        needs, since = self._needs(account)
        key = (account.virtual, since, account.number)
        if needs != account.needs:
            self._leave_wanting(account)
        if needs is not None:
            order = self._wanting.get(needs)
            if order is None:
                order = self._wanting[needs] = Least()
            order.put(account, key)
            account.needs = needs
        if account.running:
            self._computing.put(account, key)
        else:
            self._computing.drop(account)
        if account.active:
            self._idle.drop(account)
        else:
            self._idle.put(account, key)
        if account.queue and not account.begun:
            self._unbegun.add(account)
        else:
            self._unbegun.discard(account)

    def _leave_wanting(self, account: _Account) -> None:
        if account.needs is not None:
            order = self._wanting[account.needs]
            order.drop(account)
            if not order:
                del self._wanting[account.needs]
            account.needs = None

    def _needs(self, account: _Account) -> tuple[int | None, float]:
        """How many free places let it use a slot, None when it has no use for one; and since when it waits for it."""
        if account.ready:
            return 0, account.ready[0].ready_at
        if account.queue:
            return self._never if account.at_bound else account.begun + 1, next(iter(account.queue)).offered_at
        return None, 0.0

    def _heads(self) -> list[tuple[Key, _Account]]:
        """Of those that could use a slot, the first of every order: one of them is the first of all."""
        free = self.places - self.begun
        return [head for needs, order in self._wanting.items() if needs <= free and (head := order.first()) is not None]

    def _may_begin(self, account: _Account) -> bool:
        """Whether one more run of this tenant may begin. It may hold as many places as it leaves for others."""
        return not account.at_bound and account.begun < self.places - self.begun

    def _competes(self, account: _Account) -> bool:
        """Whether it has a slot, or could use one. One that only waits for the host, or for its own runs, is away."""
        return account.running > 0 or bool(account.ready) or (bool(account.queue) and self._may_begin(account))

    def _come_back(self, account: _Account) -> None:
        """A tenant that was away will want a slot: what it did not use meanwhile is not saved up for it."""
        if self._competes(account):
            return
        self._note_present(self._heads())
        # Never before one that has not begun: or newcomers, one after the other, would keep it from its start.
        credit = 0.0 if self._unbegun else SLICE_S
        account.virtual = max(account.virtual, self._present - credit)

    def _note_present(self, heads: list[tuple[Key, _Account]]) -> None:
        """The present is the least virtual time of those who compete, and never goes back. Takes `_heads()`."""
        computing = self._computing.first()
        competing = heads if computing is None else [*heads, computing]
        if competing:
            self._present = max(self._present, min(competing)[0][0])

    def _forget_idle(self) -> None:
        # An idle tenant's debt expires once the present has passed it; until then it is kept, or idling for a moment
        # would wipe it out.
        if not self.queued and not self.begun:  # nobody is left to be fair to
            self._accounts.clear()
            self._idle.clear()
            self._present = 0.0
            return
        self._note_present(self._heads())
        past = self._present - SLICE_S
        while (head := self._idle.first()) is not None and head[0][0] <= past:
            self._idle.drop(head[1])
            del self._accounts[head[1].name]

"""Who runs next: admission, one bounded queue a tenant, and a fair pick by CPU time used. Pure: no clock, no trio.

The pick is start-time fair queueing over CPU seconds: every tenant carries a virtual time that advances by
`cpu_s / weight` of each run it ended; the tenant with the least goes first. A tenant that was away comes back at the
present virtual time, so that idling saves nothing up (P. Goyal et al., "Start-time Fair Queuing", SIGCOMM 1996).
"""

from collections import deque
from dataclasses import dataclass, field

# What a run is charged when it starts, until its true CPU time is known: keeps one tenant from starting many runs
# at once on a virtual time that has not moved yet.
ASSUMED_CPU_S = 0.005


@dataclass(eq=False, slots=True)
class Ticket:
    """One admitted run: queued, then started, then finished or withdrawn. Times in the caller's clock seconds."""

    tenant: str
    offered_at: float
    started_at: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Not admitted: the tenant's queue is full. `length` is how many are waiting, `bound` how many may."""

    length: int
    bound: int


@dataclass(slots=True)
class _Account:
    weight: float = 1.0
    virtual: float = 0.0
    running: int = 0
    queue: deque[Ticket] = field(default_factory=deque)

    @property
    def active(self) -> bool:
        return bool(self.queue) or self.running > 0


class Scheduler:
    """Admits, queues and picks. Whoever calls it starts what `next_start` returns and reports back with `finish`."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        # Invariant: the sum of `running` over all accounts, and never more than `slots`.
        self.running = 0
        # Invariant: every tenant with a queued or running ticket is here; others may be forgotten at any time.
        self._accounts: dict[str, _Account] = {}
        self._present = 0.0  # virtual time of the last start

    @property
    def queued(self) -> int:
        """How many admitted runs wait for a slot."""
        return sum(len(account.queue) for account in self._accounts.values())

    def offer(self, tenant: str, now: float, *, queue_length: int, weight: float = 1.0) -> Ticket | Refused:
        """Admit one run into its tenant's queue, or refuse it at once when `queue_length` others already wait."""
        account = self._accounts.setdefault(tenant, _Account())
        if len(account.queue) >= queue_length and self.running >= self.slots:
            return Refused(len(account.queue), queue_length)
        if not account.active:
            account.virtual = max(account.virtual, self._present)
        account.weight = weight
        ticket = Ticket(tenant, now)
        account.queue.append(ticket)
        return ticket

    def next_start(self, now: float) -> Ticket | None:
        """The run to start now, or None when no slot is free or nobody waits. Ties: who has waited longest."""
        if self.running >= self.slots:
            return None
        waiting = [account for account in self._accounts.values() if account.queue]
        if not waiting:
            return None
        account = min(waiting, key=lambda a: (a.virtual, a.queue[0].offered_at))
        ticket = account.queue.popleft()
        ticket.started_at = now
        self._present = max(self._present, account.virtual)
        account.virtual += ASSUMED_CPU_S / account.weight
        account.running += 1
        self.running += 1
        return ticket

    def finish(self, ticket: Ticket, cpu_s: float) -> None:
        """A started run ended after `cpu_s` seconds of CPU: free its slot and charge its tenant."""
        account = self._accounts[ticket.tenant]
        account.running -= 1
        self.running -= 1
        account.virtual += (cpu_s - ASSUMED_CPU_S) / account.weight
        self._forget_idle()

    def withdraw(self, ticket: Ticket) -> None:
        """A queued run is no longer wanted: its caller went away or waited too long."""
        self._accounts[ticket.tenant].queue.remove(ticket)
        self._forget_idle()

    def _forget_idle(self) -> None:
        # An idle tenant's debt expires once the present has passed it; until then it is kept, or idling for a moment
        # would wipe it out.
        if not any(account.active for account in self._accounts.values()):
            self._accounts.clear()  # nobody is left to be fair to
            self._present = 0.0
        for name in [n for n, a in self._accounts.items() if not a.active and a.virtual <= self._present]:
            del self._accounts[name]

"""Admission and the fair pick: bounded, work-conserving, deterministic, fair by weight, without starvation."""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import pytest
from effort import effort
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.scheduling.scheduler import ASSUMED_CPU_S, PATIENCE_S, SLICE_S, NotAdmitted, Scheduler, Ticket

TENANTS = ["a", "b", "c", "d"]
costs = st.floats(0, 2.0)


class Admission(RuleBasedStateMachine):
    """Any order of calls, compared with a plain account of who waits and who runs."""

    SLOTS = 3
    PLACES = 8
    BOUND = 4
    TOTAL = 7
    AT_ONCE: ClassVar[dict[str, int | None]] = {"a": 1, "b": 2, "c": 4}

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(self.SLOTS, self.PLACES, self.TOTAL)
        self.now = 0.0
        self.waiting: dict[str, list[Ticket]] = {tenant: [] for tenant in TENANTS}
        self.running: list[Ticket] = []
        self.ready: list[Ticket] = []  # suspended, and able to compute
        self.blocked: list[Ticket] = []  # suspended, and waiting for the host
        self.used: dict[Ticket, float] = {}

    def begun(self, tenant: str | None = None) -> int:
        tickets = (*self.running, *self.ready, *self.blocked)
        return sum(tenant in (None, ticket.tenant) for ticket in tickets)

    def may_begin(self, tenant: str) -> bool:
        bound = self.AT_ONCE.get(tenant)
        free = self.PLACES - self.begun()
        return (bound is None or self.begun(tenant) < bound) and self.begun(tenant) < free

    @rule(tenant=st.sampled_from(TENANTS), weight=st.sampled_from([0.5, 1.0, 4.0]), step=st.floats(0, 10))
    def offer(self, tenant: str, weight: float, step: float) -> None:
        self.now += step
        at_once = self.AT_ONCE.get(tenant)
        answer = self.scheduler.offer(tenant, self.now, queue_length=self.BOUND, weight=weight, concurrent=at_once)
        length, others = len(self.waiting[tenant]), self.TOTAL - sum(map(len, self.waiting.values()))
        must_wait = len(self.running) == self.SLOTS or not self.may_begin(tenant)
        if isinstance(answer, NotAdmitted):
            assert must_wait
            assert answer.name == "queue_length"
            assert length >= (others if answer.engine_wide else self.BOUND)
            assert (answer.used, answer.bound) == (length, self.TOTAL if answer.engine_wide else self.BOUND)
        else:
            assert not must_wait or length < min(self.BOUND, others)
            assert (answer.tenant, answer.offered_at, answer.started_at) == (tenant, self.now, None)
            self.waiting[tenant].append(answer)

    @rule()
    def start(self) -> None:
        ticket = self.scheduler.next_start(self.now)
        someone_can = self.ready or any(self.waiting[tenant] and self.may_begin(tenant) for tenant in TENANTS)
        if len(self.running) == self.SLOTS or not someone_can:
            assert ticket is None
            return
        assert ticket is not None, "a slot is free and a run can use it"
        if ticket in self.ready:
            self.ready.remove(ticket)
        else:
            assert not any(each.tenant == ticket.tenant for each in self.ready), "who has begun goes on first"
            assert ticket.started_at == self.now
            assert self.may_begin(ticket.tenant)
            assert self.waiting[ticket.tenant].pop(0) is ticket, "within a tenant, first come, first served"
            self.used[ticket] = 0.0
        self.running.append(ticket)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.floats(0, 0.02))
    def use(self, data: st.DataObject, more: float) -> None:
        ticket = data.draw(st.sampled_from(self.running))
        self.used[ticket] += more
        self.scheduler.use(ticket, self.used[ticket])

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def wait_for_the_host(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.running)).waiting_since = self.now

    @rule(step=st.floats(0, 0.02))
    def preempt(self, step: float) -> None:
        self.now += step
        ticket = self.scheduler.preempt(self.now)
        if ticket is None:
            return
        assert self.ready or any(self.waiting[tenant] and self.may_begin(tenant) for tenant in TENANTS)
        self.running.remove(ticket)
        assert len(self.running) == self.SLOTS - 1
        if ticket.waiting_since is None:
            assert self.used[ticket] >= SLICE_S
            self.ready.append(ticket)
        else:
            self.blocked.append(ticket)

    @precondition(lambda self: self.blocked)
    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        ticket = self.blocked.pop(data.draw(st.integers(0, len(self.blocked) - 1)))
        self.scheduler.wake(ticket, self.now)
        self.ready.append(ticket)

    @precondition(lambda self: self.begun())
    @rule(data=st.data(), cpu_s=costs)
    def finish(self, data: st.DataObject, cpu_s: float) -> None:
        among = data.draw(st.sampled_from([each for each in (self.running, self.ready, self.blocked) if each]))
        ticket = among.pop(data.draw(st.integers(0, len(among) - 1)))
        self.scheduler.finish(ticket, self.used[ticket] + cpu_s)

    @precondition(lambda self: any(self.waiting.values()))
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        tenant = data.draw(st.sampled_from([tenant for tenant in TENANTS if self.waiting[tenant]]))
        index = data.draw(st.integers(0, len(self.waiting[tenant]) - 1))
        self.scheduler.withdraw(self.waiting[tenant].pop(index))

    @invariant()
    def counts_agree(self) -> None:
        assert self.scheduler.running == len(self.running) <= self.SLOTS
        assert self.scheduler.queued == sum(map(len, self.waiting.values()))
        assert self.scheduler.begun == self.begun() <= self.PLACES
        assert set(self.scheduler.on_slots) == set(self.running)
        for tenant, bound in self.AT_ONCE.items():
            assert self.scheduler.begun_of(tenant) == self.begun(tenant) <= (bound or self.PLACES)


TestAdmission = Admission.TestCase
TestAdmission.settings = settings(max_examples=effort(100), stateful_step_count=40, deadline=None)


def offer(scheduler: Scheduler, tenant: str, now: float = 0.0, weight: float = 1.0, queue_length: int = 1000) -> Ticket:
    ticket = scheduler.offer(tenant, now, queue_length=queue_length, weight=weight)
    assert isinstance(ticket, Ticket)
    return ticket


def served(scheduler: Scheduler, backlog: dict[str, float], cost: dict[str, float], runs: int) -> Counter[str]:
    """CPU seconds of each tenant after so many runs, with every tenant always waiting. Weights by tenant."""
    used: Counter[str] = Counter()
    for tenant, weight in backlog.items():
        for _ in range(3):
            offer(scheduler, tenant, weight=weight)
    running: list[Ticket] = []
    for now in range(runs):
        while (ticket := scheduler.next_start(now)) is not None:
            running.append(ticket)
            offer(scheduler, ticket.tenant, now, backlog[ticket.tenant])
        ended = running.pop(0)
        scheduler.finish(ended, cost[ended.tenant])
        used[ended.tenant] += cost[ended.tenant]  # type: ignore[assignment]
    return used


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_tenants_that_always_wait_get_the_same_cpu_time_whatever_their_runs_cost(slots: int) -> None:
    used = served(Scheduler(slots), dict.fromkeys("abc", 1.0), {"a": 0.001, "b": 0.1, "c": 1.0}, 12_000)
    assert max(used.values()) - min(used.values()) <= slots * 1.0 + 1.0, used


@pytest.mark.parametrize("slots", [1, 4])
def test_cpu_time_is_shared_by_weight(slots: int) -> None:
    weights = {"a": 1.0, "b": 2.0, "c": 4.0}
    used = served(Scheduler(slots), weights, dict.fromkeys(weights, 0.05), 7000)
    shares = {tenant: used[tenant] / weight for tenant, weight in weights.items()}
    assert max(shares.values()) <= 1.1 * min(shares.values()), shares


@given(st.dictionaries(st.sampled_from(TENANTS), st.tuples(st.floats(0.5, 4), st.floats(0.001, 1)), min_size=2))
@settings(max_examples=25)
def test_whatever_weights_and_costs_shares_stay_within_a_few_runs(tenants: dict[str, tuple[float, float]]) -> None:
    slots = 2
    weights = {tenant: weight for tenant, (weight, _) in tenants.items()}
    costs = {tenant: cost for tenant, (_, cost) in tenants.items()}
    used = served(Scheduler(slots), weights, costs, 1500)
    shares = [used[tenant] / weights[tenant] for tenant in tenants]
    # Start-time fair queueing: apart by at most what each can have under way, in virtual time.
    bound = sum((slots + 1) * costs[tenant] / weights[tenant] for tenant in tenants) + 1e-6
    assert max(shares) - min(shares) <= bound


def test_a_tenant_with_one_short_run_overtakes_a_thousand_of_another() -> None:
    scheduler = Scheduler(1)
    for _ in range(1000):
        offer(scheduler, "greedy")
    first = scheduler.next_start(0)
    assert first is not None
    modest = offer(scheduler, "modest", now=1)
    scheduler.finish(first, 1.0)
    assert scheduler.next_start(1) is modest


def test_no_tenant_starves_however_many_newcomers_come() -> None:
    scheduler = Scheduler(1)
    patient = offer(scheduler, "patient")
    offer(scheduler, "new-0")
    for number in range(1, 50):
        ticket = scheduler.next_start(number)
        assert ticket is not None
        if ticket is patient:
            return
        scheduler.finish(ticket, 0.5)
        offer(scheduler, f"new-{number}", now=number)
    raise AssertionError("the first to come was never served")


def test_idling_saves_nothing_up() -> None:
    """A tenant that was away for long comes back at the present: it does not get the past's share at once."""
    scheduler = Scheduler(1)
    offer(scheduler, "away")
    ticket = scheduler.next_start(0)
    assert ticket is not None
    scheduler.finish(ticket, 0.01)
    served(scheduler, {"busy": 1.0}, {"busy": 1.0}, 100)
    while (ticket := scheduler.next_start(200)) is not None:  # the last of the busy tenant's
        scheduler.finish(ticket, 1.0)
    used = served(scheduler, {"busy": 1.0, "away": 1.0}, {"busy": 1.0, "away": 1.0}, 40)
    assert abs(used["busy"] - used["away"]) <= 4


def test_a_moment_of_idling_does_not_wipe_out_what_was_used() -> None:
    scheduler = Scheduler(2)
    offer(scheduler, "steady")
    steady = scheduler.next_start(0)
    offer(scheduler, "greedy")
    greedy = scheduler.next_start(0)
    assert steady is not None
    assert greedy is not None
    scheduler.finish(greedy, 10.0)
    offer(scheduler, "greedy")
    offer(scheduler, "greedy")
    expected = offer(scheduler, "steady", now=1)
    scheduler.finish(steady, 0.1)
    assert scheduler.next_start(2) is expected


def test_runs_that_have_not_ended_are_charged_for_so_that_one_tenant_does_not_take_every_slot() -> None:
    scheduler = Scheduler(4)
    for _ in range(8):
        offer(scheduler, "a")
    for _ in range(8):
        offer(scheduler, "b", now=1)
    started = [scheduler.next_start(2) for _ in range(4)]
    assert Counter(ticket.tenant for ticket in started if ticket) == {"a": 2, "b": 2}
    assert ASSUMED_CPU_S > 0


def test_ties_go_to_whom_has_waited_longest() -> None:
    scheduler = Scheduler(1)
    offer(scheduler, "late", now=2)
    early = offer(scheduler, "early", now=1)
    assert scheduler.next_start(3) is early


@given(st.lists(st.tuples(st.sampled_from(TENANTS), st.floats(0, 1), st.sampled_from([1.0, 2.0])), max_size=40))
def test_the_same_history_gives_the_same_picks(history: list[tuple[str, float, float]]) -> None:
    def picks() -> list[str]:
        scheduler, order, running = Scheduler(2), [], []
        for now, (tenant, cost, weight) in enumerate(history):
            offer(scheduler, tenant, now, weight)
            while (ticket := scheduler.next_start(now)) is not None:
                order.append(ticket.tenant)
                running.append(ticket)
            if len(running) == 2:
                scheduler.finish(running.pop(0), cost)
        return order

    assert picks() == picks()


@pytest.mark.parametrize("bound", [0, 1, 5])
def test_the_queue_is_bounded_once_every_slot_is_taken(bound: int) -> None:
    scheduler = Scheduler(1)
    offer(scheduler, "a", queue_length=bound)
    assert scheduler.next_start(0) is not None
    for _ in range(bound):
        offer(scheduler, "a", queue_length=bound)
    refused = scheduler.offer("a", 0, queue_length=bound)
    assert refused == NotAdmitted("queue_length", bound, bound)
    assert scheduler.queued == bound


def test_a_full_queue_of_one_tenant_refuses_no_other() -> None:
    scheduler = Scheduler(1)
    offer(scheduler, "a", queue_length=1)
    scheduler.next_start(0)
    offer(scheduler, "a", queue_length=1)
    assert isinstance(scheduler.offer("a", 0, queue_length=1), NotAdmitted)
    assert isinstance(scheduler.offer("b", 0, queue_length=1), Ticket)


def test_a_withdrawn_run_is_never_started_and_makes_room() -> None:
    scheduler = Scheduler(1)
    first = offer(scheduler, "a", queue_length=1)
    scheduler.withdraw(first)
    assert scheduler.next_start(0) is None
    second = offer(scheduler, "a", queue_length=1)
    assert scheduler.next_start(0) is second


def test_accounts_of_tenants_that_the_present_has_passed_are_forgotten() -> None:
    scheduler = Scheduler(1)
    offer(scheduler, "steady")
    for number in range(1000):
        offer(scheduler, "steady", now=number)
        offer(scheduler, f"tenant-{number}", now=number)
        for _ in range(2):
            ticket = scheduler.next_start(number)
            assert ticket is not None
            scheduler.finish(ticket, 0.001)
    assert len(scheduler._flows) < 10


def test_accounts_of_tenants_with_one_run_each_are_forgotten() -> None:
    scheduler = Scheduler(1)
    for number in range(1000):
        offer(scheduler, f"tenant-{number}", now=number)
        ticket = scheduler.next_start(number)
        assert ticket is not None
        scheduler.finish(ticket, 0.001)
    assert len(scheduler._flows) < 10


def test_refused_tenants_leave_no_account_behind_for_long() -> None:
    scheduler = Scheduler(1)
    offer(scheduler, "busy")
    ticket = scheduler.next_start(0)
    assert ticket is not None
    for number in range(100):
        assert isinstance(scheduler.offer(f"tenant-{number}", 0, queue_length=0), NotAdmitted)
    scheduler.finish(ticket, 0.0)
    assert set(scheduler._flows) <= {"busy"}


# Runs that are suspended ----------------------------------------------------------------------------------------


@dataclass
class Job:
    """A run of a simulation: what is left of it, and what it has used."""

    left: float
    used: float = 0.0


class Machine:
    """Slots that compute, in steps of a millisecond, whatever the scheduler says."""

    STEP = 0.001

    def __init__(self, slots: int, places: int) -> None:
        self.scheduler = Scheduler(slots, places)
        self.now = 0.0
        self.jobs: dict[Ticket, Job] = {}
        self.used: Counter[str] = Counter()
        self.waited: dict[str, list[float]] = {}

    def offer(self, tenant: str, cost: float, weight: float = 1.0) -> None:
        self.jobs[offer(self.scheduler, tenant, self.now, weight)] = Job(cost)

    def step(self) -> None:
        scheduler = self.scheduler
        while scheduler.next_start(self.now) is not None:
            pass
        while scheduler.preempt(self.now) is not None:
            assert scheduler.next_start(self.now) is not None
        waiting = [ticket for ticket in self.jobs if ticket not in scheduler.on_slots]
        assert len(scheduler.on_slots) == scheduler.slots or not waiting, "a slot is idle and a run waits"
        self.now += self.STEP
        for ticket in scheduler.on_slots:
            job = self.jobs[ticket]
            job.used += self.STEP
            self.used[ticket.tenant] += self.STEP  # type: ignore[assignment]
            scheduler.use(ticket, job.used)
            if job.used >= job.left:
                del self.jobs[ticket]
                scheduler.finish(ticket, job.used)
                self.waited.setdefault(ticket.tenant, []).append(self.now - ticket.offered_at)


@pytest.mark.parametrize(("slots", "hogs"), [(1, 1), (2, 4), (4, 4)])
def test_a_short_run_waits_a_few_slices_however_many_endless_ones_there_are(slots: int, hogs: int) -> None:
    machine = Machine(slots, slots + 8)
    for hog in range(hogs):
        for _ in range(2):
            machine.offer(f"hog-{hog}", 1e9)
    for number in range(3000):
        if number % 50 == 25:
            machine.offer("modest", 0.002)
        machine.step()
    assert len(machine.waited["modest"]) == 60
    assert max(machine.waited["modest"]) <= 0.002 + 3 * SLICE_S


@given(st.lists(st.tuples(st.floats(0.5, 4), st.integers(1, 3)), min_size=1, max_size=5), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_endless_runs_share_the_cpu_by_weight_and_none_starves(tenants: list[tuple[float, int]], slots: int) -> None:
    machine = Machine(slots, 16)
    for number, (weight, runs) in enumerate(tenants):
        for _ in range(max(runs, slots)):
            machine.offer(f"t{number}", 1e9, weight)
    for _ in range(2000):
        machine.step()
    shares = [machine.used[f"t{number}"] / weight for number, (weight, _) in enumerate(tenants)]
    assert min(shares) > 0
    # Apart by what each may be ahead: its slices, in virtual time, and what a start is charged.
    assert max(shares) - min(shares) <= sum(2 * slots * (SLICE_S + ASSUMED_CPU_S) / weight for weight, _ in tenants)


def test_a_run_that_waits_for_the_host_gives_its_slot_away_and_gets_one_back_when_it_can_go_on() -> None:
    scheduler = Scheduler(1, 4)
    offer(scheduler, "sleeper")
    sleeper = scheduler.next_start(0)
    assert sleeper is not None
    sleeper.waiting_since = 1.0
    offer(scheduler, "other", now=1.0)
    assert scheduler.preempt(1.0) is None, "a moment may be all that it waits"
    assert scheduler.preempt(1.0 + 2 * PATIENCE_S) is sleeper
    other = scheduler.next_start(1.1)
    assert other is not None
    scheduler.finish(other, 0.001)
    assert scheduler.next_start(1.2) is None, "it still waits"
    scheduler.wake(sleeper, 1.3)
    assert scheduler.next_start(1.3) is sleeper
    assert sleeper.waiting_since is None
    scheduler.finish(sleeper, 0.001)
    assert (scheduler.running, scheduler.begun) == (0, 0)


def test_a_suspended_run_may_end_without_being_resumed() -> None:
    for waits in (True, False):
        scheduler = Scheduler(1, 4)
        offer(scheduler, "hog")
        hog = scheduler.next_start(0)
        assert hog is not None
        scheduler.use(hog, 1.0)
        hog.waiting_since = 0.0 if waits else None
        offer(scheduler, "other", now=1.0)
        assert scheduler.preempt(1.0) is hog
        scheduler.finish(hog, 1.0)
        assert scheduler.begun == 0
        other = scheduler.next_start(1.0)
        assert other is not None
        assert other.tenant == "other"


def test_who_holds_a_slot_and_computes_little_is_charged_and_soon_gives_it_to_who_was_not() -> None:
    scheduler = Scheduler(1, 8)
    offer(scheduler, "asker")
    asker = scheduler.next_start(0)
    assert asker is not None
    offer(scheduler, "other", now=0)
    scheduler.use(asker, 0.0, 1.0)
    assert scheduler.preempt(1.0) is None, "it has not begun to compute"
    scheduler.use(asker, 0.001, 1.1)
    assert scheduler.preempt(1.1) is asker
    other = scheduler.next_start(1.1)
    assert other is not None
    scheduler.use(other, 0.5)
    assert scheduler.preempt(1.6) is None, "it has used less than the other was charged for its slot"


def test_among_equals_a_run_keeps_its_slot_for_its_slice() -> None:
    scheduler = Scheduler(1, 8)
    for tenant in ("one", "other"):
        offer(scheduler, tenant)
    first = scheduler.next_start(0)
    assert first is not None
    scheduler.use(first, 0.8 * SLICE_S)
    assert scheduler.preempt(1) is None, "what its start was charged beyond that is not used yet"
    scheduler.use(first, SLICE_S)
    assert scheduler.preempt(1) is first


def test_who_was_away_gets_the_slot_of_one_that_never_stops_before_that_had_its_slice() -> None:
    scheduler = Scheduler(1, 8)
    for hog in ("hog", "other hog"):
        offer(scheduler, hog)
    for now in range(20):  # they take turns, and have used about as much
        ticket = scheduler.next_start(now)
        assert ticket is not None
        while scheduler.preempt(now) is None:
            scheduler.use(ticket, ticket.computed + SLICE_S)
    hog = scheduler.next_start(20)
    assert hog is not None
    modest = offer(scheduler, "modest", now=20)
    assert scheduler.preempt(20) is hog
    assert scheduler.next_start(20) is modest
    second = offer(scheduler, "second", now=20)
    scheduler.use(modest, 0.001)
    assert scheduler.preempt(20) is None, "those who were away wait for each other's slices"
    scheduler.finish(modest, 0.002)
    assert scheduler.next_start(20) is second


def test_no_run_is_preempted_for_one_of_its_own_tenant() -> None:
    scheduler = Scheduler(1, 8)
    offer(scheduler, "a")
    first = scheduler.next_start(0)
    assert first is not None
    scheduler.use(first, 5.0)
    offer(scheduler, "a", now=1.0)
    assert scheduler.preempt(2.0) is None


def test_many_tenants_endless_runs_leave_places_for_one_that_comes_later() -> None:
    scheduler = Scheduler(2, 10)
    for tenant in range(5):
        for _ in range(20):
            offer(scheduler, f"hog-{tenant}")
    for now in range(1000):
        while scheduler.next_start(now) is not None:
            pass
        for ticket in scheduler.on_slots:
            scheduler.use(ticket, ticket.computed + 1.0)
        if scheduler.preempt(now) is None:
            break
    assert scheduler.begun < scheduler.places
    offer(scheduler, "late", now=2000)
    for _ in range(20):
        while (started := scheduler.next_start(2000)) is not None:
            if started.tenant == "late":
                return
        for ticket in scheduler.on_slots:
            scheduler.use(ticket, ticket.computed + 1.0)
        scheduler.preempt(2000)
    raise AssertionError("all places were held by others")


def test_a_tenant_never_has_more_runs_under_way_than_it_may() -> None:
    scheduler = Scheduler(4)
    for _ in range(4):
        assert isinstance(scheduler.offer("a", 0, queue_length=9, concurrent=2), Ticket)
    assert [scheduler.next_start(0) is not None for _ in range(4)] == [True, True, False, False]
    assert isinstance(scheduler.offer("b", 0, queue_length=9, concurrent=2), Ticket)
    other = scheduler.next_start(0)
    assert other is not None
    assert other.tenant == "b"


def test_a_run_that_may_not_wait_is_refused_with_what_keeps_it_from_starting() -> None:
    scheduler = Scheduler(2)
    for _ in range(2):
        assert isinstance(scheduler.offer("a", 0, queue_length=9, concurrent=1, may_wait=False), Ticket | NotAdmitted)
        scheduler.next_start(0)
    assert scheduler.offer("a", 0, queue_length=9, concurrent=1, may_wait=False) == NotAdmitted("concurrent_runs", 1, 1)
    assert isinstance(scheduler.offer("b", 0, queue_length=9, may_wait=False), Ticket)
    scheduler.next_start(0)
    assert scheduler.offer("c", 0, queue_length=9, may_wait=False) == NotAdmitted("queue_length", 0, 0)


def test_a_flood_of_one_tenant_leaves_half_of_the_common_queue_to_others() -> None:
    scheduler = Scheduler(1, total_queue=20)
    offer(scheduler, "busy")
    assert scheduler.next_start(0) is not None
    answers = [scheduler.offer("greedy", 0, queue_length=1000) for _ in range(50)]
    assert scheduler.queued == 10
    assert answers[-1] == NotAdmitted("queue_length", 10, 20, engine_wide=True)
    assert isinstance(scheduler.offer("modest", 0, queue_length=1000), Ticket)

"""Admission and the fair pick: bounded, work-conserving, deterministic, fair by weight, and nobody starves."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.scheduler import ASSUMED_CPU_S, Refused, Scheduler, Ticket

TENANTS = ["a", "b", "c", "d"]
costs = st.floats(0, 2.0)


class Admission(RuleBasedStateMachine):
    """Any order of calls, compared with a plain account of who waits and who runs."""

    SLOTS = 3
    BOUND = 4

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(self.SLOTS)
        self.now = 0.0
        self.waiting: dict[str, list[Ticket]] = {tenant: [] for tenant in TENANTS}
        self.running: list[Ticket] = []

    @rule(tenant=st.sampled_from(TENANTS), weight=st.sampled_from([0.5, 1.0, 4.0]), step=st.floats(0, 10))
    def offer(self, tenant: str, weight: float, step: float) -> None:
        self.now += step
        answer = self.scheduler.offer(tenant, self.now, queue_length=self.BOUND, weight=weight)
        if isinstance(answer, Refused):
            assert len(self.waiting[tenant]) >= self.BOUND
            assert len(self.running) == self.SLOTS
            assert (answer.length, answer.bound) == (len(self.waiting[tenant]), self.BOUND)
        else:
            assert len(self.waiting[tenant]) < self.BOUND or len(self.running) < self.SLOTS
            assert (answer.tenant, answer.offered_at, answer.started_at) == (tenant, self.now, None)
            self.waiting[tenant].append(answer)

    @rule()
    def start(self) -> None:
        ticket = self.scheduler.next_start(self.now)
        someone_waits = any(self.waiting.values())
        if len(self.running) == self.SLOTS or not someone_waits:
            assert ticket is None
            return
        assert ticket is not None, "a slot is free and somebody waits"
        assert ticket.started_at == self.now
        assert self.waiting[ticket.tenant].pop(0) is ticket, "within a tenant, first come, first served"
        self.running.append(ticket)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), cpu_s=costs)
    def finish(self, data: st.DataObject, cpu_s: float) -> None:
        ticket = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.scheduler.finish(ticket, cpu_s)

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


TestAdmission = Admission.TestCase
TestAdmission.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


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


def test_nobody_starves_however_many_newcomers_come() -> None:
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
    assert refused == Refused(bound, bound)
    assert scheduler.queued == bound


def test_a_full_queue_of_one_tenant_refuses_no_other() -> None:
    scheduler = Scheduler(1)
    offer(scheduler, "a", queue_length=1)
    scheduler.next_start(0)
    offer(scheduler, "a", queue_length=1)
    assert isinstance(scheduler.offer("a", 0, queue_length=1), Refused)
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
    assert len(scheduler._accounts) < 10


def test_accounts_of_tenants_with_one_run_each_are_forgotten() -> None:
    scheduler = Scheduler(1)
    for number in range(1000):
        offer(scheduler, f"tenant-{number}", now=number)
        ticket = scheduler.next_start(number)
        assert ticket is not None
        scheduler.finish(ticket, 0.001)
    assert len(scheduler._accounts) < 10


def test_refused_tenants_leave_no_account_behind_for_long() -> None:
    scheduler = Scheduler(1)
    offer(scheduler, "busy")
    ticket = scheduler.next_start(0)
    assert ticket is not None
    for number in range(100):
        assert isinstance(scheduler.offer(f"tenant-{number}", 0, queue_length=0), Refused)
    scheduler.finish(ticket, 0.0)
    assert set(scheduler._accounts) <= {"busy"}

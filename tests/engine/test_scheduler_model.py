"""The scheduler's orders change no decision: any history gets the answers of the one that looks at every tenant."""

from random import Random

from effort import effort
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_scheduler import PlainScheduler

from engine.scheduling.indexed_heap import IndexedHeap
from engine.scheduling.scheduler import PATIENCE_S, SLICE_S, NotAdmitted, Scheduler, Ticket

# Few different amounts, so that tenants are often level with each other and ties are decided too.
AMOUNTS = (0.0, 0.001, SLICE_S, 0.01, 0.1, 1.0)
STEPS = (0.0, 0.0, 0.001, PATIENCE_S, 1.0)
LIKELY = {
    "offer": 12, "next_start": 8, "preempt": 4, "use": 4, "wait_for_the_host": 2, "wake": 2, "finish": 4, "withdraw": 1,
}  # fmt: skip


class Both:
    """The scheduler and its model: each call goes to both, and what they answer is compared."""

    def __init__(self, random: Random, slots: int, places: int, total_queue: int | None, tenants: int) -> None:
        self.random = random
        self.ours = Scheduler(slots, places, total_queue)
        self.model = PlainScheduler(slots, places, total_queue)
        self.tenants = [f"t{number}" for number in range(tenants)]
        self.now = 0.0
        self.pairs: dict[Ticket | None, Ticket | None] = {None: None}  # ours -> the model's
        self.queued: list[Ticket] = []
        self.started: list[Ticket] = []  # on slots or suspended

    def step(self) -> None:
        """One call, drawn at random of those that are legal now."""
        self.now += self.random.choice(STEPS)
        needs = {"withdraw": self.queued} | dict.fromkeys(("use", "wait_for_the_host", "wake", "finish"), self.started)
        legal = [name for name in LIKELY if needs.get(name, True)]
        (name,) = self.random.choices(legal, [LIKELY[name] for name in legal])
        getattr(self, name)()
        self.compare()

    def offer(self) -> None:
        draw = self.random.choice
        tenant, length, weight = draw(self.tenants), draw((0, 1, 3, 100, 100)), draw((0.5, 1.0, 1.0, 4.0))
        concurrent, may_wait, at_once = (
            draw((None, None, None, 0, 1, 2, 5)),
            draw((True, True, True, False)),
            draw((True, False)),
        )
        given = {"queue_length": length, "weight": weight, "concurrent": concurrent, "may_wait": may_wait}
        alone = not self.model.waiting and self.model.running < self.model.slots
        one = self.ours.offer(tenant, self.now, **given, at_once=at_once)
        two = self.model.offer(tenant, self.now, **given)
        if isinstance(one, NotAdmitted) or isinstance(two, NotAdmitted):
            assert one == two
            return
        self.pairs[one] = two
        if one.started_at is None:
            self.queued.append(one)
            # It would have been the next one, but that its tenant may have no more at once.
            assert not (at_once and alone) or self.model.next_start(self.now) is None
        else:
            assert at_once
            assert alone
            assert self.model.next_start(self.now) is two
            self.started.append(one)

    def next_start(self) -> None:
        ticket = self.ours.next_start(self.now)
        assert self.pairs[ticket] is self.model.next_start(self.now)
        if ticket in self.queued:
            self.queued.remove(ticket)
            self.started.append(ticket)

    def preempt(self) -> None:
        assert self.pairs[self.ours.preempt(self.now)] is self.model.preempt(self.now)

    def use(self) -> None:
        ticket, more, charge = self.random.choice(self.started), self.random.choice(AMOUNTS), self.random.random() / 10
        self.ours.use(ticket, ticket.computed + more, charge)
        self.model.use(self.other(ticket), ticket.computed, charge)

    def wait_for_the_host(self) -> None:
        ticket = self.random.choice(self.started)
        if not ticket.suspended:
            ticket.waiting_since = self.other(ticket).waiting_since = self.now

    def wake(self) -> None:
        ticket = self.random.choice(self.started)
        self.ours.wake(ticket, self.now)
        self.model.wake(self.other(ticket), self.now)

    def finish(self) -> None:
        ticket, more = self.started.pop(self.random.randrange(len(self.started))), self.random.choice(AMOUNTS)
        self.ours.finish(ticket, ticket.computed + more)
        self.model.finish(self.other(ticket), ticket.computed + more)

    def withdraw(self) -> None:
        ticket = self.queued.pop(self.random.randrange(len(self.queued)))
        self.ours.withdraw(ticket)
        self.model.withdraw(self.other(ticket))

    def other(self, ticket: Ticket) -> Ticket:
        other = self.pairs[ticket]
        assert other is not None
        return other

    def compare(self) -> None:
        """Every counter, flow and ticket; and that the orders hold what the flows say."""
        ours, model = self.ours, self.model
        for name in ("running", "begun", "queued", "waiting", "_present"):
            assert getattr(ours, name) == getattr(model, name), name
        assert [self.pairs[ticket] for ticket in ours.on_slots] == list(model.on_slots)
        for tenant in self.tenants:
            assert ours.queued_of(tenant) == model.queued_of(tenant)
            assert ours.begun_of(tenant) == model.begun_of(tenant)
        assert [(n, a.virtual) for n, a in ours._flows.items()] == [(n, a.virtual) for n, a in model._flows.items()]
        for ticket in self.started:
            for name in Ticket.__slots__:
                assert getattr(ticket, name) == getattr(self.other(ticket), name), name
        flows = ours._flows.values()
        orders = {needs: set(order._entries) for needs, order in ours._wanting.items()}
        assert all(orders.values()), "no order is empty"
        assert set().union(*orders.values()) == {a for a in flows if a.ready or a.queue}
        for needs, order in orders.items():
            for flow in order:
                assert flow.needs == needs
                assert (needs <= ours.places - ours.begun) == (bool(flow.ready) or ours._may_begin(flow))
        assert set(ours._computing._entries) == {a for a in flows if a.running}
        assert set(ours._idle._entries) == {a for a in flows if not a.active}
        assert ours._unbegun == {a for a in flows if a.queue and not a.begun}


@given(
    random=st.integers(0, 2**32 - 1).map(Random),
    slots=st.integers(1, 6),
    more=st.integers(0, 12),
    total_queue=st.sampled_from([None, None, 6, 40]),
    tenants=st.integers(1, 30),
)
@settings(max_examples=effort(100), deadline=None)
def test_every_decision_is_the_one_of_who_looks_at_every_tenant(
    random: Random, slots: int, more: int, total_queue: int | None, tenants: int
) -> None:
    both = Both(random, slots, slots + more, total_queue, tenants)
    for _ in range(300):
        both.step()


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.sampled_from([0.0, 1.0, 2.0]))))
def test_the_first_is_always_the_least_of_what_is_there(changes: list[tuple[int, float | None]]) -> None:
    order: IndexedHeap[int] = IndexedHeap()
    plain: dict[int, tuple[float, float, int]] = {}
    for item, value in changes:
        if value is None:
            order.drop(item)
            plain.pop(item, None)
        else:
            plain[item] = (value, 0.0, item)
            order.put(item, plain[item])
        assert order.first() == min(((key, item) for item, key in plain.items()), default=None)
        assert (len(order), order._entries.keys()) == (len(plain), plain.keys())


def test_an_item_that_changes_its_key_for_ever_takes_no_more_memory() -> None:
    order: IndexedHeap[str] = IndexedHeap()
    order.put("first", (0.0, 0.0, 0))
    for number in range(1, 10_000):
        order.put("restless", (float(number), 0.0, 1))
        order.drop(f"absent {number}")
    assert len(order._heap) < 100


def test_a_tenant_that_asks_and_goes_away_for_ever_takes_no_more_memory() -> None:
    scheduler = Scheduler(1)
    scheduler.offer("busy", 0.0, queue_length=1)
    assert scheduler.next_start(0.0) is not None
    for number in range(10_000):
        ticket = scheduler.offer("fickle", number, queue_length=1)
        assert isinstance(ticket, Ticket)
        scheduler.withdraw(ticket)
    orders = (scheduler._idle, scheduler._computing, *scheduler._wanting.values())
    assert sum(len(order._heap) for order in orders) < 100

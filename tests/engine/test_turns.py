"""When a waiting run gets a slot: turns beside workers that compute unless suspended, on a clock of our own."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from engine.quota import bind_quotas
from engine.scheduling.scheduler import SLICE_S, Scheduler, Ticket
from engine.scheduling.turns import BUSY_POLL_S, POLL_S, Turn, Turns
from engine.tenant import Tenant
from engine.workers.worker import Worker


class Computing:
    """A worker that uses all the CPU time it is let have."""

    awaiting = False
    owed_s = 0.0
    judging_cpu_s = 0.0
    payer: Turn | None = None

    def hold_memory(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def __init__(self) -> None:
        self._used = 0.0
        self._since: float | None = trio.current_time()

    def run_cpu_s(self) -> float:
        return self._used + (0.0 if self._since is None else trio.current_time() - self._since)

    def suspend(self) -> None:
        self._used, self._since = self.run_cpu_s(), None

    def resume(self) -> None:
        self._since = trio.current_time()


class World:
    """One slot. Runs begin as soon as they are given their start."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(1, 8)
        self.turns = Turns(self.scheduler, None, self.begin, lambda now: None)
        self.under_way: dict[Ticket, tuple[Turn, ExitStack]] = {}

    def ask(self, tenant: str) -> Ticket:
        ticket = self.scheduler.offer(tenant, trio.current_time(), queue_length=9)
        assert isinstance(ticket, Ticket)
        self.turns.make_room()
        return ticket

    def begin(self, ticket: Ticket) -> None:
        tenant, worker = Tenant(ticket.tenant), Computing()
        turn = self.turns.begin(tenant, bind_quotas(tenant, {}, 1), ticket)
        run = ExitStack()
        run.enter_context(turn.run_on(cast(Worker, worker), 60.0))
        self.under_way[ticket] = turn, run

    def end(self, ticket: Ticket) -> None:
        turn, run = self.under_way.pop(ticket)
        run.close()
        self.turns.end(turn)

    @property
    def suspended(self) -> int:
        return self.scheduler.begun - self.scheduler.running

    @property
    def computing(self) -> list[str]:
        return [ticket.tenant for ticket in self.scheduler.on_slots]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        world = World()
        nursery.start_soon(world.turns.watch)
        yield world
        nursery.cancel_scope.cancel()
        for _, run in world.under_way.values():
            run.close()


async def test_who_asks_rarely_gets_the_slot_of_one_that_never_stops_at_once(
    world: World, autojump_clock: MockClock
) -> None:
    world.ask("hog")
    await trio.sleep(1)
    modest = world.ask("modest")
    assert world.computing == ["modest"]
    assert world.suspended == 1
    world.end(modest)
    assert world.computing == ["hog"]
    assert world.suspended == 0


async def test_who_begins_to_wait_in_a_long_pause_is_looked_at_after_a_short_one(
    world: World, autojump_clock: MockClock
) -> None:
    world.ask("one")
    await trio.sleep(POLL_S / 10)
    world.ask("other")
    assert world.computing == ["one"], "it has not had its slice"
    await trio.sleep(BUSY_POLL_S * 1.5)
    assert world.computing == ["other"]
    assert BUSY_POLL_S * 1.5 < POLL_S * 0.9


async def test_two_that_never_stop_take_turns_of_a_slice_or_a_little_more(
    world: World, autojump_clock: MockClock
) -> None:
    world.ask("one")
    world.ask("other")
    held, since = [], trio.current_time()
    holder = world.computing
    while len(held) < 20:
        await trio.sleep(BUSY_POLL_S / 10)
        if world.computing != holder:
            held.append(trio.current_time() - since)
            holder, since = world.computing, trio.current_time()
    # A step is the clock's of this test, and so is the first look.
    assert min(held[1:]) >= SLICE_S - BUSY_POLL_S / 5
    assert max(held) <= SLICE_S + 2 * BUSY_POLL_S + BUSY_POLL_S / 5


async def test_a_turn_that_ends_while_it_is_suspended_gives_its_place_back(
    world: World, autojump_clock: MockClock
) -> None:
    hog = world.ask("hog")
    await trio.sleep(1)
    world.ask("modest")
    assert world.suspended == 1
    world.end(hog)
    assert world.suspended == 0
    assert world.computing == ["modest"]

"""Making a load: requests leave at their intended times (open model), or when the one before has ended (closed).

In the open model a slow target does not slow the requests down, as a slow server does not keep users from coming: one
that stalls finds the requests of the stall waiting, and their latency counts from when they were meant to leave. In the
closed model each of so many clients waits for its answer; a stall then hides all the requests that it kept from being
made (coordinated omission).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import trio

from benchmarks.account import NO_ANSWER, Answer, Recorder, phases
from benchmarks.scenario import Ask
from benchmarks.schedule import WHOLE, Arrivals, Chooser, Load, Request, Share, Stream, arrivals, streams
from benchmarks.timer import SleepUntil

# What was meant to leave within the time leaves, even if the tester wakes up late for the last of it; one that is this
# far behind is not going to catch up.
_GRACE_S = 0.5

# A tester that is behind sends what is overdue at once, but lets answers be read in between.
_BURST = 32


class Target(Protocol):
    """Who is asked. `send` never raises for what the target does: that is an outcome."""

    async def send(self, request: Request) -> Answer: ...


Timer = Callable[[], AbstractContextManager[SleepUntil]]


def trio_timer() -> AbstractContextManager[SleepUntil]:
    """Trio's own clock: for tests, whose clock is not the machine's."""
    return nullcontext(trio.sleep_until)


async def make_load(
    load: Load,
    asks: Sequence[Ask],
    tenants: Sequence[str],
    target: Target,
    account: Recorder,
    *,
    zipf: float = 0.0,
    tenant_zipf: float = 0.0,
    share: Share = WHOLE,
    start_at: float | None = None,
    timer: Timer = trio_timer,
) -> None:
    """Ask the target as the load says, and count into `account`. Returns when every request has ended.

    `start_at` is a time of trio's clock. Cancelling gives up what is under way and counts it as unfinished.
    """
    made = _Made(load, target, account, trio.current_time() if start_at is None else start_at, asks)
    async with trio.open_nursery() as nursery:
        for number, stream in enumerate(streams(asks, zipf, load)):
            chooser = Chooser(stream, tenants, tenant_zipf, load, share, number)
            if load.rate is not None:
                times = arrivals(stream, load, share, number)
                nursery.start_soon(made.pace, stream, times, chooser, max(1, share.of(load.max_in_flight)), timer)
            else:
                assert load.concurrency is not None
                for _ in range(share.of(max(1, round(load.concurrency * stream.times)))):
                    nursery.start_soon(made.repeat, stream, chooser)


class _Made:
    """One load under way, in one process. Times inside are seconds from `begin`."""

    def __init__(self, load: Load, target: Target, account: Recorder, begin: float, asks: Sequence[Ask]) -> None:
        self._load = load
        self._target = target
        self._account = account
        self._begin = begin
        self._phases = phases([ask.start for ask in asks if ask.beside], load.duration_s, load.warm_up_s)

    async def pace(self, stream: Stream, times: Arrivals, chooser: Chooser, at_once: int, timer: Timer) -> None:
        """Open model: one task for each request, at its time."""
        load, account = self._load, self._account
        async with trio.open_nursery() as nursery:
            with timer() as sleep_until:
                burst = 0
                while (due := times.next()) is not None:
                    now = self._now()
                    if now < due:
                        await sleep_until(self._begin + due)
                        now, burst = self._now(), 0
                    elif (burst := burst + 1) % _BURST == 0:
                        await trio.lowlevel.checkpoint()
                        now = self._now()
                    if now >= load.total_s + _GRACE_S:
                        account.drop_rest((due >= load.warm_up_s) + times.rest(load.warm_up_s))
                        return
                    request = chooser.next()
                    if account.in_flight >= at_once:
                        account.drop(due)
                        continue
                    account.left(due, now)
                    nursery.start_soon(self._ask, stream, request, due)

    async def repeat(self, stream: Stream, chooser: Chooser) -> None:
        """Closed model: one client that asks again as soon as it was answered."""
        await trio.sleep_until(self._begin + stream.start)
        while (now := self._now()) < self._load.total_s:
            self._account.left(now, now)
            await self._ask(stream, chooser.next(), now)

    async def _ask(self, stream: Stream, request: Request, due: float) -> None:
        answer = Answer(outcome=NO_ANSWER)
        try:
            with trio.move_on_after(self._load.timeout_s):
                answer = await self._target.send(request)
        except BaseException:  # cancelled, in most cases by an interrupt
            self._account.cut_off()
            raise
        phase = next((name for end, name in self._phases if due < end), None) if stream.main else None
        self._account.ended(request, due, self._now(), answer, phase)

    def _now(self) -> float:
        return trio.current_time() - self._begin

"""Making a load: requests are sent at their due times (open model), or when the one before has ended (closed model).

In the open model a slow target does not slow the requests down, as a slow server does not keep users from coming: after
a stall, the requests of the stall are waiting, and their latency counts from their due time. In the closed model each
of so many clients waits for its answer; a stall then hides the requests that it prevented (coordinated omission).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import trio

from benchmarks.load.account import NO_ANSWER, Answer, Recorder, phases
from benchmarks.load.schedule import WHOLE, Arrivals, Chooser, Load, Request, Share, Stream, arrivals, streams
from benchmarks.load.timer import SleepUntil
from benchmarks.scenario import Ask

# Requests due within the load's time are sent even if the tester wakes up late for the last of them; a tester that is
# this far behind will not catch up.
_GRACE_S = 0.5

# A tester that is behind sends overdue requests at once, in bursts of this size: answers are read in between.
_BURST = 32


class Target(Protocol):
    """The target of a load. `send` never raises for an error of the target: that is an outcome."""

    async def send(self, request: Request) -> Answer: ...


Timer = Callable[[], AbstractContextManager[SleepUntil]]


def trio_timer() -> AbstractContextManager[SleepUntil]:
    """A timer on Trio's own clock: for tests, whose clock is not the machine's."""
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
    """Make the load on the target, and count into `account`. Returns when every request has ended.

    `start_at` is a time of trio's clock. Cancelling gives up the requests in flight and counts them as unfinished.
    """
    made = _Made(load, target, account, trio.current_time() if start_at is None else start_at, asks)
    async with trio.open_nursery() as nursery:
        for number, stream in enumerate(streams(asks, zipf, load)):
            chooser = Chooser(stream, tenants, tenant_zipf, load, share, number)
            if load.rate is not None:
                times = arrivals(stream, load, share, number)
                nursery.start_soon(made.pace, stream, times, chooser, max(1, share.part(load.max_in_flight)), timer)
            else:
                assert load.concurrency is not None
                for _ in range(share.part(max(1, round(load.concurrency * stream.times)))):
                    nursery.start_soon(made.repeat, stream, chooser)


class _Made:
    """One load in progress, in one process. Times inside are seconds from `begin`."""

    def __init__(self, load: Load, target: Target, account: Recorder, begin: float, asks: Sequence[Ask]) -> None:
        self._load = load
        self._target = target
        self._account = account
        self._begin = begin
        self._phases = phases([ask.start for ask in asks if ask.beside], load.duration_s, load.warm_up_s)

    async def pace(self, stream: Stream, times: Arrivals, chooser: Chooser, at_once: int, timer: Timer) -> None:
        """Open model: one task for each request, at its due time."""
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
                    account.sent(due, now)
                    nursery.start_soon(self._ask, stream, request, due)

    async def repeat(self, stream: Stream, chooser: Chooser) -> None:
        """Closed model: one client that sends the next request as soon as it has an answer."""
        await trio.sleep_until(self._begin + stream.start)
        while (now := self._now()) < self._load.total_s:
            self._account.sent(now, now)
            await self._ask(stream, chooser.next(), now)

    async def _ask(self, stream: Stream, request: Request, due: float) -> None:
        answer = Answer(outcome=NO_ANSWER)
        try:
            with trio.move_on_after(self._load.timeout_s):
                answer = await self._target.send(request)
        except BaseException:  # a cancellation, in most cases by an interrupt
            self._account.cut_off()
            raise
        phase = next((name for end, name in self._phases if due < end), None) if stream.main else None
        self._account.ended(request, due, self._now(), answer, phase)

    def _now(self) -> float:
        return trio.current_time() - self._begin

"""What a client that gave a progress token hears of a run: what the script reports, else its host calls."""

import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from agents.agent import Call
from engine.run import CallRecord
from engine.tenant import Tenant

# How many reports may wait for a slow reader; older ones are dropped, as only the newest matters.
BACKLOG = 32
# A run is long from here on: its host calls are told, at most this often. Short runs end before anybody looks.
LONG_S = 1.0
EVERY_S = 0.25
# Nobody knows how many host calls a run will make, so each moves the bar by this part of what is left of it.
_STEP = 1e-4

Report = tuple[float, str | None]
Send = Callable[[float, float | None, str | None], Awaitable[None]]


class Progress:
    """Decides what is told. Values only ever increase, as MCP demands; the total is 1.

    Once a script reports for itself, its host calls are no longer told: it knows better.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._told = -math.inf
        self._last = -math.inf
        self._reported = False

    def report(self, fraction: float, message: str | None) -> Report | None:
        """The script said how far it is."""
        if not self._last < fraction < math.inf:
            return None
        self._reported = True
        self._last = fraction
        return fraction, message

    def call(self, record: CallRecord, now: float) -> Report | None:
        """The script made a host call."""
        if self._reported or now - self._started < LONG_S or now - self._told < EVERY_S:
            return None
        last = max(self._last, 0.0)
        self._told = now
        self._last = last + (1 - last) * _STEP
        return self._last, record.name


@asynccontextmanager
async def told(tenant: Tenant, send: Send) -> AsyncIterator[Call]:
    """A call whose progress goes to `send(progress, total, message)`; the last of it before the block ends.

    Progress comes from the run as it happens, and a client may read slowly: a task of its own sends it on.
    """
    progress = Progress(trio.current_time())
    waiting: deque[Report] = deque(maxlen=BACKLOG)
    news, ended = trio.Event(), False

    def tell(report: Report | None) -> None:
        if report is not None:
            waiting.append(report)
            news.set()

    def on_progress(fraction: float, message: str | None) -> None:
        tell(progress.report(fraction, message))

    def on_call(record: CallRecord) -> None:
        tell(progress.call(record, trio.current_time()))

    async def pass_on() -> None:
        nonlocal news
        while True:
            while waiting:
                fraction, message = waiting.popleft()
                await send(fraction, 1.0, message)
            if ended:
                return
            news = trio.Event()
            await news.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_on)
        yield Call(tenant, on_progress, on_call=on_call)
        ended = True
        news.set()

"""Notifications during a run: its progress, for a client that gave a token, and its log lines."""

import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

import trio

from agents.agent import Call
from engine.run import CallRecord, Hearers, LogLine
from engine.tenant import Tenant

# Bound on the reports queued for a slow reader; the oldest are dropped, as only the newest matters.
BACKLOG = 32
# Bound on the log lines queued for it; the newest are dropped and counted. `limits.log_bytes` bounds their bytes.
LINES = 256
# From this duration on a run's host calls are reported, at most once in this interval. Shorter runs need no progress.
LONG_S = 1.0
EVERY_S = 0.25
# The number of host calls of a run is not known in advance, so each moves the bar by this part of the remainder.
_STEP = 1e-4

Report = tuple[float, str | None]
SendProgress = Callable[[float, float | None, str | None], Awaitable[None]]
SendLine = Callable[[LogLine], Awaitable[None]]


class Reports:
    """Decides which reports to send. Values only ever increase, as MCP requires; the total is 1.

    Once a script reports progress itself, its host calls are no longer reported: the script knows better.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._sent_at = -math.inf
        self._last = -math.inf
        self._reported = False

    def report(self, fraction: float, message: str | None) -> Report | None:
        """The report for the script's own progress call, if it is to be sent."""
        if not self._last < fraction < math.inf:
            return None
        self._reported = True
        self._last = fraction
        return fraction, message

    def call(self, record: CallRecord, now: float) -> Report | None:
        """The report for a host call of the script, if it is to be sent."""
        if self._reported or now - self._started < LONG_S or now - self._sent_at < EVERY_S:
            return None
        last = max(self._last, 0.0)
        self._sent_at = now
        self._last = last + (1 - last) * _STEP
        return self._last, record.name


class Waiting:
    """Reports and log lines queued for a slow reader, in order of arrival, both bounded."""

    def __init__(self) -> None:
        self._numbers = count()
        # Invariant: both are in ascending order of their numbers, which are unique.
        self._reports: deque[tuple[int, Report]] = deque(maxlen=BACKLOG)
        self._lines: deque[tuple[int, LogLine]] = deque()
        self._left_out = 0

    def __bool__(self) -> bool:
        return bool(self._reports or self._lines or self._left_out)

    def report(self, report: Report) -> None:
        self._reports.append((next(self._numbers), report))

    def line(self, line: LogLine) -> None:
        if len(self._lines) < LINES and not self._left_out:
            self._lines.append((next(self._numbers), line))
        else:
            self._left_out += 1

    def next(self) -> Report | LogLine:
        """The oldest item; after the lines before a gap, a line that says how many are missing.

        Raises IndexError if the queue is empty.
        """
        if self._lines and (not self._reports or self._lines[0][0] < self._reports[0][0]):
            return self._lines.popleft()[1]
        if self._reports:
            return self._reports.popleft()[1]
        if not self._left_out:
            raise IndexError("nothing waits")
        missing, self._left_out = self._left_out, 0
        return LogLine("warn", f"{missing} log lines were left out: the client reads too slowly")


@asynccontextmanager
async def reporting(
    tenant: Tenant, send_progress: SendProgress | None, send_line: SendLine | None = None
) -> AsyncIterator[Call]:
    """A call whose progress goes to `send_progress(progress, total, message)` and whose log lines go to `send_line`,
    all of them before the block ends. With None, that kind is not sent.

    A client may read more slowly than the run reports, so a separate task sends from a queue.
    """
    progress = Reports(trio.current_time())
    waiting = Waiting()
    news, ended, started = trio.Event(), False, False

    def wake() -> None:
        nonlocal started
        if not started:  # most runs report nothing, and cost no task
            started = True
            nursery.start_soon(pass_on)
        news.set()

    def tell(report: Report | None) -> None:
        if report is not None:
            waiting.report(report)
            wake()

    def on_progress(fraction: float, message: str | None) -> None:
        tell(progress.report(fraction, message))

    def on_call(record: CallRecord) -> None:
        tell(progress.call(record, trio.current_time()))

    def on_log(line: LogLine) -> None:
        waiting.line(line)
        wake()

    async def pass_on() -> None:
        nonlocal news
        while True:
            while waiting:
                item = waiting.next()
                if isinstance(item, LogLine):
                    assert send_line is not None
                    await send_line(item)
                elif send_progress is not None:
                    await send_progress(item[0], 1.0, item[1])
            if ended:
                return
            news = trio.Event()
            await news.wait()

    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield Call(
                tenant,
                Hearers(
                    log=on_log if send_line is not None else None,
                    progress=on_progress if send_progress is not None else None,
                    call=on_call if send_progress is not None else None,
                ),
            )
        except Exception as error:  # raised again once the client has all that the run reported before it failed
            failure = error
        ended = True
        news.set()
    if failure is not None:
        raise failure

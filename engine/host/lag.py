"""The lag of the event loop: the longest time within the last minute in which it polled no input.

trio calls an instrument before and after it waits for input. Between "after" and the next "before" it steps every task
that can run, and serves nothing else: that time is the lag that a client notices. It is measured on two clocks: the
wall clock shows what clients noticed, the thread's CPU clock what the supervisor itself did. Together they distinguish
a core that was given to other processes from a piece of work that was too large.
"""

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import structlog
import trio

from engine.work import LOOP_S

log = structlog.get_logger("engine.lag")

WINDOW_S = 60
# Shorter times are ignored: the CPU clock is a system call (0.2 to 0.9 us), the wall clock is not (0.06 us).
NOTED_S = 0.005
# The CPU clock is read when the last reading is older than this: `cpu_s` is too large by this much at most, for at most
# 500 system calls a second.
MARK_S = 0.002
# At most one log line in this interval: a blocked loop must not also fill the disk.
LOG_EVERY_S = 10.0
# Imports and the loading of scripts block the loop while no client waits: no log line in the first seconds.
STARTING_S = 5.0


class Longest:
    """The largest amount within the last minute, by the second: an amount counts for 60 to 61 s. Pure."""

    def __init__(self) -> None:
        # Invariant: seconds rise strictly, amounts fall strictly; an amount is dropped once a later one is as large.
        self._slots: deque[tuple[int, float]] = deque()

    def add(self, amount: float, now: float) -> None:
        """Record an amount. `now` must not decrease from call to call."""
        second = math.floor(now)
        while self._slots and self._slots[-1][1] <= amount:
            self._slots.pop()
        if not self._slots or self._slots[-1][0] < second:
            self._slots.append((second, amount))

    def within(self, now: float) -> float:
        """The largest amount of the last minute; 0 if there was none."""
        while self._slots and now >= self._slots[0][0] + 1 + WINDOW_S:
            self._slots.popleft()
        return self._slots[0][1] if self._slots else 0.0


@dataclass(frozen=True, slots=True)
class Lag:
    """The longest times of the last minute, in seconds, on each clock; 0 if none was longer than `NOTED_S`."""

    wall_s: float
    cpu_s: float

    def as_json(self) -> dict[str, float]:
        """As `GET /health` shows it."""
        return {"longest": round(self.wall_s * 1e3, 1), "longest_cpu": round(self.cpu_s * 1e3, 1)}


class LoopWatch(trio.abc.Instrument):
    """An instrument that measures the lag of the loop it is added to. An idle loop never calls it."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = Longest(), Longest()
        self._worked: tuple[str, float] | None = None
        self._quiet_until, self._unsaid = time.perf_counter() + STARTING_S, 0
        self._hook()

    def _hook(self) -> None:
        """Make the two functions that trio calls. Closures: with attributes, each iteration took 3 us, not 1."""
        wall, thread_cpu, note = time.perf_counter, time.thread_time, self._note
        # `began` is the start of the present batch of steps.
        # Invariant: the thread's CPU clock was `cpu` at `marked`, at most MARK_S before `began`.
        began = marked = wall()
        cpu = thread_cpu()

        def after_io_wait(timeout: float) -> None:
            nonlocal began, marked, cpu
            began = wall()
            if began - marked > MARK_S:
                marked, cpu = began, thread_cpu()

        def before_io_wait(timeout: float) -> None:
            if wall() - began > NOTED_S:
                note(began, cpu)

        self.after_io_wait = after_io_wait  # type: ignore[method-assign]
        self.before_io_wait = before_io_wait  # type: ignore[method-assign]

    def lag(self) -> Lag:
        """The lag of the last minute."""
        now = time.perf_counter()
        return Lag(self._wall_s.within(now), self._cpu_s.within(now))

    def forget(self) -> None:
        """Drop all measurements."""
        self._wall_s, self._cpu_s = Longest(), Longest()

    def worked(self, tenant: str, seconds: float) -> None:
        """Record that work for this tenant took so long: if it is most of the batch, the log names the tenant."""
        if seconds > NOTED_S and (self._worked is None or seconds > self._worked[1]):
            self._worked = tenant, seconds

    def _note(self, began: float, cpu: float) -> None:
        now = time.perf_counter()
        wall_s = now - began
        cpu_s = min(wall_s, time.thread_time() - cpu)
        self._wall_s.add(wall_s, now)
        self._cpu_s.add(cpu_s, now)
        worked, self._worked = self._worked, None
        if cpu_s <= LOOP_S:  # a core lost to other processes is in the metric; the log is for the supervisor's own work
            return
        if now < self._quiet_until:
            self._unsaid += 1
            return
        tenant = worked[0] if worked is not None and worked[1] > cpu_s / 2 else None
        log.warning(
            "event loop kept", ms=round(wall_s * 1e3), cpu_ms=round(cpu_s * 1e3), tenant=tenant, unsaid=self._unsaid
        )
        self._quiet_until, self._unsaid = now + LOG_EVERY_S, 0


@contextmanager
def watched(watch: LoopWatch) -> Iterator[None]:
    """Add `watch` to the running loop until the block ends."""
    trio.lowlevel.add_instrument(watch)
    try:
        yield
    finally:
        with suppress(KeyError):  # it raised, so trio removed it and logged that
            trio.lowlevel.remove_instrument(watch)

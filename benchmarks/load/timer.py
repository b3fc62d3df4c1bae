"""A precise timer: `trio.sleep_until` is up to a millisecond late, because epoll counts in milliseconds.

A tester that is late measures itself. A timer of the kernel (timerfd_create(2)) wakes within some tens of microseconds.
On systems without it, trio's clock is used, and the lateness shows in the result.
"""

import ctypes
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

SleepUntil = Callable[[float], Awaitable[None]]

_CLOCK_MONOTONIC = 1


class _Times(ctypes.Structure):
    """struct itimerspec: seconds and nanoseconds of the interval, then of the first expiry."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]


@contextmanager
def precise_timer() -> Iterator[SleepUntil]:
    """A `sleep_until` (times of `trio.current_time`) for one task at a time."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    except AttributeError:
        descriptor = -1
    if descriptor < 0:
        yield trio.sleep_until
        return

    async def sleep_until(at: float) -> None:
        wait_ns = round((at - trio.current_time()) * 1e9)
        if wait_ns <= 0:  # a first expiry of zero disarms it
            await trio.lowlevel.checkpoint()
            return
        times = _Times(0, 0, *divmod(wait_ns, 1_000_000_000))
        if libc.timerfd_settime(descriptor, 0, ctypes.byref(times), None) != 0:
            await trio.sleep_until(at)
            return
        await trio.lowlevel.wait_readable(descriptor)
        os.read(descriptor, 8)

    try:
        yield sleep_until
    finally:
        os.close(descriptor)

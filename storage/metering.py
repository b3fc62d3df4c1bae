"""The CPU time of one piece of work, wherever it is spent: on the event loop, in threads, in processes that it starts.

`metered()` begins to count; what is called inside adds to the meter that it finds in the context, which tasks and
threads inherit. Without a meter nothing is counted. Threads of work that can wait do so in `give_way`.
"""

import os
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, ParamSpec, TypeVar

import trio

P = ParamSpec("P")
T = TypeVar("T")

_TICKS = 100  # USER_HZ, which is part of Linux's interface to programs


# How often a thread looks whether the work that comes before its own has ended. It waits no longer than so many times
# what it computed, so that under permanent load it still ends; and in one call no longer in all than `_LONGEST_S`: it
# may hold a lock, for which other writers of a store wait 5 s.
_LOOK_S = 0.001
WAIT_SHARE = 3
_LONGEST_S = 1.0


class Meter:
    """CPU seconds that were spent and not taken yet. Threads may add to it.

    Threads of the work give way while `others` is true, which they call.
    """

    def __init__(self) -> None:
        self.others: Callable[[], bool] | None = None
        self._spent: deque[float] = deque()
        self._on_loop_s = 0.0

    def add(self, cpu_s: float) -> None:
        """Count CPU time, from any thread."""
        self._spent.append(cpu_s)

    def take(self) -> float:
        """What was spent since the last call."""
        taken_s, self._on_loop_s = self._on_loop_s, 0.0
        while self._spent:
            taken_s += self._spent.popleft()
        return taken_s

    @types.coroutine
    def driving(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await `work`, and count what the event loop's thread computes for it: its own steps, and no other task's."""
        resume: Callable[..., Any] = work.send
        given: Any = None
        while True:
            began_s = time.thread_time()
            try:
                asked = resume(given)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self._on_loop_s += time.thread_time() - began_s
            try:
                given, resume = (yield asked), work.send
            except BaseException as error:
                given, resume = error, work.throw


_METER: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """Count what is spent inside the block, in a new meter."""
    meter = Meter()
    token = _METER.set(meter)
    try:
        yield meter
    finally:
        _METER.reset(token)


def spent(cpu_s: float) -> None:
    """Add CPU time to the meter of the context, if there is one."""
    meter = _METER.get()
    if meter is not None:
        meter.add(cpu_s)


def counting(work: Callable[P, T]) -> Callable[P, T]:
    """The function, with the CPU time of the thread that calls it added to the present meter."""
    meter = _METER.get()
    return work if meter is None else partial(_counted, meter, work)


class _Thread(threading.local):
    """What the present thread counts for, its CPU time when it last gave way, and how long it may still wait."""

    meter: Meter | None = None
    since_s = 0.0
    left_s = 0.0


_THREAD = _Thread()


def _counted(meter: Meter, work: Callable[P, T], *args: P.args, **keywords: P.kwargs) -> T:
    began_s = time.thread_time()
    before, _THREAD.meter, _THREAD.since_s, _THREAD.left_s = _THREAD.meter, meter, began_s, _LONGEST_S
    try:
        return work(*args, **keywords)
    finally:
        _THREAD.meter = before
        meter.add(time.thread_time() - began_s)


def give_way() -> None:
    """Called in a thread between two small pieces of work (a chunk, a text): wait, if the work is of the kind that can.

    A thread that computes delays the event loop at each of its system calls, by the time for which it keeps the
    interpreter, and a run has a dozen of them.
    """
    meter = _THREAD.meter
    if meter is None or meter.others is None or not meter.others():
        return
    began_s = time.monotonic()
    until_s = began_s + min(_THREAD.left_s, WAIT_SHARE * (time.thread_time() - _THREAD.since_s))
    while time.monotonic() < until_s and meter.others():
        time.sleep(_LOOK_S)
    _THREAD.left_s -= time.monotonic() - began_s
    _THREAD.since_s = time.thread_time()


async def in_thread(work: Callable[..., T], *args: Any, abandon_on_cancel: bool = False) -> T:
    """As `trio.to_thread.run_sync`, counted. A thread that is abandoned is counted when it ends."""
    return await trio.to_thread.run_sync(counting(work), *args, abandon_on_cancel=abandon_on_cancel)


def has_ended(process: trio.Process) -> bool:
    """Whether the child has ended. Unlike `process.returncode`, it leaves it to `reaped` to wait for it."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # waited for already
        return True


async def reaped(process: trio.Process) -> int:
    """Wait until a child has ended, and count its time and that of the children that it has waited for."""
    with suppress(OSError):  # waited for already
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # noqa: ASYNC222 - it does not block
        await _counted_end(process.pid)
    return await process.wait()


async def _counted_end(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        await trio.lowlevel.wait_readable(pidfd)
        # It has ended and nothing has waited for it: the kernel keeps its times. Of a process of some milliseconds
        # `stat` (proc(5), fields 14 to 17) says nothing; `schedstat` has nanoseconds, of its first thread only.
        own_s, children_s = _times(_read(f"/proc/{pid}/stat").rpartition(")")[2].split())
        spent(max(own_s, int(_read(f"/proc/{pid}/schedstat").split()[0]) / 1e9) + children_s)
    finally:
        trio.lowlevel.notify_closing(pidfd)
        os.close(pidfd)


def _times(fields: Sequence[str]) -> tuple[float, float]:
    """The times of a process and of its children, from the fields of `stat` after its name."""
    user, system, users, systems = map(int, fields[11:15])
    return (user + system) / _TICKS, (users + systems) / _TICKS


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()

"""Which connections have bytes or have ended: one epoll of its own, looked at by one task.

trio wakes everything that is ready in one turn of its loop, a task each: when thousands of connections end at once,
that turn takes seconds. Here a turn has a bound, and a connection on which nothing is asked needs no task. The end of a
connection is seen behind bytes that were not read (EPOLLRDHUP, epoll_ctl(2)), where the kernel has taken them all.
"""

import select
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from time import perf_counter

import trio

# What is told of a connection that is read, and of one that is not: its end. Errors and hang-ups are told of both.
READ = select.EPOLLIN | select.EPOLLRDHUP
HELD = select.EPOLLRDHUP
# Told in the next turn, or as soon as something can be sent: of a connection whose next request is here already.
AGAIN = select.EPOLLOUT

# How much one turn of the event loop may take: events, each of which may start a request of a millisecond or two, and
# seconds of work on them. What is left comes first in the next turn, as the kernel puts what it told to the end of its
# list.
EVENTS = 16
TURN_S = 0.01


class Poller:
    """Calls back for descriptors on which something has happened. Callbacks do not wait and do not raise."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        # Invariant: what the epoll has, and nothing else. A descriptor is removed before it is closed, as its number
        # may be another one's at once.
        self._callbacks: dict[int, Callable[[], None]] = {}

    def add(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Tell of reading from now on."""
        self._epoll.register(descriptor, READ)
        self._callbacks[descriptor] = callback

    def change(self, descriptor: int, mask: int) -> None:
        """Tell of `READ`, only of the end (`HELD`), or once more (`AGAIN`)."""
        self._epoll.modify(descriptor, mask)

    def remove(self, descriptor: int) -> None:
        """Tell of nothing any more."""
        del self._callbacks[descriptor]
        self._epoll.unregister(descriptor)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Call back for as long as the block lasts, also while it is cancelled: it may still close connections."""
        with closing(self._epoll):
            async with trio.open_nursery() as nursery:
                scope = trio.CancelScope(shield=True)
                nursery.start_soon(self._run, scope)
                try:
                    yield
                finally:
                    scope.cancel()

    async def _run(self, scope: trio.CancelScope) -> None:
        number = self._epoll.fileno()
        with scope:
            while True:
                await trio.lowlevel.wait_readable(number)
                until = perf_counter() + TURN_S
                for descriptor, _ in self._epoll.poll(0, EVENTS):
                    if (callback := self._callbacks.get(descriptor)) is not None:
                        callback()
                    if perf_counter() > until:
                        break

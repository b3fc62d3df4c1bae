"""Readiness of connections: a separate epoll, served by one task.

trio wakes everything that is ready in one turn of its loop, a task each: when thousands of connections end at once,
that turn takes seconds. Here a turn has a bound, and an idle connection needs no task. The end of a connection is
reported behind unread bytes (EPOLLRDHUP, epoll_ctl(2)), provided that the kernel has received all of them.
"""

import select
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from time import perf_counter

import trio

# Events for a connection that is being read, and for one that is not: only its end. Errors and hang-ups are always
# reported.
READ = select.EPOLLIN | select.EPOLLRDHUP
HELD = select.EPOLLRDHUP
# For a connection whose next request is buffered: an event in the next turn, or as soon as the socket is writable.
AGAIN = select.EPOLLOUT

# Bounds on one turn of the event loop: events, each of which may start a request of a millisecond or two, and seconds
# of work on them. The remaining ones come first in the next turn, as the kernel moves reported ones to the end of its
# ready list.
EVENTS = 16
TURN_S = 0.01


class Poller:
    """Calls back for descriptors that are ready. Callbacks do not block and do not raise."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        # Invariant: exactly the descriptors in the epoll. A descriptor is removed before it is closed, as its number
        # may be reused at once.
        self._callbacks: dict[int, Callable[[], None]] = {}

    def add(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Report `READ` events from now on."""
        self._epoll.register(descriptor, READ)
        self._callbacks[descriptor] = callback

    def change(self, descriptor: int, mask: int) -> None:
        """Report `READ`, only the end (`HELD`), or one more event (`AGAIN`)."""
        self._epoll.modify(descriptor, mask)

    def remove(self, descriptor: int) -> None:
        """Report nothing any more."""
        del self._callbacks[descriptor]
        self._epoll.unregister(descriptor)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Call back for as long as the block lasts, also after it is cancelled: it may still be closing connections."""
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

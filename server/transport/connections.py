"""The open connections of a server: accepting, bounding, time-outs and shutdown."""

import errno
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext

from engine.errors import Code, Problem
from server.http.asgi import App
from server.logs import log
from server.transport.http1 import CLOSE_S, Connection, Surroundings, raw_answer
from server.transport.places import Phase, Places
from server.transport.poller import Poller
from server.transport.streams import RECEIVE_BYTES

# Bound on the connections accepted, or closed by the sweep, in one turn of the event loop.
AT_ONCE = 64
# Interval of the sweep that closes idle and slow connections. A deadline for each would be set twice a request.
SWEEP_S = 1.0
# How long a server that shuts down still accepts connections, to answer them with an error.
LATE_S = 1.0
# Pause before the next accept when there are no file descriptors left.
_SHORT_S = 0.1
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
# Socket options of the listener; accepted connections inherit them.
_OPTIONS = (
    (socket.TCP_NODELAY, 1),
    # A client that vanished without a FIN is found after two minutes (tcp(7)), even on a stream with nothing to send.
    (socket.TCP_KEEPIDLE, 60),
    (socket.TCP_KEEPINTVL, 10),
    (socket.TCP_KEEPCNT, 6),
    # The kernel buffers this much unsent data, instead of megabytes: as trio's streams do.
    (socket.TCP_NOTSENT_LOWAT, 16 * 1024),
)

_FULL = "too many connections are open (server.max_connections, server.max_connections_per_address)"
_SLOW = "too many connections are open, and this request was too slow"


class Connections:
    """The open connections of a server, bounded: clients must not exhaust the file descriptors of the process."""

    def __init__(self, around: Surroundings, bound: int, bound_of_address: int, head_timeout_s: float) -> None:
        self._around = around
        self._bound = bound
        self._bound_of_address = bound_of_address
        self._head_timeout_s = head_timeout_s
        # Invariant: a connection is in _places, and in the places of its account if it has one, from `open` until it is
        # closed and its last task has ended. Accounts without connections are removed.
        self._places: Places[Connection] = Places()
        self._of_account: dict[str, Places[Connection]] = {}
        self._empty = trio.Event()

    def __len__(self) -> int:
        return len(self._places)

    def all(self) -> list[Connection]:
        """The connections that are open, or whose tasks have not ended."""
        return self._places.all()

    async def gone(self) -> None:
        """Wait until no connections are left."""
        while self._places:
            self._empty = trio.Event()
            await self._empty.wait()

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections, up to AT_ONCE of the backlog in a turn. Runs until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(listener)
            for _ in range(AT_ONCE):
                try:
                    client, address = listener.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in _SHORT:
                        log.warning("no connection can be accepted", reason=error.strerror)
                        await trio.sleep(_SHORT_S)
                        break
                    continue  # this client has disconnected already (accept(2), "Error handling")
                self._admit(client, address)

    def _admit(self, client: socket.socket, address: Any) -> None:
        client.setblocking(False)
        account = _account(address[0] if isinstance(address, tuple) else "")
        of_account = self._of_account.get(account)
        if self._has_room(self._places, self._bound) and self._has_room(of_account, self._bound_of_address):
            try:
                connection = Connection(self._around, self._place, client, address, account)
            except OSError:  # disconnected already
                client.close()
            else:
                connection.open()
        else:
            _refuse(client, self._around.config)

    def _has_room(self, places: Places[Connection] | None, bound: int) -> bool:
        """Whether there is room for one more; at the bound, the connection that has waited longest for its client is
        closed.
        """
        if places is None or len(places) < bound:
            return True
        spare = places.spare(trio.current_time())
        if spare is not None:
            spare.give_up(Problem(Code.UNAVAILABLE, _SLOW, retry_after_s=1))
            spare.shut()
        return spare is not None

    def _place(self, connection: Connection, phase: Phase | None) -> None:
        old, connection.phase, connection.since = connection.phase, phase, trio.current_time()
        self._places.move(connection, old, phase)
        if account := connection.account:
            of_account = self._of_account.setdefault(account, Places())
            of_account.move(connection, old, phase)
            if not of_account:
                del self._of_account[account]
        if not self._places:
            self._empty.set()

    async def sweep(self) -> None:
        """Close connections whose client is idle or slow for too long. Runs until cancelled."""
        slow = Problem(
            Code.BODY_TIMEOUT, f"the head of the request was not complete after {self._head_timeout_s:g} seconds"
        )
        while True:
            await trio.sleep(SWEEP_S)
            now = trio.current_time()
            await self._sweep(Phase.IDLE, now - self._around.config.keep_alive_timeout, Connection.leave)
            await self._sweep(Phase.HEAD, now - self._head_timeout_s, lambda one: one.give_up(slow))
            await self._sweep(Phase.CLOSING, now - CLOSE_S, Connection.shut)

    async def _sweep(self, phase: Phase, before: float, close: Callable[[Connection], None]) -> None:
        closed = 0
        while (connection := self._places.oldest(phase, before)) is not None:
            close(connection)
            closed += 1
            if closed % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    async def terminate(self) -> None:
        """Close connections without a request in flight; every other one closes after its answer."""
        await self._around.context.terminated.set()
        self.dismiss_all()

    def dismiss_all(self) -> None:
        """Close connections without a request in flight."""
        for connection in self.all():
            connection.dismiss()

    def abort_all(self) -> None:
        """Abort every open connection."""
        for connection in self.all():
            if connection.phase is not Phase.CLOSING:
                log.warning("connection cut")
            connection.leave()


@lru_cache(maxsize=1024)
def _account(address: str) -> str:
    """The account for the connections of an address: an IPv6 network of 64 bits counts as one client.

    "", no account, for this machine: mostly a proxy for many clients.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or found
    if found.is_loopback:
        return ""
    return found.packed[:8].hex() if isinstance(found, IPv6Address) else str(found)


def _refuse(client: socket.socket, config: Config) -> None:
    """Answer that there is no room; without waiting, as a connection that waits takes a place itself."""
    with client, suppress(OSError):
        client.send(raw_answer(config, Problem(Code.UNAVAILABLE, _FULL, retry_after_s=1)))
        client.shutdown(socket.SHUT_WR)
        client.recv(RECEIVE_BYTES)  # closing with unread bytes resets the connection


async def serve(
    app: App,
    listeners: list[trio.SocketListener],
    config: Config,
    *,
    stop: Callable[[], Awaitable[Any]],
    max_connections: int,
    max_connections_per_address: int,
    head_timeout_s: float,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` returns; then drain, and abort what has not ended within `config.graceful_timeout`.

    New connections are accepted for `LATE_S` more, or until no request is in flight, to be answered with an error.
    `app` answers only HTTP; the caller opens and closes its resources, around this call.
    """
    poller, stopped = Poller(), trio.Event()
    async with poller.running(), trio.open_nursery() as cutting:
        async with trio.open_nursery() as serving:
            around = Surroundings(app, config, WorkerContext(None), poller, serving)
            connections = Connections(around, max_connections, max_connections_per_address, head_timeout_s)
            cutting.start_soon(connections.sweep)
            cutting.start_soon(_cut, connections, stopped, config.graceful_timeout)
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(_accept, connections, listener)
                task_status.started()
                await stop()
                await connections.terminate()
                serving.cancel_scope.deadline = trio.current_time() + config.graceful_timeout
                stopped.set()
                with trio.move_on_after(LATE_S):
                    await connections.gone()
                accepting.cancel_scope.cancel()
            connections.dismiss_all()
        with trio.move_on_after(CLOSE_S):  # clients may still be reading their last answer
            await connections.gone()
        cutting.cancel_scope.cancel()


async def _accept(connections: Connections, listener: trio.SocketListener) -> None:
    """Accept from a listener until cancelled, and close it."""
    # trio's own `accept` takes a turn of the loop for each connection. Accepted sockets inherit the options.
    with listener.socket, socket.socket(fileno=os.dup(listener.socket.fileno())) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _OPTIONS:
            own.setsockopt(socket.IPPROTO_TCP, option, value)
        own.setblocking(False)
        await connections.accept(own)


async def _cut(connections: Connections, stopped: trio.Event, seconds: float) -> None:
    """Abort what cancellation does not end: a write to a client that does not read is shielded from it."""
    try:
        await stopped.wait()
        await trio.sleep(seconds)
    finally:
        connections.dismiss_all()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(CLOSE_S):
                await connections.gone()
            connections.abort_all()

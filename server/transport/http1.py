"""HTTP/1.1 on trio: Hypercorn's streams and h11's answers, in a shell hardened for untrusted clients.

Hypercorn's own `serve` also speaks HTTP/2 and WebSocket, which nothing here uses: a request to switch is ignored, as
RFC 9110 section 7.8 allows, so that there is one protocol to defend. Other differences:

- malformed or ambiguous requests get an error in the envelope (`framing`), however they are split into packets;
- reading needs no task: `poller` calls back, and a request starts the task that answers it;
- an application learns of a disconnect through a callback (`ON_DISCONNECT`), whatever the client sent before;
- a client that stops reading is dropped after `WRITE_TIMEOUT_S`: writes are shielded from cancellation, so such a
  client would delay the end of the process;
- no broken connection ends the server;
- an answer with a known length leaves in one packet;
- a plain request with a plain answer (`plain`) bypasses h11 and Hypercorn's events, which cost more than all other
  work on it here. If the answer turns out not to be plain, h11 writes it.
"""

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from time import time
from typing import Any, cast

import h11
import trio
from hypercorn.config import Config
from hypercorn.protocol.events import Response
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from engine.errors import Code, Problem, leaf
from server.http.asgi import App
from server.logs import report
from server.problems import problem_answer
from server.transport.framing import Chunked, FramingError, Sized, find_end, read_head
from server.transport.places import Phase
from server.transport.plain import PlainRequest, read_request
from server.transport.poller import AGAIN, HELD, READ, Poller
from server.transport.streams import RECEIVE_BYTES, PlainStream, Stream, http_scope, more_lines

# A client that reads nothing for this long counts as gone. Long enough for a closed laptop lid and a lost Wi-Fi.
WRITE_TIMEOUT_S = 30.0
# Bound on pipelined bytes that are kept. All are read, because a full kernel buffer hides the end of the connection;
# bytes above the bound are discarded, and the answer in progress is the connection's last.
AHEAD_BYTES = 64 * 1024
# After the last answer: how long a client may take to close, and how much it may still send. Closing with unread bytes
# resets the connection, and a reset may overtake the answer (RFC 9112, 9.6). The second also bounds the pipelined bytes
# that are discarded.
CLOSE_S = 1.0
LINGER_BYTES = 1024 * 1024

_CLOSE = (b"connection", b"close")


def raw_answer(config: Config, problem: Problem, status: int | None = None, *, bodiless: bool = False) -> bytes:
    """The bytes of an answer that ends its connection, for use without a stream."""
    answer = problem_answer(problem, status)
    lines = b"".join([b"%s: %s\r\n" % header for header in [*answer.headers, _CLOSE]])
    more = more_lines(config, int(time()))
    return b"HTTP/1.1 %d \r\n%s%s\r\n%s" % (answer.status, lines, more, b"" if bodiless else answer.body)


class Http1(H11Protocol):
    """The protocol of one connection: bytes to requests, answers to bytes."""

    def __init__(self, shell: "Connection", app: App, *arguments: Any) -> None:
        super().__init__(cast(Any, app), *arguments)
        self.application = app
        self._shell = shell
        # Received bytes that are not parsed yet; the first `_searched` are known not to contain the end of a head.
        self._buffer = b""
        self._searched = 0
        # Pipelined bytes that were discarded.
        self._forgotten = 0
        # Reader of the request's body while that is incomplete. Invariant: None without a request.
        self._body: Sized | Chunked | None = None
        # The plain request in flight; `stream` is one through h11. Both are set once h11 has taken over.
        self._plain: PlainStream | None = None
        self.stream: Stream | None = None
        # The head of an answer, held until its body is sent.
        self._held = b""
        # Whether no byte of the answer is sent, and whether the answer must have no body.
        self._silent = True
        self._bodiless = False
        # Whether the client waits for a 100 before it sends its body.
        self._expected = False

    # ---- receiving -----------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a complete request is being answered; no bytes are parsed meanwhile."""
        return self._plain is not None or (self.stream is not None and self._body is None)

    @property
    def settled(self) -> bool:
        """Whether all bytes received belong to complete requests."""
        return not self._buffer and self._body is None and not self._forgotten

    @property
    def last(self) -> bool:
        """Whether the connection ends with the answer in progress."""
        return self._forgotten > 0 or self.context.terminated.is_set()

    def keep(self, data: bytes) -> bool:
        """Keep pipelined bytes, up to AHEAD_BYTES. Returns False once more than LINGER_BYTES were discarded."""
        if not self._forgotten and len(self._buffer) + len(data) <= AHEAD_BYTES:
            self._buffer += data
        else:
            self._forgotten += len(self._buffer) + len(data)
            self._buffer = b""
        return self._forgotten <= LINGER_BYTES

    def take(self, data: bytes) -> None:
        """Parse received bytes, and start the requests in them. Does not block."""
        if self._buffer:
            data = self._buffer + data
        self._buffer = b""
        if self._body is None and (request := self._plain_request(data)) is not None:
            self._begin(False)
            self._plain = PlainStream(self, request)
            self._shell.start(self._plain.run)
            return
        self._buffer = data
        try:
            while self._buffer and not self.busy and self._advance():
                pass
        except FramingError as error:
            code = Code.TOO_LARGE if error.status in (413, 431) else Code.BAD_REQUEST
            self.conclude(Problem(code, error.message), error.status)

    def _plain_request(self, data: bytes) -> PlainRequest | None:
        """The plain request in these bytes, unless h11 is needed for its answer."""
        if self.keep_alive_requests + 1 >= self.config.keep_alive_max_requests:
            return None
        return read_request(data)

    def _begin(self, bodiless: bool) -> None:
        self.keep_alive_requests += 1
        self._searched = 0
        self._silent, self._bodiless = True, bodiless
        self._shell.place(Phase.BUSY)

    def _advance(self) -> bool:
        """Parse a head, or a piece of a body. Returns whether more may be parsed. Raises FramingError."""
        return self._take_head() if self._body is None else self._take_body(self._body)

    def _take_head(self) -> bool:
        end = find_end(self._buffer, self._searched)
        if not end:
            self._searched = len(self._buffer)
            self._shell.place(Phase.HEAD)
            return False
        head, self._buffer = read_head(self._buffer[:end]), self._buffer[end:]
        self._begin(head.method == b"HEAD")
        self._tell_h11(head.method, head.minor, head.values(b"connection"))
        scope = http_scope(self, head.method.decode(), head.target, head.headers)
        scope["http_version"] = f"1.{head.minor}"
        self._body, self._expected = head.body, head.expects
        self.stream = Stream(self, self.application)
        self.stream.open(scope)
        self._shell.start(self.stream.run)
        if head.body is None:
            self.stream.complete()
        else:
            self._shell.place(Phase.BODY)
        return True

    def _take_body(self, body: Sized | Chunked) -> bool:
        assert self.stream is not None
        data, used, complete = body.feed(self._buffer)
        self._buffer = self._buffer[used:]
        if data or complete:
            self._expected = False
        if data and not self.stream.put(data):
            self._shell.hold()
        if complete:
            self._body = None
            self._shell.place(Phase.BUSY)
            self.stream.complete()
        return complete

    def _tell_h11(self, method: bytes, minor: int, connection: list[bytes]) -> None:
        """Feed h11 what it needs to know for the answer. It never parses the client's own bytes: `framing` has."""
        state = cast(h11.Connection, self.connection)
        lines = b"".join([b"connection: %s\r\n" % value for value in connection])
        state.receive_data(b"%s / HTTP/1.%d\r\nhost: h\r\n%s\r\n" % (method, min(minor, 1), lines))
        state.next_event()
        state.next_event()

    def want_more(self) -> None:
        """Read on: the application has taken all that was received of the body."""
        self._shell.read()

    async def ask_for_body(self) -> None:
        """Send a 100 if the client waits for one before it sends the body (RFC 9110 section 10.1.1)."""
        if self._expected:
            self._expected = False
            await self._shell.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def leave(self) -> None:
        """Cancel the work: the client disconnected."""
        plain, stream = self._plain, self.stream
        self._plain = self.stream = self._body = None
        self._buffer = b""
        if plain is not None:
            plain.leave()
        if stream is not None:
            stream.leave()

    # ---- answering -----------------------------------------------------------------------------------------------

    def conclude(self, problem: Problem, status: int | None = None) -> None:
        """End the connection with a problem as the answer; with nothing if part of an answer is sent already."""
        unread = not self.settled
        if self._silent:
            self._shell.write_now(raw_answer(self.config, problem, status, bodiless=self._bodiless))
        self.leave()
        self._shell.finish(unread)

    async def answer_plainly(self, plain: PlainStream, data: bytes) -> None:
        """Send the whole answer to a plain request, then continue with the next request."""
        self._silent = False
        if rest := self._shell.write_now(data):
            await self._shell.write(rest)
        self._plain = None
        plain.end()
        self._cycle(self.last)

    def _cycle(self, over: bool) -> None:
        """Continue with the next request after a complete answer, or close the connection if it is `over`."""
        if over:
            self._shell.finish(not self.settled)
            return
        self._silent, self._bodiless = True, False
        self._shell.rest(bool(self._buffer))

    def take_over(self) -> Stream:
        """Have h11 write the answer to a plain request."""
        self._tell_h11(b"GET", 1, [])
        self.stream = stream = Stream(self, self.application)
        return stream

    async def stream_send(self, event: Any) -> None:
        if self.last and isinstance(event, Response) and _CLOSE not in event.headers:
            event.headers.append(_CLOSE)
        await super().stream_send(event)

    async def _close_stream(self) -> None:
        plain, self._plain = self._plain, None
        if plain is not None:
            plain.end()
        await super()._close_stream()

    async def _maybe_recycle(self) -> None:
        await self._close_stream()
        state = cast(h11.Connection, self.connection)
        kept = state.our_state is h11.DONE and state.their_state is h11.DONE and self._body is None and not self.last
        if kept:
            state.start_next_cycle()
        self._cycle(not kept)

    async def _send_h11_event(self, event: Any) -> None:
        data = self.connection.send(event)
        assert data is not None
        # A head with a length is held, to leave in one packet with its body; the head of a stream must not wait.
        if isinstance(event, h11.Response) and any(name == b"content-length" for name, _ in event.headers):
            self._held = data
            return
        if self._held:
            data, self._held = self._held + data, b""
        if data:
            self._silent = False
            await self._shell.write(data)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Objects shared by the connections of one server."""

    app: App
    config: Config
    context: WorkerContext
    poller: Poller
    nursery: trio.Nursery


class Connection:
    """One client's connection, from accept to close. Raises nothing.

    `place` is called with the connection and its new phase; None once it is closed and its tasks have ended.
    """

    def __init__(
        self,
        around: Surroundings,
        place: Callable[["Connection", Phase | None], None],
        client: socket.socket,
        address: Any,
        account: str,
    ) -> None:
        self._around = around
        self._place = place
        self._socket = client
        self._number = client.fileno()
        self._writing = trio.Lock()
        # Events that the poller reports. Invariant: HELD only while the application has not taken the buffered part of
        # the body, AGAIN only while the next request is buffered and waits for its turn.
        self._mask = READ
        self._lingered = 0
        # Number of tasks that answer requests of this connection.
        self._tasks = 0
        self.closed = False
        # The phase and the time of its beginning, set by `place`; and the account that the connection counts for.
        self.phase: Phase | None = None
        self.since = 0.0
        self.account = account
        self._protocol = Http1(
            self, around.app, around.config, around.context, cast(Any, None), ConnectionState({}), False,
            parse_socket_addr(client.family, address), parse_socket_addr(client.family, client.getsockname()),
            cast(Any, None),
        )  # fmt: skip

    def open(self) -> None:
        """Register with the poller. Bytes that are here already are read in turn: a new connection does not overtake
        the open ones.
        """
        self.place(Phase.IDLE)
        self._around.poller.add(self._number, self.on_events)

    # ---- reading -------------------------------------------------------------------------------------------------

    def on_events(self) -> None:
        """Handle an event from the poller: bytes, or the end of the connection."""
        if self.phase is Phase.CLOSING:
            self._linger()
        elif self._mask == AGAIN:
            self._watch(READ)
            self.take(b"")
        elif self._mask == HELD:
            self.leave()
        elif not (data := self._receive()):
            if data is not None:
                self.leave()
        elif not self._protocol.busy:
            self.take(data)
        elif not self._protocol.keep(data):
            self.leave()

    def take(self, data: bytes) -> None:
        """Pass received bytes to the protocol."""
        try:
            self._protocol.take(data)
        except Exception as error:
            report(leaf(error), "connection")
            self.leave()

    def _receive(self) -> bytes | None:
        """Received bytes: b"" at the end of the stream, None if there are none so far."""
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def hold(self) -> None:
        """Pause reading the body. The poller still reports the end of the connection, unless the kernel's buffer is
        full.
        """
        self._watch(HELD)

    def read(self) -> None:
        """Resume reading."""
        self._watch(READ)

    def _watch(self, mask: int) -> None:
        if mask != self._mask and not self.closed:
            self._mask = mask
            self._around.poller.change(self._number, mask)

    def _linger(self) -> None:
        data = self._receive()
        self._lingered += len(data or b"")
        if data == b"" or self._lingered > LINGER_BYTES:
            self.shut()

    # ---- tasks ---------------------------------------------------------------------------------------------------

    def start(self, run: Callable[[], Awaitable[None]]) -> None:
        """Start a task that answers a request."""
        self._tasks += 1
        self._around.nursery.start_soon(self._run, run)

    async def _run(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except Exception as error:
            report(leaf(error), "connection")
            self.leave()
        finally:
            self._tasks -= 1
            self._forget()

    def place(self, phase: Phase) -> None:
        """Enter a phase."""
        if phase is not self.phase and not self.closed:
            self._place(self, phase)

    def rest(self, pending: bool) -> None:
        """Become idle; or, with a `pending` request, wait for its turn: pipelined requests count against the bound of a
        turn of the loop as requests on separate connections do.
        """
        if not self._over:
            self.place(Phase.IDLE)
            self._watch(AGAIN if pending else READ)

    # ---- writing -------------------------------------------------------------------------------------------------

    @property
    def _over(self) -> bool:
        """Whether the last answer is sent."""
        return self.closed or self.phase is Phase.CLOSING

    def write_now(self, data: bytes) -> bytes | memoryview:
        """Send what the kernel accepts at once, nearly always everything; return the rest. Needs no scope and no wait.

        Errors of the connection are left for `write` to find.
        """
        with suppress(OSError):
            if not (self._over or self._writing.locked()):
                sent = self._socket.send(data)
                return b"" if sent == len(data) else memoryview(data)[sent:]
        return data

    async def write(self, data: bytes | memoryview) -> None:
        """Send all bytes, or find that the client is gone. An answer cut off by a cancellation looks like a broken
        server, so writes are shielded; a client that stops reading ends them."""
        try:
            self._writing.acquire_nowait()
        except trio.WouldBlock:
            await self._writing.acquire()
        try:
            rest = memoryview(data)
            while rest and not self._over:
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError:
                    self.place(Phase.TAKING)
                    await self._writable()
                except OSError:
                    self.leave()
        finally:
            self._writing.release()
            if self.phase is Phase.TAKING:
                self.place(Phase.BUSY)

    async def _writable(self) -> None:
        with trio.move_on_after(WRITE_TIMEOUT_S, shield=True) as scope, suppress(trio.ClosedResourceError):
            await trio.lowlevel.wait_writable(self._number)
        if scope.cancelled_caught:
            self.leave()

    # ---- the end -------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Close the connection and cancel the work for it: the client disconnected, or is dropped."""
        self.shut()
        self._protocol.leave()

    def give_up(self, problem: Problem, status: int | None = None) -> None:
        """Close a connection without a complete request in flight; answer with the problem if part of one is here."""
        if self.phase in (Phase.HEAD, Phase.BODY):
            self._protocol.conclude(problem, status)
        else:
            self.leave()

    def dismiss(self) -> None:
        """Close the connection at shutdown if no request is in flight (a partial head does not count)."""
        if self.phase in (Phase.IDLE, Phase.HEAD):
            self.leave()

    def finish(self, unread: bool) -> None:
        """Close the connection after the last answer. If bytes may be `unread`, the client gets time to close first."""
        if self._over:
            return
        if self._writing.locked() or not (unread or self._mask == HELD):
            self.shut()
            return
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.shut()
            return
        self.place(Phase.CLOSING)
        self._watch(READ)

    def shut(self) -> None:
        """Close the socket, and wake a task that writes to it."""
        if self.closed:
            return
        self.place(Phase.BUSY)  # until its tasks have ended
        self.closed = True
        self._around.poller.remove(self._number)
        if self._writing.locked():
            trio.lowlevel.notify_closing(self._number)
        self._socket.close()
        self._forget()

    def _forget(self) -> None:
        if self.closed and not self._tasks and self.phase is not None:
            self._place(self, None)

"""HTTP/1.1 on trio: Hypercorn's streams and h11's answers, in a shell that a server for strangers needs.

Hypercorn's own `serve` also speaks HTTP/2 and WebSocket, which nothing here uses: a request to switch is ignored, as
RFC 9110 section 7.8 allows, so that there is one protocol to defend. What else differs:

- what is no request, or more than one, is refused in the envelope (`server.framing`), whatever packets it comes in;
- reading costs no task: `server.poller` calls back, a request starts the task that answers it;
- an application hears of a client that left through a callback (`ON_DISCONNECT`), whatever the client sent before;
- a client that stops reading is given up after `WRITE_TIMEOUT_S`: writes are shielded from cancellation, so such a
  client would hold up the end of the process;
- no broken connection ends the server;
- an answer with a known length leaves in one packet;
- a plain request that is answered plainly (`server.plain`) goes past h11 and Hypercorn's events, which cost more than
  all else that is done for it here. As soon as the answer is less plain, h11 writes it.
"""

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from time import time
from typing import Any, cast
from urllib.parse import unquote

import h11
import trio
from hypercorn.config import Config
from hypercorn.protocol.events import Response
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from engine.errors import Code, Problem, leaf
from server.asgi import BODY, ON_DISCONNECT, App, Message
from server.framing import Chunked, FramingError, Sized, find_end, read_head
from server.logs import report
from server.places import Phase
from server.plain import PlainRequest, has_length, read_request, write_answer
from server.poller import AGAIN, HELD, READ, Poller
from server.problems import internal, problem_answer

# How much is read from a connection at once.
RECEIVE_BYTES = 64 * 1024
# How much of a body may wait for the application; beyond it the client waits.
BACKLOG_BYTES = 4 * RECEIVE_BYTES
# A reader that takes nothing for this long is gone. Long enough for a laptop's lid and a lost Wi-Fi.
WRITE_TIMEOUT_S = 30.0
# How much may be sent ahead of the answer to a request. It is read, as the end of a connection cannot be seen behind
# what the kernel has no room for; what is more is forgotten, and the answer under way is the last.
AHEAD_BYTES = 64 * 1024
# After the last answer, how long a client may take to close, and how much it may still send: closing with unread bytes
# would reset the connection, and a reset may overtake the answer (RFC 9112, 9.6). As much may be forgotten ahead.
CLOSE_S = 1.0
LINGER_BYTES = 1024 * 1024

_CLOSE = (b"connection", b"close")
_SHUTTING_DOWN = "the server is shutting down"


def raw_answer(config: Config, problem: Problem, status: int | None = None, *, bodiless: bool = False) -> bytes:
    """The bytes of an answer that ends its connection, for where no stream can say it."""
    answer = problem_answer(problem, status)
    lines = b"".join([b"%s: %s\r\n" % header for header in [*answer.headers, _CLOSE]])
    more = _more_lines(config, int(time()))
    return b"HTTP/1.1 %d \r\n%s%s\r\n%s" % (answer.status, lines, more, b"" if bodiless else answer.body)


def _http_scope(protocol: "Http1", method: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """What an application is told of a request."""
    path, _, query = target.partition(b"?")
    return {
        "type": "http",
        "http_version": "1.1",
        "asgi": {"spec_version": "2.3", "version": "3.0"},
        "method": method,
        "scheme": "http",
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": protocol.client,
        "server": protocol.server,
        "state": {},
        "extensions": {},
    }


class Stream(HTTPStream):
    """One request and its answer, by way of h11."""

    def __init__(self, protocol: "Http1", app: App) -> None:
        super().__init__(
            cast(Any, app), protocol.config, protocol.context, cast(Any, None), False, protocol.client,
            protocol.server, protocol.stream_send, STREAM_ID,
        )  # fmt: skip
        self._protocol = protocol
        self._application = app
        self._pieces: list[bytes] = []
        self._size = 0
        # Whether all of the body is here, and whether the application has it.
        self._complete = False
        self._passed_on = False
        # Set when there is something to receive.
        self._news = trio.Event()
        self._on_disconnect: Callable[[], None] | None = None

    def open(self, scope: dict[str, Any]) -> None:
        """The request's head is here."""
        scope[ON_DISCONNECT] = self._watch
        self.start_time = 0.0  # for an access log, which there is not
        self.scope = cast(Any, scope)

    def put(self, data: bytes) -> bool:
        """A piece of the body. Returns whether there is room for more."""
        self._pieces.append(data)
        self._size += len(data)
        self._news.set()
        return self._size < BACKLOG_BYTES

    def complete(self) -> None:
        """The body is all here."""
        self._complete = True
        self._news.set()

    def take_over(self, scope: dict[str, Any], on_disconnect: Callable[[], None]) -> None:
        """Carry the answer of an application that runs already, and has the request."""
        self._passed_on = True
        self.start_time = 0.0
        self.scope = cast(Any, scope)
        self._on_disconnect = on_disconnect

    def _watch(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when the client leaves before its answer is complete; at once if it has left."""
        if self.closed:
            callback()
        else:
            self._on_disconnect = callback

    def leave(self) -> None:
        """The client is gone, or has its answer."""
        if self.closed:
            return
        self.closed = True
        self._news.set()
        if self._on_disconnect is not None and self.state is not ASGIHTTPState.CLOSED:
            self._on_disconnect()

    async def handle(self, event: Any) -> None:
        """What Hypercorn tells of the stream is that it is closed."""
        self.leave()

    async def _receive_message(self) -> Message:
        if not self._pieces and not self._complete:
            await self._protocol.ask_for_body()
        while not self.closed:
            if self._pieces or (self._complete and not self._passed_on):
                data, self._pieces, self._size = b"".join(self._pieces), [], 0
                self._passed_on = self._complete
                self._protocol.want_more()
                return {"type": "http.request", "body": data, "more_body": not self._complete}
            self._news = trio.Event()
            await self._news.wait()
        return {"type": "http.disconnect"}

    async def run(self) -> None:
        """Have the application answer."""
        problem = None
        try:
            await self._application(cast(Any, self.scope), self._receive_message, cast(Any, self.app_send))
        except Exception as error:
            problem = internal(report(leaf(error), "application"))
        finally:
            if not self.closed:
                self._protocol.conclude(problem or Problem(Code.UNAVAILABLE, _SHUTTING_DOWN))


class PlainStream:
    """A plain request, complete as it came, and its answer: h11's only if it turns out not to be plain."""

    def __init__(self, protocol: "Http1", request: PlainRequest) -> None:
        self._protocol = protocol
        self._request = request
        self._scope = _http_scope(protocol, request.method, request.target, request.headers)
        self._scope[ON_DISCONNECT] = self._watch
        self._scope[BODY] = request.body
        self._read = False
        # The head of the answer: it waits for the body, which says whether both are plain.
        self._begun: Message | None = None
        # Set when h11 has taken over.
        self._stream: Stream | None = None
        # Invariant: `_over` is true when the answer is complete or the client is gone, and then `_ended` is set.
        self._over = False
        self._ended: trio.Event | None = None
        self._on_disconnect: Callable[[], None] | None = None

    async def run(self) -> None:
        """Have the application answer."""
        problem = None
        try:
            await self._protocol.application(self._scope, self._receive, self._send)
        except Exception as error:
            problem = internal(report(leaf(error), "application"))
        finally:
            if not self._over:
                self._protocol.conclude(problem or Problem(Code.UNAVAILABLE, _SHUTTING_DOWN))

    def _watch(self, callback: Callable[[], None]) -> None:
        if self._over:
            callback()
        else:
            self._on_disconnect = callback

    async def _receive(self) -> Message:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        if not self._over:
            self._ended = self._ended or trio.Event()
            await self._ended.wait()
        return {"type": "http.disconnect"}

    def end(self) -> None:
        """The answer is complete, or the client is gone."""
        self._over = True
        if self._ended is not None:
            self._ended.set()

    def leave(self) -> None:
        """The client is gone."""
        if not self._over:
            self.end()
            if self._on_disconnect is not None:
                self._on_disconnect()

    async def _send(self, message: Message) -> None:
        if self._stream is None:
            if self._over:  # the client is gone
                return
            if self._begun is None and message["type"] == "http.response.start" and has_length(message["headers"]):
                self._begun = message
                return
            if self._begun is not None and not message.get("more_body", False):
                body = message.get("body", b"")
                more = _more_lines(self._protocol.config, int(time()))
                if self._protocol.last:
                    more += b"connection: close\r\n"
                data = write_answer(self._begun["status"], self._begun["headers"], body, more)
                if data is not None:
                    await self._protocol.answer_plainly(self, data)
                    return
            await self._hand_over()
        await cast(Stream, self._stream).app_send(cast(Any, message))

    async def _hand_over(self) -> None:
        """Let h11 have the request after all, and the answer as far as it is known."""
        self._stream = self._protocol.take_over()
        self._stream.take_over(self._scope, self.leave)
        if self._begun is not None:
            await self._stream.app_send(cast(Any, self._begun))


@lru_cache(maxsize=1)
def _more_lines(config: Config, second: int) -> bytes:
    """The lines that Hypercorn adds to every answer; its date is true for a second."""
    return b"".join(b"%s: %s\r\n" % header for header in config.response_headers("h11"))


class Http1(H11Protocol):
    """One connection's protocol: bytes to requests, answers to bytes."""

    def __init__(self, shell: "Connection", app: App, *arguments: Any) -> None:
        super().__init__(cast(Any, app), *arguments)
        self.application = app
        self._shell = shell
        # Bytes that no request has taken yet, of which so many are known to have no end of a head.
        self._buffer = b""
        self._searched = 0
        # Bytes that were sent too far ahead, and forgotten.
        self._forgotten = 0
        # What is still to come of the body of the request under way. Invariant: None where there is no request.
        self._body: Sized | Chunked | None = None
        # The plain request under way, and a stream if there is one by way of h11: both where that has taken over.
        self._plain: PlainStream | None = None
        self.stream: Stream | None = None
        # The head of an answer that waits for its body.
        self._held = b""
        # Whether nothing was said yet of the answer under way, and whether it must have no body.
        self._silent = True
        self._bodiless = False
        # The client waits for a 100 before it sends its body.
        self._expected = False

    # ---- what the client sends -----------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a complete request is being answered: then no more is taken."""
        return self._plain is not None or (self.stream is not None and self._body is None)

    @property
    def settled(self) -> bool:
        """Whether all that was taken belongs to requests that are complete."""
        return not self._buffer and self._body is None and not self._forgotten

    @property
    def last(self) -> bool:
        """Whether the connection ends with the answer under way."""
        return self._forgotten > 0 or self.context.terminated.is_set()

    def keep(self, data: bytes) -> bool:
        """Keep what was sent ahead of the answer under way. Returns whether it is not far too much."""
        if not self._forgotten and len(self._buffer) + len(data) <= AHEAD_BYTES:
            self._buffer += data
        else:
            self._forgotten += len(self._buffer) + len(data)
            self._buffer = b""
        return self._forgotten <= LINGER_BYTES

    def take(self, data: bytes) -> None:
        """Take what came, and begin what it asks for. Nothing here waits."""
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
        """The plain request that these bytes are, where h11 need say nothing of it."""
        if self.keep_alive_requests + 1 >= self.config.keep_alive_max_requests:
            return None
        return read_request(data)

    def _begin(self, bodiless: bool) -> None:
        self.keep_alive_requests += 1
        self._searched = 0
        self._silent, self._bodiless = True, bodiless
        self._shell.place(Phase.BUSY)

    def _advance(self) -> bool:
        """Take a head, or a piece of a body. Returns whether there may be more to take. Raises FramingError."""
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
        scope = _http_scope(self, head.method.decode(), head.target, head.headers)
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
        """Have h11 know what it needs for the answer. It never reads the client's own bytes, which were judged here."""
        state = cast(h11.Connection, self.connection)
        lines = b"".join([b"connection: %s\r\n" % value for value in connection])
        state.receive_data(b"%s / HTTP/1.%d\r\nhost: h\r\n%s\r\n" % (method, min(minor, 1), lines))
        state.next_event()
        state.next_event()

    def want_more(self) -> None:
        """The application has taken what there is of its body."""
        self._shell.read()

    async def ask_for_body(self) -> None:
        """The application wants the body: tell a client that waits for this to send it (RFC 9110 section 10.1.1)."""
        if self._expected:
            self._expected = False
            await self._shell.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def leave(self) -> None:
        """The client is gone: end the work for it."""
        plain, stream = self._plain, self.stream
        self._plain = self.stream = self._body = None
        self._buffer = b""
        if plain is not None:
            plain.leave()
        if stream is not None:
            stream.leave()

    # ---- what it is told -----------------------------------------------------------------------------------------

    def conclude(self, problem: Problem, status: int | None = None) -> None:
        """End the connection with a problem in place of an answer; without a word if half of another was said."""
        unread = not self.settled
        if self._silent:
            self._shell.write_now(raw_answer(self.config, problem, status, bodiless=self._bodiless))
        self.leave()
        self._shell.finish(unread)

    async def answer_plainly(self, plain: PlainStream, data: bytes) -> None:
        """The whole answer to a plain request; then the next one may come."""
        self._silent = False
        if rest := self._shell.write_now(data):
            await self._shell.write(rest)
        self._plain = None
        plain.end()
        self._cycle(self.last)

    def _cycle(self, over: bool) -> None:
        """An answer is complete: go on with the next request, unless the connection is `over`."""
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
        # The head waits for the body when that follows at once; the head of a stream must not wait.
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
    """What the connections of one server share."""

    app: App
    config: Config
    context: WorkerContext
    poller: Poller
    nursery: trio.Nursery


class Connection:
    """One client's connection, from accept to close. Raises nothing.

    `place` is called with the connection and what it waits for from now on; None: it is closed, its tasks have ended.
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
        # What the poller tells. Invariant: HELD only while the application has yet to take what there is of a body,
        # AGAIN only while the next request is here and its turn has not come.
        self._mask = READ
        self._lingered = 0
        # Tasks that answer requests of this connection.
        self._tasks = 0
        self.closed = False
        # What is waited for, and since when: kept by `place`. The account on which it is.
        self.phase: Phase | None = None
        self.since = 0.0
        self.account = account
        self._protocol = Http1(
            self, around.app, around.config, around.context, cast(Any, None), ConnectionState({}), False,
            parse_socket_addr(client.family, address), parse_socket_addr(client.family, client.getsockname()),
            cast(Any, None),
        )  # fmt: skip

    def open(self) -> None:
        """Begin. What is here already is read in its turn: a new connection does not overtake those that are kept."""
        self.place(Phase.IDLE)
        self._around.poller.add(self._number, self.on_events)

    # ---- reading -------------------------------------------------------------------------------------------------

    def on_events(self) -> None:
        """What the poller tells: bytes, or the end."""
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
        """Have the protocol take what came."""
        try:
            self._protocol.take(data)
        except Exception as error:
            report(leaf(error), "connection")
            self.leave()

    def _receive(self) -> bytes | None:
        """What the client sent: b"" at its end, None if there is nothing yet."""
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def hold(self) -> None:
        """Take no more of a body for now. The end of the connection is seen behind what the kernel has room for."""
        self._watch(HELD)

    def read(self) -> None:
        """Take more."""
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
        """Note what is waited for from now on."""
        if phase is not self.phase and not self.closed:
            self._place(self, phase)

    def rest(self, pending: bool) -> None:
        """Nothing is asked; or what is `pending` comes in its turn: requests that were sent at once are as bounded in
        one turn of the loop as those that come one by one.
        """
        if not self._over:
            self.place(Phase.IDLE)
            self._watch(AGAIN if pending else READ)

    # ---- writing -------------------------------------------------------------------------------------------------

    @property
    def _over(self) -> bool:
        """Whether the last answer was said."""
        return self.closed or self.phase is Phase.CLOSING

    def write_now(self, data: bytes) -> bytes | memoryview:
        """Send what the kernel takes at once, which is nearly always all; returns the rest. Needs no scope and no wait.

        What is wrong with the connection is for `write` to find.
        """
        with suppress(OSError):
            if not (self._over or self._writing.locked()):
                sent = self._socket.send(data)
                return b"" if sent == len(data) else memoryview(data)[sent:]
        return data

    async def write(self, data: bytes | memoryview) -> None:
        """Send all of it, or find that the client is gone. An answer that is cut in the middle by a cancellation would
        be taken for a broken server: writes are shielded, and bounded by what the client takes."""
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
        """The client is gone, or is given up: close the connection and end the work for it."""
        self.shut()
        self._protocol.leave()

    def give_up(self, problem: Problem, status: int | None = None) -> None:
        """Close a connection on which no complete request is being answered; say why if half of one is here."""
        if self.phase in (Phase.HEAD, Phase.BODY):
            self._protocol.conclude(problem, status)
        else:
            self.leave()

    def dismiss(self) -> None:
        """The server ends: close the connection if no request is under way (half a head is none)."""
        if self.phase in (Phase.IDLE, Phase.HEAD):
            self.leave()

    def finish(self, unread: bool) -> None:
        """The last answer was said: close the connection. Where bytes may be `unread`, the client has time to do so."""
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
        """Close the socket. What writes on it is woken."""
        if self.closed:
            return
        self.place(Phase.BUSY)  # with what its tasks have yet to end
        self.closed = True
        self._around.poller.remove(self._number)
        if self._writing.locked():
            trio.lowlevel.notify_closing(self._number)
        self._socket.close()
        self._forget()

    def _forget(self) -> None:
        if self.closed and not self._tasks and self.phase is not None:
            self._place(self, None)

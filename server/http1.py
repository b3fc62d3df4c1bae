"""HTTP/1.1 on trio: Hypercorn's protocol, with the few things changed that a server for strangers needs.

Hypercorn's own `serve` also speaks HTTP/2 and WebSocket, which nothing here uses: a request to switch is ignored, as
RFC 9110 section 7.8 allows, so that there is one protocol to defend. What else differs:

- what h11 refuses is answered in the envelope;
- an application hears of a client that left through a callback, which costs no task (`ON_DISCONNECT`);
- a client that stops reading is given up after `WRITE_TIMEOUT_S`: writes are shielded from cancellation, so such a
  client would hold up the end of the process;
- no broken connection ends the server;
- an answer with a known length leaves in one packet;
- a plain request that is answered plainly (`server.plain`) goes past h11 and Hypercorn's events, which cost more than
  all else that is done for it here. As soon as either is less plain, h11 gets the request as it came.
"""

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain
from math import inf
from socket import MSG_PEEK
from time import time
from typing import Any, cast
from urllib.parse import unquote

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Request, StreamClosed
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.trio.worker_context import EventWrapper, WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from engine.errors import Code, Problem, leaf
from server.asgi import BODY, ON_DISCONNECT, App, Message
from server.logs import log, report
from server.plain import PlainRequest, has_length, read_request, write_answer
from server.problems import problem_answer

# How much is read from a connection at once.
RECEIVE_BYTES = 64 * 1024
# How many pieces of a body may wait for the application; beyond it the client waits.
BACKLOG = 10
# A reader that takes nothing for this long is gone. Long enough for a laptop's lid and a lost Wi-Fi.
WRITE_TIMEOUT_S = 30.0
# After the farewell, how long a connection may take to close before it is cut.
CLOSE_S = 1.0
# How often connections on which nothing is asked are looked at. Deadlines of their own would be set twice a request.
SWEEP_S = 1.0


def _http_scope(
    protocol: "Http1", method: str, target: bytes, headers: list[tuple[bytes, bytes]], watch: Callable[..., None]
) -> dict[str, Any]:
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
        ON_DISCONNECT: watch,
    }


class Stream(HTTPStream):
    """One request and its answer, by way of h11."""

    def __init__(self, protocol: "Http1", start: Callable[..., None], app: App) -> None:
        super().__init__(
            cast(Any, app), protocol.config, protocol.context, cast(Any, None), False, protocol.client,
            protocol.server, protocol.stream_send, STREAM_ID,
        )  # fmt: skip
        self._protocol = protocol
        self._application = app
        self._start = start
        self._put, self._receive = trio.open_memory_channel[Message](BACKLOG)
        # The last piece of the body so far: it waits for the next event, which says whether there are more.
        self._last: bytes | None = None
        self._on_disconnect: Callable[[], None] | None = None

    async def handle(self, event: Any) -> None:
        if self.closed:
            return
        if isinstance(event, Request):
            self._open(event)
        elif isinstance(event, Body):
            if self._last is not None:
                await self._pass_on({"type": "http.request", "body": self._last, "more_body": True})
            self._last = bytes(event.data)
        elif isinstance(event, EndBody):
            await self._pass_on({"type": "http.request", "body": self._last or b"", "more_body": False})
        elif isinstance(event, StreamClosed):
            self.closed = True
            if self._on_disconnect is not None and self.state is not ASGIHTTPState.CLOSED:
                self._on_disconnect()
            self._put.close()

    async def _pass_on(self, message: Message) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # answered: nobody wants the rest
            await self._put.send(message)

    def _open(self, request: Request) -> None:
        self.start_time = 0.0  # for an access log, which there is not
        scope = _http_scope(self._protocol, request.method, request.raw_path, request.headers, self._watch)
        scope["http_version"] = request.http_version
        self.scope = cast(Any, scope)
        self._start(self._run)

    def take_over(self, scope: dict[str, Any], on_disconnect: Callable[[], None]) -> None:
        """Carry the answer of an application that runs already, and has the request."""
        self._receive.close()
        self.start_time = 0.0
        self.scope = cast(Any, scope)
        self._on_disconnect = on_disconnect

    def _watch(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when the client leaves before its answer is complete; at once if it has left."""
        if self.closed:
            callback()
        else:
            self._on_disconnect = callback

    async def _receive_message(self) -> Message:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            return {"type": "http.disconnect"}

    async def _run(self) -> None:
        try:
            await self._application(cast(Any, self.scope), self._receive_message, cast(Any, self.app_send))
        except Exception as error:
            report(leaf(error), "application")
        finally:
            self._receive.close()
            await self.app_send(None)


class PlainStream:
    """A plain request, complete as it came, and its answer: h11's only if it turns out not to be plain."""

    def __init__(self, protocol: "Http1", request: PlainRequest) -> None:
        self._protocol = protocol
        self._request = request
        self._scope = _http_scope(protocol, request.method, request.target, request.headers, self._watch)
        self._scope[BODY] = request.body
        self._read = False
        # The head of the answer: it waits for the body, which says whether both are plain.
        self._begun: Message | None = None
        # Set when h11 has taken over.
        self._stream: Stream | None = None
        # Invariant: `_over` is true when the answer is complete or nobody waits for it, and then `_ended` is set.
        self._over = False
        self._ended: trio.Event | None = None
        self._on_disconnect: Callable[[], None] | None = None

    @property
    def taken_over(self) -> bool:
        """Whether the request is h11's now."""
        return self._stream is not None

    async def run(self) -> None:
        """Have the application answer."""
        try:
            await self._protocol.application(self._scope, self._receive, self._send)
        except Exception as error:
            report(leaf(error), "application")
        finally:
            if not self._over:
                if self._stream is None:
                    await self._hand_over()
                await cast(Stream, self._stream).app_send(None)

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
        """The answer is complete, or nobody waits for it any more."""
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
            if self._over:  # nobody hears it
                return
            if self._begun is None and message["type"] == "http.response.start" and has_length(message["headers"]):
                self._begun = message
                return
            if self._begun is not None and not message.get("more_body", False):
                body = message.get("body", b"")
                more = _more_lines(self._protocol.config, int(time()))
                data = write_answer(self._begun["status"], self._begun["headers"], body, more)
                if data is not None:
                    await self._protocol.answer_plainly(self, data)
                    return
            await self._hand_over()
        await cast(Stream, self._stream).app_send(cast(Any, message))

    async def _hand_over(self) -> None:
        """Let h11 have the request after all, and the answer as far as it is known."""
        self._stream = self._protocol.take_over(self._request)
        self._stream.take_over(self._scope, self.leave)
        if self._begun is not None:
            await self._stream.app_send(cast(Any, self._begun))


@lru_cache(maxsize=1)
def _more_lines(config: Config, second: int) -> bytes:
    """The lines that Hypercorn adds to every answer; its date is true for a second."""
    return b"".join(b"%s: %s\r\n" % header for header in config.response_headers("h11"))


class Pause(EventWrapper):
    """While a request is served and the next one is here already, nobody reads the connection.

    Its end would go unseen, and the work would go on for a client that left. So `wait` looks for the end without
    taking bytes, and raises BrokenResourceError when it comes. It cannot see past bytes that were not taken yet.
    """

    def __init__(self, socket: trio.socket.SocketType) -> None:
        super().__init__()
        self._socket = socket

    async def wait(self) -> None:
        left = False

        async def look() -> None:
            nonlocal left
            try:
                left = not await self._socket.recv(1, MSG_PEEK)
            except (OSError, trio.ClosedResourceError):  # cut by the client, or closed on our side
                left = True
            if left:
                await self.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await super().wait()
            nursery.cancel_scope.cancel()
        if left:
            raise trio.BrokenResourceError


class Http1(H11Protocol):
    """One connection's protocol: bytes to requests, answers to bytes."""

    def __init__(
        self, shell: "Connection", app: App, start: Callable[..., None], socket: trio.socket.SocketType, *arguments: Any
    ) -> None:
        super().__init__(cast(Any, app), *arguments)
        self.application = app
        self.can_read = Pause(socket)
        self._shell = shell
        self._start = start
        self._held = b""
        # The plain request under way. Invariant: unless it was taken over, h11 has not heard of it and is idle.
        self._plain: PlainStream | None = None

    async def handle(self, event: Any) -> None:
        if isinstance(event, RawData):
            # The next request is here before the answer, or the end is, which `wait` sees.
            if self._plain is not None and not self._plain.taken_over:
                await self.can_read.clear()
                await self.can_read.wait()
            elif (request := self._plain_request(event.data)) is not None:
                self.keep_alive_requests += 1
                self._plain = PlainStream(self, request)
                self._shell.rest(False)
                self._start(self._plain.run)
                return
        elif isinstance(event, Closed) and self._plain is not None:
            self._plain.leave()
        await super().handle(event)

    def _plain_request(self, data: bytes) -> PlainRequest | None:
        """The plain request that these bytes are, where h11 is not in the middle of one and need say nothing."""
        connection = self.connection
        fresh = connection.our_state is h11.IDLE and connection.their_state is h11.IDLE
        last = self.keep_alive_requests + 1 >= self.config.keep_alive_max_requests
        return read_request(data) if fresh and not last and not connection.trailing_data[0] else None

    async def answer_plainly(self, plain: PlainStream, data: bytes) -> None:
        """The whole answer to a plain request; then the next one may come."""
        if rest := self._shell.write_now(data):
            await self.send(RawData(data=rest))
        self._plain = None
        plain.end()
        if self.context.terminated.is_set():
            await self.send(Closed())
        else:
            self._shell.rest(True)
        await self.can_read.set()

    def take_over(self, request: PlainRequest) -> Stream:
        """Have h11 read a plain request. It finds the same in it, so that nothing is looked at twice."""
        connection = cast(h11.Connection, self.connection)
        connection.receive_data(request.data)
        while not isinstance(connection.next_event(), h11.EndOfMessage):
            pass
        self.stream = stream = Stream(self, self._start, self.application)
        return stream

    async def _close_stream(self) -> None:
        plain, self._plain = self._plain, None
        if plain is not None:
            plain.end()
        await super()._close_stream()

    async def _check_protocol(self, event: h11.Request) -> None:
        """Ignore every request to switch protocols."""

    async def _create_stream(self, request: h11.Request) -> None:
        self.stream = Stream(self, self._start, self.application)
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def _send_h11_event(self, event: Any) -> None:
        try:
            data = self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
            return
        assert data is not None
        # The head waits for the body when that follows at once; the head of a stream must not wait.
        if isinstance(event, h11.Response) and any(name == b"content-length" for name, _ in event.headers):
            self._held = data
            return
        if self._held:
            data, self._held = self._held + data, b""
        if data:
            await self.send(RawData(data=data))

    async def _send_error_response(self, status_code: int) -> None:
        """What h11 refuses before there is a request: 400, 414, 431 or 501."""
        code = Code.TOO_LARGE if status_code in (414, 431) else Code.BAD_REQUEST
        answer = problem_answer(
            Problem(code, "this is not a request of HTTP/1.1 that the server can read"), status_code
        )
        headers = chain(answer.headers, [(b"connection", b"close")], self.config.response_headers("h11"))
        await self._send_h11_event(h11.Response(status_code=status_code, headers=list(headers)))
        await self._send_h11_event(h11.Data(data=answer.body))
        await self._send_h11_event(h11.EndOfMessage())


class Connection:
    """One client's connection, from accept to close."""

    def __init__(self, app: App, config: Config, context: WorkerContext, stream: trio.SocketStream) -> None:
        self._app = app
        self._config = config
        self._context = context
        self._stream = stream
        self._writing = trio.Lock()
        # Cancelled to close a connection on which nothing is asked.
        self._reading = trio.CancelScope()
        self._idle = True
        self._idle_since = trio.current_time()
        self._protocol: Http1

    async def run(self) -> None:
        """Serve the connection until either side closes it. Raises nothing but cancellation."""
        socket = self._stream.socket
        try:
            async with trio.open_nursery() as nursery:
                self._protocol = Http1(
                    self, self._app, nursery.start_soon, socket,
                    self._config, self._context, cast(Any, None), ConnectionState({}), False,
                    parse_socket_addr(socket.family, socket.getpeername()),
                    parse_socket_addr(socket.family, socket.getsockname()),
                    self._send,
                )  # fmt: skip
                await self._read()
        except Exception as error:
            if not isinstance(leaf(error), OSError):  # else the client is gone
                report(leaf(error), "connection")
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await self._close()

    async def _read(self) -> None:
        with self._reading:
            while True:
                try:
                    data = await self._receive()
                    await self._protocol.handle(RawData(data))
                except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                    break
                if not data:
                    break
        await self._protocol.handle(Closed())

    async def _receive(self) -> bytes:
        """What the client sent, b"" at the end. Raises OSError and ClosedResourceError.

        `receive_some` asks first and waits then, and where a client waits for its answers the asking is always in vain.
        """
        socket = self._stream.socket
        while socket.fileno() >= 0:
            await trio.lowlevel.wait_readable(socket)
            try:
                # Asked for again: if it was closed meanwhile, the number may be another connection's.
                return os.read(socket.fileno(), RECEIVE_BYTES)
            except BlockingIOError:
                continue
        raise trio.ClosedResourceError  # on our side

    async def _send(self, event: Any) -> None:
        """What the protocol wants: bytes sent, the connection closed, or its idleness noted."""
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Updated):
            self.rest(event.idle)
        elif isinstance(event, Closed):
            # Shielded, and safe to be: nothing in it waits. An application that is cancelled as soon as its answer is
            # complete (the MCP SDK's is) would else leave the connection open.
            with trio.CancelScope(shield=True):
                await self._close()
            await self._protocol.handle(Closed())

    def rest(self, idle: bool) -> None:
        """Note whether nothing is asked."""
        self._idle = idle
        self._idle_since = trio.current_time()

    def write_now(self, data: bytes) -> bytes:
        """Send what the kernel takes at once, which is nearly always all; returns the rest. Needs no scope and no wait.

        What is wrong with the connection is for `_write` to find.
        """
        with suppress(OSError):
            if not self._writing.locked():
                return data[os.write(self._stream.socket.fileno(), data) :]
        return data

    async def _write(self, data: bytes) -> None:
        try:
            self._writing.acquire_nowait()
        except trio.WouldBlock:
            await self._writing.acquire()
        try:
            # Shielded: an answer that is cut in the middle by a cancellation would be taken for a broken server.
            with trio.fail_after(WRITE_TIMEOUT_S, shield=True):
                await self._stream.send_all(data)
            return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except trio.TooSlowError:
            self.abort()
        finally:
            self._writing.release()
        await self._protocol.handle(Closed())

    async def _close(self) -> None:
        with suppress(trio.BrokenResourceError, trio.BusyResourceError, trio.ClosedResourceError):
            await self._stream.send_eof()
        await self._stream.aclose()

    def dismiss(self, before: float = inf) -> bool:
        """Close the connection if nothing is asked on it now, nor was after `before` (half a request is not yet asked).

        Returns whether.
        """
        idle = self._idle and self._idle_since < before
        self._idle = self._idle and not idle
        if idle:
            self._reading.cancel()
        return idle

    def abort(self) -> None:
        """Cut the connection: whoever reads or writes it is woken with an error."""
        self._stream.socket.close()


class Connections:
    """The open connections of a server, bounded: a stranger must not use up the file descriptors of the process."""

    def __init__(self, app: App, config: Config, bound: int) -> None:
        self._app = app
        self._config = config
        self._bound = bound
        self._context = WorkerContext(None)
        self._open: dict[Connection, None] = {}  # oldest first
        self._empty = trio.Event()

    def __len__(self) -> int:
        return len(self._open)

    async def gone(self) -> None:
        """Wait until no connection is open."""
        while self._open:
            self._empty = trio.Event()
            await self._empty.wait()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection. At the bound the oldest idle one makes room; if none is idle, this one is refused."""
        if len(self._open) >= self._bound and not any(connection.dismiss() for connection in self._open):
            await _refuse(stream)
            return
        connection = Connection(self._app, self._config, self._context, stream)
        self._open[connection] = None
        try:
            await connection.run()
        finally:
            del self._open[connection]
            if not self._open:
                self._empty.set()

    async def sweep(self) -> None:
        """Close connections on which nothing was asked for long. Runs until cancelled."""
        while True:
            await trio.sleep(SWEEP_S)
            before = trio.current_time() - self._config.keep_alive_timeout
            for connection in self._open:
                connection.dismiss(before)

    async def dismiss_all(self) -> None:
        """Close what is idle; what is busy closes itself after its answer."""
        await self._context.terminated.set()
        for connection in self._open:
            connection.dismiss()

    def abort_all(self) -> None:
        """Cut everything that is still open."""
        for connection in tuple(self._open):
            log.warning("connection cut")
            connection.abort()


async def _refuse(stream: trio.SocketStream) -> None:
    answer = problem_answer(Problem(Code.UNAVAILABLE, "too many connections are open", retry_after_s=1))
    headers = b"".join(b"%s: %s\r\n" % header for header in answer.headers)
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.move_on_after(CLOSE_S):
        await stream.send_all(b"HTTP/1.1 503 \r\n" + headers + b"connection: close\r\n\r\n" + answer.body)
        await stream.send_eof()
        await stream.receive_some(RECEIVE_BYTES)  # closing with unread bytes would reset the connection


async def serve(
    app: App,
    listeners: list[trio.SocketListener],
    config: Config,
    *,
    stop: Callable[[], Awaitable[Any]],
    max_connections: int,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` returns; then accept no more, and cut what has not ended within `config.graceful_timeout`.

    `app` answers only HTTP; whatever it needs is opened and closed by the caller, around this.
    """
    connections = Connections(app, config, max_connections)
    stopped = trio.Event()
    async with trio.open_nursery() as cutting:
        cutting.start_soon(_cut, connections, stopped, config.graceful_timeout)
        cutting.start_soon(connections.sweep)
        async with trio.open_nursery() as serving:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(
                    partial(trio.serve_listeners, connections.serve, listeners, handler_nursery=serving)
                )
                task_status.started()
                await stop()
                accepting.cancel_scope.cancel()
            await connections.dismiss_all()
            serving.cancel_scope.deadline = trio.current_time() + config.graceful_timeout
            stopped.set()
        cutting.cancel_scope.cancel()


async def _cut(connections: Connections, stopped: trio.Event, seconds: float) -> None:
    """Cut what cancellation does not end: a write to a client that does not read is shielded from it."""
    try:
        await stopped.wait()
        await trio.sleep(seconds)
    finally:
        with trio.CancelScope(shield=True):
            with trio.move_on_after(CLOSE_S):
                await connections.gone()
            connections.abort_all()

"""HTTP/1.1 on trio: Hypercorn's protocol, with the few things changed that a server for strangers needs.

Hypercorn's own `serve` also speaks HTTP/2 and WebSocket, which nothing here uses: a request to switch is ignored, as
RFC 9110 section 7.8 allows, so that there is one protocol to defend. What else differs:

- what h11 refuses is answered in the envelope;
- an application hears of a client that left through a callback, which costs no task (`ON_DISCONNECT`);
- a client that stops reading is given up after `WRITE_TIMEOUT_S`: writes are shielded from cancellation, so such a
  client would hold up the end of the process;
- no broken connection ends the server;
- an answer with a known length leaves in one packet, and an idle connection is a deadline, not a task: per request
  that is half of what the server costs.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import chain
from math import inf
from socket import MSG_PEEK
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
from server.asgi import ON_DISCONNECT, App, Message
from server.logs import log, report
from server.problems import problem_answer

# How much is read from a connection at once.
RECEIVE_BYTES = 64 * 1024
# How many pieces of a body may wait for the application; beyond it the client waits.
BACKLOG = 10
# A reader that takes nothing for this long is gone. Long enough for a laptop's lid and a lost Wi-Fi.
WRITE_TIMEOUT_S = 30.0
# After the farewell, how long a connection may take to close before it is cut.
CLOSE_S = 1.0


class Stream(HTTPStream):
    """One request and its answer."""

    def __init__(self, protocol: "Http1", start: Callable[..., None], app: App) -> None:
        super().__init__(
            cast(Any, app), protocol.config, protocol.context, cast(Any, None), False, protocol.client,
            protocol.server, protocol.stream_send, STREAM_ID,
        )  # fmt: skip
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
        path, _, query = request.raw_path.partition(b"?")
        self.start_time = 0.0  # for an access log, which there is not
        self.scope = cast(
            Any,
            {
                "type": "http",
                "http_version": request.http_version,
                "asgi": {"spec_version": "2.3", "version": "3.0"},
                "method": request.method,
                "scheme": "http",
                "path": unquote(path.decode("ascii")),
                "raw_path": path,
                "query_string": query,
                "root_path": "",
                "headers": request.headers,
                "client": self.client,
                "server": self.server,
                "state": {},
                "extensions": {},
                ON_DISCONNECT: self._watch,
            },
        )
        self._start(self._run)

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
            except OSError:
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

    def __init__(self, app: App, start: Callable[..., None], socket: trio.socket.SocketType, *arguments: Any) -> None:
        super().__init__(cast(Any, app), *arguments)
        self.can_read = Pause(socket)
        self._start = start
        self._held = b""

    async def _check_protocol(self, event: h11.Request) -> None:
        """Ignore every request to switch protocols."""

    async def _create_stream(self, request: h11.Request) -> None:
        self.stream = Stream(self, self._start, cast(App, self.app))
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
        # Cancelled to close a connection on which nothing is asked. Invariant: its deadline is finite while _idle.
        self._reading = trio.CancelScope()
        self._idle = True
        self._protocol: Http1

    async def run(self) -> None:
        """Serve the connection until either side closes it. Raises nothing but cancellation."""
        socket = self._stream.socket
        try:
            async with trio.open_nursery() as nursery:
                self._protocol = Http1(
                    self._app, nursery.start_soon, socket,
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
        self._rest(True)
        with self._reading:
            while True:
                try:
                    data = await self._stream.receive_some(RECEIVE_BYTES)
                    await self._protocol.handle(RawData(bytes(data)))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    break
                if not data:
                    break
        await self._protocol.handle(Closed())

    def _rest(self, idle: bool) -> None:
        self._idle = idle
        self._reading.deadline = trio.current_time() + self._config.keep_alive_timeout if idle else inf

    async def _send(self, event: Any) -> None:
        """What the protocol wants: bytes sent, the connection closed, or its idleness noted."""
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Updated):
            self._rest(event.idle)
        elif isinstance(event, Closed):
            # Shielded, and safe to be: nothing in it waits. An application that is cancelled as soon as its answer is
            # complete (the MCP SDK's is) would else leave the connection open.
            with trio.CancelScope(shield=True):
                await self._close()
            await self._protocol.handle(Closed())

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

    def dismiss(self) -> bool:
        """Close the connection if nothing is asked on it now (half a request is not yet asked). Returns whether."""
        idle, self._idle = self._idle, False
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

"""One request and its answer on a connection: through h11, or past it if both are plain."""

from collections.abc import Callable
from functools import lru_cache
from time import time
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import trio
from hypercorn.config import Config
from hypercorn.protocol.h11 import STREAM_ID
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream

from engine.errors import Code, Problem, leaf
from server.http.asgi import BODY, ON_DISCONNECT, App, Message
from server.logs import report
from server.problems import internal
from server.transport.plain import PlainRequest, has_length, write_answer

if TYPE_CHECKING:
    from server.transport.http1 import Http1

# Bytes read from a connection at once.
RECEIVE_BYTES = 64 * 1024

# Bound on the bytes of a body buffered for the application; above it, reading pauses.
BACKLOG_BYTES = 4 * RECEIVE_BYTES
SHUTTING_DOWN = "the server is shutting down"


def http_scope(protocol: "Http1", method: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """The ASGI scope of a request."""
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
    """One request and its answer, through h11."""

    def __init__(self, protocol: "Http1", app: App) -> None:
        super().__init__(
            cast(Any, app), protocol.config, protocol.context, cast(Any, None), False, protocol.client,
            protocol.server, protocol.stream_send, STREAM_ID,
        )  # fmt: skip
        self._protocol = protocol
        self._application = app
        self._pieces: list[bytes] = []
        self._size = 0
        # Whether the body is completely received, and whether the application has all of it.
        self._complete = False
        self._passed_on = False
        # Set when `receive` has a message to return.
        self._news = trio.Event()
        self._on_disconnect: Callable[[], None] | None = None

    def open(self, scope: dict[str, Any]) -> None:
        """Begin, with the parsed head of the request."""
        scope[ON_DISCONNECT] = self._watch
        self.start_time = 0.0  # for Hypercorn's access log, which is off
        self.scope = cast(Any, scope)

    def put(self, data: bytes) -> bool:
        """Buffer a piece of the body. Returns whether there is room for more."""
        self._pieces.append(data)
        self._size += len(data)
        self._news.set()
        return self._size < BACKLOG_BYTES

    def complete(self) -> None:
        """Note that the body is completely received."""
        self._complete = True
        self._news.set()

    def take_over(self, scope: dict[str, Any], on_disconnect: Callable[[], None]) -> None:
        """Send the answer of an application that already runs and has received the request."""
        self._passed_on = True
        self.start_time = 0.0
        self.scope = cast(Any, scope)
        self._on_disconnect = on_disconnect

    def _watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the client disconnects before its answer is complete; at once if it has."""
        if self.closed:
            callback()
        else:
            self._on_disconnect = callback

    def leave(self) -> None:
        """End: the client disconnected, or has its answer."""
        if self.closed:
            return
        self.closed = True
        self._news.set()
        if self._on_disconnect is not None and self.state is not ASGIHTTPState.CLOSED:
            self._on_disconnect()

    async def handle(self, event: Any) -> None:
        """Take an event of Hypercorn's: it sends only one, that the stream is closed."""
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
                self._protocol.conclude(problem or Problem(Code.UNAVAILABLE, SHUTTING_DOWN))


class PlainStream:
    """A plain request, received complete, and its answer; through h11 only if the answer turns out not to be plain."""

    def __init__(self, protocol: "Http1", request: PlainRequest) -> None:
        self._protocol = protocol
        self._request = request
        self._scope = http_scope(protocol, request.method, request.target, request.headers)
        self._scope[ON_DISCONNECT] = self._watch
        self._scope[BODY] = request.body
        self._read = False
        # The head of the answer, held until its body shows whether the answer is plain.
        self._begun: Message | None = None
        # Set when h11 has taken over.
        self._stream: Stream | None = None
        # Invariant: `_over` is true once the answer is complete or the client is gone, and then `_ended` is set.
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
                self._protocol.conclude(problem or Problem(Code.UNAVAILABLE, SHUTTING_DOWN))

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
        """End: the answer is complete, or the client disconnected."""
        self._over = True
        if self._ended is not None:
            self._ended.set()

    def leave(self) -> None:
        """Tell the application that the client disconnected."""
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
                more = more_lines(self._protocol.config, int(time()))
                if self._protocol.last:
                    more += b"connection: close\r\n"
                data = write_answer(self._begun["status"], self._begun["headers"], body, more)
                if data is not None:
                    await self._protocol.answer_plainly(self, data)
                    return
            await self._hand_over()
        await cast(Stream, self._stream).app_send(cast(Any, message))

    async def _hand_over(self) -> None:
        """Continue through h11: pass it the request, and the part of the answer that is known."""
        self._stream = self._protocol.take_over()
        self._stream.take_over(self._scope, self.leave)
        if self._begun is not None:
            await self._stream.app_send(cast(Any, self._begun))


@lru_cache(maxsize=1)
def more_lines(config: Config, second: int) -> bytes:
    """The lines that Hypercorn adds to every answer; cached for a second, as the date changes."""
    return b"".join(b"%s: %s\r\n" % header for header in config.response_headers("h11"))

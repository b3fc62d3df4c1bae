"""A scripted model as a server that speaks both wires, for tests: `engine model stub`.

It is bounded and has no keys: it answers every client that reaches it.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import h11
import trio

from engine.models.scripted import Reply, Scripted, last_text
from engine.models.stub_wires import PATHS, Asked, error, read_request, streamed, whole

# Bounds of a test server: the body of a request, connections at once, how long a connection may take for its head.
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_CONNECTIONS = 4096
HEAD_S = 300.0
_PIECE = 64 * 1024
# The answer of `fault = "huge"`: more than any client should take.
HUGE_BYTES = 10 * 1024 * 1024
# The answer of `fault = "garbage"`.
GARBAGE = b"data: {this is no JSON\n\n\xff\xfe\x00\n\n"

_JSON = ("content-type", "application/json")


class _Left(Exception):
    """The client closed the connection before its answer was complete."""


@dataclass
class Stub:
    """The server. `heard` gets one line a request; `answered` and `left` count, `open` is what is connected now."""

    replies: Sequence[Reply]
    heard: Callable[[str], None] = lambda line: None
    requests: int = 0
    answered: int = 0
    left: int = 0
    open: int = 0
    _script: Scripted = field(init=False)

    def __post_init__(self) -> None:
        self._script = Scripted(self.replies)

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, until either side closes it."""
        if self.open >= MAX_CONNECTIONS:
            await trio.aclose_forcefully(stream)
            return
        self.open += 1
        try:
            connection = _Connection(stream)
            while await self._exchange(connection):
                connection.http.start_next_cycle()
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
            pass  # not HTTP, or a client that is gone
        finally:
            self.open -= 1
            await trio.aclose_forcefully(stream)

    async def _exchange(self, connection: "_Connection") -> bool:
        """One request and its answer. Whether another one may follow."""
        with trio.move_on_after(HEAD_S):
            request = await connection.request()
            if request is None:
                return False
            self.requests += 1
            number, what = self.requests, ""
            try:
                what, answer = self._answer(*request, number)
                finished = await connection.while_here(partial(answer, connection))
            except _Left:
                self.left += 1
                self.heard(f"{number} {what}: the client left")
                return False
            self.answered += 1
            self.heard(f"{number} {what}")
            return finished and connection.http.our_state is h11.DONE and connection.http.their_state is h11.DONE
        return False

    def _answer(self, method: str, path: str, body: bytes, number: int) -> tuple[str, "_Answer"]:
        """What is answered, for the log, and the function that does."""
        wire = PATHS.get(path)
        if wire is None or method != "POST":
            return "404 unknown path", partial(_plain, status=404, body=error("openai", 404, "no such path"))
        try:
            asked = read_request(wire, body)
        except ValueError as wrong:
            return f"{wire} 400 {wrong}", partial(_plain, status=400, body=error(wire, 400, str(wrong)))
        reply = self._script.next(last_text(asked.messages))
        if reply is None:
            text = "no reply of the script fits the last message"
            return f"{wire} 400 {text}", partial(_plain, status=400, body=error(wire, 400, text))
        position = next(at for at, each in enumerate(self.replies, 1) if each is reply)
        about = f"{wire} {reply.status} reply {position}" + (f" {reply.fault}" if reply.fault else "")
        return about, partial(_reply, asked=asked, reply=reply, size=len(body), number=number)


_Answer = Callable[["_Connection"], Awaitable[bool]]


async def _plain(connection: "_Connection", *, status: int, body: bytes) -> bool:
    await connection.send(h11.Response(status_code=status, headers=[_JSON, ("content-length", str(len(body)))]))
    await connection.send(h11.Data(data=body))
    await connection.send(h11.EndOfMessage())
    return True


async def _reply(connection: "_Connection", *, asked: Asked, reply: Reply, size: int, number: int) -> bool:
    if reply.delay_s:
        await trio.sleep(reply.delay_s)
    if reply.status >= 300:
        return await _plain(
            connection, status=reply.status, body=error(asked.wire, reply.status, f"status {reply.status} by script")
        )
    usage = reply.tokens(size)
    if asked.stream:
        kind, pieces = "text/event-stream; charset=utf-8", streamed(asked, reply, usage, number)
    else:
        kind, body = "application/json", whole(asked, reply, usage, number)
        pieces = [body[: len(body) // 2], body[len(body) // 2 :]]
    headers = [("content-type", kind), ("cache-control", "no-store")]
    await connection.send(h11.Response(status_code=reply.status, headers=headers))
    match reply.fault:
        case "garbage":
            pieces = [GARBAGE]
        case "huge":
            pieces = [b"data: ", *[b"x" * _PIECE] * (HUGE_BYTES // _PIECE), b"\n\n"]
        case "stall" | "cut":
            pieces = pieces[: len(pieces) // 2]
    for piece in pieces:
        await connection.send(h11.Data(data=piece))
    if reply.fault == "stall":
        await trio.sleep_forever()
    if reply.fault == "cut":
        return False
    await connection.send(h11.EndOfMessage())
    return True


class _Connection:
    """HTTP/1.1 on one stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=64 * 1024)
        self._stream = stream

    async def request(self) -> tuple[str, str, bytes] | None:
        """Method, path without query, and body of the next request; None at the end of the connection."""
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self.http.next_event()
            match event:
                case h11.NEED_DATA:
                    if self.http.they_are_waiting_for_100_continue:
                        await self.send(h11.InformationalResponse(status_code=100, headers=[]))
                    self.http.receive_data(await self._stream.receive_some(_PIECE))
                case h11.Request():
                    head = event
                case h11.Data():
                    body += event.data
                    if len(body) > MAX_BODY_BYTES:
                        return None
                case h11.EndOfMessage():
                    assert head is not None
                    return head.method.decode(), head.target.decode().partition("?")[0], bytes(body)
                case _:  # the connection is closed, or paused
                    return None

    async def send(self, event: h11.Event) -> None:
        if (data := self.http.send(event)) is not None:
            await self._stream.send_all(data)

    async def while_here(self, answer: Callable[[], Awaitable[bool]]) -> bool:
        """Answer while the client is there. Raises _Left when it closes the connection first."""
        gone = finished = False

        async def watch(scope: trio.CancelScope) -> None:
            nonlocal gone
            seen = 0
            with suppress(trio.BrokenResourceError):
                while data := await self._stream.receive_some(_PIECE):
                    seen += len(data)  # requests that do not wait for this answer: a bound, as they are held
                    if seen > MAX_BODY_BYTES:
                        break
                    self.http.receive_data(data)
            gone = True
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            try:
                finished = await answer()
            except trio.BrokenResourceError:
                gone = True
            nursery.cancel_scope.cancel()
        if gone and not finished:
            raise _Left
        return finished


async def serve_stub(
    stub: Stub, host: str, port: int, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
) -> None:
    """Listen and answer until cancelled; starts with the port. Raises OSError if the address is taken."""
    listeners = await trio.open_tcp_listeners(port, host=host)
    task_status.started(listeners[0].socket.getsockname()[1])
    await trio.serve_listeners(stub.serve, listeners)

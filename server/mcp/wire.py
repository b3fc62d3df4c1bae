"""MCP messages as lines on two streams: framing, validation, admission, answers, errors, and the final drain."""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import mcp_types as t
import trio
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from pydantic import ValidationError

from engine.errors import Code, Problem
from server.logs import report
from server.mcp.message import refuse_message
from server.problems import INVALID_REQUEST, encode, internal, rpc_error

# Bound on the requests in flight; further ones are refused. More than the engine queues for a tenant by default.
UNDER_WAY = 128

# The time for the last answers after the client closes our input, for scripts that pipe requests into us. A client then
# waits about 2 s for our exit before it sends SIGTERM (specification, lifecycle, shutdown; the SDK's clients).
LAST_ANSWERS_S = 1.0

# Interval for checking, during that time, whether our output still has a reader.
_LOOK_EVERY_S = 0.05

# The time for the client to read the last lines.
_FLUSH_S = 1.0


class Lines:
    """Splits bytes into lines, however the bytes are chunked. A line that is too long is reported once, as None."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        # Whether to skip the rest of a line that was reported as too long.
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that these bytes complete, without line ends; blank lines are left out."""
        found: list[bytes | None] = []
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._add(part, found)
            self._end(found)
        self._add(rest, found)
        return found

    def close(self) -> list[bytes | None]:
        """The line that the end of the stream completes, if any: the last line may lack its line end."""
        found: list[bytes | None] = []
        self._end(found)
        return found

    def _add(self, part: bytes, found: list[bytes | None]) -> None:
        if self._skipping:
            return
        self._size += len(part)
        if self._size > self._max:
            self._parts, self._skipping = [], True
            found.append(None)
        elif part:
            self._parts.append(part)

    def _end(self, found: list[bytes | None]) -> None:
        line = b"".join(self._parts)
        if line.strip():
            found.append(line)
        self._parts, self._size, self._skipping = [], 0, False


class Wire:
    """One client's lines, both ways. `write` must run while anything else is called.

    Reading ends at the end of the client's stream, when the client has closed our output, or after `stop`. In each case
    the requests in flight are answered first or, when their time is over, get an error; the SDK's server then cancels
    them, as it does whenever reading ends.
    """

    def __init__(
        self,
        receive: trio.abc.ReceiveStream,
        send: trio.abc.SendStream,
        *,
        max_line_bytes: int,
        graceful_timeout_s: float,
        reader_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self.handshaken = trio.Event()  # by a client of a revision before 2026-07-28
        self._receive = receive
        self._send = send
        self._max_line_bytes = max_line_bytes
        self._graceful_timeout_s = graceful_timeout_s
        self._reader_gone = reader_gone
        self._framing = Lines(max_line_bytes)
        self._lines: deque[bytes | None] = deque()
        self._first_method: str | None = None
        self._ours, self._to_write = trio.open_memory_channel[tuple[bytes, t.RequestId | None]](0)
        # Requests that are neither answered nor cancelled, each with its callback for the drain, if it has one.
        # Invariant: _settled is set exactly while this is empty.
        self._under_way: dict[t.RequestId, Callable[[], None] | None] = {}
        self._settled = trio.Event()
        self._settled.set()
        self._reading = trio.CancelScope()
        self._stopping = False
        self._draining = False
        self._ended = False

    # ---- receiving -----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop reading. Requests in flight get the graceful time to be answered."""
        self._stopping = True
        self._reading.cancel()

    def when_draining(self, request_id: t.RequestId | None, callback: Callable[[], None]) -> None:
        """Call `callback` when the drain begins, at once if it has begun, so that this request ends."""
        if self._draining:
            callback()
        elif request_id in self._under_way:
            self._under_way[request_id] = callback

    async def next(self) -> SessionMessage | None:
        """The client's next well-formed message, or None at the end; malformed ones are answered with an error here."""
        while not self._ended:
            while self._lines:
                message = await self._accepted(self._lines.popleft())
                if message is not None:
                    return message
            data = await self._more()
            if data:
                self._lines.extend(self._framing.feed(data))
            elif not self._stopping:  # after `stop`, the rest may be an incomplete line
                self._lines.extend(self._framing.close())
            if not data and not self._lines:
                await self._drain()
                self._ended = True
        return None

    async def _more(self) -> bytes:
        """Bytes from the client; empty at the end."""
        with trio.CancelScope() as self._reading:
            try:
                return b"" if self._stopping else bytes(await self._receive.receive_some())
            except trio.BrokenResourceError:
                return b""
        return b""

    async def _accepted(self, line: bytes | None) -> SessionMessage | None:
        """The message in a line, or None if the line was answered with an error."""
        if line is None:
            await self._refuse(INVALID_REQUEST, f"the line is longer than {self._max_line_bytes} bytes")
            return None
        refusal = refuse_message(line)
        if refusal is not None:
            await self._put(refusal.body + b"\n")
            return None
        try:
            message = t.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError:
            await self._refuse(INVALID_REQUEST, "the message is malformed")
            return None
        if isinstance(message, t.JSONRPCRequest):
            return await self._admitted(message)
        if (self._first_method, getattr(message, "method", None)) == ("initialize", "notifications/initialized"):
            self.handshaken.set()
        return SessionMessage(message)

    async def _admitted(self, request: t.JSONRPCRequest) -> SessionMessage | None:
        """The request if it is admitted, or None if it was refused."""
        if request.id in self._under_way:
            # Without the id: with it, the client would take this error for the answer to the other request.
            await self._refuse(INVALID_REQUEST, "the id is that of a request under way")
            return None
        if len(self._under_way) >= UNDER_WAY:
            busy = Problem(Code.UNAVAILABLE, f"{UNDER_WAY} requests are in flight already", retry_after_s=1)
            await self._put(_refusal(busy, request.id))
            return None
        self._first_method = self._first_method or request.method
        self._under_way[request.id] = None
        self._settled = trio.Event()
        return SessionMessage(
            request, ServerMessageMetadata(on_request_unanswered=partial(self._cancelled, request.id))
        )

    async def _drain(self) -> None:
        """Wait, for a bounded time, for the requests in flight; those that do not end by themselves are ended."""
        self._draining = True
        for callback in list(self._under_way.values()):
            if callback is not None:
                callback()
        with trio.move_on_after(self._graceful_timeout_s if self._stopping else LAST_ANSWERS_S):
            while self._under_way and not self._reader_gone():
                with trio.move_on_after(_LOOK_EVERY_S):
                    await self._settled.wait()
        going = Problem(Code.UNAVAILABLE, "the server is shutting down")
        with trio.move_on_after(_FLUSH_S):
            for request_id in list(self._under_way):
                await self._put(_refusal(going, request_id), request_id)

    # ---- sending -------------------------------------------------------------------------------------------------

    async def send(self, message: t.JSONRPCMessage) -> None:
        """Send a message, once the client has taken those before it. Dropped if the client is gone."""
        answered = message.id if isinstance(message, t.JSONRPCResponse | t.JSONRPCError) else None
        if answered is not None and answered not in self._under_way:
            return  # the request already got an error, or was cancelled
        try:
            data = encode(message.model_dump(mode="json", by_alias=True, exclude_unset=True)) + b"\n"
        except (TypeError, ValueError) as error:
            data = _refusal(internal(report(error, "stdio")), answered)
        await self._put(data, answered)

    async def hang_up(self) -> None:
        """Accept nothing more to send; `write` returns when everything is written."""
        await self._ours.aclose()

    async def _refuse(self, code: int, message: str) -> None:
        """Send an error without an id: the request's is unknown or must not be used (JSON-RPC 2.0 section 5)."""
        await self._put(_error(code, message, None, None))

    async def _put(self, data: bytes, answered: t.RequestId | None = None) -> None:
        taken = False
        try:
            await self._ours.send((data, answered))
            taken = True
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client is gone
        finally:
            if not taken:
                self._done(answered)

    async def write(self) -> None:
        """Write queued lines, always whole ones: a separate task, as the sender may be cancelled during the write."""
        with self._to_write:
            async for data, answered in self._to_write:
                try:
                    await self._send.send_all(data)
                except trio.BrokenResourceError:
                    self._graceful_timeout_s = 0  # no reader is left for the answers
                    self.stop()
                    return
                finally:
                    self._done(answered)

    def _done(self, request_id: t.RequestId | None) -> None:
        if request_id is not None:
            self._under_way.pop(request_id, None)
            if not self._under_way:
                self._settled.set()

    async def _cancelled(self, request_id: t.RequestId) -> None:
        """Forget a request that the client cancelled: it gets no answer."""
        self._done(request_id)


def _error(code: int, message: str, request_id: t.RequestId | None, data: Mapping[str, Any] | None) -> bytes:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return encode({"jsonrpc": "2.0", "id": request_id, "error": error}) + b"\n"


def _refusal(problem: Problem, request_id: t.RequestId | None) -> bytes:
    code, message, data = rpc_error(problem)
    return _error(code, message, request_id, data)


class Incoming:
    """The reading side of a wire, as the SDK's server expects it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def receive(self) -> SessionMessage:
        return await anext(self)

    async def aclose(self) -> None:
        self._wire.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        message = await self._wire.next()
        if message is None:
            raise StopAsyncIteration
        return message

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Outgoing:
    """The writing side of a wire, as the SDK's server expects it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def send(self, item: SessionMessage, /) -> None:
        await self._wire.send(item.message)

    async def aclose(self) -> None:
        await self._wire.hang_up()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

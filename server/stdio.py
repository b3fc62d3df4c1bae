"""MCP over standard input and output, for clients that start their servers as processes of their own.

The SDK's server does the talking, in both eras. Its transport (2.3.0, on trio) would not do: it reads in a thread that
nothing can cancel, so that SIGTERM waits for the client's next line; it takes lines of any length; and a malformed line
gets no answer. The transport here is `Wire`: one JSON-RPC message a line, as the specification says.
"""

import fcntl
import io
import os
import select
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import mcp_types as t
import trio
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp.shared.subscriptions import event_to_notification
from pydantic import ValidationError

from engine.config import LoadedConfig
from engine.control.identity import LOCAL
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT, Tenant
from server.app import Opener, Refused, open_server, run_process, serve_app
from server.banner import loaded_lines
from server.logs import log, report
from server.mcp import Handlers
from server.mcp_caller import Caller, Context
from server.mcp_http import refuse_message
from server.mcp_listen import Listeners
from server.mcp_log import SessionLevel
from server.problems import INVALID_REQUEST, encode, internal, rpc_error

if TYPE_CHECKING:
    from agents.service import Service

# Requests under way at once. More than the engine queues for a tenant by default; what comes on top is refused.
UNDER_WAY = 128
# A client that closes our input waits about 2 s for our end before it sends SIGTERM (specification, lifecycle,
# shutdown; the SDK's clients). So long may the last answers take, for those who pipe requests into us.
LAST_ANSWERS_S = 1.0
# How often it is looked, while waiting for that, whether anybody still reads.
_LOOK_EVERY_S = 0.05
# How long the last lines may take to be read by the client.
_FLUSH_S = 1.0

# The two descriptors of a client: where its lines come from, and where ours go.
Streams = tuple[int, int]


class Lines:
    """Bytes into lines, whatever the pieces in which they come. A line that is too long is None, told once."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        # Whether the rest of a line that was told to be too long is still coming.
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """What the bytes complete, without line ends; lines of nothing but white space are left out."""
        found: list[bytes | None] = []
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._add(part, found)
            self._end(found)
        self._add(rest, found)
        return found

    def close(self) -> list[bytes | None]:
        """What the end of the stream completes: a last line may lack its end."""
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

    Reading ends at the end of the client's stream, when the client reads no more, or after `stop`; each time only after
    the requests under way were answered, or had their time for it: then they are told that there will be no answer, and
    the SDK's server cancels them, as it does when reading ends.
    """

    def __init__(
        self,
        receive: trio.abc.ReceiveStream,
        send: trio.abc.SendStream,
        *,
        max_line_bytes: int,
        graceful_timeout_s: float,
        nobody_reads: Callable[[], bool] = lambda: False,
    ) -> None:
        self.handshaken = trio.Event()  # by a client of a revision before 2026-07-28
        self._receive = receive
        self._send = send
        self._max_line_bytes = max_line_bytes
        self._graceful_timeout_s = graceful_timeout_s
        self._nobody_reads = nobody_reads
        self._framing = Lines(max_line_bytes)
        self._lines: deque[bytes | None] = deque()
        self._first_method: str | None = None
        self._ours, self._to_write = trio.open_memory_channel[tuple[bytes, t.RequestId | None]](0)
        # Requests that came and are neither answered nor cancelled, and what each wants called when it has to come to
        # its end. Invariant: _settled is set exactly while this is empty.
        self._under_way: dict[t.RequestId, Callable[[], None] | None] = {}
        self._settled = trio.Event()
        self._settled.set()
        self._reading = trio.CancelScope()
        self._stopping = False
        self._draining = False
        self._ended = False

    # ---- what comes ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Read no more. What is under way has the graceful time to be answered."""
        self._stopping = True
        self._reading.cancel()

    def when_draining(self, request_id: t.RequestId | None, callback: Callable[[], None]) -> None:
        """Have `callback` called when this request has to come to its end, at once if it has to already."""
        if self._draining:
            callback()
        elif request_id in self._under_way:
            self._under_way[request_id] = callback

    async def next(self) -> SessionMessage | None:
        """The client's next message that is well formed, or None at the end; the others are answered here."""
        while not self._ended:
            while self._lines:
                message = await self._accepted(self._lines.popleft())
                if message is not None:
                    return message
            data = await self._more()
            if data:
                self._lines.extend(self._framing.feed(data))
            elif not self._stopping:  # else a line may be cut off where it was
                self._lines.extend(self._framing.close())
            if not data and not self._lines:
                await self._drain()
                self._ended = True
        return None

    async def _more(self) -> bytes:
        """Bytes from the client; none when there will be no more."""
        with trio.CancelScope() as self._reading:
            try:
                return b"" if self._stopping else bytes(await self._receive.receive_some())
            except trio.BrokenResourceError:
                return b""
        return b""

    async def _accepted(self, line: bytes | None) -> SessionMessage | None:
        """The message in a line, or None when it was answered with an error instead."""
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
        """A request that may be served now, or None when it was refused."""
        if request.id in self._under_way:
            # Without the id: the client would take the answer for that of the other one.
            await self._refuse(INVALID_REQUEST, "the id is that of a request under way")
            return None
        if len(self._under_way) >= UNDER_WAY:
            busy = Problem(Code.UNAVAILABLE, f"{UNDER_WAY} requests are under way already", retry_after_s=1)
            await self._put(_refusal(busy, request.id))
            return None
        self._first_method = self._first_method or request.method
        self._under_way[request.id] = None
        self._settled = trio.Event()
        return SessionMessage(
            request, ServerMessageMetadata(on_request_unanswered=partial(self._cancelled, request.id))
        )

    async def _drain(self) -> None:
        """Give the requests under way their time; those that never end by themselves are told to."""
        self._draining = True
        for callback in list(self._under_way.values()):
            if callback is not None:
                callback()
        with trio.move_on_after(self._graceful_timeout_s if self._stopping else LAST_ANSWERS_S):
            while self._under_way and not self._nobody_reads():
                with trio.move_on_after(_LOOK_EVERY_S):
                    await self._settled.wait()
        going = Problem(Code.UNAVAILABLE, "the server is going away")
        with trio.move_on_after(_FLUSH_S):
            for request_id in list(self._under_way):
                await self._put(_refusal(going, request_id), request_id)

    # ---- what goes -----------------------------------------------------------------------------------------------

    async def send(self, message: t.JSONRPCMessage) -> None:
        """Send a message, once the client has taken those before it. What nobody hears any more is dropped."""
        answered = message.id if isinstance(message, t.JSONRPCResponse | t.JSONRPCError) else None
        if answered is not None and answered not in self._under_way:
            return  # it was told already that there will be no answer
        try:
            data = encode(message.model_dump(mode="json", by_alias=True, exclude_unset=True)) + b"\n"
        except (TypeError, ValueError) as error:
            data = _refusal(internal(report(error, "stdio")), answered)
        await self._put(data, answered)

    async def hang_up(self) -> None:
        """Send nothing any more; `write` ends when all is written."""
        await self._ours.aclose()

    async def _refuse(self, code: int, message: str) -> None:
        """Answer a line whose request is not known, or not to be answered (JSON-RPC 2.0 section 5)."""
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
        """Write what is sent, whole lines always: whoever sends one may be cancelled while it is being written."""
        with self._to_write:
            async for data, answered in self._to_write:
                try:
                    await self._send.send_all(data)
                except trio.BrokenResourceError:
                    self._graceful_timeout_s = 0  # nobody will hear the answers
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
        """The client cancelled a request: there will be no answer."""
        self._done(request_id)


def _error(code: int, message: str, request_id: t.RequestId | None, data: Mapping[str, Any] | None) -> bytes:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return encode({"jsonrpc": "2.0", "id": request_id, "error": error}) + b"\n"


def _refusal(problem: Problem, request_id: t.RequestId | None) -> bytes:
    code, message, data = rpc_error(problem)
    return _error(code, message, request_id, data)


class Incoming:
    """A wire in the form in which the SDK's server reads."""

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
    """A wire in the form in which the SDK's server writes."""

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


async def serve_client(
    service: "Service", wire: Wire, stop: trio.Event, *, tenant: Tenant, agent: str | None, graceful_timeout_s: float
) -> None:
    """Serve the client of a wire until its end, or until `stop` is set and the graceful time is over."""
    listeners = Listeners()
    log_level = SessionLevel()

    def caller(ctx: Context) -> Caller:
        # The client is the process that started this one, on this machine.
        return Caller(
            tenant, agent, partial(wire.when_draining, ctx.request_id), LOCAL, keyed=False, log_level=log_level
        )

    def input_schema(name: str) -> Mapping[str, Any] | None:
        info = service.tool_info(tenant, name)
        return None if info is None else info.parameters

    server: Server[Any] = Handlers(service, listeners, caller=caller).server(input_schema)

    async def farewell() -> None:
        await stop.wait()
        wire.stop()
        await trio.sleep(graceful_timeout_s + _FLUSH_S)
        nursery.cancel_scope.cancel()  # the client takes nothing

    documents = service.documents(tenant) if agent is None else None
    capable = NotificationOptions(prompts_changed=True, tools_changed=True, resources_changed=documents is not None)

    async def tell_of_changes() -> None:
        # Before 2026-07-28 nobody subscribes to lists: there is one stream, and it is told on that.
        await wire.handshaken.wait()
        asked = t.SubscriptionFilter(
            prompts_list_changed=True, tools_list_changed=True, resources_list_changed=capable.resources_changed
        )
        try:
            async with listeners.opened(tenant, asked, documents) as listener:
                while (event := await listener.next()) is not None:
                    method = event_to_notification(event, {}).method
                    await wire.send(t.JSONRPCNotification(jsonrpc="2.0", method=method))
        except Problem as problem:
            log.warning("changed lists are not told", reason=problem.message)

    with service.changes.heard_by(listeners.hear):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(farewell)
            nursery.start_soon(listeners.watch)
            nursery.start_soon(tell_of_changes)
            async with trio.open_nursery() as writing:
                writing.start_soon(wire.write)
                await server.run(Incoming(wire), Outgoing(wire), server.create_initialization_options(capable))
                writing.cancel_scope.deadline = trio.current_time() + _FLUSH_S
            nursery.cancel_scope.cancel()


# ---- the process ------------------------------------------------------------------------------------------------


class NeverWaits(io.TextIOBase):
    """Text to a descriptor, as far as it takes it at once; the rest is dropped, and that is told later.

    A client may leave our standard error unread (specification, stdio: it MAY ignore it). Its pipe fills up then, and
    a log that waited for it would stop the server. The descriptor may be shared, so it stays a blocking one.
    """

    encoding = "utf-8"

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._dropped = 0

    def write(self, text: str) -> int:
        notice = f"\n({self._dropped} pieces of the log were dropped: nobody read them)\n" if self._dropped else ""
        data = (notice + text).encode("utf-8", "backslashreplace")
        for start in range(0, len(data), select.PIPE_BUF):
            if not self._take(data[start : start + select.PIPE_BUF]):
                self._dropped += 1
                return len(text)
        self._dropped = 0
        return len(text)

    def _take(self, data: bytes) -> bool:
        try:
            # A pipe that can be written to takes PIPE_BUF bytes without waiting (POSIX, write).
            return bool(self._poll.poll(0)) and os.write(self._fd, data) == len(data)
        except OSError:
            return False  # its reader is gone

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def fileno(self) -> int:
        return self._fd


def take_standard_streams() -> Streams:
    """Take standard input and output for the client alone. Whatever else writes to standard output from now on, this
    process, its libraries or its children, writes to standard error; whatever reads standard input reads nothing.
    Nothing in this process waits for standard error to be read.

    Raises Refused when one of them is closed.
    """
    # Their numbers say nothing: what was opened since may have taken the place of a closed one.
    if None in (sys.stdin, sys.stdout, sys.stderr):
        raise Refused("--stdio needs standard input, output and error, and one of them is closed")
    try:
        streams = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1))
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.close(nothing)
    except OSError as error:
        raise Refused(f"--stdio cannot have standard input and output: {error.strerror}") from None
    sys.stdout = sys.stderr = NeverWaits(2)
    return streams[0], streams[1]


def nobody_reads(fd: int) -> bool:
    """Whether the reader of a pipe or socket is gone. Of files and terminals it is never said."""
    poll = select.poll()
    poll.register(fd, 0)  # errors and hang-ups are always told
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


async def run_stdio(
    loaded: LoadedConfig,
    streams: Streams,
    *,
    agent: str | None = None,
    bind: str | None = None,
    strict: bool = False,
    opener: Opener | None = None,
) -> int:
    """Serve the client of these descriptors until it closes its end, or until SIGTERM or SIGINT.

    With `agent` the client sees that agent's prompt and tools alone. With `bind` HTTP is served too, as long. Returns
    the exit status and raises as `run_server` does.
    """
    return await run_process(partial(_run, loaded, streams, agent, bind, strict, opener))


async def _run(
    loaded: LoadedConfig,
    streams: Streams,
    agent: str | None,
    bind: str | None,
    strict: bool,
    opener: Opener | None,
    stop: trio.Event,
    serving: trio.Event,
) -> int:
    settings = loaded.config.server
    async with _opened(loaded, bind, opener, stop) as service:
        _tell(loaded_lines(service))
        if strict and service.failures:
            raise Refused(f"{len(service.failures)} script(s) failed to load, and --strict was asked for")
        if agent is not None:
            try:
                service.list_tools(DEFAULT_TENANT, agent)
            except Problem as problem:
                raise Refused(f"--agent: {problem.message}") from None
        _tell(["MCP on standard input and output" + (f", for the agent {agent}" if agent else "")])
        serving.set()
        async with trio.lowlevel.FdStream(streams[0]) as incoming, trio.lowlevel.FdStream(streams[1]) as outgoing:
            wire = Wire(
                incoming,
                outgoing,
                max_line_bytes=settings.max_body_bytes,
                graceful_timeout_s=settings.graceful_timeout_s,
                nobody_reads=partial(nobody_reads, streams[1]),
            )
            await serve_client(
                service,
                wire,
                stop,
                tenant=DEFAULT_TENANT,
                agent=agent,
                graceful_timeout_s=settings.graceful_timeout_s,
            )
        stop.set()
        with trio.move_on_after(settings.graceful_timeout_s):
            await service.engine.drain()
    return 0


@asynccontextmanager
async def _opened(
    loaded: LoadedConfig, bind: str | None, opener: Opener | None, stop: trio.Event
) -> AsyncIterator["Service"]:
    """The service; with `bind`, served over HTTP as well until `stop` is set."""
    if bind is None:
        if opener is None:
            from agents.service import open_service

            opener = open_service
        from agents.reload import reloading

        async with opener(loaded) as service, reloading(service), service.at_hand(DEFAULT_TENANT):
            yield service
        return
    async with open_server(loaded, bind, opener) as ready, trio.open_nursery() as nursery:
        settings = loaded.config.server
        serve = partial(serve_app, graceful_timeout_s=settings.graceful_timeout_s, settings=settings)
        nursery.start_soon(serve, ready.guard, ready.listener, stop)
        _tell([f"HTTP is served on {ready.url}"])
        async with ready.service.at_hand(DEFAULT_TENANT):
            yield ready.service
        stop.set()


def _tell(lines: list[str]) -> None:
    """Tell whoever started the server, on standard error: standard output is the client's."""
    print("\n".join(lines), file=sys.stderr, flush=True)

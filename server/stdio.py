"""MCP over standard input and output, for clients that start their server as a child process.

The SDK's server implements the protocol, in all revisions. Its transport (2.3.0, on trio) is not usable here: it reads
in a thread that cannot be cancelled, so that SIGTERM waits for the client's next line; it accepts lines of any length;
and a malformed line gets no answer. `Wire` replaces it: one JSON-RPC message a line, as the specification says.
"""

import fcntl
import io
import os
import select
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import mcp_types as t
import trio
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared.subscriptions import event_to_notification

from agents.calls import Calls
from control.identity import LOCAL
from engine.config import LoadedConfig
from engine.errors import Problem
from engine.tenant import DEFAULT_TENANT, Tenant
from server.about import loaded_lines
from server.app import Opener, Refused, open_server, run_process, serve_app
from server.logs import log
from server.mcp.caller import Caller, Context
from server.mcp.handlers import Handlers
from server.mcp.listen import Listeners, TaskChanged
from server.mcp.log import SessionLevel
from server.mcp.wire import _FLUSH_S, Incoming, Outgoing, Wire

if TYPE_CHECKING:
    from agents.service import Service


# The two descriptors of a client: the one to read from, and the one to write to.
Streams = tuple[int, int]


async def serve_client(
    calls: Calls, wire: Wire, stop: trio.Event, *, tenant: Tenant, agent: str | None, graceful_timeout_s: float
) -> None:
    """Serve the client of a wire until it disconnects, or until `stop` is set and the graceful time is over."""
    listeners = Listeners()
    log_level = SessionLevel()

    def caller(ctx: Context) -> Caller:
        # The client is our parent process, on this machine.
        return Caller(
            tenant, agent, partial(wire.when_draining, ctx.request_id), LOCAL, keyed=False, log_level=log_level
        )

    def input_schema(name: str) -> Mapping[str, Any] | None:
        info = calls.tool_info(tenant, name)
        return None if info is None else info.parameters

    handlers = Handlers(calls, listeners, caller=caller)
    server: Server[Any] = handlers.server(input_schema)

    async def farewell() -> None:
        await stop.wait()
        handlers.runs.drain()
        wire.stop()
        await trio.sleep(graceful_timeout_s + _FLUSH_S)
        nursery.cancel_scope.cancel()  # the client has stopped reading

    documents = calls.documents(tenant) if agent is None else None
    capable = NotificationOptions(prompts_changed=True, tools_changed=True, resources_changed=documents is not None)

    async def tell_of_changes() -> None:
        # Before 2026-07-28 clients do not subscribe to lists: the one stream carries the notifications.
        await wire.handshaken.wait()
        asked = t.SubscriptionFilter(
            prompts_list_changed=True, tools_list_changed=True, resources_list_changed=capable.resources_changed
        )
        try:
            async with listeners.opened(tenant, asked, documents) as listener:
                while (event := await listener.next()) is not None:
                    assert not isinstance(event, TaskChanged)  # it watches none
                    method = event_to_notification(event, {}).method
                    await wire.send(t.JSONRPCNotification(jsonrpc="2.0", method=method))
        except Problem as problem:
            log.warning("changed lists are not told", reason=problem.message)

    with calls.changes.heard_by(listeners.hear):
        async with handlers.runs.opened(), trio.open_nursery() as nursery:
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
    """A text stream that never blocks: text that the descriptor does not accept at once is dropped, and a later line
    reports that.

    A client may leave our standard error unread (specification, stdio: it MAY ignore it). The pipe then fills up, and
    a log that blocked on it would stop the server. The descriptor may be shared, so it stays in blocking mode.
    """

    encoding = "utf-8"

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._dropped = 0

    def write(self, text: str) -> int:
        notice = f"\n({self._dropped} pieces of the log were dropped: they were not read)\n" if self._dropped else ""
        data = (notice + text).encode("utf-8", "backslashreplace")
        for start in range(0, len(data), select.PIPE_BUF):
            if not self._take(data[start : start + select.PIPE_BUF]):
                self._dropped += 1
                return len(text)
        self._dropped = 0
        return len(text)

    def _take(self, data: bytes) -> bool:
        try:
            # A pipe that polls as writable accepts PIPE_BUF bytes without blocking (POSIX, write).
            return bool(self._poll.poll(0)) and os.write(self._fd, data) == len(data)
        except OSError:
            return False  # the reader has closed it

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def fileno(self) -> int:
        return self._fd


def take_standard_streams() -> Streams:
    """Reserve standard input and output for the client. Every other write to standard output from now on, by this
    process, its libraries or its children, goes to standard error; every other read of standard input is at its end.
    Nothing in this process blocks on standard error.

    Raises Refused if one of them is closed.
    """
    # Not by their numbers: a file opened since may have taken the number of a closed one.
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


def reader_gone(fd: int) -> bool:
    """Whether the reading end of a pipe or socket is closed. Always False for files and terminals."""
    poll = select.poll()
    poll.register(fd, 0)  # errors and hang-ups are always reported (poll(2))
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

    With `agent` the client sees only that agent's prompt and tools. With `bind` HTTP is served too, for as long.
    Returns the exit status and raises as `run_server` does.
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
            raise Refused(f"{len(service.failures)} script(s) failed to load, and --strict was given")
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
                reader_gone=partial(reader_gone, streams[1]),
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

        async with (
            opener(loaded) as service,
            reloading(service),
            service.serving(),
            service.published(DEFAULT_TENANT),
        ):
            yield service
        return
    async with open_server(loaded, bind, opener) as ready, trio.open_nursery() as nursery:
        settings = loaded.config.server
        serve = partial(serve_app, graceful_timeout_s=settings.graceful_timeout_s, settings=settings)
        nursery.start_soon(serve, ready.guard, ready.listener, stop)
        _tell([f"HTTP is served on {ready.url}"])
        async with ready.service.published(DEFAULT_TENANT):
            yield ready.service
        stop.set()


def _tell(lines: list[str]) -> None:
    """Print the banner on standard error: standard output belongs to the client."""
    print("\n".join(lines), file=sys.stderr, flush=True)

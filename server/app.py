"""The server: one ASGI application behind the guard, the socket it listens on, and the process around both."""

import gc
import logging
import math
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import trio
from hypercorn.config import Config as HypercornConfig

from agents.calls import Calls
from engine.config import LoadedConfig, ServerConfig, parse_bind
from engine.errors import Problem, leaf
from engine.host.process import prepare_process
from engine.tenant import Tenant
from server import logs
from server.about import listening, loaded_lines
from server.http.access import Access, is_loopback
from server.http.asgi import App, Receive, Scope, Send, exchange_of, send_answer
from server.http.auth import Auth
from server.http.guard import Guard
from server.http.rates import rate_headers
from server.logs import log
from server.mcp.endpoint import Mcp
from server.problems import problem_answer
from server.rest import routes as rest
from server.transport import connections

if TYPE_CHECKING:
    from agents.service import Service
    from server.oauth.tokens import Tokens

# Clients' connection pools keep idle connections for up to a minute. A server that closes first races with a request
# that the client is about to send.
KEEP_ALIVE_S = 75
# The guard ends requests, with an answer, when the graceful time is over; connections are cut this much later.
FAREWELL_S = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Opener = Callable[[LoadedConfig], Any]


class Refused(Exception):
    """The server cannot start as configured. The message is one line, for the person who started it."""


@asynccontextmanager
async def open_app(
    service: "Service", settings: ServerConfig, bind_host: str, mcp: Mcp | None = None
) -> AsyncIterator[Guard]:
    """The ASGI application of a service, for as long as the block lasts. `mcp` replaces the default MCP application.

    An error in a background task cancels the block and propagates, so that a server never runs with parts missing.
    """
    engine = service.engine
    control = service.control if service.loaded.config.tenants.enabled else None
    answering = rest.Rest(rest.Routes(service).all())

    def rates(tenant: Tenant) -> Iterable[tuple[bytes, bytes]]:
        left = engine.requests_left(tenant)
        return () if left is None else rate_headers(left)

    async with opened_tokens(service) as tokens:
        auth = Auth(answering.table, control, engine.count_request, engine.work_for, engine.charge, tokens)
        async with open_front(service, answering, auth, settings, bind_host, mcp, rates) as guard:
            yield guard


@asynccontextmanager
async def open_front(
    calls: Calls,
    answering: rest.Rest,
    auth: Auth,
    settings: ServerConfig,
    bind_host: str,
    mcp: Mcp | None = None,
    rates: Callable[[Tenant], Iterable[tuple[bytes, bytes]]] = lambda tenant: (),
) -> AsyncIterator[Guard]:
    """REST and MCP behind the guard, for agents and tools that may run elsewhere. Errors propagate as in `open_app`.

    `rates` has the headers that say how many requests a tenant may send.
    """
    speaking = mcp or Mcp(calls, max_body_bytes=settings.max_body_bytes)

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        app: App = answering
        entered = False
        try:
            if exchange.found.route is answering.mcp:
                answering.mcp.check(exchange)
                app = speaking
            async with calls.published(exchange.tenant):
                entered = True
                await app(scope, receive, send)
        except Problem as problem:
            if entered:  # raised inside an application: these answer problems themselves, so this is a fault of ours
                raise
            await send_answer(problem_answer(problem), send)

    access = Access(bind_host, settings.allowed_hosts, settings.allowed_origins)
    guard = Guard(
        route, access, auth, max_body_bytes=settings.max_body_bytes, body_timeout_s=settings.body_timeout_s,
        rates=rates, background=speaking.runs,
    )  # fmt: skip
    async with speaking.run(), trio.open_nursery() as nursery:
        nursery.start_soon(auth.expel, guard.active)
        yield guard
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def opened_tokens(service: "Service") -> AsyncIterator["Tokens | None"]:
    """The tokens of `[tenants.oauth]`; without it None, and nothing of it is imported."""
    oauth = service.loaded.config.tenants.oauth
    if oauth is None:
        yield None
        return
    from server.oauth.tokens import open_tokens

    async with open_tokens(oauth, service.control.logins) as tokens:
        yield tokens


async def serve_app(
    guard: Guard,
    listener: trio.SocketListener,
    stop: trio.Event,
    *,
    graceful_timeout_s: float,
    settings: ServerConfig | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set, then drain: requests in flight get `graceful_timeout_s`, then an error, and are cut.

    `settings` bounds the number of open connections.
    """
    settings = settings or ServerConfig()
    # At most half of the file descriptors: workers and the store need the other half.
    max_connections = min(settings.max_connections, max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
    config = HypercornConfig()
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.graceful_timeout = graceful_timeout_s + FAREWELL_S
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")

    ends = math.inf

    async def farewell() -> None:
        nonlocal ends
        await stop.wait()
        ends = trio.current_time() + graceful_timeout_s
        guard.drain()
        await trio.sleep_until(ends)
        guard.cancel_all()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(farewell)
        await connections.serve(
            guard,
            [listener],
            config,
            stop=stop.wait,
            max_connections=max_connections,
            max_connections_per_address=settings.max_connections_per_address,
            head_timeout_s=guard.body_timeout_s,
            task_status=task_status,
        )
        if guard.background is not None:
            await guard.background.settle(min(ends, trio.current_time() + graceful_timeout_s))
        nursery.cancel_scope.cancel()


async def listen(host: str, port: int) -> trio.SocketListener:
    """A listening socket. Raises Refused, with one line, when the address cannot be bound."""
    try:
        # IPv4 first: `localhost` means 127.0.0.1 to more programs than it means ::1.
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda info: info[0] is not socket.AF_INET)
        sock = trio.socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await sock.bind(address)
            sock.listen(1024)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise Refused(f"cannot listen on {where}: {error.strerror or 'no such address'}") from None
    return trio.SocketListener(sock)


async def run_server(
    loaded: LoadedConfig,
    *,
    bind: str | None = None,
    strict: bool = False,
    demo: bool = False,
    opener: Opener | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status: 0 after a drain, 1 after a fault, 2 if refused.

    `bind` overrides the configured address; port 0 takes any free port, which the banner prints. With `strict`, the
    server does not start if a script failed to load. A second signal ends everything at once; the status is then that
    of a process killed by the signal: 130 or 143.

    Raises what opening the service raises: a store or a sandbox that cannot be used.
    """
    return await run_process(partial(_run, loaded, bind, strict, demo, opener))


async def run_process(run: Callable[[trio.Event, trio.Event], Awaitable[int]]) -> int:
    """Run a server as this process: set up its log and signal handling, and return its exit status.

    `run(stop, serving)` serves until it is done or until the first signal sets `stop`, and sets `serving` once
    everything is open. Exceptions before that propagate, except Refused, which is printed here.
    """
    logs.configure()
    prepare_process()
    signals = _Signals()
    stop, serving = signals.stop, signals.serving
    status = 0
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(signals.watch, nursery.cancel_scope)
            status = await run(stop, serving)
            nursery.cancel_scope.cancel()
    except Exception as error:
        cause = leaf(error)
        if isinstance(cause, Refused):
            print(f"error: {cause}", file=sys.stderr)
            return 2
        if not serving.is_set():
            raise cause from None  # its message already says what could not be opened, and why
        log.error("the server failed", exc_info=error)
        print("error: the server failed; the log above says why", file=sys.stderr)
        return 1
    return signals.status or status


@dataclass(frozen=True, slots=True)
class Ready:
    """A service with its application and a bound socket at `url`; no request is served yet."""

    service: "Service"
    guard: Guard
    listener: trio.SocketListener
    url: str


@asynccontextmanager
async def open_server(loaded: LoadedConfig, bind: str | None, opener: Opener | None) -> AsyncIterator[Ready]:
    """Bind the address (`bind`, else the configured one) and open the service.

    Raises Refused for an address that cannot be bound or is not allowed, and what opening the service raises.
    """
    settings = loaded.config.server
    try:
        host, port = parse_bind(bind or settings.bind)
    except ValueError as error:
        raise Refused(str(error)) from None
    if not (is_loopback(host) or settings.allow_anonymous or loaded.config.tenants.enabled):
        raise Refused(
            f"{host} can be reached from other machines, and there are no keys: "
            "bind to 127.0.0.1, set tenants.enabled = true, or set server.allow_anonymous = true"
        )
    if opener is None:
        from agents.service import open_service

        opener = open_service
    # Bind first: it is the likeliest to fail, and opening a service starts processes.
    listener = await listen(host, port)
    from agents.reload import reloading

    async with (
        listener,
        opener(loaded) as service,
        reloading(service),
        service.serving(),
        open_app(service, settings, host) as guard,
    ):
        yield Ready(service, guard, listener, _url(host, listener))


async def _run(
    loaded: LoadedConfig,
    bind: str | None,
    strict: bool,
    demo: bool,
    opener: Opener | None,
    stop: trio.Event,
    serving: trio.Event,
) -> int:
    settings = loaded.config.server
    async with open_server(loaded, bind, opener) as ready:
        service = ready.service
        _say(loaded_lines(service))
        if strict and service.failures:
            raise Refused(f"{len(service.failures)} script(s) failed to load, and --strict was given")
        _say(listening(service, ready.url, demo=demo))
        # Modules and scripts loaded so far live as long as the process. Freezing them removes the long pauses of full
        # collections (p99 70 ms without it).
        gc.collect()
        gc.freeze()
        serving.set()
        timeout = settings.graceful_timeout_s
        await serve_app(ready.guard, ready.listener, stop, graceful_timeout_s=timeout, settings=settings)
        # Runs that requests started have ended with them; this waits for work that the engine started by itself.
        with trio.move_on_after(timeout):
            await service.engine.drain()
    return 0


def _say(lines: list[str]) -> None:
    """Print the banner. A closed standard output, or an encoding that lacks a character, is not an error."""
    encoding = sys.stdout.encoding or "utf-8"
    with suppress(OSError, ValueError):
        print("\n".join(lines).encode(encoding, "replace").decode(encoding), flush=True)


def _url(host: str, listener: trio.SocketListener) -> str:
    port = listener.socket.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Signals:
    """The first signal starts a drain, or cancels a start that is not complete; the second cancels everything."""

    def __init__(self) -> None:
        self.stop = trio.Event()
        self.serving = trio.Event()
        # The exit status if a second signal ended everything, else 0.
        self.status = 0

    async def watch(
        self, everything: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                if self.stop.is_set():
                    self.status = 128 + number
                    everything.cancel()
                elif not self.serving.is_set():
                    everything.cancel()
                self.stop.set()

"""A peer that a script's requests may meet: a server that says what a test tells it to, names that resolve as told.

`Peer` speaks raw bytes, honest or not. `Names` is the resolver, `Streets` the network: it knows which of the test's
servers is at which address, so that a public address can be connected to without one. The rules of the engine know
nothing of either.
"""

import ssl
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpcore2
import msgspec
import trio

from engine.bridge import Bridge, HostContext
from engine.bridge.http import GRANTS, open_http
from engine.run import Authority, RunRequest, Script
from engine.tenant import DEFAULT_TENANT, Tenant, bind_limits

# What a name may lead to: public, and used by the test alone.
PUBLIC, PUBLIC_TOO, PUBLIC_6 = "93.184.216.34", "93.184.216.35", "2606:2800:220:1::1"
HOST = "api.example.com"


@dataclass(frozen=True)
class Seen:
    """One request as it came over the wire. `connection` counts those of the peer, from 1."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int


Behaviour = Callable[[trio.abc.Stream, Seen], Awaitable[None]]


def answer(body: bytes = b"", status: int = 200, *headers: str, length: int | None = None) -> bytes:
    """An answer as bytes; `length` is what it claims to be long, by default the truth."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def redirect(location: str, status: int = 302) -> bytes:
    return answer(b"moved", status, f"Location: {location}")


def gzipped(pieces: Iterable[bytes], wbits: int = zlib.MAX_WBITS | 16) -> bytes:
    """One body, compressed; the default is gzip."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    return b"".join(map(packer.compress, pieces)) + packer.flush()


@dataclass
class Peer:
    """Answers by path, with bytes or by a function that has the stream; a path that it does not know is 404.

    `seen` is what it was asked; `sent` counts the bytes that functions sent through `flood`; `gone` counts connections
    that are closed by now.
    """

    routes: dict[str, bytes | Behaviour] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    gone: int = 0
    sent: int = 0
    port: int = 0
    _moved: trio.Event = field(default_factory=trio.Event)

    async def until(self, happened: Callable[["Peer"], bool]) -> None:
        """Wait until this is true of what was seen and who is gone."""
        with trio.fail_after(10):
            while not happened(self):
                await self._moved.wait()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    async def flood(self, stream: trio.abc.Stream, piece: bytes) -> None:
        """Send this again and again until the peer closes."""
        try:
            while True:
                await stream.send_all(piece)
                self.sent += len(piece)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.connections += 1
        number = self.connections
        buffer = bytearray()
        try:
            while (request := await _read_request(stream, buffer, number)) is not None:
                self.seen.append(request)
                self._move()
                route = self.routes.get(request.path.partition("?")[0], answer(b"not here", 404))
                if isinstance(route, bytes):
                    await stream.send_all(route)
                else:
                    await route(stream, request)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # how a test, or the other side, ends a connection
        finally:
            await trio.aclose_forcefully(stream)
            self.gone += 1
            self._move()


async def _read_request(stream: trio.abc.Stream, buffer: bytearray, number: int) -> Seen | None:
    while b"\r\n\r\n" not in buffer:
        data = await stream.receive_some()
        if not data:
            return None
        buffer += data
    head, _, rest = bytes(buffer).partition(b"\r\n\r\n")
    first, *lines = head.decode("utf-8").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", "0"))
    while len(rest) < length:
        rest += await stream.receive_some()
    buffer[:] = rest[length:]
    method, path, _ = first.split(" ")
    return Seen(method, path, headers, rest[:length], number)


@asynccontextmanager
async def listening(peer: Peer, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    """The peer at a port of loopback, while the block lasts."""

    async def serve(stream: trio.SocketStream) -> None:
        if tls is None:
            await peer.serve(stream)
            return
        encrypted = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        try:
            await encrypted.do_handshake()
        except trio.BrokenResourceError:
            return
        await peer.serve(encrypted)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(_serve_tcp, serve, host)
        peer.port = listeners[0].socket.getsockname()[1]
        yield peer
        nursery.cancel_scope.cancel()


async def _serve_tcp(
    handler: Callable[[trio.SocketStream], Awaitable[None]], host: str, *, task_status: trio.TaskStatus[Any]
) -> None:
    await trio.serve_tcp(handler, 0, host=host, task_status=task_status)


@dataclass
class Names:
    """The resolver: each name has its answers, the last of which stays. An OSError is raised, an Event waited for."""

    known: dict[str, list[list[str] | OSError | threading.Event]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        answers = self.known.get(host)
        if not answers:
            raise OSError("no such name")
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, OSError):
            raise found
        if isinstance(found, threading.Event):
            found.wait(30)
            raise OSError("the resolver gave up")
        return found


@dataclass
class Streets(httpcore2.AsyncNetworkBackend):
    """The network: which port of loopback is at which address and port, or a function that stands in for it."""

    at: dict[tuple[str, int], int | Callable[[], Awaitable[Any]]] = field(default_factory=dict)
    connected: list[tuple[str, int]] = field(default_factory=list)

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> httpcore2.AsyncNetworkStream:
        self.connected.append((host, port))
        there = self.at.get((host, port))
        if there is None:
            raise httpcore2.ConnectError("no host there")
        if not isinstance(there, int):
            await there()
            raise httpcore2.ConnectError("no answer")
        return await httpcore2.TrioBackend().connect_tcp("127.0.0.1", there)


def context(
    rules: Iterable[str],
    *,
    tenant: Tenant = DEFAULT_TENANT,
    left_s: float = 30.0,
    limits: Mapping[str, float] | None = None,
    grants: frozenset[str] = GRANTS,
) -> HostContext:
    """On whose behalf a call is made: a run that may reach what the rules list."""
    request = RunRequest(
        tenant=tenant,
        name="test",
        script=Script.from_source("t.lua", b""),
        root="tool",
        method="execute",
        limits=bind_limits(limits or {}, tenant, {}, {}),
        grants=grants,
        authority=Authority(hosts=tuple(rules)),
    )
    return HostContext(
        request=request,
        run_id="run-1",
        log=lambda level, text: None,
        remaining=lambda: {"timeout_s": left_s, "cpu_s": 10.0, "host_calls": 100},
        charge=lambda usage: None,
    )


@dataclass
class World:
    """The host calls, in front of a peer that has a public address and a name."""

    bridge: Bridge
    peer: Peer
    names: Names
    streets: Streets

    async def call(self, name: str, url: str, rules: Iterable[str] = (HOST,), **how: Any) -> Any:
        """The answer of a call, or the text of its error. `how`: arguments of the call, then those of `context`."""
        arguments = {key: how.pop(key) for key in ("headers", "params", "body", "timeout") if key in how}
        packed = msgspec.msgpack.encode({"url": url, **arguments})
        with trio.fail_after(20):
            reply = await self.bridge.call(context(rules, **how), name, packed)
        return msgspec.msgpack.decode(reply.value) if reply.ok else reply.value.decode()

    async def get(self, path: str = "/", **how: Any) -> Any:
        return await self.call("http.get", f"http://{HOST}{path}", **how)

    async def works(self) -> None:
        """The next call of the same tenant is answered as if nothing had happened."""
        self.peer.routes["/next"] = answer(b"as ever")
        found = await self.get("/next")
        assert isinstance(found, dict), found
        assert (found["status"], found["body"]) == (200, b"as ever")


@asynccontextmanager
async def open_world(**how: Any) -> AsyncIterator[World]:
    """A world, with the real host calls in it; `how` is for `open_http`."""
    names, streets = Names(), Streets()
    names.known[HOST] = [[PUBLIC]]
    async with listening(Peer()) as peer:
        streets.at[PUBLIC, 80] = peer.port
        async with open_http(lookup=names, network=streets, **how) as http:
            yield World(Bridge(http.functions), peer, names, streets)

"""What the tests of the tester share: targets and servers whose behaviour is known, and one scenario to ask of them."""

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import trio
from trio.testing import MockClock

from benchmarks.load.account import Answer, OwnFigures, Recorder
from benchmarks.load.making import make_load
from benchmarks.load.schedule import Load, Request
from benchmarks.report.result import Asked, Surroundings, result_of
from benchmarks.scenario import Ask
from benchmarks.targets.address import Address

OK = Answer(outcome="ok")
ASK = Ask(name="noop", kind="agent", what="noop")
MACHINE = {
    "cores": 2, "processor": "P", "kernel": "6", "python": "3.11", "lupa": "2", "trio": "0", "load": 0.1,
    "versions": {"h11": "0"}, "commit": None,
}  # fmt: skip

Behaviour = Callable[[float, Request], Awaitable[Answer]]


@dataclass
class FakeTarget:
    """A target in this process, on trio's clock. `behave` gets the seconds since the start and the request."""

    behave: Behaviour
    begin: float = field(default_factory=trio.current_time)
    seen: list[tuple[float, Request]] = field(default_factory=list)

    async def send(self, request: Request) -> Answer:
        at = trio.current_time() - self.begin
        self.seen.append((round(at, 9), request))
        await trio.lowlevel.checkpoint()
        return await self.behave(at, request)


def delaying(seconds: float) -> Behaviour:
    """Answers after a fixed time."""

    async def behave(at: float, request: Request) -> Answer:
        await trio.sleep(seconds)
        return OK

    return behave


def stalling(every_s: float, for_s: float, otherwise_s: float = 0.001) -> Behaviour:
    """Answers after `otherwise_s`, but nothing in the last `for_s` of every `every_s`."""

    async def behave(at: float, request: Request) -> Answer:
        into = at % every_s
        stalled = every_s - into if into >= every_s - for_s else 0.0
        await trio.sleep(stalled + otherwise_s)
        return OK

    return behave


async def loaded(load: Load, behave: Behaviour, *asks: Ask, **how: Any) -> tuple[Recorder, FakeTarget]:
    """The account of a load on such a target."""
    account, target = Recorder(load), FakeTarget(behave)
    await make_load(load, asks or (ASK,), how.pop("tenants", ("default",)), target, account, **how)
    return account, target


def account_of(latencies_ms: list[float], *, rate: float = 10.0, errors: int = 0) -> Recorder:
    """The account of requests of these latencies, evenly over the time; the last `errors` of them failed."""
    load = Load(rate=rate, duration_s=len(latencies_ms) / rate, warm_up_s=0.0)
    account = Recorder(load)
    for number, latency in enumerate(latencies_ms):
        due = (number + 0.5) / rate
        outcome = "ok" if number < len(latencies_ms) - errors else "script_error"
        account.sent(due, due)
        account.ended(Request(ASK, "default", number), due, due + latency / 1000, Answer(outcome=outcome))
    return account


def result_for(account: Recorder, **changed: Any) -> dict[str, Any]:
    """A complete result of that account."""
    asked = Asked(
        target="http", scenario="noop", about="nothing", scenario_text="", requests=("agent noop",),
        load=account.load, model="open", url="http://127.0.0.1:1", command="engine bench http http://127.0.0.1:1",
    )  # fmt: skip
    made = result_of(
        asked, account, OwnFigures(cpu_shares=(0.1,)), Surroundings(machine=MACHINE), elapsed_s=account.load.duration_s,
        interrupted=False,
    )  # fmt: skip
    return made | changed


def clock() -> MockClock:
    """Time that passes only when all tasks wait: every load is exact, and over at once."""
    return MockClock(autojump_threshold=0)


# ---- a server on a socket ----------------------------------------------------------------------------------------

JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@dataclass
class Served:
    """One request as the server got it."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answering = Callable[[Served], Awaitable[bytes | None]]


def reset(stream: trio.SocketStream) -> None:
    """Close the connection so that the other side sees it broken."""
    stream.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


class Last(bytes):
    """An answer after which the connection is closed."""


class Reset(Exception):
    """Raised by an `Answering`: the connection is to be reset."""


@dataclass
class RawServer:
    """A server that answers bytes. `answer` gives them, or None to close the connection; it may sleep, or raise Reset.

    It speaks just enough HTTP to tell one request from the next.
    """

    answer: Answering
    address: Address
    seen: list[Served] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.address.authority}"

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        buffer = b""
        try:
            while True:
                while b"\r\n\r\n" not in buffer:
                    if not (data := await stream.receive_some()):
                        return
                    buffer += data
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                first, *lines = head.decode().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                length = int(headers.get("content-length", 0))
                while len(buffer) < length:
                    buffer += await stream.receive_some()
                method, path, _ = first.split(" ")
                request = Served(len(self.seen), method, path, headers, buffer[:length])
                buffer = buffer[length:]
                self.seen.append(request)
                if (answer := await self.answer(request)) is None:
                    return
                await stream.send_all(answer)
                if isinstance(answer, Last):
                    return
        except Reset:
            reset(stream)
        except trio.BrokenResourceError:
            pass  # the client went away, as those of an interrupted load do
        finally:
            stream.socket.close()


async def fine(request: Served) -> bytes | None:
    """Answers everything with an empty object, at once."""
    await trio.lowlevel.checkpoint()
    return JSON


@asynccontextmanager
async def serving(answer: Answering = fine, port: int = 0) -> AsyncIterator[RawServer]:
    """Such a server on loopback, until the block ends."""
    (listener,) = await trio.open_tcp_listeners(port, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    server = RawServer(answer, Address("127.0.0.1", port, f"127.0.0.1:{port}"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        yield server
        nursery.cancel_scope.cancel()

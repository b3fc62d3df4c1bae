"""Connections: clients that leave in every state, thousands at once, and who makes room when there is none."""

import gc
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import product

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from machine import loop_s
from server_support import FakeService, Running, assert_envelope, parse, read_answer, request, serving

from engine.config import ServerConfig
from server.transport import connections
from server.transport.connections import Connections
from server.transport.places import Phase, Places

SLOW = request("POST", "/tools/slow", b"{}")
CHUNKED = request("POST", "/tools/slow", b"", "Transfer-Encoding: chunked", "Content-Type: application/json")
STREAM = request("GET", "/mcp", b"", "Accept: text/event-stream", "MCP-Protocol-Version: 2025-11-25")
BIG = request("POST", "/tools/echo", b'{"a":"%s"}' % (b"x" * 3_900_000))
HEALTH = request("GET", "/health")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Connections]:
    """The connections of each server that the test starts."""
    found: list[Connections] = []
    accept = Connections.accept

    async def note(self: Connections, listener: socket.socket) -> None:
        found.append(self)
        await accept(self, listener)

    monkeypatch.setattr(Connections, "accept", note)
    return found


# ---- leaving ----------------------------------------------------------------------------------------------------

# What a client sends, piece by piece, and whether the tool `slow` runs by then.
STATES: dict[str, tuple[list[bytes], bool]] = {
    "nothing asked": ([], False),
    "half a head": ([HEALTH[:20]], False),
    "half a body": ([SLOW[:-1]], False),
    "half a chunk": ([CHUNKED, b"2\r\n{"], False),
    "waiting for 100": ([request("POST", "/tools/slow", b"{}", "Expect: 100-continue")[:-2]], False),
    "under way": ([SLOW], True),
    "under way in chunks": ([CHUNKED, b"2\r\n{}\r\n0\r\n\r\n"], True),
    "a byte behind": ([SLOW, b"G"], True),
    "a request behind in one packet": ([SLOW + HEALTH], True),
    "three requests behind": ([SLOW, HEALTH, HEALTH, HEALTH], True),
    "a request behind chunks": ([CHUNKED, b"2\r\n{}\r\n0\r\n\r\n" + HEALTH, HEALTH, HEALTH], True),
    "much behind": ([SLOW, *[HEALTH * 500] * 8], True),
    "a stream": ([STREAM], False),
    "a stream and more behind": ([STREAM, HEALTH, HEALTH, HEALTH], False),
    "an answer that is not read": ([BIG], False),
    "an answer that is not read and more behind": ([BIG, HEALTH, HEALTH], False),
}


def _reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


WAYS: dict[str, Callable[[socket.socket], None]] = {
    "close": socket.socket.close,
    "half close": lambda client: client.shutdown(socket.SHUT_WR),
    "both halves": lambda client: client.shutdown(socket.SHUT_RDWR),
    "reset": _reset,
}


@pytest.mark.parametrize(("state", "way"), list(product(STATES, WAYS)))
async def test_a_client_that_leaves_leaves_nothing_behind(
    server: Running, opened: list[Connections], state: str, way: str
) -> None:
    pieces, running = STATES[state]
    with trio.socket.socket() as client, trio.fail_after(20):
        await client.connect(("127.0.0.1", server.port))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            while piece:
                piece = piece[await client.send(piece) :]
            await trio.testing.wait_all_tasks_blocked(0.002)
        if running:
            await server.service.entered.wait()
        while not opened[0]:
            await trio.lowlevel.checkpoint()
        stdlib = client._sock  # type: ignore[attr-defined]
        WAYS[way](stdlib)
        await opened[0].gone()
        if running:
            await server.service.cancelled.wait()
        assert server.guard.in_flight == 0
    async with server.client() as other:
        assert (await other.post("/tools/echo", json={"a": 1})).json() == {"result": {"a": 1}}


@pytest.mark.parametrize("cut", [20, 60, 400])
async def test_what_was_split_does_not_hide_the_end_of_what_follows(server: Running, cut: int) -> None:
    long = request("POST", "/tools/echo", b'{"n":1}', "X-Long: " + "a" * 500)
    async with await server.connect() as stream:
        for short in (HEALTH, request("GET", "/health", b"", "Connection: keep-alive, x"), HEALTH):
            await stream.send_all(long[:cut])
            await trio.testing.wait_all_tasks_blocked(0.01)
            await stream.send_all(long[cut:])
            assert parse(await read_answer(stream)).json() == {"result": {"n": 1}}
            await stream.send_all(short[:-2])
            await trio.testing.wait_all_tasks_blocked(0.01)
            await stream.send_all(short[-2:])
            assert parse(await read_answer(stream)).status_code == 200


# ---- many at once -----------------------------------------------------------------------------------------------


class Turns(trio.abc.Instrument):
    """Counts turns of the event loop and the CPU time of the longest."""

    def __init__(self) -> None:
        self.count = 0
        self.longest = 0.0
        self._began = time.thread_time()

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1
        self._began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        self.longest = max(self.longest, time.thread_time() - self._began)


@pytest.fixture
def turns() -> Iterator[Turns]:
    gc.collect()
    gc.disable()  # a collection of all that the tests have loaded is longer than any turn; a server freezes that
    yield Turns()
    gc.enable()


def _connect(server: Running, count: int, stack: ExitStack) -> list[socket.socket]:
    """Connections that are made while the server's loop stands still."""
    return [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(count)]


async def _open(server: Running, connections: Connections, count: int, stack: ExitStack) -> list[socket.socket]:
    clients: list[socket.socket] = []
    while len(clients) < count:
        clients += _connect(server, min(500, count - len(clients)), stack)
        while len(connections) < len(clients):
            await trio.lowlevel.checkpoint()
    return clients


async def test_connections_that_wait_are_accepted_in_few_turns_of_the_loop(
    server: Running, opened: list[Connections], turns: Turns
) -> None:
    with ExitStack() as stack, trio.fail_after(20):
        await trio.testing.wait_all_tasks_blocked()
        clients = _connect(server, 60, stack)
        trio.lowlevel.add_instrument(turns)
        while len(opened[0]) < len(clients):
            await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(turns)
        assert turns.count <= len(clients) / 2  # one a turn, before


async def test_a_client_that_comes_while_there_are_no_descriptors_is_served_when_there_are(
    server: Running, logged: list[dict[str, object]]
) -> None:
    await trio.testing.wait_all_tasks_blocked()
    bounds = resource.getrlimit(resource.RLIMIT_NOFILE)
    with trio.socket.socket() as client, trio.fail_after(20):
        stream = trio.SocketStream(client)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, bounds[1]))
            await client.connect(("127.0.0.1", server.port))
            while not any(entry["event"] == "no connection can be accepted" for entry in logged):
                await trio.lowlevel.checkpoint()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, bounds)
        await stream.send_all(HEALTH)
        assert parse(await read_answer(stream)).status_code == 200


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
@pytest.mark.parametrize("sent", [b"", HEALTH[:20], SLOW[:-1], SLOW, SLOW + HEALTH], ids=range(5))
async def test_many_that_begin_and_end_at_once_do_not_stop_the_loop(
    server: Running, opened: list[Connections], turns: Turns, sent: bytes
) -> None:
    many = 600
    with ExitStack() as stack, trio.fail_after(60):
        clients = await _open(server, opened[0], many, stack)
        trio.lowlevel.add_instrument(turns)
        for client in clients:
            client.sendall(sent)
        while sent and sum(one.phase is not Phase.IDLE for one in opened[0].all()) < many:
            await trio.lowlevel.checkpoint()
        for client in clients:
            client.close()
        turns._began = time.thread_time()  # the work of this test is not the server's
        await opened[0].gone()
        trio.lowlevel.remove_instrument(turns)
        assert server.guard.in_flight == 0
    assert turns.longest < loop_s()


async def test_nothing_is_said_to_a_client_that_ends_in_the_middle_of_a_head(
    server: Running, opened: list[Connections], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[object] = []
    monkeypatch.setattr("server.transport.http1.raw_answer", lambda *_, **__: said.append(1) or b"")
    async with await server.connect() as stream:
        await stream.send_all(HEALTH[:20])
        await trio.testing.wait_all_tasks_blocked(0.01)
    with trio.fail_after(20):
        await opened[0].gone()
    assert said == []


# ---- room -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", ["max_connections", "max_connections_per_address"])
async def test_half_bodies_that_take_every_place_make_room(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(
        "server.transport.places._SPARE", tuple((phase, 0.0) for phase in Phase if phase is not Phase.BUSY)
    )
    monkeypatch.setattr(connections, "_account", lambda _: "192.0.2.1")
    async with serving(FakeService(ServerConfig(**{bound: 10}))) as server:
        held = [await server.connect() for _ in range(10)]
        for stream in held:
            await stream.send_all(SLOW[:-1])
            await trio.testing.wait_all_tasks_blocked(0.005)
        async with server.client() as client:
            for _ in range(3):
                assert (await client.post("/tools/echo", json={})).json() == {"result": {}}
        assert_envelope(await read_answer(held[0]), 503, "unavailable")
        await held[9].send_all(b"}")
        with trio.fail_after(20):
            await server.service.entered.wait()
        for stream in held:
            await stream.aclose()


async def _with_little_room(server: Running) -> trio.SocketStream:
    client = trio.socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    await client.connect(("127.0.0.1", server.port))
    return trio.SocketStream(client)


async def test_answers_that_are_not_read_take_no_place_for_long(
    monkeypatch: pytest.MonkeyPatch, opened: list[Connections]
) -> None:
    monkeypatch.setattr("server.transport.places._SPARE", ((Phase.IDLE, 0.0), (Phase.TAKING, 0.0)))
    async with serving(FakeService(ServerConfig(max_connections=3))) as server:
        held = [await _with_little_room(server) for _ in range(3)]
        for stream in held:
            await stream.send_all(BIG)
        with trio.fail_after(20):
            while any(one.phase is not Phase.TAKING for one in opened[0].all()):
                await trio.lowlevel.checkpoint()
        async with server.client() as client:
            assert (await client.post("/tools/echo", json={})).json() == {"result": {}}
        assert len(await read_answer(held[2])) > 3_900_000  # not the one that has waited longest
        for stream in held:
            await stream.aclose()


async def test_clients_of_this_machine_have_no_bound_of_their_own() -> None:
    async with serving(FakeService(ServerConfig(max_connections_per_address=2))) as server:
        held = [await server.connect() for _ in range(5)]
        for stream in held:
            await stream.send_all(HEALTH)
            assert parse(await read_answer(stream)).status_code == 200
        for stream in held:
            await stream.aclose()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_what_is_one_client_is_on_one_account(one: str, other: str, same: bool) -> None:
    assert (connections._account(one) == connections._account(other)) is same


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", ""])
def test_this_machine_is_not_counted(address: str) -> None:
    assert connections._account(address) == ""


class One:
    def __init__(self) -> None:
        self.phase: Phase | None = None
        self.since = 0.0


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([None, *Phase]))))
def test_the_spare_one_is_the_first_of_the_first_phase_that_has_any(moves: list[tuple[int, Phase | None]]) -> None:
    places: Places[One] = Places()
    ones = [One() for _ in range(6)]
    for now, (number, phase) in enumerate(moves):
        one = ones[number]
        places.move(one, one.phase, phase)
        one.phase, one.since = phase, now
        here = [one for one in ones if one.phase is not None]
        assert len(places) == len(here)
        assert set(places.all()) == set(here)
        waiting = [one for one in here if one.phase is not Phase.BUSY]
        expected = min(waiting, key=lambda one: (one.phase or 0, one.since), default=None)
        assert places.spare(now + 1.0) is expected


# ---- the body after the checks ----------------------------------------------------------------------------------

REFUSED = {
    "host": (request("POST", "/tools/echo", b"", "Content-Length: 2", "Expect: 100-continue", host="evil"), 421),
    "origin": (
        request("POST", "/tools/echo", b"", "Content-Length: 2", "Expect: 100-continue", "Origin: https://evil.example"),
        403,
    ),
    "size": (request("POST", "/tools/echo", b"", "Content-Length: 99999999", "Expect: 100-continue"), 413),
    "chunks": (
        request("POST", "/tools/echo", b"", "Transfer-Encoding: chunked", "Expect: 100-Continue", host="evil"), 421,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
async def test_a_client_that_is_refused_is_not_told_to_send_its_body(server: Running, name: str) -> None:
    data, status = REFUSED[name]
    async with await server.connect() as stream:
        await stream.send_all(data)
        answer = await read_answer(stream)
        assert parse(answer).status_code == status
        assert parse(answer).headers["connection"] == "close"
        with trio.fail_after(20), suppress(trio.BrokenResourceError):
            assert await stream.receive_some() == b""


async def test_a_client_that_is_told_to_send_its_body_was_let_in(server: Running) -> None:
    for data, body in (
        (request("POST", "/tools/echo", b"", "Content-Length: 2", "Expect: 100-continue"), b"{}"),
        (request("POST", "/tools/echo", b"", "Transfer-Encoding: chunked", "Expect: 100-continue"),
         b"2\r\n{}\r\n0\r\n\r\n"),
    ):  # fmt: skip
        typed = data.replace(b"\r\n\r\n", b"\r\nContent-Type: application/json\r\n\r\n")
        async with await server.connect() as stream:
            for _ in range(2):
                await stream.send_all(typed)
                with trio.fail_after(20):
                    assert await stream.receive_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
                await stream.send_all(body)
                assert parse(await read_answer(stream)).json() == {"result": {}}


async def test_a_body_that_is_not_taken_waits_with_its_client(
    server: Running, opened: list[Connections], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for an application is bounded, and the client's end is seen all the same."""
    entered, released = trio.Event(), trio.Event()

    async def deaf(scope: object, receive: object, send: object) -> None:
        entered.set()
        await released.wait()

    with monkeypatch.context() as patch:
        patch.setattr(type(server.guard), "_read_body", deaf)
        with trio.fail_after(20):
            stream = await server.connect()
            await stream.send_all(request("POST", "/tools/echo", b"", "Content-Length: 4000000"))
            await entered.wait()
            with trio.move_on_after(0.5):
                await stream.send_all(b" " * 4_000_000)
            (one,) = opened[0].all()
            held = one._protocol.stream
            assert held is not None
            assert held._size < 4_000_000 / 8
            _reset(stream.socket._sock)  # type: ignore[attr-defined]
            while not one.closed:
                await trio.lowlevel.checkpoint()
            released.set()
            await opened[0].gone()

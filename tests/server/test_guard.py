"""What every request meets first: hosts, origins, sizes, slowness, early answers and clients that leave."""

import itertools
import random
from contextlib import suppress

import httpx2
import pytest
import trio
from server_support import FakeService, Running, assert_envelope, parse, read_answer, request, serving

from engine.config import ServerConfig

SMALL = ServerConfig(max_body_bytes=1000)
HASTY = ServerConfig(body_timeout_s=0.2)
PATHS = ("/health", "/tools/echo", "/agents/helper/prompt", "/mcp", "/nowhere")


@pytest.fixture(autouse=True)
def _a_rest_is_waited_for_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.http.guard.LINGER_S", 0.2)


async def assert_works(server: Running) -> None:
    """The next request is answered as if nothing had happened."""
    async with server.client() as client:
        assert (await client.post("/tools/echo", json={"a": 1})).json() == {"result": {"a": 1}}


async def assert_closed(stream: trio.SocketStream) -> None:
    with trio.fail_after(20):
        with suppress(trio.BrokenResourceError):
            assert await stream.receive_some() == b""


# ---- Host and Origin -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_a_wrong_host_is_421_on_every_path(server: Running, path: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        error = assert_envelope(await server.raw(request(method, path, host="evil.example")), 421, "misdirected")
        assert "allowed_hosts" in error["message"]
    await assert_works(server)


async def test_a_request_without_a_host_is_refused(server: Running) -> None:
    assert_envelope(await server.raw(b"GET /health HTTP/1.0\r\n\r\n"), 421, "misdirected")
    assert_envelope(await server.raw(b"GET /health HTTP/1.1\r\n\r\n"), 400, "bad_request")
    assert_envelope(await server.raw(b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400, "bad_request")


async def test_the_absolute_form_names_the_host_itself(server: Running) -> None:
    assert_envelope(await server.raw(request("GET", "http://evil.example/health")), 421, "misdirected")
    assert (
        parse(await server.raw(request("GET", "http://localhost/health?x=1", host="evil.example"))).status_code == 200
    )
    assert_envelope(await server.raw(request("GET", "http://localhost")), 404, "not_found")


@pytest.mark.parametrize("target", ["health", "?a=b", "*", "ftp://localhost/health", "http:///health", "%2Fhealth"])
async def test_a_target_that_is_no_path_is_refused(server: Running, target: str) -> None:
    expected = (421, "misdirected") if target == "http:///health" else (400, "bad_request")
    assert_envelope(await server.raw(request("GET", target)), *expected)


@pytest.mark.parametrize("path", PATHS)
async def test_a_foreign_origin_may_only_get_and_reads_nothing(server: Running, path: str) -> None:
    origin = {"Origin": "https://evil.example"}
    async with server.client(headers=origin) as client:
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            response = await client.request(method, path, json={} if method in ("POST", "PUT") else None)
            if method == "HEAD":
                assert response.status_code == 403
            else:
                assert_envelope(response, 403, "forbidden")
            assert not any(name.startswith("access-control") for name in response.headers)
        response = await client.get(path, headers={"Accept": "application/json"})
        assert response.status_code == (403 if path == "/mcp" else {"/health": 200, "/nowhere": 404}.get(path, 405))
        assert not any(name.startswith("access-control") for name in response.headers)
        assert response.headers["vary"] == "origin"
    await assert_works(server)


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:1"])
async def test_a_page_of_loopback_may_call_and_read(server: Running, origin: str) -> None:
    async with server.client(headers={"Origin": origin}) as client:
        for response in (await client.post("/tools/echo", json={}), await client.get("/nowhere")):
            assert response.headers["access-control-allow-origin"] == origin
            assert "retry-after" in response.headers["access-control-expose-headers"]
            assert response.headers["vary"] == "origin"


@pytest.mark.parametrize("path", PATHS)
async def test_a_preflight_of_an_allowed_origin_is_granted_what_it_asks(server: Running, path: str) -> None:
    headers = {
        "Origin": "http://localhost:3000",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type, mcp-param-x, authorization",
    }
    async with server.client() as client:
        response = await client.options(path, headers=headers)
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "POST" in response.headers["access-control-allow-methods"]
    assert response.headers["access-control-allow-headers"] == "content-type, mcp-param-x, authorization"


async def test_configured_hosts_and_origins_are_let_in() -> None:
    config = ServerConfig(allowed_hosts=("engine.example",), allowed_origins=("https://app.example",))
    async with serving(FakeService(config)) as server:
        assert parse(await server.raw(request("GET", "/health", host="engine.example"))).status_code == 200
        async with server.client() as client:
            assert (await client.post("/tools/echo", json={}, headers={"Origin": "https://app.example"})).is_success
            assert_envelope(
                await client.post("/tools/echo", json={}, headers={"Origin": "http://localhost:3000"}), 403, "forbidden"
            )


# ---- what is not a request -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nbroken header\r\n\r\n",
        b"GET /\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /tools/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /tools/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64 + b"\r\n\r\n",
    ],
)
async def test_what_is_not_a_request_is_told_so_in_the_envelope(server: Running, data: bytes) -> None:
    answer = await server.raw(data)
    assert_envelope(answer, 400, "bad_request")
    await assert_works(server)


async def test_a_head_that_is_too_large_is_refused(server: Running) -> None:
    answer = await server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n")
    assert_envelope(answer, 431, "too_large")
    await assert_works(server)


@pytest.mark.parametrize(
    "upgrade",
    [
        (
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZQ==",
            "Sec-WebSocket-Version: 13",
        ),
        ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
    ],
)
async def test_a_request_to_switch_protocols_is_ignored(server: Running, upgrade: tuple[str, ...]) -> None:
    assert parse(await server.raw(request("GET", "/health", b"", *upgrade))).status_code == 200


# ---- sizes and slowness ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [1001, 200_000, 5_000_000])
async def test_a_body_over_the_bound_is_413_on_every_path(path: str, size: int) -> None:
    async with serving(FakeService(SMALL)) as server:
        async with server.client() as client:
            response = await client.post(path, content=b"x" * size, headers={"Content-Type": "application/json"})
            assert "1000" in assert_envelope(response, 413, "too_large")["message"]
            assert server.service.seen == []
        await assert_works(server)


async def test_a_body_of_unknown_length_over_the_bound_is_413() -> None:
    async def endless():  # type: ignore[no-untyped-def]
        for _ in range(200):
            yield b"x" * 10_000

    async with serving(FakeService(SMALL)) as server:
        async with server.client() as client:
            response = await client.post("/tools/echo", content=endless(), headers={"Content-Type": "application/json"})
            assert_envelope(response, 413, "too_large")
        await assert_works(server)


async def test_a_body_at_the_bound_is_taken() -> None:
    async with serving(FakeService(SMALL)) as server, server.client() as client:
        body = b'{"a":"' + b"x" * (1000 - 8) + b'"}'
        assert len(body) == 1000
        response = await client.post("/tools/echo", content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 200


async def test_a_large_declared_body_is_refused_before_it_is_sent() -> None:
    async with serving(FakeService(SMALL)) as server:
        answer = await server.raw(request("POST", "/tools/echo", b"", "Content-Length: 99999999999"))
        assert_envelope(answer, 413, "too_large")
        assert parse(answer).headers["connection"] == "close"
        await assert_works(server)


@pytest.mark.parametrize("path", PATHS)
async def test_a_half_sent_body_is_408_and_the_connection_closed(path: str) -> None:
    async with serving(FakeService(HASTY)) as server:
        async with await server.connect() as stream:
            await stream.send_all(request("POST", path, b"", "Content-Length: 100") + b'{"half')
            answer = await read_answer(stream)
            assert "0.2 seconds" in assert_envelope(answer, 408, "body_timeout")["message"]
            assert parse(answer).headers["connection"] == "close"
            await assert_closed(stream)
        assert server.guard.in_flight == 0
        await assert_works(server)


async def test_a_dripping_body_does_not_move_its_deadline() -> None:
    async with serving(FakeService(HASTY)) as server:
        async with await server.connect() as stream, trio.open_nursery() as nursery:
            await stream.send_all(request("POST", "/tools/echo", b"", "Content-Length: 100000"))

            async def drip() -> None:
                for _ in itertools.count():
                    try:
                        await stream.send_all(b" ")
                    except (trio.BrokenResourceError, trio.ClosedResourceError):
                        return
                    await trio.sleep(0.01)

            nursery.start_soon(drip)
            assert_envelope(await read_answer(stream), 408, "body_timeout")
            nursery.cancel_scope.cancel()
        await assert_works(server)


async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing_behind(server: Running) -> None:
    for _ in range(5):
        async with await server.connect() as stream:
            await stream.send_all(request("POST", "/tools/echo", b"", "Content-Length: 100") + b"{")
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert server.guard.in_flight == 0
    assert server.service.seen == []
    await assert_works(server)


# ---- keep-alive after early answers ----------------------------------------------------------------------------

EARLY = [
    (request("POST", "/nowhere", b"", "Content-Type: application/json", "Content-Length: 7"), 404, "not_found"),
    (request("PUT", "/health", b"", "Content-Length: 7"), 405, "method_not_allowed"),
    (request("POST", "/agents/helper/prompt", b"", "Content-Length: 7"), 415, "unsupported_media_type"),
    (request("POST", "/tools/echo", b"", "Content-Length: 7", host="evil.example"), 421, "misdirected"),
    (request("POST", "/tools/echo", b"", "Content-Length: 7", "Origin: https://evil.example"), 403, "forbidden"),
    (request("POST", "/tools/echo", b"", "Transfer-Encoding: chunked", host="evil.example"), 421, "misdirected"),
]  # fmt: skip


@pytest.mark.parametrize(("head", "status", "code"), EARLY)
async def test_a_body_in_a_later_packet_does_not_wedge_the_connection(
    server: Running, head: bytes, status: int, code: str
) -> None:
    body = b'7\r\n{"a":1}\r\n0\r\n\r\n' if b"chunked" in head else b'{"a":1}'
    async with await server.connect() as stream:
        await stream.send_all(head)
        await trio.testing.wait_all_tasks_blocked(0.02)
        await stream.send_all(body)
        answer = await read_answer(stream)
        assert_envelope(answer, status, code)
        assert "connection" not in parse(answer).headers
        await stream.send_all(request("POST", "/tools/echo", b'{"next":1}'))
        assert parse(await read_answer(stream)).json() == {"result": {"next": 1}}


@pytest.mark.parametrize("pieces", [1, 2, 3, 7])
async def test_any_split_of_a_request_into_packets_is_one_request(server: Running, pieces: int) -> None:
    data = request("POST", "/agents/helper/prompt", b'{"arguments": {"service": "payments"}}')
    async with await server.connect() as stream:
        for _ in range(3):
            step = -(-len(data) // pieces)
            for start in range(0, len(data), step):
                await stream.send_all(data[start : start + step])
                await trio.testing.wait_all_tasks_blocked(0.005)
            response = parse(await read_answer(stream))
            assert response.json()["result"]["system"] == "You help with payments."


async def test_an_early_answer_to_a_body_that_never_comes_closes_the_connection(server: Running) -> None:
    head = request("POST", "/tools/echo", b"", "Content-Length: 50", host="evil.example")
    async with await server.connect() as stream:
        await stream.send_all(head)
        answer = await read_answer(stream)
        assert_envelope(answer, 421, "misdirected")
        assert parse(answer).headers["connection"] == "close"
        await assert_closed(stream)
    await assert_works(server)


async def test_requests_in_one_packet_are_answered_in_order(server: Running) -> None:
    first, second = (request("POST", "/tools/echo", b'{"n":%d}' % n) for n in (1, 2))
    async with await server.connect() as stream:
        await stream.send_all(first + second)
        data = b""
        with trio.fail_after(20):
            while data.count(b'{"result":') < 2:
                data += await stream.receive_some()
        assert data.index(b'{"n":1}') < data.index(b'{"n":2}')


async def test_a_head_is_answered_without_a_body_and_keeps_the_connection(server: Running) -> None:
    async with await server.connect() as stream:
        await stream.send_all(request("HEAD", "/health"))
        head = b""
        with trio.fail_after(20):
            while not head.endswith(b"\r\n\r\n"):
                head += await stream.receive_some()
        assert head.startswith(b"HTTP/1.1 200")
        await stream.send_all(request("POST", "/tools/echo", b"{}"))
        assert parse(await read_answer(stream)).json() == {"result": {}}


# ---- clients that leave ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/tools/slow", "/agents/slow/prompt"])
@pytest.mark.parametrize("more", [b"", b"\r\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_a_client_that_leaves_cancels_its_work(server: Running, path: str, more: bytes) -> None:
    async with await server.connect() as stream:
        await stream.send_all(request("POST", path, b"{}") + more)
        with trio.fail_after(20):
            await server.service.entered.wait()
    with trio.fail_after(20):
        await server.service.cancelled.wait()
    await assert_works(server)


async def test_a_client_that_stays_gets_its_answer_although_others_leave(server: Running) -> None:
    async def leave() -> None:
        async with await server.connect() as stream:
            await stream.send_all(request("POST", "/tools/slow", b"{}"))
            await server.service.entered.wait()
        await server.service.cancelled.wait()
        server.service.release.set()

    async def stay() -> None:
        async with server.client() as client:
            assert (await client.post("/tools/slow", json={})).json() == {"result": "done"}

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stay)
            nursery.start_soon(leave)


async def test_a_fault_of_ours_is_500_and_shows_nothing(server: Running) -> None:
    async with server.client() as client:
        for path in ("/agents/bug/prompt", "/tools/bug"):
            error = assert_envelope(await client.post(path, json={}), 500, "internal")
            assert error["message"].startswith("internal error (reference ")
    await assert_works(server)


async def test_a_fault_outside_of_every_route_is_told_in_the_envelope(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise ExceptionGroup("secret", [ValueError("detail")])

    with monkeypatch.context() as patch:
        patch.setattr(server.guard, "app", broken)
        async with server.client() as client:
            assert_envelope(await client.get("/health"), 500, "internal")

            async def silent(*_: object) -> None:
                pass

            patch.setattr(server.guard, "app", silent)
            assert_envelope(await client.get("/health"), 500, "internal")
    await assert_works(server)


async def test_half_an_answer_ends_in_a_broken_connection(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def half(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b"half", "more_body": True})  # type: ignore[operator]
        raise ValueError("detail")

    with monkeypatch.context() as patch:
        patch.setattr(server.guard, "app", half)
        async with server.client() as client:
            with pytest.raises(httpx2.RemoteProtocolError):
                await client.get("/health")
    await assert_works(server)


async def test_whatever_is_sent_the_next_request_is_answered(server: Running) -> None:
    chance = random.Random(20261120)
    sound = [
        request("POST", "/tools/echo", b'{"a":1}'),
        request("GET", "/health"),
        request("POST", "/mcp", b"{}", "Accept: */*"),
        request("POST", "/agents/helper/prompt", b'{"arguments":{}}', "Connection: close"),
        request("POST", "/tools/echo", b"", "Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n",
        request("POST", "/tools/echo", b"{}", "Expect: 100-continue"),
    ]

    async def ask() -> None:
        data = bytearray(b"".join(chance.choice(sound) for _ in range(chance.randint(1, 3))))
        for _ in range(chance.randint(0, 4)):
            where = chance.randrange(len(data))
            match chance.randrange(3):
                case 0:
                    data[where] = chance.randrange(256)
                case 1:
                    del data[where : where + chance.randint(1, 40)]
                case 2:
                    data[where:where] = chance.randbytes(chance.randint(1, 40))
            if not data:
                return
        async with await server.connect() as stream:
            cut = chance.randint(0, len(data))
            with suppress(trio.BrokenResourceError), trio.move_on_after(0.2):
                await stream.send_all(data[:cut])
                await trio.lowlevel.checkpoint()
                await stream.send_all(data[cut:])
                await stream.receive_some()

    for _ in range(4):
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(ask)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert server.guard.in_flight == 0
    await assert_works(server)


async def test_a_client_that_waits_for_100_continue_gets_it(server: Running) -> None:
    async with await server.connect() as stream:
        await stream.send_all(request("POST", "/tools/echo", b"{}", "Expect: 100-continue")[:-2])
        with trio.fail_after(20):
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        await stream.send_all(b"{}")
        assert parse(await read_answer(stream)).json() == {"result": {}}


async def test_idle_connections_make_room_for_new_ones() -> None:
    async with serving(max_connections=5) as server:
        idle = [await server.connect() for _ in range(20)]
        half = [await server.connect() for _ in range(5)]
        for stream in half:
            await stream.send_all(b"GET /health HTTP/1.1\r\nHost:")
        await trio.testing.wait_all_tasks_blocked(0.02)
        await assert_works(server)
        for stream in idle + half:
            await stream.aclose()


async def test_a_connection_beyond_the_bound_is_refused_when_all_are_busy() -> None:
    async with serving(max_connections=2) as server, trio.open_nursery() as nursery:
        busy = [await server.connect() for _ in range(2)]
        for stream in busy:
            await stream.send_all(request("POST", "/tools/slow", b"{}"))
        await trio.testing.wait_all_tasks_blocked(0.02)
        answer = await server.raw(request("GET", "/health"))
        assert_envelope(answer, 503, "unavailable")
        assert parse(answer).headers["retry-after"] == "1"
        server.service.release.set()
        for stream in busy:
            assert parse(await read_answer(stream)).json() == {"result": "done"}
            await stream.aclose()
        await trio.testing.wait_all_tasks_blocked(0.02)
        await assert_works(server)
        nursery.cancel_scope.cancel()


async def test_bodies_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.http.body_budget.BODIES", 2)
    async with serving(FakeService(SMALL)) as server:
        held = [await server.connect() for _ in range(2)]
        for stream in held:
            await stream.send_all(request("POST", "/tools/echo", b"", "Content-Length: 1000") + b" " * 990)
            await trio.testing.wait_all_tasks_blocked(0.02)
            await stream.send_all(b" ")  # the server passes a piece on when it sees that there are more
        await trio.testing.wait_all_tasks_blocked(0.02)
        body = b'{"a":"' + b"x" * 500 + b'"}'
        assert_envelope(await server.raw(request("POST", "/tools/echo", body)), 503, "unavailable")
        assert parse(await server.raw(request("GET", "/health"))).status_code == 200  # it has none
        for stream in held:
            await stream.aclose()
        await trio.testing.wait_all_tasks_blocked(0.02)
        await assert_works(server)


async def test_unread_answers_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.http.body_budget.BODIES", 2)
    body = b'{"a":"' + b"x" * 4_100_000 + b'"}'
    async with serving() as server:
        held = []
        for _ in range(4):
            sock = trio.socket.socket()
            sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 2048)
            await sock.connect(("127.0.0.1", server.port))
            held.append(trio.SocketStream(sock))
            await held[-1].send_all(request("POST", "/tools/echo", body))
            await trio.sleep(0.2)
        assert_envelope(await server.raw(request("POST", "/tools/echo", body)), 503, "unavailable")
        await assert_works(server)  # small ones are answered
        for stream in held:
            await stream.aclose()
        with trio.fail_after(20):
            while True:  # that they have gone has to be noticed
                if parse(await server.raw(request("POST", "/tools/echo", body))).status_code == 200:
                    break
                await trio.sleep(0.05)


async def test_requests_sent_at_once_are_answered_one_after_the_other() -> None:
    async with serving() as server:
        stream = await server.connect()
        sent = [request("POST", "/tools/echo", b'{"n":%d}' % n) for n in range(50)]
        await stream.send_all(b"".join(sent) + request("GET", "/health")[:-4])
        for n in range(50):
            assert parse(await read_answer(stream)).json() == {"result": {"n": n}}
        await stream.send_all(request("GET", "/health")[-4:])
        assert parse(await read_answer(stream)).status_code == 200


# ---- the end ---------------------------------------------------------------------------------------------------


async def test_draining_lets_requests_finish_and_refuses_new_ones() -> None:
    async with serving() as server, trio.open_nursery() as nursery:
        late = await server.connect()
        await late.send_all(request("POST", "/tools/echo", b"{}")[:-1])
        answered = trio.Event()

        async def slow() -> None:
            async with server.client() as client:
                assert (await client.post("/tools/slow", json={})).json() == {"result": "done"}
            answered.set()

        nursery.start_soon(slow)
        with trio.fail_after(20):
            await server.service.entered.wait()
            opened = await server.connect()
            await trio.testing.wait_all_tasks_blocked(0.02)
            server.stop.set()
            await trio.testing.wait_all_tasks_blocked(0.02)
            answer = await server.raw(request("GET", "/health"))
            assert_envelope(answer, 503, "unavailable")
            assert parse(answer).headers["connection"] == "close"
            await late.send_all(b"}")
            await read_answer(late)
            assert not answered.is_set()
            assert not server.ended.is_set()
            server.service.release.set()
            await answered.wait()
            await server.ended.wait()
        await late.aclose()
        await opened.aclose()


async def _until_refused(server: Running) -> None:
    with suppress(OSError):
        for _ in itertools.count():
            async with await server.connect():
                await trio.sleep(0.01)


async def test_a_server_that_ends_accepts_connections_for_a_moment_and_then_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.transport.connections.LATE_S", 0.05)
    async with serving() as server, await server.connect() as stream:
        await stream.send_all(request("POST", "/tools/slow", b"{}"))
        with trio.fail_after(20):
            await server.service.entered.wait()
            server.stop.set()
            await _until_refused(server)
            assert not server.ended.is_set()
            server.service.release.set()
            answer = parse(await read_answer(stream))
            assert answer.json() == {"result": "done"}
            assert answer.headers["connection"] == "close"
            await server.ended.wait()


async def test_a_request_that_comes_while_draining_is_told_so(server: Running) -> None:
    async with server.client() as client:
        server.guard.draining = True
        for path in ("/health", "/agents/list", "/nowhere"):
            assert_envelope(await client.get(path), 503, "unavailable")
        assert_envelope(await client.post("/mcp", json={}), 503, "unavailable")


async def test_what_outlasts_the_graceful_time_is_cancelled_and_told() -> None:
    config = ServerConfig(graceful_timeout_s=0.1)
    async with serving(FakeService(config)) as server, await server.connect() as stream:
        await stream.send_all(request("POST", "/tools/slow", b"{}"))
        with trio.fail_after(20):
            await server.service.entered.wait()
            server.stop.set()
            answer = await read_answer(stream)
            assert_envelope(answer, 503, "unavailable")
            assert parse(answer).headers["connection"] == "close"
            assert server.service.cancelled.is_set()
            await server.ended.wait()


async def test_a_client_that_does_not_read_does_not_hold_up_the_end() -> None:
    config = ServerConfig(graceful_timeout_s=0.1, max_body_bytes=64_000_000)
    async with serving(FakeService(config)) as server, await server.connect() as stream:
        body = b'{"a":"' + b"x" * 20_000_000 + b'"}'
        await stream.send_all(request("POST", "/tools/echo", body))
        with trio.fail_after(30):
            await stream.receive_some(1)
            server.stop.set()
            await server.ended.wait()

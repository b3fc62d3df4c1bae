"""Plain requests and answers of HTTP/1.1: what is read and written past h11 is what h11 reads and writes."""

import h11
import pytest
import trio
import trio.testing
from hypercorn.config import Config
from hypothesis import given
from hypothesis import strategies as st
from server_support import Running, parse, read_answer, request, serving

from server.http.asgi import Receive, Scope, Send
from server.transport.plain import read_request, write_answer

# ---- requests ---------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    ["Host", "host", "Content-Length", "content-length", "Connection", "Transfer-Encoding", "Expect", "Upgrade", "X-A"]
)
VALUES = st.sampled_from(
    ["localhost", "0", "3", "03", "+3", "3, 3", "keep-alive", "close", "chunked", "100-continue", "a\tb", "", " ", "é"]
)
LINES = st.builds(
    "{}:{}{}{}".format,
    NAMES | st.text(max_size=3),
    st.sampled_from(["", " ", "\t "]),
    VALUES | st.text(max_size=5),
    st.sampled_from(["", " "]),
)
STARTS = st.builds(
    "{} {} HTTP/{}".format,
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "get"]),
    st.sampled_from(["/", "/tools/x?y=1", "*", "http://x/", "/ ", "/é", ""]),
    st.sampled_from(["1.1", "1.0", "2.0"]),
)
ENDS = st.sampled_from(["\r\n"] * 9 + ["\n", "\r", "\r\n "])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    lines = [draw(STARTS | st.just("POST /a HTTP/1.1")), *draw(st.lists(LINES, max_size=3))]
    lines[1:1] = draw(st.sampled_from([["Host: localhost"], ["Host: localhost", "Content-Length: 3"], []]))
    text = "".join(line + draw(ENDS) for line in lines) + draw(ENDS)
    return text.encode() + draw(st.sampled_from([b"", b"abc", b"ab", b"abcd", b"\r\n\r\n"]))


@given(requests())
def test_a_request_that_is_read_at_once_is_what_h11_reads(data: bytes) -> None:
    found = read_request(data)
    if found is None:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    asked, body = connection.next_event(), b""
    assert isinstance(asked, h11.Request)
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert (found.method.encode(), found.target, found.headers) == (asked.method, asked.target, list(asked.headers))
    assert (found.body, asked.http_version) == (body, b"1.1")
    assert connection.next_event() is h11.NEED_DATA  # not PAUSED: nothing is left, and the connection is kept
    assert not connection.they_are_waiting_for_100_continue


PLAIN = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"


@pytest.mark.parametrize("more", [b"", b"Connection: Keep-Alive\r\n", b"X-Empty:\r\nY: \t a\tb  c \r\n"])
def test_what_clients_send_is_plain(more: bytes) -> None:
    assert read_request(PLAIN + more + b"\r\nabc") is not None
    assert read_request(b"GET / HTTP/1.1\r\nhost: x\r\n" + more + b"\r\n") is not None


@pytest.mark.parametrize(
    "data",
    [
        PLAIN + b"\r\nab",
        PLAIN + b"\r\nabcd",
        PLAIN + b"Connection: close\r\n\r\nabc",
        PLAIN + b"Expect: 100-continue\r\n\r\nabc",
        PLAIN + b"Transfer-Encoding: chunked\r\n\r\nabc",
        PLAIN + b"Content-Length: 3\r\n\r\nabc",
        PLAIN + b"Host: x\r\n\r\nabc",
        PLAIN + b" folded\r\n\r\nabc",
        PLAIN + b"X: a\nY: b\r\n\r\nabc",
        PLAIN + b"X: \x00\r\n\r\nabc",
        PLAIN.replace(b"1.1", b"1.0") + b"\r\nabc",
        PLAIN.replace(b"POST", b"HEAD") + b"\r\nabc",
        PLAIN.replace(b"Host: x\r\n", b"") + b"\r\nabc",
    ],
)
def test_what_h11_has_to_judge_is_not_plain(data: bytes) -> None:
    assert read_request(data) is None


# ---- answers ----------------------------------------------------------------------------------------------------

FIELDS = st.tuples(
    st.sampled_from(["content-length", "Content-Length", "content-type", "connection", "transfer-encoding", "x"])
    | st.text(max_size=3),
    st.sampled_from(["3", "0", "close", "chunked", "a b", " a", "a ", "a\r\nx: b", "a\nb", "é"]) | st.text(max_size=4),
)


@given(
    st.sampled_from([100, 200, 204, 304, 404, 503]),
    st.lists(FIELDS, max_size=3),
    st.booleans(),
    st.sampled_from([b"", b"abc"]),
)
def test_an_answer_that_is_written_at_once_is_what_h11_writes(
    status: int, fields: list[tuple[str, str]], measured: bool, body: bytes
) -> None:
    headers = [(name.encode(), value.encode()) for name, value in fields]
    if measured:
        headers.append((b"content-length", b"%d" % len(body)))
    written = write_answer(status, headers, body, b"date: now\r\n")
    if written is None:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(PLAIN + b"\r\nabc")
    while not isinstance(connection.next_event(), h11.EndOfMessage):
        pass
    parts = [
        connection.send(h11.Response(status_code=status, headers=[*headers, (b"date", b"now")])),
        connection.send(h11.Data(data=body)),
        connection.send(h11.EndOfMessage()),
    ]
    assert written == b"".join(part or b"" for part in parts)
    connection.start_next_cycle()  # raises where the connection would have to be closed


def test_a_json_answer_is_plain() -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2"), (b"vary", b"origin")]
    assert write_answer(404, headers, b"{}", b"") is not None


# ---- on a connection --------------------------------------------------------------------------------------------


async def _in_pieces(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for piece in (b"one", b"two"):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await trio.lowlevel.checkpoint()
    await send({"type": "http.response.body", "body": b""})


async def test_an_answer_in_pieces_to_a_plain_request_is_chunked_and_keeps_the_connection(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await server.connect() as stream:
        with monkeypatch.context() as patch:
            patch.setattr(server.guard, "app", _in_pieces)
            await stream.send_all(request("POST", "/tools/echo", b"{}"))
            data = b""
            with trio.fail_after(20):
                while not data.endswith(b"0\r\n\r\n"):
                    data += await stream.receive_some()
        assert b"\r\n3\r\none\r\n3\r\ntwo\r\n" in data
        await stream.send_all(request("POST", "/tools/echo", b'{"n":1}'))
        assert parse(await read_answer(stream)).json() == {"result": {"n": 1}}


async def test_more_than_the_kernel_takes_at_once_arrives_whole(server: Running) -> None:
    text = "x" * 900_000
    async with await server.connect() as stream:
        for _ in range(2):
            await stream.send_all(request("POST", "/tools/value", b'{"value":"%s"}' % text.encode()))
            await trio.testing.wait_all_tasks_blocked(0.01)  # the answer waits for its reader
            assert parse(await read_answer(stream)).json() == {"result": text}


async def test_a_connection_has_only_so_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Config, "keep_alive_max_requests", 3)
    async with serving() as server, await server.connect() as stream:
        for last in (False, False, True):
            await stream.send_all(request("POST", "/tools/echo", b"{}"))
            assert (parse(await read_answer(stream)).headers.get("connection") == "close") is last
        with trio.fail_after(20):
            assert await stream.receive_some() == b""


async def test_a_connection_on_which_nothing_is_asked_is_closed_and_a_busy_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.app.KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr("server.transport.connections.SWEEP_S", 0.01)
    async with serving() as server, await server.connect() as busy, await server.connect() as idle:
        await busy.send_all(request("POST", "/tools/slow", b"{}"))
        with trio.fail_after(20):
            await server.service.entered.wait()
            assert await idle.receive_some() == b""
        server.service.release.set()
        assert parse(await read_answer(busy)).json() == {"result": "done"}


async def test_a_request_behind_one_that_ends_the_connection_is_not_answered_and_no_error(server: Running) -> None:
    """Else a request behind one that ends the connection would write a traceback to the log."""
    async with await server.connect() as stream:
        first = request("POST", "/tools/echo", b"{}", "Connection: close")
        await stream.send_all(first + request("GET", "/health"))
        with trio.fail_after(20):
            data = b""
            while part := await stream.receive_some():
                data += part
        assert data.count(b"HTTP/1.1 ") == 1

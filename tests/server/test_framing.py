"""Where a request begins and ends: one reading, whatever packets its bytes come in."""

from collections.abc import Iterator

import h11
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from server_support import FakeService, Running, assert_envelope, parse, request, serving

from engine.config import ServerConfig
from server.transport.framing import (
    MAX_CHUNK_OVERHEAD,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    Chunked,
    FramingError,
    find_end,
    read_head,
)
from server.transport.plain import read_request

HEAD = b"POST /tools/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKS = b"2\r\n{}\r\n0\r\n\r\n"

# What two servers on one path may read differently: the head without its empty line, what follows, and the status.
DOUBTFUL = {
    "a length beside chunks": (HEAD + b"Content-Length: 12\r\nTransfer-Encoding: chunked\r\n", CHUNKS, 400),
    "chunks beside a length": (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 12\r\n", CHUNKS, 400),
    "two lengths": (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n", b"{} ", 400),
    "a length twice": (HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n", b"{}", 400),
    "a list of lengths": (HEAD + b"Content-Length: 2, 2\r\n", b"{}", 400),
    "a length with a sign": (HEAD + b"Content-Length: +2\r\n", b"{}", 400),
    "a length with an underscore": (HEAD + b"Content-Length: 1_0\r\n", b'{"abc": 1}', 400),
    "no length": (HEAD + b"Content-Length:\r\n", b"{}", 400),
    "identity": (HEAD + b"Transfer-Encoding: identity\r\n", b"{}", 400),
    "chunks twice": (HEAD + b"Transfer-Encoding: chunked, chunked\r\n", CHUNKS, 400),
    "chunks in two headers": (HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", CHUNKS, 400),
    "chunks first": (HEAD + b"Transfer-Encoding: chunked, gzip\r\n", CHUNKS, 400),
    "chunks with a parameter": (HEAD + b"Transfer-Encoding: chunked;q=1\r\n", CHUNKS, 400),
    "a vertical tab before chunked": (HEAD + b"Transfer-Encoding: \x0bchunked\r\n", CHUNKS, 400),
    "another coding": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n", CHUNKS, 501),
    "chunks in HTTP/1.0": (HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n", CHUNKS, 400),
    "a space before the colon": (HEAD + b"Content-Length : 2\r\n", b"{}", 400),
    "a folded line": (HEAD + b"X: a\r\n b\r\nContent-Length: 2\r\n", b"{}", 400),
    "a folded first line": (HEAD.replace(b"\r\nHost", b"\r\n Host") + b"Content-Length: 2\r\n", b"{}", 400),
    "a bare LF": (HEAD + b"X: a\nContent-Length: 2\r\n", b"{}", 400),
    "a bare CR": (HEAD + b"X: a\rContent-Length: 2\r\n", b"", 400),
    "a NUL": (HEAD + b"X: \x00\r\nContent-Length: 2\r\n", b"{}", 400),
    "two hosts": (HEAD + b"Host: localhost\r\nContent-Length: 2\r\n", b"{}", 400),
    "no host": (HEAD.replace(b"Host", b"Ghost") + b"Content-Length: 2\r\n", b"{}", 400),
    "a size with a sign": (HEAD + b"Transfer-Encoding: chunked\r\n", b"+2\r\n{}\r\n0\r\n\r\n", 400),
    "a size with a prefix": (HEAD + b"Transfer-Encoding: chunked\r\n", b"0x2\r\n{}\r\n0\r\n\r\n", 400),
    "a size before LF": (HEAD + b"Transfer-Encoding: chunked\r\n", b"2\n{}\r\n0\r\n\r\n", 400),
    "a chunk that ends with LF": (HEAD + b"Transfer-Encoding: chunked\r\n", b"2\r\n{}\n0\r\n\r\n", 400),
    "chunks that end with LF": (HEAD + b"Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n\n", 400),
    "a trailer before LF": (HEAD + b"Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\nX: y\n\r\n", 400),
    "a bare CR in an extension": (HEAD + b"Transfer-Encoding: chunked\r\n", b"2;a\rb\r\n{}\r\n0\r\n\r\n", 400),
    "an endless extension": (HEAD + b"Transfer-Encoding: chunked\r\n", b"2;" + b"a" * 5000, 400),
    "too much beside the chunks": (
        HEAD + b"Transfer-Encoding: chunked\r\n", (b"1;" + b"a" * 900 + b"\r\n \r\n") * 300, 413,
    ),
    "a head that is too large": (HEAD + b"X: " + b"a" * 40_000 + b"\r\n", b"", 431),
    "too many headers": (HEAD + b"X: a\r\n" * 200, b"", 431),
    "a method in lower case": (HEAD.replace(b"POST", b"post") + b"Content-Length: 2\r\n", b"{}", 501),
    "HEAD in lower case": (b"head /health HTTP/1.1\r\nHost: localhost\r\n", b"", 501),
    "GET in lower case": (b"get /health HTTP/1.1\r\nHost: localhost\r\n", b"", 501),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n", b"SM\r\n\r\n", 400),
}  # fmt: skip
SMUGGLED = request("POST", "/tools/echo", b'{"smuggled":1}')


async def everything(stream: trio.SocketStream) -> bytes:
    """What comes until the server closes the connection."""
    data = b""
    with trio.fail_after(30):
        try:
            while part := await stream.receive_some():
                data += part
        except trio.BrokenResourceError:
            pass
    return data


@pytest.mark.parametrize("name", DOUBTFUL)
async def test_what_has_two_readings_is_refused_and_the_connection_closed(server: Running, name: str) -> None:
    head, body, status = DOUBTFUL[name]
    async with await server.connect() as stream:
        await stream.send_all(head + b"\r\n" + body + SMUGGLED)
        answer = await everything(stream)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert_envelope(answer, status, "too_large" if status in (413, 431) else "bad_request")
    assert parse(answer).headers["connection"] == "close"
    assert server.service.seen == []
    async with server.client() as client:
        assert (await client.post("/tools/echo", json={})).json() == {"result": {}}


def verdict(pieces: Iterator[bytes]) -> object:
    """What is made of a request that comes in these pieces: head and body, or the status of its refusal."""
    buffer, searched, head, body = b"", 0, None, b""
    try:
        for piece in pieces:
            buffer += piece
            if head is None:
                end = find_end(buffer, searched)
                searched = len(buffer)
                if not end:
                    continue
                head, buffer = read_head(buffer[:end]), buffer[end:]
            if head.body is None:
                return head.method, head.target, head.headers, b""
            data, used, complete = head.body.feed(buffer)
            buffer, body = buffer[used:], body + data
            if complete:
                return head.method, head.target, head.headers, body
    except FramingError as error:
        return error.status
    return None


SOUND = [
    HEAD + b"Content-Length: 2\r\n\r\n{}",
    HEAD + b"Transfer-Encoding: Chunked\r\n\r\n1;a=b\r\n{\r\n1\r\n}\r\n0\r\nX-Sum: 1\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * (MAX_HEADERS - 1) + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: ".ljust(MAX_HEAD_BYTES - 4, b"a") + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: ".ljust(MAX_HEAD_BYTES - 3, b"a") + b"\r\n\r\n",
]
SAMPLES = [*SOUND, *(head + b"\r\n" + body for head, body, _ in DOUBTFUL.values())]


@given(st.data())
def test_any_split_into_packets_gives_the_same_answer(data: st.DataObject) -> None:
    sample = data.draw(st.sampled_from(SAMPLES))
    near = st.integers(0, len(sample)) | st.integers(max(0, len(sample) - 40), len(sample))
    cuts = sorted(data.draw(st.lists(near, max_size=8)))
    pieces = [sample[a:b] for a, b in zip([0, *cuts], [*cuts, len(sample)], strict=True)]
    assert verdict(iter(pieces)) == verdict(iter([sample]))


@pytest.mark.parametrize("sample", [*SOUND, *(head + b"\r\n" + body for head, body, _ in DOUBTFUL.values())][:30])
def test_byte_by_byte_gives_the_same_answer(sample: bytes) -> None:
    assert verdict(sample[n : n + 1] for n in range(len(sample))) == verdict(iter([sample]))


LINES = st.sampled_from(
    [
        b"Host: localhost\r\n", b"Host: b\r\n", b"Content-Length: 2\r\n", b"content-length:02 \r\n",
        b"Content-Length: 2, 2\r\n", b"Transfer-Encoding: chunked\r\n", b"transfer-encoding:\tCHUNKED\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n", b"X: \xe9\r\n", b"X : a\r\n", b" a\r\n", b"X: a\n", b"X: a\r",
        b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Upgrade: websocket\r\n", b"\r\n", b"X:\r\n",
    ]
)  # fmt: skip


@given(
    st.sampled_from([b"GET", b"POST", b"HEAD", b"get", b"M-SEARCH"]),
    st.sampled_from([b"/", b"*", b"/ x", b"http://x/"]),
    st.sampled_from([b"1.1", b"1.0", b"2.0", b"1.1 "]),
    st.lists(LINES, max_size=5),
    st.sampled_from([b"", b"{}", CHUNKS, b"2\n{}\r\n0\r\n\r\n", b"{} "]),
)
def test_what_is_taken_is_what_h11_reads(
    method: bytes, target: bytes, version: bytes, lines: list[bytes], body: bytes
) -> None:
    """Stricter than h11, never different: there is no request here that it takes for another one."""
    data = method + b" " + target + b" HTTP/" + version + b"\r\n" + b"".join(lines) + b"\r\n" + body
    found = verdict(iter([data]))
    if not isinstance(found, tuple):
        assert read_request(data) is None
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    asked, seen = connection.next_event(), b""
    assert isinstance(asked, h11.Request)
    while isinstance(event := connection.next_event(), h11.Data):
        seen += event.data
    assert isinstance(event, h11.EndOfMessage)
    headers = [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in found[2]]
    assert (found[0], found[1], headers, found[3]) == (asked.method, asked.target, list(asked.headers), seen)


def test_tiny_chunks_are_bounded_by_what_is_beside_them() -> None:
    body, chunks = Chunked(), b"1\r\n \r\n" * 1000
    for _ in range(MAX_CHUNK_OVERHEAD // 5000):
        body.feed(chunks)
    with pytest.raises(FramingError):
        body.feed(chunks)


async def test_the_head_of_a_request_must_be_complete_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.transport.connections.SWEEP_S", 0.01)
    async with serving(FakeService(ServerConfig(body_timeout_s=0.1))) as server, await server.connect() as stream:
        await stream.send_all(b"GET /health HTTP/1.1\r\nHost:")
        assert_envelope(await everything(stream), 408, "body_timeout")

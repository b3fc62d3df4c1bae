"""The fast path for plain requests and answers of HTTP/1.1, parsed and written in one step. h11 handles all others.

Nearly every call is one packet with a small complete request, and its answer one packet with a known length. Taking
such a request through h11's states costs more than everything else that the server does for it. This parser accepts
only requests that h11 accepts, with the same result, so that the definition of a request stays the same; a differential
test holds that.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from server.transport.framing import MAX_HEAD_BYTES, MAX_HEADERS

# Methods whose answers have a body; lines of printable ASCII and tabs only, each ended by CRLF.
_HEAD = re.compile(rb"(GET|POST|PUT|DELETE) (/[!-~]*) HTTP/1\.1\r\n((?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[\t -~]*\r\n)+)\r\n")
# Headers that change how a request is framed or answered.
_NOT_PLAIN = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"connection"})
_LENGTH = re.compile(rb"[0-9]{1,9}")
_HEADERS = re.compile(rb"(?:[-!#$%&'*+.^_`|~0-9A-Za-z]+: (?:[!-~]+(?:[\t ]+[!-~]+)*)?\r\n)*")
# Answers without a body whatever their headers say (RFC 9112 section 6.3); statuses below 200 are not final.
_BODILESS = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """A complete request. Names of headers are in lower case."""

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


def read_request(data: bytes) -> PlainRequest | None:
    """The plain request that these bytes are, no more and no less; None if h11 has to parse them."""
    match = _HEAD.match(data, 0, MAX_HEAD_BYTES)
    if match is None:
        return None
    headers: list[tuple[bytes, bytes]] = []
    hosts, length = 0, None
    for line in match[3].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            if length is not None or not _LENGTH.fullmatch(value):
                return None
            length = int(value)
        elif name in _NOT_PLAIN and (name, value.lower()) != (b"connection", b"keep-alive"):
            return None
        headers.append((name, value))
    body = data[match.end() :]
    if hosts != 1 or len(headers) > MAX_HEADERS or len(body) != (length or 0):
        return None
    return PlainRequest(match[1].decode(), match[2], headers, body)


def has_length(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether an answer with these headers announces its length."""
    return b"content-length" in dict(headers)


def write_answer(status: int, headers: list[tuple[bytes, bytes]], body: bytes, more: bytes) -> bytes | None:
    """The bytes of a complete answer that keeps the connection; None if it is not plain. `more` are extra lines."""
    lines = b"".join([b"%s: %s\r\n" % header for header in headers])
    # As many lines as headers: no header contains a line end.
    if not _HEADERS.fullmatch(lines) or lines.count(b"\r\n") != len(headers):
        return None
    lengths = 0
    for name, value in headers:
        if name == b"content-length":
            lengths += 1
            if value != b"%d" % len(body):
                return None
        elif name.lower() in _NOT_PLAIN or name.lower() == b"content-length":
            return None
    if lengths != 1 or status < 200 or status in _BODILESS:
        return None
    return b"HTTP/1.1 %d \r\n%s%s\r\n%s" % (status, lines, more, body)

"""Request framing: where a request begins and ends in the bytes of a connection, unambiguously. Pure.

RFC 9112 allows a server to accept several forms that the next server on the path may parse differently: a bare LF,
folded lines, a length beside chunks. A client that makes two servers disagree on the end of a request can smuggle one
past the first of them. So every ambiguous form is refused, and the connection closed. Packet boundaries have no effect:
a decision depends only on the bytes and their order.
"""

import re
from dataclasses import dataclass

from engine.work import WORK

# As much as h11 and IIS accept, twice as much as nginx and Apache; parsing such a head takes a fraction of a
# millisecond.
MAX_HEAD_BYTES = WORK["head"].max_bytes or 0
# Browsers behind three proxies send some 40.
MAX_HEADERS = WORK["head"].max_values or 0
# Bound on the line before a chunk (at most 16 digits, and extensions that are ignored), and on each trailer.
MAX_CHUNK_LINE = 1024
# Bound on the bytes of a chunked body that are not content: sizes, extensions, trailers. Enough for some 40,000 chunks,
# of 100 bytes each in a body of 4 MiB; each costs a microsecond.
MAX_CHUNK_OVERHEAD = WORK["chunks"].max_bytes or 0

_TOKEN = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+"
# Everything but control characters: RFC 9110 section 5.5 (field-vchar, and white space between).
_TEXT = rb"[\t -~\x80-\xff]*"
_END = re.compile(rb"\r\n\r\n|(?<!\r)\n")
_START = re.compile(rb"(%s) ([!-~]+) HTTP/1\.([0-9])\r\n" % _TOKEN)
_FIELDS = re.compile(rb"(?:%s:%s\r\n)*" % (_TOKEN, _TEXT))
_LENGTH = re.compile(rb"[0-9]{1,15}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[\t ]*;%s)?\r\n" % _TEXT)
_TRAILER = re.compile(rb"(?:%s:%s)?\r\n" % (_TOKEN, _TEXT))

# What a chunked body continues with when it is not the bytes of a chunk: the line before a chunk or a trailer, or the
# CRLF that ends a chunk.
_LINE, _CRLF = -1, -2


class FramingError(Exception):
    """The bytes are not an unambiguous request. Carries the status to answer with, and the reason."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class Sized:
    """Incremental reader of a body of known length."""

    def __init__(self, length: int) -> None:
        self._left = length

    def feed(self, data: bytes) -> tuple[bytes, int, bool]:
        """The body's bytes in `data`, how many bytes of `data` were used, and whether the body is complete."""
        part = data[: self._left]
        self._left -= len(part)
        return part, len(part), not self._left


class Chunked:
    """Incremental reader of a chunked body (RFC 9112 section 7.1). Extensions and trailers are read and discarded."""

    def __init__(self) -> None:
        # Bytes of the chunk that are still missing; else the kind of line that comes next.
        self._left = _LINE
        self._trailing = False
        self._overhead = 0

    def feed(self, data: bytes) -> tuple[bytes, int, bool]:
        """Like `Sized.feed`. Raises FramingError. Unused bytes are the beginning of a line, to be fed again."""
        parts, at, complete = [], 0, False
        while at < len(data) and not complete:
            if self._left > 0:
                part = data[at : at + self._left]
                parts.append(part)
                self._left = self._left - len(part) or _CRLF
                at += len(part)
                continue
            end = self._end_of_line(data, at)
            if end == at:
                break
            complete = self._trailing and end - at == 2
            self._overhead += end - at
            at = end
            if self._overhead > MAX_CHUNK_OVERHEAD:
                raise FramingError(f"the chunks of the body have more than {MAX_CHUNK_OVERHEAD} bytes around it", 413)
        return b"".join(parts), at, complete

    def _end_of_line(self, data: bytes, at: int) -> int:
        """Parse the line that begins at `at`, and return its end; `at` itself if the line is incomplete."""
        limit = at + MAX_CHUNK_LINE
        if self._left == _CRLF:
            if data.startswith(b"\r\n", at):
                self._left = _LINE
                return at + 2
            if data[at:] == b"\r":
                return at
        elif match := (_TRAILER if self._trailing else _CHUNK).match(data, at, limit):
            if not self._trailing:
                size = int(match[1], 16)
                self._trailing, self._left = not size, size or _LINE
            return match.end()
        elif len(data) < limit and data.find(b"\n", at) < 0:
            return at
        raise FramingError("the chunks of the body do not follow RFC 9112")


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request. Names of headers are in lower case; `body` is None if none follows."""

    method: bytes
    target: bytes
    minor: int
    headers: list[tuple[bytes, bytes]]
    body: Sized | Chunked | None

    def values(self, name: bytes) -> list[bytes]:
        """The values of a header, in lower case."""
        return [value.lower() for found, value in self.headers if found == name]

    @property
    def expects(self) -> bool:
        """Whether the client waits for a 100 before it sends its body."""
        return self.minor > 0 and self.body is not None and any(b"100-continue" in v for v in self.values(b"expect"))


def find_end(data: bytes, searched: int) -> int:
    """The end of the head at the beginning of `data`; 0 if it is incomplete. Raises FramingError.

    The first `searched` bytes are known not to contain the end.
    """
    if data and data[0] <= 0x20:  # another protocol (TLS begins with 0x16), which may never send a line end
        raise FramingError("this is not a request of HTTP/1.1")
    match = _END.search(data, max(0, searched - 3))
    end = len(data) if match is None else match.end()
    if end > MAX_HEAD_BYTES:
        raise FramingError(f"the head of the request is larger than {MAX_HEAD_BYTES} bytes", 431)
    if match is None:
        return 0
    if match[0] == b"\n":
        raise FramingError("a line of the request's head ends with LF alone")
    return end


def read_head(head: bytes) -> Head:
    """Parse a complete head, including its empty line. Raises FramingError if it is malformed or ambiguous."""
    if head.count(b"\n") - 2 > MAX_HEADERS:
        raise FramingError(f"the request has more than {MAX_HEADERS} headers", 431)
    start = _START.match(head)
    if start is None:
        raise FramingError("the first line is not a request line of HTTP/1.1")
    if not _FIELDS.fullmatch(head, start.end(), len(head) - 2):
        raise FramingError("a header is not valid in HTTP/1.1")
    method = start[1]
    if method != method.upper():  # RFC 9110 section 9.1: methods are case-sensitive, and filters rely on that
        raise FramingError(f"there is no method {method[:20].decode()}: methods are in upper case", 501)
    headers = []
    for line in head[start.end() : -4].split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            headers.append((name.lower(), value.strip(b" \t")))
    minor = int(start[3])
    return Head(method, start[2], minor, headers, _body(headers, minor))


def _body(headers: list[tuple[bytes, bytes]], minor: int) -> Sized | Chunked | None:
    """The framing of the body (RFC 9112 section 6.3)."""
    found: dict[bytes, list[bytes]] = {b"host": [], b"content-length": [], b"transfer-encoding": []}
    for name, value in headers:
        if name in found:
            found[name].append(value)
    hosts, lengths, codings = found.values()
    if len(hosts) > 1 or (not hosts and minor > 0):
        raise FramingError("a request must have one Host header")
    if codings:
        _check_codings(codings, lengths, minor)
        return Chunked()
    if not lengths:
        return None
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise FramingError("Content-Length must be one number")
    return Sized(int(lengths[0])) if int(lengths[0]) else None


def _check_codings(codings: list[bytes], lengths: list[bytes], minor: int) -> None:
    if lengths:
        raise FramingError("a request must not have both Content-Length and Transfer-Encoding")
    if not minor:
        raise FramingError("HTTP/1.0 has no Transfer-Encoding")
    names = [name.strip(b" \t").lower() for name in b",".join(codings).split(b",")]
    if names[-1] != b"chunked" or names.count(b"chunked") > 1:
        raise FramingError("Transfer-Encoding must end with chunked")
    if len(names) > 1:
        raise FramingError("the only supported Transfer-Encoding is chunked", 501)

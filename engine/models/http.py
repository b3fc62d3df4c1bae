"""The wires over HTTP: one try of a call, from its request to the last event of its answer, with bounds on everything.

httpcore2 speaks HTTP/1.1. The layers of httpx2 above it took a third of the CPU time of a call, and 11 KB of each that
waits. No proxy setting and no .netrc is read, no cookie is kept and no redirect followed.
It is imported with the first call.
"""

import logging
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from math import inf

import httpcore2
import orjson
import trio

from engine.config import ModelEntry
from engine.egress.rules import parse_url
from engine.models import anthropic, openai
from engine.models.events import Events, EventTooLarge, ServerSent
from engine.models.network import Network
from engine.models.reserving import estimated
from engine.models.retrying import passes, retry_after
from engine.models.shapes import MAX_EVENT_BYTES, Event, ModelFailed, Reader, Request, Stopped, Usage
from sandbox.wire.limits import KIB, MIB

# It logs addresses and, at debug level, headers. A program that embeds the engine may log at these levels.
logging.getLogger("httpcore2").setLevel(logging.WARNING)

# Bound on the whole of an answer on the wire: an event has a few hundred bytes beside its token, and a character of the
# answer at most six.
_BYTES_A_TOKEN = KIB
_BYTES_A_BYTE = 6
_LEAST_BYTES = MIB
# How much of an error's body is read, and for how long.
ERROR_BYTES = 64 * KIB
ERROR_S = 5.0
CONNECT_S = 15.0
# An idle connection is kept for the next turn of a run, whose tools take a while.
KEPT_S = 30.0
KEPT = 64
# So many pieces that have arrived are read without a checkpoint: chunks of one byte take 60 us each, and one read from
# the socket has 10,000 of them.
_PIECES = 64
# How long the end of an answer may take after its last event, so that its connection can be used again.
_END_S = 0.25

_CODINGS = frozenset({"", "identity"})
# The headers of an answer that are kept while it is read.
_HEARD = {name.encode(): name for name in ("content-type", "content-encoding", "retry-after")}
_EXTENSIONS = {"timeout": {"connect": CONNECT_S}}
_ERRORS = (
    httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, httpcore2.UnsupportedProtocol,
)  # fmt: skip


class Http:
    """The connections to all models, kept by host. Made in the first call; closed with `aclose`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._pool: httpcore2.AsyncConnectionPool | None = None
        self._making = trio.Lock()

    async def pool(self) -> httpcore2.AsyncConnectionPool:
        """The connections. They are made once: that reads the system's certificates, which takes some 20 ms."""
        if self._pool is None:
            async with self._making:
                if self._tls is None:
                    self._tls = await trio.to_thread.run_sync(httpcore2.default_ssl_context)
                self._pool = self._pool or httpcore2.AsyncConnectionPool(
                    ssl_context=self._tls,
                    max_connections=None,
                    max_keepalive_connections=KEPT,
                    keepalive_expiry=KEPT_S,
                    network_backend=Network(),
                )
        return self._pool

    async def aclose(self) -> None:
        """Close every connection."""
        if self._pool is not None:
            await self._pool.aclose()


class Reply:
    """An answer of a server: its status and headers, and its body in pieces, at most `bound` bytes together."""

    def __init__(
        self, status: int, headers: Mapping[str, str], body: AsyncIterable[bytes], bound: int, host: str,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        self.status = status
        self.headers = headers
        self.host = host
        self._parts = aiter(body)
        self._close = close
        self._bound = self._left = bound
        self._pieces = 0
        self._over = False

    async def piece(self) -> bytes:
        """The next piece; an empty one at the end. Raises ModelFailed."""
        try:
            async for part in self._parts:
                self._left -= len(part)
                if self._left < 0:
                    raise ModelFailed(f"its answer is larger than {self._bound} bytes on the wire")
                self._pieces += 1
                if not self._pieces % _PIECES:
                    await trio.lowlevel.checkpoint()
                if part:
                    return part
        except _ERRORS as error:
            raise failed_at(self.host, error) from None
        self._over = True
        return b""

    async def read(self, most: int, within_s: float = ERROR_S) -> bytes:
        """The beginning of the body. Raises ModelFailed."""
        found = bytearray()
        with trio.move_on_after(within_s):
            while len(found) < most and (part := await self.piece()):
                found += part
        return bytes(found[:most])

    async def aclose(self) -> None:
        """Free the connection if the body is read, else close it."""
        if not self._over:
            await end_reading(self._parts)
        if self._close is not None:
            with trio.CancelScope(shield=True), suppress(*_ERRORS):  # safe to shield: close does not wait
                await self._close()


def failed_at(host: str, error: Exception) -> ModelFailed:
    """What an error of httpcore2 means, in words that quote neither the library nor the server."""
    if isinstance(error, httpcore2.ConnectTimeout):
        return ModelFailed(f"{host} does not accept connections", again=True)
    if isinstance(error, httpcore2.NetworkError):
        if (found := tls_error(error)) is None:
            refused = isinstance(error, httpcore2.ConnectError)
            text = f"{host} does not accept connections" if refused else f"the connection to {host} was lost"
            return ModelFailed(text, again=True)
        return ModelFailed(tls_words(host, found))
    if isinstance(error, httpcore2.LocalProtocolError):
        return ModelFailed("the request is not legal HTTP/1.1")
    if isinstance(error, httpcore2.ProtocolError):  # also the end of the connection before that of the answer
        return ModelFailed(f"the connection to {host} ended in the middle of the answer", again=True)
    return ModelFailed(f"no request could be sent to {host}")


def tls_error(error: BaseException) -> ssl.SSLError | None:
    """The error of TLS behind another one, if there is one."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause


def tls_words(host: str, error: ssl.SSLError) -> str:
    """What an error of TLS means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {host} is not valid: {error.verify_message}"
    return f"no TLS connection could be made to {host}"


async def end_reading(reading: AsyncIterator[object]) -> None:
    """End a reading of a body, which may be in its middle.

    httpcore2 reads through a chain of generators. A cancelled read at its bottom ends them all; closing the first one
    would leave the others to the garbage collector. What is there already is read first: a piece of the body at most.
    """
    with trio.CancelScope(shield=True) as scope, suppress(Exception):  # safe to shield: it is cancelled itself
        scope.cancel()
        while await anext(reading, None) is not None:
            pass


@dataclass
class HttpWire:
    """A configured server of models."""

    entry: ModelEntry
    http: Http
    dialect: openai.Dialect = field(default_factory=openai.Dialect)

    @property
    def url(self) -> str:
        """Where requests go."""
        if self.entry.api == "anthropic":
            return (self.entry.url or anthropic.DEFAULT_URL).removesuffix("/v1") + anthropic.PATH
        return (self.entry.url or openai.DEFAULT_URL) + openai.PATH

    def body(self, request: Request) -> bytes:
        """The whole body of a request."""
        return self._body(request, self.dialect)

    def _body(self, request: Request, dialect: openai.Dialect) -> bytes:
        most = min(request.max_output_tokens or self.entry.max_output_tokens, self.entry.max_output_tokens)
        model = self.entry.model or ""
        if self.entry.api == "anthropic":
            found = anthropic.body(request, model, most)
        else:
            found = openai.body(request, model, most, dialect)
        return orjson.dumps(found)

    @asynccontextmanager
    async def send(self, request: Request, key: str | None) -> AsyncIterator[AsyncIterator[Event]]:
        """One try. Raises ModelFailed; what the server refuses of the request is left out at once, and sent again."""
        dialect = self.dialect
        while True:
            # A copy: a body of orjson keeps the 4 KiB or more that it was written into, as long as a run waits.
            body = bytes(memoryview(self._body(request, dialect)))
            reply = await self._sent(body, key, self._bound(request))
            try:
                if reply.status in (400, 422) and self.entry.api == "openai":
                    refusal = await reply.read(ERROR_BYTES)
                    # Of what was sent: a call beside this one may have learnt the same meanwhile.
                    less = dialect.without(refusal.decode("utf-8", "replace"))
                    if less is None:
                        raise _refused(reply, refusal)
                    dialect = less
                    continue
                if reply.status != 200:
                    raise _refused(reply, await reply.read(ERROR_BYTES))
                # Only what helped: a refusal may quote the request, whose words are no reason to send others less.
                self.dialect = self.dialect.common(dialect)
                reader = anthropic.Reader(request) if self.entry.api == "anthropic" else openai.Reader(request)
                yield Stream(reply, reader, len(body))
                return
            finally:
                await reply.aclose()

    async def _sent(self, body: bytes, key: str | None, bound: int) -> Reply:
        """The head of an answer, to be closed. Raises ModelFailed."""
        pool, (url, host, authority) = await self.http.pool(), self._address
        headers = [(b"host", authority), *self._headers(key), (b"content-length", str(len(body)).encode())]
        request = httpcore2.Request(b"POST", url, headers=headers, content=body, extensions=_EXTENSIONS)
        try:
            response = await pool.handle_async_request(request)
        except _ERRORS as error:
            raise failed_at(host, error) from None
        found: dict[str, str] = {}
        for raw, value in response.headers:
            if (name := _HEARD.get(raw.lower())) is not None:
                text = value.decode("latin-1")
                found[name] = f"{found[name]}, {text}" if name in found else text
        assert isinstance(response.stream, AsyncIterable)
        return Reply(response.status, found, response.stream, bound, host, response.aclose)

    @cached_property
    def _address(self) -> tuple[httpcore2.URL, str, bytes]:
        """Where requests go, for httpcore2; its host, and what `Host` says."""
        target = parse_url(self.url)
        url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        return url, target.host, target.authority.encode()

    def _headers(self, key: str | None) -> Iterator[tuple[bytes, bytes]]:
        of_wire = anthropic.headers(key) if self.entry.api == "anthropic" else openai.headers(key)
        common = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}
        for name, value in {**common, "user-agent": "engine", **of_wire}.items():
            yield name.encode(), value.encode()

    def _bound(self, request: Request) -> int:
        tokens = request.max_output_tokens or self.entry.max_output_tokens
        return _LEAST_BYTES + min(tokens * _BYTES_A_TOKEN, 64 * MIB) + request.output_bytes * _BYTES_A_BYTE


def _refused(reply: Reply, body: bytes) -> ModelFailed:
    """What an answer of another status than 200 means."""
    status = reply.status
    if 300 <= status < 400:
        return ModelFailed("its server redirects to another address, which is not followed", status=status)
    after = retry_after(reply.headers, datetime.now(UTC))
    named = ""
    try:
        given = orjson.loads(body)
        error = given.get("error") if isinstance(given, dict) else None
        if isinstance(error, dict):
            _, bracket, words = str(openai.failure(error)).partition(" (")
            named = f"; {words.removesuffix(')')}" if bracket else ""
    except ValueError:
        pass
    reason = f"its server answers with status {status}{_MEANINGS.get(status, '')}{named}"
    return ModelFailed(reason, again=passes(status), retry_after_s=after, status=status)


_MEANINGS = {
    401: ": it refuses the key",
    403: ": it refuses the key",
    404: ": it does not know the address or the model",
    429: ": too many requests",
    529: ": it is overloaded",
}


class Stream:
    """The events of one answer."""

    def __init__(self, reply: Reply, reader: Reader, request_bytes: int) -> None:
        self._reply = reply
        self._reader = reader
        self._request_bytes = request_bytes
        self._ready: Iterator[Event] = iter(())
        self._over = False
        self._begun = False
        kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
        if reply.headers.get("content-encoding", "").strip().lower() not in _CODINGS:
            raise ModelFailed("its answer is in a coding that was not asked for (Content-Encoding)")
        if kind not in ("text/event-stream", "application/json"):
            raise ModelFailed("its answer is neither a stream of events nor JSON")
        self._events = Events(MAX_EVENT_BYTES) if kind == "text/event-stream" else None
        self._arrived: Iterator[ServerSent] = iter(())

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Event:
        while (event := next(self._ready, None)) is None:
            if self._over:
                await self._drain()
                raise StopAsyncIteration
            self._ready = iter(await self._more())
            # What has arrived is read without a checkpoint.
            await trio.lowlevel.checkpoint()
        return event

    async def _more(self) -> list[Event]:
        found: list[Event] = []
        if self._events is None:
            found = await self._whole()
        elif (event := await self._next(self._events)) is not None:
            self._begun = True
            found = self._reader.feed(event.type, event.data)
            if not self._reader.ended:
                return found
        elif not self._begun:
            raise ModelFailed("its answer is empty", again=True)
        self._over = True
        last = self._reader.finish()
        given = next((each for each in last if isinstance(each, Usage)), None)
        if given is None or not given.input + given.output:
            counted = estimated(self._request_bytes, self._reader.used)
            last = [each for each in last if not isinstance(each, Usage | Stopped)] + [counted, last[-1]]
        return [*found, *last]

    async def _next(self, events: Events) -> ServerSent | None:
        """The next event; None at the end."""
        try:
            while (event := next(self._arrived, None)) is None:
                if not (piece := await self._reply.piece()):
                    return None
                self._arrived = events.feed(piece)
        except EventTooLarge:
            raise ModelFailed(f"one event of its answer is larger than {MAX_EVENT_BYTES} bytes") from None
        return event

    async def _whole(self) -> list[Event]:
        """An answer of a server that does not stream."""
        body = await self._reply.read(MAX_EVENT_BYTES + 1, inf)
        if len(body) > MAX_EVENT_BYTES:
            raise ModelFailed(f"its answer is larger than {MAX_EVENT_BYTES} bytes")
        return self._reader.feed("message", body.decode("utf-8", "replace"))

    async def _drain(self) -> None:
        """Read the end of the answer, so that the next call can use its connection."""
        with trio.move_on_after(_END_S):
            while await self._reply.piece():
                pass

"""The wires over HTTP: one try of a call, from its request to the last event of its answer, with bounds on everything.

No proxy setting and no .netrc is read, no cookie is kept and no redirect followed. It is imported with the first call.
"""

import logging
import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Any

import httpcore2
import httpx2
import orjson
import trio

from engine.config import ModelEntry
from engine.models import anthropic, openai
from engine.models.reserving import estimated
from engine.models.retrying import passes, retry_after
from engine.models.shapes import MAX_EVENT_BYTES, Event, ModelFailed, Reader, Request, Stopped, Usage
from sandbox.wire.limits import KIB, MIB

# They log addresses and, at debug level, headers. A program that embeds the engine may log at these levels.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)

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
# How long the end of an answer may take after its last event, so that its connection can be used again.
_END_S = 0.25

_CODINGS = frozenset({"", "identity"})
Sent = dict[str, Any]


class Http:
    """The HTTP client of all models: connections are kept by host. Made in the first call; closed with `aclose`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._client: httpx2.AsyncClient | None = None
        self._making = trio.Lock()

    async def client(self) -> httpx2.AsyncClient:
        """The client, which is made once: it reads the system's certificates, which takes some 20 ms."""
        async with self._making:
            if self._client is None:
                if self._tls is None:
                    self._tls = await trio.to_thread.run_sync(httpcore2.default_ssl_context)
                limits = httpx2.Limits(max_connections=None, max_keepalive_connections=KEPT, keepalive_expiry=KEPT_S)
                self._client = httpx2.AsyncClient(
                    transport=_Bounded(httpx2.AsyncHTTPTransport(verify=self._tls, trust_env=False, limits=limits)),
                    trust_env=False,
                    timeout=httpx2.Timeout(None, connect=CONNECT_S),
                    follow_redirects=False,
                )
            return self._client

    async def aclose(self) -> None:
        """Close every connection."""
        if self._client is not None:
            await self._client.aclose()


class _Bounded(httpx2.AsyncBaseTransport):
    """Fails once an answer has more bytes than the request's extension `bound`, or an event more than it may."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = BoundedStream(response.stream, request.extensions["bound"])
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


# What ends an event, but for the line break before it.
_BLANK = (b"\n\n", b"\n\r\n", b"\r\r")


class BoundedStream(httpx2.AsyncByteStream):
    """A body within its bounds."""

    def __init__(self, inner: httpx2.AsyncByteStream, bound: int) -> None:
        self._inner = inner
        self._bound = bound

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left, event, tail = self._bound, 0, b""
        parts = aiter(self._inner)
        try:
            async for part in parts:
                left -= len(part)
                if left < 0:
                    raise ModelFailed(f"its answer is larger than {self._bound} bytes on the wire")
                seen = tail + part
                ended = max(map(seen.rfind, _BLANK))
                event = event + len(part) if ended < 0 else len(seen) - ended
                if event > MAX_EVENT_BYTES:
                    raise ModelFailed(f"one event of its answer is larger than {MAX_EVENT_BYTES} bytes")
                tail = seen[-2:]
                yield part
        finally:
            await end_reading(parts)

    async def aclose(self) -> None:
        await self._inner.aclose()


@contextmanager
def in_words(host: str) -> Iterator[None]:
    """Turn errors of httpx2 into ModelFailed, with texts that quote neither the library nor the server."""
    try:
        yield
    except httpx2.SSEError:
        raise ModelFailed(f"one event of its answer is larger than {MAX_EVENT_BYTES} bytes") from None
    except httpx2.ConnectTimeout:
        raise ModelFailed(f"{host} does not accept connections", again=True) from None
    except httpx2.NetworkError as error:
        if (found := _tls_error(error)) is None:
            refused = isinstance(error, httpx2.ConnectError)
            text = f"{host} does not accept connections" if refused else f"the connection to {host} was lost"
            raise ModelFailed(text, again=True) from None
        if isinstance(found, ssl.SSLCertVerificationError):
            raise ModelFailed(f"the certificate of {host} is not valid: {found.verify_message}") from None
        raise ModelFailed(f"no TLS connection could be made to {host}") from None
    except httpx2.LocalProtocolError:
        raise ModelFailed("the request is not legal HTTP/1.1") from None
    except httpx2.ProtocolError:  # also the end of the connection before that of the answer
        raise ModelFailed(f"the connection to {host} ended in the middle of the answer", again=True) from None
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError):
        raise ModelFailed(f"no request could be sent to {host}") from None


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause


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
        most = min(request.max_output_tokens or self.entry.max_output_tokens, self.entry.max_output_tokens)
        model = self.entry.model or ""
        if self.entry.api == "anthropic":
            found = anthropic.body(request, model, most)
        else:
            found = openai.body(request, model, most, self.dialect)
        return orjson.dumps(found)

    @asynccontextmanager
    async def send(self, request: Request, key: str | None) -> AsyncIterator[AsyncIterator[Event]]:
        """One try. Raises ModelFailed; what the server refuses of the request is left out at once, and sent again."""
        while True:
            body = self.body(request)
            client = await self.http.client()
            async with _sent(client, self.url, self._headers(key), body, self._bound(request)) as response:
                host = response.request.url.host
                if response.status_code in (400, 422) and self.entry.api == "openai":
                    refusal = await _read(response, host, ERROR_BYTES)
                    dialect = self.dialect.without(refusal.decode("utf-8", "replace"))
                    if dialect is not None:
                        self.dialect = dialect
                        continue
                    raise _refused(response, refusal)
                if response.status_code != 200:
                    raise _refused(response, await _read(response, host, ERROR_BYTES))
                reader = anthropic.Reader(request) if self.entry.api == "anthropic" else openai.Reader(request)
                events = Stream(response, reader, len(body))
                try:
                    yield events
                finally:
                    await events.aclose()
                return

    def _headers(self, key: str | None) -> dict[str, str]:
        of_wire = anthropic.headers(key) if self.entry.api == "anthropic" else openai.headers(key)
        common = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}
        return {**common, "user-agent": "engine", **of_wire}

    def _bound(self, request: Request) -> int:
        tokens = request.max_output_tokens or self.entry.max_output_tokens
        return _LEAST_BYTES + min(tokens * _BYTES_A_TOKEN, 64 * MIB) + request.output_bytes * _BYTES_A_BYTE


@asynccontextmanager
async def _sent(
    client: httpx2.AsyncClient, url: str, headers: dict[str, str], body: bytes, bound: int
) -> AsyncIterator[httpx2.Response]:
    """The head of an answer; at the end of the block its connection is free, or closed."""
    request = client.build_request("POST", url, headers=headers, content=body, extensions={"bound": bound})
    with in_words(request.url.host):
        response = await client.send(request, stream=True)
    try:
        yield response
    finally:
        with trio.CancelScope(shield=True), suppress(httpx2.HTTPError):  # safe to shield: close does not wait
            await response.aclose()


async def _read(response: httpx2.Response, host: str, most: int, within_s: float = ERROR_S) -> bytes:
    """The beginning of a body."""
    found, parts = bytearray(), response.aiter_raw()
    try:
        with trio.move_on_after(within_s), in_words(host):
            async for part in parts:
                found += part
                if len(found) >= most:
                    break
    finally:
        await end_reading(parts)
    return bytes(found[:most])


async def end_reading(reading: AsyncIterator[object]) -> None:
    """End a reading of a body, which may be in its middle.

    httpx2 reads through a chain of generators. A cancelled read at its bottom ends them all; closing the first one
    would leave the others to the garbage collector. What is there already is read first: a piece of the body at most.
    """
    with trio.CancelScope(shield=True) as scope, suppress(Exception):  # safe to shield: it is cancelled itself
        scope.cancel()
        while await anext(reading, None) is not None:
            pass


def _refused(response: httpx2.Response, body: bytes) -> ModelFailed:
    """What an answer of another status than 200 means."""
    status = response.status_code
    if 300 <= status < 400:
        return ModelFailed("its server redirects to another address, which is not followed", status=status)
    after = retry_after(response.headers, datetime.now(UTC))
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

    def __init__(self, response: httpx2.Response, reader: Reader, request_bytes: int) -> None:
        self._response = response
        self._host = response.request.url.host
        self._reader = reader
        self._request_bytes = request_bytes
        self._ready: deque[Event] = deque()
        self._over = False
        self._begun = False
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.headers.get("content-encoding", "").strip().lower() not in _CODINGS:
            raise ModelFailed("its answer is in a coding that was not asked for (Content-Encoding)")
        if kind not in ("text/event-stream", "application/json"):
            raise ModelFailed("its answer is neither a stream of events nor JSON")
        # An event stream is UTF-8, whatever its charset says.
        response.encoding = "utf-8"
        source = httpx2.EventSource(response, max_event_size=MAX_EVENT_BYTES)
        self._source = aiter(source) if kind == "text/event-stream" else None

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Event:
        while not self._ready:
            if self._over:
                await self._drain()
                raise StopAsyncIteration
            with in_words(self._host):
                await self._more()
            # What has arrived is read without a checkpoint.
            await trio.lowlevel.checkpoint()
        return self._ready.popleft()

    async def _more(self) -> None:
        if self._source is None:
            await self._whole()
        elif (event := await anext(self._source, None)) is not None:
            self._begun = True
            self._ready += self._reader.feed(event.event, event.data)
            if not self._reader.ended:
                return
        elif not self._begun:
            raise ModelFailed("its answer is empty", again=True)
        self._over = True
        found = self._reader.finish()
        given = next((each for each in found if isinstance(each, Usage)), None)
        if given is None or not given.input + given.output:
            counted = estimated(self._request_bytes, self._reader.used)
            found = [each for each in found if not isinstance(each, Usage | Stopped)] + [counted, found[-1]]
        self._ready += found

    async def _whole(self) -> None:
        """An answer of a server that does not stream."""
        body = await _read(self._response, self._host, MAX_EVENT_BYTES + 1, inf)
        if len(body) > MAX_EVENT_BYTES:
            raise ModelFailed(f"its answer is larger than {MAX_EVENT_BYTES} bytes")
        self._ready += self._reader.feed("message", body.decode("utf-8", "replace"))

    async def _drain(self) -> None:
        """Read the end of the answer, so that the next call can use its connection."""
        if self._source is None:
            return
        with trio.move_on_after(_END_S), in_words(self._host):
            while await anext(self._source, None) is not None:
                pass

    async def aclose(self) -> None:
        """Stop reading."""
        if self._source is not None:
            await end_reading(self._source)

"""HTTP below the official client of MCP: every answer is read within bounds before that client parses it.

The client gets whole answers of JSON, and a failure as an error of JSON-RPC: an exception would end the client.
No proxy setting and no .netrc is read, no cookie is kept and no redirect followed. What a stream has beside the answer
(progress, log lines, questions to the client) is left out, and no stream is opened for it.
"""

import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import httpx2
import orjson
import trio

from engine.egress.redaction import Redactor
from engine.models.events import Events, EventTooLarge, ServerSent
from engine.models.http import CONNECT_S, end_reading, tls_error, tls_words
from engine.models.shapes import ModelFailed
from engine.values import JsonMarks, is_plain
from engine.work import WORK

# They log what servers send.
for _name in ("client", "mcp.client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)
# It logs addresses.
logging.getLogger("httpx2").setLevel(logging.WARNING)

ANSWER_BYTES = WORK["tool server's answer"].max_bytes or 0
ANSWER_VALUES = WORK["tool server's answer"].max_values or 0
# Bound on a stream of events: progress and log lines before the answer.
STREAM_BYTES = 4 * ANSWER_BYTES
_EVENTS = 2_000
# So many pieces that have arrived are read without a checkpoint: chunks of one byte take 60 us each.
_PIECES = 64
# Bound on each list of an answer that the client makes objects of, which takes up to 20 us for each.
_ITEMS = 512
# What renders an answer again stops at 254 levels.
_DEPTH = 250
_LISTS = ("tools", "content")
# How long the end of a session may take: the run waits for it.
CLOSE_S = 0.5
# Connections to one server: calls of one turn run side by side.
AT_ONCE = 8
_CODINGS = ("", "identity")
_HEADERS = {"accept-encoding": "identity", "user-agent": "engine"}
_FAILED = -32000


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Answers of one server, each within `timeout_s`; `redactor` removes the keys that go along."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, timeout_s: float, redactor: Redactor) -> None:
        self._inner = inner
        self._timeout_s = timeout_s
        self._redactor = redactor

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a message. Raises nothing but Cancelled."""
        if request.method == "GET":  # the stream for what a server says of its own accord
            return httpx2.Response(405)
        if request.method == "DELETE":
            with trio.move_on_after(CLOSE_S), suppress(httpx2.HTTPError):
                await (await self._inner.handle_async_request(request)).aclose()
            return httpx2.Response(204)
        sent = orjson.loads(await request.aread())
        id_ = sent.get("id")
        reason = f"{request.url.host} gave no answer within {self._timeout_s:g} s (timeout_s)"
        with trio.move_on_after(self._timeout_s):
            try:
                with _in_words(request.url.host):
                    response = await self._inner.handle_async_request(request)
                try:
                    return await self._answer(response, request, id_)
                finally:
                    with trio.CancelScope(shield=True), suppress(httpx2.HTTPError):  # safe to shield: it does not wait
                        await response.aclose()
            except ModelFailed as failed:
                reason = str(failed)
        return _json({"jsonrpc": "2.0", "id": id_, "error": {"code": _FAILED, "message": reason}})

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _answer(self, response: httpx2.Response, request: httpx2.Request, id_: Any) -> httpx2.Response:
        """The answer to the message of this id, None for a notification. Raises ModelFailed."""
        response.request = request
        status = response.status_code
        if 300 <= status < 400:
            raise ModelFailed("it redirects to another address, which is not followed")
        if id_ is None:
            return httpx2.Response(202 if status < 400 else status)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.headers.get("content-encoding", "").strip().lower() not in _CODINGS:
            raise ModelFailed("its answer is in a coding that was not asked for (Content-Encoding)")
        if status >= 400 and kind != "application/json":
            raise _refused(status)
        if kind == "text/event-stream":
            answer = await self._of_stream(response, request.url.host)
        elif kind == "application/json":
            answer = await self._whole(response, request.url.host)
        else:
            raise ModelFailed("its answer is neither JSON nor a stream of events")
        found = parsed(await self._redacted(answer))
        if not is_plain(found, _DEPTH):
            raise ModelFailed(f"its answer is nested more than {_DEPTH} deep")
        if not _is_answer(found):
            raise _refused(status) if status >= 400 else ModelFailed("its answer is not one of JSON-RPC")
        result = found.get("result", {})
        if any(isinstance(items := result.get(name), list) and len(items) > _ITEMS for name in _LISTS):
            raise ModelFailed(f"its answer has a list of more than {_ITEMS} items")
        head = {name: response.headers[name] for name in ("mcp-session-id",) if name in response.headers}
        return _json({**found, "id": id_}, status, head)

    async def _whole(self, response: httpx2.Response, host: str) -> bytes:
        return b"".join([part async for part in _bounded(response, host, ANSWER_BYTES)])

    async def _of_stream(self, response: httpx2.Response, host: str) -> bytes:
        """The first event that is an answer."""
        events, count = Events(ANSWER_BYTES), 0
        async with aclosing(_bounded(response, host, STREAM_BYTES)) as parts:
            async for part in parts:
                for event in _complete(events, part):
                    count += 1
                    data = event.data.encode()
                    if count > _EVENTS:
                        raise ModelFailed(f"it sends more than {_EVENTS:,} events before its answer")
                    if event.type == "message" and data and _is_answer(parsed(data)):
                        return data
                    await trio.lowlevel.checkpoint()
        raise ModelFailed("its answer ends before it is complete")

    async def _redacted(self, body: bytes) -> bytes:
        """Without the keys that went along: what comes back goes to a model."""
        if not self._redactor.secrets:
            return body
        text = body.decode("utf-8", "replace")
        if self._redactor.is_work(text):
            return (await trio.to_thread.run_sync(self._redactor.text, text, abandon_on_cancel=True)).encode()
        return self._redactor.text(text).encode()


def _complete(events: Events, part: bytes) -> Iterator[ServerSent]:
    """The events that a part of a stream completes. Raises ModelFailed."""
    try:
        yield from events.feed(part)
    except EventTooLarge:
        raise ModelFailed(f"one event of its answer is larger than {ANSWER_BYTES} bytes") from None


@contextmanager
def _in_words(host: str) -> Iterator[None]:
    """Turn errors of httpx2 into ModelFailed, with texts that quote neither the library nor the server."""
    try:
        yield
    except httpx2.ConnectTimeout:
        raise ModelFailed(f"{host} does not accept connections") from None
    except httpx2.NetworkError as error:
        if (found := tls_error(error)) is not None:
            raise ModelFailed(tls_words(host, found)) from None
        refused = isinstance(error, httpx2.ConnectError)
        text = f"{host} does not accept connections" if refused else f"the connection to {host} was lost"
        raise ModelFailed(text) from None
    except httpx2.LocalProtocolError:
        raise ModelFailed("the request is not legal HTTP/1.1") from None
    except httpx2.ProtocolError:  # also the end of the connection before that of the answer
        raise ModelFailed(f"the connection to {host} ended in the middle of the answer") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError):
        raise ModelFailed(f"no request could be sent to {host}") from None


async def _bounded(response: httpx2.Response, host: str, bound: int) -> AsyncGenerator[bytes, None]:
    parts, size, count = response.aiter_raw(), 0, 0
    try:
        with _in_words(host):
            async for part in parts:
                size += len(part)
                if size > bound:
                    raise ModelFailed(f"its answer is larger than {bound:,} bytes")
                count += 1
                if not count % _PIECES:
                    await trio.lowlevel.checkpoint()
                yield part
    finally:
        await end_reading(parts)


def _refused(status: int) -> ModelFailed:
    why = ": it refuses the key" if status in (401, 403) else ""
    return ModelFailed(f"it answers with status {status}{why}")


def _is_answer(message: Mapping[str, Any]) -> bool:
    return "method" not in message and any(isinstance(message.get(key), dict) for key in ("result", "error"))


def parsed(data: bytes) -> dict[str, Any]:
    """A message of JSON-RPC, whose values are counted before any is made. Raises ModelFailed."""
    if len(data) > ANSWER_BYTES:
        raise ModelFailed(f"its answer is larger than {ANSWER_BYTES:,} bytes")
    marks = JsonMarks()
    marks.feed(data)
    if marks.marks > ANSWER_VALUES:
        raise ModelFailed(f"its answer holds more than {ANSWER_VALUES:,} values")
    try:
        found = orjson.loads(data)
    except ValueError:
        raise ModelFailed("its answer is not JSON") from None
    if not isinstance(found, dict):
        raise ModelFailed("its answer is not one of JSON-RPC")
    return found


def _json(message: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> httpx2.Response:
    head = {"content-type": "application/json", **(headers or {})}
    return httpx2.Response(status, headers=head, content=orjson.dumps(message))


def client(headers: Mapping[str, str], transport: BoundedTransport) -> httpx2.AsyncClient:
    """The client of HTTP for one server."""
    return httpx2.AsyncClient(
        transport=transport, headers={**_HEADERS, **headers}, trust_env=False, follow_redirects=False,
        timeout=httpx2.Timeout(None, connect=CONNECT_S),
    )  # fmt: skip


def connecting(tls: Any) -> httpx2.AsyncHTTPTransport:
    """Connections to one server."""
    limits = httpx2.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    return httpx2.AsyncHTTPTransport(verify=tls, trust_env=False, limits=limits)

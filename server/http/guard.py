"""The one layer in front of every route: access checks, bounds on the size and duration of requests, and cancellation.

It guarantees to the applications behind it: an allowed `Host` and `Origin`, a complete and bounded body, cancellation
as soon as the client disconnects, and one shape for every error, including their own. It guarantees to clients: an
answer to every request, and afterwards a connection that is either usable or closed.
"""

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import trio

from engine.errors import Code, Problem, leaf
from engine.host.memory import memory_for_process
from engine.tenant import Tenant
from server.http.access import Access
from server.http.asgi import BODY, KEY, ON_DISCONNECT, App, Exchange, Message, Receive, Scope, Send
from server.http.auth import Auth
from server.http.body import no_memory
from server.http.body_budget import Bodies
from server.http.problem_json import MEDIA, as_problem, is_wanted
from server.http.target import MCP_PATH, read_path, read_query
from server.logs import log, report
from server.problems import Answer, Headers, internal, problem_answer

# Before an early answer, the guard reads this much of the rest of the body, for at most this long, so that the
# connection stays usable. If that is not enough, the connection is closed after the answer. Until then, for LINGER_S at
# most, the rest is read: closing with unread bytes in the kernel resets the connection, and a reset may overtake the
# answer.
DRAIN_BYTES = 64 * 1024
DRAIN_S = 0.5
LINGER_S = 2.0
# Answers below this size are not counted: the number of connections bounds them.
HELD_ANSWER_BYTES = 64 * 1024

# The status of the answer to a preflight; no other answer of the guard has it.
_PREFLIGHT = 204
_CLOSE = (b"connection", b"close")
# On every answer: it depends on the origin, and browsers must not guess that it is a page.
_ALWAYS: Headers = [(b"vary", b"origin"), (b"x-content-type-options", b"nosniff")]

_METHODS = b"GET, HEAD, POST, PUT, DELETE, OPTIONS"
_EXPOSED = (
    b"allow, etag, retry-after, ratelimit, ratelimit-policy, ratelimit-limit, ratelimit-remaining, ratelimit-reset, "
    b"www-authenticate, "
    b"mcp-session-id, mcp-protocol-version"
)
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]*")
_ABSOLUTE = re.compile(rb"https?://([^/?#@]*)(/[^?#]*)?", re.IGNORECASE)


class Background(Protocol):
    """Work that outlives the requests that began it."""

    def drain(self) -> None:
        """Note that the server is shutting down."""
        ...

    async def settle(self, deadline: float) -> None:
        """Wait until it has ended, and end the rest at the deadline (trio's clock)."""
        ...


class Guard:
    """An ASGI application in front of another one, for `server.transport.http1`: one HTTP request for each call."""

    def __init__(
        self,
        app: App,
        access: Access,
        auth: Auth,
        *,
        max_body_bytes: int,
        body_timeout_s: float,
        rates: Callable[[Tenant], Iterable[tuple[bytes, bytes]]] = lambda tenant: (),
        background: Background | None = None,
    ) -> None:
        """`rates` returns the headers that say how many requests a tenant may send."""
        self.background = background
        self.app = app
        self.access = access
        self.auth = auth
        self.max_body_bytes = max_body_bytes
        self.body_timeout_s = body_timeout_s
        self._rates = rates
        self.draining = False
        # Bound once: structlog's lazy logger is built again for every event, including those below the level.
        self._log = log.bind()
        # Body bytes received for the exchanges in _active.
        self._bodies = Bodies(max_body_bytes, memory_for_process())
        # Bytes of their large answers, until the clients have read them.
        self._answers = Bodies(max_body_bytes, memory_for_process())
        # Invariant: exactly the exchanges whose task is inside __call__.
        self._active: set[Exchange] = set()

    @property
    def in_flight(self) -> int:
        """The number of requests being served."""
        return len(self._active)

    def active(self) -> frozenset[Exchange]:
        """The requests being served."""
        return frozenset(self._active)

    def drain(self) -> None:
        """Refuse new requests from now on, and end the answers that do not end by themselves."""
        self.draining = True
        for exchange in self._active:
            exchange.drain()
        if self.background is not None:
            self.background.drain()

    def cancel_all(self) -> None:
        """Cancel every request; those without an answer so far get an error: the server is shutting down."""
        self.draining = True
        for exchange in self._active:
            exchange.scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = trio.current_time()
        headers = dict(scope["headers"])
        extra: Headers = []
        problem: Problem | None = None
        cancel_scope = trio.CancelScope()
        exchange = Exchange(headers, cancel_scope, scope.get(BODY))
        scope[KEY] = exchange
        self._active.add(exchange)
        try:
            with cancel_scope:
                path, early = self._check(scope, exchange, extra)
                if early is None or early.status != _PREFLIGHT:
                    # Without a valid key the answer is 401, whatever else is wrong. Not for preflights, which carry no
                    # credentials.
                    early = await self.auth.refusal(scope, exchange, path) or early
                    if _payer(exchange) is not None:
                        extra += self._rates(exchange.tenant)
                if early is None and exchange.pending:
                    early = await self._read_body(exchange, receive)
                elif early is None and exchange.body:
                    early = self._count(exchange, len(exchange.body))
                if early is not None:
                    await _answer_early(early, extra, exchange, receive, send)
                elif not exchange.client_gone:
                    await self._serve(scope, receive, partial(self._send, send, exchange, extra), exchange)
                    if not exchange.started and exchange.refused is None:
                        raise RuntimeError("the application did not answer")
        except Exception as error:
            # After a partial answer, the server breaks the connection: that alone shows the client that it is partial.
            problem = internal(report(leaf(error), scope["path"]))
        finally:
            self._active.discard(exchange)
            if exchange.body_bytes:
                self._bodies.remove(_payer(exchange), exchange.body_bytes)
            if exchange.answer_bytes:
                self._answers.remove(_payer(exchange), exchange.answer_bytes)
        if not exchange.started and not exchange.client_gone:
            going = problem or exchange.refused or Problem(Code.UNAVAILABLE, "the server is shutting down")
            await _answer(problem_answer(going), [*extra, _CLOSE], exchange, send)
        elif exchange.ending and not exchange.finished and not exchange.client_gone:
            await _send(send, exchange, [], {"type": "http.response.body", "body": b""})
        self._log.debug(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=exchange.status,
            ms=round((trio.current_time() - started) * 1000, 2),
        )

    def _check(self, scope: Scope, exchange: Exchange, extra: Headers) -> tuple[str | None, Answer | None]:
        """The path of the request, None if it is ambiguous; and the early answer if the head alone decides it.

        Fills `extra`, the headers of every answer, with those that let a page read it, and replaces the scope's path
        with the parsed one, so that no layer behind this sees another path.
        """
        headers, method = exchange.headers, scope["method"]
        host, raw = _absolute(scope["raw_path"], headers.get(b"host", b""))
        scope["raw_path"], scope["path"] = raw, raw.decode("ascii", "replace")
        path, malformed = None, None
        try:
            if raw[:1] == b"/":
                path = read_path(raw)
            elif (method, raw) == ("OPTIONS", b"*"):  # about the server as a whole
                path = "*"
            else:
                return None, problem_answer(Problem(Code.BAD_REQUEST, "the request target is not a path"))
            scope["raw_path"], scope["path"] = path.encode(), path
            exchange.params = read_query(scope["query_string"])
        except Problem as problem:
            malformed = problem_answer(problem)
        return path, self._refuse_caller(scope, headers, host, extra) or malformed

    def _refuse_caller(self, scope: Scope, headers: dict[bytes, bytes], host: bytes, extra: Headers) -> Answer | None:
        """The early answer if the head's host, origin or announced body is not allowed."""
        if not self.access.host_allowed(host):
            name = host.decode("latin-1")[:100]
            hint = "add it to server.allowed_hosts if it should"
            return problem_answer(
                Problem(Code.MISDIRECTED, f"this server does not answer for the host {name!r}; {hint}")
            )
        origin = headers.get(b"origin")
        if origin is not None:
            if self.access.origin_allowed(origin, host):
                extra += [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED)]
                if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                    return _preflight(headers)
            # A plain GET changes nothing and the page cannot read its answer; MCP requires 403 nevertheless (revision
            # 2025-11-25, transports, security warning).
            elif scope["method"] != "GET" or scope["path"] == MCP_PATH:
                return problem_answer(Problem(Code.FORBIDDEN, "pages of this origin may not call this server"))
        if self.draining:
            return problem_answer(Problem(Code.UNAVAILABLE, "the server is shutting down"))
        length = headers.get(b"content-length")
        if length is not None and int(length) > self.max_body_bytes:
            return self._too_large()
        return None

    def _too_large(self) -> Answer:
        return problem_answer(
            Problem(Code.TOO_LARGE, f"the body is larger than {self.max_body_bytes} bytes (server.max_body_bytes)")
        )

    def _count(self, exchange: Exchange, size: int) -> Answer | None:
        """Count bytes of a body. Returns the early answer if this body, or all bodies together, are now too large."""
        exchange.body_bytes += size
        problem = self._bodies.add(_payer(exchange), size)
        if exchange.body_bytes > self.max_body_bytes:
            return self._too_large()
        return None if problem is None else problem_answer(problem)

    async def _read_body(self, exchange: Exchange, receive: Receive) -> Answer | None:
        """Read the whole body into the exchange. Returns the early answer if it is too large or too slow.

        The deadline is for the body as a whole: a client that drips bytes does not extend it.
        """
        # Not a list of parts: after 60 bodies of 4 MB a list left 257 MiB resident, a bytearray 70 (mallopt(3) changes
        # neither).
        body = bytearray()
        with trio.move_on_after(self.body_timeout_s):
            while True:
                message = await receive()
                exchange.expecting = False
                if message["type"] == "http.disconnect":
                    exchange.client_gone = True
                    return None
                part = message.get("body", b"")
                exchange.pending = message.get("more_body", False)
                if (early := self._count(exchange, len(part))) is not None:
                    return early
                try:
                    body += part
                    if not exchange.pending:
                        exchange.body = bytes(body)
                        return None
                except MemoryError:
                    return problem_answer(no_memory())
        return problem_answer(
            Problem(
                Code.BODY_TIMEOUT,
                f"the body was not complete after {self.body_timeout_s:g} seconds (server.body_timeout_s)",
            )
        )

    async def _send(self, send: Send, exchange: Exchange, extra: Headers, message: Message) -> None:
        """Send an application's answer, if there is room to hold it until its client has read it."""
        if message["type"] == "http.response.start" and not exchange.started:
            length = dict(message.get("headers", ())).get(b"content-length", b"")
            # Twice: the answer as the application made it, and the bytes to send.
            if length.isdigit() and (size := 2 * int(length)) >= HELD_ANSWER_BYTES:
                exchange.refused = self._answers.add_answer(_payer(exchange), size)
                exchange.answer_bytes = size if exchange.refused is None else 0
        if exchange.refused is None:
            await _send(send, exchange, extra, message)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        """Run the application with the complete body, and cancel it when the client disconnects."""
        read = False

        async def app_receive() -> Message:
            nonlocal read
            if not read:
                read = True
                # The application owns it now; the exchange does not keep a second reference beside the parsed form.
                body, exchange.body = exchange.body, b""
                return {"type": "http.request", "body": body, "more_body": False}
            while (message := await receive())["type"] != "http.disconnect":
                pass  # the end of a body that was not announced
            return message

        scope[ON_DISCONNECT](exchange.leave)
        await self.app(scope, app_receive, send)


def _absolute(raw: bytes, host: bytes) -> tuple[bytes, bytes]:
    """The host and the path of a target: absolute-form contains the host (RFC 9112 section 3.2.2)."""
    if raw[:1] != b"/" and (absolute := _ABSOLUTE.fullmatch(raw)) is not None:
        return absolute[1], absolute[2] or b"/"
    return host, raw


def _payer(exchange: Exchange) -> str | None:
    """The tenant whose share a request's body counts against; None for an operator, and when tenants are off."""
    return exchange.tenant.id if exchange.key is not None and not exchange.identity.operator else None


async def _send(send: Send, exchange: Exchange, extra: Headers, message: Message) -> None:
    """Track the progress of the answer, and add the headers that every answer has.

    An error is written as problem details if its client accepts them; it is done here, as every error passes here.
    """
    if message["type"] == "http.response.start":
        exchange.started = True
        exchange.status = int(message["status"])
        message["headers"] = [*message.get("headers", ()), *_ALWAYS, *extra]
        if exchange.status >= 400 and is_wanted(exchange.headers.get(b"accept", b"")):
            exchange.problem = message
            return
    else:
        if not message.get("more_body", False):
            exchange.finished = True
        if exchange.problem is not None:
            head, message = _as_problem(exchange.problem, message)
            exchange.problem = None
            await send(head)
    await send(message)


def _as_problem(head: Message, message: Message) -> tuple[Message, Message]:
    """The head and the body of an error as problem details. The body of every error is one message."""
    body = as_problem(message.get("body", b""), head["status"])
    if body is None:
        return head, message
    own = {b"content-type": MEDIA, b"content-length": b"%d" % len(body)}
    headers = [(name, own.get(name, value)) for name, value in head["headers"]]
    return {**head, "headers": [*headers, (b"vary", b"accept")]}, {**message, "body": body}


async def _answer(answer: Answer, more: Headers, exchange: Exchange, send: Send) -> None:
    await _send(
        send, exchange, more, {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
    )
    await _send(send, exchange, [], {"type": "http.response.body", "body": answer.body})


async def _answer_early(answer: Answer, extra: Headers, exchange: Exchange, receive: Receive, send: Send) -> None:
    """Answer a request whose body may still be in transit.

    A client that gets an answer before it has sent its body sends the body all the same. A server that parses those
    bytes as the next request, or stops reading, wedges the connection. So a small rest is read first; for a larger one
    the connection is closed, once the answer had time to arrive (RFC 9112 section 9.6).
    """
    if exchange.pending and exchange.expecting:
        # Receiving would send a 100. A client that waits for one sends no body after this (RFC 9110 10.1.1).
        await _answer(answer, [*extra, _CLOSE], exchange, send)
        return
    if not exchange.pending or await _discard(exchange, receive, DRAIN_BYTES, DRAIN_S):
        await _answer(answer, extra, exchange, send)
        return
    if exchange.client_gone:
        return
    start = {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
    await _send(send, exchange, [*extra, _CLOSE], start)
    await _send(send, exchange, [], {"type": "http.response.body", "body": answer.body, "more_body": True})
    await _discard(exchange, receive, None, LINGER_S)
    await _send(send, exchange, [], {"type": "http.response.body", "body": b""})


async def _discard(exchange: Exchange, receive: Receive, bound: int | None, seconds: float) -> bool:
    """Read and discard the rest of a body. True if it is complete; False if it is too long, too slow or cut off."""
    length = exchange.headers.get(b"content-length")
    if bound is not None and length is not None and int(length) > bound:
        return False
    size = 0
    with trio.move_on_after(seconds):
        while bound is None or size <= bound:
            message = await receive()
            if message["type"] == "http.disconnect":
                exchange.client_gone = True
                return False
            size += len(message.get("body", b""))
            exchange.pending = message.get("more_body", False)
            if not exchange.pending:
                return True
    return False


def _preflight(headers: dict[bytes, bytes]) -> Answer:
    """The answer to a CORS preflight of an allowed origin (Fetch standard, CORS-preflight request)."""
    requested = headers.get(b"access-control-request-headers", b"")
    allowed: Headers = [
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", b"600"),
    ]
    if requested and _HEADER_NAMES.fullmatch(requested):
        allowed.append((b"access-control-allow-headers", requested))
    return Answer(_PREFLIGHT, allowed, b"")

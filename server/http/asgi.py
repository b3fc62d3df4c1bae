"""The types of ASGI 3, and the guard's record of a request: one `Exchange`, passed on in the scope."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import trio

from control.identity import ANONYMOUS, Identity
from engine.errors import Problem
from engine.tenant import DEFAULT_TENANT, Tenant
from server.http.routes import UNREAD, Found
from server.problems import Answer

if TYPE_CHECKING:
    from server.http.large_values import Held

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Large answers are sent, and escaped, in pieces of this size: a millisecond of work each.
PIECE = 1024 * 1024

# The scope's key for the exchange.
KEY = "engine"

# The scope's key for `watch(callback)`: the server calls the callback when the client disconnects before its answer is
# complete. Waiting for `http.disconnect` instead would cost a task for every request.
ON_DISCONNECT = "engine.on_disconnect"

# The scope's key for a body that arrived complete, together with its head: reading it there saves a receive.
BODY = "engine.body"


def _no_charge(cpu_s: float) -> None:
    """Charge no account: the caller is an operator, or tenants are off."""


class Exchange:
    """One request and the state of its answer. `body` is complete when an application is called."""

    __slots__ = (
        "answer_bytes",
        "body",
        "body_bytes",
        "charge",
        "client_gone",
        "draining",
        "ending",
        "expecting",
        "finished",
        "found",
        "headers",
        "held",
        "identity",
        "key",
        "keyed",
        "on_drain",
        "params",
        "pending",
        "problem",
        "refused",
        "scope",
        "started",
        "status",
        "tenant",
        "working",
    )

    def __init__(self, headers: dict[bytes, bytes], scope: trio.CancelScope, body: bytes | None = None) -> None:
        self.headers = headers
        self.scope = scope
        # Parsed by `target`: the route with the access that it needs, and the parameters of the query.
        self.found: Found = UNREAD
        self.params: Mapping[str, str] = {}
        self.tenant: Tenant = DEFAULT_TENANT
        # Set by `Auth` before an application is called; `key` is the key that the request presented. The initial values
        # give access to nothing that needs a key.
        self.identity: Identity = ANONYMOUS
        self.keyed = True
        self.key: str | None = None
        # Opens a block of work on the request, charged to the tenant; set with the identity. No `await` inside.
        self.working: Callable[[], AbstractContextManager[None]] = nullcontext
        # Charges the tenant for CPU seconds spent on the answer; set with the identity.
        self.charge: Callable[[float], None] = _no_charge
        # Large values of the answer that bypass the MCP SDK (`held`).
        self.held: Held | None = None
        self.body = body or b""
        # Bytes of the body that have arrived; bytes of a large answer while it is sent, and the problem that is sent in
        # its place if there is no room for it.
        self.body_bytes = 0
        self.answer_bytes = 0
        self.refused: Problem | None = None
        # Whether bytes of the body may still come: only these two headers announce one (RFC 9112 section 6.3).
        self.pending = body is None and (b"content-length" in headers or b"transfer-encoding" in headers)
        # Whether the client waits for a 100 before it sends its body (RFC 9110 section 10.1.1).
        self.expecting = self.pending and b"100-continue" in headers.get(b"expect", b"").lower()
        # The head of an error, held until its body is written as problem details.
        self.problem: Message | None = None
        self.draining = False
        self.on_drain: Callable[[], None] | None = None
        self.ending = False
        self.status: int | None = None
        # Invariant: started becomes true before the first byte of the answer may be sent, finished before the last.
        self.started = False
        self.finished = False
        self.client_gone = False

    def when_draining(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the server drains, at once if it already does. For answers that do not end by
        themselves: draining waits for all others.
        """
        if self.draining:
            callback()
        else:
            self.on_drain = callback

    def drain(self) -> None:
        """Note that the server is shutting down."""
        self.draining = True
        if self.on_drain is not None:
            self.on_drain()

    def end(self) -> None:
        """End the answer where it is, as if it were complete."""
        self.ending = True
        self.scope.cancel()

    def leave(self) -> None:
        """Cancel the work: the client disconnected."""
        self.client_gone = True
        self.scope.cancel()


def exchange_of(scope: Scope) -> Exchange:
    """The exchange that the guard put into the scope."""
    exchange = scope[KEY]
    assert isinstance(exchange, Exchange)
    return exchange


async def send_answer(answer: Answer, send: Send) -> None:
    """Send a complete answer."""
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    body = answer.body
    if len(body) > PIECE:  # every layer below copies its input: in pieces, not all at once
        last = (len(body) - 1) // PIECE * PIECE
        for at in range(0, last, PIECE):
            await send({"type": "http.response.body", "body": body[at : at + PIECE], "more_body": True})
            await trio.lowlevel.checkpoint()
        body = body[last:]
    await send({"type": "http.response.body", "body": body})

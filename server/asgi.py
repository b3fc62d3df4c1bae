"""The shapes of ASGI 3, and what the guard knows of a request: one `Exchange`, passed on in the scope."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import trio

from engine.control.identity import ANONYMOUS, Identity
from engine.errors import Problem
from engine.tenant import DEFAULT_TENANT, Tenant
from server.problems import Answer
from server.routes import UNREAD, Found

if TYPE_CHECKING:
    from server.mcp_held import Held

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# What is sent, or escaped, of a large answer at once: a millisecond.
PIECE = 1024 * 1024

# The key of the scope under which applications find the exchange.
KEY = "engine"

# The key under which the server offers `watch(callback)`: the callback is called when the client leaves before its
# answer is complete. Waiting for `http.disconnect` instead would cost every request a task.
ON_DISCONNECT = "engine.on_disconnect"

# The key under which the server has a body that came whole, with its request. Whoever looks there need not receive it.
BODY = "engine.body"


def _no_charge(cpu_s: float) -> None:
    """Nobody pays: an operator, or a server without tenants."""


class Exchange:
    """One request as the guard sees it.

    `body` is complete when an application is called.
    """

    __slots__ = (
        "answered",
        "body",
        "buffered",
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
        # What the target says, as `server.target` read it: the route with what it needs, and the query's parameters.
        self.found: Found = UNREAD
        self.params: Mapping[str, str] = {}
        self.tenant: Tenant = DEFAULT_TENANT
        # Set by the layer that knows keys, before an application is called; `key` is what was presented. Until then
        # nothing that needs a key can be reached.
        self.identity: Identity = ANONYMOUS
        self.keyed = True
        self.key: str | None = None
        # A block of work on what was sent, charged to the tenant; set with the identity. Nothing is awaited inside.
        self.working: Callable[[], AbstractContextManager[None]] = nullcontext
        # CPU seconds that were spent on an answer, for the tenant to pay; set likewise.
        self.charge: Callable[[float], None] = _no_charge
        # What is kept from the SDK while it makes an answer of MCP.
        self.held: Held | None = None
        self.body = body or b""
        self.buffered = 0
        # Bytes of a large answer, while it is sent; and what is said where there is no room for it.
        self.answered = 0
        self.refused: Problem | None = None
        # Whether bytes of the body may still come: only these two headers announce one (RFC 9112 section 6.3).
        self.pending = body is None and (b"content-length" in headers or b"transfer-encoding" in headers)
        # Whether the client sends its body only when it is received (RFC 9110 section 10.1.1), and it was not yet.
        self.expecting = self.pending and b"100-continue" in headers.get(b"expect", b"").lower()
        self.draining = False
        self.on_drain: Callable[[], None] | None = None
        self.ending = False
        self.status: int | None = None
        # Invariant: started becomes true before the first byte of the answer may be sent, finished before the last.
        self.started = False
        self.finished = False
        self.client_gone = False

    def when_draining(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when the server drains, at once if it does: for answers that never end by themselves.

        Draining waits for all other answers.
        """
        if self.draining:
            callback()
        else:
            self.on_drain = callback

    def drain(self) -> None:
        """The server is going away."""
        self.draining = True
        if self.on_drain is not None:
            self.on_drain()

    def end(self) -> None:
        """End the answer where it is, as if it were complete."""
        self.ending = True
        self.scope.cancel()

    def leave(self) -> None:
        """The client is gone: end the work for it."""
        self.client_gone = True
        self.scope.cancel()


def exchange_of(scope: Scope) -> Exchange:
    """The exchange that the guard put into the scope."""
    exchange = scope[KEY]
    assert isinstance(exchange, Exchange)
    return exchange


async def send_answer(answer: Answer, send: Send) -> None:
    """Say a complete answer."""
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    body = answer.body
    if len(body) > PIECE:  # copied once more with each step on its way to the client: not all of it at once
        last = (len(body) - 1) // PIECE * PIECE
        for at in range(0, last, PIECE):
            await send({"type": "http.response.body", "body": body[at : at + PIECE], "more_body": True})
            await trio.lowlevel.checkpoint()
        body = body[last:]
    await send({"type": "http.response.body", "body": body})

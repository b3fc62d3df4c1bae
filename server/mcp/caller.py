"""The caller of an MCP handler: tenant, access and log level, independent of the transport."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from agents.seat import Seat
from control.identity import ANONYMOUS, Identity
from engine.tenant import Tenant
from server.http.asgi import Exchange, exchange_of
from server.mcp.log import SessionLevel

Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller's tenant, and the agent that the request is limited to. `when_draining` registers a callback for the
    drain of the server.

    `log_level` is that of the session in a handshake revision; over HTTP, which has no sessions, that of the request.
    `identity` and `keyed` (whether the server uses keys) define the access; by default nothing that needs a key.
    """

    tenant: Tenant
    agent: str | None
    when_draining: Callable[[Callable[[], None]], None]
    identity: Identity = ANONYMOUS
    keyed: bool = True
    log_level: SessionLevel = field(default_factory=SessionLevel)
    # The HTTP exchange, if there is one: its large values bypass the SDK (`server.http.large_values`).
    exchange: Exchange | None = None
    # For whom of which team the tools of teams act.
    seat: Seat | None = None

    def charge(self, cpu_s: float) -> None:
        """Charge CPU time to the caller's tenant; over stdio there is no account."""
        if self.exchange is not None:
            self.exchange.charge(cpu_s)


def http_caller(ctx: Context) -> Caller:
    """The caller of a message over HTTP, from the guard's exchange."""
    exchange = exchange_of(ctx.request.scope)  # type: ignore[union-attr]
    return Caller(
        exchange.tenant, exchange.params.get("agent"), exchange.when_draining, exchange.identity, exchange.keyed,
        exchange=exchange, seat=Seat.of(exchange.params),
    )  # fmt: skip


def of_handshake(ctx: Context) -> bool:
    """Whether the client speaks a revision before 2026-07-28."""
    return ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS

"""On whose behalf an MCP handler acts, whatever carried the message."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from engine.control.identity import ANONYMOUS, Identity
from engine.tenant import Tenant
from server.asgi import Exchange, exchange_of
from server.mcp_log import SessionLevel

Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and the agent that it is limited to. `when_draining` has a callback called when the server drains.

    `log_level` is that of the session, of a handshake revision; over HTTP, which has no sessions, of the request alone.
    `identity` and `keyed` (whether keys are asked for) say what it may do; by default nothing that needs a key.
    """

    tenant: Tenant
    agent: str | None
    when_draining: Callable[[Callable[[], None]], None]
    identity: Identity = ANONYMOUS
    keyed: bool = True
    log_level: SessionLevel = field(default_factory=SessionLevel)
    # The HTTP request, if it is one: whose large values are kept from the SDK (`server.mcp_held`).
    exchange: Exchange | None = None

    def charge(self, cpu_s: float) -> None:
        """Take CPU time from the account of the caller's tenant; over stdio there is none."""
        if self.exchange is not None:
            self.exchange.charge(cpu_s)


def http_caller(ctx: Context) -> Caller:
    """The caller of a message that came over HTTP, as the guard knows it."""
    exchange = exchange_of(ctx.request.scope)  # type: ignore[union-attr]
    return Caller(
        exchange.tenant, exchange.params.get("agent"), exchange.when_draining, exchange.identity, exchange.keyed,
        exchange=exchange,
    )  # fmt: skip


def of_handshake(ctx: Context) -> bool:
    """Whether the client speaks a revision before 2026-07-28."""
    return ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS

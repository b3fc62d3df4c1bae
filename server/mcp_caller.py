"""On whose behalf an MCP handler acts, whatever carried the message."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from engine.tenant import Tenant
from server.asgi import Exchange, agent_of, exchange_of

Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and the agent that it is limited to. `when_draining` has a callback called when the server drains."""

    tenant: Tenant
    agent: str | None
    when_draining: Callable[[Callable[[], None]], None]
    # The HTTP request, if it is one: whose large values are kept from the SDK (`server.mcp_held`).
    exchange: Exchange | None = None


def http_caller(ctx: Context) -> Caller:
    """The caller of a message that came over HTTP, as the guard knows it."""
    exchange = exchange_of(ctx.request.scope)  # type: ignore[union-attr]
    return Caller(exchange.tenant, agent_of(exchange.query), exchange.when_draining, exchange)


def of_handshake(ctx: Context) -> bool:
    """Whether the client speaks a revision before 2026-07-28."""
    return ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS

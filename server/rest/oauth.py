"""The metadata of this server as a protected resource (RFC 9728), for clients that log in."""

from typing import TYPE_CHECKING

from engine.config.oauth import OAuthConfig
from engine.errors import Code, Problem
from server.http.asgi import Exchange
from server.http.routes import Need, Route
from server.oauth.challenge import resource_metadata
from server.problems import Answer, Headers, json_answer

if TYPE_CHECKING:
    from agents.service import Service

_PATH = "/.well-known/oauth-protected-resource"
# Clients ask for it at each log-in.
_CACHED: Headers = [(b"cache-control", b"public, max-age=300")]


class OAuth:
    """The handler of a service."""

    def __init__(self, service: "Service") -> None:
        self._service = service

    def routes(self) -> tuple[Route, ...]:
        """Its routes: for `/mcp`, and where older clients look."""
        return (
            Route("GET", _PATH, Need.NOTHING, self.show_metadata),
            Route("GET", f"{_PATH}/mcp", Need.NOTHING, self.show_metadata),
        )

    async def show_metadata(self, exchange: Exchange) -> Answer:
        oauth: OAuthConfig | None = self._service.loaded.config.tenants.oauth
        if oauth is None:
            raise Problem(Code.NOT_FOUND, "there is no log-in here: [tenants.oauth] is not configured")
        return json_answer(resource_metadata(oauth), headers=_CACHED)

"""The teams of REST: `/teams`."""

from typing import TYPE_CHECKING

from agents.teams.views import EVENTS, MAX_EVENTS
from engine.errors import Code, Problem
from server.http.asgi import Exchange
from server.http.body import read_object
from server.http.routes import Need, Route
from server.problems import Answer, json_answer

if TYPE_CHECKING:
    from agents.service import Service
    from agents.teams.service import Teams


class TeamRoutes:
    """The handlers of teams; without `[teams] enabled` each answers that there is nothing."""

    def __init__(self, service: "Service") -> None:
        self._service = service

    def routes(self) -> tuple[Route, ...]:
        """Every route."""
        return (
            Route("POST", "/teams", Need.USE, self.create),
            Route("GET", "/teams", Need.USE, self.listed),
            Route("GET", "/teams/<name>", Need.USE, self.show),
            Route("DELETE", "/teams/<name>", Need.USE, self.delete),
            Route("GET", "/teams/<name>/events", Need.USE, self.events),
            Route("POST", "/teams/<name>/stop", Need.USE, self.stop),
        )

    @property
    def _teams(self) -> "Teams":
        if self._service.teams is None:
            raise Problem(Code.NOT_FOUND, "there are no teams here: the configuration has no [teams] enabled = true")
        return self._service.teams

    async def create(self, exchange: Exchange) -> Answer:
        given = await read_object(exchange)
        if unknown := next((key for key in given if key not in ("name", "budget")), None):
            raise Problem(Code.BAD_REQUEST, f"unknown field {unknown[:64]!r}; known: name, budget")
        name = given.get("name")
        if not isinstance(name, str):
            raise Problem(Code.BAD_REQUEST, "name: expected the name of the team")
        return json_answer(await self._teams.create(exchange.tenant, name, given.get("budget")), 201)

    async def listed(self, exchange: Exchange) -> Answer:
        return json_answer(await self._teams.listed(exchange.tenant))

    async def show(self, exchange: Exchange, name: str) -> Answer:
        return json_answer(await self._teams.status(exchange.tenant, name))

    async def events(self, exchange: Exchange, name: str) -> Answer:
        after, limit = _count(exchange, "after", 0, 0), _count(exchange, "limit", EVENTS, 1)
        return json_answer(await self._teams.events(exchange.tenant, name, after, min(limit, MAX_EVENTS)))

    async def stop(self, exchange: Exchange, name: str) -> Answer:
        if await read_object(exchange):
            raise Problem(Code.BAD_REQUEST, "this takes no body: the URL names the team")
        return json_answer(await self._teams.stop(exchange.tenant, name))

    async def delete(self, exchange: Exchange, name: str) -> Answer:
        await self._teams.delete(exchange.tenant, name)
        return json_answer({"name": name, "state": "deleted"})


def _count(exchange: Exchange, name: str, default: int, least: int) -> int:
    given = exchange.params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) <= 15 and int(given) >= least):
        raise Problem(Code.BAD_REQUEST, f"{name}: expected a whole number of at least {least}, got {given[:32]!r}")
    return int(given)

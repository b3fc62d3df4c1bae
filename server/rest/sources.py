"""The sources of REST: `POST /sources/LABEL/sync`."""

from functools import partial
from typing import TYPE_CHECKING

from engine.errors import Code, Problem
from server.http.asgi import Exchange
from server.http.body import read_object
from server.http.routes import Need, Route
from server.problems import Answer, json_answer

if TYPE_CHECKING:
    from agents.service import Service


def routes(service: "Service") -> tuple[Route, ...]:
    """Every route."""
    return (Route("POST", "/sources/<label>/sync", Need.ADMIN, partial(_sync, service)),)


async def _sync(service: "Service", exchange: Exchange, label: str) -> Answer:
    if await read_object(exchange):
        raise Problem(Code.BAD_REQUEST, "this takes no body: the URL names the source")
    run = await service.syncs.begin(exchange.tenant, label)
    return json_answer({"run": run.as_json()}, 202)

"""A REST route is one row, which says what it needs, and one handler: here it is added on the fly, for each need."""

from pathlib import Path

import pytest
from keys_support import keyed

from server.http.asgi import Exchange
from server.http.routes import Need, Route
from server.problems import Answer, json_answer
from server.rest.routes import Routes


async def show(exchange: Exchange, name: str) -> Answer:
    return json_answer({"shelf": name, "tenant": exchange.tenant.id})


@pytest.mark.parametrize("need", Need, ids=lambda need: need.name.lower())
async def test_an_added_route_is_answered_for_those_alone_who_have_what_its_row_needs(
    need: Need, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = Routes.all
    added = Route("GET", "/shelves/<name>", need, show)
    monkeypatch.setattr(Routes, "all", lambda self: (*routes(self), added))
    async with keyed(tmp_path) as server:
        for who in (None, "use", "publish", "admin", "operator"):
            async with server.client(who) as client:
                answer = await client.get("/shelves/top")
            if need is Need.NOTHING or who == "operator" or (who is not None and who in need.value.scopes):
                assert (answer.status_code, answer.json()["shelf"]) == (200, "top"), who
            else:
                assert answer.status_code == (401 if who is None else 403), who

"""MCP's methods: none without a row, and what a request that is limited to an agent gets of each."""

from pathlib import Path
from typing import Any

import mcp_types as t
import pytest
from mcp_support import Library, assert_works, document, handshake, library, listening, message, modern
from server_support import Running, assert_envelope, serving

from agents.tool import ToolInfo
from control.identity import ANONYMOUS, Identity
from engine.tenant import DEFAULT_TENANT
from server.http.asgi import Exchange
from server.mcp.methods import METHODS

# What is asked of each, and a text that is in the answer unless the request is limited to an agent that has it not.
PROMPT, TITLES = (
    {"type": "ref/prompt", "name": "both"},
    {"type": "ref/resource", "uri": "engine://sources/{source}/{title}"},
)
ASKS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "tools/list": [({}, '"number"'), ({}, '"both"')],
    "tools/call": [({"name": "number", "arguments": {}}, '"structuredContent":42'),
                   ({"name": "both", "arguments": {}}, "You are both")],
    "prompts/list": [({}, '"reader"')],
    "prompts/get": [({"name": "both", "arguments": {}}, "You are both")],
    "resources/list": [({}, "zanzibar")],
    "resources/templates/list": [({}, "engine://documents/")],
    "resources/read": [({"uri": "engine://sources/filesystem%3Anotes/zanzibar"}, "the-body")],
    "completion/complete": [({"ref": PROMPT, "argument": {"name": "severity", "value": ""}}, "P1 outage"),
                            ({"ref": TITLES, "argument": {"name": "title", "value": "zan"}}, "zanzibar"),
                            ({"ref": TITLES, "argument": {"name": "source", "value": ""}}, "filesystem:notes")],
}  # fmt: skip
# The same for all; `subscriptions/listen` has a test of its own.
SAME = {"initialize", "server/discover", "ping", "logging/setLevel"}
# In test_mcp_tasks.py: a task is known at the address at which it was made.
TASKS = {"tasks/get", "tasks/update", "tasks/cancel"}


def asking(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return modern(method, params, **({"mcp-name": params["uri"]} if "uri" in params else {}))


def test_every_method_has_a_test_of_its_limit() -> None:
    assert {*ASKS, *SAME, *TASKS, "subscriptions/listen"} == set(METHODS)


async def test_every_handler_has_a_row_and_every_row_a_handler(server: Running) -> None:
    sdk = server.mcp.server
    assert {*sdk._request_handlers, "initialize"} == set(METHODS)
    assert not sdk._notification_handlers


async def test_a_handler_without_a_row_is_not_there(server: Running) -> None:
    reached = []

    async def handler(ctx: Any, params: t.RequestParams) -> dict[str, Any]:
        reached.append(ctx.method)
        return {}

    for method in ("engine/secrets", "resources/subscribe", "tasks/list"):
        server.mcp.server.add_request_handler(method, t.RequestParams, handler)
        async with server.client() as client:
            for era in (modern, handshake):
                answer = message(await client.post("/mcp", **era(method, {"level": "info", "uri": "x"})))
                assert answer["error"]["code"] == -32601, method
    assert reached == []
    await assert_works(server)


async def test_a_method_checks_its_own_row(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the layers before it would let a request through that lacks what the method needs."""
    without = Identity(DEFAULT_TENANT, "key", frozenset({"publish"}), operator=False)
    for identity, text in ((without, "no scope 'use'"), (ANONYMOUS, "a valid API key is needed")):

        def check(route: object, exchange: Exchange, identity: Identity = identity) -> None:
            exchange.identity, exchange.keyed = identity, True

        monkeypatch.setattr("server.http.routes.Route.check", check)
        async with server.client() as client:
            for method, asks in ASKS.items():
                error = message(await client.post("/mcp", **asking(method, asks[0][0])))["error"]
                assert text in error["message"], method
    assert server.service.seen == []


async def test_each_method_is_limited_to_the_agent_of_the_address(tmp_path: Path) -> None:
    async with library(tmp_path, document("z.md", "the-body", title="zanzibar")) as server, server.client() as client:
        for method, asks in ASKS.items():
            for params, text in asks:
                ask = asking(method, params)
                assert text in (await client.post("/mcp", **ask)).text, (method, params)
                limited = await client.post("/mcp?agent=helper", **ask)
                assert text not in limited.text, (method, params)
                assert limited.headers["content-type"].startswith("application/json")
        assert "result" in message(await client.post("/mcp?agent=helper", **modern("server/discover")))
        assert "result" in message(await client.post("/mcp?agent=helper", **handshake("ping")))


async def test_a_stream_that_is_limited_to_an_agent_tells_of_documents_if_it_may_get_them(tmp_path: Path) -> None:
    async with library(tmp_path, document("z.md")) as server:
        for query, told in (("", True), ("?agent=reader", True), ("?agent=helper", False)):
            async with listening(server, query, resourcesListChanged=True, toolsListChanged=True) as stream:
                assert bool(stream.acknowledged.get("resourcesListChanged")) is told
                assert stream.acknowledged["toolsListChanged"] is True


DOUBTFUL = (
    "agent=helper&agent=slow", "agent=helper&agent=helper", "agent=helper&Agent=slow", "AGENT=helper", "%61gent=helper",
    "agent%20=helper", "agent=helper;agent=slow", "agent=%ff", "agent=a%00",
)  # fmt: skip


async def test_a_limit_in_doubt_is_refused_over_rest_and_mcp_alike(server: Running) -> None:
    async with server.client() as client:
        for query in DOUBTFUL:
            assert_envelope(await client.post(f"/mcp?{query}", **modern("tools/list")), 400, "bad_request")
            assert_envelope(await client.get(f"/tools/list?{query}"), 400, "bad_request")
            assert_envelope(await client.post(f"/tools/echo?{query}", json={}), 400, "bad_request")
    assert server.service.seen == []


async def test_a_tool_beyond_the_agents_list_answers_as_one_that_does_not_exist() -> None:
    service = Library()
    schema = {"type": "object", "properties": {"place": {"type": "string", "x-mcp-header": "Place"}}}
    service.tools["placed"] = ToolInfo(name="placed", description="", builtin=False, parameters=schema)
    async with serving(service) as server, server.client() as client:

        async def call(query: str, name: str) -> tuple[int, str]:
            answer = await client.post(
                f"/mcp{query}", **modern("tools/call", {"name": name, "arguments": {"place": "x"}})
            )
            return answer.status_code, answer.text.replace(name, "NAME")

        assert (await call("", "placed"))[0] == 400  # without the header that its schema asks for
        assert await call("?agent=helper", "placed") == await call("?agent=helper", "nothing")

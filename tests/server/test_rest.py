"""The REST routes: shapes, names, methods and errors."""

import time
from typing import Any

import orjson
import pytest
import trio
from quart_trio import QuartTrio
from server_support import Failed, FakeService, Running, assert_envelope, parse, request, serving

from agents.agent import AgentInfo
from engine.errors import Code
from engine.host.lag import LoopWatch, watched
from server.http.asgi import Exchange
from server.problems import STATUS
from server.rest.lists import listed


async def test_health_says_what_runs(server: Running) -> None:
    async with server.client() as client:
        body = (await client.get("/health")).json()
    assert body["status"] == "ok"
    assert body["version"]
    assert body["workers"] == {"idle": 2}
    assert body["scripts_failing"] == 0
    assert [layer["name"] for layer in body["layers"]] == ["process", "landlock"]
    assert set(body["layers"][0]) == {"name", "state", "detail", "required"}


async def test_health_is_503_while_the_engine_drains() -> None:
    service = FakeService(failures=(Failed(),))
    async with serving(service) as server, server.client() as client:
        assert (await client.get("/health")).json()["scripts_failing"] == 1
        service.engine.draining = True
        assert_envelope(await client.get("/health"), 503, "unavailable")


async def test_health_is_503_when_no_worker_can_be_made_and_does_not_say_where() -> None:
    service = FakeService()
    service.engine.trouble = "no such file: /usr/bin/python3"
    async with serving(service) as server, server.client() as client:
        body = (await client.get("/health")).json()  # there are workers still
        assert body["status"] == "ok"
        assert "trouble" not in body
        service.engine.workers = 0
        assert_envelope(await client.get("/health"), 503, "unavailable")


async def test_the_lists_have_every_key(server: Running) -> None:
    async with server.client() as client:
        tools = (await client.get("/tools/list")).json()["tools"]
        agents = (await client.get("/agents/list")).json()["agents"]
    assert {"name", "description", "builtin", "parameters"} <= set(tools[0])
    assert [tool["name"] for tool in tools if tool["builtin"]] == ["search", "sources"]
    assert agents[0] == {
        "name": "helper",
        "description": "Helps",
        "tools": ["echo"],
        "source": "lua",
        "arguments": [{"name": "service", "description": "Which", "required": True, "enum": None}],
        "title": None,
        "expose": ["prompt"],
    }


async def test_tools_of_an_agent_are_only_its_own(server: Running) -> None:
    async with server.client() as client:
        tools = (await client.get("/tools/list", params={"agent": "helper"})).json()["tools"]
        assert [tool["name"] for tool in tools] == ["echo"]
        assert_envelope(await client.get("/tools/list?agent=nobody"), 404, "not_found")
        assert_envelope(await client.get("/tools/list?agent="), 404, "not_found")
        assert_envelope(await client.get("/tools/list?agent=a&agent=b"), 400, "bad_request")


async def test_a_tool_call_of_an_agent_is_checked_in_order(server: Running) -> None:
    async with server.client() as client:
        assert (await client.post("/tools/echo?agent=helper", json={"a": 1})).json() == {"result": {"a": 1}}
        assert_envelope(await client.post("/tools/echo?agent=nobody", json={}), 404, "not_found")
        assert_envelope(await client.post("/tools/value?agent=helper", json={}), 403, "tool_not_allowed")
        assert_envelope(await client.post("/tools/nothing?agent=helper", json={}), 403, "tool_not_allowed")


@pytest.mark.parametrize(
    ("path", "body", "flat", "wrapped"),
    [
        ("/tools/search", {"query": "x"}, {"results": []}, {"result": {"results": []}}),
        ("/tools/sources", {}, {"sources": []}, {"result": {"sources": []}}),
        ("/tools/echo", {"a": 1}, {"result": {"a": 1}}, {"result": {"a": 1}}),
        ("/tools/number", {}, {"result": 42}, {"result": 42}),
    ],
)
async def test_a_body_in_the_envelope_is_answered_in_the_envelope(
    server: Running, path: str, body: dict[str, Any], flat: object, wrapped: object
) -> None:
    async with server.client() as client:
        assert (await client.post(path, json=body)).json() == flat
        assert (await client.post(path, json={"arguments": body})).json() == wrapped


async def test_clients_that_read_result_of_every_tool_ask_for_it_in_the_query(server: Running) -> None:
    async with server.client() as client:
        wrapped = {"result": {"results": []}}
        assert (await client.post("/tools/search?envelope=wrapped", json={"query": "x"})).json() == wrapped
        assert (await client.get("/tools/sources?envelope=wrapped")).json() == {"result": {"sources": []}}
        assert (await client.post("/tools/search?envelope=flat", json={"query": "x"})).json() == {"results": []}
        assert (await client.post("/tools/echo?envelope=wrapped", json={"a": 1})).json() == {"result": {"a": 1}}
        error = assert_envelope(
            await client.post("/tools/search?envelope=round", json={"query": "x"}), 400, "bad_request"
        )
        assert error["message"] == "envelope must be 'flat' or 'wrapped', not 'round'"


async def test_a_prompt_comes_flat_or_in_the_envelope_as_it_was_asked(server: Running) -> None:
    async with server.client() as client:
        flat = (await client.post("/agents/helper/prompt", json={"service": "payments", "n": [1, None]})).json()
        wrapped = (await client.post("/agents/helper/prompt", json={"arguments": {"service": "payments"}})).json()
    assert flat == {
        "system": "You help with payments.",
        "tools": ["echo"],
        "messages": [{"role": "assistant", "content": "Ready."}, {"role": "system", "content": "Mind the gap."}],
    }
    assert wrapped == {"result": flat}
    assert server.service.seen[0] == ("helper", {"service": "payments", "n": [1, None]})


async def test_an_empty_body_is_an_empty_object(server: Running) -> None:
    async with server.client() as client:
        assert (await client.post("/tools/echo")).json() == {"result": {}}
        assert (await client.post("/tools/echo", headers={"Content-Type": "text/plain"})).json() == {"result": {}}
        assert "service" in assert_envelope(await client.post("/agents/helper/prompt"), 400, "bad_request")["message"]


async def test_sources_can_be_got(server: Running) -> None:
    async with server.client() as client:
        assert (await client.get("/tools/sources")).json() == {"sources": []}


async def test_values_keep_their_nulls_and_lists(server: Running) -> None:
    async with server.client() as client:
        for value in (None, [], {}, [None, {"a": None}], "text", 0, False):
            assert (await client.post("/tools/value", json={"value": value})).json() == {"result": value}


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b'{"a":1,"a":2}', b'{"a":NaN}', b"\xff", b"[" * 5000])
@pytest.mark.parametrize("path", ["/tools/echo", "/agents/helper/prompt"])
async def test_a_malformed_body_is_400_and_runs_nothing(server: Running, path: str, body: bytes) -> None:
    async with server.client() as client:
        response = await client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert_envelope(response, 400, "bad_request")
        assert server.service.seen == []
        assert (await client.post("/tools/echo", json={})).is_success


async def test_a_body_of_another_type_is_415(server: Running) -> None:
    async with server.client() as client:
        assert_envelope(await client.post("/tools/echo", content=b"a=b"), 415, "unsupported_media_type")
        assert_envelope(await client.post("/tools/echo", data={"a": "b"}), 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "path",
    ["/", "//", "/nowhere", "/health/", "/tools", "/tools/", "/tools//echo", "/tools/a/b", "/tools/%2e%2e/x", "/agents",
     "/agents/helper/prompt/x", "/agents//prompt", "/static/x", "/favicon.ico",
     "/.well-known/oauth-authorization-server", "/mcp/x", "/%00", "/%ff%fe", "/%F0%9F%90%9F", "/" + "a" * 5000],
)  # fmt: skip
async def test_an_unknown_path_is_404_in_the_envelope(server: Running, path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
        assert_envelope(await server.raw(request(method, path)), 404, "not_found")


@pytest.mark.parametrize("name", ["nothing", "%00", "%ff", "a%20b", "%F0%9F%90%9F", "..", "%2e%2e", "a;b", "a+b", "'"])
async def test_an_odd_name_is_merely_unknown(server: Running, name: str) -> None:
    assert_envelope(await server.raw(request("POST", f"/tools/{name}", b"{}")), 404, "not_found")
    assert_envelope(await server.raw(request("POST", f"/agents/{name}/prompt", b"{}")), 404, "not_found")


async def test_a_name_has_one_spelling(server: Running) -> None:
    for name in (
        "%65cho",
        "ech%6F",
        "ech%6f",
        "./echo",
        "echo/",
        "echo/.",
        "echo;a=b",
        "echo%00",
        "x%2F..%2Fecho",
        "%2Becho",
    ):
        assert_envelope(await server.raw(request("POST", f"/tools/{name}", b"{}")), 404, "not_found")
    assert server.service.seen == [("+echo", {})]  # %2B is how clients escape the `+` of a version


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/health", "GET"),
        ("POST", "/agents/list", "GET"),
        ("DELETE", "/tools/list", "GET"),
        ("POST", "/tools/list", "GET"),
        ("POST", "/metrics", "GET"),
        ("GET", "/tools/echo", "POST"),
        ("GET", "/tools/nothing", "POST"),
        ("DELETE", "/tools/sources", "POST"),
        ("GET", "/agents/helper", "PUT"),
        ("GET", "/agents/helper/prompt", "POST"),
        ("BREW", "/health", "GET"),
    ],
)
async def test_another_method_is_405_and_says_which(server: Running, method: str, path: str, allow: str) -> None:
    async with server.client() as client:
        response = await client.request(method, path)
        assert_envelope(response, 405, "method_not_allowed")
        assert allow in response.headers["allow"]


@pytest.mark.parametrize("path", ["/health", "/tools/list", "/agents/list", "/tools/sources", "/limits"])
async def test_head_is_get_without_a_body(server: Running, path: str) -> None:
    async with server.client() as client:
        full, head = await client.get(path), await client.head(path)
        assert head.status_code == 200
        assert head.content == b""
        assert head.headers["content-length"] == full.headers["content-length"]


async def test_options_names_the_methods(server: Running) -> None:
    async with server.client() as client:
        response = await client.options("/tools/sources")
        assert response.is_success
        assert response.content == b""
        assert {"GET", "POST"} <= set(response.headers["allow"].replace(",", " ").split())
        assert "POST" in (await client.options("/mcp")).headers["allow"]


@pytest.mark.parametrize("code", Code)
async def test_every_problem_of_a_tool_is_the_envelope(server: Running, code: Code) -> None:
    async with server.client() as client:
        response = await client.post("/tools/raises", json={"code": code.value})
        error = assert_envelope(response, STATUS[code], code.value)
        assert error["run_id"] == "r2"
        assert ("limit" in error) == (code is Code.MEMORY_LIMIT)
        assert response.headers.get("retry-after") == ("2" if code is Code.QUEUE_FULL else None)
        assert (await client.post("/tools/echo", json={})).is_success


async def test_a_failed_script_shows_its_own_traceback(server: Running) -> None:
    async with server.client() as client:
        error = assert_envelope(await client.post("/agents/broken/prompt", json={}), 500, "agent_error")
    assert error["message"] == "agent.lua:3: no"
    assert "resolve" in error["traceback"]


async def test_limits_name_value_unit_and_source(server: Running) -> None:
    async with server.client() as client:
        limits = (await client.get("/limits")).json()["limits"]
    assert limits["timeout_s"] == {"value": 30.0, "unit": "s", "source": "engine"}
    assert limits["memory_bytes"]["unit"] == "bytes"


async def test_metrics_are_prometheus_text(server: Running) -> None:
    async with server.client() as client:
        response = await client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        assert 'engine_workers{state="idle"} 2.0' in response.text


async def test_metrics_are_not_for_those_who_come_through_a_proxy(server: Running) -> None:
    async with server.client() as client:
        response = await client.get("/metrics", headers={"X-Forwarded-For": "203.0.113.9"})
        assert_envelope(response, 403, "forbidden")


async def test_options_of_every_path_is_204_and_names_its_methods_in_order(server: Running) -> None:
    for path, allow in (
        ("/health", "GET, HEAD, OPTIONS"),
        ("/tools/echo", "OPTIONS, POST, PUT"),
        ("/tools/list", "GET, HEAD, OPTIONS, POST, PUT"),
        ("/mcp", "GET, OPTIONS, POST"),
        ("*", "DELETE, GET, HEAD, OPTIONS, POST, PUT"),
    ):
        answer = parse(await server.raw(request("OPTIONS", path, b"", "Connection: close")))
        assert (answer.status_code, answer.headers["allow"], answer.content) == (204, allow, b"")
        assert "content-type" not in answer.headers
    assert_envelope(await server.raw(request("OPTIONS", "/nowhere")), 404, "not_found")


async def test_calls_need_no_router(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(QuartTrio, "__call__", refuse)
    async with server.client() as client:
        assert (await client.post("/tools/echo", json={})).status_code == 200
        assert (await client.post("/tools/sources", json={})).status_code == 200
        assert (await client.post("/agents/helper/prompt", json={"service": "x"})).status_code == 200


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"])
async def test_a_header_does_not_change_the_method(server: Running, header: str) -> None:
    async with server.client(headers={header: "POST"}) as client:
        assert_envelope(await client.get("/tools/echo"), 405, "method_not_allowed")
        assert (await client.get("/tools/sources?_method=DELETE")).status_code == 200
    assert server.service.seen == [("sources", {})]


async def test_a_list_of_a_thousand_long_descriptions_is_rendered_in_pieces_that_are_paid_for() -> None:
    many = [AgentInfo(name=f"a{n:04}", description="\n" * 16_384, tools=(), source="lua") for n in range(1000)]
    exchange, paid, watch = Exchange({}, trio.CancelScope()), [], LoopWatch()
    exchange.charge = paid.append
    with watched(watch):
        answer = await listed(exchange, "agents", (agent.model_dump() for agent in many))
        await trio.lowlevel.checkpoint()
    assert [agent["name"] for agent in orjson.loads(answer.body)["agents"]] == [agent.name for agent in many]
    assert len(paid) > 20
    assert watch.lag().cpu_s < sum(paid) / 2


async def test_a_list_of_one_piece_is_paid_for_as_well() -> None:
    few = [AgentInfo(name=f"a{n}", description="\n" * 16_384, tools=(), source="lua") for n in range(8)]
    paid: list[float] = []
    for headers in ({}, {b"if-none-match": b"*"}):
        exchange = Exchange(headers, trio.CancelScope())
        exchange.charge = paid.append
        began_s = time.thread_time()
        await listed(exchange, "agents", (agent.model_dump() for agent in few))
        assert sum(paid) > (time.thread_time() - began_s) / 2
        paid.clear()

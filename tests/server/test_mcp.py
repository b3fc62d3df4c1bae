"""MCP over Streamable HTTP: both eras with the official client, and the wire itself where a client would not go."""

import json
from typing import Any

import pytest
import trio
from mcp import MCPError
from mcp_support import MODERN, assert_works, connected, every_mode, handshake, message, modern
from server_support import NULLS, FakeService, Running, assert_envelope, request, serving

from engine.config import ServerConfig

# ---- tools -----------------------------------------------------------------------------------------------------


@every_mode
async def test_tools_are_listed_with_schemas_and_honest_annotations(server: Running, mode: str) -> None:
    async with connected(server, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == sorted(server.service.tools)
    assert tools["search"].annotations.read_only_hint is True
    assert tools["search"].annotations.open_world_hint is False
    assert tools["echo"].annotations.read_only_hint is False
    assert tools["echo"].annotations.destructive_hint is None
    assert tools["echo"].title == "Echo"
    assert all(tool.input_schema["type"] == "object" for tool in tools.values())
    returns = tools["number"].output_schema
    assert returns["type"] == ("object" if mode == "legacy" else "number")


@every_mode
@pytest.mark.parametrize("value", [NULLS, {}, [1, None], "text", 0, False, {"result": 1}])
async def test_a_call_gives_the_value_and_a_text_of_it(server: Running, mode: str, value: Any) -> None:
    async with connected(server, mode) as client:
        result = await client.call_tool("value", {"value": value})
    assert not result.is_error
    wrapped = mode == "legacy" and not isinstance(value, dict)
    assert result.structured_content == ({"result": value} if wrapped else value)
    text = result.content[0].text
    assert text == value if isinstance(value, str) else json.loads(text) == value


@every_mode
async def test_a_value_with_a_declared_schema_is_accepted_by_the_client(server: Running, mode: str) -> None:
    async with connected(server, mode) as client:
        await client.list_tools()
        result = await client.call_tool("number", {})
    assert result.structured_content == ({"result": 42} if mode == "legacy" else 42)


@every_mode
async def test_a_failed_script_and_wrong_arguments_are_results_that_the_model_can_read(
    server: Running, mode: str
) -> None:
    async with connected(server, mode) as client:
        for code in ("bad_request", "tool_error", "timeout", "not_found"):
            result = await client.call_tool("raises", {"code": code})
            assert result.is_error
            assert result.content[0].text == "it failed"
            assert result.meta["engine/error"] == {"code": code, "run_id": "r2"}
        assert not (await client.call_tool("echo", {})).is_error


@every_mode
async def test_an_unknown_tool_is_invalid_params(server: Running, mode: str) -> None:
    async with connected(server, mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("nothing", {})
        assert caught.value.code == -32602
        assert "nothing" in caught.value.message


@every_mode
async def test_a_fault_of_ours_shows_nothing(server: Running, mode: str) -> None:
    async with connected(server, mode) as client:
        for ask in (client.call_tool("bug", {}), client.get_prompt("bug", {})):
            with pytest.raises(MCPError) as caught:
                await ask
            assert caught.value.code == -32603
            assert caught.value.message.startswith("internal error (reference ")
            assert caught.value.data == {"code": "internal", "run_id": None}
        assert not (await client.call_tool("echo", {})).is_error


@every_mode
async def test_progress_only_ever_increases_and_comes_before_the_answer(server: Running, mode: str) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, text: str | None) -> None:
        seen.append((progress, total, text))

    async with connected(server, mode) as client:
        result = await client.call_tool("steps", {}, progress_callback=on_progress)
    assert result.content[0].text == "stepped"
    assert seen == [(0.25, 1.0, "a"), (0.5, 1.0, "b"), (1.0, 1.0, "c")]


# ---- prompts ---------------------------------------------------------------------------------------------------


@every_mode
async def test_agents_are_prompts(server: Running, mode: str) -> None:
    async with connected(server, mode) as client:
        prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
    assert set(prompts) == set(server.service.agents)
    (argument,) = prompts["helper"].arguments
    assert (argument.name, argument.description, argument.required) == ("service", "Which", True)


@every_mode
async def test_the_system_text_is_the_first_message_and_the_raw_prompt_is_in_meta(server: Running, mode: str) -> None:
    async with connected(server, mode) as client:
        result = await client.get_prompt("helper", {"service": "payments"})
    assert result.description == "Helps"
    assert [(each.role, each.content.text) for each in result.messages] == [
        ("user", "You help with payments."),
        ("assistant", "Ready."),
        ("user", "Mind the gap."),
    ]
    assert result.meta["engine/prompt"] == {
        "system": "You help with payments.",
        "tools": ["echo"],
        "messages": [{"role": "assistant", "content": "Ready."}, {"role": "system", "content": "Mind the gap."}],
    }


@every_mode
@pytest.mark.parametrize(("name", "arguments"), [("helper", {}), ("nobody", {})])
async def test_an_unknown_prompt_and_a_missing_argument_are_invalid_params(
    server: Running, mode: str, name: str, arguments: dict[str, str]
) -> None:
    async with connected(server, mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.get_prompt(name, arguments)
    assert caught.value.code == -32602
    assert ("service" if name == "helper" else name) in caught.value.message


@every_mode
async def test_a_failed_agent_shows_its_own_text_and_names_code_and_run(server: Running, mode: str) -> None:
    async with connected(server, mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.get_prompt("broken", {})
    assert caught.value.code == -32603
    assert caught.value.message == "agent.lua:3: no"
    assert caught.value.data["code"] == "agent_error"
    assert caught.value.data["run_id"] == "r1"


# ---- the endpoint of one agent -----------------------------------------------------------------------------------


@every_mode
async def test_an_agents_endpoint_shows_only_what_is_the_agents(server: Running, mode: str) -> None:
    async with connected(server, mode, "?agent=helper") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["echo"]
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["helper"]
        assert (await client.call_tool("echo", {"a": 1})).structured_content == {"a": 1}
        assert (await client.get_prompt("helper", {"service": "x"})).messages
        for ask in (client.call_tool("value", {}), client.get_prompt("broken", {})):
            with pytest.raises(MCPError) as caught:
                await ask
            assert caught.value.code == -32602


async def test_the_endpoint_of_an_unknown_agent_is_404_in_the_envelope(server: Running) -> None:
    async with server.client() as client:
        for query in ("?agent=nobody", "?agent="):
            for ask in (modern("tools/list"), handshake("tools/list")):
                assert_envelope(await client.post(f"/mcp{query}", **ask), 404, "not_found")
            assert_envelope(await client.get(f"/mcp{query}"), 404, "not_found")
        assert_envelope(await client.post("/mcp?agent=a&agent=b", **modern("tools/list")), 400, "bad_request")
    await assert_works(server)


# ---- pages -------------------------------------------------------------------------------------------------------


@every_mode
async def test_long_lists_come_in_pages_that_neither_repeat_nor_skip(mode: str) -> None:
    service = FakeService(extra_tools=600)
    async with serving(service) as server, connected(server, mode) as client:
        names: list[str] = []
        cursor = None
        while True:
            result = await client.list_tools(cursor=cursor)
            names += [tool.name for tool in result.tools]
            cursor = result.next_cursor
            if cursor is None:
                break
            service.tools.pop(names[0], None)  # what was shown already may go
        assert names == sorted(set(names))
        assert len(names) == 609


@pytest.mark.parametrize("cursor", ["", "x", "bm9uc2Vuc2U=", "cHJvbXB0czph", "é", "=" * 1000, "AAAA"])
async def test_a_cursor_that_is_not_ours_is_invalid_params(server: Running, cursor: str) -> None:
    async with server.client() as client:
        for ask in (modern("tools/list", {"cursor": cursor}), handshake("tools/list", {"cursor": cursor})):
            assert message(await client.post("/mcp", **ask))["error"]["code"] == -32602
    await assert_works(server)


# ---- the wire ----------------------------------------------------------------------------------------------------


async def test_the_example_of_the_documentation_works(server: Running) -> None:
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-03-26",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "0.1"},
        },
    }
    for accept in ({"accept": "*/*"}, {"accept": ""}):
        async with server.client() as client:
            ask = client.build_request("POST", "/mcp", json=body, headers=accept)
            if not accept["accept"]:
                del ask.headers["accept"]
            result = message(await client.send(ask))["result"]
        assert result["protocolVersion"] == "2025-03-26"
        assert result["serverInfo"]["name"] == "engine"
        assert set(result["capabilities"]) >= {"tools", "prompts"}


async def test_discovery_and_lists_are_private_to_the_caller(server: Running) -> None:
    async with server.client() as client:
        for method in ("server/discover", "tools/list", "prompts/list"):
            result = message(await client.post("/mcp", **modern(method)))["result"]
            assert result["cacheScope"] == "private"
            assert result["ttlMs"] >= 0
            assert result["resultType"] == "complete"
        found = message(await client.post("/mcp", **modern("server/discover")))["result"]
    assert found["supportedVersions"] == [MODERN]


@pytest.mark.parametrize("version", [None, "2025-11-25", "2025-03-26", MODERN])
async def test_batches_are_refused(server: Running, version: str | None) -> None:
    headers = {"accept": "application/json, text/event-stream"} | ({"mcp-protocol-version": version} if version else {})
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {}}}
    async with server.client() as client:
        response = await client.post("/mcp", json=[call, call], headers=headers)
        assert response.status_code == 400
        assert message(response)["error"]["code"] == -32600
    assert server.service.seen == []
    await assert_works(server)


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff", -32700),
        (b"[" * 100_000, -32700),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}', -32700),
        (b"null", -32600),
        (b"[]", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
    ],
)
async def test_what_is_not_a_message_is_a_json_rpc_error_in_our_words(
    server: Running, version: str, body: bytes, code: int
) -> None:
    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": version,
    }
    async with server.client() as client:
        response = await client.post("/mcp", content=body, headers=headers)
    assert response.status_code == 400
    answer = response.json()
    assert answer["jsonrpc"] == "2.0"
    assert "id" in answer
    assert answer["error"]["code"] == code
    assert "pydantic" not in response.text
    await assert_works(server)


async def test_another_content_type_is_415(server: Running) -> None:
    async with server.client() as client:
        for content_type in ("text/plain", "application/x-www-form-urlencoded"):
            response = await client.post("/mcp", content=b"{}", headers={"content-type": content_type})
            assert_envelope(response, 415, "unsupported_media_type")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "HEAD"])
async def test_other_methods_are_405(server: Running, method: str) -> None:
    async with server.client() as client:
        response = await client.request(method, "/mcp")
        assert response.status_code == 405
        assert "POST" in response.headers["allow"]
        if method != "HEAD":
            assert_envelope(response, 405, "method_not_allowed")
        response = await client.get("/mcp", headers={"mcp-protocol-version": MODERN})
        assert_envelope(response, 405, "method_not_allowed")


@pytest.mark.parametrize(
    ("method", "status", "code"),
    [("resources/nothing", 404, -32601), ("ping", 404, -32601), ("no/such", 404, -32601)],
)
async def test_an_unknown_method_is_404_and_method_not_found(
    server: Running, method: str, status: int, code: int
) -> None:
    async with server.client() as client:
        response = await client.post("/mcp", **modern(method))
    assert response.status_code == status
    assert message(response)["error"]["code"] == code


async def test_headers_that_contradict_the_body_are_refused(server: Running) -> None:
    async with server.client() as client:
        ask = modern("tools/call", {"name": "echo", "arguments": {}}, **{"mcp-name": "value"})
        response = await client.post("/mcp", **ask)
        assert response.status_code == 400
        assert message(response)["error"]["code"] == -32020
        ask = modern("tools/list", **{"mcp-protocol-version": "2099-01-01"})
        response = await client.post("/mcp", **ask)
        assert response.status_code == 400
    assert server.service.seen == []


async def test_a_trailing_slash_is_the_same_endpoint(server: Running) -> None:
    async with server.client() as client:
        assert "tools" in message(await client.post("/mcp/", **modern("tools/list")))["result"]


async def test_a_body_of_mcp_is_bounded_too() -> None:
    async with serving(FakeService(ServerConfig(max_body_bytes=1000))) as server, server.client() as client:
        ask = modern("tools/call", {"name": "echo", "arguments": {"a": "x" * 2000}})
        assert_envelope(await client.post("/mcp", **ask), 413, "too_large")


# ---- clients that leave ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", [modern, handshake])
@pytest.mark.parametrize(
    ("method", "params"), [("tools/call", {"name": "slow", "arguments": {}}), ("prompts/get", {"name": "slow"})]
)
@pytest.mark.parametrize("token", [None, "t"])
async def test_a_client_that_leaves_cancels_its_work(
    server: Running, era: Any, method: str, params: dict[str, Any], token: str | None
) -> None:
    ask = era(method, params)
    if token is not None:
        ask["json"]["params"]["_meta"] = {**ask["json"]["params"].get("_meta", {}), "progressToken": token}
    body = json.dumps(ask["json"]).encode()
    async with await server.connect() as stream:
        await stream.send_all(request("POST", "/mcp", body, *(f"{k}: {v}" for k, v in ask["headers"].items())))
        with trio.fail_after(20):
            await server.service.entered.wait()
    with trio.fail_after(20):
        await server.service.cancelled.wait()
    await assert_works(server)


# A handshake client says `notifications/cancelled` on another request; a server without sessions cannot tell whose
# number that is, so there only closing the stream cancels.
@pytest.mark.parametrize("mode", ["auto", "2026-07-28"])
async def test_a_cancelled_call_of_the_client_cancels_the_work(server: Running, mode: str) -> None:
    async with connected(server, mode) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "slow", {})
            with trio.fail_after(20):
                await server.service.entered.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(20):
            await server.service.cancelled.wait()
        assert not (await client.call_tool("echo", {})).is_error


async def test_a_silent_stream_is_held_and_ends_at_once_when_the_server_drains(server: Running) -> None:
    async with server.client() as client:
        ask = client.stream("GET", "/mcp", headers={"accept": "text/event-stream"})
        async with ask as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            server.stop.set()
            with trio.fail_after(5):
                assert await response.aread() == b""  # and no broken connection: the stream was complete
    with trio.fail_after(20):
        await server.ended.wait()


async def test_an_answer_in_flight_is_finished_when_the_server_drains(server: Running) -> None:
    async with server.client() as client, trio.open_nursery() as nursery:

        async def call() -> None:
            ask = modern("tools/call", {"name": "slow", "arguments": {}})
            assert message(await client.post("/mcp", **ask))["result"]["structuredContent"] == "done"

        nursery.start_soon(call)
        with trio.fail_after(20):
            await server.service.entered.wait()
            server.stop.set()
            await trio.testing.wait_all_tasks_blocked(0.02)
            server.service.release.set()
            await server.ended.wait()

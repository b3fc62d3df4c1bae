"""The front ends on the real thing: scripts in workers, over REST and MCP."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import trio
from mcp import Client, MCPError
from server_support import Running, assert_envelope, request, serving

from agents.service import open_service
from engine.config import load_config

CONFIG = """
[db]
path = "knowledge.sqlite"
[embedding]
provider = "disabled"
[sandbox]
workers = 1
reserve = 1
[agents.static]
description = "Static"
tools = ["search", "nothing"]
system_prompt = "You are static."
[agents.script.echo]
path = "echo.lua"
[agents.script.forever]
path = "forever.lua"
limits = { timeout_s = 60, cpu_s = 60 }
[agents.script.hasty]
path = "forever.lua"
timeout = 0.2
[agents.script.raises]
path = "raises.lua"
[agents.script.steps]
path = "steps.lua"
[agents.script.missing]
path = "missing.lua"
"""
SCRIPTS = {
    "echo.lua": """
agent = { description = "Echo", tools = { "search", "get" }, arguments = { { name = "service", required = true } } }
function agent.resolve(args)
  return { system = json.encode(args), messages = { { role = "assistant", content = "Ready." } } }
end
""",
    "forever.lua": "agent = { tools = {}, resolve = function() while true do end end }",
    "raises.lua": "agent = { tools = {}, resolve = function()\n  error('no luck')\nend }",
    "steps.lua": """
agent = { tools = {} }
function agent.resolve(args, config, context)
  for i = 1, 4 do context.progress(i / 4, "step " .. i) end
  return { system = "stepped" }
end
""",
}


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Running]:
    (tmp_path / "engine.toml").write_text(CONFIG)
    for name, source in SCRIPTS.items():
        (tmp_path / name).write_text(source)
    loaded = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path)
    async with open_service(loaded) as service, serving(service) as running:  # type: ignore[arg-type]
        yield running


async def assert_works(server: Running) -> None:
    """With one worker, the next run starts only when the one before it has let go of it."""
    async with server.client() as client:
        response = await client.post("/agents/echo/prompt", json={"service": "x"})
        assert json.loads(response.json()["system"]) == {"service": "x"}


async def test_every_front_end_gives_the_same_prompt(real: Running) -> None:
    arguments = {"service": "payments"}
    async with real.client() as client:
        flat = (await client.post("/agents/echo/prompt", json=arguments)).json()
        wrapped = (await client.post("/agents/echo/prompt", json={"arguments": arguments})).json()
    assert wrapped == {"result": flat}
    assert flat["tools"] == ["search", "get"]
    for mode in ("auto", "legacy"):
        async with Client(f"{real.url}/mcp", mode=mode) as mcp:
            result = await mcp.get_prompt("echo", arguments)
            assert result.meta["engine/prompt"] == flat
            assert [message.role for message in result.messages] == ["user", "assistant"]


async def test_lists_health_limits_and_metrics_are_there(real: Running) -> None:
    async with real.client() as client:
        agents = (await client.get("/agents/list")).json()["agents"]
        assert [agent["name"] for agent in agents] == ["static", "echo", "forever", "hasty", "raises", "steps"]
        tools = (await client.get("/tools/list", params={"agent": "echo"})).json()["tools"]
        assert {tool["name"] for tool in tools} == {"search", "get"}
        health = (await client.get("/health")).json()
        assert health["status"] == "ok"
        assert health["scripts_failing"] == 1
        assert health["layers"]
        assert (await client.get("/limits")).json()["limits"]["cpu_s"]["unit"] == "s"
        metrics = (await client.get("/metrics")).text
        assert "engine_runs_total" in metrics
        assert "sandbox_layer_active" in metrics
        assert (await client.post("/tools/search", json={"query": "x"})).json() == {"results": []}
        assert (await client.get("/tools/sources")).json() == {"sources": []}


async def test_failures_are_told_by_code_and_the_next_run_works(real: Running) -> None:
    async with real.client() as client:
        post = client.post
        error = assert_envelope(await post("/agents/raises/prompt", json={}), 500, "agent_error")
        assert "raises.lua:2: no luck" in error["message"]
        assert error["run_id"]
        error = assert_envelope(await post("/agents/hasty/prompt", json={}), 408, "timeout")
        assert error["limit"]["name"] == "timeout_s"
        assert error["limit"]["source"] == "script"
        assert "service" in assert_envelope(await post("/agents/echo/prompt"), 400, "bad_request")["message"]
        assert "load" in assert_envelope(await post("/agents/missing/prompt"), 404, "not_found")["message"]
        assert_envelope(await post("/tools/search", json={"query": ""}), 400, "bad_request")
        assert_envelope(
            await post("/tools/search", json={"query": "x", "mode": "semantic"}), 400, "embeddings_disabled"
        )
        assert_envelope(await post("/tools/get", json={"id": "x"}), 404, "not_found")
        assert_envelope(await post("/tools/sources?agent=echo", json={}), 403, "tool_not_allowed")
    await assert_works(real)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_mcp_tells_failures_as_results_and_errors(real: Running, mode: str) -> None:
    async with Client(f"{real.url}/mcp", mode=mode) as mcp:
        for arguments in ({}, {"query": 5}, {"query": "x", "limit": "1000"}):
            assert (await mcp.call_tool("search", arguments)).is_error
        assert (await mcp.call_tool("get", {"id": "x"})).is_error
        assert (await mcp.call_tool("search", {"query": "x"})).structured_content == {"results": []}
        with pytest.raises(MCPError) as caught:
            await mcp.get_prompt("raises")
        assert caught.value.code == -32603
        assert caught.value.data["run_id"]
        assert "no luck" in caught.value.message
        for name in ("echo", "missing", "nobody"):
            with pytest.raises(MCPError) as caught:
                await mcp.get_prompt(name)
            assert caught.value.code == -32602
    await assert_works(real)


async def test_progress_of_a_run_reaches_the_client(real: Running) -> None:
    ask = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "prompts/get",
        "params": {"name": "steps", "_meta": {"progressToken": "t"}},
    }
    async with real.client() as client:
        response = await client.post("/mcp", json=ask)
    told = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    assert [each["params"]["progress"] for each in told[:-1]] == [0.25, 0.5, 0.75, 1.0]
    assert [each["params"]["message"] for each in told[:-1]] == ["step 1", "step 2", "step 3", "step 4"]
    assert told[-1]["result"]["messages"][0]["content"]["text"] == "stepped"


@pytest.mark.parametrize("path", ["/agents/forever/prompt", "/mcp"])
async def test_a_client_that_leaves_frees_the_worker(real: Running, path: str) -> None:
    body = b"{}"
    if path == "/mcp":
        body = b'{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"forever"}}'
    async with await real.connect() as stream:
        await stream.send_all(request("POST", path, body, "Accept: */*"))
        with trio.fail_after(20):
            async with real.client() as client:
                while not (await client.get("/health")).json()["workers"]["leased"]:
                    pass
    with trio.fail_after(9):  # sooner than the queue gives up
        await assert_works(real)


async def test_arguments_of_every_shape_get_through_or_are_refused(real: Running) -> None:
    async with real.client(headers={"Content-Type": "application/json"}) as client:

        async def ask(raw: bytes) -> httpx2.Response:
            return await client.post("/agents/echo/prompt", content=b'{"service": "x", "a": %s}' % raw)

        for raw in (
            b"null",
            b"[]",
            b"{}",
            b"-0.0",
            b"1e308",
            b"9223372036854775807",
            b'"\\u0000\\ud83d\\ude00"',
            b"[[1]]",
        ):
            response = await ask(raw)
            assert response.is_success, response.text
            echoed = json.loads(response.json()["system"])
            assert echoed.get("a") == json.loads(raw)
        for raw in (b"18446744073709551615", b"123456789012345678901234567890"):
            assert json.loads((await ask(raw)).json()["system"])["a"] == float(raw)
        for raw in (b"NaN", b"1e400", b'"\\ud800"', b"[" * 300 + b"]" * 300):
            assert_envelope(await ask(raw), 400, "bad_request")
    async with Client(f"{real.url}/mcp", mode="legacy") as mcp:
        assert not (await mcp.call_tool("search", {"query": "x", "limit": 2**70})).is_error
    await assert_works(real)

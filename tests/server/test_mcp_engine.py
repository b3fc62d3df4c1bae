"""MCP on the real thing: scripts in workers that report, call, complete and are left alone in the middle."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from asking_support import call, send
from mcp import Client
from mcp_support import events, every_mode, message, modern
from mcp_types import PromptReference
from server_support import Running, request, serving

from agents.service import open_service
from engine.config import load_config

CONFIG = """
[db]
path = "knowledge.sqlite"
[sandbox]
workers = 1
reserve = 0
[agents.script.oncall]
path = "oncall.lua"
expose = ["prompt", "tool"]
[tools.script.looking]
path = "looking.lua"
[tools.script.forever]
path = "forever.lua"
limits = { timeout_s = 60, cpu_s = 60 }
"""
SCRIPTS = {
    "oncall.lua": """
agent = { title = "On call", description = "Helps", tools = { "search" }, arguments = {
    { name = "service", required = true }, { name = "severity", enum = { "P1", "P2" } } } }
function agent.resolve(args) return { system = "On call for " .. args.service } end
function agent.complete(argument, value, context)
    if argument == "service" then return { value .. "-" .. (context.arguments.severity or "?") } end
end
""",
    "looking.lua": """
tool = { annotations = { readOnlyHint = true, openWorldHint = false } }
function tool.execute(params, context)
    for _ = 1, 5 do context.search("x") end
    return { looked = 5 }
end
""",
    "forever.lua": "tool = {}\nfunction tool.execute() while true do end end",
}


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Running]:
    (tmp_path / "engine.toml").write_text(CONFIG)
    for name, source in SCRIPTS.items():
        (tmp_path / name).write_text(source)
    loaded = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path)
    async with open_service(loaded) as service, serving(service) as running:  # type: ignore[arg-type]
        assert service.failures == ()
        yield running


async def assert_works(server: Running) -> None:
    """With one worker, the next run starts only when the one before it has let go of it."""
    async with server.client() as client:
        answer = await client.post("/mcp", **modern("tools/call", {"name": "looking", "arguments": {}}))
    assert message(answer)["result"]["structuredContent"] == {"looked": 5}


@every_mode
async def test_an_agent_is_prompt_and_tool_with_its_title_and_completes(real: Running, mode: str) -> None:
    async with Client(f"{real.url}/mcp", mode=mode) as client:
        (prompt,) = (await client.list_prompts()).prompts
        assert (prompt.name, prompt.title) == ("oncall", "On call")
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["oncall"].title == "On call"
        assert tools["oncall"].input_schema["properties"]["severity"]["enum"] == ["P1", "P2"]
        assert tools["looking"].annotations.read_only_hint is True
        called = await client.call_tool("oncall", {"service": "api"})
        raw = (await client.get_prompt("oncall", {"service": "api"})).meta["engine/prompt"]
        assert called.structured_content == raw == {"system": "On call for api", "tools": ["search"], "messages": []}
        assert (await client.call_tool("oncall", {"service": "api", "severity": "P9"})).is_error
        ref = PromptReference(name="oncall")
        found = await client.complete(ref, {"name": "service", "value": "pay"}, {"severity": "P1"})
        assert found.completion.values == ["pay-P1"]
        found = await client.complete(ref, {"name": "severity", "value": "p"})
        assert found.completion.values == ["P1", "P2"]


async def test_a_long_run_tells_its_host_calls(real: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.mcp.progress.LONG_S", 0.0)
    monkeypatch.setattr("server.mcp.progress.EVERY_S", 0.0)
    ask = modern("tools/call", {"name": "looking", "arguments": {}})
    ask["json"]["params"]["_meta"] = {**ask["json"]["params"]["_meta"], "progressToken": "t"}
    async with real.client() as client:
        told = events((await client.post("/mcp", **ask)).text)
    values = [each["params"]["progress"] for each in told[:-1]]
    assert [each["params"]["message"] for each in told[:-1]] == ["context.search"] * 5
    assert values == sorted(set(values))
    assert told[-1]["result"]["structuredContent"] == {"looked": 5}


@pytest.mark.parametrize("token", [None, "t"])
async def test_a_client_that_leaves_a_call_frees_its_worker(real: Running, token: str | None) -> None:
    ask: dict[str, Any] = modern("tools/call", {"name": "forever", "arguments": {}})
    if token is not None:
        ask["json"]["params"]["_meta"] = {**ask["json"]["params"]["_meta"], "progressToken": token}
    body = json.dumps(ask["json"]).encode()
    headers = [f"{name}: {value}" for name, value in ask["headers"].items()]
    async with await real.connect() as stream:
        await stream.send_all(request("POST", "/mcp", body, *headers))
        with trio.fail_after(20):
            async with real.client() as client:
                while not (await client.get("/health")).json()["workers"]["leased"]:
                    pass
    with trio.fail_after(9):  # sooner than the queue gives up
        await assert_works(real)


async def test_a_run_that_became_a_task_counts_as_a_run_and_its_cancel_frees_the_worker(
    real: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.mcp.tasks.LATE_S", 0.1)
    created = (await send(real, "tools/call", call("forever")))["result"]
    assert created["resultType"] == "task"
    async with real.client() as client:
        assert (await client.get("/health")).json()["workers"]["leased"] == 1
    await send(real, "tasks/cancel", {"taskId": created["taskId"]})
    with trio.fail_after(9):  # sooner than the queue gives up
        await assert_works(real)
    monkeypatch.setattr("server.mcp.tasks.LATE_S", 0.0)
    created = (await send(real, "tools/call", call("looking")))["result"]
    with trio.fail_after(9):
        while (told := (await send(real, "tasks/get", {"taskId": created["taskId"]}))["result"])["status"] == "working":
            pass
    assert told["result"]["structuredContent"] == {"looked": 5}


async def test_an_agents_address_is_its_prompt_its_tools_and_itself_as_a_tool(real: Running) -> None:
    async with Client(f"{real.url}/mcp?agent=oncall", mode="2026-07-28") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["oncall", "search"]
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["oncall"]
        assert (await client.list_resources()).resources == []  # it may search, not get
        called = await client.call_tool("oncall", {"service": "x"})
        assert called.structured_content["system"] == "On call for x"

"""REST and MCP need nothing but `Calls` to serve agents and tools: here the service is not in the process at all."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from mcp import Client
from mcp_support import ANY_OBJECT, every_mode, fill
from mcp_support import document as made
from server_support import assert_envelope

from agents.agent import AgentArgument, AgentInfo, AgentPrompt, Call, Resolved
from agents.calls import Calls
from agents.changes import Changes
from agents.documents import Documents
from agents.tool import Called, ToolInfo
from engine.config import ServerConfig
from engine.errors import Code, Problem
from engine.tenant import Tenant
from knowledge.sqlite.store import open_store
from knowledge.store import BrowsableStore
from server.app import listen, open_front, serve_app
from server.http.auth import Auth
from server.rest.routes import Calling, Rest

GREETER = AgentInfo(
    name="greeter", description="Greets", tools=("add",), source="lua", arguments=(AgentArgument(name="whom"),)
)
TOOLS = {
    name: ToolInfo(name=name, description="", builtin=name == "get", parameters=ANY_OBJECT)
    for name in ("add", "apart", "get")
}


class Elsewhere:
    """Two agents' worth of calls, without an engine, a registry or a control store."""

    def __init__(self, store: BrowsableStore) -> None:
        self._store = store
        self.changes = Changes()
        self.inside = 0

    @asynccontextmanager
    async def published(self, tenant: Tenant) -> AsyncIterator[None]:
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def list_agents(self, tenant: Tenant) -> list[AgentInfo]:
        return [GREETER]

    def agent_info(self, tenant: Tenant, name: str) -> AgentInfo | None:
        return GREETER if name == GREETER.name else None

    def list_tools(self, tenant: Tenant, agent: str | None = None) -> list[ToolInfo]:
        if agent is not None:
            self._known(agent)
        return [tool for tool in TOOLS.values() if agent is None or tool.name in GREETER.tools]

    def tool_info(self, tenant: Tenant, name: str) -> ToolInfo | None:
        return TOOLS.get(name)

    def documents(self, tenant: Tenant) -> Documents:
        return Documents(self._store, tenant.reader)

    async def complete(
        self, name: str, argument: str, value: str, given: Mapping[str, str], call: Call
    ) -> tuple[str, ...] | None:
        self._known(name)
        return (f"{value}ilbo",)

    async def resolve(self, name: str, arguments: Mapping[str, Any], call: Call) -> Resolved:
        self._known(name)
        assert self.inside
        return Resolved(AgentPrompt(system=f"Greet {arguments['whom']} of {call.tenant.id}.", tools=GREETER.tools))

    async def call_tool(self, name: str, params: Mapping[str, Any], call: Call, agent: str | None = None) -> Called:
        if agent is not None and name not in GREETER.tools:
            raise Problem(Code.TOOL_NOT_ALLOWED, f"agent '{agent}' may not use the tool '{name}'")
        assert self.inside
        return Called({"sum": params["a"] + params["b"]})

    def _known(self, name: str) -> None:
        if name != GREETER.name:
            raise Problem(Code.NOT_FOUND, f"no agent registered with name: {name}")


@asynccontextmanager
async def front_of(calls: Calls) -> AsyncIterator[str]:
    """The URL of a front end with these calls and no service."""
    settings = ServerConfig()
    answering = Rest(Calling(calls).routes())
    auth = Auth(answering.table, None, lambda tenant: None)
    async with (
        await listen("127.0.0.1", 0) as listener,
        open_front(calls, answering, auth, settings, "127.0.0.1") as guard,
        trio.open_nursery() as nursery,
    ):

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            await serve_app(guard, listener, trio.Event(), graceful_timeout_s=1.0, task_status=task_status)

        await nursery.start(serve)
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with open_store(tmp_path / "documents.db", create=True) as store:
        await fill(store, made("shire", "green hills"))
        calls = Elsewhere(store)
        async with front_of(calls) as url:
            yield url
        assert calls.inside == 0


async def test_rest_serves_calls_that_another_implementation_answers(url: str) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=20) as client:
        agents = (await client.get("/agents/list")).json()["agents"]
        tools = (await client.get("/tools/list", params={"agent": "greeter"})).json()["tools"]
        prompt = await client.post("/agents/greeter/prompt", json={"whom": "Frodo"})
        called = await client.post("/tools/add", json={"a": 20, "b": 22})
        refused = await client.post("/tools/apart", params={"agent": "greeter"}, json={})
        unknown = await client.post("/agents/missing/prompt", json={})
    assert [agent["name"] for agent in agents] == ["greeter"]
    assert [tool["name"] for tool in tools] == ["add"]
    assert prompt.json()["system"] == "Greet Frodo of default."
    assert called.json() == {"result": {"sum": 42}}
    assert_envelope(refused, 403, "tool_not_allowed")
    assert_envelope(unknown, 404, "not_found")


async def test_what_only_a_service_knows_is_not_served_without_one(url: str) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=20) as client:
        assert [(await client.get(path)).status_code for path in ("/health", "/limits", "/metrics")] == [404, 404, 404]


@every_mode
async def test_mcp_serves_calls_that_another_implementation_answers(url: str, mode: str) -> None:
    async with Client(f"{url}/mcp", mode=mode) as client:
        tools = (await client.list_tools()).tools
        prompt = await client.get_prompt("greeter", {"whom": "Sam"})
        called = await client.call_tool("add", {"a": 1, "b": 2})
        (listed,) = (await client.list_resources()).resources
        (read,) = (await client.read_resource(listed.uri)).contents
    assert {tool.name for tool in tools} == set(TOOLS)
    assert prompt.messages[0].content.text == "Greet Sam of default."  # type: ignore[union-attr]
    assert called.structured_content == {"sum": 3}
    assert read.text == "green hills"  # type: ignore[union-attr]

"""What the tests of MCP share: messages of both eras, the official client, and a service with documents."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
import trio.testing
from mcp import Client
from server_support import ANY_OBJECT, FakeService, Running, serving

from agents.agent import AgentArgument, AgentInfo, AgentPrompt, Call, Resolved
from agents.tool import Called, ToolInfo
from engine.errors import Code, Problem
from knowledge.sqlite.store import SqliteStore, open_store
from knowledge.store import Batch, NewDocument

MODES = ("legacy", "auto", "2026-07-28")
MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}

every_mode = pytest.mark.parametrize("mode", MODES)


@asynccontextmanager
async def connected(server: Running, mode: str, query: str = "") -> AsyncIterator[Client]:
    async with Client(f"{server.url}/mcp{query}", mode=mode) as client:
        yield client


def modern(method: str, params: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
    """Headers and body of a request of 2026-07-28, for httpx2."""
    params = {**(params or {}), "_meta": META}
    named = {"mcp-name": params["name"]} if "name" in params else {}
    return {
        "headers": {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": MODERN,
            "mcp-method": method,
            **named,
            **headers,
        },
        "json": {"jsonrpc": "2.0", "id": 1, "method": method, "params": params},
    }


def handshake(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    """Headers and body of a request of 2025-11-25, for httpx2."""
    return {
        "headers": {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"},
        "json": {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}},
    }


def message(response: httpx2.Response) -> dict[str, Any]:
    """The last JSON-RPC message of an answer, plain or streamed."""
    if response.headers["content-type"].startswith("text/event-stream"):
        data = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        return dict(json.loads(data[-1]))
    return dict(response.json())


async def assert_works(server: Running) -> None:
    async with server.client() as client:
        answer = message(await client.post("/mcp", **modern("tools/call", {"name": "number", "arguments": {}})))
    assert answer["result"]["structuredContent"] == 42


def events(text: str) -> list[dict[str, Any]]:
    """The JSON-RPC messages of an event stream."""
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the server does by itself."""
    with trio.fail_after(20):
        while not condition():
            await trio.testing.wait_all_tasks_blocked(0.005)


class Listening:
    """A `subscriptions/listen` stream, read event by event as it comes."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.acknowledged: dict[str, Any] = {}
        self._lines = response.aiter_lines()

    async def next(self) -> dict[str, Any]:
        """The next message. Raises StopAsyncIteration at the end."""
        with trio.fail_after(20):
            while True:
                line = await anext(self._lines)
                if line.startswith("data: "):
                    return dict(json.loads(line[6:]))


@asynccontextmanager
async def listening(server: Running, query: str = "", **wanted: Any) -> AsyncIterator[Listening]:
    """An open stream and its acknowledgement, which is the first message."""
    ask = modern("subscriptions/listen", {"notifications": wanted})
    async with server.client() as client, client.stream("POST", f"/mcp{query}", **ask) as response:
        stream = Listening(response)
        first = await stream.next()
        assert first["method"] == "notifications/subscriptions/acknowledged", first
        stream.acknowledged = first["params"]["notifications"]
        yield stream


def document(source_id: str, body: str = "text", **fields: Any) -> NewDocument:
    fields.setdefault("title", source_id)
    return NewDocument(source_id=source_id, body=body, chunks=(body,), digest=body, **fields)


async def fill(store: SqliteStore, *documents: NewDocument, source: str = "filesystem:notes") -> None:
    await store.apply(Batch(source=source, upserts=documents))


@dataclass
class Library(FakeService):
    """A service with documents in a real store, an agent that may read them, and agents offered as tools."""

    completed: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tools["get"] = ToolInfo(name="get", description="Get", builtin=True, parameters=ANY_OBJECT)
        for name in ("both", "tool-only"):
            self.tools[name] = ToolInfo(name=name, description="An agent", builtin=False, parameters=ANY_OBJECT)
        self.agents["reader"] = AgentInfo(name="reader", description="Reads", tools=("get",), source="toml")
        severity = AgentArgument(name="severity", enum=("P1 outage", "P2 degraded", "not a P1"))
        self.agents["both"] = AgentInfo(
            name="both",
            description="A prompt and a tool",
            tools=("echo",),
            source="lua",
            title="Both of them",
            arguments=(severity, AgentArgument(name="service")),
            expose=("prompt", "tool"),
        )
        self.agents["tool-only"] = AgentInfo(
            name="tool-only", description="A tool", tools=(), source="lua", expose=("tool",)
        )

    async def complete(self, name: str, argument: str, value: str, given: Any, call: Call) -> tuple[str, ...] | None:
        await super().complete(name, argument, value, given, call)
        self.completed.append((name, argument, value, dict(given)))
        if (name, argument) == ("both", "service"):
            return tuple(f"{value}{n}" for n in range(150 if value == "many" else 2))
        if argument == "broken":
            raise Problem(Code.AGENT_ERROR, "agent 'both': no", run_id="r9")
        return None

    async def resolve(self, name: str, arguments: Any, call: Call) -> Resolved:
        if name in ("both", "tool-only", "reader"):
            return Resolved(AgentPrompt(system=f"You are {name}.", tools=()))
        return await super().resolve(name, arguments, call)

    async def call_tool(self, name: str, params: Any, call: Call, agent: str | None = None) -> Called:
        if name in ("both", "tool-only"):
            if agent is not None and name not in self.agents[agent].tools:
                raise Problem(Code.TOOL_NOT_ALLOWED, f"agent {agent!r} may not use the tool {name!r}")
            return Called((await self.resolve(name, params, call)).prompt.model_dump(mode="json"))
        return await super().call_tool(name, params, call, agent)


@asynccontextmanager
async def library(path: Path, *documents: NewDocument) -> AsyncIterator[Running]:
    """A server with these documents in the source `filesystem:notes`."""
    async with open_store(path / "store.sqlite", create=True) as store:
        await fill(store, *documents)
        async with serving(Library(store=store)) as running:
            yield running

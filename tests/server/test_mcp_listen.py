"""`subscriptions/listen`: what a stream tells, to whom, how many there may be, and how each ends."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
import trio.testing
import warm_start
from mcp import Client
from mcp_support import (
    META,
    Listening,
    assert_works,
    connected,
    document,
    fill,
    handshake,
    library,
    listening,
    message,
    modern,
    until,
)
from mcp_types import SubscriptionFilter, SubscriptionsListenRequestParams
from server_support import FakeService, Running, request, serving

from agents.changes import Change
from agents.documents import Documents
from engine.tenant import Tenant
from knowledge.sqlite.store import open_store
from knowledge.store import Batch
from server.mcp.caller import Caller
from server.mcp.listen import PROMPTS_CHANGED, TOOLS_CHANGED, WATCHED, Listeners
from server.mcp.shapes import uri_of

ID = "io.modelcontextprotocol/subscriptionId"
EVERYTHING = Change(agents=True, tools=True)


@pytest.fixture
async def shelves(tmp_path: Path) -> AsyncIterator[Running]:
    async with library(tmp_path, document("a"), document("b")) as running:
        yield running


async def uris(server: Running) -> list[str]:
    async with server.client() as client:
        listed = message(await client.post("/mcp", **modern("resources/list")))["result"]["resources"]
    return [each["uri"] for each in listed]


async def quiet(stream: Listening, server: Running) -> None:
    """No message comes before the next one that is sent on purpose."""
    server.mcp.listeners.tell(TOOLS_CHANGED)
    assert (await stream.next())["method"] == "notifications/tools/list_changed"


# ---- notifications -----------------------------------------------------------------------------------------------


async def test_the_acknowledgement_names_what_will_be_told_and_every_message_its_stream(shelves: Running) -> None:
    first, second = await uris(shelves)
    asked = {"toolsListChanged": True, "resourceSubscriptions": [first, "file:///etc/passwd", second]}
    async with listening(shelves, **asked) as stream:
        assert stream.acknowledged == {"toolsListChanged": True, "resourceSubscriptions": [first, second]}
        shelves.mcp.listeners.hear(EVERYTHING)
        told = await stream.next()
        assert told["method"] == "notifications/tools/list_changed"
        assert told["params"]["_meta"] == {ID: 1}
        await quiet(stream, shelves)  # of the prompts, that changed too, nothing was told


async def test_changes_while_the_reader_is_away_are_told_once(shelves: Running) -> None:
    async with listening(shelves, toolsListChanged=True, promptsListChanged=True) as stream:
        for _ in range(1000):
            shelves.mcp.listeners.hear(EVERYTHING)
        told = [(await stream.next())["method"] for _ in range(2)]
        assert told == ["notifications/tools/list_changed", "notifications/prompts/list_changed"]
        shelves.mcp.listeners.tell(PROMPTS_CHANGED)
        assert (await stream.next())["method"] == "notifications/prompts/list_changed"


async def test_documents_that_came_changed_or_went_are_told(shelves: Running) -> None:
    first, second = await uris(shelves)
    store = shelves.service.store
    async with listening(shelves, resourcesListChanged=True, resourceSubscriptions=[first, second]) as stream:
        await fill(store, document("c"))
        assert (await stream.next())["method"] == "notifications/resources/list_changed"
        await fill(store, document("a", "changed"))
        told = [await stream.next() for _ in range(2)]
        assert [each["method"] for each in told] == [
            "notifications/resources/list_changed",
            "notifications/resources/updated",
        ]
        assert told[1]["params"]["uri"] == first
        await store.apply(Batch(source="filesystem:notes", deletes=["b"]))
        assert [(await stream.next())["params"].get("uri") for _ in range(2)] == [None, second]


async def test_a_change_that_another_process_makes_is_told(shelves: Running, tmp_path: Path) -> None:
    async with listening(shelves, resourcesListChanged=True) as stream:
        async with open_store(tmp_path / "store.sqlite") as other:
            await fill(other, document("z"))
        assert (await stream.next())["method"] == "notifications/resources/list_changed"


async def test_an_agents_address_tells_of_documents_only_what_it_shows(shelves: Running) -> None:
    first, _ = await uris(shelves)
    asked: dict[str, Any] = {"resourcesListChanged": True, "resourceSubscriptions": [first], "toolsListChanged": True}
    async with listening(shelves, "?agent=reader", **asked) as stream:
        assert stream.acknowledged == asked
    async with listening(shelves, "?agent=helper", **asked) as stream:
        assert stream.acknowledged == {"toolsListChanged": True}
        await fill(shelves.service.store, document("a", "changed"))
        await quiet(stream, shelves)


async def test_of_very_many_documents_the_first_ones_are_watched(shelves: Running) -> None:
    many = [uri_of(f"id{n}") for n in range(WATCHED + 50)]
    async with listening(shelves, resourceSubscriptions=many) as stream:
        assert stream.acknowledged == {"resourceSubscriptions": many[:WATCHED]}


async def test_a_tenants_changes_are_sent_to_no_other_tenant(tmp_path: Path) -> None:
    listeners = Listeners()
    heard: list[str] = []

    class Session:
        async def send_notification(self, told: Any, related_request_id: Any) -> None:
            heard.append(f"{related_request_id} {told.method}")

    class Context:
        session = Session()

    async def listen(name: str) -> None:
        context = Context()
        context.request_id = name  # type: ignore[attr-defined]
        caller = Caller(Tenant(name), None, lambda callback: None)
        wanted = SubscriptionFilter(tools_list_changed=True)
        params = SubscriptionsListenRequestParams(notifications=wanted, _meta=META)
        await listeners.serve(context, params, caller, None)  # type: ignore[arg-type]

    async with trio.open_nursery() as nursery:
        for name in ("acme", "other"):
            nursery.start_soon(listen, name)
        await trio.testing.wait_all_tasks_blocked()
        heard.clear()
        listeners.tell(TOOLS_CHANGED, tenant_id="acme")
        await trio.testing.wait_all_tasks_blocked()
        assert heard == ["acme notifications/tools/list_changed"]
        nursery.cancel_scope.cancel()
    assert len(listeners) == 0


# ---- how many, and how each ends ---------------------------------------------------------------------------------


async def test_when_the_server_drains_every_stream_gets_what_waits_and_a_final_result(server: Running) -> None:
    async with listening(server, toolsListChanged=True) as stream:
        server.mcp.listeners.tell(TOOLS_CHANGED)
        server.stop.set()
        assert (await stream.next())["method"] == "notifications/tools/list_changed"
        last = await stream.next()
        assert last["id"] == 1
        assert last["result"]["resultType"] == "complete"
        assert last["result"]["_meta"][ID] == 1
        with pytest.raises(StopAsyncIteration):
            await stream.next()
        with trio.fail_after(20):
            await server.ended.wait()


async def test_a_stream_that_opens_while_the_server_begins_to_drain_ends_too(
    shelves: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, go_on = trio.Event(), trio.Event()
    revision = Documents.revision

    async def slowly(self: Documents) -> int:
        looking.set()
        await go_on.wait()
        return await revision(self)

    monkeypatch.setattr(Documents, "revision", slowly)
    ask = modern("subscriptions/listen", {"notifications": {"resourcesListChanged": True}})
    async with shelves.client() as client, trio.open_nursery() as nursery:

        async def listen() -> None:
            told = [line for line in (await client.post("/mcp", **ask)).text.splitlines() if line.startswith("data: ")]
            assert "result" in json.loads(told[-1][6:])

        nursery.start_soon(listen)
        with trio.fail_after(20):
            await looking.wait()
            shelves.stop.set()
            await trio.testing.wait_all_tasks_blocked(0.02)
            go_on.set()
            await shelves.ended.wait()


async def test_a_listener_that_leaves_leaves_nothing_behind(server: Running) -> None:
    async with listening(server, toolsListChanged=True):
        assert len(server.mcp.listeners) == 1
    await until(lambda: len(server.mcp.listeners) == 0)
    await assert_works(server)


async def test_beyond_the_bound_listeners_are_refused_and_all_else_goes_on(server: Running) -> None:
    server.mcp.listeners._bound = 8  # so that one tenant may have 4
    async with trio.open_nursery() as nursery:
        done = trio.Event()

        async def hold(task_status: trio.TaskStatus[None]) -> None:
            async with listening(server, toolsListChanged=True):
                task_status.started()
                await done.wait()

        for _ in range(4):
            await nursery.start(hold)
        ask = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        async with server.client() as client:
            for _ in range(3):
                error = message(await client.post("/mcp", **ask))["error"]
                assert error["code"] == -32603
                assert error["data"]["code"] == "unavailable"
                assert error["data"]["retry_after_s"] > 0
        await assert_works(server)
        done.set()
    await until(lambda: len(server.mcp.listeners) == 0)
    async with listening(server, toolsListChanged=True):
        pass


async def test_a_listener_that_never_reads_is_given_up_and_costs_the_others_nothing(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.transport.http1.WRITE_TIMEOUT_S", 0.3)
    ask = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    head = request("POST", "/mcp", json.dumps(ask["json"]).encode(), *(f"{k}: {v}" for k, v in ask["headers"].items()))
    async with listening(server, toolsListChanged=True) as reader, await server.connect() as deaf:
        await deaf.send_all(head)
        await until(lambda: len(server.mcp.listeners) == 2)
        with trio.fail_after(60):
            # Until the kernel takes no more for the one that does not read, the other one hears of every change.
            while len(server.mcp.listeners) == 2:
                server.mcp.listeners.tell(TOOLS_CHANGED)
                assert (await reader.next())["method"] == "notifications/tools/list_changed"
        assert len(server.mcp.listeners) == 1
    await assert_works(server)


# ---- the official client -----------------------------------------------------------------------------------------


async def hears(url: str, changed: Any) -> None:
    async with (
        Client(f"{url}/mcp", mode="2026-07-28") as client,
        client.listen(tools_list_changed=True) as subscription,
    ):
        await changed()
        with anyio.fail_after(20):
            async for event in subscription:
                assert type(event).__name__ == "ToolsListChanged"
                return


async def test_the_official_client_subscribes_on_trio(server: Running) -> None:
    async def changed() -> None:
        server.mcp.listeners.hear(EVERYTHING)

    await hears(server.url, changed)


ON_ASYNCIO = """
import asyncio, sys
from mcp import Client, MCPError

async def main(url):
    for mode in ("legacy", "auto", "2026-07-28"):
        async with Client(url, mode=mode) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            assert "echo" in tools, tools
            assert (await client.call_tool("echo", {"a": 1})).structured_content == {"a": 1}
            prompt = await client.get_prompt("helper", {"service": "api"})
            assert prompt.messages[0].content.text == "You help with api."
            assert [each.name for each in (await client.list_prompts()).prompts]
            try:
                await client.call_tool("nothing", {})
            except MCPError as error:
                assert error.code == -32602
            else:
                raise AssertionError("an unknown tool was called")
            call = asyncio.ensure_future(client.call_tool("slow", {}))
            print("calling", mode, flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            call.cancel()
            await asyncio.wait([call])
            print("cancelled", mode, flush=True)
            await asyncio.to_thread(sys.stdin.readline)
    async with Client(url, mode="2026-07-28") as client:
        async with client.listen(tools_list_changed=True) as subscription:
            print("listening", flush=True)
            async for event in subscription:
                print(type(event).__name__, flush=True)
                return

asyncio.run(main(sys.argv[1]))
"""


class Lines:
    """What a process prints, line by line."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._waiting = b""

    async def next(self) -> str:
        while b"\n" not in self._waiting:
            part = await self._stream.receive_some()
            assert part, "the process ended"
            self._waiting += part
        line, _, self._waiting = self._waiting.partition(b"\n")
        return line.decode()


async def test_the_official_client_does_all_of_it_on_asyncio() -> None:
    async with serving(FakeService()) as server:
        command = [sys.executable, "-c", ON_ASYNCIO, f"{server.url}/mcp"]
        async with warm_start.running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            lines = Lines(process.stdout)
            with trio.fail_after(60):
                for mode in ("legacy", "auto", "2026-07-28"):
                    service = server.service
                    service.entered, service.cancelled = trio.Event(), trio.Event()
                    assert await lines.next() == f"calling {mode}"
                    await service.entered.wait()
                    await process.stdin.send_all(b"go\n")
                    assert await lines.next() == f"cancelled {mode}"
                    # A handshake client says so in another message, which a server without sessions cannot place:
                    # there the call ends when the client closes.
                    if mode != "legacy":
                        await service.cancelled.wait()
                    await process.stdin.send_all(b"go\n")
                assert await lines.next() == "listening"
                server.mcp.listeners.hear(EVERYTHING)
                assert await lines.next() == "ToolsListChanged"
                await process.wait()
            assert process.returncode == 0


async def test_handshake_clients_hear_nothing_and_are_told_so(server: Running) -> None:
    async with server.client() as client:
        ask = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        result = message(await client.post("/mcp", **handshake("initialize", ask)))["result"]
        for name in ("tools", "prompts", "resources"):
            assert not result["capabilities"][name].get("listChanged")
        assert not result["capabilities"]["resources"].get("subscribe")
        for method in ("subscriptions/listen", "resources/subscribe"):
            error = message(await client.post("/mcp", **handshake(method, {"uri": "x", "notifications": {}})))["error"]
            assert error["code"] == -32601
    async with connected(server, "legacy") as mcp:
        assert (await mcp.list_tools()).tools

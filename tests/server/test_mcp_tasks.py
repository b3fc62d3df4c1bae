"""Calls that become tasks: polled, listened to, cancelled, left; their bounds, and what others see of them."""

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types as t
import pytest
import trio
from asking_support import (
    EVERYTHING,
    Asking,
    CancelTask,
    GetTask,
    OneTask,
    TaskResult,
    TasksExtension,
    TaskState,
    able,
    call,
    send,
)
from hypothesis import given
from hypothesis import strategies as st
from keys_support import keyed
from mcp import Client
from mcp_support import Listening, handshake, message, modern, until
from server_support import Running, serving

from engine.config import ServerConfig
from knowledge.access import Reader
from server.http.body_budget import Bodies
from server.mcp.task_states import KEPT_S, LATE_S, TASKS, Owner, Table, Task

MINE, OTHERS = Owner("acme", None, Reader()), Owner("other", None, Reader())


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.mcp.tasks.LATE_S", 0.05)


@pytest.fixture
async def server() -> AsyncIterator[Running]:
    async with serving(Asking()) as running:
        yield running


async def becomes_task(server: Running, **arguments: Any) -> str:
    result = (await send(server, "tools/call", call("wait", **{"s": 60, **arguments})))["result"]
    assert result["resultType"] == "task", result
    return str(result["taskId"])


async def state(server: Running, id: str, **options: Any) -> dict[str, Any]:
    answer = await send(server, "tasks/get", {"taskId": id}, **options)
    return dict(answer["result"])


async def ended(server: Running, id: str) -> dict[str, Any]:
    with trio.fail_after(20):
        while (found := await state(server, id))["status"] in ("working", "input_required"):  # noqa: ASYNC110
            await trio.sleep(0.02)
    return found


async def assert_works(server: Running) -> None:
    assert (await send(server, "tools/call", call("number")))["result"]["structuredContent"] == 42


# ---- states, without a server --------------------------------------------------------------------------------------


def test_the_bounds_are_those_of_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()
    assert (LATE_S, TASKS, KEPT_S) == (2, 64, 3600)
    assert "longer than 2 seconds" in text
    assert "64 tasks" in text


@given(st.lists(st.sampled_from(["working", "input_required", "completed", "failed", "cancelled"])))
def test_a_task_that_has_ended_stays_as_it_ended(moves: list[Any]) -> None:
    task, end = Task("x", MINE, 0, 0), None
    for at, move in enumerate(moves, 1):
        moved = task.move(move, at)
        if end is not None:
            assert (moved, task.status, task.updated) == (False, *end)
        elif task.ended:
            end = (task.status, at)


def test_a_tenant_has_64_tasks_and_another_one_its_own() -> None:
    table = Table()
    mine = [table.add(f"a{n}", MINE, 0) for n in range(TASKS + 1)]
    assert mine[-1] is None
    assert None not in mine[:-1]
    assert table.add("b", OTHERS, 0) is not None
    assert table.find("b", MINE) is table.find("nothing", MINE) is None
    assert table.find("a0", Owner("acme", "agent", Reader())) is None
    assert table.find("a0", Owner("acme", None, Reader.of(["hr"]))) is None
    assert mine[0] is not None
    table.remove(mine[0])
    assert table.add("again", MINE, 0) is not None


# ---- the life of a task --------------------------------------------------------------------------------------------


async def test_a_call_that_takes_long_becomes_a_task_and_its_answer_is_kept(server: Running) -> None:
    id = await becomes_task(server, s=0.3, value={"a": [1, None]})
    first = await state(server, id)
    assert (first["status"], first["resultType"], first["ttlMs"]) == ("working", "complete", 3_600_000)
    last = await ended(server, id)
    assert (last["status"], last["result"]["structuredContent"]) == ("completed", {"a": [1, None]})
    assert json.loads(last["result"]["content"][0]["text"]) == {"a": [1, None]}
    assert last["result"]["_meta"]["engine/run"]["input_tokens"] == 5
    assert last["createdAt"] == first["createdAt"] < last["lastUpdatedAt"]
    assert await ended(server, id) == last


async def test_what_ends_soon_is_answered_and_so_is_every_call_of_a_client_without_tasks(server: Running) -> None:
    assert (await send(server, "tools/call", call("wait", value=1)))["result"]["structuredContent"] == 1
    for capabilities in ({}, {"elicitation": {}}):
        answer = await send(server, "tools/call", call("wait", s=0.2), capabilities)
        assert answer["result"]["structuredContent"] == "done"
    async with server.client() as client:
        answer = message(await client.post("/mcp", **handshake("tools/call", call("wait", s=0.2))))
    assert answer["result"]["structuredContent"] == {"result": "done"}
    await until(lambda: len(server.mcp.runs) == 0)


@pytest.mark.parametrize(
    ("fails", "status"), [("tool_error", "completed"), ("timeout", "completed"), ("bug", "failed")]
)
async def test_a_task_that_fails_says_why(server: Running, fails: str, status: str) -> None:
    last = await ended(server, await becomes_task(server, s=0.2, fails=fails))
    assert last["status"] == status
    assert "secret" not in json.dumps(last)
    if status == "failed":
        assert last["error"]["code"] == -32603
        assert last["statusMessage"] == last["error"]["message"]
    else:
        assert last["result"]["isError"] is True
        assert last["result"]["_meta"]["engine/error"]["code"] == fails


async def test_a_large_answer_is_kept_whole_and_every_poll_gets_it(server: Running) -> None:
    value = {"rows": ['é\n"' * 1000] * 60}
    id = await becomes_task(server, s=0.2, value=value)
    for _ in range(2):
        result = (await ended(server, id))["result"]
        assert result["structuredContent"] == value
        assert json.loads(result["content"][0]["text"]) == value
    async with task_stream(server, id) as stream:
        assert (await stream.next())["params"]["result"]["structuredContent"] == value
    text = "x" * 100_000
    assert (await ended(server, await becomes_task(server, s=0.2, value=text)))["result"]["structuredContent"] == text


async def test_an_answer_without_room_is_not_kept_and_the_task_says_so(server: Running) -> None:
    room = server.mcp.runs._room = Bodies(10_000, 0)
    room.add("default", 7_000)
    result = (await ended(server, await becomes_task(server, s=0.2, size=2_000)))["result"]
    assert result["isError"] is True
    assert "was not kept" in result["content"][0]["text"]
    stays = await send(server, "tools/call", call("wait", s=0.2, value="x" * 3_000))
    assert stays["result"]["resultType"] == "complete"  # not even its arguments have room
    await until(lambda: room._held == 7_000)
    await assert_works(server)


async def test_a_task_is_cancelled_and_its_run_with_it(server: Running) -> None:
    id = await becomes_task(server)
    assert server.service.under_way == 1  # type: ignore[attr-defined]
    with trio.fail_after(0.25):
        while server.service.under_way:  # type: ignore[attr-defined]
            assert (await send(server, "tasks/cancel", {"taskId": id}))["result"]["resultType"] == "complete"
    assert (await state(server, id))["status"] == "cancelled"
    assert "result" not in await state(server, id)
    done = await becomes_task(server, s=0.1)
    await ended(server, done)
    await send(server, "tasks/cancel", {"taskId": done})
    assert (await state(server, done))["status"] == "completed"


async def test_who_has_a_task_may_leave_and_who_leaves_before_cancels_the_call(server: Running) -> None:
    id = await becomes_task(server, s=0.3)
    await until(lambda: server.guard.in_flight == 0)
    assert (await ended(server, id))["status"] == "completed"
    stream = await server.connect()
    ask = able("tools/call", call("slow"), {"elicitation": {}})
    body = json.dumps(ask["json"]).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in ask["headers"].items())
    await stream.send_all(
        f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{head}"
        f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await server.service.entered.wait()
    with trio.fail_after(0.25):
        await stream.aclose()
        await server.service.cancelled.wait()
    await assert_works(server)


async def test_progress_is_sent_until_a_call_becomes_a_task(server: Running) -> None:
    params = {**call("wait", s=0.3), "_meta": {"progressToken": "p"}}
    async with server.client() as client:
        text = (await client.post("/mcp", **able("tools/call", params))).text
    told = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert [each.get("method") for each in told] == ["notifications/progress", None]
    assert told[1]["result"]["resultType"] == "task"


async def test_a_task_expires(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.mcp.tasks.KEPT_S", 0.3)
    id = await becomes_task(server, s=0.1, value="x" * 1000)
    await until(lambda: len(server.mcp.runs) == 0)
    answer = await send(server, "tasks/get", {"taskId": id})
    assert answer["error"]["code"] == -32602
    assert server.mcp.runs._room._held == 0
    await assert_works(server)


# ---- others, and bad input -----------------------------------------------------------------------------------------


async def test_the_65th_stays_a_call_and_is_answered(server: Running) -> None:
    ids: list[str] = []

    async with server.client() as client:

        async def one() -> None:
            created = await send(server, "tools/call", call("wait", s=60), client=client)
            ids.append(created["result"]["taskId"])

        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(one)
    assert len(set(ids)) == TASKS
    assert (await send(server, "tools/call", call("wait", s=0.3)))["result"]["structuredContent"] == "done"
    await send(server, "tasks/cancel", {"taskId": ids[0]})
    assert (await state(server, ids[0]))["status"] == "cancelled"
    assert server.service.under_way == TASKS - 1  # type: ignore[attr-defined]


async def test_a_task_is_unknown_to_other_tenants_and_at_other_addresses(tmp_path: Path) -> None:
    async with keyed(tmp_path) as server, server.client("use") as mine, server.client("other") as theirs:
        send_ = partial(send, server.running)
        created = await send_("tools/call", call("slow"), client=mine)
        id = created["result"]["taskId"]
        unknown = await send_("tasks/get", {"taskId": "0" * 32}, client=mine)
        assert unknown["error"]["code"] == -32602
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            params = {"taskId": id} | ({"inputResponses": {}} if method == "tasks/update" else {})
            for query, client in (("", theirs), ("?agent=helper", mine)):
                answer = await send_(method, params, client=client, query=query)
                assert answer["error"] == unknown["error"], (method, query)
        assert (await send_("tasks/get", {"taskId": id}, client=mine))["result"]["status"] == "working"


async def test_only_a_client_that_declares_tasks_may_ask_for_them(server: Running) -> None:
    id = await becomes_task(server)
    for method, params in (
        ("tasks/get", {"taskId": id}),
        ("tasks/cancel", {"taskId": id}),
        ("tasks/update", {"taskId": id, "inputResponses": {}}),
        ("subscriptions/listen", {"notifications": {"taskIds": [id]}}),
    ):
        answer = await send(server, method, params, {})
        assert answer["error"]["code"] == -32021, method
        assert answer["error"]["data"] == {
            "requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}
        }
    async with server.client() as client:
        answer = message(await client.post("/mcp", **handshake("tasks/get", {"taskId": id})))
    assert answer["error"]["code"] == -32601
    assert (await state(server, id))["status"] == "working"


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tasks/get", {}),
        ("tasks/get", {"taskId": 7}),
        ("tasks/get", {"taskId": ""}),
        ("tasks/get", {"taskId": "é" * 3000}),
        ("tasks/update", {"taskId": "x"}),
        ("tasks/update", {"taskId": "x", "inputResponses": []}),
        ("tasks/update", {"taskId": "x", "inputResponses": {"q1": 7}}),
        ("subscriptions/listen", {"notifications": {"taskIds": "x"}}),
        ("subscriptions/listen", {"notifications": {"taskIds": [1]}}),
    ],
)
async def test_wrong_params_are_named(server: Running, method: str, params: dict[str, Any]) -> None:
    ask = able(method, params)
    ask["headers"].pop("mcp-name", None)
    async with server.client() as client:
        answer = message(await client.post("/mcp", **ask))
    assert answer["error"]["code"] == -32602
    assert "params" in answer["error"]["message"] or "no such task" in answer["error"]["message"]
    await assert_works(server)


async def test_a_header_that_names_another_task_is_refused(server: Running) -> None:
    id = await becomes_task(server)
    ask = able("tasks/get", {"taskId": id})
    async with server.client() as client:
        ask["headers"]["mcp-name"] = "other"
        answer = message(await client.post("/mcp", **ask))
    assert answer["error"]["code"] == -32020
    await assert_works(server)


# ---- listening -----------------------------------------------------------------------------------------------------


def task_stream(server: Running, *ids: str) -> Any:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def opened() -> AsyncIterator[Listening]:
        ask = able("subscriptions/listen", {"notifications": {"taskIds": list(ids)}})
        async with server.client() as client, client.stream("POST", "/mcp", **ask) as response:
            stream = Listening(response)
            first = await stream.next()
            assert first["method"] == "notifications/subscriptions/acknowledged", first
            stream.acknowledged = first["params"]["notifications"]
            yield stream

    return opened()


async def test_a_stream_tells_of_the_tasks_that_it_names_and_of_no_other(server: Running) -> None:
    watched, other = await becomes_task(server, s=0.5), await becomes_task(server, s=0.1)
    async with task_stream(server, watched, "nothing") as stream:
        assert stream.acknowledged == {"taskIds": [watched]}
        await ended(server, other)
        now = await stream.next()
        assert (now["method"], now["params"]["status"]) == ("notifications/tasks", "working")
        then = await stream.next()
        told = then["params"]
        assert told.pop("_meta") == now["params"]["_meta"]
        polled = await state(server, watched)
        assert {**told, "resultType": "complete", "_meta": polled["_meta"]} == polled
        assert told["result"]["structuredContent"] == "done"


# ---- shutdown ------------------------------------------------------------------------------------------------------


async def test_a_drain_lets_tasks_end_within_the_graceful_time_and_cancels_the_rest() -> None:
    service = Asking(server=ServerConfig(graceful_timeout_s=0.6))
    async with serving(service) as server:
        await becomes_task(server, s=0.3)
        await becomes_task(server, s=60)
        assert service.under_way == 2
        began = trio.current_time()
        server.stop.set()
        await until(lambda: service.under_way == 1)
        await server.ended.wait()
        assert trio.current_time() - began < 2
        await until(lambda: service.under_way == 0)


# ---- the official client -------------------------------------------------------------------------------------------


async def official(url: str) -> None:
    """List; a call that becomes a task: polled, listened to and cancelled."""
    extension = TasksExtension()
    async with Client(url, mode="2026-07-28", extensions=[extension]) as client:
        assert "wait" in [tool.name for tool in (await client.list_tools()).tools]
        created = await client.session.call_tool("wait", {"s": 0.4}, allow_claimed=True)
        assert isinstance(created, TaskResult)
        asked = t.SubscriptionFilter.model_validate({"taskIds": [created.task_id]})
        params = t.SubscriptionsListenRequestParams(notifications=asked)
        request = t.SubscriptionsListenRequest(params=params)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(client.session.send_request, request, t.SubscriptionsListenResult))
            with anyio.fail_after(20):
                while "completed" not in [news.status for news in extension.news]:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
        one = OneTask(task_id=created.task_id)
        found = await client.session.send_request(GetTask(params=one), TaskState)
        assert (found.status, found.result and found.result["structuredContent"]) == ("completed", "done")
        long = await client.session.call_tool("wait", {"s": 60}, allow_claimed=True)
        assert isinstance(long, TaskResult)
        one = OneTask(task_id=long.task_id)
        await client.session.send_request(CancelTask(params=one), t.EmptyResult)
        found = await client.session.send_request(GetTask(params=one), TaskState)
        assert found.status == "cancelled"


@pytest.mark.parametrize("library", ["trio", "asyncio"])
async def test_the_official_client_polls_listens_and_cancels(server: Running, library: str) -> None:
    url = f"{server.url}/mcp"
    if library == "trio":
        await official(url)
    else:
        await trio.to_thread.run_sync(partial(anyio.run, official, url, backend="asyncio"))
    await until(lambda: server.service.under_way == 0)  # type: ignore[attr-defined]


async def test_the_extension_is_announced(server: Running) -> None:
    async with server.client() as client:
        found = message(await client.post("/mcp", **modern("server/discover")))["result"]
    assert found["capabilities"]["extensions"] == {"io.modelcontextprotocol/tasks": {}}
    assert EVERYTHING["extensions"] == found["capabilities"]["extensions"]

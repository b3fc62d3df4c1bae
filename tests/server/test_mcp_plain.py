"""What an answer of MCP travels in: plain JSON, or an event stream where more than the answer is to be said."""

from typing import Any

import pytest
import trio
from mcp_support import assert_works, events, handshake, message, modern, until
from server_support import serving

from server.mcp import slow_answers


@pytest.mark.parametrize("params", [{}, {"_meta": {}}])
async def test_a_call_that_asks_for_no_progress_is_answered_in_plain_json(params: dict[str, Any]) -> None:
    async with serving() as server, server.client() as client:
        answer = await client.post("/mcp", **modern("tools/call", {"name": "steps", "arguments": {}, **params}))
        assert answer.headers["content-type"] == "application/json"
        assert "content-length" in answer.headers
        assert answer.json()["result"]["structuredContent"] == "stepped"


@pytest.mark.parametrize("token", ["t", 0, ""])
async def test_a_call_that_asks_for_progress_is_answered_with_a_stream_of_it(token: str | int) -> None:
    ask = modern("tools/call", {"name": "steps", "arguments": {}})
    ask["json"]["params"]["_meta"] = {**ask["json"]["params"]["_meta"], "progressToken": token}
    async with serving() as server, server.client() as client:
        answer = await client.post("/mcp", **ask)
        assert answer.headers["content-type"].startswith("text/event-stream")
        *told, last = events(answer.text)
        assert [each["params"]["progress"] for each in told] == [0.25, 0.5, 1.0]
        assert {each["params"]["progressToken"] for each in told} == {token}
        assert last["result"]["structuredContent"] == "stepped"


async def test_the_handshake_revisions_are_answered_with_a_stream() -> None:
    async with serving() as server, server.client() as client:
        answer = await client.post("/mcp", **handshake("tools/call", {"name": "number", "arguments": {}}))
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert message(answer)["result"]["structuredContent"] == {"result": 42}


async def test_an_error_in_a_plain_answer_has_its_status_and_leaks_nothing() -> None:
    async with serving() as server:
        async with server.client() as client:
            answer = await client.post("/mcp", **modern("tools/call", {"name": "bug", "arguments": {}}))
            assert "secret" not in answer.text
            unknown = await client.post("/mcp", **modern("no/such"))
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, -32601)
        await assert_works(server)


# ---- calls that take long ----------------------------------------------------------------------------------------


@pytest.fixture
def late_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_answers, "SILENT_S", 0.02)
    monkeypatch.setattr(slow_answers, "LOOK_EVERY_S", 0.01)


SLOW = modern("tools/call", {"name": "slow", "arguments": {}})


@pytest.mark.usefixtures("late_at_once")
async def test_a_late_answer_is_a_stream_that_shows_life_until_the_answer_comes() -> None:
    async with serving() as server:
        async with server.client() as client, client.stream("POST", "/mcp", **SLOW) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/event-stream"
            lines = answer.aiter_lines()
            seen: list[str] = []
            with trio.fail_after(20):
                while seen.count(": ping") < 3:
                    seen.append(await anext(lines))
                server.service.release.set()
                async for line in lines:
                    seen.append(line)
        (told,) = events("\n".join(seen))
        assert told["result"]["structuredContent"] == "done"
        await assert_works(server)


@pytest.mark.usefixtures("late_at_once")
async def test_the_connection_of_a_late_answer_takes_the_next_request() -> None:
    async with serving() as server, server.client() as client:
        async with client.stream("POST", "/mcp", **SLOW) as answer:
            server.service.release.set()
            with trio.fail_after(20):
                await answer.aread()
        assert message(answer)["result"]["structuredContent"] == "done"
        with trio.fail_after(20):
            answer = await client.post("/mcp", **modern("tools/call", {"name": "number", "arguments": {}}))
        assert message(answer)["result"]["structuredContent"] == 42


@pytest.mark.usefixtures("late_at_once")
async def test_a_client_that_leaves_a_late_answer_cancels_its_work_and_leaves_no_task() -> None:
    async with serving() as server:
        await assert_works(server)
        await until(lambda: server.guard.in_flight == 0)
        async with server.client() as client, client.stream("POST", "/mcp", **SLOW) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            during = trio.lowlevel.current_statistics().tasks_living
        with trio.fail_after(20):
            await server.service.cancelled.wait()
        await until(lambda: trio.lowlevel.current_statistics().tasks_living < during - 1)
        await assert_works(server)

"""Large answers of MCP: what clients read is what small ones would be, and the SDK never sees them."""

import json
import time
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from machine import loop_s
from mcp_support import assert_works, handshake, message, modern
from server_support import Running

from agents.agent import AgentPrompt, PromptMessage
from agents.tool import Called
from server.http.large_values import HELD_BYTES, Held, text_of
from server.problems import encode

LONG = "x" * HELD_BYTES
VALUES: dict[str, Any] = {
    "a text": 'say "\\"\n\0\u00e9\U0001f600' + LONG,
    "a list": ["\\", '"', LONG, None, {"a": None}],
    "an object": {"text": LONG, "none": None, '"key\\"': [1, 2.5, True, None]},
    "many values": {"rows": [{"id": i, "name": f'"{i}"'} for i in range(5_000)]},
}


async def called(server: Running, era: str) -> dict[str, Any]:
    params: dict[str, Any] = {"name": "value", "arguments": {}}
    if era == "progress":  # a stream of events
        ask = modern("tools/call", params)
        ask["json"]["params"]["_meta"] = {**ask["json"]["params"]["_meta"], "progressToken": 1}
    else:
        ask = {"modern": modern, "handshake": handshake}[era]("tools/call", params)
    async with server.client() as client:
        return dict(message(await client.post("/mcp", **ask))["result"])


def give(server: Running, monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    call_tool = server.service.call_tool

    async def given_value(name: str, *rest: Any, **more: Any) -> Called:
        return Called(value) if name == "value" else await call_tool(name, *rest, **more)

    monkeypatch.setattr(server.service, "call_tool", given_value, raising=False)


@pytest.mark.parametrize("what", VALUES)
@pytest.mark.parametrize("era", ["modern", "progress", "handshake"])
async def test_a_large_answer_reads_as_a_small_one_does(
    server: Running, monkeypatch: pytest.MonkeyPatch, what: str, era: str
) -> None:
    value = VALUES[what]
    give(server, monkeypatch, value)
    large = await called(server, era)
    assert large["content"] == [{"type": "text", "text": value if isinstance(value, str) else encode(value).decode()}]
    wrapped = era == "handshake" and not isinstance(value, dict)
    assert large["structuredContent"] == ({"result": value} if wrapped else value)
    give(server, monkeypatch, {"small": None})
    small = await called(server, era)
    assert {key: kind for key, kind in small.items() if key not in ("content", "structuredContent")} == {
        key: kind for key, kind in large.items() if key not in ("content", "structuredContent")
    }
    assert small["structuredContent"] == {"small": None}
    await assert_works(server)


@pytest.mark.parametrize("era", [modern, handshake])
async def test_a_large_prompt_reads_as_a_small_one_does(
    server: Running, monkeypatch: pytest.MonkeyPatch, era: Any
) -> None:
    resolve = server.service.resolve

    async def resolved(*args: Any, **more: Any) -> Any:
        found = await resolve(*args, **more)
        messages = (PromptMessage(role="assistant", content=LONG), PromptMessage(role="user", content='"\\\0'))
        prompt = AgentPrompt(system=LONG + '"\\', tools=("echo",), messages=messages)
        return type(found)(prompt)

    monkeypatch.setattr(server.service, "resolve", resolved, raising=False)
    async with server.client() as client:
        asked = era("prompts/get", {"name": "helper", "arguments": {"service": "x"}})
        result = message(await client.post("/mcp", **asked))["result"]
    assert [(each["role"], each["content"]["text"]) for each in result["messages"]] == [
        ("user", LONG + '"\\'), ("assistant", LONG), ("user", '"\\\0'),
    ]  # fmt: skip
    assert result["_meta"]["engine/prompt"]["system"] == LONG + '"\\'
    assert result["_meta"]["engine/prompt"]["tools"] == ["echo"]
    await assert_works(server)


@given(
    st.text() | st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_json_as_a_json_text_is_that_text(value: Any) -> None:
    rendered = encode(value)
    assert json.loads(b"".join(trio.run(text_of, rendered))) == rendered.decode()


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=20)), max_size=5), st.binary(max_size=20))
def test_each_mark_becomes_what_it_stands_for_and_nothing_else_does(
    values: list[tuple[bool, bytes]], around: bytes
) -> None:
    held, body, expected = Held(), around, around
    for as_object, rendered in values:
        mark = held.object(rendered) if as_object else held.text(rendered)
        body += json.dumps(mark, separators=(",", ":")).encode() + around
        expected += rendered + around
    assert b"".join(held.filled(body)) == expected


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
@pytest.mark.parametrize("character", ["\0", '"', "\\", "\U0001f600", "x"])
async def test_no_piece_of_making_a_text_of_a_large_answer_takes_long(character: str) -> None:
    rendered = encode(character * (20 * 1024 * 1024 // len(encode(character))))
    worst = 0.0
    began = time.thread_time()

    async def others() -> None:
        nonlocal worst, began
        while True:
            await trio.lowlevel.checkpoint()
            worst, began = max(worst, time.thread_time() - began), time.thread_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await trio.lowlevel.checkpoint()
        await text_of(rendered)
        nursery.cancel_scope.cancel()
    assert worst <= loop_s()

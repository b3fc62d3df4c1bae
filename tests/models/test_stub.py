"""`engine model stub` as the official clients of both wires see it: they stream, call tools and get errors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import trio
from models_support import stubbed

from engine.models.stub import MAX_BODY_BYTES, Stub

# Imported where they are used: together they take longer than all that other tests import.
if TYPE_CHECKING:
    import anthropic
    import openai

SCRIPT = """
[[reply]]
when = "weather"
text = "Let me look it up. "
tool_calls = [
  { name = "get_weather", arguments = { city = "Zürich", days = 2 } },
  { name = "get_time" },
]
usage = { input = 120, cached = 100, output = 30 }

[[reply]]
when = "18 C"
text = "It is 18 C in Zürich, and nobody needs an umbrella. 🎉"
usage = { input = 200, cached = 120, output = 12 }

[[reply]]
when = "broken arguments"
tool_calls = [{ name = "get_weather", arguments = "{city: no JSON" }]

[[reply]]
when = "busy"
status = 429

[[reply]]
when = "overloaded"
status = 529

[[reply]]
when = "key"
status = 401

[[reply]]
when = "cut"
text = "a text that is long enough to be cut in the middle of it"
fault = "cut"

[[reply]]
when = "garbage"
fault = "garbage"

[[reply]]
when = "stall"
text = "a text that is long enough to stall in the middle of it"
fault = "stall"

[[reply]]
when = "slow"
text = "at last"
delay_s = 0.2
"""
ASKED = {"role": "user", "content": "How is the weather?"}
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
SAID = "It is 18 C in Zürich, and nobody needs an umbrella. 🎉"


@asynccontextmanager
async def of_openai() -> AsyncIterator[tuple[Stub, "openai.AsyncOpenAI"]]:
    import openai

    async with (
        stubbed(SCRIPT) as (stub, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=10) as client,
    ):
        yield stub, client


@asynccontextmanager
async def of_anthropic() -> AsyncIterator[tuple[Stub, "anthropic.AsyncAnthropic"]]:
    import anthropic

    async with (
        stubbed(SCRIPT) as (stub, url),
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=10) as client,
    ):
        yield stub, client


async def test_openais_client_streams_calls_tools_and_reads_usage() -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": WEATHER}} for name in ("get_weather", "get_time")
    ]
    async with of_openai() as (_, client):
        async with client.chat.completions.stream(
            model="m", messages=[ASKED], tools=tools, stream_options={"include_usage": True}
        ) as stream:
            pieces = [event.delta async for event in stream if event.type == "content.delta"]
            first = await stream.get_final_completion()
        message = first.choices[0].message
        assert len(pieces) > 1
        assert "".join(pieces) == message.content == "Let me look it up. "
        assert first.choices[0].finish_reason == "tool_calls"
        assert [call.function.name for call in message.tool_calls] == ["get_weather", "get_time"]
        assert message.tool_calls[0].function.parsed_arguments is None
        assert message.tool_calls[0].function.arguments == '{"city":"Zürich","days":2}'
        assert first.usage.prompt_tokens == 120
        assert first.usage.prompt_tokens_details.cached_tokens == 100
        assert first.usage.completion_tokens == 30
        calls = [call.model_dump(exclude={"function": {"parsed_arguments"}}) for call in message.tool_calls]
        turn = [
            ASKED,
            {"role": "assistant", "content": message.content, "tool_calls": calls},
            {"role": "tool", "tool_call_id": calls[0]["id"], "content": "no idea"},
            {"role": "tool", "tool_call_id": calls[1]["id"], "content": "18 C"},
        ]
        second = await client.chat.completions.create(model="m", messages=turn, tools=tools)
        assert (second.choices[0].message.content, second.choices[0].finish_reason) == (SAID, "stop")
        assert second.usage.total_tokens == 212


async def test_anthropics_client_streams_calls_tools_and_reads_usage() -> None:
    tools = [{"name": name, "input_schema": WEATHER} for name in ("get_weather", "get_time")]
    async with of_anthropic() as (_, client):
        async with client.messages.stream(model="m", max_tokens=100, messages=[ASKED], tools=tools) as stream:
            pieces = [text async for text in stream.text_stream]
            first = await stream.get_final_message()
        assert len(pieces) > 1
        assert "".join(pieces) == "Let me look it up. "
        assert first.stop_reason == "tool_use"
        assert [block.type for block in first.content] == ["text", "tool_use", "tool_use"]
        assert (first.content[1].name, first.content[1].input) == ("get_weather", {"city": "Zürich", "days": 2})
        assert (first.content[2].name, first.content[2].input) == ("get_time", {})
        usage = first.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (20, 100, 30)
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": "18 C"} for block in first.content[1:]]
        turn = [ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        second = await client.messages.create(model="m", max_tokens=100, messages=turn, tools=tools)
        assert (second.content[0].text, second.stop_reason) == (SAID, "end_turn")


async def test_arguments_that_are_no_json_are_sent_as_they_are() -> None:
    async with of_openai() as (_, client):
        answer = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "broken arguments"}]
        )
        assert answer.choices[0].message.tool_calls[0].function.arguments == "{city: no JSON"


@pytest.mark.parametrize(
    ("text", "of_openai_", "of_anthropic_"),
    [
        ("busy", "RateLimitError", "RateLimitError"),
        ("overloaded", "InternalServerError", "APIStatusError"),
        ("key", "AuthenticationError", "AuthenticationError"),
        ("something that no reply is for", "BadRequestError", "BadRequestError"),
    ],
)
async def test_errors_are_those_that_the_clients_know(text: str, of_openai_: str, of_anthropic_: str) -> None:
    import anthropic
    import openai

    messages = [{"role": "user", "content": text}]
    async with of_openai() as (_, client):
        with pytest.raises(getattr(openai, of_openai_)):
            await client.chat.completions.create(model="m", messages=messages)
    async with of_anthropic() as (_, other):
        with pytest.raises(getattr(anthropic, of_anthropic_)) as caught:
            await other.messages.create(model="m", max_tokens=1, messages=messages)
    assert caught.value.body["type"] == "error"  # type: ignore[attr-defined]


async def streamed(client: "openai.AsyncOpenAI", text: str) -> list[Any]:
    stream = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], stream=True)
    return [chunk async for chunk in stream]


@pytest.mark.parametrize("fault", ["cut", "garbage"])
async def test_faults_are_errors_and_the_next_request_works(fault: str) -> None:
    import openai

    async with of_openai() as (_, client):
        with pytest.raises((openai.APIError, httpx2.RemoteProtocolError, ValueError)):
            await streamed(client, fault)
        assert (await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "18 C"}])).choices


async def test_a_client_that_leaves_a_stalled_answer_is_noticed() -> None:
    async with of_anthropic() as (stub, client):
        heard: list[str] = []
        told = trio.Event()

        def hear(line: str) -> None:
            heard.append(line)
            told.set()

        stub.heard = hear
        with trio.move_on_after(5) as scope:
            async with client.messages.stream(
                model="m", max_tokens=1, messages=[{"role": "user", "content": "stall"}]
            ) as stream:
                async for _ in stream.text_stream:
                    break
                scope.cancel()
                await trio.sleep_forever()
        with trio.fail_after(5):
            await told.wait()
        assert (stub.left, stub.answered) == (1, 0)
        assert heard == ["1 anthropic 200 reply 9 stall: the client left"]
        answer = await client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "slow"}])
        assert answer.content[0].text == "at last"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "the body is not JSON"),
        ("[]", "the body is not an object"),
        ('{"messages": []}', "model: a text is required"),
        ('{"model": "m", "messages": []}', "messages: a list of objects is required"),
        ('{"model": "m", "messages": [{"role": "robot"}]}', "messages.0.role: expected one of"),
        (
            '{"model": "m", "messages": [{"role": "tool", "tool_call_id": "x"}]}',
            "whose call is not in the message before",
        ),
        (
            '{"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}, {"role": "user"}]}',
            "a tool call without its result",
        ),
        ('{"model": "m", "messages": [{"role": "user"}], "tools": [{}]}', "tools.0: a name is required"),
    ],
)
async def test_a_wrong_request_is_refused_as_the_real_servers_do(body: str, said: str) -> None:
    async with stubbed(SCRIPT) as (_, url), httpx2.AsyncClient() as client:
        answer = await client.post(f"{url}/v1/chat/completions", content=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert said in answer.json()["error"]["message"]
        assert (await client.get(f"{url}/v1/models")).status_code == 404


async def test_bodies_are_bounded_and_no_http_is_no_end_of_the_server() -> None:
    async with of_openai() as (stub, client):
        port = client.base_url.port
        for sent in (
            b"\x16\x03\x01 this is no HTTP\r\n\r\n",
            b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx: " + b"x" * 100_000,
            b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\n" + bytes(MAX_BODY_BYTES + 1),
        ):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            with trio.fail_after(10):
                try:
                    await stream.send_all(sent)
                    while await stream.receive_some():
                        pass
                except trio.BrokenResourceError:
                    pass
            await stream.aclose()
        assert stub.requests == 0
        assert (await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "18 C"}])).choices

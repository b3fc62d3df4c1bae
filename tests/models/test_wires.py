"""Both wires, by recorded streams in the dialects of servers and by property: requests out, events in."""

import time
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from models_support import HELLO, NAMES, STREAMS, expected, read, shown

from engine.models import anthropic, openai
from engine.models.openai import Dialect
from engine.models.reserving import Price
from engine.models.shapes import (
    AnswerTooLarge,
    Assistant,
    Event,
    Image,
    ModelFailed,
    Request,
    System,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    User,
    collected,
    wire_names,
)

SEARCH = Tool("search", "Searches.", {"type": "object", "properties": {"query": {"type": "string"}}})


def outcome(name: str, events: list[Event] | ModelFailed) -> dict[str, Any]:
    if isinstance(events, ModelFailed):
        return {"error": str(events), "again": events.again}
    return shown(collected(events))


async def attempt(name: str, pieces: Sequence[bytes]) -> list[Event] | ModelFailed:
    try:
        return await read(name.partition("-")[0], pieces)
    except ModelFailed as failed:
        return failed


@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_stream_is_read_as_it_was_meant(name: str) -> None:
    body = (STREAMS / f"{name}.sse").read_bytes()
    assert outcome(name, await attempt(name, [body])) == expected(name)
    # byte by byte, which also cuts every character in two
    assert outcome(name, await attempt(name, [bytes([byte]) for byte in body])) == expected(name)


@given(st.data(), st.sampled_from([name for name in NAMES if "error" not in expected(name)]))
@settings(max_examples=40, deadline=None)
def test_any_split_of_the_bytes_gives_the_same_events(data: st.DataObject, name: str) -> None:
    body = (STREAMS / f"{name}.sse").read_bytes()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    whole = trio.run(attempt, name, [body])
    assert not isinstance(whole, ModelFailed)
    split = trio.run(attempt, name, pieces)
    assert split == whole


@given(st.sampled_from([name for name in NAMES if "error" not in expected(name)]), st.data())
@settings(max_examples=60, deadline=None)
def test_a_stream_that_is_cut_or_damaged_anywhere_is_an_answer_or_a_failure_of_the_model(
    name: str, data: st.DataObject
) -> None:
    body = (STREAMS / f"{name}.sse").read_bytes()
    at = data.draw(st.integers(0, len(body)))
    broken = body[:at] + data.draw(st.binary(max_size=20)) + data.draw(st.sampled_from([b"", body[at:]]))
    outcome(name, trio.run(attempt, name, [broken]))  # raises nothing else


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=3,
)
KEYS = st.sampled_from(
    ["choices", "delta", "content", "tool_calls", "function", "arguments", "index", "id", "usage", "finish_reason",
     "error", "type", "message", "content_block", "stop_reason", "name", "prompt_tokens", "input_tokens"]
)  # fmt: skip
KINDS = st.sampled_from(["message_start", "content_block_start", "content_block_delta", "message_delta", "message"])


@given(st.lists(st.dictionaries(KEYS, JSON | KINDS | st.dictionaries(KEYS, JSON, max_size=3), max_size=4), max_size=4))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("make", [openai.Reader, anthropic.Reader])
def test_json_of_any_shape_is_an_answer_or_a_failure_of_the_model(make: Any, chunks: list[dict[str, Any]]) -> None:
    reader = make(HELLO)
    try:
        for chunk in chunks:
            reader.feed("message", orjson.dumps(chunk).decode())
        reader.finish()
    except ModelFailed:
        pass


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_an_answer_beyond_its_bound_ends_while_it_arrives(api: str) -> None:
    name = "openai" if api == "openai" else "anthropic"
    body = (STREAMS / f"{name}.sse").read_bytes()
    with pytest.raises(AnswerTooLarge, match=r"larger than 5 bytes \(output_bytes\)"):
        await read(api, [body], Request(HELLO.messages, output_bytes=5))
    exact = len("Héllo 🎉".encode())
    assert collected(await read(api, [body], Request(HELLO.messages, output_bytes=exact))).text == "Héllo 🎉"


def openai_calls(number: int, arguments: str = "{}") -> bytes:
    """A stream that calls a tool so many times, always with one id."""
    calls = [{"id": "c", "function": {"name": "search", "arguments": arguments}}] * number
    return b"data: " + orjson.dumps({"choices": [{"delta": {"tool_calls": calls}, "finish_reason": "stop"}]}) + b"\n\n"


def anthropic_calls(number: int) -> bytes:
    blocks = [{"type": "tool_use", "id": "c", "name": "search", "input": {}}] * number
    whole = {"type": "message", "role": "assistant", "content": blocks, "stop_reason": "tool_use"}
    return b"data: " + orjson.dumps(whole) + b"\n\n"


async def test_an_answer_that_calls_too_many_tools_is_a_failure_of_the_model() -> None:
    for api, made in (("openai", openai_calls), ("anthropic", anthropic_calls)):
        assert len(collected(await read(api, [made(1000)])).calls) == 1000
        with pytest.raises(ModelFailed, match=r"^its answer calls more than 1,000 tools$"):
            await read(api, [made(1001)])


async def test_arguments_that_are_nested_too_deep_to_be_sent_again_are_none() -> None:
    for levels, there in ((127, True), (128, False), (500, False)):
        deep = '{"a":' + "[" * levels + "]" * levels + "}"
        (call,) = collected(await read("openai", [openai_calls(1, deep)])).calls
        assert (call.arguments is not None) is there
        again = Request((Assistant("", (call,)), ToolResult(call.id, "no")))
        assert orjson.dumps(openai.body(again, "m", 1, Dialect()))
        assert orjson.dumps(anthropic.body(again, "m", 1))


async def test_arguments_of_more_values_than_are_read_at_once_are_none_and_texts_do_not_count() -> None:
    def calls(*arguments: str) -> bytes:
        listed = [{"id": "c", "function": {"name": "search", "arguments": each}} for each in arguments]
        choice = {"delta": {"tool_calls": listed}, "finish_reason": "stop"}
        return b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"

    many, half = orjson.dumps({"a": [0] * 40_000}).decode(), orjson.dumps({"a": [0] * 6_000}).decode()
    text = orjson.dumps({"a": "x, {[" * 20_000}).decode()
    small = '{"a": 1}'
    for raw, there in (((many, small), [0, 1]), ((half, half, text, small), [1, 0, 1, 1])):
        found = collected(await read("openai", [calls(*raw)])).calls
        assert [call.arguments is not None for call in found] == list(map(bool, there))
        assert [call.raw for call in found] == list(raw)


@pytest.mark.parametrize("reported", [10**15, 2**62, -(2**62)])
async def test_no_report_of_usage_makes_sums_overflow(reported: int) -> None:
    body = orjson.dumps(
        {
            "choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": reported, "completion_tokens": reported},
        }
    )
    usage = collected(await read("openai", [b"data: " + body + b"\n\n"])).usage
    # Sums of the control store have 64 bits: a million of such answers fit, at a thousand dollars a million tokens.
    assert 0 <= Price.of(1000, None, 1000).cost(usage) * 1_000_000 < 2**63
    assert usage.input + usage.output > 0


async def test_an_event_is_bounded_before_it_is_parsed() -> None:
    for pieces in ([b"data: "] + [b"x" * 65536] * 17, [b'data: {"a": "', b"x" * 1024 * 1024, b'"}\n\n']):
        with pytest.raises(ModelFailed, match="event of its answer is larger than 1048576 bytes"):
            await read("openai", pieces)
    with pytest.raises(ModelFailed, match="more than 10000 values"):
        await read("openai", [b"data: [" + b"[]," * 60_000 + b"1]\n\n"])


# ---- requests ----------------------------------------------------------------------------------------------------

CONVERSATION = Request(
    [
        System("Be brief."),
        System("Be kind."),
        User((Text("What is this? "), Image(data="aGk=", media_type="image/jpeg"), Image(url="https://e.test/a.png"))),
        Assistant("I look. ", (ToolCall("a", "search", {"query": "x"}), ToolCall("b", "my.tool", None, "{"))),
        ToolResult("a", "found"),
        ToolResult("b", "bad arguments", failed=True),
        System("Now answer."),
    ],
    [SEARCH, Tool("my.tool", "Mine.", {"type": "object"})],
    tools_off=True,
    schema={"type": "object"},
    temperature=1.5,
)


def test_a_conversation_on_the_wire_of_openai() -> None:
    body = openai.body(CONVERSATION, "gpt", 100, Dialect())
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [
            {"type": "text", "text": "What is this? "},
            {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,aGk="}},
            {"type": "image_url", "image_url": {"url": "https://e.test/a.png"}},
        ]},
        {"role": "assistant", "content": "I look. ", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"query":"x"}'}},
            {"id": "b", "type": "function", "function": {"name": "my_tool", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "a", "content": "found"},
        {"role": "tool", "tool_call_id": "b", "content": "bad arguments"},
        {"role": "system", "content": "Now answer."},
    ]  # fmt: skip
    assert body["tool_choice"] == "none"
    assert [tool["function"]["name"] for tool in body["tools"]] == ["search", "my_tool"]
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert (body["max_completion_tokens"], body["temperature"], body["stream"]) == (100, 1.5, True)
    assert body["stream_options"] == {"include_usage": True}


def test_a_conversation_on_the_wire_of_anthropic_with_its_marks_for_the_cache() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    body = anthropic.body(CONVERSATION, "claude", 100)
    assert body["system"] == [{"type": "text", "text": "Be brief.\n\nBe kind.", **mark}]
    assert body["messages"] == [
        {"role": "user", "content": [
            {"type": "text", "text": "What is this? "},
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "aGk="}},
            {"type": "image", "source": {"type": "url", "url": "https://e.test/a.png"}},
        ]},
        {"role": "assistant", "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "a", "name": "search", "input": {"query": "x"}},
            {"type": "tool_use", "id": "b", "name": "my_tool", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "found"},
            {"type": "tool_result", "tool_use_id": "b", "content": "bad arguments", "is_error": True},
            {"type": "text", "text": "Now answer.", **mark},
        ]},
    ]  # fmt: skip
    assert [set(tool) for tool in body["tools"]] == [
        {"name", "description", "input_schema"},
        {"name", "description", "input_schema", "cache_control"},
    ]
    assert body["tool_choice"] == {"type": "none"}
    assert (body["max_tokens"], body["temperature"], body["stream"]) == (100, 1.0, True)


@given(st.lists(st.sampled_from([System("s"), User((Text("u"),)), Assistant("a "), ToolResult("x", "r"), System(" ")])))
def test_turns_of_anthropic_alternate_and_the_user_has_the_first_and_the_last(messages: list[Any]) -> None:
    turns = anthropic.body(Request(messages), "claude", 1)["messages"]
    roles = [turn["role"] for turn in turns]
    assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
    assert roles[-1] == "user"
    assert all(turn["content"] for turn in turns)
    assert "cache_control" in turns[-1]["content"][-1]


@given(st.lists(st.text(st.sampled_from("ab._-é/"), min_size=1, max_size=70)))
def test_every_tool_has_a_legal_name_of_its_own_on_the_wire(names: list[str]) -> None:
    found = wire_names(names)
    assert set(found) == set(names)
    assert len(set(found.values())) == len(found)
    for name, wire in found.items():
        assert 0 < len(wire) <= 64
        assert wire.replace("_", "a").replace("-", "a").isalnum()
        assert wire.isascii()
        if name.isascii() and len(name) <= 64 and not set(name) & set("./"):
            assert wire == name


@pytest.mark.parametrize("long", ["", "x" * 62])
def test_names_that_the_wire_cannot_tell_apart_take_no_quadratic_time(long: str) -> None:
    names = [f"{long}{chr(0x4E00 + number % 1000)}{chr(0x4E00 + number // 1000)}" for number in range(4000)]
    names += [f"{long}{chr(97 + number % 26)}{chr(97 + number // 26)}?" for number in range(676)]
    began = time.process_time()
    found = wire_names(names)
    assert time.process_time() - began < 0.3  # it took 3 s and more
    assert len(set(found.values())) == len(names)


async def test_a_call_comes_back_under_the_name_that_the_tool_has_here() -> None:
    request = Request(HELLO.messages, [Tool("my.tool", "", {})])
    call = b'{"tool_calls":[{"id":"a","function":{"name":"my_tool"}}]}'
    stream = b'data: {"choices":[{"delta":%s,"finish_reason":"stop"}]}\n\n' % call
    answer = collected(await read("openai", [stream], request))
    assert [(call.name, call.arguments) for call in answer.calls] == [("my.tool", {})]


@pytest.mark.parametrize(
    ("refusal", "changed"),
    [
        ("Unrecognized request argument: stream_options", {"usage_option": False}),
        ("max_completion_tokens: extra fields not permitted", {"limit_key": "max_tokens"}),
        ("'response_format' of type 'json_schema' is not supported", {"format": False}),
        ("model not found", None),
    ],
)
def test_what_a_server_refuses_is_left_out_once(refusal: str, changed: dict[str, Any] | None) -> None:
    found = Dialect().without(refusal)
    if changed is None:
        assert found is None
        return
    assert found == Dialect(**changed)
    assert found.without(refusal) is None
    request = Request(HELLO.messages, schema={"type": "object"})
    body = openai.body(request, "m", 5, found)
    assert ("stream_options" in body) == found.usage_option
    assert ("response_format" in body) == found.format
    assert body[found.limit_key] == 5

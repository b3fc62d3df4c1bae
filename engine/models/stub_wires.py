"""Scripted replies as a server says them, on both wires: as a stream or whole, and errors. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from engine.models.scripted import Reply, ScriptedCall
from engine.models.shapes import Usage

Wire = Literal["openai", "anthropic"]
PATHS: Mapping[str, Wire] = {
    "/chat/completions": "openai",
    "/v1/chat/completions": "openai",
    "/v1/messages": "anthropic",
}
# A text is streamed in pieces of this many characters.
_PIECE = 16
# The type of each wire's errors, by status.
_OPENAI_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found", 429: "rate_limit_error"}
_ANTHROPIC_ERRORS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """What the stub reads of a request."""

    wire: Wire
    model: str
    stream: bool
    usage_wanted: bool
    messages: list[Any]
    tools: frozenset[str]


def read_request(wire: Wire, body: bytes) -> Asked:
    """A request's body. Raises ValueError, a sentence, for what the real servers refuse, too."""
    try:
        given = orjson.loads(body)
    except ValueError:
        raise ValueError("the body is not JSON") from None
    if not isinstance(given, dict):
        raise ValueError("the body is not an object")
    model, messages = given.get("model"), given.get("messages")
    if not isinstance(model, str) or not model:
        raise ValueError("model: a text is required")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise ValueError("messages: a list of objects is required")
    roles = ("user", "assistant") if wire == "anthropic" else ("system", "developer", "user", "assistant", "tool")
    for at, message in enumerate(messages):
        if message.get("role") not in roles:
            raise ValueError(f"messages.{at}.role: expected one of {', '.join(roles)}")
    _paired(wire, messages)
    if wire == "anthropic" and not isinstance(given.get("max_tokens"), int):
        raise ValueError("max_tokens: a whole number is required")
    options = given.get("stream_options")
    return Asked(
        wire,
        model,
        given.get("stream") is True,
        isinstance(options, dict) and options.get("include_usage") is True,
        messages,
        frozenset(_tools(wire, given.get("tools"))),
    )


def _paired(wire: Wire, messages: list[dict[str, Any]]) -> None:
    """Every call has its result in the messages after it, and every result its call, as the real servers require."""
    waiting: set[str] = set()
    for at, message in enumerate(messages):
        calls, results = _calls_of(wire, message)
        if not results <= waiting:
            raise ValueError(f"messages.{at}: a tool result whose call is not in the message before it")
        waiting -= results
        if waiting and (message["role"] != "tool" or wire == "anthropic"):
            raise ValueError(f"messages.{at}: a tool call without its result")
        waiting |= calls
    if waiting:
        raise ValueError(f"messages.{len(messages)}: a tool call without its result")


def _calls_of(wire: Wire, message: dict[str, Any]) -> tuple[set[str], set[str]]:
    if wire == "openai":
        listed = message.get("tool_calls")
        calls = (
            {str(call.get("id")) for call in listed if isinstance(call, dict)} if isinstance(listed, list) else set()
        )
        return calls, {str(message.get("tool_call_id"))} if message["role"] == "tool" else set()
    blocks = message.get("content")
    blocks = [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    calls = {str(block.get("id")) for block in blocks if block.get("type") == "tool_use"}
    return calls, {str(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"}


def _tools(wire: Wire, tools: Any) -> Iterator[str]:
    for at, tool in enumerate(tools if isinstance(tools, list) else ()):
        named = tool.get("function") if wire == "openai" and isinstance(tool, dict) else tool
        schema = "parameters" if wire == "openai" else "input_schema"
        if not isinstance(named, dict) or not isinstance(name := named.get("name"), str):
            raise ValueError(f"tools.{at}: a name is required")
        if not isinstance(named.get(schema, {}), dict):
            raise ValueError(f"tools.{at}.{schema}: an object is required")
        yield name


# ---- errors ------------------------------------------------------------------------------------------------------


def error(wire: Wire, status: int, message: str) -> bytes:
    """An error's body."""
    if wire == "openai":
        kind = _OPENAI_ERRORS.get(status, "server_error" if status >= 500 else "invalid_request_error")
        return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}})
    kind = _ANTHROPIC_ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_stub"})


# ---- answers -----------------------------------------------------------------------------------------------------


def streamed(asked: Asked, reply: Reply, usage: Usage, number: int) -> list[bytes]:
    """The events of a reply, each as its bytes."""
    if asked.wire == "openai":
        return [b"data: %s\n\n" % each for each in _chunks(asked, reply, usage, number)]
    events = _events(asked, reply, usage, number)
    return [b"event: %s\ndata: %s\n\n" % (event["type"].encode(), orjson.dumps(event)) for event in events]


def whole(asked: Asked, reply: Reply, usage: Usage, number: int) -> bytes:
    """A reply to a request that wants no stream."""
    if asked.wire == "anthropic":
        content = [*([{"type": "text", "text": reply.text}] if reply.text else ())]
        for at, call in enumerate(reply.tool_calls):
            content.append(_tool_use(call, number, at) | {"input": _object(call)})
        return orjson.dumps(_message(asked, number) | {
            "content": content, "stop_reason": _stop(asked, reply), "usage": _anthropic_usage(usage),
        })  # fmt: skip
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.tool_calls:
        message["tool_calls"] = [_function(call, number, at) for at, call in enumerate(reply.tool_calls)]
    choice = {"index": 0, "message": message, "finish_reason": _stop(asked, reply), "logprobs": None}
    return orjson.dumps(
        _completion(asked, number, "chat.completion") | {"choices": [choice], "usage": _openai_usage(usage)}
    )


def _stop(asked: Asked, reply: Reply) -> str:
    if asked.wire == "openai":
        return "tool_calls" if reply.tool_calls else "stop"
    return "tool_use" if reply.tool_calls else "end_turn"


def _pieces(text: str) -> list[str]:
    return [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]


def _raw(call: ScriptedCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else orjson.dumps(call.arguments).decode()


def _object(call: ScriptedCall) -> dict[str, Any]:
    return call.arguments if isinstance(call.arguments, dict) else {}


def _completion(asked: Asked, number: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-stub{number}", "object": kind, "created": 0, "model": asked.model}


def _function(call: ScriptedCall, number: int, at: int) -> dict[str, Any]:
    return {
        "id": f"call_{number}_{at}", "type": "function", "function": {"name": call.name, "arguments": _raw(call)},
    }  # fmt: skip


def _openai_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def _chunks(asked: Asked, reply: Reply, usage: Usage, number: int) -> Iterator[bytes]:
    base = _completion(asked, number, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return orjson.dumps(base | {"choices": [choice]} | ({"usage": None} if asked.usage_wanted else {}))

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(reply.text):
        yield chunk({"content": piece})
    for at, call in enumerate(reply.tool_calls):
        made = _function(call, number, at)
        raw, made["function"]["arguments"] = made["function"]["arguments"], ""
        yield chunk({"tool_calls": [{"index": at, **made}]})
        for piece in _pieces(raw):
            yield chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
    yield chunk({}, _stop(asked, reply))
    if asked.usage_wanted:
        yield orjson.dumps(base | {"choices": [], "usage": _openai_usage(usage)})
    yield b"[DONE]"


def _message(asked: Asked, number: int) -> dict[str, Any]:
    return {
        "id": f"msg_stub{number}", "type": "message", "role": "assistant", "model": asked.model, "content": [],
        "stop_reason": None, "stop_sequence": None,
    }  # fmt: skip


def _tool_use(call: ScriptedCall, number: int, at: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}_{at}", "name": call.name, "input": {}}


def _anthropic_usage(usage: Usage) -> dict[str, Any]:
    """Input tokens beside the cached ones, which this wire reports apart."""
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.output,
    }


def _events(asked: Asked, reply: Reply, usage: Usage, number: int) -> Iterator[dict[str, Any]]:
    begun = _anthropic_usage(usage) | {"output_tokens": min(1, usage.output)}
    yield {"type": "message_start", "message": _message(asked, number) | {"usage": begun}}
    yield {"type": "ping"}
    index = 0
    if reply.text:
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        for piece in _pieces(reply.text):
            yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
        yield {"type": "content_block_stop", "index": 0}
        index = 1
    for at, call in enumerate(reply.tool_calls):
        yield {"type": "content_block_start", "index": index, "content_block": _tool_use(call, number, at)}
        for piece in _pieces(_raw(call)):
            delta = {"type": "input_json_delta", "partial_json": piece}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
        index += 1
    stopped = {"stop_reason": _stop(asked, reply), "stop_sequence": None}
    yield {"type": "message_delta", "delta": stopped, "usage": {"output_tokens": usage.output}}
    yield {"type": "message_stop"}

"""Messages: the wire of Anthropic. Pure.

Marks for the prompt cache are on the system text, the last tool and the last message: each turn of a run sends all of
the turns before it, which then cost a fraction.
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from engine.models.openai import failure, names_of
from engine.models.shapes import (
    Assistant,
    Building,
    Event,
    Image,
    Message,
    Metered,
    ModelFailed,
    Part,
    Reason,
    Request,
    Room,
    Stopped,
    System,
    TextDelta,
    ToolResult,
    Usage,
    User,
    count,
    one_more,
    parsed,
    text_of,
)

API = "anthropic"
DEFAULT_URL = "https://api.anthropic.com"
PATH = "/v1/messages"
VERSION = "2023-06-01"

_CACHED = {"type": "ephemeral"}


def headers(key: str | None) -> dict[str, str]:
    """The headers that carry the version and the key."""
    return {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})


def body(request: Request, model: str, max_output_tokens: int) -> dict[str, Any]:
    """The request as the wire has it."""
    names = names_of(request)
    messages = list(request.messages)
    first = next((at for at, each in enumerate(messages) if not isinstance(each, System)), len(messages))
    found: dict[str, Any] = {
        "model": model,
        "max_tokens": max_output_tokens,
        "messages": _turns(messages[first:], names),
        "stream": True,
    }
    if system := "\n\n".join(each.text for each in messages[:first] if isinstance(each, System) and each.text):
        found["system"] = [{"type": "text", "text": system, "cache_control": _CACHED}]
    if request.temperature is not None:
        found["temperature"] = min(request.temperature, 1.0)
    if request.tools:
        found["tools"] = [
            {"name": names[tool.name], "description": tool.description, "input_schema": dict(tool.parameters)}
            for tool in request.tools
        ]
        found["tools"][-1]["cache_control"] = _CACHED
        if request.tools_off:
            found["tool_choice"] = {"type": "none"}
    return found


def _turns(messages: list[Message], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Messages as turns of alternating roles, the first and last of which are the user's."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if isinstance(message, Assistant) else "user"
        blocks = _blocks(message, names)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        # Results come first in a turn: the API refuses a text between a call and its result. The sort is stable.
        turn["content"].sort(key=lambda block: block["type"] != "tool_result")
    if not turns or turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", "content": [_text("(begin)")]})
    if turns[-1]["role"] != "user":  # the model would continue its own words
        turns.append({"role": "user", "content": [_text("(continue)")]})
    turns[-1]["content"][-1] = {**turns[-1]["content"][-1], "cache_control": _CACHED}
    return turns


def _blocks(message: Message, names: Mapping[str, str]) -> list[dict[str, Any]]:
    match message:
        case System():
            return [_text(message.text)] if message.text.strip() else []
        case User():
            return [block for part in message.parts if (block := _part(part)) is not None]
        case ToolResult():
            result: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.id, "content": message.text}
            return [result | ({"is_error": True} if message.failed else {})]
    # An empty text is refused, and so is one that ends in white space at the end of the turn.
    texts = [_text(message.text.rstrip())] if message.text.strip() else []
    calls = [
        {"type": "tool_use", "id": call.id, "name": names[call.name], "input": dict(call.arguments or {})}
        for call in message.calls
    ]
    return [*texts, *calls]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _part(part: Part) -> dict[str, Any] | None:
    if isinstance(part, Image):
        source = (
            {"type": "url", "url": part.url}
            if part.url
            else {"type": "base64", "media_type": part.media_type, "data": part.data}
        )
        return {"type": "image", "source": source}
    return _text(part.text) if part.text.strip() else None


# ---- answers -----------------------------------------------------------------------------------------------------

_REASONS: Mapping[str, Reason] = {
    "end_turn": "stop", "stop_sequence": "stop", "pause_turn": "stop", "max_tokens": "length",
    "model_context_window_exceeded": "length", "tool_use": "tool_calls", "refusal": "refused",
}  # fmt: skip
_IGNORED = re.compile("ping|content_block_stop")


class Reader:
    """Reads one answer."""

    def __init__(self, request: Request) -> None:
        self._names = {wire: name for name, wire in names_of(request).items()}
        self._room = Room(request.output_bytes)
        self._calls: dict[int, Building] = {}
        self._input: dict[str, int] = {}
        self._output: int | None = None
        self._reason: Reason | None = None
        self._begun = False
        self._ended = False
        self._complete = False

    @property
    def used(self) -> int:
        """The bytes of the answer so far."""
        return self._room.used

    @property
    def ended(self) -> bool:
        """Whether the last payload has come."""
        return self._ended

    def feed(self, event: str, data: str) -> list[Event]:
        if self._ended or not data.strip():
            return []
        chunk = parsed(data)
        if not isinstance(chunk, dict):
            raise ModelFailed("its answer is JSON of another wire")
        match text_of(chunk.get("type")):
            case "message_start":
                self._begun = True
                message = chunk.get("message")
                self._count(message.get("usage") if isinstance(message, dict) else None)
                return [Metered(self._usage())] if self._input else []
            case "content_block_start":
                return self._block(chunk.get("content_block"), _index(chunk))
            case "content_block_delta":
                return self._delta(chunk.get("delta"), _index(chunk))
            case "message_delta":
                delta = chunk.get("delta")
                if isinstance(delta, dict) and delta.get("stop_reason") is not None:
                    self._reason = _REASONS.get(text_of(delta["stop_reason"]), "stop")
                self._count(chunk.get("usage"))
            case "message_stop":
                self._ended = True
            case "error":
                error = chunk.get("error")
                raise failure(error if isinstance(error, dict) else {})
            case "message":  # a complete answer instead of a stream
                return self._whole(chunk)
            case kind if not self._begun and not _IGNORED.fullmatch(kind):
                raise ModelFailed("its answer is JSON of another wire")
        return []

    def _count(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        for key in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            if isinstance(usage.get(key), int):
                self._input[key] = count(usage[key])
        if isinstance(usage.get("output_tokens"), int):
            self._output = count(usage["output_tokens"])

    def _whole(self, message: dict[str, Any]) -> list[Event]:
        self._begun = self._ended = True
        self._count(message.get("usage"))
        self._reason = _REASONS.get(text_of(message.get("stop_reason")), "stop")
        blocks = message.get("content")
        found: list[Event] = []
        for index, block in enumerate(blocks if isinstance(blocks, list) else ()):
            found += self._block(block, index)
        return found

    def _block(self, block: Any, index: int) -> list[Event]:
        if not isinstance(block, dict):
            return []
        if block.get("type") == "text" and (text := text_of(block.get("text"))):
            return [TextDelta(self._room.take(text))]
        if block.get("type") == "tool_use":
            id, name = text_of(block.get("id")), text_of(block.get("name"))
            one_more(self._calls)
            self._room.take("call" + id + name)
            building = self._calls[index] = Building(id, name)
            if isinstance(given := block.get("input"), dict) and given:
                building.pieces.append(self._room.take(orjson.dumps(given).decode()))
        return []

    def _delta(self, delta: Any, index: int) -> list[Event]:
        if not isinstance(delta, dict):
            return []
        if delta.get("type") == "text_delta" and (text := text_of(delta.get("text"))):
            return [TextDelta(self._room.take(text))]
        if delta.get("type") == "input_json_delta" and index in self._calls:
            self._calls[index].pieces.append(self._room.take(text_of(delta.get("partial_json"))))
        return []

    def _usage(self) -> Usage:
        """What the server has reported so far."""
        return Usage(sum(self._input.values()), self._input.get("cache_read_input_tokens", 0), self._output or 0)

    def finish(self) -> list[Event]:
        """The calls and the usage. An answer is whole once its reason has come."""
        if self._complete:
            return []
        self._complete = True
        if self._reason is None:
            raise ModelFailed("its answer ends in the middle", again=True)
        calls = [each.done(position, self._names, self._room) for position, each in enumerate(self._calls.values(), 1)]
        found: list[Event] = list(calls)
        if self._output is not None and self._input:
            found.append(self._usage())
        return [*found, Stopped(self._reason)]


def _index(chunk: Mapping[str, Any]) -> int:
    index = chunk.get("index")
    return index if isinstance(index, int) else 0

"""Chat Completions: the wire of OpenAI, and of most other servers of models. Pure.

Compatible servers differ, so the reader takes calls without an index or id, whole ones in one delta, arguments as an
object, a usage that comes anywhere or never, and a complete answer instead of a stream. What a server refuses of the
request is left out in the next try (`without`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from engine.models.shapes import (
    Assistant,
    Building,
    Event,
    Image,
    Message,
    Metered,
    ModelFailed,
    Reason,
    Request,
    Room,
    Stopped,
    System,
    TextDelta,
    ToolCall,
    ToolResult,
    Usage,
    User,
    count,
    one_more,
    parsed,
    text_of,
    wire_names,
)

API = "openai"
DEFAULT_URL = "https://api.openai.com/v1"
PATH = "/chat/completions"


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a server takes: as OpenAI's own does, until it refuses something."""

    usage_option: bool = True
    limit_key: str = "max_completion_tokens"
    format: bool = True

    def without(self, refusal: str) -> "Dialect | None":
        """The dialect after this answer of status 400 or 422, or None if it refuses nothing that can be left out."""
        if self.usage_option and "stream_options" in refusal:
            return replace(self, usage_option=False)
        if self.limit_key == "max_completion_tokens" and re.search("max_(completion_)?tokens", refusal):
            return replace(self, limit_key="max_tokens")
        if self.format and ("response_format" in refusal or "json_schema" in refusal):
            return replace(self, format=False)
        return None

    def common(self, other: "Dialect") -> "Dialect":
        """What servers of both dialects take."""
        least = "max_tokens" if "max_tokens" in (self.limit_key, other.limit_key) else self.limit_key
        return Dialect(self.usage_option and other.usage_option, least, self.format and other.format)


def headers(key: str | None) -> dict[str, str]:
    """The headers that carry the key."""
    return {"authorization": f"Bearer {key}"} if key else {}


def body(request: Request, model: str, max_output_tokens: int, dialect: Dialect) -> dict[str, Any]:
    """The request as the wire has it."""
    names = names_of(request)
    found: dict[str, Any] = {
        "model": model,
        "messages": [_message(each, names) for each in request.messages],
        "stream": True,
        dialect.limit_key: max_output_tokens,
    }
    if dialect.usage_option:
        found["stream_options"] = {"include_usage": True}
    if request.temperature is not None:
        found["temperature"] = request.temperature
    if request.tools:
        found["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": names[tool.name],
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                },
            }
            for tool in request.tools
        ]
        if request.tools_off:
            found["tool_choice"] = "none"
    if request.schema is not None and dialect.format:
        schema = {"name": "answer", "schema": dict(request.schema)}
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    return found


def names_of(request: Request) -> dict[str, str]:
    """Names on the wire of the request's tools, also of those that only earlier messages call."""
    earlier = [call.name for each in request.messages if isinstance(each, Assistant) for call in each.calls]
    return wire_names([*(tool.name for tool in request.tools), *earlier])


def _message(message: Message, names: Mapping[str, str]) -> dict[str, Any]:
    match message:
        case System():
            return {"role": "system", "content": message.text}
        case User():
            if all(not isinstance(part, Image) for part in message.parts):
                return {"role": "user", "content": "".join(p.text for p in message.parts if not isinstance(p, Image))}
            return {"role": "user", "content": [_part(part) for part in message.parts]}
        case ToolResult():
            return {"role": "tool", "tool_call_id": message.id, "content": message.text}
    found: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if message.calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": names[call.name], "arguments": _sent(call)}}
            for call in message.calls
        ]
    elif not message.text:
        found["content"] = ""
    return found


def _sent(call: ToolCall) -> str:
    """A call's arguments in the history. Some servers refuse what is not JSON, so that is sent as an empty object."""
    return "{}" if call.arguments is None else orjson.dumps(call.arguments).decode()


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, Image):
        return {"type": "image_url", "image_url": {"url": part.url or f"data:{part.media_type};base64,{part.data}"}}
    return {"type": "text", "text": part.text}


# ---- answers -----------------------------------------------------------------------------------------------------

_REASONS: Mapping[str, Reason] = {
    "stop": "stop", "length": "length", "tool_calls": "tool_calls", "function_call": "tool_calls",
    "content_filter": "refused",
}  # fmt: skip
# Errors inside a stream that another try may not meet.
_PASSING = re.compile("overload|rate_?limit|server_error|unavailable|timeout|capacity|internal", re.IGNORECASE)


class Reader:
    """Reads one answer."""

    def __init__(self, request: Request) -> None:
        self._names = {wire: name for name, wire in names_of(request).items()}
        self._room = Room(request.output_bytes)
        self._calls: list[Building] = []
        self._by_index: dict[int, Building] = {}
        self._usage: Usage | None = None
        self._reason: Reason | None = None
        self._done = False
        self._complete = False

    @property
    def used(self) -> int:
        """The bytes of the answer so far."""
        return self._room.used

    @property
    def ended(self) -> bool:
        """Whether the last payload has come."""
        return self._done

    def feed(self, event: str, data: str) -> list[Event]:
        if self._done or not data.strip():
            return []
        if data.strip() == "[DONE]":
            self._done = True
            return []
        chunk = parsed(data)
        if not isinstance(chunk, dict):
            raise ModelFailed("its answer is JSON of another wire")
        if (error := chunk.get("error")) is not None or event == "error":
            raise failure(error if isinstance(error, dict) else chunk)
        metered: list[Event] = []
        if isinstance(usage := chunk.get("usage"), dict):
            details = usage.get("prompt_tokens_details")
            cached = count(details.get("cached_tokens")) if isinstance(details, dict) else 0
            prompt = count(usage.get("prompt_tokens"))
            self._usage = Usage(prompt, min(cached, prompt), count(usage.get("completion_tokens")))
            metered += [Metered(self._usage)] if prompt else []
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            if "usage" in chunk or "object" in chunk or "id" in chunk:
                return metered
            raise ModelFailed("its answer is JSON of another wire")
        choice = choices[0] if choices else None
        if not isinstance(choice, dict) or count(choice.get("index")) > 0:  # one answer is asked for
            return metered
        found = metered + self._delta(choice.get("delta") or choice.get("message"))
        if (finish := choice.get("finish_reason")) is not None:
            self._reason = _REASONS.get(text_of(finish), "stop")
        return found

    def _delta(self, delta: Any) -> list[Event]:
        if not isinstance(delta, dict):
            return []
        found: list[Event] = []
        for key in ("content", "refusal"):
            content = delta.get(key)
            pieces = content if isinstance(content, list) else [{"text": content}]
            text = "".join(text_of(piece.get("text")) for piece in pieces if isinstance(piece, dict))
            if text:
                found.append(TextDelta(self._room.take(text)))
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                self._call(call)
        return found

    def _call(self, call: dict[str, Any]) -> None:
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        id, name, index = text_of(call.get("id")), text_of(function.get("name")), call.get("index")
        last = self._calls[-1] if self._calls else None
        building = self._by_index.get(index) if isinstance(index, int) else last
        # A name begins a call where there is no index to say so; some servers give every call the index 0, and each
        # another id.
        other = building is not None and bool(id) and bool(building.id) and building.id != id
        if building is None or other or (not isinstance(index, int) and name):
            one_more(self._calls)
            building = Building(id, "")
            self._calls.append(building)
            self._room.take("call" + id)
            if isinstance(index, int):
                self._by_index[index] = building
        building.id = building.id or id
        if name and not building.name:
            building.name = self._room.take(name)
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = orjson.dumps(arguments).decode()
        building.pieces.append(self._room.take(text_of(arguments)))

    def finish(self) -> list[Event]:
        """The calls and the usage. An answer is whole with its reason; servers differ in whether `[DONE]` follows."""
        if self._complete:
            return []
        self._complete = True
        if self._reason is None:
            if not self._done:
                raise ModelFailed("its answer ends in the middle", again=True)
            self._reason = "stop"
        calls = [each.done(position, self._names, self._room) for position, each in enumerate(self._calls, 1)]
        if calls and self._reason == "stop":
            self._reason = "tool_calls"
        found: list[Event] = list(calls)
        if self._usage is not None:
            found.append(self._usage)
        return [*found, Stopped(self._reason)]


_WORD = re.compile("[a-z][a-z0-9_]{0,47}")


def failure(error: Mapping[str, Any], status: int | None = None) -> ModelFailed:
    """What an object `error` means. Its text is left out, as it may quote the request, or the key."""
    words = [text for key in ("type", "code") if _WORD.fullmatch(text := text_of(error.get(key)))]
    code = error.get("code")
    passing = any(map(_PASSING.search, words)) or (isinstance(code, int) and (code == 429 or 500 <= code < 600))
    named = f" ({', '.join(dict.fromkeys(words))})" if words else ""
    return ModelFailed(f"its server reports an error{named}", again=passing, status=status)

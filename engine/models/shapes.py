"""What every wire shares: the request to a model, the events of its answer, the ways in which it fails. Pure."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Sized
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson

from engine.values import JsonMarks, is_plain, marks_at_most
from engine.work import WORK

# ---- requests ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image: at an address, or its bytes in base64 with their type."""

    url: str = ""
    data: str = field(default="", repr=False)
    media_type: str = "image/png"


Part = Text | Image


@dataclass(frozen=True, slots=True)
class System:
    """Instructions."""

    text: str


@dataclass(frozen=True, slots=True)
class User:
    """What a user says."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model calls. `raw` is the arguments' text; `arguments` None: it is not a JSON object."""

    id: str
    name: str
    arguments: Mapping[str, Any] | None
    raw: str = field(repr=False, default="{}")


@dataclass(frozen=True, slots=True)
class Assistant:
    """An earlier answer of a model."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a called tool answered."""

    id: str
    text: str
    failed: bool = False


Message = System | User | Assistant | ToolResult


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call; `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a model.

    `tools_off` keeps the tools in the request, as earlier messages call them, and forbids another call. `schema` is the
    JSON Schema of the answer, for wires with a place for it. `max_output_tokens` lowers the bound of the configuration.
    The answer's text and arguments may have `output_bytes` together.
    """

    messages: Sequence[Message] = field(repr=False)
    tools: Sequence[Tool] = ()
    tools_off: bool = False
    schema: Mapping[str, Any] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    output_bytes: int = 1024 * 1024


# ---- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What the answer cost; `input` includes `cached`. `estimated`: the server did not say, so bytes were counted."""

    input: int
    cached: int
    output: int
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Metered:
    """What the server reports before the answer is whole: its input, and its output so far."""

    usage: Usage


# `refused`: the server's filter, or the model, ended the answer.
Reason = Literal["stop", "length", "tool_calls", "refused"]


@dataclass(frozen=True, slots=True)
class Stopped:
    """The answer is complete. It is the last event, after the usage."""

    reason: Reason


Event = TextDelta | ToolCall | Metered | Usage | Stopped


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    text: str
    calls: tuple[ToolCall, ...]
    usage: Usage
    reason: Reason


def collected(events: Iterable[Event]) -> Answer:
    """The answer that a complete stream of events makes."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    usage, reason = Usage(0, 0, 0), None
    for event in events:
        match event:
            case TextDelta():
                texts.append(event.text)
            case ToolCall():
                calls.append(event)
            case Usage():
                usage = event
            case Stopped():
                reason = event.reason
    if reason is None:
        raise ValueError("the events end before the answer does")
    return Answer("".join(texts), tuple(calls), usage, reason)


# ---- failures ----------------------------------------------------------------------------------------------------


class ModelFailed(Exception):
    """No answer came, or not a whole one. The text is the reason, without a word of any message and without a key.

    `again` says whether another try may succeed, `retry_after_s` when the server wants it; `status` is that of HTTP.
    """

    def __init__(
        self, reason: str, *, again: bool = False, retry_after_s: float | None = None, status: int | None = None
    ) -> None:
        super().__init__(reason)
        self.again = again
        self.retry_after_s = retry_after_s
        self.status = status


class AnswerTooLarge(ModelFailed):
    """The answer has more than `output_bytes`."""


# ---- codecs ------------------------------------------------------------------------------------------------------


class Reader(Protocol):
    """Makes events from the payloads of one answer's server-sent events."""

    @property
    def used(self) -> int:
        """The bytes of the answer so far."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the wire's last payload has come."""
        ...

    def feed(self, event: str, data: str) -> list[Event]:
        """The events of one payload. Raises ModelFailed."""
        ...

    def finish(self) -> list[Event]:
        """The events that only the end of the stream makes. Raises ModelFailed for an answer that is not whole."""
        ...


class Model(Protocol):
    """A model as it is called, by one tenant."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        ...

    @property
    def max_output_tokens(self) -> int:
        """The most that one answer may have."""
        ...

    def request_bytes(self, request: Request) -> int:
        """The size of the request's whole body, by which its input is reserved."""
        ...

    def ask(
        self, request: Request, lost: Callable[[Usage], None] = ...
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Send the request; inside the block are the events of the answer. Leaving the block drops the connection.

        `lost` takes what a server reported of a try that ended before it gave anything out.

        Raises Problem: `model_error`, `model_limit` (`context_tokens`), `output_limit`, `unavailable` without a key,
        `queue_timeout` while it waits for its turn. Nothing is sent again once an event was given out.
        """
        ...


# Bounds of one payload before it is parsed.
MAX_EVENT_BYTES = WORK["model answer"].max_bytes or 0
MAX_VALUES = WORK["model answer"].max_values or 0


def values_in(raw: bytes) -> int:
    """How many values this JSON has, but for one: what is in its texts does not count."""
    if (most := marks_at_most(raw)) <= _FEW:
        return most
    marks = JsonMarks()
    marks.feed(raw)
    return marks.marks


def parsed(data: str) -> Any:
    """The JSON of one payload, whose values are counted before any is made. Raises ModelFailed."""
    raw = data.encode()
    if len(raw) > MAX_EVENT_BYTES:
        raise ModelFailed(f"one event of its answer is larger than {MAX_EVENT_BYTES} bytes")
    if values_in(raw) > MAX_VALUES:
        raise ModelFailed(f"one event of its answer holds more than {MAX_VALUES} values")
    try:
        return orjson.loads(raw)
    except ValueError:
        raise ModelFailed("its answer is not JSON where the wire has JSON") from None


# So few are counted in one pass, with those in texts.
_FEW = 64

# One answer may call this many tools: as many as the ceiling of `limits.tool_calls`.
MAX_CALLS = 1_000
# Deeper arguments are none: what renders them for a wire or a person stops at 254 levels.
MAX_DEPTH = 128


def arguments_of(raw: str, room: "Room") -> dict[str, Any] | None:
    """The arguments of a call; None for what is no JSON object, or a deeper or larger one than is read.

    All calls of an answer together have `MAX_VALUES`: they are read at once, and 40,000 values took 50 ms.
    """
    if not room.take_values(values_in(raw.encode())):
        return None
    try:
        found = parsed(raw)
    except ModelFailed:
        return None
    return found if isinstance(found, dict) and is_plain(found, MAX_DEPTH) else None


def one_more(calls: Sized) -> None:
    """Raises ModelFailed if an answer with these calls may have no other one."""
    if len(calls) >= MAX_CALLS:
        raise ModelFailed(f"its answer calls more than {MAX_CALLS:,} tools")


class Ids:
    """The ids of a conversation's calls, no two of which are one: servers refuse that."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        # Each with the last number that made another one of it: from 2 on for each, the search takes quadratic time.
        self._last = dict.fromkeys(ids, 1)

    def unique(self, id: str) -> str:
        """The id, or one made of it that no other call has."""
        unique, number = id, self._last.get(id, 1)
        while unique in self._last:
            number += 1
            unique = f"{id}_{number}"
        self._last[id] = number
        self._last[unique] = 1
        return unique


class Building:
    """A tool call whose arguments arrive in pieces."""

    def __init__(self, id: str = "", name: str = "") -> None:
        self.id = id
        self.name = name
        self.pieces: list[str] = []

    def done(self, position: int, names: Mapping[str, str], room: "Room") -> ToolCall:
        """The whole call; `position` makes an id for a call that came without. Raises ModelFailed without a name."""
        if not self.name:
            raise ModelFailed("its answer calls a tool without a name")
        raw = "".join(self.pieces).strip() or "{}"
        return ToolCall(self.id or f"call_{position}", names.get(self.name, self.name), arguments_of(raw, room), raw)


class Room:
    """The bytes that an answer may still have, and the values in the arguments of its calls."""

    def __init__(self, output_bytes: int) -> None:
        self._bound = self._left = output_bytes
        self._values = MAX_VALUES
        self.used = 0

    def take_values(self, number: int) -> bool:
        """Count values; False, and none is counted, if there are not so many left."""
        if number > self._values:
            return False
        self._values -= number
        return True

    def take(self, text: str) -> str:
        """Count a piece of the answer. Raises AnswerTooLarge."""
        size = len(text.encode())
        self._left -= size
        self.used += size
        if self._left < 0:
            raise AnswerTooLarge(f"its answer is larger than {self._bound} bytes (output_bytes)")
        return text


# Names of tools on both wires: letters, digits, `_` and `-`, at most 64 characters.
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_LONGEST = 64
# What is left of a name where a number follows it.
_STEM = _LONGEST - 8


def wire_names(names: Iterable[str]) -> dict[str, str]:
    """The name on the wire of each of these tools, all different; a legal name stays as it is."""
    wanted = list(dict.fromkeys(names))
    taken = {name for name in wanted if _is_legal(name)}
    found: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for name in wanted:
        if name in taken:
            found[name] = name
            continue
        plain = "".join(c if c in _LEGAL else "_" for c in name[:_LONGEST]) or "_"
        candidate, number = plain, numbers.get(plain[:_STEM], 1)
        while candidate in taken:
            number += 1
            candidate = f"{plain[: _LONGEST - len(str(number)) - 1]}_{number}"
        numbers[plain[:_STEM]] = number
        taken.add(candidate)
        found[name] = candidate
    return found


def _is_legal(name: str) -> bool:
    return 0 < len(name) <= _LONGEST and set(name) <= _LEGAL


# More tokens than any answer has. Sums of usage have 64 bits: with more, one answer could make them overflow.
_MOST_TOKENS = 10**9


def count(value: Any) -> int:
    """A number of tokens as a server reports it, or 0 for what is none."""
    return min(value, _MOST_TOKENS) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def text_of(value: Any) -> str:
    """A text of an answer, or an empty one for what is none."""
    return value if isinstance(value, str) else ""

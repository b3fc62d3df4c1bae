"""The conversation that a run begins with: a program's items and what the caller gives, as messages. Pure."""

import base64
import html
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

import orjson

from agents.chatmd.program import Doc, Nested, Part, Picture, Program, Said, StoredCall, StoredResult, Words, filled
from engine.models.shapes import (
    Assistant,
    Ids,
    Image,
    Message,
    Room,
    System,
    Text,
    ToolCall,
    ToolResult,
    User,
    arguments_of,
)
from engine.models.shapes import Part as SentPart

# What stands for the result of a stored call whose document has none: servers refuse a call without a result.
NO_RESULT = "(the document has no result of this call)"


def given(program: Program, values: Mapping[str, object], *, named: bool) -> tuple[Program, str]:
    """The program with the caller's values in it, and the text of the last message, which has the rest.

    With `named` (the document has `parameters`), `{{NAME}}` stands for a value, and the rest are lines of names and
    values; else there is nothing but `input`.
    """
    if not named:
        return program, _shown(values.get("input", ""))
    texts = {name: _shown(value) for name, value in values.items()}
    program, rest = filled(program, texts)
    if list(rest) == ["input"]:
        return program, texts["input"]
    return program, "\n".join(f"{name}: {texts[name]}" for name in rest)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def nested_in(program: Program) -> list[Nested]:
    """The documents whose answers stand in its messages, in order. Those that they hold in turn are not among them."""
    return [part for item in program.items if isinstance(item, Said) for part in item.parts if isinstance(part, Nested)]


def size_of(parts: Sequence[Part]) -> int:
    """The characters that these parts have at least in a request."""
    return sum(map(_size, parts))


def size_of_all(program: Program) -> int:
    """The characters that the program has at least in a request."""
    return sum(size_of(item.parts) for item in program.items if isinstance(item, Said))


def _size(part: Part) -> int:
    match part:
        case Words() | Doc():
            return len(part.text)
        case Picture():
            return len(part.url) if part.data is None else len(part.data) * 4 // 3
    return 0


def history(program: Program, answers: Sequence[str], last: Sequence[Part] = ()) -> list[Message]:
    """The messages of a program. `answers` are those of `nested_in`, in order; `last` is one more message of a user.

    Parts of `last` that are documents must have been replaced by their answers.
    """
    waiting = deque(answers)
    messages: list[Message] = []
    results: defaultdict[str, deque[str]] = defaultdict(deque)
    for item in program.items:
        if isinstance(item, StoredResult):
            results[item.id].append(item.text)
    calls: list[StoredCall] = []
    ids = Ids()
    for item in program.items:
        if isinstance(item, StoredCall):
            calls.append(item)
            continue
        messages += _called(calls, results, messages, ids)
        calls = []
        if isinstance(item, Said):
            messages.append(_message(item, [_answered(part, waiting) for part in item.parts]))
    messages += _called(calls, results, messages, ids)
    if program.unavailable:
        names = ", ".join(each.name for each in program.unavailable)
        leading = next((at for at, each in enumerate(messages) if not isinstance(each, System)), len(messages))
        messages.insert(leading, System(f"These tools are not available: {names}."))
    if last:
        messages.append(User(tuple(_sent(part) for part in last)))
    return messages


def _answered(part: Part, waiting: deque[str]) -> Part:
    return Words(waiting.popleft()) if isinstance(part, Nested) else part


def _message(said: Said, parts: Sequence[Part]) -> Message:
    if said.role == "user":
        return User(tuple(_sent(part) for part in parts))
    text = "".join(_written(part) for part in parts)
    return System(text) if said.role == "system" else Assistant(text)


def _sent(part: Part) -> SentPart:
    if not isinstance(part, Picture):
        return Text(_written(part))
    if part.data is None:
        return Image(url=part.url)
    return Image(data=base64.b64encode(part.data).decode(), media_type=part.media_type)


def _written(part: Part) -> str:
    """A part as text. A picture of a system message or an answer is its tag: no wire has a place for it there."""
    match part:
        case Words() | Doc():
            return part.text
        case Picture():
            return f'<img src="{html.escape(part.src)}"/>'
    raise AssertionError(part)  # documents have been replaced by their answers


def _called(
    calls: Sequence[StoredCall], results: Mapping[str, deque[str]], before: list[Message], ids: Ids
) -> list[Message]:
    """Stored calls side by side, in the answer that stands before them if there is one, and then their results."""
    if not calls:
        return []
    said = ""
    if before and isinstance(before[-1], Assistant) and not before[-1].calls:
        said = before[-1].text
        before.pop()
    made = [
        ToolCall(ids.unique(each.id), each.name, arguments_of(each.arguments, Room(0)), each.arguments)
        for each in calls
    ]
    found: list[Message] = [Assistant(said, tuple(made))]
    for call, stored in zip(made, calls, strict=True):
        kept = results.get(stored.id)
        found.append(ToolResult(call.id, kept.popleft() if kept else NO_RESULT))
    return found

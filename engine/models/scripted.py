"""Scripts of models: answers in TOML, in order. Pure.

They stand in for a model where none is wanted: in tests and demos, with `api = "script"` and `engine model stub`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.models.reserving import estimated
from engine.models.shapes import Usage

# Bounds of a script.
MAX_SCRIPT_BYTES = 4 * 1024 * 1024
MAX_REPLIES = 10_000
MAX_DELAY_S = 3600.0

Fault = Literal["stall", "cut", "garbage", "huge"]
FAULTS: tuple[Fault, ...] = get_args(Fault)

Count = Field(default=0, ge=0, le=10**12)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ScriptedCall(_Strict):
    """One of `tool_calls`. `arguments` is a table, or a text that is sent as it is."""

    name: str = Field(min_length=1)
    arguments: dict[str, Any] | str = Field(default_factory=dict)


class ScriptedUsage(_Strict):
    """`usage`: the tokens that the answer reports. `cached` is a part of `input`."""

    input: int = Count
    cached: int = Count
    output: int = Count


class Reply(_Strict):
    """One `[[reply]]`."""

    when: str | None = None
    text: str = ""
    tool_calls: tuple[ScriptedCall, ...] = Field(default=(), strict=False)
    usage: ScriptedUsage | None = None
    delay_s: float = Field(default=0.0, ge=0, le=MAX_DELAY_S)
    status: int = Field(default=200, ge=200, le=599)
    fault: Fault | None = None

    def tokens(self, request_bytes: int) -> Usage:
        """What it reports, or what its bytes count as."""
        if self.usage is not None:
            return Usage(self.usage.input, min(self.usage.cached, self.usage.input), self.usage.output)
        said = len(self.text.encode()) + sum(len(str(call.arguments).encode()) for call in self.tool_calls)
        return estimated(request_bytes, said)


class _Script(_Strict):
    reply: tuple[Reply, ...] = Field(default=(), strict=False, min_length=1, max_length=MAX_REPLIES)


def parse_script(text: str) -> tuple[Reply, ...]:
    """The replies of a script. Raises ValueError, a phrase with the key that is wrong."""
    if len(text.encode()) > MAX_SCRIPT_BYTES:
        raise ValueError(f"the script is larger than {MAX_SCRIPT_BYTES} bytes")
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"not valid TOML: {error}") from None
    if "reply" not in tables:
        raise ValueError("it has no [[reply]]")
    try:
        return _Script.model_validate(tables).reply
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{_place(first['loc'])}: {first['msg'].lower()}") from None


def _place(loc: Sequence[Any]) -> str:
    """Where an error is: `reply 2, key usage.input`. Replies count from 1."""
    if len(loc) >= 2 and loc[0] == "reply":
        keys = ".".join(str(part) for part in loc[2:] if part not in ("dict[str,any]", "str"))
        return f"reply {loc[1] + 1}" + (f", key {keys}" if keys else "")
    return ".".join(map(str, loc))


@dataclass(slots=True)
class Scripted:
    """A script that is being played.

    A request takes one of the replies whose `when` is in its last message, or without any such, one of those that have
    no `when`: the first that was not taken yet, else the last. So two conversations at once get the same answers.
    """

    replies: Sequence[Reply]
    _taken: set[int] = field(default_factory=set)

    def next(self, last_message: str) -> Reply | None:
        """The reply to a request whose last message has this text; None if none fits."""
        meant = [at for at, reply in enumerate(self.replies) if reply.when is not None and reply.when in last_message]
        fitting = meant or [at for at, reply in enumerate(self.replies) if reply.when is None]
        if not fitting:
            return None
        at = next((at for at in fitting if at not in self._taken), fitting[-1])
        self._taken.add(at)
        return self.replies[at]


def last_text(messages: Any) -> str:
    """The text of the last message of a request on either wire, tool results included."""
    last = messages[-1] if isinstance(messages, list) and messages else None
    return "\n".join(_texts(last.get("content"))) if isinstance(last, dict) else ""


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    found = []
    for block in content:
        if isinstance(block, Mapping):
            found += _texts(block.get("text")) + _texts(block.get("content"))
    return found

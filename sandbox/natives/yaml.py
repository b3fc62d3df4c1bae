"""YAML, read by libyaml: the core schema of YAML 1.2, within bounds on what its aliases multiply to."""

import re
import struct
from dataclasses import dataclass, field
from typing import Any

import msgspec
import yaml

from sandbox.natives.refused import Refused

# What a text may hold, an alias counted as all that it stands for.
MAX_VALUES = 100_000
MAX_TEXT_BYTES = 16 * 1024 * 1024

_CORE = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


@dataclass(slots=True)
class _Open:
    """A list or map whose end has not come. `key` is the map's key whose value comes next."""

    value: Any
    anchor: str | None
    values: int
    chars: int
    key: str | None = None
    merged: list[dict[str, Any]] = field(default_factory=list)


class _Builder:
    """Values of events. Not recursive: the depth is that of `open`."""

    def __init__(self, depth: int) -> None:
        self.documents: list[Any] = []
        self._depth = depth
        self._open: list[_Open] = []
        # By name: the value, and the values and characters in it.
        self._anchors: dict[str, tuple[Any, int, int]] = {}
        self._values = self._chars = 0

    def take(self, event: Any) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._count(1, len(event.value))
            in_map = self._open and isinstance(self._open[-1].value, dict)
            is_key = in_map and self._open[-1].key is None
            value = event.value if is_key else _scalar(event)
            if event.anchor is not None:
                self._anchors[event.anchor] = value, 1, len(event.value)
            self._put(value, event, plain=event.implicit[0])
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            if event.tag not in (None, "!", _CORE + "map", _CORE + "seq"):
                raise Refused(f"the tag {event.tag[:64]} has no meaning here ({_place(event)})")
            if len(self._open) >= self._depth:
                raise Refused(f"the text is nested deeper than {self._depth} levels ({_place(event)})")
            self._anchors.pop(event.anchor, None)
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
            self._open.append(_Open(value, event.anchor, self._values, self._chars))
            self._count(1, 0)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            done = self._open.pop()
            for merged in done.merged:
                done.value.update({key: value for key, value in merged.items() if key not in done.value})
            if done.anchor is not None:
                self._anchors[done.anchor] = done.value, self._values - done.values, self._chars - done.chars
            self._put(done.value, event)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise Refused(f"the anchor {event.anchor[:64]} is not there, or is around its alias ({_place(event)})")
            value, values, chars = self._anchors[event.anchor]
            self._count(values, chars)
            self._put(value, event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._anchors.clear()

    def _count(self, values: int, chars: int) -> None:
        self._values += values
        self._chars += chars
        if self._values > MAX_VALUES or self._chars > MAX_TEXT_BYTES:
            raise Refused(
                f"the text holds more than {MAX_VALUES} values or {MAX_TEXT_BYTES} characters, aliases counted as "
                "what they stand for"
            )

    def _put(self, value: Any, event: Any, plain: bool = False) -> None:
        if not self._open:
            self.documents.append(value)
            return
        around = self._open[-1]
        if isinstance(around.value, list):
            around.value.append(value)
        elif around.key is None:
            if not isinstance(value, str):
                raise Refused(f"a key is a list, a map or an alias of one; keys are text ({_place(event)})")
            around.key = "<<" if plain and value == "<<" else value
        else:
            key, around.key = around.key, None
            if key == "<<" and isinstance(value, dict | list):
                sources = [value] if isinstance(value, dict) else value
                if not all(isinstance(source, dict) for source in sources):
                    raise Refused(f"<< merges maps only ({_place(event)})")
                around.merged += sources
            elif key in around.value:
                raise Refused(f"the key {key[:64]!r} is there twice ({_place(event)})")
            else:
                around.value[key] = value


def parse(arguments: bytes) -> bytes:
    """The documents of a text as a msgpack list: the deepest nesting (16 bits), whether several may be, the text."""
    depth, several = struct.unpack_from(">HB", arguments)
    try:
        text = arguments[3:].decode()
    except UnicodeDecodeError:
        raise Refused("the text is not UTF-8") from None
    builder = _Builder(depth)
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            builder.take(event)
            if len(builder.documents) > 1 and not several:
                raise Refused("the text holds several documents; with { all = true } in the options they are a list")
    except yaml.YAMLError as error:
        raise Refused(_reason(error)) from None
    return msgspec.msgpack.encode(builder.documents)


def warm_up() -> None:
    """First use, ahead of confinement."""
    parse(struct.pack(">HB", 9, 1) + b"a: &x [1, 'b', {c: 1.5}]\nd: *x\n")


def _scalar(event: Any) -> Any:
    """A scalar's value: by its tag, else by its form if it is plain, else text."""
    text, tag = event.value, event.tag
    if tag in ("!", _CORE + "str") or (tag is None and not event.implicit[0]):
        return text
    if tag is not None and tag not in {_CORE + each for each in ("int", "float", "bool", "null")}:
        raise Refused(f"the tag {tag[:64]} has no meaning here ({_place(event)})")
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        # Beyond 64 bits an integer becomes a float, as everywhere in JSON for Lua.
        return _fitting(int(text)) if len(text) <= 20 else float(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0) if len(text) < 18 else _as_float(int(text, 0))
    if _FLOAT.fullmatch(text):
        return float(text)
    if tag is not None:
        raise Refused(f"{text[:64]!r} is no {tag.removeprefix(_CORE)} ({_place(event)})")
    return text


def _fitting(number: int) -> int | float:
    return number if -(1 << 63) <= number < 1 << 63 else float(number)


def _as_float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf")


def _place(event: Any) -> str:
    return f"line {event.start_mark.line + 1}"


def _reason(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    mark = getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return f"{problem[:200]}{where}"

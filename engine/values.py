"""Hostile JSON and msgpack: values counted before any is made, decoded within bounds, encoded for Lua. Pure.

One byte of JSON or msgpack may become a Python object of 24 to 232 bytes, and every pass over it takes 50 to 300 ns. So
a bound in bytes is not enough: a megabyte of `[],` is 350,000 lists.
"""

import gc
import math
import sys
from collections.abc import Generator
from itertools import chain
from typing import Any, TypeVar, cast

import msgspec

from engine.packed import NotPlain, plain_values
from engine.work import WORK
from sandbox.wire.limits import Limits

T = TypeVar("T")

# More bytes than this are counted in slices of this size, 1.6 ms at most each, with a checkpoint between two slices.
SLICE = 64 * 1024

_NOT_MARKS = bytes(set(range(256)) - set(b",:[{"))


def marks_at_most(text: bytes) -> int:
    """An upper bound of `JsonMarks.marks`, which also counts marks inside strings: 2 ms for 4 MiB."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


class JsonMarks:
    """Counts the marks of JSON outside its strings, slice by slice. Any split of the bytes gives the same counts.

    `marks` are `,`, `[` and `{`: every value but the first follows one, so there are at most `marks + 1` values, not
    counting keys. `colons` equals the number of keys. For bytes that are not JSON, the counts are at least those of the
    part that a parser reads before it stops.
    """

    __slots__ = ("_held", "_inside", "colons", "marks")

    def __init__(self) -> None:
        self.marks = 0
        self.colons = 0
        # Whether the next byte is inside a string, and the backslash that ended the last slice, if any.
        self._inside = 0
        self._held = b""

    def feed(self, part: bytes) -> None:
        """Count the next bytes. All work on single bytes is done in C."""
        part = self._held + part
        # An even number of trailing backslashes is all pairs; an odd one escapes the first byte of the next slice. Once
        # pairs are removed, a backslash before a quote can only escape it.
        odd = (len(part) - len(part.rstrip(b"\\"))) & 1
        self._held = b"\\" if odd else b""
        if odd:
            part = part[:-1]
        pieces = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[self._inside :: 2]).translate(None, _NOT_MARKS)
        self._inside ^= (len(pieces) - 1) & 1
        colons = outside.count(b":")
        self.colons += colons
        self.marks += len(outside) - colons


# ---- msgpack -----------------------------------------------------------------------------------------------------

_ESCAPED = bytes((*range(32), *b'"\\'))
# The longest number is a float, 24 characters; and a value is followed by one of `,`, `:`, `]`, `}`.
JSON_AROUND_VALUE = 26


def json_bytes_at_most(raw: bytes) -> int:
    """An upper bound of the strings in this msgpack as JSON. Add JSON_AROUND_VALUE for each value.

    Every escaped character counts as six bytes: `\\"` has two, but takes as long to write as `\\u0000` (7 to 14 ns).
    """
    return len(raw) + 5 * (len(raw) - len(raw.translate(None, _ESCAPED)))


def is_plain(value: Any, depth: int) -> bool:
    """Whether it is JSON data of at most this depth, with strings for keys. For large values: C code visits each."""
    level: list[Any] = [value]
    while True:
        kinds = set(map(type, level))
        if not kinds <= _PLAIN:
            return False
        if float in kinds and not all(map(math.isfinite, (item for item in level if type(item) is float))):
            return False
        lists = [item for item in level if type(item) is list] if list in kinds else []
        maps = [item for item in level if type(item) is dict] if dict in kinds else []
        if not lists and not maps:
            return True
        if depth <= 0 or not set(map(type, chain.from_iterable(maps))) <= _KEYS:
            return False
        depth -= 1
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, maps))]


_PLAIN = frozenset({str, int, float, bool, type(None), list, dict})
_KEYS = frozenset({str})


# ---- answers of scripts ------------------------------------------------------------------------------------------

# Bound on the values of an answer inside its outermost one. An answer of no more bytes than this cannot hold more.
MAX_VALUES = WORK["answer"].max_values or 0
# Bound on an answer as JSON, with six bytes for each escaped character: 20 MiB of these take 34 to 49 ms.
MAX_JSON_BYTES = WORK["answer as JSON"].max_bytes or 0
# Bytes counted between checkpoints: 3 ms.
JSON_SLICE = 1024 * 1024


class ValueRefused(Exception):
    """A value from a worker that is not plain JSON data within bounds. `limit` names the exceeded limit, if any."""

    def __init__(self, message: str, limit: str | None = None) -> None:
        super().__init__(message)
        self.limit = limit


def decode_value(raw: bytes | memoryview, limits: Limits) -> Any:
    """A script's answer as plain JSON data: dict, list, str, int, float, bool, None. Raises ValueRefused."""
    if len(raw) > limits.output_bytes:
        raise ValueRefused(f"is larger than {limits.output_bytes} bytes", "output_bytes")
    if len(raw) > MAX_VALUES:
        return drained(decoding(raw, limits))
    value = _unpacked(raw, limits)
    if not _is_plain(value, limits.value_depth):
        _refuse(value, limits.value_depth, "")
    return value


def decoding(raw: bytes | memoryview, limits: Limits) -> Generator[None, None, Any]:
    """`decode_value` for a value within `output_bytes`, in pieces; the caller makes a checkpoint at each yield."""
    try:
        values = yield from plain_values(raw, MAX_VALUES + 1)
    except NotPlain:
        raise ValueRefused("is not plain data") from None
    if values > MAX_VALUES + 1:
        raise ValueRefused(f"holds more than {MAX_VALUES} values and keys", "values")
    yield
    if 6 * len(raw) > MAX_JSON_BYTES:  # an escaped character is six bytes at most
        room = MAX_JSON_BYTES - JSON_AROUND_VALUE * values
        for at in range(0, len(raw), JSON_SLICE):
            room -= json_bytes_at_most(bytes(raw[at : at + JSON_SLICE]))
            yield
        if room < 0:
            raise ValueRefused(
                f"may take more than {MAX_JSON_BYTES} bytes as JSON, an escaped character counted as six", "json_bytes"
            )
    gc.disable()  # every new object is alive, and a collection takes as long as decoding
    try:
        value = _unpacked(raw, limits)
    finally:
        gc.enable()
    yield
    plain = is_plain(value, limits.value_depth)
    yield
    if not plain:
        _refuse(value, limits.value_depth, "")
    return value


def drained(pieces: Generator[None, None, T]) -> T:
    """The result of work in pieces, done without a pause."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            return cast(T, end.value)


def _unpacked(raw: bytes | memoryview, limits: Limits) -> Any:
    try:
        return msgspec.msgpack.decode(raw)
    except RecursionError:
        raise ValueRefused(f"is nested deeper than {limits.value_depth} levels", "value_depth") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        raise ValueRefused("is not plain data") from None


def _is_plain(value: Any, depth: int) -> bool:
    """Whether it is JSON data of at most this depth, with strings for keys."""
    kind = type(value)
    if kind is str or kind is int or value is None or kind is bool:
        return True
    if kind is dict:
        if depth <= 0:
            return False
        for key, item in value.items():  # noqa: SIM110 (a generator takes twice as long)
            if type(key) is not str or not _is_plain(item, depth - 1):
                return False
        return True
    if kind is list:
        if depth <= 0:
            return False
        for item in value:  # noqa: SIM110
            if not _is_plain(item, depth - 1):
                return False
        return True
    return kind is float and math.isfinite(value)


def _refuse(value: Any, depth: int, path: str) -> None:
    """Raise ValueRefused for the first part that is not plain. The prelude never sends such values."""
    if isinstance(value, dict | list):
        if depth <= 0:
            raise ValueRefused(f"{path} is nested too deep".strip(), "value_depth")
        if isinstance(value, list):
            for i, item in enumerate(value):
                _refuse(item, depth - 1, f"{path}[{i + 1}]")
        else:
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ValueRefused(f"{path} has a key that is not text".strip())
                _refuse(item, depth - 1, f"{path}.{key[:64]}")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueRefused(f"{path} is not a finite number".strip())
    elif value is not None and not isinstance(value, str | int):
        raise ValueRefused(f"{path} is not plain data".strip())


def encode_value(value: Any) -> bytes:
    """JSON data as one msgpack value for Lua. Integers beyond 64 bits become floats, as in `json.decode`.

    Raises UnicodeEncodeError for a lone surrogate, which UTF-8 cannot encode.
    """
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:
        return msgspec.msgpack.encode(_floats_for_large(value))


def _floats_for_large(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _floats_for_large(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_floats_for_large(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 64:
        try:
            return float(value)
        except OverflowError:
            return sys.float_info.max if value > 0 else -sys.float_info.max
    return value

"""Conversion of a value from Python code to plain JSON data: a bounded copy, with errors that name the path."""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from agents.shapes.shape import WrongShape


class TooMuch(Exception):
    """A value exceeds a limit. `limit` is its name: `output_bytes` or `value_depth`."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


def plain(value: Any, what: str, *, size: int, depth: int) -> Any:
    """The value as dict, list, str, int, float, bool and None. Tuples become lists, pydantic models objects.

    `size` bounds its JSON text in bytes, roughly; `depth` its nesting, which also catches a value that contains itself.
    Raises TooMuch, and WrongShape for values that JSON cannot represent: `what` and the path name it.
    """
    return _Copier(what, size).copy(value, depth, "")


class _Copier:
    def __init__(self, what: str, size: int) -> None:
        self._what = what
        self._left = size

    def copy(self, value: Any, depth: int, path: str) -> Any:
        if isinstance(value, BaseModel):
            value = self._dumped(value, path)
        match value:
            case None | bool():
                return self._scalar(value, 4)
            case str():
                text = str.__str__(value)  # works for a str enum's member too
                return self._scalar(text, len(self._encoded(text, path)) + 2)
            case int():
                return self._scalar(int(value), value.bit_length() // 4 + 1)
            case float():
                if not math.isfinite(value):
                    raise self._wrong(path, "is not a finite number")
                return self._scalar(float(value), 8)
        if depth <= 0:
            raise TooMuch("value_depth")
        match value:
            case list() | tuple():
                self._spend(2 + len(value))
                return [self.copy(item, depth - 1, f"{path}[{index}]") for index, item in enumerate(value)]
            case Mapping():
                self._spend(2 + 4 * len(value))
                return {
                    self._key(key, path): self.copy(item, depth - 1, f"{path}.{key}") for key, item in value.items()
                }
        raise self._wrong(path, "is not JSON data")

    def _key(self, key: Any, path: str) -> str:
        if not isinstance(key, str):
            raise self._wrong(path, "has a key that is not text")
        self._spend(len(self._encoded(key, path)))
        return str.__str__(key)

    def _dumped(self, model: BaseModel, path: str) -> Any:
        try:
            return model.model_dump(mode="json", by_alias=True)
        except ValueError:  # includes pydantic's serialization errors
            raise self._wrong(path, "is a model that has no JSON form") from None

    def _encoded(self, text: str, path: str) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise self._wrong(path, "holds half of a surrogate pair, which is not text") from None

    def _scalar(self, value: Any, size: int) -> Any:
        self._spend(size)
        return value

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooMuch("output_bytes")

    def _wrong(self, path: str, problem: str) -> WrongShape:
        shown = path.lstrip(".")[:200]
        return WrongShape(f"{self._what}{': ' if shown else ''}{shown} {problem}")

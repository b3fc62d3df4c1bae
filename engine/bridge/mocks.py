"""Mocked host calls: rows that answer calls in place of their handlers, while an author tries a script. Pure.

A mocked call needs no grant and reaches nothing. It is counted and metered as any other (`Bridge.call`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# The most calls without a row that are remembered, and the most characters of a text in the row that is shown for one.
MAX_MISSING = 20
MAX_SHOWN = 200
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(slots=True, kw_only=True)
class Row:
    """One row: calls of `name` whose arguments have all of `given` get `reply`, or fail with `error`.

    It answers `times` calls, None: any number. `line` is its line in the file; `used` counts its answers.
    """

    name: str
    given: Mapping[str, Any] = field(default_factory=dict)
    reply: Any = None
    error: str | None = None
    times: int | None = None
    line: int = 0
    used: int = 0

    @property
    def left(self) -> bool:
        return self.times is None or self.used < self.times


@dataclass(slots=True)
class Mocks:
    """The rows of one file. With `only`, a call without a row is refused, and noted in `missing` as a row to paste."""

    rows: Sequence[Row]
    only: bool = False
    missing: list[str] = field(default_factory=list)

    def answering(self, name: str, arguments: Any) -> Row | None:
        """The first row that matches and is not used up; it counts as used. None if no row does."""
        for row in self.rows:
            if row.name == name and row.left and matches(row.given, arguments):
                row.used += 1
                return row
        return None

    def refuse(self, name: str, arguments: Any) -> str:
        """The error of a call without a row."""
        row = as_row(name, arguments)
        if row not in self.missing and len(self.missing) < MAX_MISSING:
            self.missing.append(row)
        return f"no row of the mocks answers this call; one that does begins with {' '.join(row.splitlines())}"

    @property
    def unused(self) -> list[Row]:
        """The rows that answered no call, or fewer than their `times`."""
        return [row for row in self.rows if row.used < (row.times or 1)]


def matches(wanted: Any, given: Any) -> bool:
    """Whether a value is what a row asks for: a table may have more keys, everything else is equal.

    A string also equals the bytes of its UTF-8; true and false equal no number.
    """
    if isinstance(wanted, Mapping):
        return isinstance(given, Mapping) and all(key in given and matches(wanted[key], given[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(given, list) and len(wanted) == len(given) and all(map(matches, wanted, given))
    if isinstance(wanted, bool) or isinstance(given, bool):
        return wanted is given
    if isinstance(given, bytes):
        return isinstance(wanted, str) and wanted.encode() == given
    return bool(wanted == given)


def reply_to(row: Row, arguments: Any) -> Any:
    """The reply of a row to a call with these arguments: that of `http` has the URL that was asked for."""
    if row.name.startswith("http.") and isinstance(row.reply, dict) and not row.reply.get("url"):
        return {**row.reply, "url": arguments.get("url", "")}
    return row.reply


def as_row(name: str, arguments: Any) -> str:
    """The beginning of a row for this call, as TOML. Of `http` only the URL: headers hold credentials."""
    if name.startswith("http.") and isinstance(arguments, Mapping):
        arguments = {key: value for key, value in arguments.items() if key == "url"}
    given = _toml(arguments) if isinstance(arguments, Mapping) and arguments else None
    return "\n".join(["[[call]]", f"name = {_text(name)}", *([] if given is None else [f"with = {given}"])])


def _toml(value: Any) -> str | None:
    """A value in one line of TOML, without what TOML cannot have and without long texts: a row asks for a part."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value) if len(value) <= MAX_SHOWN else None
        case int() | float():
            return repr(value)
        case list():
            items = [_toml(item) for item in value]
            return None if None in items else f"[{', '.join(map(str, items))}]"
        case dict():
            pairs = ((key, _toml(item)) for key, item in value.items() if len(str(key)) <= MAX_SHOWN)
            return f"{{{', '.join(f'{_key(str(key))} = {text}' for key, text in pairs if text is not None)}}}"
    return None


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

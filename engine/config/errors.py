"""Errors of a configuration: the dotted key, what was seen, what was expected. Pure."""

import json
import re
from typing import Any

from engine.names import nearest

Loc = tuple[str | int, ...]
Table = dict[str, Any]
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class ConfigError(Exception):
    """The configuration cannot be used. The text is one line with the file, the key, what was seen and expected."""


class Wrong(Exception):
    """A key of the file is wrong: its place (in the file's terms) and one phrase."""

    def __init__(self, loc: Loc, phrase: str) -> None:
        super().__init__(phrase)
        self.loc = loc
        self.phrase = phrase


def dotted(loc: Loc) -> str:
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            # Quoted as in TOML, and escaped so that the message stays one line.
            quoted = "".join(c if c.isprintable() and c not in '"\\' else json.dumps(c)[1:-1] for c in part)
            text += ("." if text else "") + (part if _BARE_KEY.fullmatch(part) else f'"{quoted}"')
    return text


def unknown_key(loc: Loc, known: list[str]) -> Wrong:
    name = str(loc[-1])
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"known keys here: {', '.join(known)}"
    return Wrong(loc, f"unknown key; {hint}")


def as_seen(value: Any) -> str:
    """A value as an error message shows it."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value if len(value) <= 60 else value[:57] + "...")
        case int() | float():
            return str(value)[:60]
        case list():
            return "a list"
        case dict():
            return "a table"
    return "a date or time"

"""The share of the callers that a canary serves: its bounds, and which callers are in it. Pure."""

import json
from hashlib import blake2b
from typing import Any

from engine.errors import Code, Problem

# Every caller: the version is the active one, and no canary.
ALL = 100

_BYTES = 8


def check_percent(given: Any) -> int:
    """The percent of a request: 1 to 99 for a canary, or `ALL`. Raises Problem (400)."""
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not number or not 1 <= given <= ALL or given != int(given):
        raise Problem(
            Code.BAD_REQUEST,
            f"percent must be a whole number from 1 to {ALL}, which is every caller; got {_brief(given)}",
        )
    return int(given)


def is_served(tenant: str, name: str, version: str, caller: str, percent: int) -> bool:
    """Whether a canary of so many percent serves this caller.

    A caller keeps its place for as long as a version is the canary, in every process: a larger share adds callers, and
    takes none away. Another version has other callers first.
    """
    text = f"{tenant}\0{name}\0{version}\0{caller}".encode("utf-8", "surrogatepass")
    place = int.from_bytes(blake2b(text, digest_size=_BYTES).digest())
    return place * ALL < percent << 8 * _BYTES


def _brief(given: Any) -> str:
    if isinstance(given, str):
        return repr(given[:32])
    if given is None or isinstance(given, bool):
        return json.dumps(given)
    if isinstance(given, int | float) and abs(given) < 1e9:
        return f"{given:g}"
    if isinstance(given, dict):
        return "an object"
    return "a list" if isinstance(given, list) else "a number"

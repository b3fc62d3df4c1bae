"""Request bodies: strict JSON in, one object out, and the envelope rule that joins two request forms."""

import json
import re
from typing import Any, NoReturn

import orjson

from engine.errors import Code, Problem
from sandbox.limits import SPECS
from server.asgi import Exchange

# Nobody may ask for deeper values than the engine's ceiling lets a script handle.
MAX_DEPTH = int(SPECS["value_depth"].ceiling)

_POSITION = re.compile(r": line (\d+) column (\d+)")


class _Duplicate(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise _Duplicate(key)
        seen.add(key)


# Looks for duplicate keys and nothing else: numbers stay unconverted and objects become None.
_duplicates = json.JSONDecoder(object_pairs_hook=_unique, parse_int=str, parse_float=str)


def _bad(message: str) -> NoReturn:
    raise Problem(Code.BAD_REQUEST, message)


def _depth_exceeds(value: Any, bound: int) -> bool:
    """Whether more than `bound` containers are inside each other. Without recursion: the value is a stranger's."""
    level = [value]
    for _ in range(bound):
        level = [
            inner
            for container in level
            if isinstance(container, dict | list)
            for inner in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return False
    return any(isinstance(inner, dict | list) for inner in level)


def _surely_unique(value: Any, raw: bytes) -> bool:
    """Whether no object can have had a key twice: every colon of the text belongs to a key that is in the value.

    A key that was there twice has two colons and is one key. Colons in texts make this False, too.
    """
    colons, level = raw.count(b":"), [value]
    while level and colons >= 0:
        inner: list[Any] = []
        for container in level:
            if type(container) is dict:
                colons -= len(container)
                inner += container.values()
            elif type(container) is list:
                inner += container
        level = inner
    return colons == 0


def check_content_type(content_type: bytes | None) -> None:
    """A body is `application/json`, in UTF-8 if it says so (RFC 8259 sections 8.1 and 11). Raises Problem (415)."""
    media, _, parameters = (content_type or b"").decode("latin-1").partition(";")
    if media.strip().lower() != "application/json":
        seen = f"not {media.strip()[:80]!r}" if media.strip() else "and the request says nothing"
        raise Problem(Code.UNSUPPORTED_MEDIA_TYPE, f"a body needs Content-Type: application/json, {seen}")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in ("utf-8", "utf8"):
            raise Problem(Code.UNSUPPORTED_MEDIA_TYPE, f"JSON is UTF-8, not {value.strip()[:40]!r}")


def parse_json(raw: bytes) -> Any:
    """One JSON value, strictly: UTF-8, no NaN or Infinity, no duplicate keys, bounded depth. Raises Problem (400).

    Integers beyond 64 bits become floats, as they do for scripts.
    """
    try:
        value = orjson.loads(raw)
    except ValueError as error:
        where = _POSITION.search(str(error))
        _bad(f"the body is not JSON (line {where[1]}, column {where[2]})" if where else "the body is not JSON")
    # A value cannot be deeper than it has opening brackets: counting bytes is cheap, walking is for the rest.
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _depth_exceeds(value, MAX_DEPTH):
        _bad(f"the body nests deeper than {MAX_DEPTH} levels")
    if not _surely_unique(value, raw):
        try:
            _duplicates.decode(raw.decode())
        except _Duplicate as duplicate:
            _bad(f"the body has the key {duplicate.key[:80]!r} twice in one object")
    return value


def parse_object(raw: bytes, content_type: bytes | None) -> dict[str, Any]:
    """The JSON object in a body; an empty body is `{}` whatever its type. Raises Problem (400, 415)."""
    if not raw:
        return {}
    check_content_type(content_type)
    value = parse_json(raw)
    if not isinstance(value, dict):
        _bad("the body must be a JSON object")
    return value


def unwrap(body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The arguments in a body, and whether the answer goes into `{"result": ...}`.

    A body whose only key is `arguments`, holding an object, is the wrapped form; every other one is flat.
    """
    arguments = body.get("arguments")
    if len(body) == 1 and isinstance(arguments, dict):
        return arguments, True
    return body, False


# A body below this size costs less to read than to charge for.
FREE_BYTES = 4 * 1024


async def read_object(exchange: Exchange) -> dict[str, Any]:
    """The JSON object in the body of a request, the work charged to its tenant. Raises Problem (400, 415, 429)."""
    content_type = exchange.headers.get(b"content-type")
    if len(exchange.body) < FREE_BYTES:
        return parse_object(exchange.body, content_type)
    with exchange.working():
        return parse_object(exchange.body, content_type)

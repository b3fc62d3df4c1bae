"""Request bodies: strict JSON in, one object out, in its flat or its wrapped form."""

import gc
import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import orjson
import trio

from engine.errors import Code, Problem
from engine.host.memory import require_memory
from engine.values import SLICE, JsonMarks, marks_at_most
from engine.work import WORK, WorkSpec
from sandbox.wire.limits import SPECS
from server.http.asgi import Exchange

# No configuration can let a script handle deeper values than the engine's ceiling.
MAX_DEPTH = int(SPECS["value_depth"].ceiling)

# Parsing a body below this size costs less than charging for it: some 1,300 values, a quarter of a millisecond.
FREE_BYTES = 4 * 1024
# In a body larger than this, a duplicate key is refused without its name: finding the name takes another pass.
NAMED_BYTES = 64 * 1024

# The most memory that a value with its key takes in Python, apart from the characters of strings; and a reserve for the
# rest of the process meanwhile, such as the answer to a refused body.
VALUE_BYTES = 256
HEADROOM_BYTES = 16 * 1024 * 1024

# Opens a block of work charged to a tenant; no `await` inside (`Exchange.working`).
Working = Callable[[], AbstractContextManager[None]]

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


def _keys(value: Any) -> int:
    """The number of keys in all objects of a value. Raises Problem for containers nested deeper than MAX_DEPTH.

    Iterative, and only containers are kept for the next level: 15 ms for the most values that a body may hold.
    """
    keys, level = 0, [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for container in level:
            if type(container) is dict:
                keys += len(container)
                for item in container.values():  # for a few items a comprehension takes twice as long
                    if type(item) is dict or type(item) is list:
                        inner.append(item)
            elif type(container) is list:
                for item in container:
                    if type(item) is dict or type(item) is list:
                        inner.append(item)
        if not inner:
            return keys
        level = inner
    _bad(f"the body nests deeper than {MAX_DEPTH} levels")


def check_content_type(content_type: bytes | None) -> None:
    """Require `application/json`, with no charset but UTF-8 (RFC 8259 sections 8.1 and 11). Raises Problem (415)."""
    media, _, parameters = (content_type or b"").decode("latin-1").partition(";")
    if media.strip().lower() != "application/json":
        seen = f"not {media.strip()[:80]!r}" if media.strip() else "and the request has none"
        raise Problem(Code.UNSUPPORTED_MEDIA_TYPE, f"a body needs Content-Type: application/json, {seen}")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in ("utf-8", "utf8"):
            raise Problem(Code.UNSUPPORTED_MEDIA_TYPE, f"JSON is UTF-8, not {value.strip()[:40]!r}")


def parse_json(raw: bytes) -> Any:
    """Parse one JSON value, strictly: UTF-8, no NaN or Infinity, no duplicate keys, bounded depth.

    Integers beyond 64 bits become floats, as they do for scripts. Only the number of bytes bounds the work: use
    `read_json` for bodies that are not short. Raises Problem (400, 503).
    """
    value = _parsed(raw)
    # More colons than keys: a key twice in one object, or colons inside strings.
    if _keys(value) != raw.count(b":"):
        _refuse_duplicates(raw)
    return value


def _parsed(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except ValueError as error:
        if "memory" in str(error):  # a valid document, but orjson could not allocate a buffer
            raise no_memory() from None
        if not _is_utf8(raw):
            _bad("the body is not UTF-8")
        where = _POSITION.search(str(error))
        _bad(f"the body is not JSON (line {where[1]}, column {where[2]})" if where else "the body is not JSON")


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _require_memory(raw: bytes, max_values: int) -> None:
    """Raise Problem (503) unless there is memory for the values of a body, whose number is within the bound."""
    try:
        # orjson's own tree takes 6 times the text; strings of four bytes a character, 4 times.
        require_memory(10 * len(raw) + VALUE_BYTES * min(max_values, len(raw)) + HEADROOM_BYTES)
    except MemoryError:
        raise no_memory() from None


def no_memory() -> Problem:
    """The error when there is no memory for a body: the server's fault, not the client's."""
    return Problem(Code.UNAVAILABLE, "the server is short of memory for this body", retry_after_s=1)


def _refuse_duplicates(raw: bytes) -> None:
    try:
        _duplicates.decode(raw.decode())
    except _Duplicate as duplicate:
        _bad(f"the body has the key {duplicate.key[:80]!r} twice in one object")


async def read_json(raw: bytes, working: Working, work: WorkSpec) -> Any:
    """Like `parse_json`, for a body of any size, in pieces: each in a `working` block, with a checkpoint between them.

    A body with more values than `work` allows is refused before any value is made (Problem, 400).
    """
    if len(raw) < FREE_BYTES:
        return parse_json(raw)
    bound = work.max_values or 0
    marks = None
    if marks_at_most(raw) > bound:
        marks = await _marks(raw, working, bound)
        if marks.marks > bound:
            _bad(f"the body holds too many values: more than {bound} commas and opening brackets outside its texts")
    await trio.lowlevel.checkpoint()  # joining the body's parts and counting took up to 10 ms
    _require_memory(raw, bound)
    with working():
        value = _without_collections(_parsed, raw)
    await trio.lowlevel.checkpoint()
    with working():
        keys, colons = _keys(value), raw.count(b":")
    if keys != colons:
        marks = marks or await _marks(raw, working, bound)
        if keys != marks.colons:
            with working():
                if len(raw) <= NAMED_BYTES:
                    _refuse_duplicates(raw)
                _bad("the body has a key twice in one object")
    await trio.lowlevel.checkpoint()  # the caller checks the value against a schema
    return value


async def _marks(raw: bytes, working: Working, bound: int) -> JsonMarks:
    """The marks of a text. Counting stops once they are more than `bound`."""
    marks, at = JsonMarks(), 0
    while at < len(raw) and marks.marks <= bound:
        with working():
            marks.feed(raw[at : at + SLICE])
        at += SLICE
        await trio.lowlevel.checkpoint()
    return marks


def _without_collections(make: Callable[[bytes], Any], raw: bytes) -> Any:
    """Call `make(raw)` with the garbage collector off: all that it makes is alive, and collections take up to six times
    the work itself.
    """
    gc.disable()
    try:
        return make(raw)
    finally:
        gc.enable()


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        _bad("the body must be a JSON object")
    return value


def parse_object(raw: bytes, content_type: bytes | None) -> dict[str, Any]:
    """The JSON object in a short body; an empty body is `{}` whatever its type. Raises Problem (400, 415)."""
    if not raw:
        return {}
    check_content_type(content_type)
    return _object(parse_json(raw))


def unwrap(body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The arguments in a body, and whether the answer goes into `{"result": ...}`.

    A body whose only key is `arguments`, holding an object, is the wrapped form; every other one is flat.
    """
    arguments = body.get("arguments")
    if len(body) == 1 and isinstance(arguments, dict):
        return arguments, True
    return body, False


async def read_object(exchange: Exchange) -> dict[str, Any]:
    """The JSON object in the body of a request, the work charged to its tenant. Raises Problem (400, 415, 429, 503).

    The exchange drops the bytes: they are not held beside the parsed object.
    """
    raw, exchange.body = exchange.body, b""
    if len(raw) < FREE_BYTES:
        return parse_object(raw, exchange.headers.get(b"content-type"))
    check_content_type(exchange.headers.get(b"content-type"))
    return _object(await read_json(raw, exchange.working, WORK["body"]))

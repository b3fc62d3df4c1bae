"""Request bodies: strict JSON in, one object out, and the envelope rule that joins two request forms."""

import gc
import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import orjson
import trio

from engine.errors import Code, Problem
from engine.memory import require_memory
from engine.values import SLICE, JsonMarks, marks_at_most
from engine.work import WORK, WorkSpec
from sandbox.limits import SPECS
from server.asgi import Exchange

# Nobody may ask for deeper values than the engine's ceiling lets a script handle.
MAX_DEPTH = int(SPECS["value_depth"].ceiling)

# A body below this size costs less to read than to charge for: some 1,300 values, a quarter of a millisecond.
FREE_BYTES = 4 * 1024
# In a larger body than this, a duplicate key is refused without its name, which would take another pass.
NAMED_BYTES = 64 * 1024

# What a value with its key takes at most in Python, beside the characters of texts; and what everything else in the
# process, such as the answer to a refused body, may need meanwhile.
VALUE_BYTES = 256
HEADROOM_BYTES = 16 * 1024 * 1024

# Opens a block of work that a tenant pays for; nothing is awaited inside (`Exchange.working`).
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
    """How many keys the objects in a value have together. Raises Problem beyond MAX_DEPTH containers in each other.

    Without recursion, and only containers are kept for the next level: 15 ms for the most values that a body may hold.
    """
    keys, level = 0, [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for container in level:
            if type(container) is dict:
                keys += len(container)
                for item in container.values():  # a comprehension takes twice as long for a few
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
    """One JSON value, strictly: UTF-8, no NaN or Infinity, no duplicate keys, bounded depth. Raises Problem (400, 503).

    Integers beyond 64 bits become floats, as they do for scripts. The work is bounded by the bytes alone: what is not
    short is for `read_json`.
    """
    value = _parsed(raw)
    # A key that was there twice has two colons and is one key. Colons in texts have to be told from these.
    if _keys(value) != raw.count(b":"):
        _refuse_duplicates(raw)
    return value


def _parsed(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except ValueError as error:
        if "memory" in str(error):  # a right document, for which orjson got no buffer
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
    """Raise Problem (503) unless there is memory for the values of a body, whose marks are within the bound."""
    try:
        # orjson's own tree takes 6 times the text; texts of four bytes a character, 4 times.
        require_memory(10 * len(raw) + VALUE_BYTES * min(max_values, len(raw)) + HEADROOM_BYTES)
    except MemoryError:
        raise no_memory() from None


def no_memory() -> Problem:
    """What is told where there is no memory for a body: the server's trouble, not the client's."""
    return Problem(Code.UNAVAILABLE, "the server has no memory for this body now", retry_after_s=1)


def _refuse_duplicates(raw: bytes) -> None:
    try:
        _duplicates.decode(raw.decode())
    except _Duplicate as duplicate:
        _bad(f"the body has the key {duplicate.key[:80]!r} twice in one object")


async def read_json(raw: bytes, working: Working, work: WorkSpec) -> Any:
    """As `parse_json`, for a body of any size: within the bound of `work`, each piece of the work in a `working` block.

    Nothing is made of a body with too many values (Problem, 400). Between pieces others run.
    """
    if len(raw) < FREE_BYTES:
        return parse_json(raw)
    bound = work.max_values or 0
    marks = None
    if marks_at_most(raw) > bound:
        marks = await _marks(raw, working, bound)
        if marks.marks > bound:
            _bad(f"the body holds too many values: more than {bound} commas and opening brackets outside its texts")
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
    return value


async def _marks(raw: bytes, working: Working, bound: int) -> JsonMarks:
    """The marks of a text, or of as much of it as has more than `bound`."""
    marks, at = JsonMarks(), 0
    while at < len(raw) and marks.marks <= bound:
        with working():
            marks.feed(raw[at : at + SLICE])
        at += SLICE
        await trio.lowlevel.checkpoint()
    return marks


def _without_collections(make: Callable[[bytes], Any], raw: bytes) -> Any:
    """What `make` makes of these bytes. All of it is alive: looking for garbage in it is up to six times the work."""
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

    The exchange lets the bytes go: they are not kept beside what was made of them.
    """
    raw, exchange.body = exchange.body, b""
    if len(raw) < FREE_BYTES:
        return parse_object(raw, exchange.headers.get(b"content-type"))
    check_content_type(exchange.headers.get(b"content-type"))
    return _object(await read_json(raw, exchange.working, WORK["body"]))

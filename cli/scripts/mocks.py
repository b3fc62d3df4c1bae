"""`--mock FILE`: a file of rows that answer a script's host calls, read and checked."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import orjson
import trio
from cyclopts import Parameter

from agents.service import Service
from cli.options import shown
from cli.output import UNUSABLE, Exit, note, plural, warn
from engine.bridge.mocks import Mocks, Row
from engine.config.errors import as_seen
from engine.names import nearest
from sandbox.wire.surface import HOST_CALLS

MockFile = Annotated[
    Path | None,
    Parameter(name="--mock", help="A TOML file whose rows answer host calls instead of the host.", negative=()),
]

# A larger file is a mistake.
MAX_BYTES = 4 << 20

_KEYS = ("name", "with", "reply", "error", "times")
_OF_HTTP = ("status", "body", "headers", "json", "url", "ok")
_HEADING = re.compile(r"^[ \t]*\[\[[ \t]*call[ \t]*\]\]", re.MULTILINE)


class _Wrong(Exception):
    """What is wrong with a row."""


@contextmanager
def mocked(path: Path | None, service: Service) -> Iterator[None]:
    """In this block the file's rows answer host calls. At its end, warns of rows that were not used.

    Raises Exit for a file that cannot be used.
    """
    if path is None:
        yield
        return
    mocks = read(path, service)
    service.engine.mock_calls(mocks)
    ended = True
    try:
        yield
    except trio.Cancelled:
        ended = False
        raise
    finally:
        service.engine.mock_calls(None)
        if ended:
            _tell(path, mocks)


def _tell(path: Path, mocks: Mocks) -> None:
    for line in unused_lines(path, mocks):
        warn(line)
    if mocks.missing:
        warn(f"{plural(len(mocks.missing), 'call')} had no row in {shown(path)}; rows to paste:")
        for row in mocks.missing:
            note(f"\n{row}\nreply = {example(row)}")


def example(row: str) -> str:
    """A reply for a row to begin with."""
    return '{ status = 200, body = "" }' if 'name = "http.' in row else "{}"


def unused_lines(path: Path, mocks: Mocks) -> list[str]:
    """A warning for the rows that were not used, and one for each of the first of them."""
    unused = mocks.unused
    if not unused:
        return []
    lines = [f"{plural(len(unused), 'row')} of {shown(path)} {'was' if len(unused) == 1 else 'were'} not used"]
    for row in unused[:10]:
        said = "never" if not row.used else f"{row.used} of {row.times} times"
        lines.append(f"{shown(path)}:{row.line}: {row.name} answered {said}")
    return lines


def read(path: Path, service: Service) -> Mocks:
    """The rows of a file. Raises Exit, with the line and the key that is wrong."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Exit(UNUSABLE, f"{shown(path)}: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise Exit(UNUSABLE, f"{shown(path)}: larger than {MAX_BYTES >> 20} MiB")
    try:
        return parsed(raw.decode(), service.engine.parameters_of)
    except UnicodeDecodeError:
        raise Exit(UNUSABLE, f"{shown(path)}: not UTF-8") from None
    except _Wrong as wrong:
        raise Exit(UNUSABLE, f"{shown(path)}{wrong}") from None


def parsed(text: str, parameters: Callable[[str], tuple[str, ...]]) -> Mocks:
    """The rows of a text. `parameters` has the argument names of a host call. Raises _Wrong."""
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _Wrong(f": not TOML: {error}") from None
    for key in found:
        if key not in ("call", "only"):
            raise _Wrong(f": {key}: unknown key; there are [[call]] and only")
    only, calls = found.get("only", False), found.get("call", [])
    if not isinstance(only, bool):
        raise _Wrong(f": only: expected true or false, got {as_seen(only)}")
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise _Wrong(": call: expected tables, each under [[call]]")
    headings = [text.count("\n", 0, match.end()) + 1 for match in _HEADING.finditer(text)]
    lines = headings if len(headings) == len(calls) else [0] * len(calls)  # `call = [{...}]`, or a heading in a text
    rows = []
    for number, (call, line) in enumerate(zip(calls, lines, strict=True), 1):
        try:
            rows.append(_row(call, line, parameters))
        except _Wrong as wrong:
            where = f":{line}" if line else ""
            raise _Wrong(f"{where}: call {number}: {wrong}") from None
    return Mocks(rows, only)


def _row(call: Mapping[str, Any], line: int, parameters: Callable[[str], tuple[str, ...]]) -> Row:
    for key in call:
        if key not in _KEYS:
            raise _Wrong(f"{key}: unknown key; {_hint(key, _KEYS)}")
    name = call.get("name")
    if not isinstance(name, str):
        raise _Wrong("name: missing; it is the name of a host call" if name is None else f"name: got {as_seen(name)}")
    if name not in HOST_CALLS:
        raise _Wrong(f"name: there is no host call {name[:64]!r}; {_hint(name, tuple(HOST_CALLS))}")
    given = call.get("with", {})
    if not isinstance(given, dict):
        raise _Wrong(f"with: expected a table of arguments, got {as_seen(given)}")
    known = parameters(name)
    for key in given:
        if key not in known:
            raise _Wrong(f"with.{key}: {name} has no such argument; {_hint(key, known)}")
    times = call.get("times")
    if times is not None and (not isinstance(times, int) or isinstance(times, bool) or times < 1):
        raise _Wrong(f"times: expected a whole number from 1, got {as_seen(times)}")
    if ("reply" in call) == ("error" in call):
        raise _Wrong("expected one of reply and error" + ("" if "reply" in call else ", and there is neither"))
    error = call.get("error")
    if error is not None and not isinstance(error, str):
        raise _Wrong(f"error: expected a text, got {as_seen(error)}")
    reply = _reply(name, call["reply"]) if "reply" in call else None
    return Row(name=name, given=given, reply=reply, error=error, times=times, line=line)


def _reply(name: str, reply: Any) -> Any:
    if not _is_plain(reply):
        raise _Wrong("reply: holds a date, a time or a number that is not finite; write it as text")
    return _http_reply(reply) if name.startswith("http.") else reply


def _http_reply(reply: Any) -> dict[str, Any]:
    """What the host answers to an HTTP call, from what a row says of it."""
    if not isinstance(reply, dict):
        raise _Wrong(f"reply: expected a table with status, headers and body or json, got {as_seen(reply)}")
    for key in reply:
        if key not in _OF_HTTP:
            raise _Wrong(f"reply.{key}: no answer of http has it; {_hint(key, _OF_HTTP)}")
    status, headers, body = reply.get("status", 200), reply.get("headers", {}), reply.get("body")
    if not isinstance(status, int) or isinstance(status, bool) or not 100 <= status <= 599:
        raise _Wrong(f"reply.status: expected a status from 100 to 599, got {as_seen(status)}")
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise _Wrong("reply.headers: expected a table of texts")
    if body is not None and not isinstance(body, str):
        raise _Wrong(f"reply.body: expected a text, got {as_seen(body)}; json = ... writes JSON")
    headers = {key.lower(): value for key, value in headers.items()}
    whole = {"status": status, "ok": 200 <= status < 300, "headers": headers, "url": reply.get("url", "")}
    if "json" in reply:
        headers.setdefault("content-type", "application/json")
        return {**whole, "body": orjson.dumps(reply["json"]).decode() if body is None else body, "json": reply["json"]}
    whole["body"] = body or ""
    if "json" in headers.get("content-type", "json") and body:
        with suppress(orjson.JSONDecodeError):
            whole["json"] = orjson.loads(body)
    return whole


def _is_plain(value: Any) -> bool:
    match value:
        case dict():
            return all(map(_is_plain, value.values()))
        case list():
            return all(map(_is_plain, value))
        case float():
            return abs(value) != float("inf") and value == value
        case int():
            return -(1 << 63) <= value < 1 << 64
    return isinstance(value, str)


def _hint(name: str, known: tuple[str, ...]) -> str:
    near = nearest(name, list(known))
    return f"did you mean {near!r}?" if near else f"there are {', '.join(known)}"

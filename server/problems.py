"""From errors to what a client sees: HTTP status, headers and body, and the MCP forms."""

import json
import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import orjson

from engine.errors import CODES, Code, Problem

Headers = list[tuple[bytes, bytes]]

# By code, for the path of every error.
STATUS: dict[Code, int] = {code: spec.status for code, spec in CODES.items()}

# JSON-RPC 2.0 section 5.1.
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
# MCP before 2026-07-28, resources, error handling.
RESOURCE_NOT_FOUND = -32002


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete HTTP answer."""

    status: int
    headers: Headers
    body: bytes


def encode(value: Any) -> bytes:
    """JSON bytes of an answer. Raises TypeError or ValueError when the value is not JSON.

    orjson refuses integers beyond 64 bits and lone surrogates, which a Python tool may return. JSON can represent both
    (RFC 8259 sections 6 and 8.2), so the standard library writes those.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


# What `encoding` renders at once: 1 to 2 ms of text that is all escapes.
TEXT_AT_ONCE = 256 * 1024
VALUES_AT_ONCE = 5_000


def encoding(value: Any) -> Generator[None, None, bytes]:
    """`encode` for a large answer, with pauses: 20 MiB of nothing but escapes take 50 ms at once."""
    parts: list[bytes] = []
    try:
        for number, part in enumerate(_parts(value), 1):
            parts.append(part)
            if len(part) >= TEXT_AT_ONCE or number % VALUES_AT_ONCE == 0:
                yield
    except TypeError:  # not orjson's: see `encode`
        return encode(value)
    yield
    return b"".join(parts)


def _parts(value: Any) -> Iterator[bytes]:
    """The JSON of a value: one part for each value and key, several for a long text."""
    if type(value) is dict:
        before = b"{"
        for key, item in value.items():
            yield before
            yield from _parts(key) if type(key) is str else _not_a_key(key)
            yield b":"
            yield from _parts(item)
            before = b","
        yield b"}" if value else b"{}"
    elif type(value) is list or type(value) is tuple:
        before = b"["
        for item in value:
            yield before
            yield from _parts(item)
            before = b","
        yield b"]" if value else b"[]"
    elif type(value) is str and len(value) > TEXT_AT_ONCE:
        yield b'"'
        for at in range(0, len(value), TEXT_AT_ONCE):
            yield orjson.dumps(value[at : at + TEXT_AT_ONCE])[1:-1]
        yield b'"'
    else:
        yield orjson.dumps(value)


def _not_a_key(key: object) -> NoReturn:
    raise TypeError(f"a key of {type(key).__name__}")


# Answers of at least this size are charged by their bytes; for smaller ones, reading a clock costs too much.
CHARGED_BYTES = 64 * 1024
# The highest rate measured with orjson 3.13: 3.6 ns for nothing but quotes, 2.3 for `\u0000`, 0.9 for plain text.
CPU_S_PER_BYTE = 3.6e-9


def render_cpu_s(size: int) -> float:
    """The CPU seconds for rendering so many bytes of JSON; 0 below CHARGED_BYTES."""
    return size * CPU_S_PER_BYTE if size >= CHARGED_BYTES else 0.0


def json_answer(value: Any, status: int = 200, headers: Headers | None = None) -> Answer:
    """A JSON answer, with its type, and its length so that the connection can be kept alive."""
    return body_answer(encode(value), status, headers)


def body_answer(body: bytes, status: int = 200, headers: Headers | None = None) -> Answer:
    """Like `json_answer`, for rendered JSON."""
    return Answer(
        status,
        [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *(headers or ())],
        body,
    )


def problem_answer(problem: Problem, status: int | None = None) -> Answer:
    """A problem as HTTP: the status of its code (or a more specific `status`), `Retry-After`, the envelope.

    `Retry-After` is in whole seconds, rounded up (RFC 9110 section 10.2.3); a 401 says how to authenticate (RFC 9110
    section 15.5.2) and, as there is no authorization server, names none.
    """
    headers: Headers = []
    if problem.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(problem.retry_after_s))))
    headers += _rate_limit(problem)
    if problem.code is Code.UNAUTHORIZED:
        headers.append((b"www-authenticate", b'Bearer realm="engine"'))
    return json_answer(problem.envelope(), STATUS[problem.code] if status is None else status, headers)


def _rate_limit(problem: Problem) -> Headers:
    """`RateLimit-Limit`, `-Remaining` and `-Reset` (seconds) of the quota that a tenant has used up, in whole numbers.

    As in draft-ietf-httpapi-ratelimit-headers-03, the last version with a header for each.
    """
    limit = problem.limit
    if STATUS[problem.code] != 429 or limit is None or limit.unit == "USD":  # an amount of money is no whole number
        return []
    remaining = max(0, math.floor(limit.bound - limit.used)) if limit.used is not None else 0
    return [
        (b"ratelimit-limit", b"%d" % math.floor(limit.bound)),
        (b"ratelimit-remaining", b"%d" % remaining),
        (b"ratelimit-reset", b"%d" % max(1, math.ceil(problem.retry_after_s or 1))),
    ]


def internal(reference: str) -> Problem:
    """The problem for a fault of ours: it gives the caller nothing but a reference into the log."""
    return Problem(Code.INTERNAL, f"internal error (reference {reference})")


def details(problem: Problem) -> dict[str, Any]:
    """A problem as MCP `data`: always `code` and `run_id`, other members of the envelope if known; no message."""
    error = {key: value for key, value in problem.envelope()["error"].items() if key != "message"}
    return {"run_id": None, **error}


def rpc_error(problem: Problem) -> tuple[int, str, dict[str, Any]]:
    """A problem as a JSON-RPC error (code, message, data): invalid params where another value or name would do."""
    code = INVALID_PARAMS if problem.code.spec.wrong in ("value", "name") else INTERNAL_ERROR
    return code, problem.message, details(problem)


def tool_error_text(problem: Problem) -> str:
    """A problem as the text of an `isError` result, with the script's traceback: the model reads it."""
    return problem.message if problem.traceback is None else f"{problem.message}\n{problem.traceback}"


def rpc_answer(
    status: int, code: int, message: str, request_id: str | int | None = None, data: Mapping[str, Any] | None = None
) -> Answer:
    """A JSON-RPC error from outside the handlers. `id` is null if the request's is not known (JSON-RPC 2.0, 5)."""
    error: Mapping[str, Any] = {"code": code, "message": message, **({} if data is None else {"data": data})}
    return json_answer({"jsonrpc": "2.0", "id": request_id, "error": error}, status)

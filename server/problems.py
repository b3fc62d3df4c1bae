"""The one table from errors to what a client sees: HTTP status, headers and body, and the MCP forms."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from engine.errors import Code, Problem

Headers = list[tuple[bytes, bytes]]

# CONTRACT section 3. Every code has a row; a test holds that.
STATUS: dict[Code, int] = {
    Code.BAD_REQUEST: 400,
    Code.EMBEDDINGS_DISABLED: 400,
    Code.UNAUTHORIZED: 401,
    Code.FORBIDDEN: 403,
    Code.TOOL_NOT_ALLOWED: 403,
    Code.NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.TIMEOUT: 408,
    Code.CPU_LIMIT: 408,
    Code.BODY_TIMEOUT: 408,
    Code.CONFLICT: 409,
    Code.TOO_LARGE: 413,
    Code.UNSUPPORTED_MEDIA_TYPE: 415,
    Code.MISDIRECTED: 421,
    Code.RATE_LIMITED: 429,
    Code.QUOTA_EXCEEDED: 429,
    Code.QUEUE_FULL: 429,
    Code.QUEUE_TIMEOUT: 429,
    Code.AGENT_ERROR: 500,
    Code.TOOL_ERROR: 500,
    Code.MEMORY_LIMIT: 500,
    Code.OUTPUT_LIMIT: 500,
    Code.CALL_LIMIT: 500,
    Code.POLICY_VIOLATION: 500,
    Code.INTERNAL: 500,
    Code.WORKER_LOST: 503,
    Code.UNAVAILABLE: 503,
}

# JSON-RPC 2.0 section 5.1.
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
# MCP before 2026-07-28, resources, error handling.
RESOURCE_NOT_FOUND = -32002

# Codes that say "ask for something else", so that MCP clients see invalid params and not a failure of ours.
_ASKED_WRONGLY = frozenset({Code.BAD_REQUEST, Code.NOT_FOUND, Code.TOOL_NOT_ALLOWED, Code.EMBEDDINGS_DISABLED})


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete HTTP answer."""

    status: int
    headers: Headers
    body: bytes


def encode(value: Any) -> bytes:
    """JSON bytes of an answer. Raises TypeError or ValueError when the value is not JSON.

    orjson refuses integers beyond 64 bits and lone surrogates, which a Python tool may return; both have a form in
    JSON (RFC 8259 sections 6 and 8.2), so the standard library writes those.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


# What is at least as large is charged to whom it is made for, by its bytes: reading a clock would cost small ones more.
CHARGED_BYTES = 64 * 1024
# The most that was measured with orjson 3.13: 3.6 ns for nothing but quotes, 2.3 for `\u0000`, 0.9 for plain text.
CPU_S_PER_BYTE = 3.6e-9


def render_cpu_s(size: int) -> float:
    """The CPU seconds that so many bytes of JSON took to render, 0 where they are too few to count."""
    return size * CPU_S_PER_BYTE if size >= CHARGED_BYTES else 0.0


def json_answer(value: Any, status: int = 200, headers: Headers | None = None) -> Answer:
    """A JSON answer, with its length (so that the connection can be kept) and type."""
    return body_answer(encode(value), status, headers)


def body_answer(body: bytes, status: int = 200, headers: Headers | None = None) -> Answer:
    """The same, of JSON that is rendered already."""
    return Answer(
        status,
        [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *(headers or ())],
        body,
    )


def problem_answer(problem: Problem, status: int | None = None) -> Answer:
    """A problem as HTTP: the status of its code (unless the protocol names a nearer one), `Retry-After`, the envelope.

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
    """`RateLimit-Limit`, `-Remaining` and `-Reset` (seconds) of what a tenant has used up, in whole numbers.

    As in draft-ietf-httpapi-ratelimit-headers-03, the last that had a header for each.
    """
    limit = problem.limit
    if STATUS[problem.code] != 429 or limit is None:
        return []
    remaining = max(0, math.floor(limit.bound - limit.used)) if limit.used is not None else 0
    return [
        (b"ratelimit-limit", b"%d" % math.floor(limit.bound)),
        (b"ratelimit-remaining", b"%d" % remaining),
        (b"ratelimit-reset", b"%d" % max(1, math.ceil(problem.retry_after_s or 1))),
    ]


def internal(reference: str) -> Problem:
    """What a caller hears of a fault of ours: nothing but a reference into the log."""
    return Problem(Code.INTERNAL, f"internal error (reference {reference})")


def details(problem: Problem) -> dict[str, Any]:
    """A problem as MCP `data`: `code` and `run_id` always, the rest of the envelope where known; no message."""
    error = {key: value for key, value in problem.envelope()["error"].items() if key != "message"}
    return {"run_id": None, **error}


def rpc_error(problem: Problem) -> tuple[int, str, dict[str, Any]]:
    """A problem as a JSON-RPC error (code, message, data): what was asked is wrong, or it failed."""
    code = INVALID_PARAMS if problem.code in _ASKED_WRONGLY else INTERNAL_ERROR
    return code, problem.message, details(problem)


def tool_error_text(problem: Problem) -> str:
    """A problem as the text of an `isError` result: for the model to read, so the script's own traceback is in it."""
    return problem.message if problem.traceback is None else f"{problem.message}\n{problem.traceback}"


def rpc_answer(
    status: int, code: int, message: str, request_id: str | int | None = None, data: Mapping[str, Any] | None = None
) -> Answer:
    """A JSON-RPC error outside of any handler. `id` is null when the request's is not known (JSON-RPC 2.0, 5)."""
    error: Mapping[str, Any] = {"code": code, "message": message, **({} if data is None else {"data": data})}
    return json_answer({"jsonrpc": "2.0", "id": request_id, "error": error}, status)

"""Validation of JSON-RPC messages, and bounds on their contents apart from a tool's arguments."""

from collections.abc import Mapping
from typing import Any, TypeGuard

from engine.errors import Code, Problem
from engine.work import WORK
from server.http.asgi import Exchange
from server.http.body import FREE_BYTES, parse_json, read_json
from server.problems import INVALID_REQUEST, PARSE_ERROR, Answer, rpc_answer

# The SDK validates every value of a message except a tool's arguments, up to six times, and makes an error for each:
# 2,000 wrong ones cost it 25 ms.
MAX_TYPED = 2_000
# The messages sent for a request repeat its id and its progress token, the token up to a thousand times.
MAX_ID = 256
MAX_METHOD = 4096
# Addresses are unescaped, and every notification repeats ids and progress tokens: none of them may be long. Counts the
# characters of strings and keys together, without the arguments for a tool or prompt.
MAX_TYPED_TEXT = 64 * 1024


def refuse_message(raw: bytes) -> Answer | None:
    """The error for a body that is not one JSON-RPC message, or None if it is one."""
    try:
        message = _sound(parse_json(raw))
    except Problem as problem:
        message = rpc_answer(400, PARSE_ERROR, problem.message)
    return message if isinstance(message, Answer) else None


async def read_message(exchange: Exchange) -> dict[str, Any] | Answer:
    """The JSON-RPC message in a request's body, or the error for a body without one. Raises Problem (429, 503)."""
    try:
        message = await read_json(exchange.body, exchange.working, WORK["message"])
    except Problem as problem:
        if problem.code is not Code.BAD_REQUEST:
            raise
        return rpc_answer(400, PARSE_ERROR, problem.message)
    sound = _sound(message)
    if isinstance(sound, Answer) or len(exchange.body) < FREE_BYTES or (excess := _excess(sound)) is None:
        return sound
    identifier = id_of(sound)
    return rpc_answer(400, INVALID_REQUEST, excess, None if len(str(identifier)) > MAX_TYPED_TEXT else identifier)


def _excess(message: Mapping[str, Any]) -> str | None:
    """The bound that a message exceeds, or None. Arguments for a tool do not count (nor, for strings, for a prompt)."""
    left, text, level = MAX_TYPED, MAX_TYPED_TEXT, [message]
    handed, method = None, message.get("method")
    if isinstance(params := message.get("params"), dict) and method in ("tools/call", "prompts/get"):
        handed = params.get("arguments")
        if method == "tools/call":
            level = [{**message, "params": {**params, "arguments": None}}]
    while level:
        inner: list[Any] = []
        for container in level:
            left -= len(container)
            if left < 0:
                return f"the message holds more than {MAX_TYPED} values outside a tool's arguments"
            items = container.values() if isinstance(container, Mapping) else container
            inner += [item for item in items if isinstance(item, dict | list)]
            if container is not handed:
                text -= sum(len(item) for item in items if isinstance(item, str))
                text -= sum(map(len, container)) if isinstance(container, Mapping) else 0
        level = inner
    return None if text >= 0 else f"the message holds more than {MAX_TYPED_TEXT} characters outside arguments"


def _sound(message: Any) -> dict[str, Any] | Answer:
    """The message if it is well formed (JSON-RPC 2.0 section 5.1), else the error to answer with."""
    if isinstance(message, list):
        return rpc_answer(400, INVALID_REQUEST, "batches are not supported: send one message")
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return rpc_answer(400, INVALID_REQUEST, "the body is not a JSON-RPC 2.0 message")
    flaw = _flaw(message)
    # The id of a malformed answer is not that of a request: the error for one has no id.
    asked = "method" in message or {"result", "error"}.isdisjoint(message)
    return message if flaw is None else rpc_answer(400, INVALID_REQUEST, flaw, id_of(message) if asked else None)


def _flaw(message: Mapping[str, Any]) -> str | None:
    """The defect in a message's own members; None if it is well formed."""
    known_id = id_of(message) is not None
    if "method" not in message:
        answers = isinstance(message.get("result"), dict) or _is_error(message.get("error"))
        return None if known_id and answers else "the message is malformed"
    method = message["method"]
    if not isinstance(method, str) or len(method) > MAX_METHOD:
        return f"the message is malformed: method must be a string of at most {MAX_METHOD} characters"
    if not isinstance(message.get("params", {}), dict):
        return "the message is malformed: params must be an object"
    if not known_id and "id" in message:
        return f"the message is malformed: id must be a whole number or a string of at most {MAX_ID} characters"
    if _is_long(_progress_token(message)):
        return f"the message is malformed: params._meta.progressToken has more than {MAX_ID} characters"
    return None


def _is_error(error: Any) -> bool:
    """Whether it is an error object (JSON-RPC 2.0 section 5.1): an integer code and a string for a message."""
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return False
    code = error.get("code")
    return isinstance(code, int) and not isinstance(code, bool)


def id_of(message: Mapping[str, Any]) -> str | int | None:
    found = message.get("id")
    return found if _is_id(found) else None


def _progress_token(message: Mapping[str, Any]) -> Any:
    meta = message.get("params", {}).get("_meta")
    return meta.get("progressToken") if isinstance(meta, dict) else None


def _is_long(token: Any) -> bool:
    return isinstance(token, str) and len(token) > MAX_ID


def _is_id(found: Any) -> TypeGuard[str | int]:
    return len(found) <= MAX_ID if isinstance(found, str) else isinstance(found, int) and not isinstance(found, bool)

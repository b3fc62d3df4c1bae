"""Errors as problem details (RFC 9457), for clients that accept `application/problem+json`. Pure.

The facts are those of the envelope, which every other client gets: `detail` is its message, the rest has its own names.
"""

from http import HTTPStatus
from typing import Any

import orjson

from server.problems import encode

MEDIA = b"application/problem+json"
_JSON = b"application/json"
# A URN, as a URL would name a page on a server that is not ours.
_TYPE = "urn:engine:error:"


def is_wanted(accept: bytes) -> bool:
    """Whether an `Accept` names this media type, and does not prefer plain JSON (RFC 9110 section 12.5.1)."""
    if MEDIA not in accept.lower():
        return False
    weights = dict(_weights(accept))
    ours = weights.get(MEDIA, 0.0)
    return ours > 0 and ours >= weights.get(_JSON, 0.0)


def _weights(accept: bytes) -> list[tuple[bytes, float]]:
    found = []
    for each in accept.lower().split(b","):
        media, *parameters = (part.strip() for part in each.split(b";"))
        weight = next((part[2:] for part in parameters if part.startswith(b"q=")), b"1")
        try:
            found.append((media, float(weight)))
        except ValueError:
            found.append((media, 0.0))
    return found


def as_problem(body: bytes, status: int) -> bytes | None:
    """The problem details of an envelope; None for any other body, such as a JSON-RPC error of MCP."""
    try:
        answer = orjson.loads(body)
    except ValueError:
        return None
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or not isinstance(code := error.get("code"), str):
        return None
    facts: dict[str, Any] = {name: value for name, value in error.items() if name not in ("code", "message")}
    title = code.replace("_", " ").capitalize()
    return encode(
        {
            "type": f"{_TYPE}{code}", "title": title, "status": HTTPStatus(status).value,
            "detail": error["message"], "code": code, **facts,
        }
    )  # fmt: skip

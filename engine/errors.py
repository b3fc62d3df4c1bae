"""Errors: one exception and one list of codes, each with whose fault it is and what a caller should do.

Every refusal and failure that a user may see is a `Problem`. REST, MCP and the command line render it; HTTP status,
JSON-RPC code and exit code follow from `CODES`. There is no other message shape.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from engine.tenant import BoundLimits, LimitSource
from sandbox.wire.limits import MIB, SPECS
from sandbox.wire.outcome import Fault


class Code(StrEnum):
    """The `error.code` of the envelope (docs/http-api.md). `CODES` has the properties of each."""

    BAD_REQUEST = "bad_request"
    EMBEDDINGS_DISABLED = "embeddings_disabled"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    TOOL_NOT_ALLOWED = "tool_not_allowed"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    MISDIRECTED = "misdirected"
    BODY_TIMEOUT = "body_timeout"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXCEEDED = "quota_exceeded"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    AGENT_ERROR = "agent_error"
    TOOL_ERROR = "tool_error"
    TIMEOUT = "timeout"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    CALL_LIMIT = "call_limit"
    POLICY_VIOLATION = "policy_violation"
    MODEL_LIMIT = "model_limit"
    MODEL_ERROR = "model_error"
    WORKER_LOST = "worker_lost"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"

    @property
    def spec(self) -> "CodeSpec":
        return CODES[self]


@dataclass(frozen=True, slots=True)
class CodeSpec:
    """One code: its HTTP status, whose fault it is, and whether the same request may succeed when it is sent again.

    `wrong` is what the caller has to change first, if anything: a value in the request, the name that it calls, its
    key, its form as a message, or the state that the engine has stored.
    """

    code: Code
    status: int
    fault: Fault
    retry: bool = False
    wrong: Literal["value", "name", "key", "message", "state"] | None = None


CODES: dict[Code, CodeSpec] = {
    spec.code: spec
    for spec in (
        CodeSpec(Code.BAD_REQUEST, 400, "caller", wrong="value"),
        CodeSpec(Code.EMBEDDINGS_DISABLED, 400, "operator", wrong="value"),
        CodeSpec(Code.UNAUTHORIZED, 401, "caller", wrong="key"),
        CodeSpec(Code.FORBIDDEN, 403, "caller", wrong="key"),
        CodeSpec(Code.TOOL_NOT_ALLOWED, 403, "caller", wrong="value"),
        CodeSpec(Code.NOT_FOUND, 404, "caller", wrong="name"),
        CodeSpec(Code.METHOD_NOT_ALLOWED, 405, "caller", wrong="message"),
        CodeSpec(Code.CONFLICT, 409, "caller", wrong="state"),
        CodeSpec(Code.TOO_LARGE, 413, "caller", wrong="message"),
        CodeSpec(Code.UNSUPPORTED_MEDIA_TYPE, 415, "caller", wrong="message"),
        CodeSpec(Code.MISDIRECTED, 421, "caller", wrong="message"),
        CodeSpec(Code.BODY_TIMEOUT, 408, "caller", retry=True),
        # a quota is used up: it refills with time
        CodeSpec(Code.RATE_LIMITED, 429, "caller", retry=True),
        CodeSpec(Code.QUOTA_EXCEEDED, 429, "caller", retry=True),
        CodeSpec(Code.QUEUE_FULL, 429, "caller", retry=True),
        CodeSpec(Code.QUEUE_TIMEOUT, 429, "caller", retry=True),
        # the same call runs the same script, which ends the same way
        CodeSpec(Code.AGENT_ERROR, 500, "script"),
        CodeSpec(Code.TOOL_ERROR, 500, "script"),
        CodeSpec(Code.TIMEOUT, 408, "script"),
        CodeSpec(Code.CPU_LIMIT, 408, "script"),
        CodeSpec(Code.MEMORY_LIMIT, 500, "script"),
        CodeSpec(Code.OUTPUT_LIMIT, 500, "script"),
        CodeSpec(Code.CALL_LIMIT, 500, "script"),
        CodeSpec(Code.POLICY_VIOLATION, 500, "script"),
        CodeSpec(Code.MODEL_LIMIT, 500, "script"),
        # the model that the operator chose gave no answer, or half of one
        CodeSpec(Code.MODEL_ERROR, 502, "operator", retry=True),
        CodeSpec(Code.WORKER_LOST, 503, "engine", retry=True),
        CodeSpec(Code.UNAVAILABLE, 503, "engine", retry=True),
        CodeSpec(Code.INTERNAL, 500, "engine", retry=True),
    )
}


@dataclass(frozen=True, slots=True)
class LimitUse:
    """The `error.limit` of the envelope: the limit's name, its bound, the amount used, the unit, and who set it."""

    name: str
    bound: float
    used: float | None
    unit: str
    source: LimitSource

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "bound": self.bound, "used": self.used, "unit": self.unit, "source": self.source,
        }  # fmt: skip


def limit_use(limits: BoundLimits, name: str, used: float | None = None) -> LimitUse:
    """The limit as an error shows it."""
    return LimitUse(name, limits[name], used, SPECS[name].unit, limits.sources[name])


def amount(value: float, unit: str) -> str:
    """A bound as text: `30 s`, `1 USD`, `64 MiB`, `200`."""
    if unit in ("s", "USD"):
        return f"{value:g} {unit}"
    if unit == "bytes":
        return (
            f"{value / MIB:g} MiB" if value >= MIB else f"{value / 1024:g} KiB" if value >= 1024 else f"{value:g} bytes"
        )
    return f"{value:.15g}"


# Bound on a message, in characters: twice that of a script's own error. A message may quote input of any length.
MAX_MESSAGE = 8192


class Problem(Exception):
    """An error for a user: a code, one sentence, and if known the run, limit, `retry_after_s` and script traceback.

    `run` are the figures of a document's run (`agents.tool.ModelRun`).

    The message is safe to show to the caller: no host path, Python text, address or other tenant's data.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        run_id: str | None = None,
        limit: LimitUse | None = None,
        retry_after_s: float | None = None,
        traceback: str | None = None,
        run: Mapping[str, Any] | None = None,
    ) -> None:
        if len(message) > MAX_MESSAGE:
            message = message[:MAX_MESSAGE] + "…"
        super().__init__(message)
        self.code = code
        self.message = message
        self.run_id = run_id
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.traceback = traceback
        self.run = run

    def envelope(self) -> dict[str, Any]:
        """The one error body: `{"error": {"code", "message", ...}}`, optional keys only when known."""
        error: dict[str, Any] = {"code": self.code.value, "message": self.message}
        if self.run_id is not None:
            error["run_id"] = self.run_id
        if self.limit is not None:
            error["limit"] = self.limit.as_json()
        if self.retry_after_s is not None:
            error["retry_after_s"] = self.retry_after_s
        if self.traceback is not None:
            error["traceback"] = self.traceback
        if self.run is not None:
            error["run"] = dict(self.run)
        return {"error": error}


def leaf(error: BaseException) -> BaseException:
    """The one error inside nested groups of one, which nurseries make. A group of several is returned as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def ungrouped() -> Iterator[None]:
    """Unwrap an exception that leaves the block from the groups of one that nurseries put around it."""
    try:
        yield
    except BaseExceptionGroup as group:
        cause = leaf(group)
        if isinstance(cause, BaseExceptionGroup):
            raise
        raise cause from cause.__cause__

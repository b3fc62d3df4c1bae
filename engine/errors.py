"""What can go wrong, whose fault it is and what a caller should do: one exception, one list of codes.

Every refusal and failure that a user may see is a `Problem`. REST, MCP and the command line render it (HTTP status,
JSON-RPC code, exit code) from tables of their own; nobody else invents a message shape.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from engine.tenant import LimitSource


class Code(StrEnum):
    """The `error.code` of the envelope (CONTRACT section 3)."""

    # the caller's fault: mend the request
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
    # the tenant's share is used up: come back later
    RATE_LIMITED = "rate_limited"
    QUOTA_EXCEEDED = "quota_exceeded"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    # the script's fault: retrying unchanged will fail again
    AGENT_ERROR = "agent_error"
    TOOL_ERROR = "tool_error"
    TIMEOUT = "timeout"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    CALL_LIMIT = "call_limit"
    POLICY_VIOLATION = "policy_violation"
    # ours: a retry may help
    WORKER_LOST = "worker_lost"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class LimitUse:
    """The `error.limit` of the envelope: which limit, its bound, what was used, in which unit, set by whom."""

    name: str
    bound: float
    used: float | None
    unit: str
    source: LimitSource

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "bound": self.bound, "used": self.used, "unit": self.unit, "source": self.source,
        }  # fmt: skip


# What a message may have, in characters: twice a script's own error. It may quote what was sent, of any length.
MAX_MESSAGE = 8192


class Problem(Exception):
    """Something a user is told about: code, one sentence, and where known the run, limit, pause and script traceback.

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
        return {"error": error}


def leaf(error: BaseException) -> BaseException:
    """The one error inside nested groups of one: nurseries wrap whatever leaves them. A group of several stays one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def ungrouped() -> Iterator[None]:
    """What leaves the block comes out as it was raised in there, without the groups that nurseries put around it."""
    try:
        yield
    except BaseExceptionGroup as group:
        cause = leaf(group)
        if isinstance(cause, BaseExceptionGroup):
            raise
        raise cause from cause.__cause__

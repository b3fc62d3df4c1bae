"""One run, as data: what is asked, what came of it, what it cost."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.errors import LimitUse
from engine.tenant import BoundLimits, Tenant
from sandbox.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Script:
    """Lua source as it was read. `name` is what tracebacks show; `digest` (SHA-256) is how logs name it."""

    name: str
    source: bytes
    digest: str

    @classmethod
    def of(cls, name: str, source: bytes) -> "Script":
        return cls(name, source, hashlib.sha256(source).hexdigest())


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line a script logged. `level` is debug, info, warn or error."""

    level: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Everything one run needs. `grants` are the names of the host calls it may make: nothing by default.

    `root` is the table that the script declares (`agent`, `tool`); `method` is the function of it to call with `args`
    (JSON values) followed by the `context` table, or None to describe the script: the root's own plain fields.
    """

    tenant: Tenant
    name: str
    script: Script
    root: Literal["agent", "tool", "connector"]
    method: str | None
    args: tuple[Any, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    limits: BoundLimits
    grants: frozenset[str] = frozenset()
    on_progress: Callable[[float, str | None], None] | None = None
    on_log: Callable[[LogLine], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one run cost. Times in seconds; `cpu_s` and `peak_memory_bytes` are the kernel's, not the worker's."""

    queue_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    host_calls: Mapping[str, int] = field(default_factory=dict)

    @property
    def host_call_count(self) -> int:
        return sum(self.host_calls.values())


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run did not end well: one sentence, the limit that was passed, and the script's own traceback."""

    message: str
    limit: LimitUse | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended. `value` is the script's answer when `outcome` is ok; else `failure` says why not."""

    run_id: str
    outcome: Outcome
    value: Any = None
    failure: Failure | None = None
    usage: Usage = field(default_factory=Usage)
    logs: tuple[LogLine, ...] = ()
    logs_truncated: bool = False

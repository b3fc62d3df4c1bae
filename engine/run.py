"""One run, as data: what is asked, what came of it, what it cost.

A request and a result are plain values, which msgspec writes and reads: they can be recorded, and sent to another
process. What belongs to this process is apart, in `Hearers` and `Prepared`. What every run makes anew is a msgspec
Struct: a frozen dataclass takes ten times as long to make.
"""

import hashlib
import os
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from engine.egress.redaction import Redactor
from engine.egress.secrets import References
from engine.errors import LimitUse
from engine.tenant import BoundLimits, Tenant
from sandbox.wire.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Script:
    """Lua source as it was read. `name` is what tracebacks show; `digest` (SHA-256) is how logs name it."""

    name: str
    source: bytes
    digest: str

    @classmethod
    def of(cls, name: str, source: bytes) -> "Script":
        source = source.removeprefix(BOM_UTF8)  # editors on Windows write it, and Lua's `load` does not skip it
        return cls(name, source, hashlib.sha256(source).hexdigest())


class LogLine(msgspec.Struct, frozen=True):
    """One line a script logged. `level` is debug, info, warn or error."""

    level: str
    text: str


class CallRecord(msgspec.Struct, frozen=True):
    """One host call that a run made: its name, how long the answer took, and why it was refused, if it was."""

    name: str
    wall_s: float
    refused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """What a run may reach in the world, each thing by name: nothing by default.

    `hosts` are the rules of `allow_hosts`; `env` names of environment variables; `folder` is the script's own, of which
    it may read the files; `tools` may be called; `secrets` are names of those of its tenant, None: all of them.
    """

    hosts: tuple[str, ...] = ()
    env: frozenset[str] = frozenset()
    folder: str | None = None
    tools: tuple[str, ...] = ()
    secrets: frozenset[str] | None = frozenset()


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run needs, as plain values. `grants` are the names of the host calls it may make: nothing by
    default; `authority` is what those calls may reach.

    `root` is the table that the script declares (`agent`, `tool`); `method` is the function of it to call with `args`
    (JSON values) followed by the `context` table, or None to describe the script: the root's own plain fields. `config`
    are the script's own keys, in which `secret:NAME` stands for a secret of the tenant's; `config_last` puts them
    behind `args`. `masked` are the operator's secrets, which are taken out of what the run logs and of how it failed.
    `callers` are the tools that are being executed around this run, outermost first.
    """

    tenant: Tenant
    name: str
    script: Script
    root: Literal["agent", "tool", "connector"]
    method: str | None
    args: tuple[Any, ...] = ()
    config: Mapping[str, Any] = msgspec.field(default_factory=dict)
    config_last: bool = False
    limits: BoundLimits
    grants: frozenset[str] = frozenset()
    authority: Authority = Authority()
    masked: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()

    def __repr__(self) -> str:  # `masked` and `config` hold values that no log may show
        return f"<RunRequest {self.root}:{self.name} of {self.tenant.id}>"


class Hearers(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks, called while a run lasts: its log lines, its progress, and each host call once it was answered."""

    log: Callable[[LogLine], None] | None = None
    progress: Callable[[float, str | None], None] | None = None
    call: Callable[[CallRecord], None] | None = None

    def of_nested(self) -> "Hearers":
        """Those of a run inside the run, whose progress is not that of the whole."""
        return self if self.progress is None else Hearers(log=self.log, call=self.call)


SILENT = Hearers()


class Prepared(msgspec.Struct, frozen=True):
    """A request with what only this process has of it: placeholders for secrets, which `config` holds in place of their
    names, the masks for texts, and the hearers.
    """

    request: RunRequest
    config: Mapping[str, Any]
    secrets: References
    redactor: Redactor
    hearers: Hearers


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What one run cost. Times in seconds; `cpu_s` and `peak_memory_bytes` are the kernel's, not the worker's.

    `nested_cpu_s` and `nested_host_calls` are of the tools that it called, which are runs of their own.
    """

    queue_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    nested_cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    host_calls: Mapping[str, int] = msgspec.field(default_factory=dict)
    nested_host_calls: int = 0

    @property
    def host_call_count(self) -> int:
        return sum(self.host_calls.values())


class Failure(msgspec.Struct, frozen=True):
    """Why a run did not end well: one sentence, the limit that was passed, and the script's own traceback.

    `retry_after_s` is set where the limit was a quota of the tenant's: when it has some of it again.
    """

    message: str
    limit: LimitUse | None = None
    traceback: str | None = None
    retry_after_s: float | None = None


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended. `value` is the script's answer when `outcome` is ok; else `failure` says why not.

    `replaced` counts the broken parts of the script's text that became U+FFFD: in answers, arguments of host calls, log
    lines and errors.
    """

    run_id: str
    outcome: Outcome
    value: Any = None
    failure: Failure | None = None
    usage: Usage = Usage()
    logs: tuple[LogLine, ...] = ()
    logs_truncated: bool = False
    replaced: int = 0


def new_run_id() -> str:
    """A name for one run: 64 random bits in hexadecimal."""
    return os.urandom(8).hex()

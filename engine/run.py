"""One run, as data: the request, the result, the cost.

A request and a result are plain values that msgspec can encode and decode, so they can be recorded or sent to another
process. What belongs to this process is separate, in `Hearers` and `Prepared`. Objects made for every run are msgspec
Structs: a frozen dataclass takes ten times as long to make.
"""

import hashlib
import os
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from engine.egress.redaction import Redactor
from engine.egress.secrets import References
from engine.errors import LimitUse
from engine.tenant import BoundLimits, Tenant
from knowledge.access import Reader
from sandbox.wire.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Script:
    """Lua source as it was read. `name` appears in tracebacks; `digest` (SHA-256) identifies it in logs.

    `modules` are the files of its package that it requires, by their names there; the digest covers them.
    """

    name: str
    source: bytes
    digest: str
    modules: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def from_source(cls, name: str, source: bytes, modules: Iterable[tuple[str, bytes]] = ()) -> "Script":
        source = source.removeprefix(BOM_UTF8)  # editors on Windows write it, and Lua's `load` does not skip it
        files = tuple((file, text.removeprefix(BOM_UTF8)) for file, text in modules)
        whole = source
        if files:  # it begins as bytecode does, which is no source: so no script has the digest of a bundle
            parts = (source, *(part for file, text in files for part in (file.encode(), text)))
            whole = b"\x1bLua" + b"".join(hashlib.sha256(part).digest() for part in parts)
        return cls(name, source, hashlib.sha256(whole).hexdigest(), files)

    @property
    def size(self) -> int:
        """Bytes of the source and of the modules."""
        return len(self.source) + (sum(len(text) for _, text in self.modules) if self.modules else 0)


class LogLine(msgspec.Struct, frozen=True):
    """One line a script logged. `level` is debug, info, warn or error."""

    level: str
    text: str


class CallRecord(msgspec.Struct, frozen=True):
    """One host call of a run: its name, how long the answer took, and why it was refused, if it was."""

    name: str
    wall_s: float
    refused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """What the host calls of a run may reach, by name: nothing by default.

    `hosts` are the rules of `allow_hosts`; `env` are names of environment variables; `folder` is the script's own,
    whose files it may read; `tools` it may call; `secrets` are names of its tenant's secrets, None: all of them; `kv`
    is the space of its keys, None: it may have none. Of its tenant's documents, it may read those of `sources` (None:
    of all) that have no labels, or one of `labels`.
    """

    hosts: tuple[str, ...] = ()
    env: frozenset[str] = frozenset()
    folder: str | None = None
    tools: tuple[str, ...] = ()
    secrets: frozenset[str] | None = frozenset()
    kv: str | None = None
    sources: tuple[str, ...] | None = None
    labels: frozenset[str] = frozenset()


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run needs, as plain values. `grants` are the names of the host calls it may make: nothing by
    default; `authority` is what those calls may reach.

    `root` is the table that the script declares (`agent`, `tool`); `method` is the function of it to call with `args`
    (JSON values) followed by the `context` table, or None to describe the script: the root's own plain fields. For a
    test file `root` is `test`, and `method` is `list` or `run`. `config` is the script's configuration, in which
    `secret:NAME` stands for a secret of the tenant; `config_last` passes it as the last argument, too. `masked` are the
    operator's secrets, which are removed from the run's log and its failure. `callers` are the tools whose calls this
    run is nested in, outermost first. `version` is that of a published script.
    """

    tenant: Tenant
    name: str
    script: Script
    root: Literal["agent", "tool", "connector", "test"]
    method: str | None
    args: tuple[Any, ...] = ()
    config: Mapping[str, Any] = msgspec.field(default_factory=dict)
    config_last: bool = False
    limits: BoundLimits
    grants: frozenset[str] = frozenset()
    authority: Authority = Authority()
    masked: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()
    version: str = ""

    @property
    def label(self) -> str:
        """Its name in usage and logs: NAME, and for a published script NAME@VERSION. Names have no `@`."""
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def reader(self) -> Reader:
        """Which documents it may read: of those that its caller may, the ones that it is granted."""
        return self.tenant.reader.within(self.authority.labels, self.authority.sources)

    def __repr__(self) -> str:  # `masked` and `config` hold values that no log may show
        return f"<RunRequest {self.root}:{self.name} of {self.tenant.id}>"


class Scan(Protocol):
    """Takes the items of a connector's run while it goes on, and waits while it has no room for more.

    Both raise CallRefused for what it does not take; `worked` is charged with the CPU time that it needs.
    """

    async def emit(
        self, item: Mapping[str, Any], checkpoint: Any, size: int | None, worked: Callable[[float], None]
    ) -> None:
        """An item; with `size`, one that is too large, without its body."""
        ...

    async def deleted(self, source_id: Any) -> None: ...


class Turn(Protocol):
    """A turn of a team: answers the calls of `context.team`."""

    async def call(self, name: str, given: Mapping[str, Any]) -> Any:
        """The answer of one tool. Raises Problem."""
        ...


class Hearers(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks during a run: for its log lines, its progress, and each host call once it is answered.

    `scan` takes the items of a connector; `team` is the turn that the run is.
    """

    log: Callable[[LogLine], None] | None = None
    progress: Callable[[float, str | None], None] | None = None
    call: Callable[[CallRecord], None] | None = None
    scan: Scan | None = None
    team: Turn | None = None

    def of_nested(self) -> "Hearers":
        """The callbacks for a nested run, whose progress is not that of the whole, and which is no turn."""
        if self.progress is None and self.scan is None and self.team is None:
            return self
        return Hearers(log=self.log, call=self.call)


SILENT = Hearers()


class Prepared(msgspec.Struct, frozen=True):
    """A request with what exists in this process only: the placeholders for secrets, which replace their names in
    `config`, the redactor for texts, and the callbacks.
    """

    request: RunRequest
    config: Mapping[str, Any]
    secrets: References
    redactor: Redactor
    hearers: Hearers


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one run. Times in seconds; `cpu_s` and `peak_memory_bytes` are the kernel's, not the worker's.

    `nested_cpu_s` and `nested_host_calls` are those of the tools that it called, which are runs of their own.
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
    """Why a run failed: one sentence, the limit that was exceeded, and the script's own traceback.

    `retry_after_s` is set when the limit was a quota of the tenant: the time until it has refilled.
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
    """The id of one run: 64 random bits in hexadecimal."""
    return os.urandom(8).hex()

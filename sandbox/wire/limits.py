"""The one list of limits: name, unit, default, ceiling, reason, who enforces it and what the script sees.

Everything that uses a limit (configuration, quotas, errors, docs, `GET /limits`) reads `SPECS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Unit = Literal["s", "bytes", "count", "levels", "USD"]

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """One limit. `default` applies if neither script nor `[limits]` sets it, `ceiling` if `[limits.max]` does not."""

    name: str
    unit: Unit
    default: float
    ceiling: float
    reason: str
    enforced_by: str
    script_sees: str

    @property
    def integral(self) -> bool:
        """Whether values are whole numbers (all but seconds and money)."""
        return self.unit not in ("s", "USD")

    def kind(self, value: float) -> float:
        """The value in the type of this limit: int, or float for seconds and money."""
        return int(value) if self.integral else float(value)


SPECS: dict[str, LimitSpec] = {
    spec.name: spec
    for spec in (
        LimitSpec(
            "timeout_s", "s", 30, 300,
            "a prompt that takes longer has lost its caller",
            "the supervisor's clock and SIGKILL, from the start on a worker; waiting on the host counts",
            "nothing: the process is gone",
        ),
        LimitSpec(
            "cpu_s", "s", 10, 60,
            "CPU is what tenants compete for; waiting on the host does not count",
            "the supervisor reads the worker's CPU clock and kills; RLIMIT_CPU backs it up",
            "nothing: the process is gone",
        ),
        LimitSpec(
            "memory_bytes", "bytes", 64 * MIB, 512 * MIB,
            "8 times what the largest shipped example needs",
            "the Lua allocator refuses; RLIMIT_AS backs it up",
            "'not enough memory', which pcall catches; uncaught it ends the run",
        ),
        LimitSpec(
            "output_bytes", "bytes", 1 * MIB, 16 * MIB,
            "an answer must fit a model's context many times over",
            "the encoder in the worker, and again the supervisor's frame decoder",
            "nothing: the run ends",
        ),
        LimitSpec(
            "log_bytes", "bytes", 64 * KIB, 1 * MIB,
            "a log is for reading",
            "the prelude truncates and says so; the supervisor counts again",
            "nothing: further lines are dropped",
        ),
        LimitSpec(
            "host_calls", "count", 200, 10_000,
            "time on the host is not CPU time of the script, so calls are counted",
            "the supervisor",
            "nothing: the run ends",
        ),
        LimitSpec(
            "http_bytes", "bytes", 10 * MIB, 100 * MIB,
            "bounds one answer of an HTTP host call",
            "the supervisor",
            "an error that pcall catches",
        ),
        LimitSpec(
            "fs_bytes", "bytes", 1 * MIB, 16 * MIB,
            "bounds one file that a script reads",
            "the supervisor",
            "an error that pcall catches",
        ),
        LimitSpec(
            "source_bytes", "bytes", 1 * MIB, 4 * MIB,
            "a parser is the richest source of bugs in an interpreter: bound what it is fed",
            "the loader, before a worker sees the script",
            "nothing: it is not loaded",
        ),
        LimitSpec(
            "value_depth", "levels", 64, 256,
            "recursion in encoders and decoders on both sides",
            "the codec in the worker, and again the supervisor's decoder",
            "a run that returns a deeper or cyclic value ends with output_limit",
        ),
        LimitSpec(
            "model_turns", "count", 20, 200,
            "a model that calls tools for ever has to answer some time",
            "the loop of a document's run; the last turn is asked without tools",
            "nothing: scripts ask no model",
        ),
        LimitSpec(
            "tool_calls", "count", 50, 1_000,
            "one turn of a model may ask for any number of calls",
            "the loop of a document's run; further calls are not made, and the next turn is asked without tools",
            "nothing: scripts ask no model",
        ),
        LimitSpec(
            "model_tokens", "count", 200_000, 10_000_000,
            "each turn sends all turns before it",
            "the supervisor reserves tokens before each call of a model, and settles what the server reports",
            "nothing: scripts ask no model",
        ),
        LimitSpec(
            "cost_usd", "USD", 1, 100,
            "tokens are money; it holds for models with a price",
            "the supervisor reserves money before each call of a model, and settles what the server reports",
            "nothing: scripts ask no model",
        ),
    )
}  # fmt: skip


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one run: a field for every row of `SPECS`, which has the defaults."""

    timeout_s: float
    cpu_s: float
    memory_bytes: int
    output_bytes: int
    log_bytes: int
    host_calls: int
    http_bytes: int
    fs_bytes: int
    source_bytes: int
    value_depth: int
    model_turns: int
    tool_calls: int
    model_tokens: int
    cost_usd: float


def limits_of(values: Mapping[str, float]) -> Limits:
    """Limits of these values, each in the type of its row of `SPECS`; a missing one has the row's default."""
    rows: dict[str, Any] = {name: spec.kind(values.get(name, spec.default)) for name, spec in SPECS.items()}
    return Limits(**rows)


DEFAULTS = limits_of({})

# The prelude charges this much of `log_bytes` for every line besides its text, which bounds the number of lines.
LINE_BYTES = 16

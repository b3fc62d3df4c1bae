"""How a run ended, from evidence: the supervisor's mark, the wait status, and only then the worker's claim.

No text that a script controls decides anything here.
"""

import signal
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.errors import LimitUse, amount, limit_use
from engine.quota import Exceeded
from engine.run import Failure
from engine.tenant import BoundLimits
from engine.values import MAX_JSON_BYTES, MAX_VALUES, ValueRefused, decode_value, decoding
from sandbox.wire.messages import Done, Failed
from sandbox.wire.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Mark:
    """Why the supervisor killed a worker. Set before the signal is sent, so that it is there when the end is seen.

    `quota` is set if a quota of the tenant was exceeded, not a limit of the run.
    """

    outcome: Outcome
    limit: str | None = None
    used: float | None = None
    detail: str = ""
    quota: Exceeded | None = None


class Verdict(msgspec.Struct, frozen=True):
    """The outcome, the value or the failure, and whether it belongs in the security log (and why).

    `replaced` is the worker's claim: how often a broken part of the script's text became U+FFFD.
    """

    outcome: Outcome
    value: Any = None
    failure: Failure | None = None
    security_event: str | None = None
    replaced: int = 0


# Signals by which only corrupted memory ends a process: no script can cause one by legal means.
_CORRUPTION = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


# Fixed bounds of an answer, by their name in `error.limit`.
_OF_ANSWERS = {"values": (MAX_VALUES, "count"), "json_bytes": (MAX_JSON_BYTES, "bytes")}

# The error kinds of the prelude's encoder, and the limit behind each.
_OUTPUT_LIMITS = {"output_limit": "output_bytes", "depth_limit": "value_depth"}


def of_answer(answer: Done | Failed, limits: BoundLimits) -> Verdict:
    """The verdict on an answer, whose value is decoded and checked here."""
    if isinstance(answer, Done):
        try:
            return Verdict(Outcome.OK, decode_value(answer.value, limits.values), replaced=answer.replaced)
        except ValueRefused as refused:
            return _refused(refused, limits)
    traceback = answer.traceback or None
    if answer.kind == "memory_limit":
        return _exceeded(limits, Mark(Outcome.MEMORY_LIMIT, "memory_bytes"))
    if answer.kind in _OUTPUT_LIMITS:
        use = limit_use(limits, _OUTPUT_LIMITS[answer.kind])
        return Verdict(Outcome.OUTPUT_LIMIT, failure=Failure(answer.message, use))
    failure = Failure(answer.message, None, traceback)
    return Verdict(Outcome.SCRIPT_ERROR, failure=failure, replaced=answer.replaced)


def of_large(answer: Done, limits: BoundLimits) -> Generator[None, None, Verdict]:
    """`of_answer` for a value of more than MAX_VALUES bytes, in pieces (`decoding`)."""
    if len(answer.value) > limits.values.output_bytes:
        return of_answer(answer, limits)
    try:
        value = yield from decoding(answer.value, limits.values)
        return Verdict(Outcome.OK, value, replaced=answer.replaced)
    except ValueRefused as refused:
        return _refused(refused, limits)


def _refused(refused: ValueRefused, limits: BoundLimits) -> Verdict:
    outcome = Outcome.OUTPUT_LIMIT if refused.limit else Outcome.SCRIPT_ERROR
    use = None
    if refused.limit in _OF_ANSWERS:  # fixed for all scripts, so not among a run's limits
        bound, unit = _OF_ANSWERS[refused.limit]
        use = LimitUse(refused.limit, bound, None, unit, "engine")
    elif refused.limit is not None:
        use = limit_use(limits, refused.limit)
    return Verdict(outcome, failure=Failure(f"the script's answer {refused}", use))


def of_death(mark: Mark | None, status: int | None, cpu_s: float, limits: BoundLimits) -> Verdict:
    """The verdict when the worker ended without an answer. `status` is its wait status, None if the zygote ended, too.

    `cpu_s` is the CPU time of the run, from the kernel's clock.
    """
    if mark is not None:
        event = mark.detail if mark.outcome is Outcome.POLICY_VIOLATION else None
        return _exceeded(limits, mark) if event is None else _violation(event)
    killer = status & 0x7F if status is not None and status >= 0 else None  # WTERMSIG
    if killer == signal.SIGSYS:
        return _violation("seccomp stopped a system call that is not allowed (SIGSYS)")
    if killer == signal.SIGKILL:
        # Without a mark, the supervisor did not send it: RLIMIT_CPU sends it if the supervisor is late, and so does the
        # OOM killer.
        if cpu_s > limits["cpu_s"]:
            return _exceeded(limits, Mark(Outcome.CPU_LIMIT, "cpu_s", round(cpu_s, 3)))
        return Verdict(Outcome.WORKER_LOST, failure=Failure("the worker was killed and no limit explains it"))
    name = _signal_name(killer) if killer else "exit"
    event = f"worker ended by {name}" if killer in _CORRUPTION else None
    return Verdict(
        Outcome.WORKER_LOST, failure=Failure("the worker ended and no limit explains it"), security_event=event
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time signals between the first and the last have no name
        return f"signal {number}"


def _exceeded(limits: BoundLimits, mark: Mark) -> Verdict:
    """The verdict when the supervisor, or the allocator, stopped the run at a limit."""
    if mark.quota is not None:
        quota = mark.quota
        return Verdict(mark.outcome, failure=Failure(quota.message, quota.limit_use(), None, quota.retry_after_s))
    if mark.limit is None:
        return Verdict(mark.outcome, failure=Failure(mark.detail or f"the run ended: {mark.outcome}"))
    use = limit_use(limits, mark.limit, mark.used)
    return Verdict(
        mark.outcome, failure=Failure(_LIMIT_TEXT[mark.outcome].format(bound=amount(use.bound, use.unit)), use)
    )


_LIMIT_TEXT = {
    Outcome.TIMEOUT: "the script did not end within {bound} (limits.timeout_s)",
    Outcome.CPU_LIMIT: "the script used more than {bound} of CPU time (limits.cpu_s)",
    Outcome.MEMORY_LIMIT: "the script needed more than {bound} of memory (limits.memory_bytes)",
    Outcome.OUTPUT_LIMIT: "the script's answer is larger than {bound} (limits.output_bytes)",
    Outcome.CALL_LIMIT: "the script made more than {bound} host calls (limits.host_calls)",
}


def _violation(event: str) -> Verdict:
    return Verdict(
        Outcome.POLICY_VIOLATION,
        failure=Failure("the script was stopped by the sandbox"),
        security_event=event,
    )

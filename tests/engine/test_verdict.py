"""How a run ended, from mark, wait status and claim: no text of a script decides anything."""

import signal
from typing import Any

import msgspec
import pytest

from engine.errors import CODES, Code, amount, limit_use
from engine.tenant import DEFAULT_TENANT, BoundLimits, Tenant, bind_limits
from engine.workers.verdict import Mark, of_answer, of_death
from sandbox.wire.limits import SPECS
from sandbox.wire.messages import Done, Failed
from sandbox.wire.outcome import OUTCOMES, Outcome

LIMITS = bind_limits({"timeout_s": 2.0, "cpu_s": 1.0}, DEFAULT_TENANT, {}, {})
EXIT_70 = 70 << 8


def bound(**asked: float) -> BoundLimits:
    return bind_limits(asked, DEFAULT_TENANT, {}, {})


# mark, wait status, CPU seconds -> outcome, whether it is a security event, the limit's name
DEATHS: dict[str, tuple[Mark | None, int | None, float, Outcome, bool, str | None]] = {
    "marked timeout": (Mark(Outcome.TIMEOUT, "timeout_s"), 9, 0, Outcome.TIMEOUT, False, "timeout_s"),
    "marked cpu": (Mark(Outcome.CPU_LIMIT, "cpu_s", 1.02), 9, 2, Outcome.CPU_LIMIT, False, "cpu_s"),
    "marked calls": (Mark(Outcome.CALL_LIMIT, "host_calls", 201), 9, 0, Outcome.CALL_LIMIT, False, "host_calls"),
    "marked cancelled": (Mark(Outcome.CANCELLED), 9, 0, Outcome.CANCELLED, False, None),
    "marked violation": (Mark(Outcome.POLICY_VIOLATION, detail="x"), 9, 0, Outcome.POLICY_VIOLATION, True, None),
    "a mark before a signal": (
        Mark(Outcome.TIMEOUT, "timeout_s"),
        signal.SIGSEGV,
        0,
        Outcome.TIMEOUT,
        False,
        "timeout_s",
    ),
    "a mark without a status": (Mark(Outcome.TIMEOUT, "timeout_s"), None, 0, Outcome.TIMEOUT, False, "timeout_s"),
    "SIGSYS": (None, signal.SIGSYS, 0, Outcome.POLICY_VIOLATION, True, None),
    "SIGSYS with a core": (None, signal.SIGSYS | 0x80, 0, Outcome.POLICY_VIOLATION, True, None),
    "SIGKILL beyond its CPU": (None, signal.SIGKILL, 1.5, Outcome.CPU_LIMIT, False, "cpu_s"),
    "SIGKILL from outside": (None, signal.SIGKILL, 0.5, Outcome.WORKER_LOST, False, None),
    "SIGSEGV": (None, signal.SIGSEGV, 0, Outcome.WORKER_LOST, True, None),
    "SIGSEGV with a core": (None, signal.SIGSEGV | 0x80, 0, Outcome.WORKER_LOST, True, None),
    "SIGBUS": (None, signal.SIGBUS, 0, Outcome.WORKER_LOST, True, None),
    "SIGILL": (None, signal.SIGILL, 0, Outcome.WORKER_LOST, True, None),
    "SIGFPE": (None, signal.SIGFPE, 0, Outcome.WORKER_LOST, True, None),
    "SIGABRT": (None, signal.SIGABRT, 0, Outcome.WORKER_LOST, False, None),
    "SIGTERM": (None, signal.SIGTERM, 0, Outcome.WORKER_LOST, False, None),
    "exit 0": (None, 0, 0, Outcome.WORKER_LOST, False, None),
    "exit 70": (None, EXIT_70, 0, Outcome.WORKER_LOST, False, None),
    "no status": (None, None, 0, Outcome.WORKER_LOST, False, None),
    "no status beyond its CPU": (None, None, 5, Outcome.WORKER_LOST, False, None),
}


@pytest.mark.parametrize("what", DEATHS)
def test_a_worker_that_ended_without_an_answer_is_explained_by_evidence(what: str) -> None:
    mark, status, cpu_s, outcome, event, limit = DEATHS[what]
    verdict = of_death(mark, status, cpu_s, LIMITS)
    assert verdict.outcome is outcome
    assert (verdict.security_event is not None) is event
    assert verdict.value is None
    assert verdict.failure is not None
    assert verdict.failure.message
    assert (verdict.failure.limit.name if verdict.failure.limit else None) == limit


@pytest.mark.parametrize("number", [*range(1, 32), 34, 40, 64])
def test_every_signal_has_a_verdict(number: int) -> None:
    if number in {int(known) for known in signal.Signals}:
        assert of_death(None, number, 0, LIMITS).failure is not None


# SIGRTMIN + 1 and its like have no name in `signal.Signals`.
def test_a_signal_without_a_name_has_a_verdict() -> None:
    assert of_death(None, 40, 0, LIMITS).outcome is Outcome.WORKER_LOST


CLAIMS = {
    "script_error": (Outcome.SCRIPT_ERROR, None),
    "wrong_shape": (Outcome.SCRIPT_ERROR, None),
    "memory_limit": (Outcome.MEMORY_LIMIT, "memory_bytes"),
    "output_limit": (Outcome.OUTPUT_LIMIT, "output_bytes"),
    "depth_limit": (Outcome.OUTPUT_LIMIT, "value_depth"),
}


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_failure_that_the_prelude_reports_is_an_outcome(kind: Any) -> None:
    verdict = of_answer(Failed(kind, "the message", "t.lua:1: in agent.resolve"), LIMITS)
    assert (verdict.outcome, verdict.failure.limit and verdict.failure.limit.name) == CLAIMS[kind]  # type: ignore[union-attr]
    assert verdict.security_event is None


def test_the_scripts_own_text_and_traceback_are_shown() -> None:
    failure = of_answer(Failed("script_error", "t.lua:1: x", "t.lua:1: in f"), LIMITS).failure
    assert failure is not None
    assert (failure.message, failure.traceback) == ("t.lua:1: x", "t.lua:1: in f")
    assert of_answer(Failed("script_error", "x", ""), LIMITS).failure.traceback is None  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["not enough memory", "timeout", "the script used more than 1 s of CPU time"])
def test_the_text_of_an_error_decides_nothing(text: str) -> None:
    assert of_answer(Failed("script_error", text, ""), LIMITS).outcome is Outcome.SCRIPT_ERROR


@pytest.mark.parametrize(
    ("raw", "outcome", "limit"),
    [
        (msgspec.msgpack.encode({"a": [1]}), Outcome.OK, None),
        (msgspec.msgpack.encode("x" * 2000), Outcome.OUTPUT_LIMIT, "output_bytes"),
        (b"\x91" * 20 + b"\xc0", Outcome.OUTPUT_LIMIT, "value_depth"),
        (b"\xc4\x01x", Outcome.SCRIPT_ERROR, None),
        (b"", Outcome.SCRIPT_ERROR, None),
    ],
)
def test_an_answer_is_checked_again_whatever_the_worker_says(raw: bytes, outcome: Outcome, limit: str | None) -> None:
    verdict = of_answer(Done(raw), bound(output_bytes=1000, value_depth=10))
    assert verdict.outcome is outcome
    found = verdict.failure.limit if verdict.failure else None
    assert (found.name if found else None) == limit


@pytest.mark.parametrize("name", SPECS)
def test_a_limit_in_an_error_carries_bound_unit_and_who_set_it(name: str) -> None:
    spec = SPECS[name]
    by_script = limit_use(bind_limits({name: 1}, DEFAULT_TENANT, {}, {}), name, 2)
    assert (by_script.name, by_script.bound, by_script.used, by_script.unit) == (name, 1, 2, spec.unit)
    assert by_script.source == "script"
    by_tenant = limit_use(bind_limits({name: 5}, Tenant("t", ceilings={name: 2}), {}, {}), name)
    assert (by_tenant.bound, by_tenant.source) == (2, "tenant")
    assert limit_use(bind_limits({}, DEFAULT_TENANT, {}, {}), name).source == "engine"


MESSAGES = {
    Mark(Outcome.TIMEOUT, "timeout_s"): "the script did not end within 2 s (limits.timeout_s)",
    Mark(Outcome.CPU_LIMIT, "cpu_s", 1.02): "the script used more than 1 s of CPU time (limits.cpu_s)",
    Mark(Outcome.CALL_LIMIT, "host_calls", 201): "the script made more than 200 host calls (limits.host_calls)",
    Mark(Outcome.MEMORY_LIMIT, "memory_bytes"): "the script needed more than 64 MiB of memory (limits.memory_bytes)",
    Mark(Outcome.POLICY_VIOLATION, detail="broke the protocol"): "the script was stopped by the sandbox",
}


@pytest.mark.parametrize("mark", MESSAGES, ids=lambda mark: mark.outcome.value)
def test_the_sentence_names_the_bound_and_the_key(mark: Mark) -> None:
    failure = of_death(mark, 9, 0, LIMITS).failure
    assert failure is not None
    assert failure.message == MESSAGES[mark]


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (30, "s", "30 s"),
        (0.3, "s", "0.3 s"),
        (64 << 20, "bytes", "64 MiB"),
        (1536, "bytes", "1.5 KiB"),
        (100, "bytes", "100 bytes"),
        (200, "count", "200"),
        (64, "levels", "64"),
    ],
)
def test_amounts_are_for_people(value: float, unit: str, shown: str) -> None:
    assert amount(value, unit) == shown


def test_only_a_clean_end_lets_a_worker_live() -> None:
    assert [outcome for outcome in Outcome if outcome.spec.worker_survives] == [Outcome.OK]


def test_every_outcome_has_a_sentence_and_only_a_good_one_has_no_fault() -> None:
    assert list(OUTCOMES) == list(Outcome)
    assert all(spec.sentence.endswith(".") for spec in OUTCOMES.values())
    assert [outcome for outcome in Outcome if outcome.spec.fault is None] == [Outcome.OK]


def test_an_outcome_and_the_code_of_its_name_agree_on_fault_and_retry() -> None:
    assert list(CODES) == list(Code)
    both = set(Code) & {*Outcome}
    assert len(both) == 9
    for name in both:
        outcome, code = Outcome(name).spec, Code(name).spec
        assert (outcome.fault, outcome.retry) == (code.fault, code.retry), name

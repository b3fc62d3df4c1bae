"""The result of one load as JSON: every figure, and everything needed to repeat it.

The shape is in docs/bench.md. Times are in milliseconds if the key ends in `_ms`, else in seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.load.account import OwnFigures, Recorder, doubts
from benchmarks.load.schedule import Load

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The load and its target, for the result. `requests` describes them in words, `scenario_text` is their file."""

    target: str
    scenario: str
    about: str
    scenario_text: str
    requests: tuple[str, ...]
    load: Load
    model: str
    url: str | None = None
    era: str | None = None
    tenants: int = 1
    hostile_percent: float = 0.0
    processes: int = 1
    notes: tuple[str, ...] = ()
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The conditions of the figures: the machine with versions and commit, and what is known about the target."""

    machine: Mapping[str, Any]
    config: Mapping[str, Any] | None = None
    layers: Sequence[str] | None = None
    server: Mapping[str, Any] | None = None
    memory: Mapping[str, Any] = field(default_factory=dict)


def result_of(
    asked: Asked, account: Recorder, tester: OwnFigures, around: Surroundings, *, elapsed_s: float, interrupted: bool
) -> dict[str, Any]:
    """The result. `elapsed_s` is the part of the measured time that took place: not all of it after an interrupt."""
    invalid = doubts(account, tester)
    load = asked.load
    return {
        "schema": SCHEMA,
        "target": asked.target,
        "url": asked.url,
        "era": asked.era,
        "scenario": asked.scenario,
        "about": asked.about,
        "scenario_text": asked.scenario_text,
        "requests": list(asked.requests),
        "load": load_as_json(asked),
        "latency": account.latencies.summary(),
        "rate": round(account.answered_in_time / elapsed_s, 3) if elapsed_s > 0 else 0.0,
        "outcomes": dict(sorted(account.outcomes.items(), key=lambda item: (-item[1], item[0]))),
        "measured": account.measured,
        "expected": account.expected,
        "errors": account.failed,
        "errors_share": round(account.failed_share, 6),
        "late": account.late,
        "dropped": account.dropped,
        "unfinished": account.unfinished,
        "valid": not invalid,
        "invalid_because": invalid,
        "interrupted": interrupted,
        "elapsed_s": round(elapsed_s, 3),
        "warm_up": {"seconds": load.warm_up_s, "requests": account.warm_up},
        "parts": {name: each.summary() for name, each in account.parts.items() if each.count} or None,
        "memory": {**around.memory, **({"run_peak_bytes": m} if (m := account.run_memory_bytes) else {})} or None,
        "by": {
            kind: {
                name: {"count": each.count, **each.summary()}
                for name, each in sorted(found.items(), key=lambda item: (-item[1].count, item[0]))
            }
            for kind, found in account.by.items()
        },
        "tester": {
            "lag": account.lag.summary() if asked.model == "open" else None,
            "cpu_shares": [round(share, 3) for share in tester.cpu_shares],
            "shares_its_process_with_the_target": not tester.alone,
            "most_in_flight": account.most_in_flight,
        },
        "series": _series(account),
        "histogram": {"unit": "us", "count": account.latencies.count, **account.latencies.wire()},
        "curve": _curve(account),
        "notes": list(asked.notes),
        "machine": dict(around.machine),
        "config": around.config,
        "layers": None if around.layers is None else list(around.layers),
        "server": around.server,
        "command": asked.command,
    }


def load_as_json(asked: Asked) -> dict[str, Any]:
    """The load, with the options to repeat it."""
    load = asdict(asked.load)
    return {
        "model": asked.model,
        **load,
        "tenants": asked.tenants,
        "hostile_percent": asked.hostile_percent,
        "processes": asked.processes,
    }


def _series(account: Recorder) -> dict[str, Any]:
    interval_s = account.load.duration_s / len(account.blocks)
    return {
        "interval_s": interval_s,
        "blocks": [
            {
                "at_s": round(number * interval_s, 3),
                "rate": round(block.ended / interval_s, 3),
                "asked": block.latencies.count + block.dropped,
                "errors": block.errors + block.dropped,
                "p50_ms": block.latencies.percentiles_ms([50.0]).get(50.0),
                "p99_ms": block.latencies.percentiles_ms([99.0]).get(99.0),
                "latencies": block.latencies.wire(),
            }
            for number, block in enumerate(account.blocks)
        ],
    }


# The percentiles of a latency curve: ever closer to 100 %, as the tail matters most.
_CURVE = (
    0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 85.0, 90.0, 92.5, 95.0, 97.5, 98.0, 99.0, 99.5, 99.75,
    99.9, 99.95, 99.975, 99.99, 99.995, 99.999, 99.9999, 100.0,
)  # fmt: skip


def _curve(account: Recorder) -> list[list[float]]:
    """Percentile and latency in milliseconds; only percentiles that the number of requests supports."""
    count = account.measured
    told = [each for each in _CURVE if each in (0.0, 100.0) or (100 - each) / 100 * count >= 1]
    found = account.latencies.percentiles_ms(told)
    return [[percent, found[percent]] for percent in told if percent in found]

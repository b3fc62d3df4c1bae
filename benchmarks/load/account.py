"""The account of a load: every request by its due time, the time it was sent, and its outcome.

Pure: times are seconds from the start of the load and are arguments, never read from a clock. A request belongs to the
measured time if it was *due* in it; requests due in the warm-up are only counted.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load.histogram import COARSE, FINE, Histogram
from benchmarks.load.schedule import Load, Request

# A request sent later than this after its due time counts as late.
LATE_S = 0.001

# Outcomes that the tester assigns if there is none from the target.
NO_ANSWER = "no_answer"  # nothing within --timeout
REFUSED = "refused"  # no connection
RESET = "reset"  # the connection broke
CLOSED = "closed"  # the connection ended before the answer did
GARBAGE = "garbage"  # the answer is not HTTP, or not the expected JSON
TESTER = "tester_error"  # this machine could not send the request (no descriptors or ports left)
OF_THE_TESTER = frozenset({NO_ANSWER, REFUSED, RESET, CLOSED, GARBAGE, TESTER})

# The measured time is divided into this many blocks: enough for a curve and for `compare`'s intervals.
BLOCKS = 40

# The times of a run that a target may report, with descriptions.
PARTS = {
    "queue": "waiting for a worker",
    "run": "on the worker, host calls included",
    "host_calls": "the host calls of a run, together",
    "cpu": "CPU time of the run",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The end of one request: the outcome, and the target's report of the run. Times in seconds."""

    outcome: str
    queue_s: float | None = None
    run_s: float | None = None
    host_calls_s: float | None = None
    cpu_s: float | None = None
    memory_bytes: int | None = None

    @property
    def answered(self) -> bool:
        """Whether the target answered, be it with an error."""
        return self.outcome not in OF_THE_TESTER


@dataclass(slots=True)
class Block:
    """One part of the measured time. Latencies are of the requests due in it; `ended` counts those that ended in it."""

    latencies: Histogram = field(default_factory=lambda: Histogram(COARSE))
    ended: int = 0
    errors: int = 0
    dropped: int = 0


class Recorder:
    """The account of one load, in one process. `add` joins those of several."""

    def __init__(self, load: Load, blocks: int = BLOCKS) -> None:
        self.load = load
        self.latencies = Histogram(FINE)
        self.lag = Histogram(FINE)  # lateness of the tester itself, for the requests that it could send
        self.by: dict[str, dict[str, Histogram]] = {}
        self.parts = {name: Histogram(FINE) for name in PARTS}
        self.outcomes: Counter[str] = Counter()
        self.expected = 0
        self.errors = 0
        self.warm_up = 0
        self.late = 0
        self.dropped = 0
        self.never_sent = 0  # the dropped ones that were still overdue at the end of the load
        self.unfinished = 0  # cut off by an interrupt
        self.answered_in_time = 0  # answers within the measured time, whenever their requests were due
        self.in_flight = 0
        self.most_in_flight = 0
        self.run_memory_bytes = 0
        self.blocks = [Block() for _ in range(blocks)]
        self.recent = Histogram(COARSE)  # since the last `take_recent`, for the live display

    # ---- events -------------------------------------------------------------------------------------------------

    def sent(self, due: float, at: float) -> None:
        """A request due at `due` is sent at `at`."""
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if self._measured(due):
            self.lag.record(max(0.0, at - due))
            self.late += at - due > LATE_S

    def drop(self, due: float) -> None:
        """A request due at `due` is not sent, as too many are in flight."""
        if self._measured(due):
            self.dropped += 1
            self._block(due).dropped += 1

    def drop_rest(self, count: int) -> None:
        """So many requests of the measured time were never sent: it was over before the tester got to them."""
        self.dropped += count
        self.never_sent += count

    def cut_off(self) -> None:
        """A request is given up because the load was interrupted."""
        self.in_flight -= 1
        self.unfinished += 1

    def ended(self, request: Request, due: float, at: float, answer: Answer, phase: str | None = None) -> None:
        """The request due at `due` was answered, or given up, at `at`."""
        self.in_flight -= 1
        latency = at - due
        self.recent.record(latency)
        if answer.answered and self._measured(at):
            self.answered_in_time += 1
            self._block(at).ended += 1
        if not self._measured(due):
            self.warm_up += 1
            return
        self.latencies.record(latency)
        self.outcomes[answer.outcome] += 1
        block = self._block(due)
        block.latencies.record(latency)
        if answer.outcome in request.ask.expect:
            self.expected += 1
        else:
            self.errors += 1
            block.errors += 1
        self._count("outcome", answer.outcome, latency)
        self._count("tenant", request.tenant, latency)
        self._count("request", request.ask.name, latency)
        if phase is not None:
            self._count("phase", phase, latency)
        for name, seconds in (
            ("queue", answer.queue_s),
            ("run", answer.run_s),
            ("host_calls", answer.host_calls_s),
            ("cpu", answer.cpu_s),
        ):
            if seconds is not None:
                self.parts[name].record(seconds)
        self.run_memory_bytes = max(self.run_memory_bytes, answer.memory_bytes or 0)

    def add_unrelated(self, name: str, seconds: float, answer: Answer | None, expect: tuple[str, ...] = ()) -> None:
        """Record another measurement: reported under its own name, and not among the latencies of the whole."""
        self._count("request", name, seconds)
        if answer is not None:
            self.outcomes[answer.outcome] += 1
            self.expected += answer.outcome in expect
            self.errors += answer.outcome not in expect

    def _measured(self, at: float) -> bool:
        return self.load.warm_up_s <= at < self.load.total_s

    def _block(self, at: float) -> Block:
        share = (at - self.load.warm_up_s) / self.load.duration_s
        return self.blocks[min(len(self.blocks) - 1, max(0, math.floor(share * len(self.blocks))))]

    def _count(self, kind: str, name: str, latency: float) -> None:
        found = self.by.setdefault(kind, {})
        if name not in found:
            found[name] = _histogram(kind)
        found[name].record(latency)

    # ---- reading ------------------------------------------------------------------------------------------------

    @property
    def measured(self) -> int:
        """Requests of the measured time that ended."""
        return self.outcomes.total()

    @property
    def failed(self) -> int:
        """Requests of the measured time with an outcome that the scenario does not expect, or never sent."""
        return self.errors + self.dropped

    @property
    def failed_share(self) -> float:
        return self.failed / max(1, self.measured + self.dropped)

    def take_recent(self) -> Histogram:
        """The latencies since the last call."""
        recent, self.recent = self.recent, Histogram(COARSE)
        return recent

    # ---- several processes --------------------------------------------------------------------------------------

    _NUMBERS = (
        "expected", "errors", "warm_up", "late", "dropped", "never_sent", "unfinished", "answered_in_time",
        "most_in_flight",
    )  # fmt: skip

    def wire(self) -> dict[str, Any]:
        """The account as JSON."""
        return {
            "latencies": self.latencies.wire(),
            "lag": self.lag.wire(),
            "by": {kind: {name: each.wire() for name, each in found.items()} for kind, found in self.by.items()},
            "outcomes": dict(self.outcomes),
            "numbers": {name: getattr(self, name) for name in self._NUMBERS},
            "blocks": [
                {"latencies": b.latencies.wire(), "ended": b.ended, "errors": b.errors, "dropped": b.dropped}
                for b in self.blocks
            ],
        }

    def add(self, wire: Mapping[str, Any]) -> None:
        """Merge the account of another process, for another part of the same load. Raises ValueError."""
        self.latencies.add(Histogram.from_wire(wire["latencies"]))
        self.lag.add(Histogram.from_wire(wire["lag"]))
        for kind, found in wire["by"].items():
            for name, each in found.items():
                self.by.setdefault(kind, {}).setdefault(name, _histogram(kind)).add(Histogram.from_wire(each))
        self.outcomes.update(wire["outcomes"])
        for name in self._NUMBERS:
            setattr(self, name, getattr(self, name) + wire["numbers"][name])
        for block, other in zip(self.blocks, wire["blocks"], strict=True):
            block.latencies.add(Histogram.from_wire(other["latencies"]))
            block.ended += other["ended"]
            block.errors += other["errors"]
            block.dropped += other["dropped"]


def _histogram(kind: str) -> Histogram:
    return Histogram(COARSE if kind == "tenant" else FINE)  # there may be a thousand tenants


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFigures:
    """The tester's own figures. `cpu_shares` is the share of one core that each of its processes used."""

    cpu_shares: tuple[float, ...] = ()
    alone: bool = True  # false when the target runs in the tester's process, as a pool does


# A tester whose lateness exceeds this time, and this part of the latency that it reports, has measured itself. In one
# process with the engine, both wait for the same thread, and delays by the engine are the engine's latency: there, only
# a lateness that the engine can hardly cause counts.
LAG_MATTERS_MS, LAG_MATTERS_SHARE = 2.0, 0.25
LAG_MATTERS_SHARED_MS, LAG_MATTERS_SHARED_SHARE = 10.0, 0.5
# With fewer requests, the p99 is a single outlier, and p90 is used instead.
_ENOUGH_FOR_P99 = 200

# Above this share, answers wait for the tester's own core, which affects latency and rate.
BUSY_SHARE = 0.9


def doubts(account: Recorder, tester: OwnFigures) -> list[str]:
    """Reasons why the figures reflect the tester rather than the target; empty if they are valid."""
    found = []
    if not account.measured:
        found.append("no request ended in the measured time")
    percent = 99.0 if account.measured >= _ENOUGH_FOR_P99 else 90.0
    lag = account.lag.percentiles_ms([percent]).get(percent, 0.0)
    latency = account.latencies.percentiles_ms([percent]).get(percent, 0.0)
    least_ms, share, who = (
        (LAG_MATTERS_MS, LAG_MATTERS_SHARE, "the tester")
        if tester.alone
        else (LAG_MATTERS_SHARED_MS, LAG_MATTERS_SHARED_SHARE, "the tester (in one process with the engine)")
    )
    if lag > least_ms and lag > share * latency:
        found.append(f"{who} was late by {lag:g} ms at p{percent:g}, of a latency of {latency:g} ms")
    if account.never_sent:
        found.append(f"the time was over before {account.never_sent:,} of the requests could be sent")
    if tester.alone and (busiest := max(tester.cpu_shares, default=0.0)) >= BUSY_SHARE:
        found.append(f"a process of the tester used {busiest:.0%} of a core; give it more with --processes")
    if failed := account.outcomes.get(TESTER):
        found.append(f"this machine had no descriptors or ports left for {failed:,} of the requests")
    return found


def phases(starts: Iterable[float], duration_s: float, warm_up_s: float) -> list[tuple[float, str]]:
    """The phases of the measured time, divided where additional requests begin: the end of each and its name.

    Empty if no requests begin later. Times are seconds from the start of the load.
    """
    later = sorted({start for start in starts if start > 0})
    if not later:
        return []
    names = [
        "alone",
        *(["with the others"] if len(later) == 1 else [f"with others {n}" for n in range(1, len(later) + 1)]),
    ]
    ends = [*(warm_up_s + start * duration_s for start in later), math.inf]
    return list(zip(ends, names, strict=True))

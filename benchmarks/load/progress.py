"""Progress of a load, once a second: from the account of one process, or merged from several."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load.account import Recorder
from benchmarks.load.histogram import COARSE, Histogram


@dataclass(slots=True)
class Progress:
    """`recent` has the latencies since the last report; everything else counts from the start of the load."""

    recent: Histogram = field(default_factory=lambda: Histogram(COARSE))
    outcomes: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    errors: int = 0
    in_flight: int = 0

    @classmethod
    def from_account(cls, account: Recorder) -> "Progress":
        """The state of an account now. Takes its recent latencies."""
        return cls(account.take_recent(), Counter(account.outcomes), account.dropped, account.errors, account.in_flight)

    def wire(self) -> dict[str, Any]:
        return {
            "recent": self.recent.wire(), "outcomes": dict(self.outcomes), "dropped": self.dropped,
            "errors": self.errors, "in_flight": self.in_flight,
        }  # fmt: skip

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Progress":
        """Raises ValueError or KeyError for anything else."""
        return cls(
            Histogram.from_wire(wire["recent"]),
            Counter(wire["outcomes"]),
            wire["dropped"],
            wire["errors"],
            wire["in_flight"],
        )

    def add(self, other: "Progress") -> None:
        """Merge the progress of another process."""
        self.recent.add(other.recent)
        self.outcomes.update(other.outcomes)
        self.dropped += other.dropped
        self.errors += other.errors
        self.in_flight += other.in_flight

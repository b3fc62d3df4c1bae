"""The search for the highest rate that holds: rates grow until one fails, then the gap is halved.

Pure: it returns the rate to try next, and takes the outcome.
"""

from dataclasses import dataclass, field

# Factor by which the rate grows while everything holds.
GROWTH = 2.0


@dataclass(slots=True)
class Ramp:
    """A search from `low` to `high` (a second), until the answer is known to `precision` (0.1: within 10 %).

    A rate that fails is tried once more before it counts: one bad second of the machine must not decide the answer.
    `best` is the highest rate that held so far.
    """

    low: float
    high: float
    precision: float = 0.1
    best: float | None = None
    _worst: float | None = field(default=None, init=False)
    _doubted: float | None = field(default=None, init=False)

    def next_rate(self) -> float | None:
        """The rate to try next; None if the answer is known."""
        if self._doubted is not None:
            return self._doubted
        if self.best is None:
            return None if self._worst is not None else self.low
        if self._worst is None:
            return None if self.best >= self.high else min(self.high, self.best * GROWTH)
        if self._worst <= self.best * (1 + self.precision):
            return None
        return float((self.best * self._worst) ** 0.5)

    def tell(self, rate: float, held: bool) -> None:
        """Record the outcome for a rate."""
        if held:
            self._doubted = None
            self.best = max(rate, self.best or 0.0)
        elif self._doubted == rate:
            self._doubted = None
            self._worst = min(rate, self._worst or rate)
        else:
            self._doubted = rate

    @property
    def limited(self) -> bool:
        """Whether even the highest rate to try held."""
        return self.best is not None and self.best >= self.high

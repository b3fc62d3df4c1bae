"""Latencies counted in an HDR histogram (hdrhistogram.org): fixed relative precision from 1 us to an hour, mergeable.

The library keeps the counts; the exact sum and maximum, which buckets would round, are kept separately.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from hdrh.histogram import HdrHistogram

# Durations are recorded in whole microseconds. A longer one counts as this.
_LONGEST_US = 3_600_000_000

# Significant digits: 3 keep values to 0.1 %, in 190 KB; 2 to 1 %, in 25 KB, for figures with many histograms.
FINE = 3
COARSE = 2

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9}


class Histogram:
    """A distribution of durations. Recorded in seconds, read in milliseconds."""

    def __init__(self, digits: int = FINE) -> None:
        self._hdr = HdrHistogram(1, _LONGEST_US, digits)
        self._digits = digits
        self.sum_s = 0.0
        self.max_s = 0.0

    @property
    def count(self) -> int:
        return int(self._hdr.total_count)

    def record(self, seconds: float) -> None:
        """Count one duration."""
        self._hdr.record_value(min(_LONGEST_US, max(0, round(seconds * 1e6))))
        self.sum_s += seconds
        self.max_s = max(self.max_s, seconds)

    def percentiles_ms(self, wanted: Iterable[float]) -> dict[float, float]:
        """Each wanted percentile (0 to 100): the value that so many percent do not exceed. Empty without values."""
        if not self.count:
            return {}
        found = self._hdr.get_percentile_to_value_dict(list(wanted))
        # The library returns a bucket's upper edge; no value in it can exceed the maximum.
        return {percent: round(min(value / 1e3, self.max_s * 1e3), 3) for percent, value in found.items()}

    def summary(self) -> dict[str, float | None]:
        """`p50_ms p90_ms p99_ms p99.9_ms max_ms mean_ms`; all None without values."""
        if not self.count:
            return dict.fromkeys((*(f"{name}_ms" for name in PERCENTILES), "max_ms", "mean_ms"))
        found = self.percentiles_ms(PERCENTILES.values())
        return {
            **{f"{name}_ms": found[percent] for name, percent in PERCENTILES.items()},
            "max_ms": round(self.max_s * 1e3, 3),
            "mean_ms": round(self.sum_s / self.count * 1e3, 3),
        }

    def counts(self) -> dict[int, int]:
        """The number of durations in each bucket, by its midpoint in microseconds."""
        found = {}
        for item in self._hdr.get_recorded_iterator():
            low, high = (
                edge(item.value_iterated_to)
                for edge in (self._hdr.get_lowest_equivalent_value, self._hdr.get_highest_equivalent_value)
            )
            found[(low + high) // 2] = int(item.count_added_in_this_iter_step)
        return found

    def add(self, other: "Histogram") -> None:
        """Count everything that `other` counted. Both must have the same digits."""
        self._hdr.add(other._hdr)
        self.sum_s += other.sum_s
        self.max_s = max(self.max_s, other.max_s)

    # ---- to and from JSON ---------------------------------------------------------------------------------------

    def wire(self) -> dict[str, Any]:
        """The histogram as JSON: `hdr` is the library's V2 log format (compressed, base64)."""
        encoded = self._hdr.encode()
        text = encoded.decode() if isinstance(encoded, bytes) else encoded
        return {"digits": self._digits, "hdr": text, "sum_s": self.sum_s, "max_s": self.max_s}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Histogram":
        """The histogram from such JSON. Raises ValueError for anything else."""
        try:
            found = cls(int(wire["digits"]))
            found._hdr.decode_and_add(wire["hdr"])
            found.sum_s, found.max_s = float(wire["sum_s"]), float(wire["max_s"])
        except Exception as error:  # the library raises its own, zlib's, binascii's and ctypes' errors
            raise ValueError(f"not a histogram ({type(error).__name__})") from None
        return found

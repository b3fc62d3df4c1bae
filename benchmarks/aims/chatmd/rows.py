"""The rows of the table of aims that are of documents: their aims, and what measures them."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.aims.chatmd import reading
from benchmarks.aims.harness import ratio
from benchmarks.aims.rows import Aim, Found

Part = tuple[Sequence[Aim], Callable[[], Sequence[Found]]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: megabytes of a document."""

    megabytes: float = 10


def parts(sizes: Sizes, rounds: int) -> dict[str, Part]:
    """The parts by name."""
    return {"chatmd-reading": _reading(sizes.megabytes, rounds)}


def _reading(size: float, rounds: int) -> Part:
    rate = Aim(what=f"reading {size:g} MB of ChatMD, MB/s", beside="html.parser, same text", better="more", least=1.0)
    twice = Aim(what=f"reading {2 * size:g} MB of ChatMD, CPU", beside=f"{size:g} MB", least=2.2)
    return (rate, twice), partial(_read, size, rounds, rate, twice)


def _read(size: float, rounds: int, rate: Aim, twice: Aim) -> list[Found]:
    seen = reading.measure(size, rounds)
    ours, beside = ([size / taken for taken in seen[name]] for name in ("ours", "html.parser"))
    amounts = [f"{statistics.median(each):.1f} MB/s" for each in (ours, beside)]
    times = [f"{statistics.median(seen[name]):.2f} s" for name in ("twice", "ours")]
    return [
        Found(aim=rate, figure=ratio(ours, beside), measured=amounts[0], beside=amounts[1]),
        Found(aim=twice, figure=ratio(seen["twice"], seen["ours"]), measured=times[0], beside=times[1]),
    ]

"""The table of aims: each figure, what it is compared with, and whether the aim is met. Pure: numbers in, text out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.report.figures import table

Better = Literal["less", "more"]

MET, ENOUGH, SHORT, UNKNOWN = "aim met", "pass", "FALLS SHORT", "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """The aim for one figure, a ratio or an amount. It must reach `least`, and should reach `aim`.

    `better` gives the direction. `unit` follows the figure: "x" for a ratio.
    """

    what: str
    beside: str
    better: Better = "less"
    least: float | None = None
    aim: float | None = None
    unit: str = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The measurement for an aim: the figure and the two amounts behind it, or the reason for a missing one."""

    aim: Aim
    figure: float | None = None
    measured: str = ""
    beside: str = ""
    why: str = ""

    @property
    def verdict(self) -> str:
        if self.figure is None:
            return UNKNOWN
        if self.aim.aim is not None and self._reaches(self.aim.aim):
            return MET
        if self.aim.least is not None:
            return ENOUGH if self._reaches(self.aim.least) else SHORT
        return SHORT

    def _reaches(self, bound: float) -> bool:
        assert self.figure is not None
        return self.figure <= bound if self.aim.better == "less" else self.figure >= bound


def shown(found: Sequence[Found]) -> str:
    """The table as text, and below it the reasons for rows without a figure."""
    head = ("what", "beside", "measured", "beside it", "ratio", "at least", "aim", "verdict")
    rows = [
        (
            each.aim.what,
            each.aim.beside,
            each.measured,
            each.beside,
            "" if each.figure is None else f"{each.figure:.2f}{_unit(each.aim)}",
            _bound(each.aim, each.aim.least),
            _bound(each.aim, each.aim.aim),
            each.verdict,
        )
        for each in found
    ]
    reasons = [f"{each.aim.what}, beside {each.aim.beside}: {each.why}" for each in found if each.why]
    return "\n".join((table(head, rows), *([""] if reasons else []), *reasons))


def _bound(aim: Aim, bound: float | None) -> str:
    return "" if bound is None else f"{'<=' if aim.better == 'less' else '>='} {bound:g}{_unit(aim)}"


def _unit(aim: Aim) -> str:
    return "" if aim.unit == "x" else f" {aim.unit}"


def counted(found: Sequence[Found]) -> str:
    """The number of rows by outcome, in one line."""
    parts = [(name, sum(each.verdict == name for each in found)) for name in (MET, ENOUGH, SHORT, UNKNOWN)]
    return ", ".join(f"{count} {name}" for name, count in parts if count)


def replaced(text: str, name: str, body: str) -> str:
    """`text` with the part between `<!-- NAME -->` and `<!-- end of NAME -->` replaced. Raises ValueError."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"no section {name!r} between its markers")
    return f"{before}{begin}\n{body.strip()}\n{end}{after}"

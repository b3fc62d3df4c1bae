"""The table of aims: what was measured beside what, and whether that is enough. Pure: numbers in, text out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.figures import table

Better = Literal["less", "more"]

MET, ENOUGH, SHORT, UNKNOWN = "aim met", "pass", "FALLS SHORT", "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """One figure that is aimed at, as a ratio or an amount. `least` is what it must reach, `aim` what it should.

    `better` says which way is up. `unit` follows the figure: "x" for a ratio.
    """

    what: str
    beside: str
    better: Better = "less"
    least: float | None = None
    aim: float | None = None
    unit: str = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was measured for an aim: the figure and the two amounts behind it, or why there is none."""

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
    """The table for people, and below it the reasons of the rows that have no figure."""
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
    """How many rows ended how, in one line."""
    parts = [(name, sum(each.verdict == name for each in found)) for name in (MET, ENOUGH, SHORT, UNKNOWN)]
    return ", ".join(f"{count} {name}" for name, count in parts if count)


def replaced(text: str, name: str, body: str) -> str:
    """`text` with what stands between `<!-- NAME -->` and `<!-- end of NAME -->` replaced. Raises ValueError."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"no section {name!r} between its markers")
    return f"{before}{begin}\n{body.strip()}\n{end}{after}"

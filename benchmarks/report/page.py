"""A result as one self-contained HTML page: no script, no request, curves as inline SVG."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from benchmarks.load.account import PARTS
from benchmarks.report import machine
from benchmarks.report.text import counts_of, load_of, milliseconds, target_of, verdict_of

_WIDTH, _HEIGHT = 860, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 36

_COLUMNS = ("p50_ms", "p90_ms", "p99_ms", "p99.9_ms", "max_ms", "mean_ms")

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6877; --line: #d9dee5; --back: #ffffff; --panel: #f6f8fa;
  --one: #0b62d6; --two: #c2410c; --three: #15803d; --bad: #b91c1c; --good: #15803d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e5e9f0; --soft: #9aa6b5; --line: #343d4a; --back: #14181f;
  --panel: #1b212a; --one: #6aa8ff; --two: #fb923c; --three: #4ade80; --bad: #f87171; --good: #4ade80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 2rem auto;
  max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .2rem 0; } .soft { color: var(--soft); } .bad { color: var(--bad); font-weight: 600; }
.good { color: var(--good); font-weight: 600; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 500; }
svg { width: 100%; height: auto; background: var(--panel); border-radius: 6px; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; } .grid { stroke: var(--line); stroke-width: 1; }
.one { stroke: var(--one); } .two { stroke: var(--two); } .three { stroke: var(--three); } .errors { fill: var(--bad); }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; } svg text.one { fill: var(--one); stroke: none; }
svg text.two { fill: var(--two); stroke: none; } svg text.three { fill: var(--three); stroke: none; }
.wide { overflow-x: auto; } code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0; }
dl dl { gap: .05rem 1rem; } dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
"""


def page(result: Mapping[str, Any]) -> str:
    """The page. All text from the result is escaped."""
    return _document(result["scenario"], _body(result))


def _document(title: str, body: Iterator[str]) -> str:
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>engine bench: {escape(title)}</title><style>{_STYLE}</style></head><body>",
            *body,
            "</body></html>\n",
        )
    )


def ramp_page(answer: Mapping[str, Any]) -> str:
    """The page of a ramp: latency by rate, and which rates held."""
    return _document(f"ramp of {answer['scenario']}", _ramp_body(answer))


def _ramp_body(answer: Mapping[str, Any]) -> Iterator[str]:
    best = answer["highest_rate"]
    told = "no rate held" if best is None else f"{best:.4g} a second"
    yield f"<h1>The highest rate that holds: {escape(told)}</h1>"
    yield f"<p>Scenario {escape(answer['scenario'])}, asked of {escape(answer['target'])}. "
    yield f"A rate fails when {escape(' or '.join(answer['thresholds']))}, or when the tester was the bottleneck.</p>"
    yield "<h2>Latency by rate</h2>"
    steps = sorted(answer["steps"], key=lambda step: (step["rate"], not step["held"]))
    yield _by_rate(steps)
    yield "<h2>Every step</h2>"
    rows = {
        f"{step['rate']:.4g} a second: {'holds' if step['held'] else 'fails'} ({number})": {
            "count": step["result"]["measured"],
            **step["result"]["latency"],
        }
        for number, step in enumerate(answer["steps"], 1)
    }
    yield _table("", rows)
    yield "<h2>To make it again</h2>"
    facts = {"command": answer["command"] or None}
    if answer["machine"] is not None:
        facts |= {"machine": machine.line(answer["machine"]), "commit": answer["machine"].get("commit")}
    yield _list(facts)


def _by_rate(steps: Sequence[Mapping[str, Any]]) -> str:
    known = [step for step in steps if step["result"]["latency"]["p50_ms"] is not None]
    if len(known) < 2:
        return '<p class="soft">Too few steps for a curve.</p>'
    latencies = [step["result"]["latency"] for step in known]
    ups = _upwards([each[key] for each in latencies for key in ("p50_ms", "p99_ms")])
    top, width = max(step["rate"] for step in known), _WIDTH - _LEFT - _RIGHT
    inside = []
    for place, (key, name, kind) in enumerate((("p50_ms", "p50", "one"), ("p99_ms", "p99", "two"))):
        points = [
            (
                _LEFT + width * step["rate"] / top,
                ups.place(each[key]),
                f"{name} {each[key]:g} ms at {step['rate']:.4g} a second, {'holds' if step['held'] else 'fails'}",
            )
            for step, each in zip(known, latencies, strict=True)
        ]
        inside += [_line(points, kind), _named(name, kind, place)]
    step = _step(top)
    across = [(_LEFT + width * step * n / top, f"{step * n:g}/s") for n in range(math.floor(top / step + 1e-9) + 1)]
    return _frame(ups, across, "milliseconds", "".join(inside))


def _body(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h1>{escape(result['scenario'])}: {escape(result['about'] or 'a scenario')}</h1>"
    yield f"<p>Asked of {escape(target_of(result))}: {escape(', '.join(result['requests']))}</p>"
    yield f'<p class="soft">{escape(load_of(result))}</p>'
    for line in verdict_of(result):
        kind = "good" if line.startswith("valid") else "bad"
        yield f'<p class="{kind}">{escape(line)}</p>'
    yield f"<p>{escape(counts_of(result))}</p>"
    yield from (f'<p class="soft">Note: {escape(note)}</p>' for note in result["notes"])
    yield "<h2>Latency in milliseconds</h2>"
    yield _table("", {"all": {"count": result["histogram"]["count"], **result["latency"]}})
    yield "<h2>Latency by percentile</h2>"
    yield _curve(result["curve"])
    blocks = result["series"]["blocks"]
    yield "<h2>Over the measured time</h2>"
    yield _over_time(blocks, "milliseconds", (("p50_ms", "p50", "one"), ("p99_ms", "p99", "two")), result)
    yield _over_time(blocks, "answers a second", (("rate", "rate", "three"),), result, errors=True)
    for kind, heading in (
        ("outcome", "By outcome"), ("request", "By request"), ("tenant", "By tenant"),
        ("phase", "The rate's own requests, by what came beside them"),
    ):  # fmt: skip
        if found := result["by"].get(kind):
            yield f"<h2>{heading}</h2>"
            yield _table(kind, found)
    if result["parts"]:
        yield "<h2>Where the time of a run went</h2>"
        named = {f"{name.replace('_', ' ')}: {PARTS[name]}": each for name, each in result["parts"].items()}
        yield _table("part", named)
    yield "<h2>To make it again</h2>"
    yield _facts(result)


def _table(heading: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name.removesuffix('_ms'))}</th>" for name in (heading, "count", *_COLUMNS))
    body = "".join(
        f"<tr><td>{escape(name)}</td><td>{_count(each)}</td>"
        + "".join(f"<td>{milliseconds(each[column])}</td>" for column in _COLUMNS)
        + "</tr>"
        for name, each in rows.items()
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _count(figures: Mapping[str, Any]) -> str:
    return f"{figures['count']:,}" if "count" in figures else ""


def _facts(result: Mapping[str, Any]) -> str:
    facts = result["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in facts.get("versions", {}).items())
    rows = {
        "command": result["command"] or None,
        "scenario": result["scenario_text"].strip() or None,
        "machine": machine.line(facts),
        "versions": versions or None,
        "commit": facts.get("commit"),
        "layers": None if result["layers"] is None else ", ".join(result["layers"]) or "none",
        "load": ", ".join(f"{key} {value}" for key, value in result["load"].items() if value is not None),
        "configuration": result["config"],
        "server": result["server"],
        "memory": result["memory"],
        "tester": result["tester"],
    }
    return _list(rows)


# A server that is measured says these of itself: deeper values are not looked into.
_MAX_DEPTH = 8


def _list(rows: Mapping[str, Any], depth: int = 0) -> str:
    """Names and values; a value with names of its own is a list inside."""
    told = "".join(
        f"<dt>{escape(str(name))}</dt><dd>{_value(value, depth)}</dd>"
        for name, value in rows.items()
        if value is not None
    )
    return f"<dl>{told}</dl>"


def _value(value: Any, depth: int) -> str:
    match value:
        case Mapping() | list() | tuple() if depth >= _MAX_DEPTH:
            text = "…"
        case Mapping() | list() | tuple() if not value:
            text = "none"
        case Mapping():
            return _list({str(name).replace("_", " "): each for name, each in value.items()}, depth + 1)
        case list() | tuple():
            return ", ".join(_value(each, depth + 1) for each in value)
        case bool():
            text = "yes" if value else "no"
        case _:
            text = str(value)
    return f"<code>{escape(text)}</code>"


# ---- curves ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps values to positions on one axis, and lists the values of the grid lines."""

    place: Callable[[float], float]
    ticks: tuple[float, ...]


def _upwards(values: Sequence[float]) -> _Scale:
    """The scale of the vertical axis: from zero, or logarithmic if the values span more than two powers of ten."""
    top, least = max(values, default=0.0), min((value for value in values if value > 0), default=0.0)
    bottom, height = _HEIGHT - _BOTTOM, _HEIGHT - _BOTTOM - _TOP
    if least and top / least > 100:
        low, high = math.floor(math.log10(least)), math.ceil(math.log10(top))
        return _Scale(
            lambda value: bottom - height * (math.log10(max(value, 10.0**low)) - low) / (high - low),
            tuple(10.0**power for power in range(low, high + 1)),
        )
    step = _step(top)
    ticks = tuple(step * number for number in range(math.floor(top / step + 1e-9) + 2))
    return _Scale(lambda value: bottom - height * value / ticks[-1], ticks)


def _step(top: float) -> float:
    """A round distance between grid lines, so that there are four to eight of them."""
    if top <= 0:
        return 1.0
    rough = top / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)


def _frame(ups: _Scale, acrosses: Sequence[tuple[float, str]], unit: str, inside: str) -> str:
    lines = []
    for tick in ups.ticks:
        y = ups.place(tick)
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for x, label in acrosses:
        lines.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        lines.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{label}</text>')
    label = f'<text x="{_LEFT + 6}" y="{_TOP + 14}">{escape(unit)}</text>'
    head = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(unit)}">'
    return f"{head}{''.join(lines)}{label}{inside}</svg>"


def _line(points: Sequence[tuple[float, float, str]], kind: str) -> str:
    """A curve through the points, each with its text as a tooltip."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="transparent"><title>{escape(text)}</title></circle>'
        for x, y, text in points
    )
    return f'<polyline class="curve {kind}" points="{path}"/>{dots}'


def _named(name: str, kind: str, place: int) -> str:
    """The name of a curve, in its colour."""
    return f'<text class="{kind}" x="{_WIDTH - _RIGHT - 60 - 60 * place}" y="{_TOP + 14}">{name}</text>'


# The labels on the horizontal axis of percentiles, as far as the number of requests supports them.
_NAMED = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)


def _curve(curve: Sequence[Sequence[float]]) -> str:
    """Latency by percentile. Every step to the right leaves a tenth of the requests, so the tail has room."""
    known = [(percent, value) for percent, value in curve if percent < 100]
    if len(known) < 2:
        return '<p class="soft">Too few requests for a curve.</p>'
    last = max(percent for percent, _ in known)
    reach = math.log10(100 / (100 - last))
    width = _WIDTH - _LEFT - _RIGHT

    def across(percent: float) -> float:
        return float(_LEFT + width * math.log10(100 / (100 - percent)) / reach)

    ups = _upwards([value for _, value in known])
    points = [(across(percent), ups.place(value), f"p{percent:g}: {value:g} ms") for percent, value in known]
    named = [(across(percent), f"{percent:g} %") for percent in _NAMED if percent <= last]
    return _frame(
        ups, named, "milliseconds, at or below which so many percent of the requests were", _line(points, "one")
    )


def _over_time(
    blocks: Sequence[Mapping[str, Any]],
    unit: str,
    curves: Sequence[tuple[str, str, str]],
    result: Mapping[str, Any],
    *,
    errors: bool = False,
) -> str:
    duration = result["load"]["duration_s"]
    shown = [block for block in blocks if block["at_s"] < result["elapsed_s"]]
    values = [block[key] for block in shown for key, _, _ in curves if block[key] is not None]
    if not values:
        return '<p class="soft">Nothing ended in the measured time.</p>'
    ups, width = _upwards(values), _WIDTH - _LEFT - _RIGHT
    interval = result["series"]["interval_s"]

    def across(seconds: float) -> float:
        return float(_LEFT + width * seconds / duration)

    inside = []
    for place, (key, name, kind) in enumerate(curves):
        points = [
            (
                across(block["at_s"] + interval / 2),
                ups.place(block[key]),
                f"{name} {block[key]:g} at {block['at_s']:g} s",
            )
            for block in shown
            if block[key] is not None
        ]
        inside += [_line(points, kind), _named(name, kind, place)]
    if errors:
        inside += [
            f'<rect class="errors" x="{across(block["at_s"]):.1f}" y="{_HEIGHT - _BOTTOM - 6}" '
            f'width="{max(2.0, width * interval / duration - 1):.1f}" height="6">'
            f"<title>{block['errors']:,} errors at {block['at_s']:g} s</title></rect>"
            for block in shown
            if block["errors"]
        ]
        unit += "; red below: errors"
    step = _step(duration)
    named = [(across(step * n), f"{step * n:g} s") for n in range(math.floor(duration / step + 1e-9) + 1)]
    return _frame(ups, named, unit, "".join(inside))

"""A result as text. Pure: numbers in, text out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.load.account import PARTS
from benchmarks.report import machine
from benchmarks.report.figures import table

_COLUMNS = ("p50_ms", "p90_ms", "p99_ms", "p99.9_ms", "max_ms", "mean_ms")
_HEAD = tuple(f"{name.removesuffix('_ms')} ms" for name in _COLUMNS)

# Tenants and requests beyond these are only counted: the JSON has them all.
_ROWS = 12

_KINDS = {
    "outcome": "by outcome",
    "request": "by request",
    "tenant": "by tenant",
    "phase": "the rate's own requests, by what came beside them",
}


def report(result: Mapping[str, Any]) -> str:
    """The report of a result."""
    return "\n".join(_lines(result))


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"{result['scenario']}: {result['about'] or 'a scenario'}"
    yield f"asked of {target_of(result)}: {', '.join(result['requests'])}"
    yield load_of(result)
    yield from (f"note: {note}" for note in result["notes"])
    yield ""
    yield table(("", "count", *_HEAD), list(_rows(result)))
    yield ""
    yield counts_of(result)
    yield from _server(result)
    yield from _memory(result)
    yield f"machine: {machine.line(result['machine'])}"
    if result["layers"] is not None:
        yield f"layers in effect: {', '.join(result['layers']) or 'none'}"
    yield ""
    yield from verdict_of(result)


def target_of(result: Mapping[str, Any]) -> str:
    """The target, in words."""
    if result["target"] == "run":
        return "a pool of this process"
    era = f", {result['era']} era" if result["era"] else ""
    return f"{result['url']} ({result['target']}{era})"


def load_of(result: Mapping[str, Any]) -> str:
    """The load, in words."""
    load = result["load"]
    measured = f"{load['duration_s']:g} s"
    if load["model"] == "cold":
        return f"one at a time, each with a new engine, for {measured}"
    if load["model"] == "open":
        spaced = "evenly spaced" if load["spacing"] == "even" else "at random (Poisson)"
        rate = plain(load["rate"])
        how = f"open model: {rate} requests a second, {spaced}, for {measured}; latency from the intended start"
    else:
        clients = f"{load['concurrency']} client{'s' if load['concurrency'] != 1 else ''}"
        how = f"closed model: {clients}, each waiting for its answer, for {measured}"
    warm = result["warm_up"]
    requests = f"{warm['requests']:,} request{'s' if warm['requests'] != 1 else ''}"
    before = f"; {warm['seconds']:g} s of warm-up before it ({requests}) not counted"
    return how + (before if warm["seconds"] else "; no warm-up")


def _rows(result: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    whole = "first call" if result["load"]["model"] == "cold" else "all"
    yield (whole, f"{result['histogram']['count']:,}", *_cells(result["latency"]))
    for kind, found in result["by"].items():
        if len(found) < 2 and not (kind == "outcome" and "ok" not in found):
            continue
        yield ("", "", *("" for _ in _COLUMNS))
        yield (f"{_KINDS[kind]}:", "", *("" for _ in _COLUMNS))
        for name, each in list(found.items())[:_ROWS]:
            yield (f"  {name}", f"{each['count']:,}", *_cells(each))
        if len(found) > _ROWS:
            yield (f"  ... and {len(found) - _ROWS} more", "", *("" for _ in _COLUMNS))
    if result["parts"]:
        yield ("", "", *("" for _ in _COLUMNS))
        yield ("of a run:", "", *("" for _ in _COLUMNS))
        for name, each in result["parts"].items():
            yield (f"  {name.replace('_', ' ')}: {PARTS[name]}", "", *_cells(each))


def _cells(figures: Mapping[str, Any]) -> list[str]:
    return [milliseconds(figures.get(name)) for name in _COLUMNS]


def milliseconds(value: float | None) -> str:
    """A time, rounded to meaningful digits."""
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 10 else f"{value:.2f}" if value < 100 else f"{value:.1f}"


def plain(number: float) -> str:
    """A number for display: thousands separated, no exponent, at most three decimal places."""
    return f"{number:,.3f}".rstrip("0").rstrip(".")


def counts_of(result: Mapping[str, Any]) -> str:
    """Rate, errors, late and dropped, in one line."""
    load = result["load"]
    # With requests in addition to those of the rate, there is no single rate to compare the answers with.
    asked = f" of {plain(load['rate'])} asked" if load["rate"] is not None and "phase" not in result["by"] else ""
    parts = [
        f"rate {plain(result['rate'])} a second{asked}",
        f"errors {result['errors']:,} ({result['errors_share']:.2%})",
        f"late {result['late']:,}",
        f"dropped {result['dropped']:,}",
    ]
    if result["unfinished"]:
        parts.append(f"cut off {result['unfinished']:,}")
    if lag := result["tester"]["lag"]:
        parts.append(f"the tester's own lateness p99 {milliseconds(lag['p99_ms'])} ms")
    return " · ".join(parts)


# The server's own figures, as means of all its runs.
_SERVER = {"queue_mean_ms": "waiting for a worker", "run_mean_ms": "on the worker", "cpu_mean_ms": "CPU time"}


def _server(result: Mapping[str, Any]) -> Iterator[str]:
    server = result["server"] or {}
    told = [f"{words} {milliseconds(server[key])} ms" for key, words in _SERVER.items() if key in server]
    if told:
        yield f"the server says of its runs, on average: {', '.join(told)}"


def _memory(result: Mapping[str, Any]) -> Iterator[str]:
    memory = result["memory"] or {}
    names = {
        "run_peak_bytes": "a run",
        "workers_peak_bytes": "all workers together",
        "tester_peak_bytes": "the engine with this tester",
    }
    told = [f"{words} {memory[name] / (1 << 20):.1f} MiB" for name, words in names.items() if name in memory]
    if told:
        yield f"peak memory: {', '.join(told)}"


def verdict_of(result: Mapping[str, Any]) -> Iterator[str]:
    """Whether the figures are valid, and why not."""
    if result["interrupted"]:
        yield f"INTERRUPTED after {result['elapsed_s']:g} s of the measured time: the figures are of that part."
    if result["valid"]:
        yield "valid: the tester was not the bottleneck"
        return
    yield "NOT VALID: the tester was the bottleneck, or there is nothing to tell:"
    yield from (f"  - {reason}" for reason in result["invalid_because"])


def one_line(result: Mapping[str, Any]) -> str:
    """A result in one line: a step of a ramp."""
    latency = result["latency"]
    figures = ", ".join(f"{name} {milliseconds(latency[f'{name}_ms'])} ms" for name in ("p50", "p99", "p99.9"))
    return (
        f"{figures}, errors {result['errors_share']:.2%}, dropped {result['dropped']:,}, rate {plain(result['rate'])}"
    )

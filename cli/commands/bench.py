"""`engine bench`: the load that the engine sustains, and its latency."""

import json
import math
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from benchmarks.bench import Plan, Watch, measure
from benchmarks.load.schedule import Load, stepped
from benchmarks.processes import ProcessFailed
from benchmarks.report.compare import CompareError, in_words, summary, unlike
from benchmarks.report.compare import compare as compared
from benchmarks.report.fail_if import Threshold, ThresholdError, parse
from benchmarks.report.live import live
from benchmarks.report.page import page, ramp_page
from benchmarks.report.ramp import Ramp
from benchmarks.report.text import one_line as told
from benchmarks.report.text import report
from benchmarks.scenario import FOLDER, ScenarioError, names, with_hostile
from benchmarks.scenario import load as load_scenario
from benchmarks.targets.address import AddressError
from benchmarks.targets.target import Unfit
from cli.options import ConfigPath, load
from cli.output import FAILED, INTERRUPTED, OK, UNUSABLE, Exit, note, one_line, quiet_logs, say, say_json, table

app = App(name="bench", help="Measure the load that the engine sustains, and its latency.")

Spacing = Literal["even", "poisson"]
Era = Literal["2026", "handshake"]
Target = Literal["run", "http", "mcp"]

# Every server has a search tool; a pool needs only what the scenario contains.
_DEFAULT_SCENARIO = {"run": "noop", "http": "tool", "mcp": "tool"}

# Above these an option is a typing error.
_MOST_RATE = 1_000_000.0
_MOST_CONCURRENCY = 10_000
_MOST_SECONDS = 86_400.0
_LEAST_DURATION_S = 0.1
_MOST_TENANTS = 1_000
_MOST_PROCESSES = 64
_MOST_IN_FLIGHT = 100_000
_MOST_KEY_FILE_BYTES = 1 << 20

# The options of a scenario without a load, and those of the open model only: an option without effect is refused.
_OF_COLD = ("--scenario", "--duration")
_OF_OPEN = ("--rate", "--arrivals", "--max-in-flight")

_SECONDS = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ms|s|m|h)?", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The requests and their rate: options of every command that makes a load."""

    scenario: Annotated[
        str | None,
        Parameter(help="A name from `engine bench scenarios`, or a file. Default: noop; for a server, tool."),
    ] = None
    concurrency: Annotated[
        int | None, Parameter(help="Closed model: number of clients, each with one request at a time; not with --rate.")
    ] = None
    duration: Annotated[str | None, Parameter(help="How long to measure, such as 30s or 2m. Default: 10s.")] = None
    warm_up: Annotated[
        str | None, Parameter(help="Load before it, not counted. Default: a tenth of the duration, at most 5s.")
    ] = None
    arrivals: Annotated[Spacing, Parameter(help="Open model: evenly spaced, or at random.")] = "even"
    tenants: Annotated[int | None, Parameter(help="Number of tenants that send. Default: the scenario's.")] = None
    hostile: Annotated[
        str | None, Parameter(help="Percentage of requests that are replaced by hostile ones of another tenant.")
    ] = None
    timeout: Annotated[str, Parameter(help="Time-out of a request.")] = "30s"
    max_in_flight: Annotated[int, Parameter(help="Open model: drop requests while this many are in flight.")] = 1000
    seed: Annotated[int, Parameter(help="Seed: the same number makes the same requests.")] = 1


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """The options for the result."""

    json_file: Annotated[
        Path | None, Parameter(name="--json", help="Write the result to this file; --json=- prints it.")
    ] = None
    html_file: Annotated[Path | None, Parameter(name="--html", help="Write one page with curves to this file.")] = None
    fail_if: Annotated[
        list[str] | None,
        Parameter(help="METRIC OP VALUE, such as 'p99>20ms': exit code 1 when it holds. Repeatable.", negative=()),
    ] = None


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Reaching:
    """The options for the connection to a server."""

    processes: Annotated[int, Parameter(help="Number of processes that send, for rates beyond one core.")] = 1
    allow_remote: Annotated[bool, Parameter(help="Allow a server that is not on this machine.", negative=())] = False
    key_file: Annotated[
        Path | None, Parameter(help="API keys, one a line: the first for the first tenant, and so on.")
    ] = None


Rate = Annotated[
    float | None,
    Parameter(help="Open model: requests a second, independent of the target's answers. Default: the scenario's."),
]
# A server's configuration is not visible from outside, so only a file named explicitly counts: one found in the working
# directory may belong to another engine.
ServerConfig = Annotated[
    Path | None,
    Parameter(name="--config", help="The server's configuration, to be recorded in the result.", negative=()),
]
EraOption = Annotated[Era, Parameter(help="The revision 2026-07-28, or the ones that begin with a handshake.")]
_ASKING, _KEEPING, _REACHING = Asking(), Keeping(), Reaching()


@app.command
async def run(
    *, rate: Rate = None, asking: Asking = _ASKING, keeping: Keeping = _KEEPING, config: ConfigPath = None
) -> int:
    """Load a pool of workers directly, without a server."""
    return await _once(_plan("run", None, rate, asking, config=config), keeping)


@app.command
async def http(
    url: Annotated[str, Parameter(help="Such as http://127.0.0.1:7331.")],
    /,
    *,
    rate: Rate = None,
    asking: Asking = _ASKING,
    keeping: Keeping = _KEEPING,
    reaching: Reaching = _REACHING,
    config: ServerConfig = None,
) -> int:
    """Load a server over REST."""
    return await _once(_plan("http", url, rate, asking, reaching, config=config), keeping)


@app.command
async def mcp(
    url: Annotated[str, Parameter(help="Such as http://127.0.0.1:7331; without a path, /mcp.")],
    /,
    *,
    rate: Rate = None,
    era: EraOption = "2026",
    asking: Asking = _ASKING,
    keeping: Keeping = _KEEPING,
    reaching: Reaching = _REACHING,
    config: ServerConfig = None,
) -> int:
    """Load a server over MCP."""
    return await _once(_plan("mcp", url, rate, asking, reaching, era=era, config=config), keeping)


@app.command
async def ramp(
    what: Annotated[Target, Parameter(help="run, http or mcp, as the commands of these names.")] = "run",
    url: Annotated[str | None, Parameter(help="The server, for http and mcp.")] = None,
    /,
    *,
    start: Annotated[float, Parameter(name="--from", help="The first rate, a second.")] = 10.0,
    to: Annotated[float, Parameter(help="The highest rate to try.")] = 10_000.0,
    precision: Annotated[str, Parameter(help="Precision of the rate that is found.")] = "10%",
    era: EraOption = "2026",
    asking: Asking = _ASKING,
    keeping: Keeping = _KEEPING,
    reaching: Reaching = _REACHING,
    config: ConfigPath = None,
) -> int:
    """Find the highest rate at which no --fail-if holds (by default 'p99>100ms' and 'errors>1%')."""
    if (what == "run") != (url is None):
        raise Exit(UNUSABLE, f"ramp {what}: " + ("a pool has no URL" if what == "run" else "a URL is needed"))
    if asking.concurrency is not None:
        raise Exit(UNUSABLE, "a ramp varies the rate: --concurrency does not go with it")
    low = _number("--from", start, least=0.001, most=_MOST_RATE)
    high = _number("--to", to, least=low, most=_MOST_RATE)
    close = _percent("--precision", precision, least=1, most=100) / 100
    given = keeping.fail_if or ["p99>100ms"]
    # A server that refuses most requests answers the rest quickly.
    thresholds = _thresholds([*given, *([] if any("errors" in each for each in given) else ["errors>1%"])])
    plan = _plan(what, url, None, asking, reaching, era=era, config=config, duration="5s")
    if plan.scenario.model == "cold":
        raise Exit(UNUSABLE, f"the scenario {plan.scenario.name!r} is not a load and has no rate")
    _writable(keeping)
    return await _ramp(plan, Ramp(low, high, close), thresholds, keeping)


@app.command
def compare(
    a: Annotated[Path, Parameter(help="A result that --json wrote.")],
    b: Annotated[Path, Parameter(help="The result to compare with it.")],
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json", help="Print JSON.", negative=())] = False,
) -> int:
    """Report whether two results differ by more than noise."""
    one, two = _read_result(a), _read_result(b)
    try:
        differences = compared(one, two)
        doubts = unlike(one, two)
    except CompareError as error:
        raise Exit(UNUSABLE, str(error)) from None
    if as_json:
        say_json(
            {
                "schema": 1,
                "differences": [each.as_json() | {"told": in_words(each)} for each in differences],
                "doubts": doubts,
                "summary": summary(differences, doubts),
            }
        )
        return OK
    table(
        (
            (each.metric, _figure(each.metric, each.a), _figure(each.metric, each.b), in_words(each))
            for each in differences
        ),
        heading=("", "A", "B", "B beside A (99 % interval)"),
        indent="",
    )
    say()
    for doubt in doubts:
        say(f"! {one_line(doubt)}")
    say(summary(differences, doubts))
    return OK


@app.command
def scenarios(
    name: Annotated[str | None, Parameter(help="Print what a server needs for this scenario.")] = None,
    /,
    *,
    copy: Annotated[Path | None, Parameter(help="Write its files into this folder, for changes.")] = None,
) -> None:
    """List the scenarios, or print what one adds to a server's configuration."""
    if name is None:
        if copy is not None:
            raise Exit(UNUSABLE, "--copy needs the name of a scenario")
        table(((each, load_scenario(each).about) for each in names()), indent="")
        return
    try:
        scenario = load_scenario(name)
    except ScenarioError as error:
        raise Exit(UNUSABLE, str(error)) from None
    if copy is None:
        text = scenario.server_config()
        say(text if text else f"# The scenario {scenario.name!r} needs no addition to a server's configuration.")
        return
    if name not in names():
        raise Exit(UNUSABLE, "--copy takes the name of a scenario, not a file")
    files = [FOLDER / f"{name}.toml", *scenario.scripts()]
    taken = [file.name for file in files if (copy / file.name).exists()]
    if taken:
        raise Exit(UNUSABLE, f"{copy / taken[0]} exists and is left as it is")
    copy.mkdir(parents=True, exist_ok=True)
    for file in files:
        (copy / file.name).write_bytes(file.read_bytes())
        say(f"Created: {copy / file.name}")


# ---- measuring --------------------------------------------------------------------------------------------------


async def _once(plan: Plan, keeping: Keeping) -> int:
    thresholds = _thresholds(keeping.fail_if or [])
    _writable(keeping)
    with _watched(plan.load, f"{plan.scenario.name}, {plan.target}") as watch:
        result = await _measured(plan, watch)
    _keep(result, keeping)  # first: the reader of standard output may close it early
    (note if keeping.json_file == Path("-") else say)(report(result))
    holding = [each for each in thresholds if each.holds(result)]
    for threshold in thresholds:
        note(f"{'failed' if threshold in holding else 'passed'}: {threshold.describe(result)}")
    if result["interrupted"]:
        return INTERRUPTED
    if holding:
        return FAILED
    if not result["expected"]:
        note("error: no request ended as the scenario expects")
        return FAILED
    if not result["valid"]:
        note(f"error: the result is not valid: {'; '.join(result['invalid_because'])}")
        return FAILED
    return OK


async def _ramp(plan: Plan, search: Ramp, thresholds: list[Threshold], keeping: Keeping) -> int:
    steps: list[dict[str, Any]] = []
    last: dict[str, Any] | None = None
    interrupted = False
    while (rate := search.next_rate()) is not None and not interrupted:
        step = replace(plan, load=stepped(plan.load, rate, len(steps)))
        with _watched(step.load, f"{rate:g} a second") as watch:
            last = await _measured(step, watch)
        interrupted = last["interrupted"]
        if interrupted:
            break
        # If the tester itself cannot keep up, the step says nothing about the target, and does not count as held.
        against = [each.describe(last) for each in thresholds if each.holds(last)] + list(last["invalid_because"])
        search.tell(rate, not against)
        steps.append({"rate": rate, "held": not against, "because": against, "result": _without_series(last)})
        note(f"{rate:>10.4g} a second: {'holds' if not against else 'FAILS'} ({told(last)})")
        for reason in against:
            note(f"{'':>10}   {reason}")
    answer = {
        "schema": 1,
        "ramp": True,
        "target": plan.target,
        "scenario": plan.scenario.name,
        "thresholds": [each.text for each in thresholds],
        "precision": search.precision,
        "highest_rate": search.best,
        "limited_by_to": search.limited,
        "interrupted": interrupted,
        "steps": steps,
        "machine": None if last is None else last["machine"],
        "command": plan.command,
    }
    _keep(answer, keeping)
    (note if keeping.json_file == Path("-") else say)(_answer(answer))
    if interrupted:
        return INTERRUPTED
    return OK if search.best is not None else FAILED


def _answer(answer: dict[str, Any]) -> str:
    rules = " or ".join(answer["thresholds"])
    if answer["highest_rate"] is None:
        if answer["interrupted"]:
            return "Interrupted before a rate held."
        return f"Not even the first rate holds. {_ended_by(answer['steps'])}"
    rate = f"{answer['highest_rate']:.4g}"
    if answer["interrupted"]:
        return f"Interrupted. The highest rate that held so far: {rate} a second."
    if answer["limited_by_to"]:
        return f"{rate} a second hold, the highest rate to try (--to)."
    found = f"Highest rate at which none of {rules} holds: {rate} a second (to {answer['precision']:.0%})."
    return f"{found}\n{_ended_by([step for step in answer['steps'] if step['rate'] > answer['highest_rate']])}"


def _ended_by(steps: list[dict[str, Any]]) -> str:
    """What ended a ramp, of the steps beyond the highest rate that held: why the lowest of them failed, the last time.

    Not the thresholds alone: a step also fails where the tester was the bottleneck, whatever the target does.
    """
    failed = [step for step in steps if not step["held"]]
    lowest = [step for step in failed if step["rate"] == min(each["rate"] for each in failed)][-1]
    why = f"at {lowest['rate']:.4g} a second {'; '.join(lowest['because'])}."
    if any(step["because"] != step["result"]["invalid_because"] for step in failed):
        return why[0].upper() + why[1:]
    return f"The tester itself was the limit: {why} The target may hold a higher rate."


def _without_series(result: dict[str, Any]) -> dict[str, Any]:
    """A step of a ramp, without the data that only the page and the comparison of a single result need."""
    return {key: value for key, value in result.items() if key not in ("series", "histogram", "curve", "machine")}


async def _measured(plan: Plan, watch: Watch) -> dict[str, Any]:
    try:
        return await measure(plan, watch)
    except (AddressError, ScenarioError, ProcessFailed, Unfit) as error:
        raise Exit(UNUSABLE, str(error)) from None


@contextmanager
def _watched(load: Load, what: str) -> Iterator[Watch]:
    """Show progress on a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield Watch()
        return
    with live(load, what) as tell:
        yield Watch(tell)


# ---- options ----------------------------------------------------------------------------------------------------


def _plan(
    target: Target,
    url: str | None,
    rate: float | None,
    asking: Asking,
    reaching: Reaching = _REACHING,
    *,
    era: Era = "2026",
    config: Path | None = None,
    duration: str = "10s",
) -> Plan:
    """The plan of the options, validated. Raises Exit."""
    percent = _percent("--hostile", asking.hostile, least=0, most=100) if asking.hostile is not None else 0.0
    try:
        scenario = with_hostile(load_scenario(asking.scenario or _DEFAULT_SCENARIO[target]), percent)
    except ScenarioError as error:
        raise Exit(UNUSABLE, str(error)) from None
    given = _given(rate, asking)
    if scenario.model == "cold" and (unused := next((each for each in given if each not in _OF_COLD), None)):
        raise Exit(UNUSABLE, f"the scenario {scenario.name!r} makes one call at a time: {unused} does not go with it")
    if asking.concurrency is not None and (unused := next((each for each in given if each in _OF_OPEN), None)):
        raise Exit(UNUSABLE, f"{unused} (open model) and --concurrency (closed model) exclude each other")
    if scenario.publishes and asking.concurrency is not None:
        raise Exit(UNUSABLE, f"the scenario {scenario.name!r} publishes at a rate: --concurrency does not go with it")
    if target == "run":
        quiet_logs()
    own = load(config) if target == "run" or config is not None else None
    if target == "run" and reaching != _REACHING:
        raise Exit(UNUSABLE, "--processes, --allow-remote and --key-file are for servers")
    return Plan(
        target=target,
        scenario=scenario,
        load=_load(rate, asking, scenario.rate, duration),
        own=own,
        url=url,
        era=era,
        allow_remote=reaching.allow_remote,
        keys=_keys(reaching.key_file),
        tenants=None if asking.tenants is None else _whole("--tenants", asking.tenants, most=_MOST_TENANTS),
        hostile_percent=percent,
        processes=_whole("--processes", reaching.processes, most=_MOST_PROCESSES),
        command=shlex.join(["engine", *sys.argv[1:]]),
    )


def _given(rate: float | None, asking: Asking) -> list[str]:
    """The options about the load that are on the command line."""
    names = [name for name in Asking.__slots__ if getattr(asking, name) != getattr(_ASKING, name)]
    return [f"--{name.replace('_', '-')}" for name in (*(["rate"] if rate is not None else []), *names)]


def _load(rate: float | None, asking: Asking, usual: float, duration: str) -> Load:
    duration_s = _seconds("--duration", asking.duration or duration, least=_LEAST_DURATION_S)
    warm_up_s = min(5.0, duration_s / 10)
    if asking.warm_up is not None:
        warm_up_s = _seconds("--warm-up", asking.warm_up, least=0.0)
    concurrency = asking.concurrency
    if concurrency is not None:
        concurrency = _whole("--concurrency", concurrency, most=_MOST_CONCURRENCY)
    else:
        rate = _number("--rate", usual if rate is None else rate, least=0.001, most=_MOST_RATE)
    return Load(
        rate=rate,
        concurrency=concurrency,
        duration_s=duration_s,
        warm_up_s=warm_up_s,
        timeout_s=_seconds("--timeout", asking.timeout, least=0.001),
        max_in_flight=_whole("--max-in-flight", asking.max_in_flight, most=_MOST_IN_FLIGHT),
        spacing=asking.arrivals,
        seed=asking.seed,
    )


def _seconds(option: str, text: str, *, least: float) -> float:
    found = _SECONDS.fullmatch(text.strip())
    if found is None:
        raise Exit(UNUSABLE, f"{option} {text!r}: expected a time such as 10s, 500ms or 2m")
    seconds = float(found[1]) * _UNITS[found[2] or "s"]
    if not least <= seconds <= _MOST_SECONDS:
        raise Exit(UNUSABLE, f"{option} {text}: expected {least:g} s to {_MOST_SECONDS / 3600:g} h")
    return seconds


def _percent(option: str, text: str, *, least: float, most: float) -> float:
    try:
        return _number(option, float(text.strip().removesuffix("%")), least=least, most=most)
    except ValueError:
        raise Exit(UNUSABLE, f"{option} {text!r}: expected percent, such as 20 or 20%") from None


def _number(option: str, value: float, *, least: float, most: float) -> float:
    if not math.isfinite(value) or not least <= value <= most:
        raise Exit(UNUSABLE, f"{option} {value:g}: expected a number from {least:g} to {most:,.10g}")
    return value


def _whole(option: str, value: int, *, most: int) -> int:
    if not 1 <= value <= most:
        raise Exit(UNUSABLE, f"{option} {value}: expected a whole number from 1 to {most:,}")
    return value


def _keys(path: Path | None) -> tuple[str, ...]:
    """The keys in a file, one a line; blank lines and lines that start with # are skipped."""
    if path is None:
        return ()
    try:
        if path.stat().st_size > _MOST_KEY_FILE_BYTES:
            raise Exit(UNUSABLE, f"{path}: too large for a file of keys")
        lines = path.read_text(encoding="ascii").splitlines()
    except ValueError:
        raise Exit(UNUSABLE, f"{path}: keys are ASCII text, one a line") from None
    keys = tuple(text for line in lines if (text := line.strip()) and not text.startswith("#"))
    if not keys or any(not key.isprintable() or " " in key for key in keys):
        raise Exit(UNUSABLE, f"{path}: expected API keys, one a line")
    return keys


def _thresholds(texts: list[str]) -> list[Threshold]:
    try:
        return [parse(text) for text in texts]
    except ThresholdError as error:
        raise Exit(UNUSABLE, f"--fail-if {error}") from None


# ---- files ------------------------------------------------------------------------------------------------------


def _writable(keeping: Keeping) -> None:
    """Check before the load, not after it, that the result can be written."""
    if keeping.html_file == Path("-"):
        raise Exit(UNUSABLE, "--html: a file is needed")
    for path in (keeping.json_file, keeping.html_file):
        if path is None or path == Path("-"):
            continue
        if path.is_dir():
            raise Exit(UNUSABLE, f"{path}: is a folder")
        place = path if path.exists() else path.parent
        if not place.exists():
            raise Exit(UNUSABLE, f"{path}: there is no folder {place}")
        if not os.access(place, os.W_OK):
            raise Exit(UNUSABLE, f"{path}: cannot be written")


def _keep(result: dict[str, Any], keeping: Keeping) -> None:
    if keeping.json_file == Path("-"):
        say_json(result)
    elif keeping.json_file is not None:
        keeping.json_file.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if keeping.html_file is None:
        return
    if result.get("ramp"):
        keeping.html_file.write_text(ramp_page(result), encoding="utf-8")
    else:
        keeping.html_file.write_text(page(result), encoding="utf-8")


def _read_result(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Exit(UNUSABLE, f"{path}: not JSON: {one_line(error)}") from None
    if isinstance(value, dict) and value.get("ramp"):
        raise Exit(UNUSABLE, f"{path}: the result of a ramp; compare takes those of run, http and mcp")
    if not isinstance(value, dict) or value.get("schema") != 1 or "series" not in value:
        raise Exit(UNUSABLE, f"{path}: not a result of `engine bench`")
    return value


def _figure(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    if metric == "errors":
        return f"{value:.2%}"
    return f"{value:g}" if metric == "rate" else f"{value:g} ms"

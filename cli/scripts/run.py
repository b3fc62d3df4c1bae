"""Shared by the commands that call a script: the open service, one call, and the output for a run."""

import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from agents.agent import Call
from agents.code.failure import RunFailed
from agents.loading.loader import LoadFailure
from agents.service import Service, open_service
from agents.tool import ModelRun
from cli.options import load, shown
from cli.output import (
    OK,
    UNUSABLE,
    Exit,
    exit_code_of,
    indented,
    mebibytes,
    note,
    one_line,
    plural,
    quiet_logs,
    say,
    say_json,
    warn,
)
from cli.scripts.mocks import mocked
from engine.bridge.knowledge import GET, SEARCH
from engine.config import Agents, Config, LoadedConfig, ScriptEntry, Tools
from engine.errors import Code, Problem, amount
from engine.names import nearest, valid_name
from engine.run import Hearers, LogLine, RunResult
from engine.tenant import Tenant
from sandbox.wire.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer of an agent or tool: as `--json` prints it, as lines of text, and the run that made it, if any.

    `model` are the figures of a document's run; with `dry`, a request was made and not sent.
    """

    body: Mapping[str, Any]
    lines: list[str]
    run: RunResult | None
    model: ModelRun | None = None
    dry: bool = False


class Kind(ABC):
    """The differences between agents and tools in calls from the command line."""

    word: ClassVar[Literal["agent", "tool"]]
    section: ClassVar[Literal["agents", "tools"]]
    done: ClassVar[str]

    @abstractmethod
    def names(self, service: Service, who: Tenant) -> list[str]:
        """The names that can be called."""

    @abstractmethod
    def source(self, service: Service, name: str, who: Tenant) -> str:
        """The kind of one, and its file if it has one."""

    @abstractmethod
    async def ask(self, service: Service, name: str, given: Mapping[str, str], call: Call) -> Answered:
        """Call the one with this name, with `NAME=VALUE` pairs. Raises Problem, and Exit for a mistyped value."""

    def failure(self, service: Service, name: str) -> LoadFailure | None:
        """The reason why the one with this name did not load, or None."""
        found = (each for each in service.failures if each.name == name and each.kind.startswith(self.word))
        return next(found, None)


async def call_once(
    kind: Kind,
    name: str,
    given: Mapping[str, str],
    loaded: LoadedConfig,
    who: Tenant,
    *,
    as_json: bool,
    mock: Path | None = None,
) -> int:
    """Call one as the server does; print its answer and its cost. `mock` is a file of mocks. Returns the exit code."""
    async with opened(loaded, but=(kind, name)) as service, service.published(who):
        known = kind.names(service, who)
        if name not in known:
            failed = kind.failure(service, name)
            raise unknown(kind.word, name, known) if failed is None else not_loaded(kind, failed)
        heard: list[LogLine] = []
        started = time.monotonic()
        try:
            with mocked(mock, service):
                answered = await kind.ask(service, name, given, Call(who, Hearers(log=heard.append)))
        except Problem as problem:
            return show_failure(problem, heard, as_json=as_json)
        wall_s = time.monotonic() - started
        source = kind.source(service, name, who)
    show_logs(answered.run, heard)
    if as_json:
        say_json({**answered.body, **run_fields(answered.run, wall_s), **_model_fields(answered)})
        return OK
    for line in (
        f"{kind.word.capitalize()}: {name}",
        f"Source: {source}",
        *answered.lines,
        "",
        *ending(kind.done, answered, wall_s),
    ):
        say(line)
    return OK


@asynccontextmanager
async def service_for(path: Path | None) -> AsyncIterator[tuple[LoadedConfig, Service]]:
    """The configuration and the open service of a command. Warns about scripts that failed to load."""
    loaded = load(path)
    async with opened(loaded) as service:
        yield loaded, service


@asynccontextmanager
async def opened(loaded: LoadedConfig, but: tuple[Kind, str] | None = None) -> AsyncIterator[Service]:
    """The open service of a command. Warns about scripts that failed to load, except `but`: the caller reports it."""
    quiet_logs()
    async with open_service(loaded) as service:
        for warning in service.warnings:
            if warning not in loaded.warnings:
                warn(warning)
        told = None if but is None else but[0].failure(service, but[1])
        for failure in service.failures:
            if failure is not told:
                where = f" ({location(failure)})" if failure.path else ""
                warn(f"{failure.kind} {failure.name} did not load: {failure.message}{where}")
        yield service


def only(config: Config, kind: Kind, name: str, entry: ScriptEntry) -> Config:
    """The configuration with this Lua script and no other agent or tool."""
    script = {name: entry}
    kept = {"agents": Agents(script=script)} if kind.word == "agent" else {"tools": Tools(script=script)}
    return config.model_copy(update={"agents": Agents(), "tools": Tools()} | kept)


def not_loaded(kind: Kind, failure: LoadFailure) -> Exit:
    """The error for a script that did not load: where and why."""
    where = f" ({location(failure)})" if failure.path else ""
    return Exit(UNUSABLE, f"{kind.word} {failure.name!r} did not load: {failure.message}{where}")


def location(failure: LoadFailure) -> str:
    """The location of a load failure: the path, and the line if known."""
    where = shown(failure.path) if failure.path else "the configuration"
    return f"{where}:{failure.line}" if failure.line else where


def unknown(kind: str, name: str, known: list[str]) -> Exit:
    """The error for an unknown name: with its script, if a file has the name, or the nearest known name."""
    script = Path(name if name.endswith(".lua") else f"{kind}s/{name}.lua")
    if script.is_file() and valid_name(script.stem):
        table = f"[{kind}s.script.{script.stem}]"
        hint = f'{shown(script)} is there: its entry in the configuration is {table} with path = "{shown(script)}"'
        return Exit(UNUSABLE, f"unknown {kind} {name!r}; {hint}")
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known) or 'none'}"
    return Exit(UNUSABLE, f"unknown {kind} {name!r}; {hint}")


def script_path(loaded: LoadedConfig, section: str, name: str) -> str | None:
    """The file of a configured agent or tool, as a user would type it; None if it has no file."""
    entries: Any = getattr(loaded.config, section).in_order()
    first = next((entry for _, found, entry in entries if found == name), None)  # the first of two with one name
    path: Path | str | None = getattr(first, "path", None)  # for Python code a string: module and class
    return shown(path, loaded.root) if isinstance(path, Path) else path


def outcome_of(problem: Problem) -> str:
    """The outcome of a problem."""
    if problem.code in (Code.AGENT_ERROR, Code.TOOL_ERROR):
        return Outcome.SCRIPT_ERROR.value
    same = {outcome.value for outcome in Outcome}
    return problem.code.value if problem.code.value in same else Outcome.REJECTED.value


def run_fields(run: RunResult | None, wall_s: float) -> dict[str, Any]:
    """The fields of `--json` about a run. Without a run, only the time is known."""
    if run is None:
        return {
            "outcome": "ok",
            "run_id": None,
            "wall_ms": round(wall_s * 1000, 3),
            "cpu_ms": None,
            "memory_bytes": None,
            "host_calls": 0,
            "replaced": 0,
        }
    return {
        "outcome": run.outcome.value,
        "run_id": run.run_id,
        "wall_ms": round(run.usage.wall_s * 1000, 3),
        "cpu_ms": round(run.usage.cpu_s * 1000, 3),
        "memory_bytes": run.usage.peak_memory_bytes,
        "host_calls": run.usage.host_call_count,
        "replaced": run.replaced,
    }


def show_logs(run: RunResult | None, heard: Sequence[LogLine] = ()) -> None:
    """Print the script's log lines on standard error; without a run, the lines `heard` from Python code."""
    if run is None:
        for line in heard:
            note(f"[{line.level}] {line.text}")
        return
    for line in run.logs:
        note(f"[{line.level}] {line.text}")
    if run.logs_truncated:
        note("[warn] further log lines were dropped (limit log_bytes)")


def _model_fields(answered: Answered) -> dict[str, Any]:
    """The fields of `--json` about a document's run."""
    if answered.model is None:
        return {}
    figures = answered.model.as_json()
    return {"run": figures, "outcome": figures["outcome"], "run_id": figures["run_id"]}


def ending(verb: str, answered: Answered, wall_s: float) -> list[str]:
    """The last lines of `agent test` and `tool test`: how long it took, and what it used."""
    if answered.dry:
        return ["Nothing was sent."]
    if answered.model is not None:
        return [f"{verb} in {wall_s * 1000:.0f}ms", f"Outcome: {model_used(answered.model.as_json())}"]
    return run_lines(verb, answered.run, wall_s)


def model_used(run: Mapping[str, Any]) -> str:
    """How a document's run ended and what it used, in one line."""
    tokens = f"{run['input_tokens']:,} input tokens ({run['cached_tokens']:,} cached)"
    counted = ", counted by bytes" if run["estimated"] else ""
    money = "" if run["cost_usd"] is None else f" · {run['cost_usd']:.6f} USD"
    turns, calls = plural(run["turns"], "turn"), plural(run["tool_calls"], "tool call")
    return (
        f"{run['outcome']} · model {run['model']} · {turns}, {calls} · {tokens}, "
        f"{run['output_tokens']:,} output tokens{counted}{money}"
    )


def run_lines(verb: str, run: RunResult | None, wall_s: float) -> list[str]:
    """The last two lines of `agent test` and `tool test`."""
    if run is None:
        return [f"{verb} in {wall_s * 1000:.0f}ms", "Outcome: ok · no script was run"]
    return [f"{verb} in {run.usage.wall_s * 1000:.0f}ms ({_calls(run.usage.host_calls)})", _cost(run)]


def _calls(made: Mapping[str, int]) -> str:
    """The two knowledge calls in words, and any others by name."""
    searches, fetches = made.get(SEARCH, 0), made.get(GET, 0)
    others = [f"{count} × {name}" for name, count in made.items() if name not in (SEARCH, GET)]
    known = (plural(searches, "search query", "search queries"), plural(fetches, "document fetch", "document fetches"))
    return ", ".join((*known, *others))


def _cost(run: RunResult) -> str:
    cpu, memory = run.usage.cpu_s * 1000, mebibytes(run.usage.peak_memory_bytes)
    return f"Outcome: {run.outcome.value} · CPU {cpu:.1f} ms · memory {memory}"


def run_of(problem: Problem) -> RunResult | None:
    """The run that failed with this problem; None if no run had begun."""
    return problem.result if isinstance(problem, RunFailed) else None


def show_failure(problem: Problem, heard: Sequence[LogLine] = (), *, as_json: bool) -> int:
    """Print a script's failure: its log, outcome, message, limit and own traceback. Returns the exit code."""
    run = run_of(problem)
    show_logs(run, heard)
    if as_json:
        cost = (
            run_fields(run, 0)
            if run
            else dict.fromkeys(("wall_ms", "cpu_ms", "memory_bytes", "host_calls", "replaced"))
        )
        say_json({**problem.envelope(), **cost, "outcome": outcome_of(problem), "run_id": problem.run_id})
    first, *more = failure_lines(problem)
    for line in (f"error: {first}", *more):
        note(line)
    if run is not None:
        note(_cost(run))
    if problem.run is not None:
        note(f"Outcome: {model_used(problem.run)}")
    return exit_code_of(problem)


def failure_lines(problem: Problem) -> list[str]:
    """Outcome and message in one line, then the exceeded limit and the script's own traceback."""
    lines = [f"{outcome_of(problem)}: {one_line(problem.message)}"]
    if (limit := problem.limit) is not None:
        used = "" if limit.used is None else f", used {amount(limit.used, limit.unit)}"
        lines.append(f"limit: {limit.name} = {amount(limit.bound, limit.unit)} (set by the {limit.source}){used}")
    if problem.traceback:
        lines.append(indented(problem.traceback))
    if problem.__cause__ is not None:  # an exception of the operator's Python code; clients do not get it
        lines.append(indented("".join(traceback.format_exception(problem.__cause__)).rstrip()))
    return lines

"""What the commands that call a script share: the open service, and how a run is shown."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.options import load, shown
from cli.output import FAILED, UNUSABLE, Exit, indented, mebibytes, note, one_line, plural, say, say_json, warn

if TYPE_CHECKING:
    from agents.loader import LoadFailure
    from agents.service import Service
    from engine.config import LoadedConfig
    from engine.errors import Problem
    from engine.run import RunResult


@asynccontextmanager
async def service_for(path: Path | None) -> AsyncIterator[tuple["LoadedConfig", "Service"]]:
    """The configuration and the open service of a command. Scripts that failed to load are warned of."""
    loaded = load(path)
    from agents.service import open_service

    quiet_logs()
    async with open_service(loaded) as service:
        for warning in service.warnings:
            if warning not in loaded.warnings:
                warn(warning)
        for failure in service.failures:
            where = f" ({location(failure)})" if failure.path else ""
            warn(f"{failure.kind} {failure.name} did not load: {failure.message}{where}")
        yield loaded, service


def location(failure: "LoadFailure") -> str:
    """Where a script that did not load is: its path, and the line where known."""
    where = shown(failure.path) if failure.path else "the configuration"
    return f"{where}:{failure.line}" if failure.line else where


def quiet_logs() -> None:
    """Keep the engine's log off a person's terminal: what matters is told by the command. ENGINE_LOG brings it back."""
    from server import logs

    logs.configure({"ENGINE_LOG": "critical", **os.environ})


def unknown(kind: str, name: str, known: list[str]) -> Exit:
    """An unknown name, with the nearest known one."""
    from engine.config import nearest

    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known) or 'none'}"
    return Exit(UNUSABLE, f"unknown {kind} {name!r}; {hint}")


def script_path(loaded: "LoadedConfig", section: str, name: str) -> str | None:
    """The file of a configured agent or tool, as a person would type it; None for what has no file."""
    entries: Any = getattr(loaded.config, section).in_order()
    first = next((entry for _, found, entry in entries if found == name), None)  # of two with one name, the first
    path: Path | None = getattr(first, "path", None)
    return shown(path, loaded.root) if path else None


def exit_code_of(problem: Any) -> int:
    """1 for what the script or the caller's values did, 2 for unknown names and for what is ours."""
    from engine.errors import Code

    ours = (Code.NOT_FOUND, Code.UNAVAILABLE, Code.INTERNAL, Code.UNAUTHORIZED, Code.FORBIDDEN)
    return UNUSABLE if problem.code in ours else FAILED


def outcome_of(problem: "Problem") -> str:
    """The outcome that a problem stands for."""
    from engine.errors import Code
    from sandbox.outcome import Outcome

    if problem.code in (Code.AGENT_ERROR, Code.TOOL_ERROR):
        return Outcome.SCRIPT_ERROR.value
    same = {outcome.value for outcome in Outcome}
    return problem.code.value if problem.code.value in same else Outcome.REJECTED.value


def run_fields(run: "RunResult | None", wall_s: float) -> dict[str, Any]:
    """What `--json` says of a run beside the answer. Without a run only the time is known."""
    if run is None:
        return {
            "outcome": "ok",
            "run_id": None,
            "wall_ms": round(wall_s * 1000, 3),
            "cpu_ms": None,
            "memory_bytes": None,
            "host_calls": 0,
        }
    return {
        "outcome": run.outcome.value,
        "run_id": run.run_id,
        "wall_ms": round(run.usage.wall_s * 1000, 3),
        "cpu_ms": round(run.usage.cpu_s * 1000, 3),
        "memory_bytes": run.usage.peak_memory_bytes,
        "host_calls": run.usage.host_call_count,
    }


def show_logs(run: "RunResult | None") -> None:
    """The script's log lines, on standard error."""
    if run is None:
        return
    for line in run.logs:
        note(f"[{line.level}] {line.text}")
    if run.logs_truncated:
        note("[warn] further log lines were dropped (limit log_bytes)")


def show_run(verb: str, run: "RunResult | None", wall_s: float) -> None:
    """The last two lines of `agent test` and `tool test`."""
    from engine.bridge.knowledge import GET, SEARCH

    if run is None:
        say(f"{verb} in {wall_s * 1000:.0f}ms")
        say("Outcome: ok · no script was run")
        return
    searches, fetches = run.usage.host_calls.get(SEARCH, 0), run.usage.host_calls.get(GET, 0)
    searched = plural(searches, "search query", "search queries")
    fetched = plural(fetches, "document fetch", "document fetches")
    say(f"{verb} in {run.usage.wall_s * 1000:.0f}ms ({searched}, {fetched})")
    say(_cost(run))


def _cost(run: "RunResult") -> str:
    cpu, memory = run.usage.cpu_s * 1000, mebibytes(run.usage.peak_memory_bytes)
    return f"Outcome: {run.outcome.value} · CPU {cpu:.1f} ms · memory {memory}"


def show_failure(problem: "Problem", *, as_json: bool) -> int:
    """Tell of a script that failed: its log, outcome, message, limit and own traceback. Returns the exit code."""
    from agents.failure import RunFailed

    run = problem.result if isinstance(problem, RunFailed) else None
    outcome = outcome_of(problem)
    show_logs(run)
    if as_json:
        cost = run_fields(run, 0) if run else dict.fromkeys(("wall_ms", "cpu_ms", "memory_bytes", "host_calls"))
        say_json({**problem.envelope(), **cost, "outcome": outcome, "run_id": problem.run_id})
    note(f"error: {outcome}: {one_line(problem.message)}")
    if (limit := problem.limit) is not None:
        used = "" if limit.used is None else f", used {limit.used:g} {limit.unit}"
        note(f"limit: {limit.name} = {limit.bound:g} {limit.unit} (set by the {limit.source}){used}")
    if problem.traceback:
        note(indented(problem.traceback))
    if run is not None:
        note(_cost(run))
    return exit_code_of(problem)


def show_value(value: Any) -> None:
    """A JSON value, indented under a heading."""
    say(indented(json.dumps(value, ensure_ascii=False, indent=2)))

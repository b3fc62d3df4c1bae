"""`engine agent dev` and `engine tool dev`: a script or document runs again on every save, under the limits of
production.

The engine stays warm: only that is loaded again. `Session` decides what to print, and is pure; the rest watches,
runs and prints.
"""

import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import Literal

import trio
from rich.console import Console
from rich.text import Text
from watchfiles import awatch
from watchfiles._rust_notify import WatchfilesRustInternalError  # not exported elsewhere

from agents.agent import Call
from agents.loading.loader import LoadFailure, load
from agents.registry import Registry
from agents.service import Service
from cli.options import shown
from cli.output import OK, UNUSABLE, Exit, mebibytes, plain, plural, shortened
from cli.scripts import documents
from cli.scripts.mocks import mocked
from cli.scripts.run import Answered, Kind, failure_lines, location, model_used, only, opened, run_of, unknown
from engine.config import ChatmdEntry, LoadedConfig, ScriptEntry
from engine.config.signatures import Files, signature
from engine.errors import Problem
from engine.run import CallRecord, Hearers, LogLine, RunResult
from engine.tenant import Tenant

Style = Literal["plain", "head", "dim", "good", "warn", "bad"]
Line = tuple[Style, str]

# The styles on a terminal, as `rich` names them.
_ON_A_TERMINAL = {"plain": "", "head": "bold", "dim": "dim", "good": "green", "warn": "yellow", "bad": "red"}
_LEVELS: Mapping[str, Style] = {"debug": "dim", "warn": "warn", "error": "bad"}

# Lines of the last good answer that are repeated below an error.
_REMINDER_LINES = 3
_REMINDER_WIDTH = 100

# A save takes effect once no event has come for a step, and at the latest this long after its first event.
_STEP_MS = 10
_BURST_MS = 200
# Polling interval for file systems without notifications (some network file systems).
_LOOK_MS = 500
# A script larger than the ceiling of `limits.source_bytes` does not load, so no more of it is read.
_DIGEST_BYTES = 4 << 20


# ---- output ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Session:
    """The output, as lines. Counts the runs, and keeps the last good one."""

    runs: int = 0
    good_runs: int = 0
    # Number, time of day and answer of the last good run.
    good: tuple[int, str, list[str]] | None = None
    _at: str = ""

    def begins(self, at: str) -> list[Line]:
        """A run begins at this time of day."""
        self.runs += 1
        self._at = at
        return [("plain", ""), ("head", f"── run {self.runs} · {at} ──")]

    def logged(self, line: LogLine) -> list[Line]:
        return [(_LEVELS.get(line.level, "plain"), f"[{line.level}] {line.text}")]

    def called(self, record: CallRecord) -> list[Line]:
        took = f"→ {record.name}  {_ms(record.wall_s)}"
        if record.refused is None:
            return [("dim", took)]
        return [("warn", f"{took}  failed: {record.refused.removeprefix(f'{record.name}: ')}")]

    def progressed(self, fraction: float, message: str | None) -> list[Line]:
        return [("dim", f"… {fraction:.0%}" + (f"  {message}" if message else ""))]

    def answered(self, answer: Answered, wall_s: float) -> list[Line]:
        """The run succeeded. `wall_s` is shown if no script ran."""
        before, self.good = self.good, (self.runs, self._at, answer.lines)
        self.good_runs += 1
        same = f" · the same answer as run {before[0]}" if before and before[2] == answer.lines else ""
        return [
            *_dropped(answer.run),
            *(("plain", line) for line in answer.lines),
            (
                "good",
                (cost("ok", answer.run, wall_s) if answer.model is None else model_used(answer.model.as_json())) + same,
            ),
        ]

    def failed(self, problem: Problem, wall_s: float) -> list[Line]:
        """The script failed, or the call was refused before it ran. `wall_s` is shown if no script ran."""
        run = run_of(problem)
        first, *more = failure_lines(problem)
        outcome = first.partition(":")[0]
        return [
            *_dropped(run),
            ("bad", first),
            *(("plain", line) for line in more),
            # A wrong shape is found after the run, so its problem does not carry the run.
            ("bad", _spent(problem, outcome, run, wall_s)),
            *self._reminder(),
        ]

    def not_loaded(self, failure: LoadFailure) -> list[Line]:
        """The script could not be loaded: nothing ran."""
        where = f" ({location(failure)})" if failure.path else ""
        return [("bad", f"did not load: {failure.outcome.value}: {failure.message}{where}"), *self._reminder()]

    def refused(self, message: str) -> list[Line]:
        """The arguments on the command line do not fit the current script."""
        return [("bad", message), *self._reminder()]

    def warned(self, warning: str) -> list[Line]:
        return [("warn", f"warning: {warning}")]

    def gone(self, path: str) -> list[Line]:
        return [("plain", ""), ("warn", f"{path} is gone or cannot be read; waiting for it"), *self._reminder()]

    def stopped(self) -> list[Line]:
        """The run was cancelled: the next save came first, or Ctrl-C."""
        return [("dim", f"run {self.runs} was stopped before it ended")]

    def farewell(self) -> list[Line]:
        last = f"; the last good one was run {self.good[0]} at {self.good[1]}" if self.good else ""
        return [("plain", ""), ("dim", f"{plural(self.runs, 'run')}, {self.good_runs} good{last}")]

    def _reminder(self) -> list[Line]:
        """The last good run, so that it stays visible below an error."""
        if self.good is None:
            return []
        number, at, answer = self.good
        lines = [line for line in answer if line.strip()]
        shown_again = [f"  {shortened(line, _REMINDER_WIDTH)}" for line in lines[:_REMINDER_LINES]]
        if more := len(lines[_REMINDER_LINES:]):
            shown_again.append(f"  … {plural(more, 'more line')}")
        return [("dim", line) for line in (f"The last good run was run {number} at {at}:", *shown_again)]


def _spent(problem: Problem, outcome: str, run: RunResult | None, wall_s: float) -> str:
    """What a run that failed cost, in one line."""
    if problem.run is not None:
        return model_used(problem.run)
    return cost(outcome, run, wall_s) if problem.run_id is None or run else f"{outcome} · {_ms(wall_s)}"


def cost(outcome: str, run: RunResult | None, wall_s: float) -> str:
    """The outcome and the cost of a run, in one line."""
    if run is None:
        return f"{outcome} · {_ms(wall_s)} · no script was run"
    usage = run.usage
    return (
        f"{outcome} · {_ms(usage.wall_s)} · CPU {_ms(usage.cpu_s)} · memory {mebibytes(usage.peak_memory_bytes)} · "
        f"{plural(usage.host_call_count, 'host call')}"
    )


def _dropped(run: RunResult | None) -> list[Line]:
    dropped = run is not None and run.logs_truncated
    return [("warn", "[warn] further log lines were dropped (limit log_bytes)")] if dropped else []


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


# ---- saves ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stamp:
    """Identifies one save of a file: differs also for a save of the same bytes, and for another file in its place."""

    inode: int
    modified_ns: int
    digest: bytes


def stamp(path: Path) -> Stamp | None:
    """The current stamp of a file; None if it cannot be read. Blocks while it reads."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # non-blocking: the path may be a FIFO
        try:
            status = os.fstat(descriptor)
            if not S_ISREG(status.st_mode):
                return None
            with open(descriptor, "rb", closefd=False) as file:
                return Stamp(status.st_ino, status.st_mtime_ns, sha256(file.read(_DIGEST_BYTES)).digest())
        finally:
            os.close(descriptor)
    except OSError:
        return None


class Saves:
    """Detects every save of one file, in place or by renaming another over it, its deletion and its return; and changes
    of the files that it requires.

    Only the file's stamp counts, and the signatures of the others. Notifications of the system (`watch`) only say when
    to check them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # The files that the script requires, as they were when it was loaded.
        self._required: Files = {}
        self._look = trio.Event()

    def require(self, files: Files) -> None:
        """The script was loaded, and requires these files."""
        self._required = files

    async def now(self) -> Stamp | None:
        """The current stamp of the file; None while it does not exist."""
        return await trio.to_thread.run_sync(stamp, self._path)

    async def change(self, seen: Stamp | None) -> None:
        """Wait until the file's stamp differs from `seen`, or a required file from what was loaded."""
        while True:
            look = self._look  # taken before the check, so that a change during it is not missed
            required = self._required
            if await self.now() != seen:
                return
            if await trio.to_thread.run_sync(_signatures, required) == required:
                await look.wait()
            elif self._required is required:  # else it was loaded meanwhile
                self._required = {}  # until it is loaded again
                return

    async def watch(self) -> None:
        """Trigger a check for every notification. Runs until cancelled."""
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_set_at_the_end, stop)
            while True:
                try:
                    folders = self._folders()
                    events = awatch(
                        *folders, watch_filter=None, debounce=_BURST_MS, step=_STEP_MS, recursive=False,
                        stop_event=stop, rust_timeout=_LOOK_MS, yield_on_timeout=True,
                    )  # fmt: skip
                    async with aclosing(events):
                        async for _ in events:
                            self.look()
                            if self._folders() != folders:
                                break
                except* (OSError, WatchfilesRustInternalError):
                    # A folder was removed, or no inotify watches are left. awatch's nursery may wrap the second error.
                    await trio.sleep(_LOOK_MS / 1000)
                    self.look()

    def _folders(self) -> dict[Path, int]:
        """The folders to watch, with their inodes: the file's own, for a symbolic link that of its target, and those of
        the required files that exist.

        Raises OSError if one of the first two is missing.
        """
        folders = {folder: folder.stat().st_ino for folder in (self._path.parent, self._path.resolve().parent)}
        for folder in {path.parent for path in self._required} - folders.keys():
            with suppress(OSError):
                folders[folder] = folder.stat().st_ino
        return folders

    def look(self) -> None:
        """Trigger a check of the file."""
        self._look.set()
        self._look = trio.Event()


def _signatures(files: Files) -> Files:
    return {path: signature(path) for path in files}


async def _set_at_the_end(event: trio.Event) -> None:
    # The watching thread cannot be cancelled, but it checks this event.
    try:
        await trio.sleep_forever()
    finally:
        event.set()


async def on_every_save(saves: Saves, run: Callable[[Stamp | None], Awaitable[None]]) -> None:
    """Run now, and again for every save, which cancels a run in progress. Runs until cancelled."""
    while True:
        seen = await saves.now()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, seen)
            await saves.change(seen)
            nursery.cancel_scope.cancel()


# ---- the command ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Subject:
    """The script, and everything needed to run it."""

    kind: Kind
    name: str
    entry: ScriptEntry | ChatmdEntry
    given: Mapping[str, str]
    who: Tenant
    service: Service
    session: Session
    show: Callable[[list[Line]], None]
    saves: Saves
    mock: Path | None

    async def run(self, seen: Stamp | None) -> None:
        """Load the script as a server does, call it, and print events as they happen."""
        session, show = self.session, self.show
        if seen is None:
            return show(session.gone(shown(self.entry.path)))
        show(session.begins(time.strftime("%H:%M:%S")))
        try:
            show(await self._outcome())
        except trio.Cancelled:
            show(session.stopped())
            raise

    async def _outcome(self) -> list[Line]:
        session, show, service = self.session, self.show, self.service
        whole = service.loaded.config
        if isinstance(self.entry, ChatmdEntry):
            config = documents.only_document(whole, self.name, self.entry)
        else:
            config = only(whole, self.kind, self.name, self.entry)
        registry = Registry()
        loaded = await load(config, service.engine, service.means, registry)
        mock = self.mock
        # Its own file is looked at in another way: a document is among those that it was made of.
        required = {path: state for path, state in loaded.required.items() if path != self.entry.path}
        self.saves.require(required if mock is None else {**required, mock: signature(mock)})
        for warning in loaded.warnings:
            show(session.warned(warning))
        if loaded.failures:
            return session.not_loaded(loaded.failures[0])
        call = Call(
            self.who,
            Hearers(
                log=lambda line: show(session.logged(line)),
                progress=lambda fraction, message: show(session.progressed(fraction, message)),
                call=lambda record: show(session.called(record)),
            ),
        )
        started = time.monotonic()
        try:
            with mocked(mock, service):  # read for every run
                # Only this script is the new one; all other agents and tools are as at the start of the engine.
                answer = await self.kind.ask(replace(service, registry=registry), self.name, self.given, call)
        except Problem as problem:
            return session.failed(problem, time.monotonic() - started)
        except Exit as wrong:
            return session.refused(wrong.message)
        return session.answered(answer, time.monotonic() - started)


async def dev(
    kind: Kind, name: str, given: Mapping[str, str], loaded: LoadedConfig, who: Tenant, mock: Path | None = None
) -> int:
    """Run a script on every save until Ctrl-C or SIGTERM. `mock` is a file of mocks. Returns the exit code."""
    entry = await _entry(kind, name, loaded)
    session, show = Session(), printer()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def until_told() -> None:
                await anext(signals)
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_told)
            show([("dim", f"Watching {shown(entry.path)}; Ctrl-C ends.")])
            async with opened(loaded, but=(kind, name)) as service, service.published(who):
                saves = Saves(entry.path)
                subject = _Subject(kind, name, entry, given, who, service, session, show, saves, mock)
                nursery.start_soon(saves.watch)
                await on_every_save(saves, subject.run)
    show(session.farewell())
    return OK


async def _entry(kind: Kind, name: str, loaded: LoadedConfig) -> ScriptEntry | ChatmdEntry:
    """The Lua script or document of this name in the configuration. Raises Exit if there is none."""
    entries = getattr(loaded.config, kind.section).in_order()
    found = next(((what, entry) for what, each, entry in entries if each == name), None)
    if found is None and (document := await documents.entry_of(loaded, name)) is not None:
        return document
    if found is None:
        raise unknown(kind.word, name, [each for what, each, _ in entries if what == "script"])
    what, entry = found
    if not isinstance(entry, ScriptEntry | ChatmdEntry):
        raise Exit(UNUSABLE, f"{kind.word} {name!r} is no Lua script or document ({what}): there is no file to watch")
    return entry


def printer() -> Callable[[list[Line]], None]:
    """Prints lines on standard output at once: in colours on a terminal, else as plain text."""
    if not sys.stdout.isatty():

        def show_plain(lines: list[Line]) -> None:
            for _, text in lines:
                print(plain(text), flush=True)

        return show_plain

    console = Console(highlight=False)

    def show(lines: list[Line]) -> None:
        for style, text in lines:
            console.print(Text(plain(text), style=_ON_A_TERMINAL[style]), soft_wrap=True)

    return show

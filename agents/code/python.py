"""The operator's Python code: finding it, and making one call.

It runs in this process with all rights of the process: nothing here confines it. This module keeps a call from
outliving its deadline, its errors from ending the server, and the texts of those errors from reaching callers.
"""

import importlib
import inspect
import math
import os
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

import structlog
import trio

from agents.agent import Call
from agents.code import calls
from agents.code.authoring import CallFailed, Context, Log
from agents.registry import Registry
from agents.shapes.plain import TooMuch, plain
from agents.shapes.shape import WrongShape
from engine.config import PythonEntry
from engine.egress.redaction import NOTHING_SECRET, Redactor
from engine.engine import Engine
from engine.errors import Code, Problem, amount, leaf, limit_use
from engine.run import CallRecord, LogLine, Usage, new_run_id
from engine.tenant import BoundLimits
from sandbox.wire.limits import LINE_BYTES
from sandbox.wire.outcome import Outcome

log = structlog.get_logger("agents.python")

Root = Literal["agent", "tool"]

_PATH = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*(\.[^\W\d]\w*)*)")
_CODES = {"agent": Code.AGENT_ERROR, "tool": Code.TOOL_ERROR}
# How the run of a call that ended with such an error is booked; any other is an error of its code.
_OUTCOMES = {Code.TIMEOUT: Outcome.TIMEOUT, Code.OUTPUT_LIMIT: Outcome.OUTPUT_LIMIT}
_METHODS = {"agent": "resolve", "tool": "execute"}
# The packages of this project shadow an operator's module of the same name.
_OURS = ("agents", "benchmarks", "cli", "control", "engine", "knowledge", "sandbox", "server", "storage")


class Unusable(Exception):
    """Code that cannot be used. One line for the operator: which module or class, and what is wrong with it."""


# ---- finding ----------------------------------------------------------------------------------------------------


def installed(root: Root) -> list[EntryPoint]:
    """Entry points of installed packages in the group `engine.agents` or `engine.tools`, by name."""
    return list(_points(f"engine.{root}s", _folders()))


@lru_cache(maxsize=2)
def _points(group: str, folders: Hashable) -> tuple[EntryPoint, ...]:
    """Those of a group. To read them takes 7 ms, so they are read again only if one of the folders has changed."""
    return tuple(sorted(entry_points(group=group), key=lambda point: (point.name, point.value)))


def _folders() -> tuple[tuple[str, int], ...]:
    """Where packages are looked for, with the time of each folder's last change: an installation changes it."""
    return tuple((each, _changed_ns(each)) for each in sys.path)


def _changed_ns(folder: str) -> int:
    try:
        return os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return 0


async def find(path: str, folder: Path | None = None) -> Any:
    """The object that `module:Class` names, from installed packages or else from `folder`. Raises Unusable.

    The import runs the module's code, in a thread: a slow one does not delay the loading of other entries.
    """
    match = _PATH.fullmatch(path)
    if match is None:
        raise Unusable(f"path must be 'module:Class', got {path[:100]!r}")
    if folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: a file there never shadows a library
    try:
        # Abandoned when cancelled: the import of a module may never return.
        return await trio.to_thread.run_sync(_import, match["module"], match["name"], abandon_on_cancel=True)
    except _NoModule:
        where = "installed packages" if folder is None else f"installed packages or {folder}"
        raise Unusable(f"there is no module {match['module']!r} among {where}{_hint(match['module'])}") from None


class _NoModule(Exception):
    pass


def _import(module: str, name: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            raise _NoModule from None
        log.debug("an import failed", module=module, exc_info=error)
        raise Unusable(f"importing module {module!r} failed: {error_text(error)}") from None
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Unusable(f"module {module!r} has no {name!r}") from None
    return found


def _hint(module: str) -> str:
    top = module.partition(".")[0]
    return f"; '{top}' is a package of the engine itself, so give yours another name" if top in _OURS else ""


def error_text(error: BaseException, redactor: Redactor = NOTHING_SECRET) -> str:
    """An exception on one line for the operator: its type, its text, and file and line where it was raised."""
    text = redactor.text(" ".join(str(error).split()))[:200]
    if isinstance(error, SyntaxError) and error.filename:
        text, file, line = error.msg, error.filename, error.lineno
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
        file, line = (frames[-1].filename, frames[-1].lineno) if frames else (__file__, None)
    where = "" if file == __file__ else f" ({Path(file).name}:{line})"
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


def make(found: Any, root: Root, entry: PythonEntry) -> Any:
    """The object to call: a class is instantiated, with the entry's `config` if it takes an argument of that name.

    Raises Unusable when that fails, or when the object has no usable `resolve` or `execute`.
    """
    if isinstance(found, type):
        try:
            takes = set(inspect.signature(found).parameters)
        except (TypeError, ValueError):  # classes written in C may have none
            takes = set()
        try:
            found = found(config=entry.config) if "config" in takes else found()
        except (Exception, SystemExit) as error:
            redactor = Redactor(entry.from_environment)
            text = redactor.text("".join(traceback.format_exception(error)))
            log.debug("a constructor failed", path=entry.path, exception=text)
            raise Unusable(f"making {entry.path!r} failed: {error_text(error, redactor)}") from None
    _check_methods(found, entry.path, root)
    return found


def _check_methods(target: Any, path: str, root: Root) -> None:
    if root == "tool":
        _check(target, path, "execute", "params", "context")
        return
    _check(target, path, "resolve", "args", "context")
    if attribute(target, path, "complete") is not None:
        _check(target, path, "complete", "argument", "value", "given", "context")


def _check(target: Any, path: str, name: str, *takes: str) -> None:
    method, shown = attribute(target, path, name), f"{name}({', '.join(takes)})"
    if method is None:
        raise Unusable(f"{path!r} has no method {shown}")
    if not inspect.iscoroutinefunction(method):
        raise Unusable(f"{name} of {path!r} is not an async function: write `async def {name}(self, ...)`")
    try:
        inspect.signature(method).bind(*takes)
    except TypeError:
        raise Unusable(f"{name} of {path!r} must be called as {shown}") from None


def attribute(target: Any, path: str, name: str) -> Any:
    """An attribute of the author's object, or None; tuples as lists. Raises Unusable when reading it fails."""
    try:
        value = getattr(target, name, None)
    except (Exception, SystemExit) as error:
        raise Unusable(f"reading {name} of {path!r} failed: {error_text(error)}") from None
    return list(value) if isinstance(value, tuple) else value


# ---- calling ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PythonAnswer:
    """The answer of a call as plain JSON data, and the id of the call in logs."""

    value: Any
    run_id: str


@dataclass(frozen=True, slots=True)
class PythonCode:
    """An author's object under its configured name, with its limits and its own keys."""

    name: str
    root: Root
    target: Any
    entry: PythonEntry
    limits: dict[str, float]
    engine: Engine
    registry: Registry
    redactor: Redactor

    @classmethod
    def from_target(
        cls, name: str, root: Root, target: Any, entry: PythonEntry, engine: Engine, registry: Registry
    ) -> "PythonCode":
        """The object with the limits that it requests. Raises Unusable for an invalid `timeout`."""
        timeout = attribute(target, entry.path, "timeout")
        # The comparison below also refuses infinity and NaN.
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
            raise Unusable(f"timeout of {entry.path!r} must be a number of seconds")
        if timeout is not None and not 0 < timeout < float("inf"):
            raise Unusable(f"timeout of {entry.path!r} must be more than 0 seconds and finite")
        limits = ({} if timeout is None else {"timeout_s": float(timeout)}) | entry.limits
        return cls(name, root, target, entry, limits, engine, registry, Redactor(entry.from_environment))

    def declared(self, *names: str) -> dict[str, Any]:
        """The attributes that the object declares, without missing ones. Raises Unusable."""
        found = {
            name: attribute(self.target, self.entry.path, name) for name in ("name", "title", "description", *names)
        }
        if found["description"] is None and (said := type(self.target).__doc__):
            found["description"] = " ".join(inspect.cleandoc(said).partition("\n\n")[0].split())
        return {name: value for name, value in found.items() if value is not None}

    async def run(
        self,
        step: Callable[[Context], Awaitable[Any]],
        call: Call,
        tools: tuple[str, ...],
        *,
        method: str | None = None,
        within_s: float = math.inf,
    ) -> PythonAnswer:
        """One call: `step` gets its context and is cancelled after `timeout_s` (or `within_s`, if less).

        `method` is the method that it calls, if not the usual one. Raises Problem: `agent_error` or `tool_error`,
        `timeout`, `output_limit`, and any Problem that `step` raises.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        limits = self.limits
        if within_s < math.inf:
            limits = {**limits, "timeout_s": min(within_s, limits.get("timeout_s", within_s))}
        bound = self.engine.limits_for(limits, call.tenant)
        reader = call.tenant.reader.within(self.entry.labels, self.entry.sources)
        run = _PythonRun(self, replace(call, tenant=replace(call.tenant, reader=reader)), tools, bound)
        try:
            answer = await self._answer(run, step, method or _METHODS[self.root])
            run.outcome = Outcome.OK
            return answer
        except Problem as problem:
            run.outcome = _OUTCOMES.get(problem.code, Outcome.SCRIPT_ERROR)
            raise
        finally:
            run.close()

    async def _answer(self, run: "_PythonRun", step: Callable[[Context], Awaitable[Any]], method: str) -> PythonAnswer:
        bound = run.bound
        value, failure, late = None, None, False
        try:
            with trio.CancelScope(deadline=trio.current_time() + bound["timeout_s"]) as scope:
                try:
                    what = f"the answer of {self.root}.{method}"
                    value = plain(
                        await step(run.context()), what, size=bound.values.output_bytes, depth=bound.values.value_depth
                    )
                finally:
                    late = scope.cancel_called  # also true for code that blocked the loop and was never cancelled
        except BaseException as error:
            failure, rest = _own(error)
            if rest is not None:
                self._note(run.run_id, failure, "python code failed while it was cancelled")
                raise rest from None
        if late:
            self._note(run.run_id, failure, "python code failed after its deadline")
            raise Problem(
                Code.TIMEOUT,
                f"{self.subject} did not end within {amount(bound['timeout_s'], 's')} (limits.timeout_s)",
                run_id=run.run_id,
                limit=limit_use(bound, "timeout_s"),
            )
        if failure is not None:
            raise self._problem(failure, bound, run.run_id)
        return PythonAnswer(value, run.run_id)

    def wrong_shape(self, run_id: str, what: str) -> Problem:
        """The error of a call that ended well with an answer of the wrong shape. `what` names the path in it."""
        return Problem(_CODES[self.root], f"{self.subject}: {what}", run_id=run_id)

    @property
    def subject(self) -> str:
        return f"{self.root} '{self.name}'"

    def _problem(self, failure: BaseException, bound: BoundLimits, run_id: str) -> Problem:
        """The error for the caller. Texts of unexpected exceptions go only to the log."""
        match failure:
            case Problem():
                return failure
            case CallFailed():
                return self.wrong_shape(run_id, self.redactor.text(str(failure)))
            case WrongShape():
                return self.wrong_shape(run_id, str(failure))
            case TooMuch():
                use = limit_use(bound, failure.limit)
                told = "larger" if failure.limit == "output_bytes" else "nested deeper"
                shown = amount(use.bound, use.unit) if use.unit == "bytes" else f"{use.bound:g} {use.unit}"
                message = f"{self.subject}: its answer is {told} than {shown} (limits.{failure.limit})"
                return Problem(Code.OUTPUT_LIMIT, message, run_id=run_id, limit=use)
        self._note(run_id, failure, "python code failed")
        problem = self.wrong_shape(run_id, "its code failed; the engine's log says why, under this run_id")
        problem.__cause__ = failure  # for the command line, whose user may see it
        return problem

    def _note(self, run_id: str, failure: BaseException | None, event: str) -> None:
        if failure is not None:
            text = self.redactor.text("".join(traceback.format_exception(failure)))
            log.error(event, kind=self.root, name=self.name, path=self.entry.path, run_id=run_id, exception=text)


def _own(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """The part of an error that is the author's (without groups of one around it), and the part that is not."""
    if not isinstance(error, BaseExceptionGroup):
        return (error, None) if isinstance(error, Exception | SystemExit) else (None, error)
    own, rest = error.split((Exception, SystemExit))
    return None if own is None else leaf(own), rest


class _PythonRun:
    """One call in progress: the functions of its context, which count and record their use."""

    def __init__(self, code: PythonCode, call: Call, tools: tuple[str, ...], bound: BoundLimits) -> None:
        self.run_id = new_run_id()
        self._code = code
        self._call = call
        self._tools = tools
        self._lines: list[LogLine] = []
        self._log_left = bound.values.log_bytes
        self.bound = bound
        self._size, self._depth = bound.values.output_bytes, bound.values.value_depth
        self._counts: Counter[str] = Counter()
        self._began = time.perf_counter()
        self.outcome = Outcome.CANCELLED

    def context(self) -> Context:
        return Context(
            tenant=self._call.tenant.id,
            config=self._code.entry.config,
            tools=self._tools,
            log=Log(self._line),
            _ask=self._ask,
            _progress=self._progress,
        )

    def close(self) -> None:
        """End the call: book it, and write its log lines to the engine's log as one record.

        Its CPU time is not known: it shares the thread with the engine.
        """
        usage = Usage(wall_s=time.perf_counter() - self._began, host_calls=dict(self._counts))
        code = self._code
        code.engine.accounts.ended(self._call.tenant, f"{code.root}:{code.name}", self.outcome, usage)
        if self._lines:
            lines = [f"[{line.level}] {line.text}" for line in self._lines]
            log.info("python log", kind=code.root, name=code.name, tenant=self._call.tenant.id, run_id=self.run_id,
                     lines=lines, dropped=self._log_left < 0)  # fmt: skip

    def _line(self, level: str, text: str) -> None:
        self._log_left -= len(text.encode(errors="replace")) + LINE_BYTES
        if self._log_left < 0:  # a log is for reading: lines beyond log_bytes are dropped
            return
        line = LogLine(level, self._code.redactor.text(text))
        self._lines.append(line)
        if self._call.hearers.log is not None:
            self._call.hearers.log(line)

    def _progress(self, fraction: float, message: str | None) -> None:
        if self._call.hearers.progress is not None:
            self._call.hearers.progress(fraction, None if message is None else self._code.redactor.text(message))

    async def _ask(self, call: str, tool: str, params: Mapping[str, Any]) -> Any:
        if self._call.inside is not None:  # the enclosing script pays, and is stopped when it exceeds its budget
            self._call.inside.charge(Usage(host_calls={call: 1}))
        self._counts[call] += 1
        started, refused = time.perf_counter(), None
        try:
            return await self._answered(call, tool, params)
        except CallFailed as failed:
            refused = str(failed)
            raise
        finally:
            if self._call.hearers.call is not None:
                self._call.hearers.call(CallRecord(call, time.perf_counter() - started, refused))

    async def _answered(self, call: str, tool: str, params: Mapping[str, Any]) -> Any:
        chain = self._chain()
        if call == calls.CALL_TOOL:
            refusal = calls.refusal(tool, self._tools, chain, len(chain), self._code.root)
            if refusal is not None:
                raise CallFailed(refusal, code=Code.TOOL_NOT_ALLOWED.value)
        tenant = self._call.tenant
        offered = self._code.registry.tool(tenant.id, tool, tenant.key)
        if offered is None:
            raise CallFailed(f"no tool registered with name: {tool[:128]}", code=Code.NOT_FOUND.value)
        try:
            given = plain(params, f"the parameters of {call}", size=self._size, depth=self._depth)
        except WrongShape as wrong:
            raise CallFailed(str(wrong), code=Code.BAD_REQUEST.value) from None
        except TooMuch as much:
            said = f"the parameters of {call} are beyond limits.{much.limit}"
            raise CallFailed(said, code=Code.BAD_REQUEST.value) from None
        around = self._call
        inner = replace(around, hearers=around.hearers.of_nested(), callers=chain)
        try:
            return (await offered.call(given, inner)).value
        except Problem as problem:
            raise CallFailed(problem.message, code=problem.code.value) from None

    def _chain(self) -> tuple[str, ...]:
        """The tools in execution around the calls of this code, itself included."""
        around = calls.around(self._call)
        return (*around, self._code.name) if self._code.root == "tool" else around

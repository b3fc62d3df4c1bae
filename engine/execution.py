"""One run on a leased worker."""

import time
from collections.abc import Awaitable
from typing import Any

import msgspec
import structlog
import trio

from engine.bridge import Bridge, HostContext
from engine.egress.redaction import Redactor
from engine.errors import Code, Problem
from engine.metrics import Metrics
from engine.run import CallRecord, Failure, LogLine, Prepared, RunRequest, RunResult, Usage, new_run_id
from engine.scheduling.turns import Turn
from engine.usage import Accounts
from engine.values import encode_value
from engine.workers.protocol import MAX_PROGRESS
from engine.workers.verdict import Mark, Verdict
from engine.workers.worker import Worker
from sandbox.wire.limits import LINE_BYTES
from sandbox.wire.messages import BundleRun, HostCall, HostReply, Log, Progress, Run
from sandbox.wire.outcome import Outcome

log = structlog.get_logger("engine.run")

# CPU time of the supervisor for a line of a run's log; charged in batches, as charging costs more than a few lines.
LINE_S = 15e-6
LINES_CHARGED = 256
# Bounds on a script's error and its traceback as they are shown, in characters.
MAX_MESSAGE, MAX_TRACEBACK = 4096, 8192


async def execute(
    prepared: Prepared, worker: Worker, turn: Turn, bridge: Bridge, accounts: Accounts, queue_s: float
) -> RunResult:
    """Run a request on a worker that was leased for it. The worker is clean afterwards, or has ended.

    Cancellation kills the worker and waits until it is reaped. Raises Problem for arguments that no script can take.
    """
    request = prepared.request
    recorder = _Recorder(prepared, worker, turn, bridge)
    message = _message(prepared, worker, recorder.run_id)
    peak_before = worker.peak_memory_bytes
    verdict = _CANCELLED
    started = time.perf_counter()
    try:
        with turn.run_on(worker, request.limits.values.cpu_s):
            verdict = await worker.run(message, request.limits, recorder)
    finally:
        recorder.end_calls()
        peak = worker.peak_memory_bytes
        usage = Usage(
            queue_s=queue_s,
            wall_s=time.perf_counter() - started,
            cpu_s=worker.run_cpu_s(),
            nested_cpu_s=recorder.nested_cpu_s,
            # The high-water mark is the process's. If this run did not raise it, the figure is what is resident now.
            peak_memory_bytes=peak if peak > peak_before else worker.resident_bytes or peak,
            bytes_in=request.script.size + len(message.args),
            bytes_out=worker.bytes_out,
            host_calls=recorder.calls,
            nested_host_calls=recorder.nested_calls,
        )
        accounts.ended(request.tenant, f"{request.root}:{request.label}", verdict.outcome, usage)
    return _result(prepared, verdict, usage, recorder, accounts.metrics)


# The verdict on a run that is cancelled before its worker has answered or ended.
_CANCELLED = Verdict(Outcome.CANCELLED)


def _message(prepared: Prepared, worker: Worker, run_id: str) -> Run:
    request = prepared.request
    limits, script = request.limits.values, request.script
    config = dict(prepared.config)
    args = [*request.args, config] if request.config_last else list(request.args)
    try:
        arguments = b"".join(map(encode_value, (args, config, request.authority.tools, prepared.secrets.table)))
    except UnicodeEncodeError:
        raise Problem(Code.BAD_REQUEST, "an argument holds half of a surrogate pair, which is not text") from None
    except RecursionError:
        raise Problem(Code.BAD_REQUEST, "an argument is nested too deep") from None
    # Few scripts read it.
    if b"caller" in script.source or any(b"caller" in text for _, text in script.modules):
        arguments += encode_value(_caller(request, run_id))
    key = (script.digest, script.name)
    is_kept = worker.scripts.use(key)
    if not is_kept:
        worker.scripts.add(key, script.size, True)
    run = Run(
        source=None if is_kept else script.source,
        digest=script.digest,
        chunk_name=script.name,
        root=request.root,
        method=request.method or "",
        args=arguments,
        memory_bytes=limits.memory_bytes,
        output_bytes=limits.output_bytes,
        log_bytes=limits.log_bytes,
        value_depth=limits.value_depth,
        progress=MAX_PROGRESS,
        timeout_s=limits.timeout_s,
    )
    return run if is_kept or not script.modules else BundleRun(**msgspec.structs.asdict(run), modules=script.modules)


def _caller(request: RunRequest, run_id: str) -> dict[str, Any]:
    """What `context.caller` shows of the request: a key by its id, and by its name in the audit log."""
    tenant = request.tenant
    shown: dict[str, Any] = {"tenant": tenant.id, "agent": request.name, "run_id": run_id}
    if tenant.key is not None:
        named = tenant.key if tenant.key.startswith("oauth:") else f"key:{tenant.key}"
        shown["key"] = {"id": tenant.key, "name": named}
    return shown


class _Recorder:
    """The sinks of one run: answers and counts its host calls, records its log, forwards progress."""

    def __init__(self, prepared: Prepared, worker: Worker, turn: Turn, bridge: Bridge) -> None:
        request = prepared.request
        self.run_id = new_run_id()
        self.calls: dict[str, int] = {}
        self.call_count = 0
        self.nested_cpu_s = 0.0
        self.lines: list[LogLine] = []
        self.log_bytes = 0
        # Invariant: within the bound of host calls, each of which adds two at most.
        self._hints: set[tuple[str, str]] = set()
        self._request = request
        self._redactor = prepared.redactor
        self._hearers = prepared.hearers
        self._worker = worker
        self._turn = turn
        self._bridge = bridge
        self._deadline = trio.current_time() + request.limits.values.timeout_s
        self.nested_calls = 0
        room = bridge.room(request)
        self._context = HostContext(
            request,
            self.run_id,
            self._hint,
            self._remaining,
            self._charge,
            turn,
            room,
            prepared.secrets,
            prepared.hearers,
        )
        self.end_calls = room.close  # releases what they hold in memory, whatever their outcome

    async def on_call(self, call: HostCall) -> HostReply:
        # Names that are not host calls share one entry: a script must not grow our tables.
        name = call.name if call.name in self._bridge.names else "(unknown)"
        self.calls[name] = self.calls.get(name, 0) + 1
        self.call_count += 1
        if not self._calls_left() or self._turn.host_call() is not None:
            return HostReply(False, b"too many host calls")  # never read
        if self._hearers.call is None:
            return await self._bridge.call(self._context, call.name, call.args)
        started = time.perf_counter()
        reply = await self._bridge.call(self._context, call.name, call.args)
        refused = None if reply.ok else self._redactor.text(reply.value.decode())
        self._hearers.call(CallRecord(name, time.perf_counter() - started, refused))
        return reply

    def on_taken(self, reply: HostReply) -> None:
        self._bridge.taken(self._context, reply)

    def _calls_left(self) -> bool:
        bound = self._request.limits.values.host_calls
        if self.call_count + self.nested_calls <= bound:
            return True
        self._worker.kill(Mark(Outcome.CALL_LIMIT, "host_calls", bound + 1))
        return False

    def _remaining(self) -> dict[str, float]:
        return {
            "timeout_s": max(0.0, self._deadline - trio.current_time()),
            "cpu_s": self._turn.cpu_left(self._worker),
            "host_calls": self._request.limits["host_calls"] - self.call_count - self.nested_calls,
        }

    def _charge(self, usage: Usage) -> None:
        self.nested_cpu_s += usage.cpu_s + usage.nested_cpu_s
        self.nested_calls += usage.host_call_count + usage.nested_host_calls
        self._turn.spend(self._worker, usage.cpu_s + usage.nested_cpu_s)
        self._calls_left()

    def on_log(self, message: Log) -> Awaitable[None] | None:
        if self._redactor.is_work(message.text):
            return self._long_line(message)
        self._line(message.level, message.text)
        return None

    async def _long_line(self, message: Log) -> None:
        """Redact in a thread, which yields the interpreter to the event loop every 5 ms at most. The run is charged."""
        redactor, text = self._redactor, message.text

        def work() -> tuple[str, float]:
            began_s = time.thread_time()
            return redactor.text(text), time.thread_time() - began_s

        # The thread may outlive the run: it holds only the text, which `log_bytes` bounds.
        redacted, cpu_s = await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        self._context.worked(cpu_s)
        self._note(LogLine(message.level, redacted), text)

    def _line(self, level: str, text: str) -> None:
        self._note(LogLine(level, self._redactor.text(text)), text)

    def _hint(self, level: str, text: str) -> None:
        """Log a line of a host call, once a run, within `log_bytes`: the prelude counts only the script's own lines."""
        if (level, text) in self._hints:
            return
        self._hints.add((level, text))
        if self.log_bytes <= self._request.limits.values.log_bytes:
            self._line(level, text)

    def _note(self, line: LogLine, text: str) -> None:
        self.lines.append(line)
        if len(self.lines) % LINES_CHARGED == 0:
            self._context.worked(LINES_CHARGED * LINE_S)
        self.log_bytes += len(text.encode()) + LINE_BYTES
        if self._hearers.log is not None:
            self._hearers.log(line)

    def on_progress(self, message: Progress) -> None:
        if self._hearers.progress is not None:
            self._hearers.progress(message.fraction, self._redactor.text(message.message) or None)


def _result(prepared: Prepared, verdict: Verdict, usage: Usage, recorder: _Recorder, metrics: Metrics) -> RunResult:
    request, run_id = prepared.request, recorder.run_id
    if recorder.lines:  # one record a run, not one a line: a script must not flood the log
        lines = [f"[{line.level}] {line.text}" for line in recorder.lines]
        log.info("script log", run_id=run_id, tenant=request.tenant.id, script=request.label, lines=lines)
    if verdict.security_event is not None:
        metrics.security_events += 1
        log.warning(
            "security event", event_kind=verdict.security_event, outcome=verdict.outcome.value, run_id=run_id,
            tenant=request.tenant.id, script=request.label, digest=request.script.digest,
        )  # fmt: skip
    return RunResult(
        run_id=run_id,
        outcome=verdict.outcome,
        value=verdict.value,
        failure=_redacted(verdict.failure, prepared.redactor),
        usage=usage,
        logs=tuple(recorder.lines),
        # The prelude cuts the line that exceeds the limit and appends a mark, so only a cut log is over the limit.
        logs_truncated=recorder.log_bytes > request.limits.values.log_bytes,
        replaced=verdict.replaced,
    )


def _redacted(failure: Failure | None, redactor: Redactor) -> Failure | None:
    if failure is None:
        return None
    traceback = failure.traceback
    return msgspec.structs.replace(
        failure,
        message=redactor.text(failure.message)[:MAX_MESSAGE],
        traceback=None if traceback is None else redactor.text(traceback)[:MAX_TRACEBACK],
    )

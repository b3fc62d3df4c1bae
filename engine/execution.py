"""One run on a leased worker: where decisions about a run are carried out."""

import time
from collections.abc import Awaitable

import msgspec
import structlog
import trio

from engine.bridge import Bridge, HostContext
from engine.egress.redaction import Redactor
from engine.errors import Code, Problem
from engine.metrics import Metrics
from engine.run import CallRecord, Failure, LogLine, Prepared, RunResult, Usage, new_run_id
from engine.scheduling.turns import Turn
from engine.usage import Accounts
from engine.values import encode_value
from engine.workers.protocol import MAX_PROGRESS
from engine.workers.verdict import Mark, Verdict
from engine.workers.worker import Worker
from sandbox.wire.limits import LINE_BYTES
from sandbox.wire.messages import HostCall, HostReply, Log, Progress, Run
from sandbox.wire.outcome import Outcome

log = structlog.get_logger("engine.run")

# What a line of a run's log takes the supervisor; charged by so many, as few lines cost less than charging for them.
LINE_S = 15e-6
LINES_CHARGED = 256
# What is shown of a script's error and of its traceback, in characters.
MAX_MESSAGE, MAX_TRACEBACK = 4096, 8192


async def execute(
    prepared: Prepared, worker: Worker, turn: Turn, bridge: Bridge, accounts: Accounts, queue_s: float
) -> RunResult:
    """Run a request on a worker that was leased for it. The worker is clean afterwards, or has ended.

    Cancellation kills the worker and waits until it is reaped. Raises Problem for arguments that no script can take.
    """
    request = prepared.request
    recorder = _Recorder(prepared, worker, turn, bridge)
    message = _message(prepared, worker)
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
            # The high-water mark is the process's. Where this run did not raise it, what is resident now is the figure.
            peak_memory_bytes=peak if peak > peak_before else worker.resident_bytes or peak,
            bytes_in=len(request.script.source) + len(message.args),
            bytes_out=worker.bytes_out,
            host_calls=recorder.calls,
            nested_host_calls=recorder.nested_calls,
        )
        accounts.ended(request, verdict.outcome, usage)
    return _result(prepared, verdict, usage, recorder, accounts.metrics)


# How a run ends that is left before its worker has answered or ended.
_CANCELLED = Verdict(Outcome.CANCELLED)


def _message(prepared: Prepared, worker: Worker) -> Run:
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
    key = (script.digest, script.name)
    is_kept = worker.kept.use(key)
    if not is_kept:
        worker.kept.keep(key, len(script.source), True)
    return Run(
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
    )


class _Recorder:
    """What a run says on its way: calls counted and answered, lines and progress handed on."""

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
            request, self.run_id, self._hint, self._left, self._charge, turn, room, prepared.secrets, prepared.hearers
        )
        self.end_calls = room.close  # what they hold is given back, whatever became of them

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

    def _left(self) -> dict[str, float]:
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
        """In a thread, where Python takes turns with the event loop every 5 ms. The run pays."""
        redactor, text = self._redactor, message.text

        def work() -> tuple[str, float]:
            began_s = time.thread_time()
            return redactor.text(text), time.thread_time() - began_s

        # Left behind when the run ends: it holds nothing but the text, and is bounded by `log_bytes`.
        redacted, cpu_s = await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        self._context.worked(cpu_s)
        self._note(LogLine(message.level, redacted), text)

    def _line(self, level: str, text: str) -> None:
        self._note(LogLine(level, self._redactor.text(text)), text)

    def _hint(self, level: str, text: str) -> None:
        """A line of a host call's, once a run, while there is room: the prelude counts what the script says itself."""
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
    if recorder.lines:  # one record a run, not one a line: a script must not keep the supervisor writing
        lines = [f"[{line.level}] {line.text}" for line in recorder.lines]
        log.info("script log", run_id=run_id, tenant=request.tenant.id, script=request.name, lines=lines)
    if verdict.security_event is not None:
        metrics.security_events += 1
        log.warning(
            "security event", event_kind=verdict.security_event, outcome=verdict.outcome.value, run_id=run_id,
            tenant=request.tenant.id, script=request.name, digest=request.script.digest,
        )  # fmt: skip
    return RunResult(
        run_id=run_id,
        outcome=verdict.outcome,
        value=verdict.value,
        failure=_redacted(verdict.failure, prepared.redactor),
        usage=usage,
        logs=tuple(recorder.lines),
        # The prelude cuts the line that passes the limit and adds a mark, so that it alone goes beyond.
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

"""The supervisor's side of one worker: send, receive, deadline, kill, reap."""

import errno
import itertools
import math
import os
import signal
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Literal, Protocol, cast

import trio

from engine.tenant import BoundLimits
from engine.values import MAX_VALUES
from engine.workers.protocol import Conversation, ProtocolViolation
from engine.workers.verdict import Mark, Verdict, of_answer, of_death, of_large
from engine.workers.zygote import Child, Zygote
from sandbox.wire import messages
from sandbox.wire.frame import encode_frame, encode_frame_head
from sandbox.wire.layers import contradicted, parse_status
from sandbox.wire.limits import MIB, Limits
from sandbox.wire.messages import (
    Done,
    Failed,
    HostCall,
    HostCalls,
    HostReply,
    LayerReport,
    Log,
    Progress,
    Ready,
    Run,
    State,
)
from sandbox.wire.outcome import Outcome
from sandbox.wire.script_cache import ScriptCache

READ_BYTES = 65536
# One read holds 4,600 empty lines, which take 15 us each to record: a checkpoint after this many lets other tasks run.
FORWARDED_AT_ONCE = 512
# A larger reply is not copied into its frame: two copies of 100 MiB block the loop for 115 ms (measured).
LARGE_REPLY_BYTES = 1024 * 1024
# Re-read memory once the worker has used this much CPU. First-touching a page takes 0.25 us, so a run that is not
# measured has grown by 4,000 pages (16 MiB) at most.
MEASURE_EVERY_CPU_S = 0.001
# What an honest worker may hold beyond what it held when it was ready. Its Lua state: `memory_bytes` as Lua counts
# them, which malloc(3) rounds up to at most 1.9 times as much (26 bytes of a short string take 48). Five copies of a
# value in transit: in pieces, whole, cut from the frame, decoded, and as a Lua value, each at most the largest that the
# limits allow. And 64 MiB for arguments, the compiler, fragmentation.
LUA_ROUNDED_UP, COPIES, SLACK_BYTES = 2, 5, 64 * MIB
# CPU time of an honest worker after its answer: it frees the state (0.2 s for 64 MiB of strings, 1.4 for 512), and
# compiles the script for its cache. Compiling takes 0.02 s a MiB, or much longer for a script full of labels, but no
# longer than in the run itself: twice the CPU time of the run is allowed for it.
AFTER_ANSWER_S, AFTER_ANSWER_S_PER_BYTE, AFTER_ANSWER_RUNS = 0.5, 1 / (128 * MIB), 2
# Confinement takes milliseconds; a machine so loaded that it takes this long could not serve anything anyway.
READY_TIMEOUT_S = 10.0
# An honest worker closes its channel by exiting; one that closes it and lives on for longer than this is killed.
EXIT_TIMEOUT_S = 0.1


# Numbers workers across zygotes, each of which counts its own from one.
_serials = itertools.count(1)


class Sinks(Protocol):
    """The receiver of a run's messages.

    `on_call` answers one host call (ok, msgpack value or error text). `on_taken` is called for each answer once it is
    sent. What `on_log` returns is awaited before anything else is read.
    """

    async def on_call(self, call: HostCall, /) -> HostReply: ...

    def on_taken(self, reply: HostReply, /) -> None: ...

    def on_log(self, message: Log, /) -> Awaitable[None] | None: ...

    def on_progress(self, message: Progress, /) -> None: ...


class Payer(Protocol):
    """The account that is charged for what a worker computes between runs."""

    def pay(self, cpu_s: float, /) -> None: ...


class WorkerLost(Exception):
    """The worker ended before it was ready. The text says how."""


class Worker:
    """A confined process and the conversation with it. Its owner must call `close`."""

    def __init__(self, child: Child, zygote: Zygote) -> None:
        self.serial = next(_serials)
        self.zygote = zygote
        self._child = child
        self._conversation = Conversation()
        # Why the supervisor killed it, if it did. Written before the signal is sent, so that the mark is there when the
        # end is seen (swapping the two fails test_deadline_is_not_a_crash).
        self.mark: Mark | None = None
        self.layers: tuple[LayerReport, ...] = ()
        self.tenant: str | None = None  # set by the first lease, never changed
        self.closed = trio.Event()  # reaped, and its descriptors given back
        self.runs = 0
        # A mirror of the worker's own cache (`sandbox.worker`).
        self.scripts: ScriptCache[Literal[True]] = ScriptCache()
        self._cpu_at_begin_s = 0.0  # `cpu_s` when its last run began
        self._run_cpu_s: float | None = 0.0  # CPU seconds of that run, None while it is under way
        # CPU seconds that the supervisor spent on the last run's answer, if that was large.
        self.judging_cpu_s = 0.0
        # Invariant: CPU time up to `_settled_cpu_s` was charged to a run or to `payer`, or is the worker's start, which
        # no tenant pays. `owed_s` is the time between that and the start of the present run, whose turn is charged.
        self.payer: Payer | None = None
        self._settled_cpu_s = 0.0
        self.owed_s = 0.0
        # Bound on its resident memory: grows with the limits of the runs it has served, as malloc may retain freed
        # memory.
        self.memory_bound = 0
        self._most_lua_bytes = 0
        self._bound_for: Limits | None = None
        self._pristine_bytes = 0  # as measured when it was ready
        self.bytes_out = 0  # bytes that it has sent in its last run
        # As last measured, with its CPU time at that moment.
        self.resident_bytes = 0
        self.peak_memory_bytes = 0
        self._measured_at_cpu_s = 0.0
        # The scope of the present run: cancelled when the worker ends while it waits for the host.
        self._run_scope: trio.CancelScope | None = None
        child.on_end = self._on_end
        for fd in (child.to_worker, child.from_worker):
            os.set_blocking(fd, False)
        try:
            self.pid = _pid_of(child.pidfd)
            self._status = os.open(f"/proc/{self.pid}/status", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            child.close()
            raise WorkerLost(f"a new worker ended at once ({error.strerror})") from None
        # The kernel's own account of the process's CPU time, in nanoseconds (clock_getcpuclockid(3)): 1 us to read.
        self._cpu_clock = (~self.pid << 3) | 2

    async def ready(self) -> None:
        """Wait until the worker reports that it is confined. Raises WorkerLost."""
        with trio.move_on_after(READY_TIMEOUT_S):
            while data := await self._read():
                try:
                    received = self._conversation.received(data)
                except ProtocolViolation as violation:
                    raise WorkerLost(f"a new worker broke the protocol: {violation}") from None
                for message in received:
                    if isinstance(message, Ready) and message.version == messages.PROTOCOL_VERSION:
                        self.layers = message.layers
                        self._check_layers()
                        self._note_start()
                        return
        if not self._child.ended.is_set():
            with trio.move_on_after(1):
                await self._child.ended.wait()
        raise WorkerLost(f"a new worker was not ready ({_status_text(self._child.status)})")

    def _check_layers(self) -> None:
        """Check the worker's report of its layers against the kernel's. Raises WorkerLost."""
        try:
            status = parse_status(os.pread(self._status, 8192, 0).decode())
        except OSError as error:
            raise WorkerLost(f"a new worker ended as soon as it was ready ({error.strerror})") from None
        for layer in self.layers:
            if layer.state == "active" and (against := contradicted(layer.name, status)):
                raise WorkerLost(f"a new worker claims the layer {layer.name}, but its {against}")

    def _note_start(self) -> None:
        """Record the CPU time and memory that its start has taken; no tenant is charged for them."""
        self._settled_cpu_s = self._cpu_at_begin_s = self.cpu_s()
        self.measure_memory()
        self._pristine_bytes = self.resident_bytes
        self.memory_bound = self._pristine_bytes + SLACK_BYTES

    def begin(self) -> None:
        """A run begins: its CPU time counts from here; what the worker used since the last run is `owed_s`."""
        self.runs += 1
        self.bytes_out = 0
        self.judging_cpu_s = 0.0
        self._cpu_at_begin_s, self._run_cpu_s = self.cpu_s(), None
        self.owed_s = max(0.0, self._cpu_at_begin_s - self._settled_cpu_s)

    def end(self) -> None:
        """The run has ended: measure it. What the worker does from here on is not counted as the run's."""
        self._run_cpu_s = self.run_cpu_s()
        self._settled_cpu_s = self._cpu_at_begin_s + self._run_cpu_s
        self.measure_memory()

    def settle(self) -> None:
        """Between runs: measure the worker, and charge what it has used since the last charge to its last turn."""
        now = self.cpu_s()
        self._measure_memory(now)
        spent, self._settled_cpu_s = now - self._settled_cpu_s, now
        if self.payer is not None and spent > 0:
            self.payer.pay(spent)

    def misdeed(self) -> str | None:
        """What it has done since its last run that an honest worker does not do, as last measured; None if nothing."""
        run_s = self.run_cpu_s()
        after_answer_s = self._settled_cpu_s - self._cpu_at_begin_s - run_s
        bound_s = AFTER_ANSWER_S + self._most_lua_bytes * AFTER_ANSWER_S_PER_BYTE + run_s * AFTER_ANSWER_RUNS
        if after_answer_s > bound_s:
            return f"computed for {after_answer_s:.2f} s after its answer"
        if self.resident_bytes > self.memory_bound:
            return f"holds {self.resident_bytes >> 20} MiB after its answer, more than {self.memory_bound >> 20}"
        return None

    def hold_memory(self) -> None:
        """Kill the worker if it holds more memory than the allocator lets any script have."""
        self.measure_memory()
        if self.resident_bytes > self.memory_bound:
            self.kill(Mark(Outcome.MEMORY_LIMIT, "memory_bytes", self.resident_bytes - self._pristine_bytes))

    def _bind(self, limits: Limits) -> None:
        self._bound_for = limits
        self._most_lua_bytes = max(self._most_lua_bytes, limits.memory_bytes)
        values = COPIES * max(limits.output_bytes, limits.http_bytes, limits.fs_bytes)
        own = self._pristine_bytes + LUA_ROUNDED_UP * self._most_lua_bytes + values + SLACK_BYTES
        self.memory_bound = max(self.memory_bound, own)

    def run_cpu_s(self) -> float:
        """CPU seconds of the present run, or of the last one."""
        if self._run_cpu_s is not None:
            return self._run_cpu_s
        return max(0.0, self.cpu_s() - self._cpu_at_begin_s)

    async def run(self, message: Run, limits: BoundLimits, sinks: Sinks) -> Verdict:
        """One run, between `begin` and `end`. Afterwards the worker has answered cleanly, or has ended and is reaped.

        Cancellation, or an exception of a sink, leaves the worker in an unknown state: it is killed.
        """
        try:
            return await self._run(message, limits, sinks)
        except BaseException:
            self.kill(Mark(Outcome.CANCELLED))
            with trio.CancelScope(shield=True):  # safe to shield: SIGKILL cannot be refused
                await self.wait()
            raise

    async def _run(self, message: Run, limits: BoundLimits, sinks: Sinks) -> Verdict:
        with trio.CancelScope(deadline=trio.current_time() + limits.values.timeout_s) as deadline:
            self._run_scope = deadline
            try:
                if limits.values is not self._bound_for:
                    self._bind(limits.values)
                self._expect_silence()
                self._conversation.begin(message, limits.values)
                await self._send(message)
                answer = await self._converse(sinks)
                if answer is not None:
                    return await self._verdict_on(answer, limits)
            except ProtocolViolation as violation:
                self.kill(Mark(Outcome.POLICY_VIOLATION, detail=f"broke the protocol: {violation}"))
            except OSError:  # EPIPE: it ended during a write; its wait status says why
                pass
        if deadline.cancelled_caught and not self._child.ended.is_set():
            self.kill(Mark(Outcome.TIMEOUT, "timeout_s"))
        cpu_s = self.run_cpu_s()
        await self._ended()
        return of_death(self.mark, self._child.status, cpu_s, limits)

    async def _verdict_on(self, answer: Done | Failed, limits: BoundLimits) -> Verdict:
        """The verdict on an answer. A large value is decoded and checked in pieces, with checkpoints between them."""
        if not isinstance(answer, Done) or len(answer.value) <= MAX_VALUES:
            return of_answer(answer, limits)
        pieces = of_large(answer, limits)
        while True:
            await trio.lowlevel.checkpoint()  # also before the first piece: cutting 16 MiB from the buffer took 10 ms
            began_s = time.thread_time()
            try:
                next(pieces)
            except StopIteration as end:
                return cast(Verdict, end.value)
            finally:
                self.judging_cpu_s += time.thread_time() - began_s

    def _expect_silence(self) -> None:
        """Check that no input is pending: it would be taken for the answer of the next run."""
        try:
            if os.read(self._child.from_worker, READ_BYTES):
                raise ProtocolViolation("the worker sent something between two runs")
        except BlockingIOError:
            pass

    def _on_end(self) -> None:
        """Cancel a run whose worker ended while it waited for a host call: the answer has no reader any more."""
        if self._run_scope is not None and self._conversation.state is State.AWAITING_REPLY:
            self._run_scope.cancel()

    async def _converse(self, sinks: Sinks) -> Done | Failed | None:
        message = await self._next(sinks)
        while isinstance(message, HostCall):  # most runs: one call at a time, which needs no task
            await self._reply(await sinks.on_call(message), sinks)
            message = await self._next(sinks)
        if not isinstance(message, HostCalls):
            return message
        failure: OSError | ProtocolViolation | None = None
        async with trio.open_nursery() as nursery:
            try:
                return await self._converse_side_by_side(message, sinks, nursery)
            except (OSError, ProtocolViolation) as error:  # raised as it is, not in a group
                failure = error
            finally:
                nursery.cancel_scope.cancel()
        raise failure

    async def _converse_side_by_side(
        self, message: HostCall | HostCalls | Done | Failed | None, sinks: Sinks, nursery: trio.Nursery
    ) -> Done | Failed | None:
        # An unbounded channel, bounded by the protocol: a call counts until its reply was sent (MAX_SIDE_BY_SIDE).
        finished, replies = trio.open_memory_channel[HostReply](math.inf)

        async def answer(number: int, call: HostCall) -> None:
            reply = await sinks.on_call(call)
            finished.send_nowait(HostReply(reply.ok, reply.value, number))

        while isinstance(message, HostCall | HostCalls):
            if isinstance(message, HostCall):
                await self._reply(await sinks.on_call(message), sinks)
            else:
                for number, name, arguments in message.calls:
                    nursery.start_soon(answer, number, HostCall(name, arguments))
                await self._reply(await replies.receive(), sinks)
            message = await self._next(sinks)
        return message

    async def _reply(self, reply: HostReply, sinks: Sinks) -> None:
        self._conversation.sent(reply)
        await self._send(reply)
        sinks.on_taken(reply)

    async def _next(self, sinks: Sinks) -> HostCall | HostCalls | Done | Failed | None:
        """The next message that is no log line or progress: those are forwarded. None when the channel closes."""
        while data := await self._read():
            self.bytes_out += len(data)
            for number, message in enumerate(self._conversation.received(data), 1):
                if number % FORWARDED_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                match message:
                    case Log():
                        if (later := sinks.on_log(message)) is not None:
                            await later
                    case Progress():
                        sinks.on_progress(message)
                    case HostCall() | HostCalls() | Done() | Failed():  # nothing may follow it
                        return message
        return None

    @property
    def awaiting(self) -> bool:
        """Whether it waits for the answer to a host call, and so computes nothing."""
        return self._conversation.state is State.AWAITING_REPLY

    def suspend(self) -> None:
        """Stop the process (SIGSTOP). It keeps its memory and uses no CPU time until `resume`."""
        self._child.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process after `suspend` (SIGCONT)."""
        self._child.signal(signal.SIGCONT)

    def kill(self, mark: Mark) -> None:
        """Send SIGKILL. Of several marks, the first stays."""
        if self.mark is None:
            self.mark = mark
        self._child.signal(signal.SIGKILL)

    async def close(self) -> None:
        """Kill it if it is alive, wait until it is reaped, close its descriptors. Cannot be cancelled half-way."""
        self.kill(Mark(Outcome.CANCELLED))
        with trio.CancelScope(shield=True):  # safe to shield: SIGKILL cannot be refused
            await self._child.ended.wait()
        self._child.close()
        os.close(self._status)
        self.closed.set()

    @property
    def alive(self) -> bool:
        return not self._child.ended.is_set()

    def cpu_s(self) -> float:
        """CPU seconds it has used since its fork; the last known figure once it was reaped."""
        try:
            return time.clock_gettime(self._cpu_clock)
        except OSError:  # reaped: its pid may soon be another process's
            return self._child.cpu_s

    def measure_memory(self) -> None:
        """Read resident bytes, and their peak (VmRSS and VmHWM of proc_pid_status(5); 8 us).

        After too little CPU time to have touched much memory, the last figures stand.
        """
        self._measure_memory(self._cpu_at_begin_s + self.run_cpu_s())

    def _measure_memory(self, cpu_s: float) -> None:
        if cpu_s - self._measured_at_cpu_s < MEASURE_EVERY_CPU_S and self.peak_memory_bytes:
            return
        self._measured_at_cpu_s = cpu_s
        try:
            text = os.pread(self._status, 4096, 0)
            self.resident_bytes, self.peak_memory_bytes = _kib(text, b"VmRSS:"), _kib(text, b"VmHWM:")
        except (OSError, ValueError):  # it has ended; the zygote's wait4 knows the peak
            self.resident_bytes, self.peak_memory_bytes = 0, self._child.peak_memory_bytes

    async def wait(self) -> None:
        """Wait until the process has ended and is reaped."""
        await self._child.ended.wait()

    async def _ended(self) -> None:
        """Wait until a worker whose channel is closed has ended. One that stays alive is killed."""
        with trio.move_on_after(EXIT_TIMEOUT_S) as scope:
            await self._child.ended.wait()
        if scope.cancelled_caught:
            self.kill(Mark(Outcome.POLICY_VIOLATION, detail="closed its channel and lived on"))
            await self._child.ended.wait()

    async def _read(self) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._child.from_worker)
            try:
                return os.read(self._child.from_worker, READ_BYTES)
            except BlockingIOError:
                continue

    async def _send(self, message: messages.ToWorker) -> None:
        if isinstance(message, HostReply) and len(message.value) > LARGE_REPLY_BYTES:
            for part in reply_parts(message):
                await self._write(part)
        else:
            await self._write(encode_frame(messages.encode(message)))

    async def _write(self, data: bytes | memoryview) -> None:
        while True:
            try:
                sent = os.write(self._child.to_worker, data)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._child.to_worker)
                continue
            if sent == len(data):
                return
            # Nearly every message is one write. A large one takes many; the rest of it is not copied each time.
            data = memoryview(data)[sent:]


def reply_parts(reply: HostReply) -> tuple[bytes, bytes, bytes]:
    """The frame of a reply in three parts; the second is the value itself, not a copy."""
    empty = messages.encode(HostReply(reply.ok, b"", reply.call))
    before, after = empty.split(b"\xc4\x00", 1)  # msgpack's empty bytes; the part before cannot contain them
    before += b"\xc6" + len(reply.value).to_bytes(4, "big")
    return encode_frame_head(len(before) + len(reply.value) + len(after)) + before, reply.value, after


def _pid_of(pidfd: int) -> int:
    """The process's pid in our namespace, whatever its own (pidfd_open(2), fdinfo)."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    raise ProcessLookupError(errno.ESRCH, "the kernel does not report its pid")


def _kib(text: bytes, field: bytes) -> int:
    start = text.index(field) + len(field)
    return int(text[start : text.index(b"kB", start)]) * 1024


def _status_text(status: int | None) -> str:
    if status is None:
        return "it did not answer"
    number = os.waitstatus_to_exitcode(status)
    return f"ended by {signal.Signals(-number).name}" if number < 0 else f"exit status {number}"

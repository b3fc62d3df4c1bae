"""The worker loop: confine, prove it, say Ready, then Run -> Done or Failed until the channel closes."""

import os
from typing import NoReturn

from sandbox import testing
from sandbox.confine import confine
from sandbox.confine.plan import Plan
from sandbox.launcher import EXIT_BROKEN
from sandbox.natives import answer, forget
from sandbox.natives.files import Files
from sandbox.vm import VM, Code, Prelude
from sandbox.wire import messages
from sandbox.wire.frame import HEADER_BYTES, encode_frame
from sandbox.wire.messages import (
    BundleRun,
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
)
from sandbox.wire.script_cache import ScriptCache

# Exit statuses of a worker: this one and EXIT_BROKEN. Any other is evidence for the supervisor.
EXIT_CHANNEL_CLOSED = 0


# Before it is ready, a worker runs a script that does nothing: this touches the memory that every run uses, and that a
# forked process must copy page by page (measured: 0.3 ms more for a fork, 0.1 less for the first run).
_REHEARSED = b"agent = { resolve = function() end }"
_REHEARSAL = Run(
    source=None, digest="", chunk_name="", root="agent", method="resolve", args=b"\x90\x80\x90\x80",
    memory_bytes=1 << 20, output_bytes=1 << 10, log_bytes=0, value_depth=1, progress=0,
)  # fmt: skip


def serve(prelude: Prelude, plan: Plan, inherited: tuple[LayerReport, ...] = ()) -> NoReturn:
    """Serve runs in a newly forked process. Never returns, and never unwinds into the zygote's code.

    `inherited` are the layers that the zygote entered.
    """
    try:
        layers = inherited + confine(plan)
        channel = _Channel(plan.fd_in, plan.fd_out)
        vm = VM(prelude)
        if not isinstance(_execute(vm, _REHEARSAL, Code(_REHEARSED, b"t"), channel), Done):
            os._exit(EXIT_BROKEN)
        vm = VM(prelude)
        scripts: ScriptCache[Code] = ScriptCache()
        channel.send(Ready(messages.PROTOCOL_VERSION, layers))
        while True:
            run = channel.receive()
            if not isinstance(run, Run):
                os._exit(EXIT_BROKEN)
            key = (run.digest, run.chunk_name)
            code = scripts.use(key) if run.source is None else prelude.text(run.source, files_of(run))
            if code is None:
                os._exit(EXIT_BROKEN)
            if run.root == testing.ROOT:
                vm = VM(prelude, tests=True)
            channel.send(_execute(vm, run, code, channel))
            # While the supervisor works on the answer: make the next state, in the still warm memory of the last one,
            # and compile the script for the cache.
            del vm
            vm = VM(prelude)
            forget()
            if run.source is not None:
                size = len(run.source) + (code.files.size if code.files else 0)
                scripts.add(key, size, prelude.compile(run.source, run.chunk_name, run.memory_bytes, code.files))
            if code.files is not None:
                prelude.compile_used(code.files, run.memory_bytes)
    except BaseException:  # a traceback would open source files: SIGSYS by seccomp
        os._exit(EXIT_BROKEN)


def files_of(run: Run) -> Files | None:
    """The files that came with a run."""
    return Files(run.modules) if isinstance(run, BundleRun) else None


def _execute(vm: VM, run: Run, code: Code, channel: "_Channel") -> Done | Failed:
    vm.begin(run, code)
    step = vm.step()
    while True:
        match step:
            case ("call", name, arguments) if name in vm.natives:
                ok, value = answer(vm.natives[name], arguments)
                vm.put(value)
                step = vm.step(ok)
            case ("call", name, arguments):
                channel.send(HostCall(name.decode(), arguments))
                reply = channel.receive()
                if not isinstance(reply, HostReply):
                    os._exit(EXIT_BROKEN)
                vm.put(reply.value)
                step = vm.step(reply.ok)
            case ("calls", packed, _):
                channel.send(HostCalls(messages.decode_calls(packed)))
                reply = channel.receive()
                if not isinstance(reply, HostReply):
                    os._exit(EXIT_BROKEN)
                vm.put(reply.value)
                step = vm.step(reply.ok, reply.call)
            case ("log", level, text):
                channel.send(Log(level.decode(), text.decode("utf-8", "replace")))
                step = vm.step()
            case ("progress", fraction, text):
                channel.send(Progress(fraction, text.decode("utf-8", "replace")))
                step = vm.step()
            case ("done", value, replaced):
                return Done(memoryview(value), replaced)
            case ("memory", _, _):
                return Failed("memory_limit", "not enough memory", "")
            case _:
                kind, message, traceback, replaced = vm.why()
                traceback = traceback.replace("in field '?'", f"in {run.root}.{run.method}")
                return Failed(kind, message, traceback, replaced)  # type: ignore[arg-type]


class _Channel:
    """Blocking frames over two pipes. The supervisor is trusted, so input is not bounded."""

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self._in, self._out = fd_in, fd_out
        self._buffer = b""

    def receive(self) -> messages.ToWorker:
        """The next message. Ends the process if the supervisor has closed the channel."""
        buffer, end = self._buffer, HEADER_BYTES
        while True:
            if len(buffer) >= HEADER_BYTES:
                end = HEADER_BYTES + int.from_bytes(buffer[:HEADER_BYTES], "big")
                if len(buffer) >= end:
                    break
            data = os.read(self._in, max(65536, end - len(buffer)))
            if not data:
                os._exit(EXIT_CHANNEL_CLOSED)
            buffer += data
        self._buffer = buffer[end:]
        return messages.decode_to_worker(buffer[HEADER_BYTES:end])

    def send(self, message: messages.FromWorker) -> None:
        data = encode_frame(messages.encode(message))
        while data:
            data = data[os.write(self._out, data) :]

"""Faults by name, to inject into a running engine: by a broken or taken-over worker, or from outside.

`INSIDE` is carried out by the worker itself, confined as always: a script whose first line names a fault makes it stop
being honest. `hostile_boot` gives the zygote workers that know them; for every other script they are like all others.
`OUTSIDE` is done to a worker from here.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import psutil
import trio

from sandbox.wire.outcome import Outcome

# What the worker does, as code that runs in it: `send(message...)` writes frames in one go, `raw` writes bytes.
_INSIDE: dict[str, str] = {
    "garbage frame": "raw(encode_frame(bytes([0xc1]) * 50)); sleep()",
    "garbage bytes": "raw(bytes([0xff]) * 100); sleep()",
    "a message to the worker": "send(HostReply(True, NIL)); sleep()",
    "oversized frame": "raw((1 << 31).to_bytes(4, 'big') + b'x' * 1000); sleep()",
    "frame beyond the output limit": "raw((run.output_bytes + (1 << 20)).to_bytes(4, 'big')); sleep()",
    "half a frame, then silence": "raw((100).to_bytes(4, 'big') + b'x' * 50); sleep()",
    "half a header, then silence": "raw(b'xx'); sleep()",
    "half a frame, then the end": "raw((100).to_bytes(4, 'big') + b'x' * 50); os._exit(0)",
    "done twice": "send(Done(NIL), Done(NIL)); sleep()",
    "done, then half a frame": "raw(frame(Done(NIL)) + b'xx'); sleep()",
    "ready twice": "send(Ready(1, ())); sleep()",
    "a host call while one is pending": "send(call, call); sleep()",
    "a log line while a host call is pending": "send(call, Log('info', 'x')); sleep()",
    "an answer while a host call is pending": "send(call, Done(NIL)); sleep()",
    "a number of a call used twice": (
        "send(HostCalls(((1, 'context.search', QUERY), (1, 'context.search', QUERY)))); sleep()"
    ),
    "a number of a call that is none": "send(HostCalls(((0, 'context.search', QUERY),))); sleep()",
    "more calls than may be under way": (
        "send(HostCalls(tuple((i, 'context.search', QUERY) for i in range(1, 66)))); sleep()"
    ),
    "waiting for no call": "send(HostCalls(())); sleep()",
    "another call while calls are pending": "send(HostCalls(((1, 'context.search', QUERY),)), call); sleep()",
    "done while a call is under way": (
        "send(HostCalls(((1, 'context.search', HOLD), (2, 'context.search', QUERY)))); channel.receive(); "
        "return Done(NIL)"
    ),
    "log flood": "while True: send(Log('info', 'x' * 1000))",
    "flood of empty log lines": "while True: send(Log('info', ''))",
    "progress flood": "while True: send(Progress(0.5, ''))",
    "progress that is no number": "send(Progress(float('nan'), '')); sleep()",
    "the end": "os._exit(0)",
    "the end with a status": "os._exit(70)",
    "a python error": "raise RuntimeError",
    "abort": "os.abort()",
    "segmentation fault": "ctypes.string_at(0)",
    "illegal system call": "os.getppid()",
    "open a file": "open('/etc/passwd')",
    "a socket": "socket.socket()",
    "a process": "os.fork()",
    "silence": "sleep()",
    "endless python": "while True: pass",
    "deafness to a large reply": "send(HostCall('context.search', QUERY)); sleep()",
    "an answer that is too large": "send(Done(BIN32 + bytes(run.output_bytes))); sleep()",
    "an answer that is not plain": "send(Done(bytes([0xd4, 1, 0]))); sleep()",
    "an answer of no value": "send(Done(b'')); sleep()",
    "an answer that is too deep": "send(Done(bytes([0x91]) * 5000 + NIL)); sleep()",
    "a claim of too little memory": "return Failed('memory_limit', 'x', '')",
    "modules": "return Done(msgspec.msgpack.encode([n for n, m in sys.modules.items() if m]))",
    "more memory than a script can have, then silence": "hoard = b'x' * (400 << 20); sleep()",
    "more memory than a script can have, then a host call": "hoard = b'x' * (400 << 20); send(held); sleep()",
    "more memory than a script can have, then work": "hoard = b'x' * (400 << 20)\n    while True: pass",
    "work after its answer": "send(Done(NIL))\n    while True: pass",
    "memory after its answer": "send(Done(NIL)); hoard = b'x' * (400 << 20); sleep()",
    "memory before its answer, and then silence": "hoard = b'x' * (400 << 20); send(Done(NIL)); sleep()",
    "a second answer later": "send(Done(NIL)); time.sleep(0.3); send(Done(msgspec.msgpack.encode('stale'))); sleep()",
}


@dataclass(frozen=True)
class Expected:
    """How a run with the fault ends, and whether that is a security event."""

    outcome: Outcome
    security_event: bool = False
    message: str = ""


_VIOLATION = Expected(Outcome.POLICY_VIOLATION, True, "stopped by the sandbox")
_LOST = Expected(Outcome.WORKER_LOST)
_TIMEOUT = Expected(Outcome.TIMEOUT, message="limits.timeout_s")

INSIDE: dict[str, Expected] = {
    "garbage frame": _VIOLATION,
    "garbage bytes": _VIOLATION,
    "a message to the worker": _VIOLATION,
    "oversized frame": _VIOLATION,
    "frame beyond the output limit": _VIOLATION,
    "half a frame, then silence": _TIMEOUT,
    "half a header, then silence": _TIMEOUT,
    "half a frame, then the end": _LOST,
    "done twice": _VIOLATION,
    "ready twice": _VIOLATION,
    "a host call while one is pending": _VIOLATION,
    "a log line while a host call is pending": _VIOLATION,
    "an answer while a host call is pending": _VIOLATION,
    "a number of a call used twice": _VIOLATION,
    "a number of a call that is none": _VIOLATION,
    "more calls than may be under way": _VIOLATION,
    "waiting for no call": _VIOLATION,
    "another call while calls are pending": _VIOLATION,
    "log flood": _VIOLATION,
    "flood of empty log lines": _VIOLATION,
    "progress flood": _VIOLATION,
    "progress that is no number": _VIOLATION,
    "the end": _LOST,
    "the end with a status": _LOST,
    "a python error": _LOST,
    "abort": _LOST,
    "segmentation fault": Expected(Outcome.WORKER_LOST, True),
    "illegal system call": _VIOLATION,
    "open a file": _VIOLATION,
    "a socket": _VIOLATION,
    "a process": _VIOLATION,
    "silence": _TIMEOUT,
    "endless python": _TIMEOUT,
    "deafness to a large reply": _TIMEOUT,
    "an answer that is too large": Expected(Outcome.OUTPUT_LIMIT, message="larger than"),
    "an answer that is not plain": Expected(Outcome.SCRIPT_ERROR, message="not plain data"),
    "an answer of no value": Expected(Outcome.SCRIPT_ERROR, message="not plain data"),
    "an answer that is too deep": Expected(Outcome.OUTPUT_LIMIT, message="deep"),
    "a claim of too little memory": Expected(Outcome.MEMORY_LIMIT, message="limits.memory_bytes"),
}

# Carried out around a clean answer, and what the log then says of the worker.
AFTER_ANSWER = {
    "work after its answer": "after its answer",
    "memory after its answer": "MiB after its answer",
}
# Ended by what the worker holds, whatever it does then.
HOARDING = tuple(name for name in _INSIDE if name.startswith("more memory than a script can have"))

_HOSTILE = """
import ctypes, os, socket, sys, time, msgspec
from sandbox import worker as honest
from sandbox.wire.frame import encode_frame
from sandbox.wire.messages import Done, Failed, HostCall, HostCalls, HostReply, Log, Progress, Ready, encode

NIL, BIN32 = bytes([0xc0]), bytes([0xc6, 0, 16, 0, 0])
QUERY = msgspec.msgpack.encode({"query": "large"})
HOLD = msgspec.msgpack.encode({"query": "hold"})
execute = honest._execute
names = {}          # of faults, by the script that asks for one: it is sent once

def frame(message):
    return encode_frame(encode(message))

def sleep():
    while True:
        time.sleep(1)

def hostile(vm, run, code, channel):
    if run.source is not None:
        names[run.digest] = run.source.partition(b"\\n")[0].decode().removeprefix("--! ")
    name = names.get(run.digest)
    if name not in FAULTS or (name in WHEN_CALLED and not run.method):
        return execute(vm, run, code, channel)
    def raw(data):
        while data:
            data = data[os.write(channel._out, data):]
    def send(*messages):
        raw(b"".join(map(frame, messages)))
    return FAULTS[name](run, raw, send, channel)

call = HostCall("context.search", msgspec.msgpack.encode({"query": "x"}))
held = HostCall("context.search", HOLD)
FAULTS = {}
"""


def hostile_boot(boot: str, when_called: Mapping[str, str] = MappingProxyType({})) -> str:
    """The zygote's boot command with workers that carry out the faults of `INSIDE`.

    Those of `when_called` (code by name) are carried out by functions that are called, and not while a script is
    described: it can be published first.
    """
    marker = "from sandbox.zygote import main"
    assert marker in boot
    defined = "".join(
        f"def fault(run, raw, send, channel):\n    {code}\nFAULTS[{name!r}] = fault\n"
        for name, code in (*_INSIDE.items(), *when_called.items())
    )
    return boot.replace(
        marker, f"{_HOSTILE}WHEN_CALLED = {sorted(when_called)!r}\n{defined}honest._execute = hostile\n{marker}"
    )


def faulty_script(name: str) -> bytes:
    """A script that makes a hostile worker carry out this fault."""
    assert name in _INSIDE
    return f"--! {name}\nagent = {{resolve = function() return 1 end}}".encode()


class Live(Protocol):
    """A worker, or what `Engine.statistics` says of one."""

    @property
    def pid(self) -> int: ...


def _signal(number: signal.Signals) -> Callable[[Live], None]:
    return lambda worker: os.kill(worker.pid, number)


def zygote_of(worker: Live) -> psutil.Process:
    """The process that forked this worker."""
    found = psutil.Process(worker.pid).parent()
    assert found is not None
    return found


def _kill_zygote(worker: Live) -> None:
    zygote_of(worker).kill()


def _stop_zygote_and_kill_worker(worker: Live) -> None:
    zygote = zygote_of(worker)
    os.kill(worker.pid, signal.SIGKILL)
    zygote.kill()


# What is done to a worker while it runs a script that would go on for ever, and how that run ends.
OUTSIDE: dict[str, tuple[Callable[[Live], None], Expected]] = {
    "SIGKILL": (_signal(signal.SIGKILL), _LOST),
    "SIGTERM": (_signal(signal.SIGTERM), _LOST),
    "SIGSTOP": (_signal(signal.SIGSTOP), _TIMEOUT),
    "SIGSEGV": (_signal(signal.SIGSEGV), Expected(Outcome.WORKER_LOST, True)),
    "SIGBUS": (_signal(signal.SIGBUS), Expected(Outcome.WORKER_LOST, True)),
    "SIGXCPU": (_signal(signal.SIGXCPU), _LOST),
    "zygote killed": (_kill_zygote, _LOST),
    "worker and zygote killed": (_stop_zygote_and_kill_worker, _LOST),
}


async def until_ended(worker: Live) -> None:
    """Until its process has ended. The engine hears of that a little later."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(worker.pid)
        try:
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)


def descendants(*pids: int) -> set[int]:
    """Every process below these, or below this one."""
    assert os.path.exists("/proc/thread-self/children"), "the kernel lacks CONFIG_PROC_CHILDREN"
    found: set[int] = set()
    below = set(pids or (os.getpid(),))
    while below := {child for pid in below for child in children(pid)} - found:
        found |= below
    return found


def children(pid: int) -> set[int]:
    """The processes that each thread of this one started (proc(5)): psutil reads a file of every process there is."""
    found: set[int] = set()
    with contextlib.suppress(OSError):  # it may end meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.update(map(int, file.read().split()))
    return found

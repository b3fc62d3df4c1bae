"""The supervisor's side of one zygote: start it, request workers, receive their exits."""

import array
import contextlib
import os
import signal
import site
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import structlog
import trio

from sandbox.wire import messages
from sandbox.wire.messages import Exited, Fork, Forked, Hello

log = structlog.get_logger("engine.zygote")

# Warm-up takes about 0.1 s on an idle machine; a zygote that is silent for this long has failed.
START_TIMEOUT_S = 20.0
FORK_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
# None of our environment, which holds secrets. Without TZ the C library opens the zone file (under seccomp: SIGSYS).
# The allocator caches the small blocks of one Lua state for the next (glibc; 6 to 10 % of a run, measured).
_ENVIRONMENT = {
    "TZ": "UTC0",
    "LANG": "C.UTF-8",
    "PATH": "/nonexistent",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=2000",
}
# Keeps typing_extensions from being imported: msgspec uses it if there is one, and works without.
_LEAN = 'import sys; sys.modules["typing_extensions"] = None'
# Collections while it imports would take 15 ms of 150; it turns them on again and makes one before it forks.
_BOOT = f"""
{_LEAN}
import gc
gc.disable()
sys.path.extend(sys.argv[5:])
from sandbox.zygote import main
main(*map(int, sys.argv[1:4]), sys.argv[4])
"""


class ZygoteLost(Exception):
    """The zygote did not start, or ended, or could not fork. The text says what was seen. A new one may succeed."""


@dataclass(eq=False, slots=True)
class Child:
    """One forked worker: three descriptors that we own until `close`, and how it ended once `ended` is set.

    `status` is a wait status; None after `ended` means that the zygote ended first, so the status was not collected.
    """

    serial: int
    pidfd: int
    to_worker: int
    from_worker: int
    open: bool = True
    ended: trio.Event = field(default_factory=trio.Event)
    on_end: Callable[[], None] | None = None  # called once, after `ended` is set
    status: int | None = None
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0

    def end(self) -> None:
        """Set `ended` and call `on_end`."""
        self.ended.set()
        if self.on_end is not None:
            self.on_end()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is alive. Cannot reach another process: a pidfd is never reused."""
        if self.open and not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                signal.pidfd_send_signal(self.pidfd, number)

    def close(self) -> None:
        """Close the descriptors. A live worker then ends, as its channel is closed."""
        self.open = False
        for fd in (self.to_worker, self.from_worker, self.pidfd):
            trio.lowlevel.notify_closing(fd)
            os.close(fd)


class Zygote:
    """A running zygote. Made by `open_zygote`; all its workers have ended when that block is left."""

    def __init__(self, control: trio.socket.SocketType) -> None:
        self._control = control
        # Invariant: exactly the workers that have arrived and not ended.
        self._children: dict[int, Child] = {}
        self._forks: dict[int, trio.MemorySendChannel[Child | str]] = {}
        self.lost = trio.Event()
        self.forks = 0
        self._retired = False
        self._done = trio.Event()

    def retire(self) -> None:
        """Let it end with its last worker: from now on, another zygote forks."""
        self._retired = True
        self._note_done()

    async def ended(self) -> None:
        """Wait until it is lost, or retired with no worker left."""
        await self._done.wait()

    def _note_done(self) -> None:
        if self.lost.is_set() or (self._retired and not self._children and not self._forks):
            self._done.set()

    async def fork(self, *, cpu_s: float, memory_bytes: int, layers_off: tuple[str, ...] = ()) -> Child:
        """A new worker, which is about to confine itself. Raises ZygoteLost."""
        self.forks += 1
        serial = self.forks
        send, receive = trio.open_memory_channel[Child | str](1)
        self._forks[serial] = send
        try:
            if self.lost.is_set():
                raise ZygoteLost("the zygote has ended")
            with trio.fail_after(FORK_TIMEOUT_S):
                await self._control.send(messages.encode(Fork(serial, cpu_s, memory_bytes, layers_off)))
                answer = await receive.receive()
        except (OSError, trio.TooSlowError, trio.EndOfChannel) as error:
            raise ZygoteLost(f"the zygote did not fork: {type(error).__name__}") from None
        finally:
            # A child whose caller was cancelled is closed, and ends by that: by _arrived if it comes later, here if it
            # came before the caller could receive it.
            self._forks.pop(serial, None)
            with contextlib.suppress(trio.WouldBlock, trio.EndOfChannel):
                if isinstance(unclaimed := receive.receive_nowait(), Child):
                    unclaimed.close()
            self._note_done()
        if isinstance(answer, str):
            raise ZygoteLost(answer)
        return answer

    async def listen(self) -> None:
        """Receive the zygote's messages until it ends; then its workers have ended, too (parent-death signal)."""
        try:
            while True:
                packet, ancillary, _, _ = await self._control.recvmsg(
                    65536, socket.CMSG_LEN(3 * array.array("i").itemsize)
                )
                if not packet:
                    break
                match messages.decode_from_zygote(packet):
                    case Forked(serial):
                        self._arrived(serial, _descriptors(ancillary))
                    case Exited() as exited:
                        self._exited(exited)
                    case Hello():
                        pass
        except OSError:
            pass  # the socket broke: the same as its end
        finally:
            self.lost.set()
            for child in list(self._children.values()):
                # The kernel kills them with their zygote; kill them here, too, so as not to return before it has.
                child.signal(signal.SIGKILL)
                child.end()
            self._children.clear()
            for send in self._forks.values():
                send.close()
            self._done.set()

    def _arrived(self, serial: int, descriptors: list[int]) -> None:
        pidfd, to_worker, from_worker = descriptors
        child = Child(serial, pidfd, to_worker, from_worker)
        self._children[serial] = child
        waiting = self._forks.get(serial)
        if waiting is None:
            child.close()
        else:
            waiting.send_nowait(child)

    def _exited(self, exited: Exited) -> None:
        child = self._children.pop(exited.serial, None)
        if child is not None:
            child.status, child.cpu_s, child.peak_memory_bytes = exited.status, exited.cpu_s, exited.peak_memory_bytes
            child.end()
            self._note_done()
        elif exited.serial in self._forks:
            self._forks[exited.serial].send_nowait(f"fork failed: {os.strerror(-exited.status)}")


@asynccontextmanager
async def open_zygote(
    *, memory_bytes: int, processes: int, layers_off: tuple[str, ...] = (), boot: str | None = None
) -> AsyncIterator[Zygote]:
    """A warmed-up zygote; at the end of the block it and all its workers have ended. Raises ZygoteLost.

    `memory_bytes` and `processes` bound the zygote and all its workers together, if a cgroup is available.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        control = trio.socket.from_stdlib_socket(ours)
        process = await trio.lowlevel.open_process(
            [
                *(sys.executable, "-I", "-S", "-c", boot or _BOOT),
                *map(str, (theirs.fileno(), memory_bytes, processes)),
                ",".join(layers_off),
                *_import_paths(),
            ],
            pass_fds=[theirs.fileno()],
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at the terminal must reach the supervisor alone
        )
        theirs.close()
        errors: deque[bytes] = deque(maxlen=20)
        failed: ZygoteLost | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_collect_errors, process, errors)
                try:
                    await _receive_hello(control, process, errors)
                except ZygoteLost as lost:
                    failed = lost
                else:
                    zygote = Zygote(control)
                    nursery.start_soon(zygote.listen)
                    yield zygote
                nursery.cancel_scope.cancel()
            if failed is not None:  # raised outside of the nursery, which would wrap it in a group
                raise failed
        finally:
            control.close()  # the zygote then ends with its workers, and removes its cgroup
            with trio.CancelScope(shield=True):  # safe to shield: bounded, and SIGKILL cannot be refused
                with trio.move_on_after(CLOSE_TIMEOUT_S):
                    await process.wait()
                process.kill()
                await process.wait()
                assert process.stderr is not None
                await process.stderr.aclose()


async def _receive_hello(control: trio.socket.SocketType, process: trio.Process, errors: deque[bytes]) -> None:
    try:
        with trio.fail_after(START_TIMEOUT_S):
            packet = await control.recv(65536)
    except trio.TooSlowError:
        raise ZygoteLost(f"the zygote said nothing for {START_TIMEOUT_S:g} s") from None
    if not packet:
        with trio.move_on_after(1):
            await process.wait()
        reason = errors[-1].decode("utf-8", "replace") if errors else f"status {process.returncode}"
        raise ZygoteLost(f"the zygote ended before it was ready: {reason}")
    hello = messages.decode_from_zygote(packet)
    if not isinstance(hello, Hello) or hello.version != messages.PROTOCOL_VERSION:
        raise ZygoteLost("the zygote speaks another version of the protocol; restart the engine after an upgrade")


async def _collect_errors(process: trio.Process, errors: deque[bytes]) -> None:
    """Keep the last lines of the zygote's standard error (a Python traceback, if any)."""
    assert process.stderr is not None
    rest = b""
    async for data in process.stderr:
        *lines, rest = (rest + data)[-65536:].split(b"\n")
        for line in filter(None, lines):
            errors.append(line)
            log.warning("zygote", text=line.decode("utf-8", "replace"))


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    for fd in fds:
        os.set_inheritable(fd, False)
    return list(fds)


def _import_paths() -> list[str]:
    """Where the zygote finds `sandbox`, `lupa` and `msgspec`: it starts without site (-S) and our own paths (-I)."""
    root = Path(messages.__file__).resolve().parents[2]
    lupa = find_spec("lupa")  # the supervisor does not load it
    assert lupa is not None
    assert lupa.origin is not None
    return list(dict.fromkeys([str(root), str(Path(lupa.origin).resolve().parents[1]), *site.getsitepackages()]))

"""A zygote: exec'd once with an empty environment and warmed up; forks a worker on request, reaps it when it ends.

Single-threaded, holds no secret, runs no script and reads no document. It talks to the supervisor over one socket and
ends with it; its workers end with the zygote (parent-death signal, and its pid namespace). Its launcher, the process
that was exec'd, enters the namespaces, forks the zygote into them, and then only waits for it and removes its cgroup.
"""

import os
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from sandbox.confine import FLEET, attempt, cgroup, privileges, process, seccomp
from sandbox.confine.plan import FleetPlan, Plan
from sandbox.wire import messages
from sandbox.wire.messages import Exited, Fork, Forked, Hello, LayerReport

# How a process ends that cannot go on: evidence for the supervisor.
EXIT_BROKEN = 70

# The work of a worker, from its plan and the layers that the zygote entered. Never returns.
Serve = Callable[[Plan, tuple[LayerReport, ...]], NoReturn]


def launch(control_fd: int, fleet: FleetPlan, warm_up: Callable[[], Serve], refused: tuple[str, ...] = ()) -> NoReturn:
    """Run the launcher, and in its child the zygote, until the supervisor closes the socket.

    `warm_up` does in advance what confinement forbids, and returns the work of a worker. `refused` is that of its Plan.
    The launcher has no parent-death signal: if the supervisor is killed, it stays until the zygote has seen the socket
    close, to clean up.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    *before, (root_name, enter_root) = FLEET
    reports = [attempt(name, apply, fleet) for name, apply in before]
    pid = os.fork()
    if pid:
        os.close(control_fd)
        os.waitpid(pid, 0)
        cgroup.remove()
        os._exit(0)
    process.die_with_parent(os.getppid())  # 0, the launcher, where the pid namespace is our own
    with suppress(OSError):  # each worker tries again, and reports why it fails
        if "privileges" not in fleet.off:
            privileges.drop_bounding_set()
        seccomp.prepare(Plan(refused=refused))
    serve = warm_up()
    reports.append(attempt(root_name, enter_root, fleet))
    control = socket.socket(fileno=control_fd)
    control.send(messages.encode(Hello(messages.PROTOCOL_VERSION)))
    _Zygote(control, serve, proc, tuple(reports), refused).run()


class _Zygote:
    def __init__(
        self, control: socket.socket, serve: Serve, proc: int, layers: tuple[LayerReport, ...], refused: tuple[str, ...]
    ) -> None:
        self._control = control
        self._serve = serve
        self._proc = proc
        self._layers = layers
        self._refused = refused
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        # Invariant: exactly the workers that are forked and not reaped, by our own copy of their pidfd.
        self._children: dict[int, tuple[int, int]] = {}  # pidfd -> (pid, serial)

    def run(self) -> NoReturn:
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._children:
                    self._reap(fd)
                else:
                    packet = self._control.recv(65536)
                    if not packet:  # the supervisor has ended: end, and every worker with us
                        os._exit(0)
                    self._fork(messages.decode_to_zygote(packet))

    def _fork(self, request: Fork) -> None:
        down_read, down_write = os.pipe()
        up_read, up_write = os.pipe()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # no memory, or too many processes: the supervisor decides
            for fd in (down_read, down_write, up_read, up_write):
                os.close(fd)
            self._control.send(messages.encode(Exited(request.serial, -(error.errno or 1), 0.0, 0)))
            return
        if pid == 0:
            try:
                self._serve(
                    Plan(
                        parent_pid=parent,
                        serial=request.serial,
                        proc=self._proc,
                        channel_in=down_read,
                        channel_out=up_write,
                        cpu_s=request.cpu_s,
                        memory_bytes=request.memory_bytes,
                        off=request.layers_off,
                        refused=self._refused,
                    ),
                    self._layers,
                )
            finally:
                os._exit(EXIT_BROKEN)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = (pid, request.serial)
        self._poll.register(pidfd, select.POLLIN)
        socket.send_fds(self._control, [messages.encode(Forked(request.serial))], [pidfd, down_write, up_read])
        for fd in (down_read, down_write, up_read, up_write):
            os.close(fd)

    def _reap(self, pidfd: int) -> None:
        pid, serial = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status, usage = os.wait4(pid, 0)
        cpu_s = usage.ru_utime + usage.ru_stime
        self._control.send(messages.encode(Exited(serial, status, cpu_s, usage.ru_maxrss * 1024)))

"""Zygotes of scripts that begin with their modules imported, which is most of a start: thousands of tests make one.

A template for each process that runs tests is started as the supervisor starts a zygote (isolated, with the
environment of one), imports what a zygote imports, and forks for each start. From there on all is as ever: the boot
command, the layers, the warm-up, the workers. Zygotes with another boot command start for real, and so do those of
tests that are marked `cold`, and of every process that a test starts.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import trio
import warm_start

from engine.workers import zygote
from engine.workers.zygote import _BOOT, _ENVIRONMENT, _LEAN

# Uses no module that `sandbox.zygote` does not import, so that a zygote has none more.
_TEMPLATE = f"""
{_LEAN}
import gc
gc.disable()
path = list(sys.path)
sys.path.extend(sys.argv[2:])
import sandbox.zygote
gc.freeze()

def begin():
    import os, signal, socket
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and this with them
    while True:
        length, descriptors, _, _ = socket.recv_fds(control, 4, 8)
        if not length:
            os._exit(0)
        packet = control.recv(int.from_bytes(length), socket.MSG_WAITALL)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            if not (pid := os.fork()):
                break
            os.write(writing, pid.to_bytes(4))
            os._exit(0)
        os.waitpid(between, 0)
        control.send(os.read(reading, 4))
        for each in (reading, writing, *descriptors):
            os.close(each)
    control.detach()
    folder, code, *words = packet.decode().split("\\0")
    os.setsid()
    os.chdir(folder)
    numbers = (0, 1, 2, int(words[0]))
    beyond = max(*numbers, *descriptors, reading, writing, int(sys.argv[1])) + 1
    for offset, each in enumerate(descriptors):
        os.dup2(each, beyond + offset)
    for offset, number in enumerate(numbers):
        os.dup2(beyond + offset, number)
    os.closerange(3, numbers[3])
    os.closerange(numbers[3] + 1, beyond + len(numbers))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[1:], sys.path[:] = words, path
    return code

exec(compile(begin(), "<string>", "exec"), {{"__name__": "__main__"}})
"""
# Whether zygotes begin warm now: `conftest.py` knows of each test whether it is marked. Those of this boot command do.
allowed = True
boot = _BOOT
_open_for_real = trio.lowlevel.open_process


class _Popen(subprocess.Popen[bytes]):
    """`subprocess.Popen` of a zygote."""

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, pass_fds: Any, *rest: Any
    ) -> None:
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = rest[5:11]  # after the folder and four others
        job = "\0".join((os.getcwd(), *args[4:]))
        with warm_start.one_at_a_time:
            self.pid = _template().start(job.encode(), [p2cread, c2pwrite, errwrite, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


@cache
def _template() -> warm_start.Template:
    code = _TEMPLATE.replace("{", "{{").replace("}", "}}")
    return warm_start.Template("-I", "-S", "-c", code, "{control}", *zygote._import_paths(), environ=_ENVIRONMENT)


async def _open_process(command: Sequence[str], **options: Any) -> trio.Process:
    if not allowed or tuple(command[:5]) != (sys.executable, "-I", "-S", "-c", boot):
        return await _open_for_real(command, **options)
    process = await trio.to_thread.run_sync(partial(_Popen, command, bufsize=0, **options))
    assert process.stderr is not None
    with process.stderr as pipe:
        return trio.Process._create(process, None, None, trio.lowlevel.FdStream(os.dup(pipe.fileno())))


def ready() -> None:
    """Begin zygotes of this process warm. Where tests look for processes and descriptors that are left, the template is
    there before."""
    with warm_start.one_at_a_time:
        _template()
    trio.lowlevel.open_process = _open_process

"""Python processes that begin with all modules of the program imported: importing them takes a second of CPU.

`Popen` and `run` take the arguments of their namesakes in `subprocess`, and `open_process` those of its namesake in
`trio.lowlevel`, with a Python command line: `-c CODE`, `-m MODULE` or the path of a script. One template for each
process that runs tests imports everything once and forks for each start, before any thread or event loop exists in it.
The new process has its own streams, folder, environment, arguments and `sys.path`, and is a child of the test, which
waits for it and signals it as any other.

Tests about the start itself (imports, signals during them, limits, what shells do) start the program for real.
"""

import atexit
import ctypes
import gc
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import psutil
import trio

ROOT = Path(__file__).resolve().parents[1]
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_LENGTH = 4


# ---- the test's side --------------------------------------------------------------------------------------------


class Template:
    """A process that forks, for the rest of the tests of this process."""

    def __init__(self, *words: str, environ: dict[str, str]) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *(word.format(control=theirs.fileno()) for word in words)],
                pass_fds=[theirs.fileno()], env=environ, cwd=ROOT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        _templates.append(self)
        atexit.register(self._end)

    def _end(self) -> None:
        self._ours.close()
        self._process.wait()

    def start(self, data: bytes, descriptors: list[int]) -> int:
        """The process id of a new child of this process."""
        _adopt_orphans(True)
        try:
            socket.send_fds(self._ours, [len(data).to_bytes(_LENGTH)], descriptors)
            self._ours.sendall(data)
            # By now it is no child of the template's child any more, which has ended.
            return int.from_bytes(_received(self._ours, _LENGTH))
        finally:
            _adopt_orphans(False)


def _adopt_orphans(whether: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(whether), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _received(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise EOFError("the template ended")
    return data


_templates: list[Template] = []
one_at_a_time = threading.Lock()  # tests start processes from threads of theirs


@cache
def _template() -> Template:
    without_path = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return Template(__file__, "{control}", environ=without_path)


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen` of a Python command line."""

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, pass_fds: Any, cwd: Any, env: Any,
        startupinfo: Any, creationflags: Any, shell: bool, p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int,
        errread: int, errwrite: int, restore_signals: bool, gid: Any, gids: Any, uid: Any, umask: int,
        start_new_session: bool, process_group: int = -1,
    ) -> None:  # fmt: skip
        python, *words = map(os.fspath, args)
        assert python == sys.executable, "only Python command lines can begin warm"
        assert not shell
        assert preexec_fn is executable is gid is gids is uid is None
        streams = [given if given != -1 else number for number, given in enumerate((p2cread, c2pwrite, errwrite))]
        job = {
            "words": words,
            "cwd": os.fspath(cwd) if cwd is not None else os.getcwd(),
            "environ": dict(os.environ if env is None else env),
            "session": start_new_session,
            "group": process_group,
            "passed": list(pass_fds),
        }
        with one_at_a_time:
            self.pid = _template().start(json.dumps(job).encode(), [*streams, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


def run(
    words: list[Any], *, input: Any = None, capture_output: bool = False, timeout: float | None = None,
    check: bool = False, **options: Any,
) -> "subprocess.CompletedProcess[Any]":  # fmt: skip
    """`subprocess.run` of a Python command line."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(words, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(words, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


async def open_process(command: Sequence[Any], **options: Any) -> trio.Process:
    """`trio.lowlevel.open_process` of a Python command line."""
    # The template takes a second to start, which other tasks do not wait for.
    process = await trio.to_thread.run_sync(partial(Popen, command, bufsize=0, **options))
    streams = []
    for pipe in (process.stdin, process.stdout, process.stderr):
        streams.append(None if pipe is None else trio.lowlevel.FdStream(os.dup(pipe.fileno())))
        if pipe is not None:
            pipe.close()
    return trio.Process._create(process, *streams)  # the only way to wait for a process that is there already


@asynccontextmanager
async def running(command: Sequence[Any], **options: Any) -> AsyncIterator[trio.Process]:
    """A process that `open_process` starts, until the end of the block."""
    process = await open_process(command, **options)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):  # safe to shield: it has been killed
            await process.wait()
            for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
                await stream.aclose()


def children(*, recursive: bool = False) -> list[psutil.Process]:
    """`psutil.Process().children` without the templates, which stay for later tests. Zombies are among them."""
    kept = [each._process.pid for each in _templates]
    return [each for each in psutil.Process().children(recursive=recursive) if each.pid not in kept]


def ready() -> None:
    """Start the template now, where it would count as what a test leaves behind."""
    with one_at_a_time:
        _template()


# ---- the template's side ----------------------------------------------------------------------------------------


def _import_everything() -> None:
    """The modules of the supervisor and the command line, but for the one where the program begins."""
    from importlib import import_module
    from pkgutil import walk_packages

    for package in ("engine", "knowledge", "storage", "control", "agents", "server", "cli"):
        for found in walk_packages([str(ROOT / package)], f"{package}."):
            if found.name != "cli.main":
                import_module(found.name)


def _next_job(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    length, descriptors, _, _ = socket.recv_fds(control, _LENGTH, 250)
    if not length:
        return None
    job: dict[str, Any] = json.loads(_received(control, int.from_bytes(length)))
    return job, descriptors


def _forked(control: socket.socket) -> dict[str, Any] | None:
    """Fork for each job; returns the job in the new process, and nothing in the template when the tests are over."""
    while (found := _next_job(control)) is not None:
        job, descriptors = found
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid == 0:
                _place(descriptors, job["passed"])
                return job
            os.write(writing, pid.to_bytes(_LENGTH))
            os._exit(0)
        os.waitpid(between, 0)
        control.sendall(os.read(reading, _LENGTH))
        for each in (reading, writing, *descriptors):
            os.close(each)
    return None


def _place(descriptors: list[int], passed: list[int]) -> None:
    """Give each descriptor its number, and close all others."""
    numbers = [0, 1, 2, *passed]
    beyond = max(*numbers, *descriptors) + 1
    os.closerange(beyond, os.sysconf("SC_OPEN_MAX"))
    for offset, each in enumerate(descriptors):
        os.dup2(each, beyond + offset)
    for offset, number in enumerate(numbers):
        os.dup2(beyond + offset, number)
    for number in range(3, beyond + len(descriptors)):
        if number not in passed:
            try:
                os.close(number)
            except OSError:
                continue


def _open_streams() -> None:
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(  # type: ignore[misc]
        io.BufferedReader(io.FileIO(0, "rb", closefd=False)), "utf-8"
    )
    for number, name in ((1, "stdout"), (2, "stderr")):
        errors = getattr(sys, name).errors  # by the locale, which is that of the tests
        binary = io.BufferedWriter(io.FileIO(number, "wb", closefd=False))
        stream = io.TextIOWrapper(binary, "utf-8", errors, line_buffering=number == 2 or os.isatty(number))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _as_itself(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Report without the frame of this module."""
    sys.__excepthook__(kind, error.with_traceback(traceback and traceback.tb_next), None)


def _begin(job: dict[str, Any], path: list[str]) -> tuple[Any, dict[str, Any]]:
    """Make this the process that was asked for; returns its program, and the namespace of it."""
    if job["session"]:
        os.setsid()
    if job["group"] not in (-1, None):
        os.setpgid(0, job["group"])
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environ"])
    _open_streams()
    sys.excepthook = _as_itself
    main = ModuleType("__main__")
    kind, *words = job["words"]
    extra = [os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    if kind == "-c":
        sys.path[:] = ["", *extra, *path]
        code, sys.argv = compile(words[0], "<string>", "exec"), ["-c", *words[1:]]
    elif kind == "-m":
        from importlib.util import find_spec

        sys.path[:] = [os.getcwd(), *extra, *path]
        sys.modules.pop(words[0], None)
        spec = find_spec(words[0])
        assert spec is not None
        assert spec.origin is not None
        code, sys.argv = spec.loader.get_code(words[0]), [spec.origin, *words[1:]]  # type: ignore[union-attr]
        main.__spec__, main.__package__, main.__file__ = spec, spec.parent, spec.origin
    else:
        sys.path[:] = [os.path.dirname(os.path.abspath(kind)), *extra, *path]
        code, sys.argv = compile(Path(kind).read_bytes(), kind, "exec"), [kind, *words]
        main.__file__ = kind
    sys.modules["__main__"] = main
    return code, main.__dict__


if __name__ == "__main__":
    _control, _path = socket.socket(fileno=int(sys.argv[1])), sys.path[1:]
    # Ctrl-C at the terminal of the tests ends them, and this with them; the new processes hear it again.
    _hearing = signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = [str(ROOT), *_path]
    _import_everything()
    gc.collect()
    gc.freeze()  # the children share these pages; a collection would write to each of them
    if (_job := _forked(_control)) is not None:
        signal.signal(signal.SIGINT, _hearing)
        _control.detach()
        _code, _names = _begin(_job, _path)
        exec(_code, _names)

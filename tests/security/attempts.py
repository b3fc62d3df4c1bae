"""What a worker whose Lua layer has been broken out of would try, each in a confined process of its own.

`ATTEMPTS` is the table: one entry a system call (or a use of one), with what must come of it under every layer and
without any. Run as a program, this file takes jobs as JSON on its standard input, makes one process for each,
confined as a worker is but for the layers that the job switches off, and prints how each ended.
"""

import ctypes
import errno
import json
import mmap
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as a program it finds the project by its own place
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sandbox.confine import confine, empty_root, namespaces
from sandbox.confine.plan import FleetPlan, Plan

OWN_LAYERS = ("process", "privileges", "no_new_privs", "landlock", "rlimits", "mdwe", "seccomp")
FLEET_LAYERS = {"namespaces": namespaces.apply, "empty_root": empty_root.apply}
PATIENCE_S = 20.0
FD_IN, FD_OUT, FD_STATUS, FD_SECRET, FD_FILE = 3, 4, 5, 9, 10
AS_USER = 65534
EXEC_WORKED = 42
SIGCHLD = 17

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


@dataclass(slots=True)
class World:
    """What an attempt may aim at, made before the process is confined."""

    folder: Path
    tcp_port: int
    abstract: bytes
    victim: int
    # Filled in the process itself, before confinement.
    code: Any = None
    page: int = 0
    keep: list[Any] = field(default_factory=list)

    @property
    def secret(self) -> bytes:
        return bytes(self.folder / "secret")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One thing to try. `full` and `control`: "ok", an errno, or a signal; control None: never tried unconfined."""

    run: Callable[[World], str]
    full: str = "SIGSYS"
    control: str | None = "ok"


ATTEMPTS: dict[str, Attempt] = {}


def _attempt(name: str, full: str = "SIGSYS", control: str | None = "ok") -> Callable[[Callable[[World], str]], None]:
    def add(run: Callable[[World], str]) -> None:
        ATTEMPTS[name] = Attempt(run, full, control)

    return add


def _call(number: int, *arguments: Any) -> str:
    """A raw system call: "ok" or the errno. In a process that it made by copying us, ends that."""
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = _libc.syscall(ctypes.c_long(number), *converted)
    return "ok" if result >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")


def _copying(number: int, *arguments: Any) -> str:
    """As `_call`, for the calls that return twice."""
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = _libc.syscall(ctypes.c_long(number), *converted)
    if result == 0:
        os._exit(0)
    return "ok" if result > 0 else errno.errorcode.get(ctypes.get_errno(), "?")


def _python(action: Callable[[], object]) -> str:
    """Something in Python's own terms: "ok" or the errno."""
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "?")
    return "ok"


def _cpu_clock(pid: int) -> int:
    """The number of a process's CPU clock (clock_getcpuclockid(3))."""
    return (~pid << 3) | 2


def _raw(name: str, number: int, *arguments: Any, full: str = "SIGSYS", control: str | None = None) -> None:
    ATTEMPTS[name] = Attempt(lambda _: _call(number, *arguments), full, control)


# ---- files ------------------------------------------------------------------------------------------------------


@_attempt("open")
def _(world: World) -> str:
    return _call(2, world.secret, os.O_RDONLY)


@_attempt("openat")
def _(world: World) -> str:
    return _call(257, -100, world.secret, os.O_RDONLY)


@_attempt("openat2")
def _(world: World) -> str:
    return _call(437, -100, world.secret, (ctypes.c_uint64 * 3)(), 24)


@_attempt("creat")
def _(world: World) -> str:
    return _call(85, bytes(world.folder / "made"), 0o600)


@_attempt("open as Python does")
def _(world: World) -> str:
    return _python(lambda: open(world.secret).close())


@_attempt("list a folder as Python does")
def _(world: World) -> str:
    return _python(lambda: os.listdir(world.folder))


@_attempt("stat")
def _(world: World) -> str:
    return _call(4, world.secret, ctypes.create_string_buffer(256))


@_attempt("newfstatat")
def _(world: World) -> str:
    return _call(262, -100, world.secret, ctypes.create_string_buffer(256), 0)


@_attempt("statx")
def _(world: World) -> str:
    return _call(332, -100, world.secret, 0, 0xFFF, ctypes.create_string_buffer(256))


@_attempt("access")
def _(world: World) -> str:
    return _call(21, world.secret, os.R_OK)


@_attempt("readlink")
def _(world: World) -> str:
    return _call(89, bytes(world.folder / "link"), ctypes.create_string_buffer(64), 64)


@_attempt("chmod")
def _(world: World) -> str:
    return _call(90, world.secret, 0o600)


@_attempt("fchmodat")
def _(world: World) -> str:
    return _call(268, -100, world.secret, 0o600)


@_attempt("chown to oneself")
def _(world: World) -> str:
    return _call(92, world.secret, os.getuid(), os.getgid())


@_attempt("mkdir")
def _(world: World) -> str:
    return _call(83, bytes(world.folder / "new"), 0o700)


@_attempt("unlink")
def _(world: World) -> str:
    return _call(87, bytes(world.folder / "victim"))


@_attempt("unlinkat")
def _(world: World) -> str:
    return _call(263, -100, bytes(world.folder / "victim"), 0)


@_attempt("rename")
def _(world: World) -> str:
    return _call(82, bytes(world.folder / "victim"), bytes(world.folder / "moved"))


@_attempt("symlink")
def _(world: World) -> str:
    return _call(88, b"secret", bytes(world.folder / "another"))


@_attempt("link")
def _(world: World) -> str:
    return _call(86, bytes(world.folder / "victim"), bytes(world.folder / "second"))


@_attempt("truncate")
def _(world: World) -> str:
    return _call(76, bytes(world.folder / "victim"), 1)


@_attempt("chdir")
def _(world: World) -> str:
    return _call(80, bytes(world.folder))


@_attempt("utimensat")
def _(world: World) -> str:
    return _call(280, -100, world.secret, None, 0)


_raw("getcwd", 79, ctypes.create_string_buffer(4096), 4096, control="ok")
_raw("umask", 95, 0o77, control="ok")
_raw("chroot", 161, b"/")
_raw("mount", 165, b"none", b"/nonexistent", b"tmpfs", 0, None)
_raw("umount2", 166, b"/nonexistent", 0)
_raw("pivot_root", 155, b"/nonexistent", b"/nonexistent")
_raw("open_tree", 428, -100, b"/", 0)
_raw("fsopen", 430, b"tmpfs", 0)
_raw("name_to_handle_at", 303, -100, b"/", None, None, 0)
_raw("open_by_handle_at", 304, -100, None, 0)
_raw("inotify_init1", 294, 0, control="ok")
_raw("fanotify_init", 300, 0, 0)
_raw("mknod", 133, b"/nonexistent/node", 0o600, 0)
_raw("setxattr", 188, b"/nonexistent", b"user.x", b"", 0, 0)
_raw("quotactl", 179, 0, None, 0, None)
_raw("swapon", 167, b"/nonexistent", 0)
_raw("acct", 163, b"/nonexistent")

# ---- descriptors ------------------------------------------------------------------------------------------------


@_attempt("read the channel", full="ok")
def _(world: World) -> str:
    return _python(lambda: os.read(FD_IN, 4))


@_attempt("read an inherited descriptor")
def _(world: World) -> str:
    return _python(lambda: os.read(FD_SECRET, 4))


@_attempt("read descriptor 0", control=None)
def _(world: World) -> str:
    return _python(lambda: os.read(0, 1))


@_attempt("write to descriptor 2", full="EBADF", control=None)
def _(world: World) -> str:
    return _python(lambda: os.write(2, b"panic"))


@_attempt("write to descriptor 1", full="EBADF", control=None)
def _(world: World) -> str:
    return _python(lambda: os.write(1, b"text"))


@_attempt("write to the reading end", full="EBADF", control="EBADF")
def _(world: World) -> str:
    return _python(lambda: os.write(FD_IN, b"text"))


@_attempt("write to an inherited file", full="EBADF")
def _(world: World) -> str:
    return _python(lambda: os.write(FD_FILE, b"text"))


@_attempt("pread64 of the closed status file", full="EBADF", control=None)
def _(world: World) -> str:
    return _python(lambda: os.pread(FD_STATUS, 4, 0))


@_attempt("open sixteen files", control="ok")
def _(world: World) -> str:
    return _python(lambda: [os.open(world.secret, os.O_RDONLY) for _ in range(16)])


_raw("pread64 of the channel", 17, FD_IN, ctypes.create_string_buffer(4), 4, 0, control="ESPIPE")
_raw("close of the channel", 3, FD_IN, control="ok")
_raw("readv", 19, FD_IN, None, 0, control="ok")
_raw("writev", 20, FD_OUT, None, 0, control="ok")
_raw("pwrite64", 18, FD_OUT, b"x", 1, 0, control="ESPIPE")
_raw("lseek", 8, FD_IN, 0, 0, control="ESPIPE")
_raw("fstat", 5, FD_IN, ctypes.create_string_buffer(256), control="ok")
_raw("pipe", 22, (ctypes.c_int * 2)(), control="ok")
_raw("pipe2", 293, (ctypes.c_int * 2)(), 0, control="ok")
_raw("dup", 32, FD_OUT, control="ok")
_raw("dup2", 33, FD_OUT, 0, control="ok")
_raw("dup3", 292, FD_OUT, 0, 0, control="ok")
_raw("fcntl F_GETFL", 72, FD_OUT, 3, control="ok")
_raw("fcntl F_SETOWN", 72, FD_IN, 8, 1, control=None)
_raw("ioctl FIONREAD", 16, FD_IN, 0x541B, ctypes.byref(ctypes.c_int()), control="ok")
_raw("ioctl TIOCSTI", 16, 0, 0x5412, b"x")
_raw("splice", 275, FD_IN, None, FD_OUT, None, 0, 0, control="ok")
_raw("sendfile", 40, FD_OUT, FD_IN, None, 0, control=None)
_raw("vmsplice", 278, FD_OUT, None, 0, 0, control="ok")
_raw("poll", 7, None, 0, 0, control="ok")
_raw("epoll_create1", 291, 0, control="ok")
_raw("eventfd2", 290, 0, 0, control="ok")
_raw("signalfd4", 289, -1, ctypes.create_string_buffer(8), 8, 0, control="ok")
_raw("timerfd_create", 283, 1, 0, control="ok")
_raw("memfd_create", 319, b"x", 0, control="ok")
_raw("memfd_secret", 447, 0)
_raw("userfaultfd", 323, 0)
_raw("io_uring_setup", 425, 1, ctypes.create_string_buffer(120))
_raw("io_setup", 206, 1, None)
_raw("close_range", 436, 100, 200, 0, control="ok")

# ---- network ----------------------------------------------------------------------------------------------------


@_attempt("connect over TCP")
def _(world: World) -> str:
    def connect() -> None:
        with socket.socket() as sock:
            sock.connect(("127.0.0.1", world.tcp_port))

    return _python(connect)


@_attempt("bind over TCP")
def _(world: World) -> str:
    def bind() -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))

    return _python(bind)


@_attempt("send over UDP")
def _(world: World) -> str:
    def send() -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.sendto(b"x", ("127.0.0.1", world.tcp_port))

    return _python(send)


@_attempt("connect to an abstract Unix socket")
def _(world: World) -> str:
    def connect() -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(world.abstract)

    return _python(connect)


_raw("socket TCP", 41, socket.AF_INET, socket.SOCK_STREAM, 0, control="ok")
_raw("socket UDP", 41, socket.AF_INET, socket.SOCK_DGRAM, 0, control="ok")
_raw("socket Unix", 41, socket.AF_UNIX, socket.SOCK_STREAM, 0, control="ok")
_raw("socket netlink", 41, 16, socket.SOCK_RAW, 0)
_raw("socket vsock", 41, 40, socket.SOCK_STREAM, 0)
_raw("socketpair", 53, socket.AF_UNIX, socket.SOCK_STREAM, 0, (ctypes.c_int * 2)(), control="ok")
_raw("connect of no socket", 42, FD_OUT, None, 0, control="ENOTSOCK")
_raw("sendmsg", 46, FD_OUT, None, 0, control="ENOTSOCK")
_raw("recvmsg", 47, FD_IN, None, 0, control="ENOTSOCK")
_raw("accept4", 288, FD_IN, None, None, 0, control="ENOTSOCK")

# ---- processes --------------------------------------------------------------------------------------------------


@_attempt("execve")
def _(world: World) -> str:
    return _python(lambda: os.execv("/bin/sh", ["sh", "-c", f"exit {EXEC_WORKED}"]))


@_attempt("execveat")
def _(world: World) -> str:
    argv = (ctypes.c_char_p * 4)(b"sh", b"-c", b"exit %d" % EXEC_WORKED, None)
    return _call(322, -100, b"/bin/sh", argv, None, 0)


@_attempt("execve of a set-uid program", control=None)
def _(world: World) -> str:
    os.dup2(FD_OUT, 1)
    return _python(lambda: os.execv(world.folder / "id", ["id", "-u"]))


@_attempt("fork")
def _(world: World) -> str:
    return _copying(57)


@_attempt("fork as Python does")
def _(world: World) -> str:
    def fork() -> None:
        if os.fork() == 0:
            os._exit(0)

    return _python(fork)


# Never unconfined: both processes would use one stack.
@_attempt("vfork", control=None)
def _(world: World) -> str:
    return _copying(58)


@_attempt("clone")
def _(world: World) -> str:
    return _copying(56, SIGCHLD, 0, 0, 0, 0)


@_attempt("clone3")
def _(world: World) -> str:
    arguments = (ctypes.c_uint64 * 11)()
    arguments[4] = SIGCHLD
    return _copying(435, arguments, 88)


@_attempt("start a thread")
def _(world: World) -> str:
    import _thread

    _thread.start_new_thread(lambda: None, ())
    return "ok"


@_attempt("kill another process")
def _(world: World) -> str:
    return _call(62, world.victim, signal.SIGURG)


@_attempt("kill oneself")
def _(world: World) -> str:
    return _call(62, os.getpid(), 0)


@_attempt("kill everything", control=None)
def _(world: World) -> str:
    return _call(62, -1, 0)


@_attempt("tkill")
def _(world: World) -> str:
    return _call(200, os.getpid(), 0)


@_attempt("tgkill of another process")
def _(world: World) -> str:
    return _call(234, world.victim, world.victim, signal.SIGURG)


@_attempt("tgkill of another process with SIGABRT", control=None)
def _(world: World) -> str:
    return _call(234, world.victim, world.victim, signal.SIGABRT)


@_attempt("tgkill of oneself with another signal")
def _(world: World) -> str:
    return _call(234, os.getpid(), os.getpid(), 0)


@_attempt("abort", full="SIGABRT", control="SIGABRT")
def _(world: World) -> str:
    os.abort()


@_attempt("rt_sigqueueinfo", control=None)
def _(world: World) -> str:
    return _call(129, world.victim, 0, ctypes.create_string_buffer(128))


@_attempt("pidfd_open")
def _(world: World) -> str:
    return _call(434, world.victim, 0)


@_attempt("clock_gettime of another process's CPU time")
def _(world: World) -> str:
    return _call(228, _cpu_clock(world.victim), ctypes.create_string_buffer(16))


@_attempt("clock_gettime of another thread's CPU time", control=None)
def _(world: World) -> str:
    return _call(228, _cpu_clock(world.victim) | 4, ctypes.create_string_buffer(16))


@_attempt("clock_gettime of its own CPU time by number")
def _(world: World) -> str:
    return _call(228, _cpu_clock(os.getpid()), ctypes.create_string_buffer(16))


@_attempt("clock_gettime of its own CPU time", full="ok")
def _(world: World) -> str:
    return _python(time.process_time)


@_attempt("clock_nanosleep on another process's CPU time")
def _(world: World) -> str:
    return _call(230, _cpu_clock(world.victim), 1, ctypes.create_string_buffer(16), None)


@_attempt("clock_nanosleep", full="ok")
def _(world: World) -> str:
    return _call(230, 1, 1, ctypes.create_string_buffer(16), None)


@_attempt("futex that looks a process up", control="EAGAIN")
def _(world: World) -> str:
    owned = ctypes.c_uint32(world.victim)
    return _call(202, ctypes.byref(owned), 8, 0, None, None, 0)


@_attempt("ptrace attach", control=None)
def _(world: World) -> str:
    return _call(101, 16, world.victim, None, None)


@_attempt("process_vm_readv of oneself")
def _(world: World) -> str:
    return _call(310, os.getpid(), None, 0, None, 0, 0)


@_attempt("process_vm_writev of oneself")
def _(world: World) -> str:
    return _call(311, os.getpid(), None, 0, None, 0, 0)


_raw("ptrace traceme", 101, 0, 0, None, None, control="ok")
_raw("pidfd_getfd", 438, FD_OUT, 0, 0)
_raw("pidfd_send_signal", 424, FD_OUT, 0, None, 0)
_raw("process_madvise", 440, FD_OUT, None, 0, 0, 0)
_raw("wait4", 61, -1, None, 1, None, control="ECHILD")
_raw("getppid", 110, control="ok")
_raw("getuid", 102, control="ok")
_raw("setuid 0", 105, 0)
_raw("setresuid 0", 117, 0, 0, 0)
_raw("setgroups", 116, 0, None)
_raw("setsid", 112)
_raw("setpgid", 109, 0, 0, control="ok")
_raw("setpriority", 141, 0, 0, 0, control="ok")
_raw("sched_setaffinity", 203, 0, 8, ctypes.create_string_buffer(b"\xff" * 8))
_raw("sched_setscheduler", 144, 0, 0, ctypes.create_string_buffer(8), control="ok")
_raw("capset", 126, None, None)
_raw("capget", 125, None, None)
_raw("unshare", 272, 0x10000000)
_raw("setns", 308, FD_OUT, 0)
_raw("prctl PR_SET_DUMPABLE", 157, 4, 1, 0, 0, 0, control="ok")
_raw("prctl PR_SET_PDEATHSIG", 157, 1, 0, 0, 0, 0, control="ok")
_raw("prctl PR_SET_NAME", 157, 15, b"x", 0, 0, 0, control="ok")
_raw("arch_prctl", 158, 0x1003, ctypes.create_string_buffer(8), control="ok")
_raw("personality", 135, 0xFFFFFFFF, control="ok")
_raw("setrlimit", 160, resource.RLIMIT_CPU, (ctypes.c_uint64 * 2)(1 << 40, 1 << 40))
_raw("prlimit64", 302, 0, resource.RLIMIT_CPU, None, (ctypes.c_uint64 * 2)(), control="ok")
_raw("getrlimit", 97, resource.RLIMIT_CPU, (ctypes.c_uint64 * 2)(), control="ok")
_raw("seccomp", 317, 0, 0, None)
_raw("landlock_create_ruleset", 444, None, 0, 1)
_raw("modify_ldt", 154, 0, None, 0)
_raw("rseq", 334, None, 0, 0, 0)
_raw("membarrier", 324, 0, 0, 0)
_raw("kcmp", 312, 0, 0, 0, 0, 0)

# ---- memory -----------------------------------------------------------------------------------------------------

_RW, _RX, _RWX, _PRIVATE, _NORESERVE = 3, 5, 7, 0x22, 0x4022


@_attempt("mprotect PROT_EXEC")
def _(world: World) -> str:
    return _call(10, world.page, 4096, _RX)


@_attempt("mprotect", full="ok")
def _(world: World) -> str:
    return _call(10, world.page, 4096, 1)


@_attempt("pkey_mprotect PROT_EXEC")
def _(world: World) -> str:
    return _call(329, world.page, 4096, _RX, -1)


@_attempt("madvise", full="ok")
def _(world: World) -> str:
    return _call(28, world.page, 4096, 4)


_raw("mmap PROT_EXEC", 9, 0, 4096, _RX, _PRIVATE, -1, 0, control="ok")
_raw("mmap writable and PROT_EXEC", 9, 0, 4096, _RWX, _PRIVATE, -1, 0, control="ok")
_raw("mmap", 9, 0, 4096, _RW, _PRIVATE, -1, 0, full="ok", control="ok")
_raw("mmap of 2 GiB", 9, 0, 2 << 30, _RW, _NORESERVE, -1, 0, full="ENOMEM", control="ok")
_raw("shmget", 29, 0, 4096, 0o600)
_raw("shmat", 30, 0, None, 0)
_raw("msgget", 68, 0, 0o600)
_raw("semget", 64, 0, 1, 0o600)
_raw("mq_open", 240, b"x", 0, 0, None)
_raw("mlock", 149, 0, 0, control="ok")
_raw("mlockall", 151, 0)
_raw("remap_file_pages", 216, 0, 0, 0, 0, 0)
_raw("mbind", 237, 0, 0, 0, None, 0, 0)
_raw("move_pages", 279, 0, 0, None, None, None, 0)

# ---- the kernel and the machine ---------------------------------------------------------------------------------

_raw("bpf", 321, 0, None, 0)
_raw("keyctl", 250, 0, -3, 0)
_raw("add_key", 248, b"user", b"x", b"y", 1, -3)
_raw("perf_event_open", 298, None, 0, -1, -1, 0)
_raw("uname", 63, ctypes.create_string_buffer(400), control="ok")
_raw("sysinfo", 99, ctypes.create_string_buffer(128), control="ok")
_raw("times", 100, None, control="ok")
_raw("getrusage", 98, 0, ctypes.create_string_buffer(200), control="ok")
_raw("nanosleep", 35, (ctypes.c_long * 2)(0, 1), None, control="ok")
_raw("pause", 34)
_raw("alarm", 37, 0, control="ok")
_raw("setitimer", 38, 0, None, None)
_raw("timer_create", 222, 0, None, None)
_raw("syslog", 103, 10, None, 0)
_raw("sethostname", 170, None, 1 << 20)
_raw("settimeofday", 164, None, None)
_raw("clock_settime", 227, 0, None)
_raw("adjtimex", 159, None)
_raw("reboot", 169, 0, 0, 0, None)
_raw("kexec_load", 246, 0, 0, None, 0)
_raw("init_module", 175, None, 0, None)
_raw("finit_module", 313, FD_OUT, None, 0)
_raw("iopl", 172, 0)
_raw("ioperm", 173, 0, 0, 0)
_raw("a number that does not exist", 9999, control="ENOSYS")
_raw("a negative number", -2, control="ENOSYS")
_raw("x32 getpid", 0x40000000 | 39, control=None)
_raw("x32 openat", 0x40000000 | 257, -100, b"/", 0, control=None)


# What is allowed, beside the reading and writing above: what computing needs.
_raw("getpid", 39, full="ok")
_raw("gettid", 186, full="ok")
_raw("getrandom", 318, ctypes.create_string_buffer(8), 8, 0, full="ok")
_raw("sched_yield", 24, full="ok")
_raw("clock_gettime", 228, 1, (ctypes.c_long * 2)(), full="ok")
_raw("clock_nanosleep", 230, 1, 0, (ctypes.c_long * 2)(0, 1), None, full="ok")
_raw("futex", 202, ctypes.byref(ctypes.c_int()), 129, 1, None, None, 0, full="ok")
_raw("brk", 12, 0, full="ok")
_raw("rt_sigprocmask", 14, 0, None, None, 8, full="ok")
_raw("sigaltstack", 131, None, None, full="ok")


@_attempt("int 0x80", control=None)
def _(world: World) -> str:
    # getpid by its 32-bit number. Where the kernel has no 32-bit calls this is a fault, with or without a filter.
    return "ok" if world.code() > 0 else "?"


@_attempt("int 0x80 open", control=None)
def _(world: World) -> str:
    world.keep[0][1:5] = (5).to_bytes(4, "little")
    world.code()
    return "ok"


@_attempt("burn CPU time", full="SIGKILL", control=None)
def _(world: World) -> str:
    deadline = time.monotonic() + PATIENCE_S - 5
    while time.monotonic() < deadline:
        pass
    return "ok"


@_attempt("tell dumpable", control=None)
def _(world: World) -> str:
    return str(_libc.prctl(3, 0, 0, 0, 0))


@_attempt("tell the parent-death signal", control=None)
def _(world: World) -> str:
    number = ctypes.c_int()
    _libc.prctl(2, ctypes.byref(number), 0, 0, 0)
    return str(number.value)


# ---- the machinery ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt, the worker's layers that are off for it, the fleet's that are on, and whether root steps down."""

    name: str
    off: tuple[str, ...] = ()
    fleet: tuple[str, ...] = ()
    as_user: bool = False


def _in_child(job: Job, world: World, parent: int, channel: tuple[int, int]) -> None:
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    os.dup2(proc, 200)
    os.dup2(channel[0], 201)
    os.dup2(channel[1], 202)
    os.dup2(os.open(world.secret, os.O_RDONLY), 203)
    os.dup2(os.open(world.folder / "open", os.O_WRONLY | os.O_APPEND), 204)
    os.dup2(os.open("/proc/self/status", os.O_RDONLY), 205)
    # Where the layer `process` puts them; without it they are there all the same.
    for place, fd in ((FD_IN, 201), (FD_OUT, 202), (FD_STATUS, 205), (FD_SECRET, 203), (FD_FILE, 204)):
        os.dup2(fd, place)
    code = mmap.mmap(-1, 4096, prot=_RWX)
    code[:8] = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20; int 0x80; ret
    world.keep = [code]
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    world.code = ctypes.CFUNCTYPE(ctypes.c_int)(address)
    page = mmap.mmap(-1, 4096)
    world.keep.append(page)
    world.page = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if job.as_user and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(AS_USER, AS_USER, AS_USER)
        os.setresuid(AS_USER, AS_USER, AS_USER)
    for layer in job.fleet:
        try:
            FLEET_LAYERS[layer](FleetPlan())
        except OSError as error:
            _say({"unavailable": f"{layer}: {error.strerror}"})
            return
    plan = Plan(
        parent_pid=parent, proc=200, channel_in=201, channel_out=202, cpu_s=0.05, memory_bytes=512 << 20, off=job.off
    )
    reports = confine(plan)
    _say({"layers": {report.name: report.state for report in reports}})
    _say({"result": ATTEMPTS[job.name].run(world)})


def _say(message: dict[str, Any]) -> None:
    os.write(FD_OUT, json.dumps(message).encode() + b"\n")


def perform(job: Job, world: World) -> dict[str, Any]:
    """Make the process, wait for its end, and tell how it ended."""
    victims_file = world.folder / "victim"
    victims_file.write_text("text")
    for name in ("new", "made", "moved", "another", "second"):
        place = world.folder / name
        if place.is_dir():
            place.rmdir()
        else:
            place.unlink(missing_ok=True)
    down_read, down_write = os.pipe()
    up_read, up_write = os.pipe()
    os.write(down_write, b"from the supervisor")
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(down_write)
            _in_child(job, world, parent, (down_read, up_write))
        except BaseException as error:
            _say({"failed": f"{type(error).__name__}: {error}"})
        finally:
            os._exit(0)
    os.close(down_read)
    os.close(up_write)
    said = _read_all(up_read, pid)
    _, status = os.waitpid(pid, 0)
    os.close(up_read)
    os.close(down_write)
    return {"status": status, **_parse(said)}


def _read_all(fd: int, pid: int) -> bytes:
    """All that the process says, until it has ended; killed when that takes too long."""
    said, deadline = b"", time.monotonic() + PATIENCE_S
    while True:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            os.kill(pid, signal.SIGKILL)
            return said + b'{"failed": "did not end in time"}\n'
        data = os.read(fd, 65536)
        if not data:
            return said
        said += data


def _parse(said: bytes) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for line in said.decode().splitlines():
        try:
            told.update(json.loads(line))
        except (ValueError, TypeError):
            told["said"] = line
    return told


def main() -> None:
    jobs = [Job(j["name"], tuple(j["off"]), tuple(j["fleet"]), j["as_user"]) for j in json.load(sys.stdin)]
    folder = Path(tempfile.mkdtemp())
    victim = os.fork()
    if victim == 0:
        signal.pause()
        os._exit(0)
    try:
        folder.chmod(0o755)
        (folder / "secret").write_text("secret")
        (folder / "secret").chmod(0o600)
        (folder / "open").touch()
        (folder / "link").symlink_to("secret")
        program = shutil.which("id")
        if program is not None:
            shutil.copyfile(program, folder / "id")
            (folder / "id").chmod(0o4755)
        with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
            name = b"\0attempts-%d" % os.getpid()
            unix.bind(name)
            unix.listen(64)
            tcp.listen(64)
            world = World(folder, tcp.getsockname()[1], name, victim)
            json.dump([perform(job, world) for job in jobs], sys.stdout)
    finally:
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

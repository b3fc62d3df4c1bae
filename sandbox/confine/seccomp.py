"""seccomp: a list of allowed system calls, most with their arguments checked; anything else kills the process.

Raw BPF, assembled here (seccomp(2), linux/bpf_common.h). The default action is to kill, not EPERM: a refusal would let
an attacker continue probing, and SIGSYS in the wait status is evidence that no script can forge.
"""

import ctypes
import errno
import hashlib
import os
import struct
import sys
from dataclasses import dataclass
from functools import cache

from sandbox.confine import arch, libc
from sandbox.confine.plan import Plan

KILL, ALLOW, EBADF, EACCES = 0x80000000, 0x7FFF0000, 0x00050000 | 9, 0x00050000 | 13
_SET_MODE_FILTER, _TSYNC = 1, 1
_LOAD, _JEQ, _JSET, _RET = 0x20, 0x15, 0x45, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JSET|K, BPF_RET|K
_NR, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data
PROT_EXEC, SIGABRT = 4, 6
# MADV_DONTNEED, FREE, HUGEPAGE, NOHUGEPAGE, as allocators use. HWPOISON, for one, lets root break memory.
_MADVICE = (4, 8, 14, 15)
# The clocks of the machine, and those of the caller's own process (2) and thread (3): linux/time.h. Any other number is
# derived from a pid or a descriptor (clock_getcpuclockid(3)): it would reveal which processes of other tenants exist,
# and their CPU time.
_CLOCKS = (0, 1, 2, 3, 4, 5, 6, 7, 11)
# WAIT, WAKE, WAIT_BITSET, WAKE_BITSET with PRIVATE_FLAG, CLOCK_REALTIME, both or neither, as the C library's locks use.
# Priority-inheriting ones look up the owner by its thread id, also of other processes (futex(2), ESRCH).
_FUTEX = tuple(operation | flags for operation in (0, 1, 9, 10) for flags in (0, 128, 256, 384))


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on the low 32 bits of one argument: `equal` to one of `values`, or (`clear`) without these bits."""

    argument: int
    how: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One call and its action, with any arguments if there are no checks; `otherwise` is that of a failed check."""

    name: str
    checks: tuple[Check, ...] = ()
    otherwise: int = KILL
    action: int = ALLOW


def rules(plan: Plan, pid: int) -> tuple[Rule, ...]:
    """The system calls of a confined worker. `pid` is its own, in its own namespace."""

    def equal(argument: int, *values: int) -> Check:
        return Check(argument, "equal", values)

    no_exec = Check(2, "clear", (PROT_EXEC,))
    return (
        Rule("read", (equal(0, plan.fd_in),)),
        # A Lua panic writes to descriptor 2, which is closed: answer as the kernel would, so that the abort that
        # follows is not taken for an attack.
        Rule("write", (equal(0, plan.fd_out),), otherwise=EBADF),
        Rule("pread64", (equal(0, plan.fd_status),)),  # the proof of confinement, once; then it is closed
        Rule("close", (equal(0, plan.fd_status),)),
        Rule("mmap", (no_exec,)),
        Rule("mprotect", (no_exec,)),
        Rule("madvise", (equal(2, *_MADVICE),)),
        Rule("futex", (equal(1, *_FUTEX),)),
        *map(Rule, ("munmap", "mremap", "brk", "sched_yield")),
        *map(Rule, ("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack")),
        Rule("clock_gettime", (equal(0, *_CLOCKS),)),
        Rule("clock_nanosleep", (equal(0, *_CLOCKS),)),
        *map(Rule, ("getrandom", "getpid", "gettid")),
        Rule("tgkill", (equal(0, pid), equal(2, SIGABRT))),  # abort(3)
        *map(Rule, ("exit", "exit_group")),
        *(Rule(name, action=EACCES) for name in plan.refused),
    )


def assemble(machine: arch.Arch, allowed: tuple[Rule, ...]) -> bytes:
    """The filter as BPF: architecture, x32, then one block for each rule; any other call falls through to the kill."""
    program = _kill_unless_equal(_ARCH, machine.audit)
    program += [_op(_LOAD, _NR)]
    if machine.x32_bit is not None:
        program += [_op(_JSET, machine.x32_bit, 0, 1), _op(_RET, KILL)]
    for rule in allowed:
        if rule.name not in machine.numbers:  # an older form of a call, which this architecture never had
            continue
        body = [op for check in rule.checks for op in _check(check, rule.otherwise)] + [_op(_RET, rule.action)]
        program += [_op(_JEQ, machine.numbers[rule.name], 0, len(body)), *body]
    program += [_op(_RET, KILL)]
    return b"".join(program)


def _check(check: Check, otherwise: int) -> list[bytes]:
    load = _op(_LOAD, _ARGS + 8 * check.argument)
    if check.how == "clear":
        (bits,) = check.values
        return [load, _op(_JSET, bits, 0, 1), _op(_RET, otherwise)]
    # Each match jumps over the remaining comparisons and the refusal.
    count = len(check.values)
    tests = [_op(_JEQ, value, count - i, 0) for i, value in enumerate(check.values)]
    return [load, *tests, _op(_RET, otherwise)]


def _kill_unless_equal(offset: int, value: int) -> list[bytes]:
    return [_op(_LOAD, offset), _op(_JEQ, value, 1, 0), _op(_RET, KILL)]


def _op(code: int, k: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jump_true, jump_false, k)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


# Placeholder of the pid in a filter that is made in advance.
_PID = 0x7A69D1D5


@cache
def prepare(plan: Plan) -> tuple[bytes, bytes, str]:
    """The filter's two halves, between which the worker's pid goes, and its description. Raises OSError (ENOSYS).

    Made by the zygote, for the descriptors of `plan`: in each worker it would take longer than all other layers.
    """
    machine = arch.current()
    if machine is None:
        raise OSError(errno.ENOSYS, f"no system call table for {os.uname().machine}")
    allowed = rules(plan, _PID)
    before, after = assemble(machine, allowed).split(_PID.to_bytes(4, sys.byteorder))
    # The pid is part of the filter, so the profile's identity is that of the rules without it.
    profile = hashlib.sha256(repr(rules(plan, 0)).encode()).hexdigest()[:12]
    count = len(allowed) - len(plan.refused)
    return before, after, f"allow list of {count} calls, default kill, profile {profile}"


def apply(plan: Plan) -> str:
    """Install the filter on every thread (TSYNC). OSError: EINVAL without seccomp, ENOSYS on unknown machines."""
    before, after, detail = prepare(
        Plan(fd_in=plan.fd_in, fd_out=plan.fd_out, fd_status=plan.fd_status, refused=plan.refused)
    )
    code = before + os.getpid().to_bytes(4, sys.byteorder) + after
    program = _Program(len(code) // 8, code)
    machine = arch.current()
    assert machine is not None
    libc.syscall(machine.numbers["seccomp"], _SET_MODE_FILTER, _TSYNC, ctypes.byref(program))
    return detail

"""Descriptors, dumpability and the parent-death signal: no inherited descriptor, no inspection, no orphan."""

import errno
import fcntl
import os

from sandbox.confine import libc
from sandbox.confine.plan import Plan

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE = 1, 2, 3, 4
SIGKILL = 9


def apply(plan: Plan) -> str:
    """Keep only the channel and the status file, forbid core dumps and ptrace by equals, die with the zygote."""
    _arrange_descriptors(plan)
    unobservable()
    die_with_parent(plan.parent_pid)
    return f"descriptors {plan.fd_in}, {plan.fd_out}; not dumpable; dies with its parent"


def unobservable() -> None:
    """No core dump, no ptrace or /proc access by processes of the same user. Raises OSError."""
    libc.prctl(PR_SET_DUMPABLE, 0)
    if libc.prctl(PR_GET_DUMPABLE) != 0:
        raise OSError(errno.EINVAL, "still dumpable")


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends. A change of uid clears it: call again after one."""
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the call above
        os._exit(0)


def _arrange_descriptors(plan: Plan) -> None:
    """Move channel and status file to their fixed numbers and close every other descriptor."""
    wanted = {plan.channel_in: plan.fd_in, plan.channel_out: plan.fd_out}
    status = os.open("self/status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=plan.proc)
    wanted[status] = plan.fd_status
    # First above the fixed numbers, then onto them, so that none can overwrite another.
    above = plan.fd_status + 1
    high = {fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above): target for fd, target in wanted.items()}
    for fd, target in high.items():
        os.dup2(fd, target, inheritable=False)
    os.closerange(0, plan.fd_in)
    os.closerange(above, os.sysconf("SC_OPEN_MAX"))

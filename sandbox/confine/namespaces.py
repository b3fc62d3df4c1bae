"""Namespaces: no network, no other processes, no IPC, no host name, no view of cgroups (namespaces(7)).

Entered by the zygote's launcher before it forks, because a pid namespace begins with the next child: that child, the
zygote, is its first process, and when it ends the kernel ends every worker with it.
"""

import os
from pathlib import Path

from sandbox.confine import libc
from sandbox.confine.plan import FleetPlan

CLONE = {
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
CLONE_NEWUSER = 0x10000000


def apply(plan: FleetPlan) -> str:
    """Enter all of them; through a user namespace where we lack the privilege. Raises OSError (EPERM: forbidden)."""
    names = ", ".join(sorted(CLONE))
    try:
        libc.unshare(sum(CLONE.values()))
        return f"{names}; as root"
    except PermissionError:
        _enter_user_namespace()
        libc.unshare(sum(CLONE.values()))
        return f"user, {names}"


def _enter_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    libc.unshare(CLONE_NEWUSER)
    # setgroups must be denied before an unprivileged gid_map is accepted (user_namespaces(7)).
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")

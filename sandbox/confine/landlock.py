"""Landlock: every file right, TCP, abstract sockets and signals handled, and no rule that allows any (landlock(7))."""

import ctypes
import errno
import os

from sandbox.confine import arch, libc
from sandbox.confine.plan import Plan

_CREATE_RULESET_VERSION = 1

# Each ABI adds rights; a bit that the kernel does not know is EINVAL. (include/uapi/linux/landlock.h)
_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # ABI -> number of file access rights
_NET_ABI, _SCOPE_ABI = 4, 6
_NET_TCP = 0b11  # bind, connect
_SCOPES = 0b11  # abstract unix sockets, signals


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_fs", ctypes.c_uint64), ("handled_net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


def abi() -> int:
    """The kernel's Landlock ABI. Raises OSError: ENOSYS without it, EOPNOTSUPP when it is disabled at boot."""
    machine = arch.current()
    if machine is None:
        raise OSError(errno.ENOSYS, f"no system call table for {os.uname().machine}")
    return libc.syscall(machine.numbers["landlock_create_ruleset"], None, 0, _CREATE_RULESET_VERSION)


def apply(plan: Plan) -> str:
    version = abi()
    machine = arch.current()
    assert machine is not None
    known = min(version, max(_FS_BITS))
    ruleset = _Ruleset(
        (1 << _FS_BITS[known]) - 1,
        _NET_TCP if version >= _NET_ABI else 0,
        _SCOPES if version >= _SCOPE_ABI else 0,
    )
    size = 24 if version >= _SCOPE_ABI else 16 if version >= _NET_ABI else 8
    fd = libc.syscall(machine.numbers["landlock_create_ruleset"], ctypes.byref(ruleset), size, 0)
    try:
        libc.syscall(machine.numbers["landlock_restrict_self"], fd, 0)
    finally:
        os.close(fd)
    _prove()
    return f"ABI {version}"


def _prove() -> None:
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY))
    except PermissionError:
        return
    raise OSError(errno.EINVAL, "the kernel accepted the ruleset, but still opens directories")

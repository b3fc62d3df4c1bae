"""Privileges: a user of its own when we are root, no supplementary group, no capability (credentials(7))."""

import ctypes
import errno
import os
from functools import cache

from sandbox.confine import libc, process
from sandbox.confine.plan import NOBODY, UID_BASE, UID_COUNT, Plan

PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63


def apply(plan: Plan) -> str:
    """Give up user, groups and capabilities, in this order: giving up the first needs the last. Raises OSError."""
    drop_bounding_set()
    who = _change_user(plan) if os.geteuid() == 0 else "same user as the supervisor"
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    _capset_nothing()
    # A change of user clears the parent-death signal and may set dumpable (prctl(2)).
    process.unobservable()
    process.die_with_parent(plan.parent_pid)
    return f"{who}; no capabilities"


# Cached here: the kernel can be asked for one capability at a time only, which takes as long as dropping them.
@cache
def drop_bounding_set() -> None:
    """Empty the bounding set of this process and of all that it will fork. Raises OSError.

    The zygote does it for all its workers, which inherit the cache: without an exec, it still has its permitted
    capabilities until it gives them up.
    """
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            libc.prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            # EPERM: an unprivileged user, whose bounding set does not matter, as nothing is permitted. EINVAL: beyond
            # the last capability that this kernel knows.
            if error.errno in (errno.EPERM, errno.EINVAL):
                return
            raise


def _change_user(plan: Plan) -> str:
    own = UID_BASE + plan.serial % UID_COUNT
    os.setgroups([])
    for uid in (own, NOBODY):
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            return f"uid {uid}" if uid == own else f"uid {uid} (shared: this container maps no range of users)"
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    raise OSError(errno.EINVAL, "this user namespace maps no other user")


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def _capset_nothing() -> None:
    header, nothing = _Header(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    libc.capset(ctypes.byref(header), nothing)

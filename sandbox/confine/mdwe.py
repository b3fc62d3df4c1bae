"""Memory-deny-write-execute: no page is ever both, or becomes executable (PR_SET_MDWE, Linux 6.3)."""

import errno

from sandbox.confine import libc
from sandbox.confine.plan import Plan

PR_SET_MDWE, PR_GET_MDWE = 65, 66
PR_MDWE_REFUSE_EXEC_GAIN = 1


def apply(plan: Plan) -> str:
    libc.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN)
    if libc.prctl(PR_GET_MDWE) & PR_MDWE_REFUSE_EXEC_GAIN == 0:
        raise OSError(errno.EINVAL, "the kernel accepted it, but did not set it")
    return "no memory becomes executable"

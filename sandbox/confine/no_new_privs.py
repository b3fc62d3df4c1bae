"""No-new-privileges: no program that this process executes gains a privilege; seccomp and Landlock require it."""

from sandbox.confine import libc
from sandbox.confine.plan import Plan

PR_SET_NO_NEW_PRIVS = 38


def apply(plan: Plan) -> str:
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1)
    return "set"

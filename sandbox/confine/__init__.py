"""Confinement: what zygote and workers give up, in which order, and how they prove it.

One concern, one file. `FLEET` is entered once by the zygote, for itself and every worker; `OWN` by each worker after
its fork. Both are applied from top to bottom: the steps that need the most freedom come first. `sandbox.wire.layers`
says what each layer stops, under the same name.
"""

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from sandbox.confine import (
    cgroup,
    empty_root,
    landlock,
    mdwe,
    namespaces,
    no_new_privs,
    oom,
    privileges,
    process,
    rlimits,
    seccomp,
)
from sandbox.confine.plan import FleetPlan, Plan
from sandbox.wire.layers import contradicted, parse_status
from sandbox.wire.messages import LayerReport

P = TypeVar("P", Plan, FleetPlan)

# Each step returns what it did in a few words, or raises OSError when the kernel refuses.
FLEET: tuple[tuple[str, Callable[[FleetPlan], str]], ...] = (
    ("oom", oom.apply),
    ("cgroup", cgroup.apply),  # before the namespaces: the groups are found by their path on the host
    ("namespaces", namespaces.apply),  # the fork of the zygote follows
    ("empty_root", empty_root.apply),  # last: nothing can be imported or opened after it
)
OWN: tuple[tuple[str, Callable[[Plan], str]], ...] = (
    ("process", process.apply),
    ("privileges", privileges.apply),
    ("no_new_privs", no_new_privs.apply),  # before landlock and seccomp, which require it
    ("landlock", landlock.apply),  # before rlimits: it needs a free descriptor
    ("rlimits", rlimits.apply),
    ("mdwe", mdwe.apply),
    ("seccomp", seccomp.apply),  # last: it forbids every step above
)


def confine(plan: Plan) -> tuple[LayerReport, ...]:
    """Give up everything a worker does not need, then prove it from /proc/self/status. Called once, after the fork.

    Reports what is in effect; the supervisor decides whether that is enough.
    """
    reports = [attempt(name, apply, plan) for name, apply in OWN]
    status = _own_status(plan)
    return tuple(_proved(report, status) for report in reports)


def attempt(name: str, apply: Callable[[P], str], plan: P) -> LayerReport:
    """One step, reported: active, off, or unavailable with the errno."""
    if name in plan.off:
        return LayerReport(name, "off", "by configuration")
    try:
        return LayerReport(name, "active", apply(plan))
    except OSError as error:
        return LayerReport(name, "unavailable", f"{errno.errorcode.get(error.errno or 0)}: {error.strerror}")


def _own_status(plan: Plan) -> dict[str, str]:
    """/proc/self/status, read through a descriptor that was opened before the file system was closed off."""
    text = os.pread(plan.fd_status, 8192, 0).decode()
    os.close(plan.fd_status)
    return parse_status(text)


def _proved(report: LayerReport, status: dict[str, str]) -> LayerReport:
    against = contradicted(report.name, status) if report.state == "active" else None
    return report if against is None else LayerReport(report.name, "unavailable", against)

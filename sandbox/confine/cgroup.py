"""cgroup: a bound on the memory and processes of all workers together, enforced by the kernel (cgroups(7)).

Version 2 if it is delegated to us, else the memory and pids controllers of version 1. The group is a child of the one
we were started in, or a sibling (`DelegateSubgroup=` of systemd), and is removed when its last process has ended.
"""

import contextlib
import errno
import os
from pathlib import Path

from sandbox.confine.plan import FleetPlan

_MOUNT = Path("/sys/fs/cgroup")
_PREFIX = "engine-workers-"
_NEEDED = ("memory", "pids")

# The groups this process made, for `remove`.
_made: list[Path] = []


def apply(plan: FleetPlan) -> str:
    """Make the group, bound it, enter it. Raises OSError if nothing is delegated to us."""
    try:
        return _version_2(plan)
    except OSError as first:
        remove()
        try:
            return _version_1(plan)
        except OSError as second:
            remove()
            # The error of version 2 is the one to fix; version 1 is being retired.
            raise (second if first.errno == errno.ENODEV else first) from None


def remove() -> None:
    """Leave the groups that `apply` made and remove them. One with a process in it stays, and still bounds it."""
    while _made:
        group = _made.pop()
        try:
            _enter(group.parent)
            group.rmdir()
        except OSError:
            continue


def _version_2(plan: FleetPlan) -> str:
    own = _own_groups().get("")
    if own is None:
        raise OSError(errno.ENODEV, "no cgroup version 2 hierarchy")
    mount = _MOUNT if (_MOUNT / "cgroup.controllers").exists() else _MOUNT / "unified"
    here = mount / own.lstrip("/")
    last = OSError(errno.ENODEV, "the memory and pids controllers are not delegated to us")
    for parent in (here, here.parent) if here != mount else (here,):
        if not set(_NEEDED) <= set(_read_words(parent / "cgroup.controllers")):
            continue
        try:
            (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _NEEDED))
            group = _make(parent)
            (group / "memory.max").write_text(str(plan.memory_bytes))
            (group / "memory.swap.max").write_text("0")
            (group / "pids.max").write_text(str(plan.processes))
            _enter(group)
            return f"version 2, {plan.memory_bytes >> 20} MiB, {plan.processes} processes for all workers"
        except OSError as error:  # EBUSY: this group has processes of its own; try its parent
            last = error
            remove()
    raise last


def _version_1(plan: FleetPlan) -> str:
    own = _own_groups()
    for controller in _NEEDED:
        if controller not in own:
            raise OSError(errno.ENODEV, f"no {controller} controller")
        group = _make(_MOUNT / controller / own[controller].lstrip("/"))
        if controller == "memory":
            (group / "memory.limit_in_bytes").write_text(str(plan.memory_bytes))
        else:
            (group / "pids.max").write_text(str(plan.processes))
        _enter(group)
    return f"version 1, {plan.memory_bytes >> 20} MiB, {plan.processes} processes for all workers"


def _own_groups() -> dict[str, str]:
    """Controller to path for version 1; the empty name is version 2 (`0::/path`)."""
    groups: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _make(parent: Path) -> Path:
    # Remove groups of engines that were killed before they could clean up. Not of live ones: a new group is empty, too,
    # until its engine enters it.
    for stale in parent.glob(f"{_PREFIX}*"):
        if not Path("/proc", stale.name.removeprefix(_PREFIX)).exists():
            with contextlib.suppress(OSError):  # its workers are still ending
                stale.rmdir()
    group = parent / f"{_PREFIX}{os.getpid()}"
    group.mkdir()
    _made.append(group)
    return group


def _enter(group: Path) -> None:
    (group / "cgroup.procs").write_text("0")  # 0: the process that writes


def _read_words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []

"""The resource limits of the process (ulimit) that an engine needs, checked before anything is started."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from engine.workers.pool import PoolSettings

MIB = 1 << 20
# Descriptors of the supervisor for a worker: its pidfd, both ends of its channel, its status file.
FILES_A_WORKER = 4
# The event loop, two zygotes while one replaces the other, stores, log, and a few connections.
FILES_BESIDE = 64
# RLIMIT_AS of a worker beyond the ceiling of `memory_bytes` (sandbox/confine/rlimits.py).
WORKER_BESIDE_BYTES = 256 * MIB
# The supervisor before its first request: interpreter and libraries 0.2 GiB, stacks and malloc's arenas of threads 0.3.
SUPERVISOR_BYTES = 768 * MIB
# The supervisor's threads, launcher and zygote.
PROCESSES_BESIDE = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a process may have: open files, bytes of address space, processes of its user. None: unlimited."""

    files: int | None = None
    address_space: int | None = None
    processes: int | None = None


def files_needed(settings: PoolSettings, files_open: int) -> int:
    """The most descriptors that the supervisor has at once, if `files_open` are open before it has any worker."""
    return files_open + settings.at_most * FILES_A_WORKER + FILES_BESIDE


def space_needed(settings: PoolSettings) -> int:
    """Bytes of address space that the largest of its processes needs."""
    return max(SUPERVISOR_BYTES, settings.memory_bytes + WORKER_BESIDE_BYTES)


def shortfall(settings: PoolSettings, bounds: Bounds, files_open: int) -> str | None:
    """Which limit is too low, in one line for the operator; None if all suffice. `files_open` are open already."""
    workers, files, space = settings.at_most, files_needed(settings, files_open), space_needed(settings)
    if bounds.files is not None and bounds.files < files:
        return (
            f"{bounds.files} open files are allowed (ulimit -n), and {files} are needed: {files_open} that are open,"
            f" {FILES_A_WORKER} for each of {workers} workers, {FILES_BESIDE} for the rest. Raise the limit, or lower"
            " [sandbox] workers and reserve"
        )
    if bounds.address_space is not None and bounds.address_space < space:
        allowed = bounds.address_space // MIB
        return (
            f"{allowed} MiB of address space are allowed (ulimit -v), and {space // MIB} are needed:"
            f" {SUPERVISOR_BYTES // MIB} for the server, and for each worker {WORKER_BESIDE_BYTES // MIB} beside the"
            f" {settings.memory_bytes // MIB} of [limits.max] memory_bytes. Raise the limit, or lower that"
        )
    processes = workers + PROCESSES_BESIDE
    if bounds.processes is not None and bounds.processes < processes:
        return (
            f"{bounds.processes} processes are allowed to this user (ulimit -u), and {processes} are needed:"
            f" {workers} workers and {PROCESSES_BESIDE} for the rest, threads among them. Raise the limit, or lower"
            " [sandbox] workers and reserve"
        )
    return None


def take(settings: PoolSettings) -> str | None:
    """Raise the soft limit of open files as far as needed. Returns what `shortfall` finds.

    Many systems start programs with a soft limit of 1,024, for those that use select(2), which this one does not use.
    """
    files_open = _files_open()
    missing = shortfall(settings, _bounds(), files_open)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files_needed(settings, files_open)
    if missing is None and soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return missing


def _bounds() -> Bounds:
    """The bounds of this process. Root may have any number of processes (getrlimit(2), RLIMIT_NPROC)."""
    return Bounds(
        files=_known(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        address_space=_known(resource.getrlimit(resource.RLIMIT_AS)[0]),
        processes=_known(resource.getrlimit(resource.RLIMIT_NPROC)[0]) if os.geteuid() != 0 else None,
    )


def _files_open() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _known(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit

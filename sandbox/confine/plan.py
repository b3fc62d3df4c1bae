"""The parameters of confinement: plain values, decided by the supervisor before the fork."""

import msgspec

# The uids of workers when the supervisor is root: a separate range, so that neither signals nor RLIMIT_NPROC are shared
# with any other process on the machine ("ng" and zeros, in hexadecimal).
UID_BASE, UID_COUNT = 0x6E670000, 0x10000
# The overflow user, if a container maps too few users for that range (user_namespaces(7)).
NOBODY = 65534


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds are the engine's ceilings, not one run's limits: a pristine worker has no tenant yet.

    `channel_in`, `channel_out` are the descriptors of the channel before confinement; `fd_*` those after it. `proc` is
    a descriptor of /proc, which no path reaches once the root is empty. `refused` are system calls that fail instead of
    killing the process: libraries that are not ours try them, and work without.
    """

    parent_pid: int = 0
    serial: int = 0
    proc: int = -1
    channel_in: int = -1
    channel_out: int = -1
    fd_in: int = 3
    fd_out: int = 4
    fd_status: int = 5
    cpu_s: float = 120.0
    memory_bytes: int = 512 << 20
    off: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of the layers that the zygote enters once, for itself and all its workers.

    `memory_bytes` and `processes` bound all of them together.
    """

    memory_bytes: int = 4 << 30
    processes: int = 64
    off: tuple[str, ...] = ()

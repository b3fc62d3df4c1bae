"""What confinement is made from: plain values, decided by the supervisor before the fork."""

import msgspec

# Users that workers become when the supervisor is root: a range of its own, so that neither signals nor
# RLIMIT_NPROC are shared with anything else on the machine ("ng" and zeros, in hexadecimal).
UID_BASE, UID_COUNT = 0x6E670000, 0x10000
# The overflow user, where a container maps too few users for that range (user_namespaces(7)).
NOBODY = 65534


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds are the engine's ceilings, not one run's limits: a pristine worker does not know yet whom it will serve.

    `channel_in`, `channel_out` are where the channel is when confinement starts; `fd_*` are where it will be.
    `proc` is a descriptor of /proc, which no path reaches any more once the root is empty.
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


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """For the layers that the zygote enters once, for itself and all its workers.

    `memory_bytes` and `processes` bound all of them together.
    """

    memory_bytes: int = 4 << 30
    processes: int = 64
    off: tuple[str, ...] = ()

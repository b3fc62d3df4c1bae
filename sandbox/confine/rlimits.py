"""Resource limits behind the supervisor's own: they hold even while the supervisor is stopped (getrlimit(2))."""

import errno
import math
import resource

from sandbox.confine.plan import Plan

# Python, Lua and the prelude's bytecode map about 18 MB; the rest is for the allocator's fragmentation and for one copy
# of an outgoing value.
_OVERHEAD_BYTES = 256 << 20


def apply(plan: Plan) -> str:
    cpu = math.ceil(plan.cpu_s) + 1
    limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": plan.fd_status + 1,
        "RLIMIT_NPROC": 0,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_CPU": cpu,  # hard equals soft: SIGKILL, not the catchable SIGXCPU
        "RLIMIT_AS": plan.memory_bytes + _OVERHEAD_BYTES,
        "RLIMIT_STACK": 8 << 20,
    }
    for name, wanted in limits.items():
        _, hard = resource.getrlimit(getattr(resource, name))
        # A lower limit of the operator stays: it cannot be raised here, and should not be.
        value = limits[name] = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(getattr(resource, name), (value, value))
        if resource.getrlimit(getattr(resource, name)) != (value, value):
            raise OSError(errno.EINVAL, f"{name} was not set")
    return f"cpu {limits['RLIMIT_CPU']} s, address space {limits['RLIMIT_AS'] >> 20} MiB, no files, no processes"

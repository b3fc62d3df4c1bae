"""Memory that work needs, requested before it begins: libraries in C and Rust end the process if that fails."""

import errno
import mmap
import resource
from contextlib import suppress
from pathlib import Path


def require_memory(size: int) -> None:
    """Raise MemoryError unless `size` bytes can be allocated now. Takes 10 us: no page is touched.

    When an allocation fails, orjson follows a null pointer (SIGSEGV) and Rust aborts, and neither can be caught. This
    checks the address space (RLIMIT_AS, vm.overcommit_memory = 2), the only bound at which allocations fail.
    """
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError from None
        raise


def memory_for_process(root: Path = Path("/")) -> int:
    """How many bytes this process may still allocate: the least of address space, cgroup and machine."""
    return min(_address_space(root), _cgroup(root), _available(root))


_UNBOUNDED = 1 << 62


def _address_space(root: Path) -> int:
    bound = resource.getrlimit(resource.RLIMIT_AS)[0]
    if bound == resource.RLIM_INFINITY:
        return _UNBOUNDED
    return max(0, bound - int((root / "proc/self/statm").read_text().split()[0]) * resource.getpagesize())


def _cgroup(root: Path) -> int:
    """The least bound of the cgroups that the process is in, as far as they are visible (cgroups(7))."""
    least = _UNBOUNDED
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return least
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = base / path.lstrip("/")
        for each in (group, *group.parents):
            with suppress(OSError, ValueError):  # ValueError: `max`
                least = min(least, int((each / name).read_text()))
            if each == base:
                break
    return least


def _available(root: Path) -> int:
    """MemAvailable (proc(5)): what can be allocated without swapping."""
    with suppress(OSError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return _UNBOUNDED

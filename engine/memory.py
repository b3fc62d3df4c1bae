"""Memory that work needs, asked for before it begins: libraries in C and Rust end the process where it is refused."""

import errno
import mmap


def require_memory(size: int) -> None:
    """Raise MemoryError unless `size` bytes can be had now. Costs 10 us: no page of it is touched.

    orjson follows a null pointer (SIGSEGV) and Rust aborts where an allocation fails, and neither can be caught. What
    is seen here is the address space (RLIMIT_AS, vm.overcommit_memory = 2), the only bound at which they fail.
    """
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError from None
        raise

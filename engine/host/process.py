"""What a server sets for its process: turns of threads, collections of cycles, and where malloc gets memory."""

import ctypes
import gc
import sys
from contextlib import suppress

# How long a thread keeps the interpreter while the event loop wants it (5 ms by default). The loop gives the
# interpreter up at every system call, some ten times a request. Beside one busy thread it answered 27 requests a second
# with the default, 100 of 100 with this; 0.1 ms was no better.
SWITCH_S = 0.0005
# Larger blocks are mapped, and given back when they are freed. By default malloc(3) raises this to the size of what was
# freed, up to 32 MiB, and keeps twice as much at the end of its heap: after two minutes of `make soak` the process had
# twice its memory at rest, with this 1.4 times, with 4 MiB 1.7 to 2.1 times.
MAPPED_BYTES = 1024 * 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
# A full collection looks at every container that requests hold: 95 ms of the event loop beside six bodies of 100,000
# tables. By default one may follow every 70,000 new containers, with this every 700,000. Most cycles of requests are
# young when they end, and the collections of the two younger generations find them.
FULL_EVERY = 100


def prepare_process() -> None:
    """Set them. Where the C library has no mallopt(3), it decides."""
    sys.setswitchinterval(SWITCH_S)
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_EVERY)
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * MAPPED_BYTES)

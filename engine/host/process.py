"""Settings of the server process: the switch interval of threads, garbage collection, and malloc."""

import ctypes
import gc
import sys
from contextlib import suppress

# How long a thread keeps the interpreter while the event loop waits for it (5 ms by default). The loop releases the
# interpreter at every system call, some ten times a request. Beside one busy thread it answered 27 requests a second
# with the default, 100 of 100 with this; 0.1 ms was no better.
SWITCH_S = 0.0005
# Larger blocks are mapped, and returned to the kernel when they are freed. By default malloc(3) raises this threshold
# to the size of the largest freed block, up to 32 MiB, and keeps twice as much at the end of its heap: after two
# minutes of `make soak` the process had twice its memory at rest, with this 1.4 times, with 4 MiB 1.7 to 2.1 times.
MAPPED_BYTES = 1024 * 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
# A full collection visits every container that requests hold: it blocks the event loop for 95 ms beside six bodies of
# 100,000 tables. By default one may follow every 70,000 new containers, with this every 700,000. Most cycles of
# requests are young when they die, and the collections of the two younger generations find them.
FULL_EVERY = 100


def prepare_process() -> None:
    """Apply the settings. malloc's are skipped if the C library has no mallopt(3)."""
    sys.setswitchinterval(SWITCH_S)
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_EVERY)
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * MAPPED_BYTES)

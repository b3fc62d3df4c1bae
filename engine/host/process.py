"""Settings of the server process: the switch interval of threads, its time slice, garbage collection, and malloc."""

import ctypes
import gc
import os
import platform
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

# The time slice of the calling thread, which runs the event loop. The kernel's scheduler (EEVDF) runs the thread with
# the earliest deadline, and a short slice brings the deadline of a thread that wakes up forward: it gets no more CPU
# time, but gets it sooner. Beside three busy processes on two cores, a thread that slept 5 ms ran 1.5 ms late at the
# median, and 3.5 ms late with the default slice. Linux 6.12 and later; earlier ones ignore the value.
SLICE_NS = 100_000  # the least that sched_setattr(2) takes
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # numbers of the system call, which glibc wraps since 2.41
_RESET_ON_FORK = 1  # workers and other children have the default slice


class _SchedAttr(ctypes.Structure):
    """`struct sched_attr` of sched_setattr(2), its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def prepare_process() -> None:
    """Apply the settings. What the kernel or the C library does not have is skipped."""
    sys.setswitchinterval(SWITCH_S)
    shorten_slice()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_EVERY)
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * MAPPED_BYTES)


def shorten_slice() -> bool:
    """Give the calling thread a time slice of `SLICE_NS`; False if it is left as it is.

    Only for a thread with the default policy and priority: the call would reset another one.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    default = os.sched_getscheduler(0) == os.SCHED_OTHER and os.getpriority(os.PRIO_PROCESS, 0) == 0
    if number is None or not default:
        return False
    attr = _SchedAttr(size=ctypes.sizeof(_SchedAttr), flags=_RESET_ON_FORK, runtime=SLICE_NS)
    return bool(ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attr), 0) == 0)

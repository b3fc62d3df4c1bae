"""The thread of the event loop has a short time slice, and neither its threads nor its children have."""

import ctypes
import os
import platform
import struct
import threading
from collections.abc import Callable

import pytest

from engine.host import process

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}

NEEDS = "needs Linux 6.12, on x86_64 or aarch64"
RELEASE = tuple(int(part) for part in os.uname().release.split(".")[:2])


def slice_ns() -> int:
    """The slice of the calling thread, by sched_getattr(2): `runtime` is at byte 24 of its structure."""
    buffer = ctypes.create_string_buffer(56)
    assert ctypes.CDLL(None).syscall(SCHED_GETATTR[platform.machine()], 0, buffer, len(buffer), 0) == 0
    return int(struct.unpack_from("Q", buffer, 24)[0])


def in_a_thread(work: Callable[[], None]) -> None:
    """Settings of a thread end with it."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@pytest.mark.skipif(RELEASE < (6, 12) or platform.machine() not in SCHED_GETATTR, reason=NEEDS)
def test_the_loops_thread_has_a_short_slice_which_its_threads_and_children_do_not_inherit() -> None:
    usual = slice_ns()

    def check() -> None:
        assert process.shorten_slice()
        assert slice_ns() == process.SLICE_NS < usual
        others: list[int] = []
        in_a_thread(lambda: others.append(slice_ns()))
        ours, theirs = os.pipe()
        if (child := os.fork()) == 0:
            os.write(theirs, struct.pack("Q", slice_ns()))
            os._exit(0)
        os.waitpid(child, 0)
        others.extend(struct.unpack("Q", os.read(ours, 8)))
        os.close(ours)
        os.close(theirs)
        assert others == [usual, usual]

    in_a_thread(check)


def test_a_thread_with_another_priority_is_left_as_it_is() -> None:
    def check() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, 5)
        assert not process.shorten_slice()
        assert os.getpriority(os.PRIO_PROCESS, 0) == 5

    in_a_thread(check)

"""Per architecture: the audit number that seccomp reports, and the numbers of system calls.

Sources: linux/audit.h; arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h (aarch64).
Any other architecture is refused: a filter with the wrong numbers would be worse than none.
"""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arch:
    """One architecture. `x32_bit` marks the second ABI that shares the audit number (x86-64 only)."""

    name: str
    audit: int
    numbers: dict[str, int]
    x32_bit: int | None = None


# name: (x86-64, aarch64); None where the architecture never had the call, but one that replaced it
_NUMBERS: dict[str, tuple[int, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "getpid": (39, 172),
    "exit": (60, 93),
    "gettid": (186, 178),
    "futex": (202, 98),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "tgkill": (234, 131),
    "sigaltstack": (131, 132),
    "getrandom": (318, 278),
    "pivot_root": (155, 41),
    "seccomp": (317, 277),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "open": (2, None),
    "stat": (4, None),
    "fstat": (5, 80),
    "lseek": (8, 62),
    "ioctl": (16, 29),
    "access": (21, None),
    "uname": (63, 160),
    "getcwd": (79, 17),
    "readlink": (89, None),
    "sysinfo": (99, 179),
    "sched_getaffinity": (204, 123),
    "openat": (257, 56),
    "newfstatat": (262, 79),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "prlimit64": (302, 261),
    "statx": (332, 291),
    "faccessat2": (439, 439),
}

X86_64 = Arch("x86_64", 0xC000003E, {name: pair[0] for name, pair in _NUMBERS.items()}, x32_bit=0x40000000)
AARCH64 = Arch("aarch64", 0xC00000B7, {name: second for name, (_, second) in _NUMBERS.items() if second is not None})


def current() -> Arch | None:
    """The architecture of this machine, or None if it is not in the table."""
    return {"x86_64": X86_64, "aarch64": AARCH64}.get(os.uname().machine)

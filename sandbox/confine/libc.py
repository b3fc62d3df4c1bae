"""The few system calls that confinement needs and Python lacks, through ctypes. Errors become OSError."""

import ctypes
import os
from typing import Any

from sandbox.confine import arch

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]


def prctl(option: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
    """prctl(2). Raises OSError."""
    return _checked(_libc.prctl(option, a, b, c, d))


def unshare(flags: int) -> None:
    """unshare(2). Raises OSError."""
    _checked(_libc.unshare(ctypes.c_int(flags)))


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2). Raises OSError."""
    _checked(_libc.mount(_c(source), _c(target), _c(kind), flags, _c(data)))


def umount(target: str, flags: int) -> None:
    """umount2(2). Raises OSError."""
    _checked(_libc.umount2(_c(target), ctypes.c_int(flags)))


def capset(header: Any, data: Any) -> None:
    """capset(2). Raises OSError."""
    _checked(_libc.capset(header, data))


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2), for which the C library has no function. Raises OSError."""
    machine = arch.current()
    assert machine is not None
    syscall(machine.numbers["pivot_root"], ctypes.c_char_p(_c(new)), ctypes.c_char_p(_c(old)))


def syscall(number: int, *arguments: Any) -> int:
    """A raw system call; integers are passed as longs, the rest (`byref`, None) as it is. Raises OSError."""
    return _checked(
        _libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    )


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _c(text: str | None) -> bytes | None:
    return None if text is None else text.encode()

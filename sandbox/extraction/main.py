"""The zygote of extractors, which holds the libraries; and an extractor: one file, one answer, the end."""

import gc
import importlib
import os
import struct
import zipfile
from functools import partial
from typing import NoReturn, Protocol

from sandbox.confine import confine
from sandbox.confine.plan import FleetPlan, Plan
from sandbox.extraction.text import Refused, Text
from sandbox.launcher import EXIT_BROKEN, Serve, launch
from sandbox.wire import messages
from sandbox.wire.extraction import ANSWER, FORMATS, REQUEST, Reason
from sandbox.wire.frame import encode_frame
from sandbox.wire.messages import LayerReport, Ready

# Libraries look for fonts, settings and terminals, and ask how many processors there are. There is nothing to find.
REFUSED_CALLS = (
    *("open", "openat", "stat", "fstat", "newfstatat", "statx", "access", "faccessat", "faccessat2"),
    *("readlink", "readlinkat", "lseek", "ioctl", "getcwd", "uname", "sysinfo", "sched_getaffinity", "prlimit64"),
)
# Beside it, runs and their supervisor come first.
NICENESS = 10
_READ_BYTES = 1 << 20


class Reader(Protocol):
    """A module of a format."""

    def read(self, data: bytes, /) -> Text: ...


def main(control_fd: int, memory_bytes: int, processes: int, off: str) -> NoReturn:
    """Be the zygote of extractors until the supervisor closes the socket."""
    os.nice(NICENESS)
    fleet = FleetPlan(memory_bytes=memory_bytes, processes=processes, off=tuple(filter(None, off.split(","))))
    launch(control_fd, fleet, _warm_up, REFUSED_CALLS)


def _warm_up() -> Serve:
    readers: dict[int, Reader] = {}
    for each in FORMATS:
        try:
            module = importlib.import_module(f"sandbox.extraction.{each.name}")
        except ImportError:  # its library is in an extra that is not installed
            continue
        module.warm_up()
        readers[each.number] = module
    gc.collect()
    gc.freeze()
    return partial(serve, readers)


def serve(readers: dict[int, Reader], plan: Plan, inherited: tuple[LayerReport, ...]) -> NoReturn:
    """Confine, say Ready, read one file, answer, end."""
    try:
        layers = inherited + confine(plan)
        _send(plan.fd_out, encode_frame(messages.encode(Ready(messages.PROTOCOL_VERSION, layers))))
        number, size = REQUEST.unpack(_receive(plan.fd_in, REQUEST.size))
        _send(plan.fd_out, answer(readers.get(number), _receive(plan.fd_in, size)))
        os._exit(0)
    except BaseException:  # a traceback would open source files
        os._exit(EXIT_BROKEN)


def answer(reader: Reader | None, data: bytes) -> bytes:
    """The bytes of the answer to one file."""
    if reader is None:
        return _refusal(Reason.MISSING)
    try:
        text = reader.read(data)
        body = text.body()
    except Refused as refused:
        return _refusal(refused.reason)
    except MemoryError:
        return _refusal(Reason.MEMORY)
    except zipfile.BadZipFile:
        return _refusal(Reason.DAMAGED)
    except Exception:  # libraries raise everything for damaged files, KeyError and AttributeError too
        return _refusal(Reason.DAMAGED)
    title = text.title.encode()
    head = ANSWER.pack(Reason.OK, len(title), len(text.pages), len(body))
    return b"".join((head, title, struct.pack(f">{len(text.pages)}I", *text.pages), body))


def _refusal(reason: Reason) -> bytes:
    return ANSWER.pack(reason, 0, 0, 0)


def _receive(fd: int, size: int) -> bytes:
    """Exactly so many bytes. Ends the process where the channel ends first."""
    data = bytearray()
    while len(data) < size:
        piece = os.read(fd, min(_READ_BYTES, size - len(data)))
        if not piece:
            os._exit(0)
        data += piece
    return bytes(data)


def _send(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]

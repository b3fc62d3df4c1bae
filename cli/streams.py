"""Standard input, output and error for commands, made safe to use: they may be closed, full, or without a reader.

Imports nothing of ours and little else: it runs before the program is loaded.
"""

import errno
import io
import os
import sys
from typing import Any, TextIO

_UNUSABLE = 2  # as cli.output, which is not imported yet


class OutputFailed(OSError):
    """A write to standard output failed. Raised once; later output is dropped."""

    @property
    def unread(self) -> bool:
        """Whether the reader has closed it, which is no error."""
        return self.errno == errno.EPIPE


class _Out(io.FileIO):
    """A descriptor that drops output that it cannot write. With `telling`, the first failure raises OutputFailed."""

    def __init__(self, descriptor: int, *, telling: bool) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._telling = telling
        self._dropping = False

    def write(self, data: "bytes | bytearray | memoryview", /) -> int:  # type: ignore[override]
        if not self._dropping:
            try:
                return super().write(data)
            except OSError as error:
                if self._telling:
                    self._dropping = True
                    raise OutputFailed(error.errno, error.strerror) from None
                # Standard error is tried again with the next line: the full disk of a log may have room by then.
        return memoryview(data).nbytes


class _Closed(io.TextIOWrapper):
    """Replaces a stream that was closed at the start: reads are at the end of file, and output is dropped."""


def complete() -> None:
    """Set up all three streams. Closed ones are replaced by ones without input that drop their output.

    Documents are UTF-8 whatever the locale says, and file names may not be valid text.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        there: TextIO | None = getattr(sys, name)
        if there is None:
            # Takes the number of the closed one, as the lowest free one: no store or socket may get it later.
            descriptor = os.open(os.devnull, os.O_RDWR)
            reading, writing = (io.FileIO(descriptor, mode, closefd=False) for mode in ("rb", "wb"))
            pair: Any = io.BufferedRWPair(reading, writing)  # has all that TextIOWrapper uses (io module)
            stream: TextIO = _Closed(pair, "utf-8", "backslashreplace")
        elif number:
            raw: io.RawIOBase = _Out(there.fileno(), telling=number == 1)
            lines = number == 2 or there.isatty()
            stream = io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=lines)
        else:
            continue
        setattr(sys, name, stream)


def any_closed() -> bool:
    """Whether one of the three was closed at the start."""
    return any(isinstance(stream, _Closed) for stream in (sys.stdin, sys.stdout, sys.stderr))


def finish(code: int) -> int:
    """Flush standard output; returns the exit code, or an error code if that fails."""
    try:
        sys.stdout.flush()
    except OutputFailed as failed:
        if not failed.unread:
            print(f"error: standard output: {failed.strerror}", file=sys.stderr)
            return code or _UNUSABLE
    return code

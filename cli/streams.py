"""Standard input, output and error as commands have them, whatever they are: closed, full, or without a reader.

Imports nothing of ours and little else: it is in place before the program is loaded.
"""

import errno
import io
import os
import sys
from typing import Any, TextIO

_UNUSABLE = 2  # as cli.output, which is not imported yet


class OutputFailed(OSError):
    """Standard output takes no more. Raised once; what is written after that is dropped."""

    @property
    def unread(self) -> bool:
        """Whether its reader has closed it, which is no fault."""
        return self.errno == errno.EPIPE


class _Out(io.FileIO):
    """A descriptor that drops what it cannot write. With `telling`, the first time is an OutputFailed."""

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
                # A log on a disk that is full is tried again: there may be room by then.
        return memoryview(data).nbytes


class _Closed(io.TextIOWrapper):
    """Stands in for a stream that was closed when the program began: nothing to read, and nothing is kept."""


def complete() -> None:
    """Give the program all three streams. Of those that are closed nothing is read, and what is written is dropped.

    Documents are UTF-8 whatever the locale says, and file names may be no text at all.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        there: TextIO | None = getattr(sys, name)
        if there is None:
            # Takes the number of the closed one, the lowest that is free: no store or socket may have it later.
            descriptor = os.open(os.devnull, os.O_RDWR)
            reading, writing = (io.FileIO(descriptor, mode, closefd=False) for mode in ("rb", "wb"))
            pair: Any = io.BufferedRWPair(reading, writing)  # all that a text stream uses, says the io module
            stream: TextIO = _Closed(pair, "utf-8", "backslashreplace")
        elif number:
            raw: io.RawIOBase = _Out(there.fileno(), telling=number == 1)
            lines = number == 2 or there.isatty()
            stream = io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=lines)
        else:
            continue
        setattr(sys, name, stream)


def any_closed() -> bool:
    """Whether one of the three was closed when the program began."""
    return any(isinstance(stream, _Closed) for stream in (sys.stdin, sys.stdout, sys.stderr))


def finish(code: int) -> int:
    """Write out what is left; returns the exit code, which is another one where that fails."""
    try:
        sys.stdout.flush()
    except OutputFailed as failed:
        if not failed.unread:
            print(f"error: standard output: {failed.strerror}", file=sys.stderr)
            return code or _UNUSABLE
    return code

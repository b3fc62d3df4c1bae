"""The conversation with a confined process that answers in plain numbers and bytes: extractors, and a model."""

import os
from collections.abc import AsyncIterator

import msgspec
import trio

from sandbox.wire import messages
from sandbox.wire.frame import HEADER_BYTES
from sandbox.wire.messages import LayerReport, Ready

READ_BYTES = 64 * 1024  # of one read; decoding so much takes 50 us
_MAX_READY_BYTES = 64 * 1024


class Ended(Exception):
    """The process closed its end, or sent what is no answer."""


class Pipe:
    """What a process sends, presumed hostile: never more is read ahead than one read returns."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = b""

    async def pieces(self, size: int) -> AsyncIterator[bytes]:
        """So many bytes, as they come. Raises Ended where they end earlier."""
        while size:
            if not self._buffer:
                await trio.lowlevel.checkpoint()
                self._buffer = await self._read()
            piece, self._buffer = self._buffer[:size], self._buffer[size:]
            size -= len(piece)
            yield piece

    async def exactly(self, size: int) -> bytes:
        """So many bytes. Raises Ended where they end earlier."""
        return b"".join([piece async for piece in self.pieces(size)])

    async def _read(self) -> bytes:
        while True:
            try:
                data = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._fd)
                continue
            if not data:
                raise Ended
            return data


async def read_layers(pipe: Pipe) -> tuple[LayerReport, ...] | None:
    """What a new process reports; None where it ended."""
    try:
        size = int.from_bytes(await pipe.exactly(HEADER_BYTES), "big")
        if size > _MAX_READY_BYTES:
            return None
        ready = messages.decode_from_worker(await pipe.exactly(size))
    except (Ended, msgspec.MsgspecError):
        return None
    return ready.layers if isinstance(ready, Ready) and ready.version == messages.PROTOCOL_VERSION else None


async def send(fd: int, *parts: bytes) -> None:
    """Write all of it, or as much as the process takes before it ends."""
    for part in parts:
        rest = memoryview(part)
        while rest:
            try:
                rest = rest[os.write(fd, rest) :]
                await trio.lowlevel.checkpoint()
            except BlockingIOError:
                await trio.lowlevel.wait_writable(fd)
            except BrokenPipeError:
                return

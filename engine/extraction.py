"""Texts of PDF, Office and HTML files: each file goes to a confined process of its own (`sandbox/extraction/`).

The zygote of these processes is started for the first file, and ends when there was none for a while.
"""

import codecs
import os
import signal
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import PurePosixPath

import structlog
import trio

from engine.config import Config
from engine.workers.pipe import Ended, Pipe, read_layers, send
from engine.workers.zygote import Child, Zygote, ZygoteLost, open_zygote
from knowledge.connectors import Unfinished
from knowledge.extraction import Extracted, Unreadable
from sandbox.wire.extraction import (
    ANSWER,
    FORMATS,
    MAX_PAGES,
    MAX_TEXT_BYTES,
    MAX_TITLE_BYTES,
    REQUEST,
    Format,
    Reason,
)
from sandbox.wire.layers import REQUIRED
from sandbox.wire.limits import MIB
from sandbox.wire.messages import LayerReport
from storage.metering import spent

log = structlog.get_logger("engine.extraction")

# Of one file. A book of 1,000 pages takes 2 s of CPU time and 100 MiB.
CPU_S = 30.0
MEMORY_BYTES = 512 * MIB
# Where other processes leave it no processor.
WALL_S = 120.0
AT_ONCE = 2
# A template of 60 MB, which takes half a second to start.
IDLE_S = 20.0
# Files share the address space layout of their zygote: it is replaced after so many.
FORKS_PER_ZYGOTE = 1_000
# How long a process may live that has closed its end.
EXIT_S = 1.0

_BOOT = """
import sys
sys.path.extend(sys.argv[5:])
from sandbox.extraction.main import main
main(*map(int, sys.argv[1:4]), sys.argv[4])
"""

_MAGIC = b"%PDF-"
_BY_SUFFIX = {suffix: each for each in FORMATS for suffix in each.suffixes}
_BY_TYPE = {each.content_type: each for each in FORMATS if each.content_type}
_BY_TYPE |= {"application/xhtml+xml": _BY_SUFFIX[".xhtml"]}
_PAGE = _BY_SUFFIX[".html"]
(_PAGE_AS_TEXT,) = (each for each in FORMATS if each.name == "html_text")
_PDF = _BY_SUFFIX[".pdf"]

_REASONS = {
    Reason.DAMAGED: "cannot be read as a {title}: damaged, cut off, or of another format",
    Reason.ENCRYPTED: "encrypted with a password",
    Reason.NO_TEXT: "no text",
    Reason.MEMORY: f"takes more than {MEMORY_BYTES // MIB} MiB of memory to read",
    Reason.TOO_MUCH_TEXT: f"has more than {MAX_TEXT_BYTES // MIB} MiB of text",
    Reason.TOO_MANY_PAGES: f"has more than {MAX_PAGES:,} pages",
    Reason.OTHER: "of a format of Office before 2007; save it as .docx, .pptx or .xlsx",
    Reason.INFLATES: "unpacks to more than any document needs",
    Reason.MISSING: "a {title}, for which the extra `documents` has to be installed",
}


def format_of(name: str, data: bytes, content_type: str | None = None) -> Format | None:
    """The format of a file; None for text."""
    if data.startswith(_MAGIC):
        return _PDF
    if content_type is not None and (found := _BY_TYPE.get(content_type.partition(";")[0].strip().lower())):
        return found
    return _BY_SUFFIX.get(PurePosixPath(name).suffix.lower())


def missing() -> tuple[str, ...]:
    """The formats whose libraries are not installed."""
    return tuple(each.name for each in FORMATS if find_spec(each.library) is None)


class Extractor:
    """Made by `open_extractor`, whose block it does not outlive."""

    def __init__(self, nursery: trio.Nursery, required: frozenset[str], layers_off: tuple[str, ...]) -> None:
        self._nursery = nursery
        self._required = required
        self._layers_off = layers_off
        self._room = trio.CapacityLimiter(AT_ONCE)
        self._starting = trio.Lock()
        self._zygote: Zygote | None = None
        self._used_at = 0.0

    @property
    def running(self) -> bool:
        """Whether it has a zygote now."""
        return self._zygote is not None and not self._zygote.lost.is_set()

    def takes(self, name: str, data: bytes, content_type: str | None = None) -> bool:
        """As the protocol says."""
        return format_of(name, data, content_type) is not None

    async def extract(self, name: str, data: bytes, content_type: str | None = None) -> Extracted:
        """As the protocol says. The file is read within `CPU_S`, `WALL_S` and `MEMORY_BYTES`."""
        form = format_of(name, data, content_type)
        if form is None:
            raise Unreadable("of no format that can be extracted")
        return await self._read(form, name, data)

    async def page(self, data: bytes, *, markdown: bool) -> str:
        """The text of an HTML page, as Markdown or without any marks. Raises as `extract` does."""
        return (await self._read(_PAGE if markdown else _PAGE_AS_TEXT, "", data)).body.strip("\n")

    async def _read(self, form: Format, name: str, data: bytes) -> Extracted:
        if not data:
            raise Unreadable("empty")
        if find_spec(form.library) is None:
            raise Unfinished(_reason(Reason.MISSING, form))
        async with self._confined() as (child, pipe, _):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, child.to_worker, REQUEST.pack(form.number, len(data)), data)
                answer = await _answer(pipe)
                nursery.cancel_scope.cancel()
            if isinstance(answer, Reason):
                raise Unreadable(_reason(answer, form))
            if answer is None:
                raise Unreadable(await _why(child, form))
        body, title, pages = answer
        return Extracted(body, title or PurePosixPath(name).name, form.content_type, pages)

    async def prove(self) -> tuple[LayerReport, ...]:
        """The layers of a new extractor. Raises Unreadable when there is none, or a required one is missing."""
        async with self._confined() as (_, _, layers):
            return layers

    @asynccontextmanager
    async def _confined(self) -> AsyncIterator[tuple[Child, Pipe, tuple[LayerReport, ...]]]:
        """A new extractor, confined and without a file, for `WALL_S`; it does not outlive the block."""
        async with self._room:
            try:
                zygote = await self._current_zygote()
                child = await zygote.fork(cpu_s=CPU_S, memory_bytes=MEMORY_BYTES, layers_off=self._layers_off)
            except ZygoteLost as lost:
                log.error("no extractor", reason=str(lost))
                raise Unfinished("no extractor could be started; see `engine doctor`") from None
            try:
                for fd in (child.to_worker, child.from_worker):
                    os.set_blocking(fd, False)
                pipe = Pipe(child.from_worker)
                with trio.move_on_after(WALL_S) as wall:
                    yield child, pipe, self._checked(await read_layers(pipe))
                if wall.cancelled_caught:
                    raise Unreadable(f"took more than {WALL_S:g} s to read")
            finally:
                child.signal(signal.SIGKILL)
                with trio.CancelScope(shield=True):  # safe to shield: SIGKILL cannot be refused
                    await child.ended.wait()
                spent(child.cpu_s)
                child.close()
                self._used_at = trio.current_time()

    def _checked(self, layers: tuple[LayerReport, ...] | None) -> tuple[LayerReport, ...]:
        """The layers, trusted as they are: until the file comes, nothing is in the process that is not ours."""
        if layers is None:
            raise Unfinished("an extractor ended before it was ready")
        for name in sorted(self._required - {layer.name for layer in layers if layer.state == "active"}):
            log.error("extractors are not confined", layer=name)
            raise Unfinished(f"an extractor lacks the layer {name!r} ([sandbox] require)")
        return layers

    async def _current_zygote(self) -> Zygote:
        async with self._starting:
            last = self._zygote
            if last is None or last.lost.is_set() or last.forks >= FORKS_PER_ZYGOTE:
                self._zygote = await self._nursery.start(self._host_zygote)
                if last is not None:
                    last.retire()
            assert self._zygote is not None
            return self._zygote

    async def _host_zygote(self, task_status: trio.TaskStatus[Zygote]) -> None:
        async with open_zygote(
            # Each at its ceiling, with what the interpreter needs besides.
            memory_bytes=AT_ONCE * (MEMORY_BYTES + 64 * MIB) + 256 * MIB,
            # The launcher, the zygote, and as many that are ending.
            processes=2 + 2 * AT_ONCE,
            layers_off=self._layers_off,
            boot=_BOOT,
        ) as zygote:
            task_status.started(zygote)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._retire_idle, zygote)
                await zygote.ended()
                nursery.cancel_scope.cancel()

    async def _retire_idle(self, zygote: Zygote) -> None:
        """Let the zygote end when it had no file for `IDLE_S`."""
        while True:
            await trio.sleep(IDLE_S / 2)
            used = self._starting.locked() or self._room.borrowed_tokens
            if not used and trio.current_time() >= self._used_at + IDLE_S:
                break
        if self._zygote is zygote:
            self._zygote = None
        zygote.retire()


@asynccontextmanager
async def open_extractor(config: Config) -> AsyncIterator[Extractor]:
    """An Extractor with the layers of `[sandbox]`. At the end of the block its processes have ended."""
    required = REQUIRED if config.sandbox.require is None else config.sandbox.require
    try:
        async with trio.open_nursery() as nursery:
            yield Extractor(nursery, frozenset(required), config.sandbox.disable)
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # The nursery wraps what the block raised; its own tasks raise nothing.
        if len(group.exceptions) != 1:
            raise
        raise group.exceptions[0] from group.exceptions[0].__cause__


def _reason(reason: Reason, form: Format) -> str:
    if reason is Reason.NO_TEXT and form is _PDF:
        return "no text, a scan?"
    return _REASONS[reason].format(title=form.title)


async def _why(child: Child, form: Format) -> str:
    """Why there was no answer, by how the process ended; it is killed where it lives on."""
    with trio.move_on_after(EXIT_S):
        await child.ended.wait()
    status = child.status if child.ended.is_set() else None
    killer = None if status is None else status & 0x7F  # WTERMSIG
    if killer == signal.SIGSYS:
        log.warning("an extractor was stopped at a system call that is not allowed", format=form.name)
        return "stopped by the sandbox: reading it led to a system call that no document needs"
    if killer == signal.SIGKILL and child.cpu_s >= CPU_S:
        return f"takes more than {CPU_S:g} s of CPU time to read"
    if killer == signal.SIGKILL:
        return _REASONS[Reason.MEMORY]
    if killer:
        # PDFium and libraries in Rust abort where they get no memory.
        return f"crashed its reader: a damaged {form.title}, or one that takes more than {MEMORY_BYTES // MIB} MiB"
    log.warning("an extractor gave no answer", format=form.name, status=status)
    return "its reader gave no answer that is one"


# ---- the conversation -----------------------------------------------------------------------------------------------


async def _answer(pipe: Pipe) -> tuple[str, str, tuple[int, ...]] | Reason | None:
    """Text, title and pages, or why there are none; None for what is no answer."""
    try:
        number, titled, pages, size = ANSWER.unpack(await pipe.exactly(ANSWER.size))
        reason = Reason(number)
        if reason is not Reason.OK:
            return reason
        if titled > MAX_TITLE_BYTES or pages > MAX_PAGES or size > MAX_TEXT_BYTES:
            return None
        title = (await pipe.exactly(titled)).decode()
        starts = struct.unpack(f">{pages}I", await pipe.exactly(4 * pages))
        body = await _text(pipe, size)
    except (Ended, ValueError):  # UnicodeDecodeError is one
        return None
    if list(starts) != sorted(starts) or (starts and starts[-1] > len(body)):
        return None
    return body, "".join(each if each.isprintable() else " " for each in title).strip(), starts


async def _text(pipe: Pipe, size: int) -> str:
    """So many bytes of UTF-8, decoded as they come. Raises Ended, ValueError."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    parts = [decoder.decode(piece) async for piece in pipe.pieces(size)]
    parts.append(decoder.decode(b"", final=True))
    if any("\0" in part for part in parts):
        raise ValueError("a text with NUL")
    return "".join(parts)

"""A sentence model in one confined process for all tenants (`sandbox/embedding/`), of low priority.

It is started for the first text, replaced after a fault, and ends when there was no text for a while.
"""

import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog
import trio

from engine.config import Config
from engine.workers.pipe import Ended, Pipe, read_layers, send
from engine.workers.zygote import Child, Zygote, ZygoteLost, open_zygote
from knowledge.embedding import EmbeddingError
from sandbox.wire.embedding import ANSWER, LENGTH, MAX_PIECES, MAX_TEXTS, REQUEST, Reason
from sandbox.wire.layers import REQUIRED
from sandbox.wire.limits import MIB
from sandbox.wire.messages import LayerReport
from storage.metering import spent

log = structlog.get_logger("engine.embedding")

# Reading weights, parsing them and packing them for the processor takes four times their size; the rest is for a text.
MEMORY_BYTES = 640 * MIB
MEMORY_PER_WEIGHTS = 6
# A request takes 0.5 s of CPU time at most, and a process of the lowest priority may wait long for it.
WALL_S = 120.0
# 20,000 texts of 256 pieces take an hour and a half. Then the process is replaced, before the kernel ends it.
TEXTS_PER_PROCESS = 20_000
CPU_S = 4 * 3600.0
# 300 MB are kept for the next text, which would else wait for 0.7 s.
IDLE_S = 300.0

_BOOT = """
import sys
sys.path.extend(sys.argv[5:])
from sandbox.embedding.main import main
main(*map(int, sys.argv[1:4]), sys.argv[4], {file!r}, {sha256!r})
"""

_REASONS = {
    Reason.UNREADABLE: "the weights are no model of sentences in ONNX that onnxruntime can run",
    Reason.MEMORY: "the model takes more memory than it may have",
    Reason.FAILED: "the model cannot run on a text",
}
_ENDED = "the process of the model ended"


@dataclass(frozen=True, slots=True)
class Weights:
    """A file of weights. `changed` is what to say where it is not the file of this hash, or is gone."""

    file: Path
    sha256: str
    size: int
    dims: int
    changed: str


class _Fault(Exception):
    """The process is of no more use. The text says why; `lasting` where another one would end the same way."""

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting


@dataclass(eq=False, slots=True)
class _Job:
    """The pieces of some texts; `done` when there are vectors, or an error."""

    texts: Sequence[Sequence[int]]
    done: trio.Event = field(default_factory=trio.Event)
    vectors: bytes = b""
    cpu_s: float = 0.0
    began_s: float | None = None  # when the process got it
    error: str | None = None
    again: bool = True  # whether a zygote that is lost under it may be replaced


class ModelProcess:
    """Made by `open_model`, whose block it does not outlive. May be used by several tasks at once."""

    def __init__(
        self, nursery: trio.Nursery, weights: Weights, required: frozenset[str], layers_off: tuple[str, ...]
    ) -> None:
        self._nursery = nursery
        self._weights = weights
        self._required, self._layers_off = required, layers_off
        # Jobs that no process has seen. A single text is a query mostly: it goes before those of documents.
        self._single: deque[_Job] = deque()
        self._others: deque[_Job] = deque()
        self._arrived = trio.Event()
        self._hosted = False
        # The layers that the last process proved.
        self.layers: tuple[LayerReport, ...] = ()

    @property
    def running(self) -> bool:
        """Whether it has a process, or starts one."""
        return self._hosted

    async def run(self, texts: Sequence[Sequence[int]]) -> bytes:
        """A vector for each text, given as the numbers of its pieces, one behind the other. Raises EmbeddingError.

        At most MAX_TEXTS texts, each of at most MAX_PIECES pieces. Where the caller is cancelled, the work goes on.
        """
        assert len(texts) <= MAX_TEXTS
        assert all(0 < len(text) <= MAX_PIECES for text in texts)
        job = _Job(texts)
        queue = self._queue(job)
        queue.append(job)
        self._arrived.set()
        if not self._hosted:
            self._hosted = True
            self._nursery.start_soon(self._host)
        try:
            await job.done.wait()
        except trio.Cancelled:
            if job in queue:  # before its turn
                queue.remove(job)
            elif job.began_s is not None:  # one thread computes it, and cannot have spent more so far
                spent(trio.current_time() - job.began_s)
            raise
        if job.error is not None:
            raise EmbeddingError(job.error)
        spent(job.cpu_s)
        return job.vectors

    def _queue(self, job: _Job) -> deque[_Job]:
        return self._single if len(job.texts) == 1 else self._others

    # ---- the host: one task while there is a zygote ----------------------------------------------------------------

    async def _host(self) -> None:
        try:
            while self._single or self._others:
                await self._with_zygote()
        finally:
            self._hosted = False

    async def _with_zygote(self) -> None:
        """Serve jobs with one zygote until there are none for a while, or it is lost."""
        memory = self._memory_bytes()
        try:
            async with open_zygote(
                memory_bytes=memory + 512 * MIB,
                # The launcher, the zygote, and a model beside one that is ending.
                processes=4,
                layers_off=self._layers_off,
                boot=_BOOT.format(file=str(self._weights.file), sha256=self._weights.sha256),
            ) as zygote:
                await self._serve(zygote)
        except ZygoteLost as lost:
            log.error("no process for the model", reason=str(lost))
            self._fail("no process for the model could be started; see `engine doctor`")

    def _memory_bytes(self) -> int:
        return MEMORY_BYTES + MEMORY_PER_WEIGHTS * self._weights.size

    def _fail(self, reason: str) -> None:
        """Nothing can be done for the jobs that wait."""
        for queue in (self._single, self._others):
            while queue:
                job = queue.popleft()
                job.error = reason
                job.done.set()

    async def _serve(self, zygote: Zygote) -> None:
        model: _Model | None = None
        try:
            while (job := await self._next()) is not None:
                for remaining in (1, 0):
                    try:
                        if model is None:
                            model = await self._start(zygote)
                        job.began_s = trio.current_time()
                        job.vectors, job.cpu_s = await model.answer(job.texts)
                        break
                    except _Fault as fault:
                        await _ended(model)
                        killer = None if model is None or model.child.status is None else model.child.status & 0x7F
                        by_sandbox = killer == signal.SIGSYS  # WTERMSIG
                        log.warning("the model is replaced", reason=str(fault), stopped_by_the_sandbox=by_sandbox)
                        model = None
                        if fault.lasting or not remaining:
                            job.error = str(fault)
                            break
                    except ZygoteLost as lost:
                        log.error("no process for the model", reason=str(lost))
                        if job.again:  # with the next zygote
                            job.again = False
                            self._queue(job).appendleft(job)
                        else:
                            job.error = _ENDED
                        return
                    finally:
                        if job.vectors or job.error is not None:
                            job.done.set()
                if model is not None and model.texts >= TEXTS_PER_PROCESS:
                    await _ended(model)
                    model = None
        finally:
            await _ended(model)

    async def _next(self) -> _Job | None:
        """The next job; None when there is none for `IDLE_S`."""
        with trio.move_on_after(IDLE_S):
            while not (self._single or self._others):
                self._arrived = trio.Event()
                await self._arrived.wait()
        queue = self._single or self._others
        return queue.popleft() if queue else None

    async def _start(self, zygote: Zygote) -> "_Model":
        """A process that is confined and has loaded the weights. Raises _Fault, ZygoteLost."""
        child = await zygote.fork(cpu_s=CPU_S, memory_bytes=self._memory_bytes(), layers_off=self._layers_off)
        model = _Model(child, self._weights.dims)
        try:
            await self._ready(model)
        except BaseException:
            await _ended(model)
            raise
        return model

    async def _ready(self, model: "_Model") -> None:
        with trio.move_on_after(WALL_S):
            layers = await read_layers(model.pipe)
            if layers is None:
                raise _Fault("the process of the model ended before it was ready")
            # Trusted as they are: until the weights are parsed, nothing is in the process that is not ours.
            for name in sorted(self._required - {each.name for each in layers if each.state == "active"}):
                raise _Fault(f"the process of the model lacks the layer {name!r} ([sandbox] require)", lasting=True)
            self.layers = layers
            reason, dims, _ = await model.head()
            if reason is Reason.CHANGED:
                raise _Fault(self._weights.changed, lasting=True)
            if reason is not Reason.OK:
                raise _Fault(_REASONS[reason], lasting=True)
            if dims != self._weights.dims:
                raise _Fault(f"the model makes vectors of {dims} numbers, not of {self._weights.dims}", lasting=True)
            return
        raise _Fault(f"the model takes more than {WALL_S:g} s to load")


class _Model:
    """A process that has the weights, or is about to; what it sends is presumed hostile."""

    def __init__(self, child: Child, dims: int) -> None:
        for fd in (child.to_worker, child.from_worker):
            os.set_blocking(fd, False)
        self.child = child
        self.pipe = Pipe(child.from_worker)
        self.texts = 0
        self._dims = dims

    async def head(self) -> tuple[Reason, int, float]:
        """The head of an answer. Raises _Fault."""
        try:
            number, value, cpu_s = ANSWER.unpack(await self.pipe.exactly(ANSWER.size))
            return Reason(number), value, cpu_s
        except (Ended, ValueError):
            raise _Fault(_ENDED) from None

    async def answer(self, texts: Sequence[Sequence[int]]) -> tuple[bytes, float]:
        """Their vectors, and the CPU seconds that they took. Raises _Fault."""
        self.texts += len(texts)
        began_s = trio.current_time()
        lengths = b"".join(LENGTH.pack(len(text)) for text in texts)
        pieces = b"".join(piece.to_bytes(4, "little") for text in texts for piece in text)
        with trio.move_on_after(WALL_S):
            await send(self.child.to_worker, REQUEST.pack(len(texts)) + lengths + pieces)
            reason, size, cpu_s = await self.head()
            most_s = trio.current_time() - began_s  # one thread cannot have spent more
            if reason is not Reason.OK:
                raise _Fault(_REASONS.get(reason, _ENDED), lasting=reason is Reason.FAILED)
            if size != 4 * self._dims * len(texts):
                raise _Fault("the process of the model gave no answer that is one")
            try:
                return await self.pipe.exactly(size), cpu_s if 0 <= cpu_s <= most_s else most_s
            except Ended:
                raise _Fault(_ENDED) from None
        raise _Fault(f"the model takes more than {WALL_S:g} s")


async def _ended(model: _Model | None) -> None:
    """End its process, and wait until it has."""
    if model is not None:
        model.child.signal(signal.SIGKILL)
        with trio.CancelScope(shield=True):  # safe to shield: SIGKILL cannot be refused
            await model.child.ended.wait()
        model.child.close()


@asynccontextmanager
async def open_model(config: Config, weights: Weights) -> AsyncIterator[ModelProcess]:
    """A ModelProcess with the layers of `[sandbox]`. At the end of the block its process has ended."""
    required = REQUIRED if config.sandbox.require is None else config.sandbox.require
    try:
        async with trio.open_nursery() as nursery:
            yield ModelProcess(nursery, weights, frozenset(required), config.sandbox.disable)
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # The nursery wraps what the block raised; its own tasks raise nothing.
        if len(group.exceptions) != 1:
            raise
        raise group.exceptions[0] from group.exceptions[0].__cause__

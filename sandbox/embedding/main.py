"""The zygote of a sentence model, which holds onnxruntime and the file of the weights; and the model's process."""

import gc
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from sandbox.confine import confine
from sandbox.confine.plan import FleetPlan, Plan
from sandbox.launcher import EXIT_BROKEN, Serve, launch
from sandbox.wire import messages
from sandbox.wire.embedding import ANSWER, LENGTH, MAX_DIMS, MAX_PIECES, MAX_TEXTS, REQUEST, Reason
from sandbox.wire.frame import encode_frame
from sandbox.wire.messages import LayerReport, Ready

# onnxruntime looks for settings, devices and the number of processors. There is nothing to find.
REFUSED_CALLS: tuple[str, ...] = ()
# Runs and their supervisor come first, and other searches.
NICENESS = 19
_READ_BYTES = 1 << 20

# From the pieces of one text to its vector, of any length.
Run = Callable[[Sequence[int]], Any]


def main(control_fd: int, memory_bytes: int, processes: int, off: str, file: str, sha256: str) -> NoReturn:
    """Be the zygote of a model until the supervisor closes the socket."""
    os.nice(NICENESS)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    fleet = FleetPlan(memory_bytes=memory_bytes, processes=processes, off=tuple(filter(None, off.split(","))))
    launch(control_fd, fleet, partial(_warm_up, file, sha256), REFUSED_CALLS)


def _warm_up(file: str, sha256: str) -> Serve:
    # numpy's library of linear algebra would start a thread for each core.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    with open(file, "rb") as weights:
        data = weights.read()
    # The bytes that are checked are those that are loaded: the file may change meanwhile.
    checked = data if hashlib.sha256(data).hexdigest() == sha256 else None
    gc.collect()
    gc.freeze()
    return partial(serve, checked)


def serve(weights: bytes | None, plan: Plan, inherited: tuple[LayerReport, ...]) -> NoReturn:
    """Confine, say Ready, load the model, answer requests until the channel ends."""
    try:
        layers = inherited + confine(plan)
        _send(plan.fd_out, encode_frame(messages.encode(Ready(messages.PROTOCOL_VERSION, layers))))
        reason, run, dims = _load(weights)
        _send(plan.fd_out, ANSWER.pack(reason, dims, 0.0))
        while run is not None:
            (count,) = REQUEST.unpack(_receive(plan.fd_in, REQUEST.size))
            _send(plan.fd_out, _answer(run, _texts(plan.fd_in, count)))
        os._exit(0)
    except BaseException:  # a traceback would open source files
        os._exit(EXIT_BROKEN)


def _load(weights: bytes | None) -> tuple[Reason, Run | None, int]:
    """The model, and the length of its vectors: it makes one. What is in the file is parsed here, confined."""
    if weights is None:
        return Reason.CHANGED, None, 0
    try:
        run = _model(weights)
        dims = len(run((0, 0)))
    except MemoryError:
        return Reason.MEMORY, None, 0
    except Exception:  # what a file that is no model makes a library raise
        return Reason.UNREADABLE, None, 0
    return (Reason.OK, run, dims) if 0 < dims <= MAX_DIMS else (Reason.UNREADABLE, None, 0)


def _model(weights: bytes) -> Run:
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    # One thread: none is started. Its arena stays on: without it, the memory of a long text is twice as much.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    session = ort.InferenceSession(weights, options, providers=["CPUExecutionProvider"])
    wanted = {each.name for each in session.get_inputs()}
    output = session.get_outputs()[0].name

    def run(pieces: Sequence[int]) -> Any:
        # A text at a time: in a batch, each would take as long as the longest, and twice as long for each piece.
        ids = np.array([pieces], np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (found,) = session.run([output], {name: each for name, each in given.items() if name in wanted})
        # An output for each piece, whose mean is the text's, or the text's itself.
        row = found[0].mean(0) if found.ndim == 3 else found[0]
        length = np.linalg.norm(row)
        return (row / length if length > 0 else row).astype("<f4")

    return run


def _answer(run: Run, texts: Sequence[Sequence[int]]) -> bytes:
    began_s = time.process_time()
    try:
        vectors = b"".join(run(pieces).tobytes() for pieces in texts)
    except MemoryError:
        return ANSWER.pack(Reason.MEMORY, 0, 0.0)
    except Exception:
        return ANSWER.pack(Reason.FAILED, 0, 0.0)
    return ANSWER.pack(Reason.OK, len(vectors), time.process_time() - began_s) + vectors


def _texts(fd: int, count: int) -> list[Any]:
    import numpy as np

    if count > MAX_TEXTS:
        os._exit(EXIT_BROKEN)
    lengths = [LENGTH.unpack(_receive(fd, LENGTH.size))[0] for _ in range(count)]
    if any(length > MAX_PIECES for length in lengths):
        os._exit(EXIT_BROKEN)
    return [np.frombuffer(_receive(fd, 4 * length), "<u4") for length in lengths]


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

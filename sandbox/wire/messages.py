"""The wire between supervisor and worker: typed messages in msgpack, and which of them is legal in which state.

Strict alternation: the worker sends Ready once; then for each Run any number of Log, Progress, HostCall and HostCalls,
each of the last two answered by one HostReply; then exactly one Done or Failed. Values inside messages are opaque bytes
(msgpack): the worker's Python half never parses them, and the supervisor does so within its own bounds.
A worker is presumed hostile: decoding into these types, with a maximum frame size, is the first check of its messages.
"""

from enum import IntEnum, auto
from typing import Annotated, Any, Literal

import msgspec

PROTOCOL_VERSION = 6

LayerState = Literal["active", "unavailable", "off"]


class LayerReport(msgspec.Struct, frozen=True, array_like=True):
    """One layer of confinement as the worker found it: `detail` says how it is in effect, or the errno, in short."""

    name: str
    state: LayerState
    detail: str = ""


class Run(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    """Supervisor to worker: execute. `args` is four msgpack values: arguments, config, names of tools, secrets; and a
    fifth, `context.caller`, for a script whose text has that word.

    `source` is None for a script in the worker's `ScriptCache`, whose key is `digest` and `chunk_name`.
    """

    source: bytes | None
    digest: str
    chunk_name: str
    root: str
    method: str
    args: bytes
    memory_bytes: int
    output_bytes: int
    log_bytes: int
    value_depth: int
    progress: int
    timeout_s: float = 0.0


class BundleRun(Run, frozen=True, array_like=True, tag="bundle"):
    """Supervisor to worker: execute a script that is not cached and requires files, which are `modules` by name.

    A message of its own, so that the Run of other scripts is as small as it was.
    """

    modules: tuple[tuple[str, bytes], ...] = ()


class HostReply(msgspec.Struct, frozen=True, array_like=True, tag="reply"):
    """Supervisor to worker: the answer of a host call, a msgpack value if `ok`, else the text of an error.

    `call` is the number of the call that it answers, in HostCalls; 0 answers a HostCall.
    """

    ok: bool
    value: bytes
    call: int = 0


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """Worker to supervisor, once: confinement is done. `version` guards against a zygote of another release."""

    version: int
    layers: tuple[LayerReport, ...]


class HostCall(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """Worker to supervisor: a call by name with a msgpack map of arguments."""

    name: str
    args: bytes


NumberedCall = tuple[int, str, bytes]


class HostCalls(msgspec.Struct, frozen=True, array_like=True, tag="calls"):
    """Worker to supervisor: start these calls (number, name, arguments) beside those under way, and answer any one.

    Numbers are above 0 and never reused in a run. An empty list waits for another answer.
    """

    calls: tuple[NumberedCall, ...]


class Log(msgspec.Struct, frozen=True, array_like=True, tag="log"):
    level: Literal["debug", "info", "warn", "error"]
    text: str


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    fraction: float
    message: str


# How many broken parts of texts became U+FFFD in this run, as the worker claims.
Replaced = Annotated[int, msgspec.Meta(ge=0, le=1 << 32)]


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """Worker to supervisor: the script's answer, one msgpack value. Decoding does not copy it: 16 MiB take 15 ms."""

    value: memoryview
    replaced: Replaced = 0


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """Worker to supervisor: the script failed. `kind` is what the worker claims; the supervisor decides."""

    kind: Literal["script_error", "wrong_shape", "memory_limit", "output_limit", "depth_limit"]
    message: str
    traceback: str
    replaced: Replaced = 0


# Between supervisor and zygote: one message a packet, on a SOCK_SEQPACKET pair. The zygote is trusted code, but only
# data is accepted from it.


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """Zygote to supervisor, once: warmed up and ready to fork."""

    version: int


class Fork(msgspec.Struct, frozen=True, array_like=True, tag="fork"):
    """Supervisor to zygote: fork a worker. `serial` identifies it in answers; the bounds are the engine's ceilings."""

    serial: int
    cpu_s: float
    memory_bytes: int
    layers_off: tuple[str, ...] = ()


class Forked(msgspec.Struct, frozen=True, array_like=True, tag="forked"):
    """Zygote to supervisor: the worker exists. Carries three descriptors: pidfd, channel to it, channel from it."""

    serial: int


class Exited(msgspec.Struct, frozen=True, array_like=True, tag="exited"):
    """Zygote to supervisor: the worker was reaped. `status` is a wait status, the rest is its resource usage.

    A negative status, without a Forked before it, is the negated errno of the fork that failed.
    """

    serial: int
    status: int
    cpu_s: float
    peak_memory_bytes: int


FromZygote = Hello | Forked | Exited

FromWorker = Ready | HostCall | HostCalls | Log | Progress | Done | Failed
ToWorker = Run | BundleRun | HostReply

_encoder = msgspec.msgpack.Encoder()
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_zygote: msgspec.msgpack.Decoder[FromZygote] = msgspec.msgpack.Decoder(FromZygote)
_to_zygote: msgspec.msgpack.Decoder[Fork] = msgspec.msgpack.Decoder(Fork)

_calls: msgspec.msgpack.Decoder[tuple[NumberedCall, ...]] = msgspec.msgpack.Decoder(tuple[NumberedCall, ...])

encode = _encoder.encode
decode_from_worker = _from_worker.decode  # raises msgspec.DecodeError or ValidationError; both are MsgspecError
decode_to_worker = _to_worker.decode
decode_calls = _calls.decode  # what the prelude packs, inside the worker
decode_from_zygote = _from_zygote.decode
decode_to_zygote = _to_zygote.decode


class State(IntEnum):
    """The state of one worker's conversation, seen from the supervisor. (IntEnum hashes faster than Enum.)"""

    STARTING = auto()
    READY = auto()
    RUNNING = auto()
    AWAITING_REPLY = auto()


# A message that is not here is a protocol violation in that state.
TRANSITIONS: dict[tuple[State, type[Any]], State] = {
    (State.STARTING, Ready): State.READY,
    (State.READY, Run): State.RUNNING,
    (State.READY, BundleRun): State.RUNNING,
    (State.RUNNING, Log): State.RUNNING,
    (State.RUNNING, Progress): State.RUNNING,
    (State.RUNNING, HostCall): State.AWAITING_REPLY,
    (State.RUNNING, HostCalls): State.AWAITING_REPLY,
    (State.AWAITING_REPLY, HostReply): State.RUNNING,
    (State.RUNNING, Done): State.READY,
    (State.RUNNING, Failed): State.READY,
}

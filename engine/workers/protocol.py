"""One worker's conversation: the only judge of what a worker may say now. No pipe, no clock: bytes in, messages out."""

import math

import msgspec

from sandbox.wire import messages
from sandbox.wire.frame import FrameDecoder, FrameTooLarge
from sandbox.wire.limits import DEFAULTS, KIB, LINE_BYTES, Limits
from sandbox.wire.messages import (
    TRANSITIONS,
    Done,
    Failed,
    HostCall,
    HostCalls,
    HostReply,
    Log,
    Progress,
    Ready,
    Run,
    State,
)

# What a message costs beside its value: tags, names, a traceback.
_ENVELOPE_BYTES = 64 * KIB
# Told to the prelude, which drops what goes beyond; a worker that sends more is not running the prelude.
MAX_PROGRESS = 1_000
# What the prelude sends of a message of progress, and of an error and its traceback, in bytes (log.lua, failure.lua).
# `sandbox.vm` may write more than was given: what is not UTF-8 takes three bytes, and names of fields become longer.
MAX_PROGRESS_BYTES = 512
MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS = 8_192, 32_768
# Payloads of at most this size are decoded without a look at what they are.
_SMALL_BYTES = 4 * KIB
# How many pieces of a frame may come one after the other beside those of at least this size: the kernel hands a large
# frame on page by page, and a worker that sends single bytes would have us read each.
_PIECES, _PIECE_BYTES = 1_024, 1_024
# Host calls that one run may have under way at once; the prelude holds more of them back (parallel.lua, AT_ONCE).
MAX_SIDE_BY_SIDE = 64


# What is bounded by its frame alone.
_FREE = frozenset({HostCall, Done, Failed, Ready})


# How a message begins in the only form in which our encoder writes it, and how large its payload may be beside the
# limit that it names (`Limits`). What begins in another way is no message of the prelude's.
_LARGEST: dict[bytes, tuple[str | None, int]] = {
    b"\x93\xa5ready": (None, 16 * KIB),
    b"\x93\xa4call": ("output_bytes", _ENVELOPE_BYTES),
    b"\x92\xa5calls": ("output_bytes", _ENVELOPE_BYTES),
    b"\x93\xa3log": ("log_bytes", _ENVELOPE_BYTES),
    b"\x93\xa8progress": (None, 2 * KIB),
    b"\x93\xa4done": ("output_bytes", _ENVELOPE_BYTES),
    b"\x95\xa6failed": (None, 128 * KIB),
}


class ProtocolViolation(Exception):
    """The worker said what it may not say. Its state cannot be trusted: it is killed, and the event is reported."""


class Conversation:
    """The supervisor's view of one worker. `sent` and `received` are called in the order of the wire."""

    def __init__(self) -> None:
        self.state = State.STARTING
        self._decoder = FrameDecoder(_ENVELOPE_BYTES)
        # Budgets of the run under way, counted down; set anew by every Run.
        self._log_bytes = 0
        self._progress = 0
        self._pieces = 0
        self._limits = DEFAULTS
        # Invariant: the numbers of the run's calls that are under way, and the highest that it has used.
        self._under_way: set[int] = set()
        self._last_call = 0

    def begin(self, message: Run, limits: Limits) -> None:
        """A Run is about to be sent: bound what may come back."""
        if not self._decoder.idle:
            raise ProtocolViolation("the worker sent something between two runs")
        self._decoder.maximum = max(limits.output_bytes, limits.log_bytes) + _ENVELOPE_BYTES
        self._log_bytes = limits.log_bytes + _ENVELOPE_BYTES
        self._progress = MAX_PROGRESS
        self._pieces = _PIECES
        self._limits = limits
        self._under_way.clear()
        self._last_call = 0
        self.sent(message)

    def sent(self, message: messages.ToWorker) -> None:
        """Record what the supervisor sends. Out of turn it is our own mistake: AssertionError."""
        following = TRANSITIONS.get((self.state, type(message)))
        assert following is not None, f"{type(message).__name__} sent in {self.state.name}"
        self.state = following
        if isinstance(message, HostReply):
            self._under_way.discard(message.call)

    def received(self, data: bytes) -> list[messages.FromWorker]:
        """The messages that these bytes complete, each legal where it stands. Raises ProtocolViolation."""
        try:
            payloads = self._decoder.feed(data)
            if not payloads:
                self._piece(len(data))
            return [self._message(payload) for payload in payloads]
        except FrameTooLarge as error:
            raise ProtocolViolation(str(error)) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolViolation(f"not a message of this protocol ({type(error).__name__})") from None

    def _piece(self, size: int) -> None:
        """A part of a frame came that completes none."""
        if size < _PIECE_BYTES:
            self._pieces -= 1
            if self._pieces < 0 and self.state is not State.STARTING:
                raise ProtocolViolation("its messages come in more pieces than a pipe cuts them into")

    def _message(self, payload: bytes) -> messages.FromWorker:
        if len(payload) > _SMALL_BYTES:
            _judge_large(payload, self._limits)
        message = messages.decode_from_worker(payload)
        following = TRANSITIONS.get((self.state, type(message)))
        if following is None:
            raise ProtocolViolation(f"{type(message).__name__} in state {self.state.name}")
        if type(message) in _FREE:
            if isinstance(message, Failed) and (
                len(message.message) > MAX_MESSAGE_CHARS or len(message.traceback) > MAX_TRACEBACK_CHARS
            ):
                raise ProtocolViolation("a longer error, or traceback, than the prelude sends")
        elif isinstance(message, Log):
            self._log_bytes -= len(message.text.encode()) + LINE_BYTES
            if self._log_bytes < 0:
                raise ProtocolViolation("more log than the limit that the worker was given")
        elif isinstance(message, Progress):
            self._progress -= 1
            too_long = len(message.message.encode()) > MAX_PROGRESS_BYTES
            if self._progress < 0 or too_long or not math.isfinite(message.fraction):
                raise ProtocolViolation("more progress, or another, than the prelude sends")
        elif isinstance(message, HostCalls):
            self._start(message)
        self.state = following
        return message

    def _start(self, message: HostCalls) -> None:
        for number, _, _ in message.calls:
            if number <= self._last_call:
                raise ProtocolViolation("a number of a host call that was used before")
            self._last_call = number
            self._under_way.add(number)
        if not 1 <= len(self._under_way) <= MAX_SIDE_BY_SIDE:
            raise ProtocolViolation(f"{len(self._under_way)} host calls under way at once")


def _judge_large(payload: bytes, limits: Limits) -> None:
    """Judge a payload by its first bytes, before any of it is decoded. Raises ProtocolViolation."""
    head = payload[: 2 + (payload[1] & 31)]
    known = _LARGEST.get(head)
    if known is None:
        raise ProtocolViolation("not a message of this protocol (head)")
    limit, more = known
    if len(payload) > (getattr(limits, limit) if limit else 0) + more:
        raise ProtocolViolation(f"a message '{head[2:].decode()}' of {len(payload)} bytes")
    if head.endswith(b"call"):
        _name_ends(payload, len(head))
    elif head.endswith(b"calls"):
        _judge_calls(payload, len(head))


def _judge_calls(payload: bytes, place: int) -> None:
    count, place = _list_length(payload, place)
    if count > MAX_SIDE_BY_SIDE:
        raise ProtocolViolation(f"{count} host calls under way at once")
    for _ in range(count):
        if payload[place : place + 1] != b"\x93":
            raise ProtocolViolation("a host call that is not a number, a name and arguments")
        place = _name_ends(payload, _number_ends(payload, place + 1))
        # The arguments: bytes, whose length the decoder holds against what there is.
        if not (width := _BYTES.get(payload[place : place + 1], 0)):
            raise ProtocolViolation("arguments of a host call that are no bytes")
        place += 1 + width + int.from_bytes(payload[place + 1 : place + 1 + width], "big")


_BYTES = {b"\xc4": 1, b"\xc5": 2, b"\xc6": 4}
_NUMBERS = {b"\xcc": 2, b"\xcd": 3, b"\xce": 5, b"\xcf": 9}


def _list_length(payload: bytes, place: int) -> tuple[int, int]:
    first = payload[place] if place < len(payload) else 0
    if first & 0xF0 == 0x90:
        return first & 15, place + 1
    width = {0xDC: 2, 0xDD: 4}.get(first)
    if width is None:
        raise ProtocolViolation("host calls that are no list")
    return int.from_bytes(payload[place + 1 : place + 1 + width], "big"), place + 1 + width


def _number_ends(payload: bytes, place: int) -> int:
    if place < len(payload) and payload[place] < 0x80:
        return place + 1
    size = _NUMBERS.get(payload[place : place + 1])
    if size is None:
        raise ProtocolViolation("a host call whose number is none")
    return place + size


def _name_ends(payload: bytes, place: int) -> int:
    """Where the name of a host call ends: short text, as all of them are."""
    first = payload[place] if place < len(payload) else 0
    if first & 0xE0 == 0xA0:
        return place + 1 + (first & 31)
    if first == 0xD9 and place + 1 < len(payload):
        return place + 2 + payload[place + 1]
    raise ProtocolViolation("a host call without a name, or with one that is none of ours")

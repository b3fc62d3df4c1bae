"""The protocol of one worker, seen from the supervisor: which message is legal now. No pipe, no clock: bytes in,
messages out. No other module decides whether a message is legal."""

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

# Bytes of a message besides its value: tags, names, a traceback.
_ENVELOPE_BYTES = 64 * KIB
# Progress messages of one run. The prelude is sent this bound and drops further ones: a worker that sends more is not
# running the prelude.
MAX_PROGRESS = 1_000
# Bounds on a progress message in bytes, and on an error and its traceback in characters. The prelude cuts these texts
# to as many bytes or fewer (log.lua, failure.lua). `sandbox.vm` may make the last two longer in bytes: one that is not
# UTF-8 becomes three, and names of fields grow.
MAX_PROGRESS_BYTES = 512
MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS = 8_192, 32_768
# Payloads up to this size are decoded without a check of their head.
_SMALL_BYTES = 4 * KIB
# How many reads of a run may complete no frame and return fewer than _PIECE_BYTES. The kernel delivers a large frame
# page by page, but a worker that sends single bytes would cost a read for each.
_PIECES, _PIECE_BYTES = 1_024, 1_024
# Host calls that one run may have under way at once; the prelude queues the rest (parallel.lua, AT_ONCE).
MAX_SIDE_BY_SIDE = 64


# Messages without a bound other than that of their size (`_check_large`).
_SIZE_ALONE = frozenset({HostCall, Done, Ready})


# The head of each message in the one form that our encoder writes, the limit that bounds its payload (`Limits`), and
# the bytes allowed beyond that. A payload with another head was not sent by the prelude.
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
    """The worker sent what is illegal now. Its state cannot be trusted: it is killed, and the event is reported."""


class Conversation:
    """The supervisor's view of one worker. `sent` and `received` are called in the order of the wire."""

    def __init__(self) -> None:
        self.state = State.STARTING
        self._decoder = FrameDecoder(_ENVELOPE_BYTES)
        # Budgets of the present run, counted down; reset by every Run.
        self._log_bytes = 0
        self._progress = 0
        self._pieces = 0
        self._limits = DEFAULTS
        # Invariant: the numbers of the run's calls that are under way, and the highest number used so far.
        self._under_way: set[int] = set()
        self._last_call = 0

    def begin(self, message: Run, limits: Limits) -> None:
        """Set the bounds of a run's messages, and record its Run, which is sent next. Raises ProtocolViolation."""
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
        """Record a message of the supervisor. An illegal one is a bug of the supervisor: AssertionError."""
        following = TRANSITIONS.get((self.state, type(message)))
        assert following is not None, f"{type(message).__name__} sent in {self.state.name}"
        self.state = following
        if isinstance(message, HostReply):
            self._under_way.discard(message.call)

    def received(self, data: bytes) -> list[messages.FromWorker]:
        """The messages that these bytes complete, each legal in its state. Raises ProtocolViolation."""
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
        """Count a read that completed no frame."""
        if size < _PIECE_BYTES:
            self._pieces -= 1
            if self._pieces < 0 and self.state is not State.STARTING:
                raise ProtocolViolation("its messages arrive in more pieces than a pipe makes")

    def _message(self, payload: bytes) -> messages.FromWorker:
        if len(payload) > _SMALL_BYTES:
            _check_large(payload, self._limits)
        message = messages.decode_from_worker(payload)
        following = TRANSITIONS.get((self.state, type(message)))
        if following is None:
            raise ProtocolViolation(f"{type(message).__name__} in state {self.state.name}")
        if type(message) not in _SIZE_ALONE:
            self._check_bounds(message)
        self.state = following
        return message

    def _check_bounds(self, message: messages.FromWorker) -> None:
        """Check a message against the bounds of the run, and count it there. Raises ProtocolViolation."""
        if isinstance(message, Log):
            self._log_bytes -= len(message.text.encode()) + LINE_BYTES
            if self._log_bytes < 0:
                raise ProtocolViolation("more log than the limit that the worker was given")
        elif isinstance(message, Progress):
            self._progress -= 1
            too_long = len(message.message.encode()) > MAX_PROGRESS_BYTES
            if self._progress < 0 or too_long or not math.isfinite(message.fraction):
                raise ProtocolViolation("more progress than the prelude sends, or in another form")
        elif isinstance(message, HostCalls):
            self._start_calls(message)
        elif isinstance(message, Failed) and (
            len(message.message) > MAX_MESSAGE_CHARS or len(message.traceback) > MAX_TRACEBACK_CHARS
        ):
            raise ProtocolViolation("a longer error, or traceback, than the prelude sends")

    def _start_calls(self, message: HostCalls) -> None:
        for number, _, _ in message.calls:
            if number <= self._last_call:
                raise ProtocolViolation("the number of an earlier host call")
            self._last_call = number
            self._under_way.add(number)
        if not 1 <= len(self._under_way) <= MAX_SIDE_BY_SIDE:
            raise ProtocolViolation(f"{len(self._under_way)} host calls under way at once")


def _check_large(payload: bytes, limits: Limits) -> None:
    """Check a payload by its first bytes, before any of it is decoded. Raises ProtocolViolation."""
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
        _check_calls(payload, len(head))


def _check_calls(payload: bytes, place: int) -> None:
    count, place = _list_length(payload, place)
    if count > MAX_SIDE_BY_SIDE:
        raise ProtocolViolation(f"{count} host calls under way at once")
    for _ in range(count):
        if payload[place : place + 1] != b"\x93":
            raise ProtocolViolation("a host call that is not a number, a name and arguments")
        place = _name_ends(payload, _number_ends(payload, place + 1))
        # The arguments: bytes, whose length the decoder checks against the payload.
        if not (width := _BYTES.get(payload[place : place + 1], 0)):
            raise ProtocolViolation("arguments of a host call that are not bytes")
        place += 1 + width + int.from_bytes(payload[place + 1 : place + 1 + width], "big")


_BYTES = {b"\xc4": 1, b"\xc5": 2, b"\xc6": 4}
_NUMBERS = {b"\xcc": 2, b"\xcd": 3, b"\xce": 5, b"\xcf": 9}


def _list_length(payload: bytes, place: int) -> tuple[int, int]:
    first = payload[place] if place < len(payload) else 0
    if first & 0xF0 == 0x90:
        return first & 15, place + 1
    width = {0xDC: 2, 0xDD: 4}.get(first)
    if width is None:
        raise ProtocolViolation("host calls that are not a list")
    return int.from_bytes(payload[place + 1 : place + 1 + width], "big"), place + 1 + width


def _number_ends(payload: bytes, place: int) -> int:
    if place < len(payload) and payload[place] < 0x80:
        return place + 1
    size = _NUMBERS.get(payload[place : place + 1])
    if size is None:
        raise ProtocolViolation("a host call without a number")
    return place + size


def _name_ends(payload: bytes, place: int) -> int:
    """Where the name of a host call ends: a short text, as every name is."""
    first = payload[place] if place < len(payload) else 0
    if first & 0xE0 == 0xA0:
        return place + 1 + (first & 31)
    if first == 0xD9 and place + 1 < len(payload):
        return place + 2 + payload[place + 1]
    raise ProtocolViolation("a host call without a short name")

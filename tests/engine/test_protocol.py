"""The conversation with one worker: what is legal when, what is bounded, and that nothing else comes out of bytes."""

import contextlib
import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, get_args

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine import loop_s

from engine.values import MAX_JSON_BYTES, MAX_VALUES, ValueRefused, decode_value, decoding, encode_value
from engine.workers.protocol import MAX_PROGRESS, Conversation, ProtocolViolation
from sandbox.wire import messages
from sandbox.wire.frame import encode_frame
from sandbox.wire.limits import DEFAULTS, KIB, MIB, Limits, limits_of
from sandbox.wire.messages import (
    TRANSITIONS,
    BundleRun,
    Done,
    Failed,
    HostCall,
    HostCalls,
    HostReply,
    LayerReport,
    Log,
    Progress,
    Ready,
    Run,
    State,
)

RUN = Run(b"", "", "t.lua", "agent", "resolve", b"", 1, 1, 1, 1, 1)


def limits(**asked: float) -> Limits:
    """The defaults, but for these."""
    return limits_of(asked)


LIMITS = limits(output_bytes=1000, log_bytes=1000)
BUNDLE_RUN = BundleRun(**msgspec.structs.asdict(RUN), modules=(("a.lua", b""),))
MESSAGES: dict[str, Any] = {
    "Ready": Ready(1, (LayerReport("seccomp", "active", ""),)),
    "HostCall": HostCall("context.search", b"\x80"),
    "HostCalls": HostCalls(((1, "context.search", b"\x80"), (2, "context.get", b"\x80"))),
    "Log": Log("info", "text"),
    "Progress": Progress(0.5, "half"),
    "Done": Done(b"\xc0"),
    "Failed": Failed("script_error", "x", ""),
}
# What a worker may say in which state, and where that leads. Nothing else is legal.
LEGAL = {
    ("STARTING", "Ready"): "READY",
    ("RUNNING", "HostCall"): "AWAITING_REPLY",
    ("RUNNING", "HostCalls"): "AWAITING_REPLY",
    ("RUNNING", "Log"): "RUNNING",
    ("RUNNING", "Progress"): "RUNNING",
    ("RUNNING", "Done"): "READY",
    ("RUNNING", "Failed"): "READY",
}
# What we may send.
SENT = {("READY", "Run"): "RUNNING", ("READY", "BundleRun"): "RUNNING", ("AWAITING_REPLY", "HostReply"): "RUNNING"}


def frame(message: Any) -> bytes:
    return encode_frame(messages.encode(message))


def conversation(state: str) -> Conversation:
    talk = Conversation()
    if state == "STARTING":
        return talk
    talk.received(frame(MESSAGES["Ready"]))
    if state in ("RUNNING", "AWAITING_REPLY"):
        talk.begin(RUN, LIMITS)
    if state == "AWAITING_REPLY":
        talk.received(frame(MESSAGES["HostCall"]))
    assert talk.state.name == state
    return talk


def test_the_matrix_has_every_message_and_every_state() -> None:
    assert set(MESSAGES) == {kind.__name__ for kind in get_args(messages.FromWorker)}
    table = {(state.name, kind.__name__): after.name for (state, kind), after in TRANSITIONS.items()}
    assert table == LEGAL | SENT


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("state", [state.name for state in State])
def test_a_message_is_legal_exactly_where_the_table_says(state: str, message: str) -> None:
    talk = conversation(state)
    if (state, message) in LEGAL:
        assert talk.received(frame(MESSAGES[message])) == [MESSAGES[message]]
        assert talk.state.name == LEGAL[state, message]
    else:
        with pytest.raises(ProtocolViolation, match=f"{message} in state {state}"):
            talk.received(frame(MESSAGES[message]))


@pytest.mark.parametrize("message", [RUN, BUNDLE_RUN, HostReply(True, b"\xc0")])
@pytest.mark.parametrize("state", [state.name for state in State])
def test_what_we_send_out_of_turn_is_our_own_mistake(state: str, message: Any) -> None:
    talk = conversation(state)
    following = SENT.get((state, type(message).__name__))
    if following:
        talk.sent(message)
        assert talk.state.name == following
    else:
        with pytest.raises(AssertionError, match=state):
            talk.sent(message)


@pytest.mark.parametrize("message", [RUN, BUNDLE_RUN, HostReply(True, b"")])
def test_a_worker_cannot_say_what_only_we_say(message: Any) -> None:
    with pytest.raises(ProtocolViolation, match="not a message"):
        conversation("RUNNING").received(frame(message))


def test_several_messages_at_once_are_judged_in_their_order() -> None:
    talk = conversation("RUNNING")
    several = [MESSAGES["Log"], MESSAGES["Progress"], MESSAGES["Done"]]
    assert talk.received(b"".join(map(frame, several))) == several
    talk = conversation("RUNNING")
    with pytest.raises(ProtocolViolation, match="Progress in state READY"):
        talk.received(b"".join(map(frame, reversed(several))))


def test_a_second_run_follows_the_first() -> None:
    talk = conversation("RUNNING")
    for _ in range(3):
        talk.received(frame(Done(b"\xc0")))
        talk.begin(RUN, LIMITS)
    assert talk.state is State.RUNNING


def test_bytes_between_two_runs_are_a_violation() -> None:
    talk = conversation("RUNNING")
    talk.received(frame(Done(b"\xc0")) + b"x")
    with pytest.raises(ProtocolViolation, match="between two runs"):
        talk.begin(RUN, LIMITS)


honest = st.lists(
    st.one_of(
        st.builds(Log, st.just("info"), st.text(max_size=20)),
        st.builds(Progress, st.floats(0, 1), st.text(max_size=20)),
    ),
    max_size=12,
)


@given(honest, st.lists(st.integers(min_value=0), max_size=20))
def test_any_split_of_the_bytes_yields_the_same_messages(said: list[Any], cuts: list[int]) -> None:
    said = [*said, MESSAGES["Done"]]
    data = b"".join(map(frame, said))
    points = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    talk = conversation("RUNNING")
    received = [m for a, b in pairwise(points) for m in talk.received(data[a:b])]
    assert received == said
    assert talk.state is State.READY


@given(st.sampled_from([state.name for state in State]), st.lists(st.binary(max_size=100), max_size=5))
def test_random_bytes_are_messages_or_a_violation_and_nothing_else(state: str, pieces: list[bytes]) -> None:
    talk = conversation(state)
    with contextlib.suppress(ProtocolViolation):
        for piece in pieces:
            for message in talk.received(piece):
                assert type(message).__name__ in MESSAGES


@given(st.sampled_from(sorted(MESSAGES)), st.data())
def test_a_damaged_message_is_a_message_or_a_violation(name: str, data: st.DataObject) -> None:
    payload = bytearray(messages.encode(MESSAGES[name]))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    talk = conversation(data.draw(st.sampled_from(["STARTING", "RUNNING"])))
    with contextlib.suppress(ProtocolViolation):
        talk.received(encode_frame(bytes(payload)))


@pytest.mark.parametrize("state", ["STARTING", "READY", "RUNNING"])
def test_a_frame_beyond_the_bound_is_a_violation_before_it_arrives(state: str) -> None:
    with pytest.raises(ProtocolViolation, match="frame of 67108864 bytes"):
        conversation(state).received((64 << 20).to_bytes(4, "big"))


def test_the_bound_of_frames_follows_the_limits_of_the_run() -> None:
    talk = conversation("READY")
    talk.begin(RUN, limits(output_bytes=1 << 20))
    assert talk.received((1 << 20).to_bytes(4, "big")) == []
    talk = conversation("READY")
    talk.begin(RUN, limits(output_bytes=1000, log_bytes=1000))
    with pytest.raises(ProtocolViolation):
        talk.received((1 << 20).to_bytes(4, "big"))


def test_log_beyond_its_limit_is_a_violation_and_every_line_costs_something() -> None:
    for text in ("x" * 100, ""):
        with pytest.raises(ProtocolViolation, match="more log"):
            conversation("RUNNING").received(frame(Log("info", text)) * 10_000)


def test_an_honest_log_at_its_limit_is_no_violation() -> None:
    """The prelude charges 16 bytes a line, and cuts the line that passes the limit, with a note at its end."""
    talk = conversation("RUNNING")
    for _ in range(LIMITS.log_bytes // 16):
        talk.received(frame(Log("info", "")))
    talk.received(frame(Log("info", " [log truncated: limit reached]")))


def test_the_budgets_are_new_for_every_run() -> None:
    talk = conversation("RUNNING")
    for _ in range(3):
        for _ in range(MAX_PROGRESS):
            talk.received(frame(Progress(1.0, "")))
        talk.received(frame(Log("info", "x" * 60 * KIB)))
        talk.received(frame(Done(b"\xc0")))
        talk.begin(RUN, LIMITS)


def test_more_progress_than_the_prelude_sends_is_a_violation() -> None:
    conversation("RUNNING").received(frame(Progress(1.0, "")) * MAX_PROGRESS)
    with pytest.raises(ProtocolViolation, match="progress"):
        conversation("RUNNING").received(frame(Progress(1.0, "")) * (MAX_PROGRESS + 1))


@pytest.mark.parametrize("fraction", [math.nan, math.inf, -math.inf])
def test_progress_that_is_no_number_is_a_violation(fraction: float) -> None:
    with pytest.raises(ProtocolViolation, match="progress"):
        conversation("RUNNING").received(frame(Progress(fraction, "")))


@pytest.mark.parametrize(
    "payload", [b"\x91" * 5000, b"", b"\xc1", b"\x92\xa3log\xa1\xff", b"\x94\xa3log\xa4info\xa1\xff"]
)
def test_what_cannot_be_decoded_is_a_violation_without_python_text(payload: bytes) -> None:
    with pytest.raises(ProtocolViolation, match=r"not a message of this protocol \(\w+\)"):
        conversation("RUNNING").received(encode_frame(payload))


# Values ------------------------------------------------------------------------------------------------------------

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(plain)
def test_a_plain_value_is_what_it_was(value: Any) -> None:
    assert decode_value(encode_value(value), DEFAULTS) == value


REFUSED: dict[str, tuple[bytes, str, str | None]] = {
    "bytes": (msgspec.msgpack.encode({"a": [b"x"]}), ".a[1] is not plain data", None),
    "an extension": (msgspec.msgpack.encode([msgspec.msgpack.Ext(5, b"x")]), "[1] is not plain data", None),
    "a time": (b"\x91\xd6\xff\x00\x00\x00\x00", "is not plain data", None),
    "NaN": (msgspec.msgpack.encode({"a": math.nan}), ".a is not a finite number", None),
    "infinity": (msgspec.msgpack.encode([1.0, -math.inf]), "[2] is not a finite number", None),
    "a key that is a number": (msgspec.msgpack.encode({"a": {1: 2}}), ".a has a key that is not text", None),
    "a key that is bytes": (msgspec.msgpack.encode({b"a": 1}), "has a key that is not text", None),
    "a key that is a list": (b"\x81\x91\x01\x01", "", None),
    "text that is not UTF-8": (b"\xa1\xff", "is not plain data", None),
    "nothing": (b"", "is not plain data", None),
    "half a value": (b"\x92\x01", "is not plain data", None),
    "two values": (b"\x01\x01", "is not plain data", None),
    "an unused byte": (b"\xc1", "is not plain data", None),
    "a list that announces more than there is": (b"\xdd\xff\xff\xff\xff", "is not plain data", None),
    "a map that announces more than there is": (b"\xdf\xff\xff\xff\xff", "is not plain data", None),
    "too deep": (b"\x91" * 65 + b"\xc0", "is nested too deep", "value_depth"),
    "endlessly deep": (b"\x91" * 40_000 + b"\xc0", "deep", "value_depth"),
    "too large": (msgspec.msgpack.encode("x" * (1 << 20)), "is larger than 1048576 bytes", "output_bytes"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_value_that_is_not_plain_data_within_bounds_is_refused(what: str) -> None:
    raw, text, limit = REFUSED[what]
    with pytest.raises(ValueRefused) as refused:
        decode_value(raw, DEFAULTS)
    assert text in str(refused.value)
    assert refused.value.limit == limit


@given(st.binary(max_size=100))
def test_random_bytes_are_a_plain_value_or_refused(raw: bytes) -> None:
    try:
        value = decode_value(raw, limits(value_depth=8))
    except ValueRefused:
        return
    assert decode_value(encode_value(value), limits(value_depth=8)) == value


def test_the_allowed_depth_is_exact() -> None:
    assert decode_value(b"\x91" * 5 + b"\xc0", limits(value_depth=5)) == [[[[[None]]]]]
    with pytest.raises(ValueRefused):
        decode_value(b"\x91" * 6 + b"\xc0", limits(value_depth=5))


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (1 << 64, float(1 << 64)),
        (-(1 << 63) - 1, -float(1 << 63)),
        ({"a": [1, 1 << 70, {"b": -(1 << 70)}]}, {"a": [1, float(1 << 70), {"b": -float(1 << 70)}]}),
        ((1, 1 << 100), [1, float(1 << 100)]),
        ([True, 1 << 64], [True, float(1 << 64)]),
        ((1 << 64) - 1, (1 << 64) - 1),
    ],
)
def test_integers_beyond_64_bits_are_sent_as_floats(value: Any, sent: Any) -> None:
    found = msgspec.msgpack.decode(encode_value(value))
    assert found == sent
    assert type(found) is type(sent)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_integer_beyond_every_float_is_sent_as_the_largest(sign: int) -> None:
    assert msgspec.msgpack.decode(encode_value({"a": sign * 10**400})) == {"a": sign * 1.7976931348623157e308}


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(UnicodeEncodeError):
        encode_value({"a": "\ud800"})


# ---- large answers -----------------------------------------------------------------------------------------------

LARGE = limits(output_bytes=16 * MIB, value_depth=64)
MANY = 16 * MIB - 100
WORST: dict[str, Any] = {
    "lists": [[]] * MAX_VALUES,
    "maps": [{}] * MAX_VALUES,
    "maps with a key": [{"a": 1}] * (MAX_VALUES // 3),
    "floats": [1e308] * MAX_VALUES,
    "texts": ["x" * 150] * MAX_VALUES,
    "keys": {f"key{i}": i for i in range(MAX_VALUES // 2)},
    "nested": [[[[[[[[]]]]]]]] * (MAX_VALUES // 8),
    "ascii": "x" * MANY,
    "nothing but escapes": "\n" * (MAX_JSON_BYTES // 6 - 100),
    "quotes": '"' * (MAX_JSON_BYTES // 6 - 100),
    "wide": "\u00e9" * (MANY // 2),
}


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
@pytest.mark.parametrize("what", WORST)
def test_the_worst_answer_of_each_kind_keeps_others_waiting_for_no_longer_than_permitted(what: str) -> None:
    raw, best = encode_value(WORST[what]), math.inf
    for _ in range(3):
        pieces, steps = decoding(raw, LARGE), [0.0]
        began = time.thread_time()
        for _ in pieces:
            steps.append(time.thread_time() - began)
            began = time.thread_time()
        best = min(best, max(*steps, time.thread_time() - began))
    assert decode_value(raw, LARGE) == WORST[what]
    assert best <= loop_s()


@pytest.mark.parametrize("item", [[], {}, 1, "a", [[]], {"a": 1}, 1.5, "x" * 100])
def test_an_answer_of_too_many_values_is_refused_before_one_is_made(item: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = encode_value([item] * (MAX_VALUES + 1))
    monkeypatch.setattr("engine.values.msgspec", None)
    with pytest.raises(ValueRefused, match=f"more than {MAX_VALUES} values") as refused:
        decode_value(raw, LARGE)
    assert refused.value.limit == "values"


def test_the_bound_of_values_in_an_answer_is_exact() -> None:
    assert len(decode_value(encode_value([1000] * MAX_VALUES), LARGE)) == MAX_VALUES
    with pytest.raises(ValueRefused, match="values"):
        decode_value(encode_value([1000] * (MAX_VALUES + 1)), LARGE)


@pytest.mark.parametrize("character", ["\0", "\x1f", "\x7f", '"', "\\", "\n", "\U0001f600", "a"])
def test_no_answer_takes_more_as_json_than_is_rendered_at_once(character: str) -> None:
    value = character * (MANY // len(character.encode()))
    if len(orjson.dumps(value)) <= len(value.encode()) + 2 <= MAX_JSON_BYTES:
        assert decode_value(encode_value(value), LARGE) == value
    elif len(orjson.dumps(value)) > MAX_JSON_BYTES:
        with pytest.raises(ValueRefused) as refused:
            decode_value(encode_value(value), LARGE)
        assert refused.value.limit == "json_bytes"


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_plain_data_is_refused_in_a_large_answer_too(what: str) -> None:
    raw, _, limit = REFUSED[what]
    if limit is not None:
        return
    with pytest.raises(ValueRefused) as refused:
        decode_value(b"\x92" + encode_value("x" * (MAX_VALUES + 1)) + raw, DEFAULTS)
    assert refused.value.limit is None


# ---- frames that are made to be expensive --------------------------------------------------------------------------


def running(limits: Limits) -> Conversation:
    conversation = Conversation()
    conversation.state = State.READY
    conversation.begin(RUN, limits)
    return conversation


LARGE = limits(output_bytes=16 * MIB, log_bytes=MIB)
# What a worker that runs machine code may send: as large as its frames may be, and as costly to read as can be.
COSTLY: dict[str, Callable[[], Any]] = {
    "a million calls": lambda: ["calls", [(1, "", b"")] * 3_000_000],
    "calls with names of emoji": lambda: ["calls", [(i, "\U0001f511" * 60_000, b"") for i in range(1, 64)]],
    "a name of emoji": lambda: ["call", "\U0001f511" * 4_000_000, b""],
    "a call with unknown fields": lambda: ["call", "x", b"", *[[[]]] * 5_000_000],
    "a tag of emoji": lambda: ["\U0001f511" * 4_000_000, 1],
    "a level of emoji": lambda: ["log", "\U0001f511" * 4_000_000, "x"],
    "a log of emoji": lambda: ["log", "info", "\U0001f511" * 4_000_000],
    "a progress of emoji": lambda: ["progress", 1.0, "\U0001f511" * 4_000_000],
    "a message of emoji": lambda: ["failed", "script_error", "\U0001f511" * 2_000_000, "\U0001f511" * 2_000_000],
    "layers": lambda: ["ready", 1, [["a", "active", "x"]] * 1_000_000],
    "an answer that is no bytes": lambda: ["done", [[]] * 16_000_000],
    "an answer in many lists": lambda: ["done", [[[[[[[[]]]]]]]] * 2_000_000],
    "a map": lambda: {"call": "x" * (16 * MIB)},
    "numbers": lambda: list(range(5_000_000)),
    "numbers that are text": lambda: ["calls", [("1", "x", b"x")] * 2_000_000],
}


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
@pytest.mark.parametrize("what", COSTLY)
def test_no_frame_within_the_bound_keeps_the_loop(what: str) -> None:
    frame = encode_frame(msgspec.msgpack.encode(COSTLY[what]()))
    conversation = running(LARGE)
    spent_s = 0.0

    def receive() -> None:
        nonlocal spent_s
        for start in range(0, len(frame), 65_536):
            piece = frame[start : start + 65_536]
            began_s = time.thread_time()
            try:
                conversation.received(piece)
            finally:
                spent_s = max(spent_s, time.thread_time() - began_s)

    with pytest.raises(ProtocolViolation):
        receive()
    assert spent_s < 2 * loop_s(), spent_s  # of one piece; twice on a machine that others use


@given(st.lists(st.tuples(st.text(max_size=80), st.binary(max_size=3_000)), min_size=1, max_size=64))
def test_whatever_honest_calls_are_made_at_once_they_are_taken(calls: list[tuple[str, bytes]]) -> None:
    message = HostCalls(tuple((i * 70_000 + 1, name, arguments) for i, (name, arguments) in enumerate(calls)))
    for sent in (message, HostCall(calls[0][0], calls[0][1] * 3)):
        (received,) = running(DEFAULTS).received(encode_frame(messages.encode(sent)))
        assert received == sent


@given(st.sampled_from([b"\x92\xa5calls", b"\x93\xa4call"]), st.binary(max_size=300))
def test_whatever_follows_the_first_bytes_of_a_large_call_is_a_message_or_a_violation(head: bytes, rest: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        running(DEFAULTS).received(encode_frame(head + rest + bytes(5_000)))


@pytest.mark.parametrize(
    "said",
    [
        Failed("script_error", "x" * 8_193, ""),
        Failed("script_error", "", "x" * 32_769),
        Progress(0.5, "x" * 513),
        Progress(0.5, "é" * 257),
    ],
)
def test_an_error_or_progress_longer_than_the_preludes_is_a_violation(said: Any) -> None:
    with pytest.raises(ProtocolViolation):
        running(DEFAULTS).received(encode_frame(messages.encode(said)))


def test_a_worker_that_sends_byte_by_byte_is_ended_before_long() -> None:
    frame = encode_frame(messages.encode(Done(b"x" * 100_000)))

    def said_in_pieces(size: int) -> list[Any]:
        conversation = running(DEFAULTS)
        return [m for start in range(0, len(frame), size) for m in conversation.received(frame[start : start + size])]

    with pytest.raises(ProtocolViolation, match="more pieces"):
        said_in_pieces(1)
    assert said_in_pieces(4096) == [Done(b"x" * 100_000)]

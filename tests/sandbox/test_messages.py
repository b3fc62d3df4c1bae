"""The wire's messages: what is sent comes back the same, and nothing but a message comes out of other bytes."""

import contextlib
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.wire import messages
from sandbox.wire.messages import (
    TRANSITIONS,
    BundleRun,
    Done,
    Exited,
    Failed,
    Fork,
    Forked,
    FromWorker,
    FromZygote,
    Hello,
    HostCall,
    HostReply,
    LayerReport,
    Log,
    Progress,
    Ready,
    Run,
    State,
    ToWorker,
)

text = st.text(max_size=40)
data = st.binary(max_size=80)
count = st.integers(min_value=0, max_value=2**62)
kinds = st.sampled_from(["script_error", "wrong_shape", "memory_limit", "output_limit", "depth_limit"])
reports = st.builds(LayerReport, text, st.sampled_from(["active", "unavailable", "off"]), text)

from_worker = st.one_of(
    st.builds(Ready, st.integers(0, 1000), st.lists(reports, max_size=4).map(tuple)),
    st.builds(HostCall, text, data),
    st.builds(Log, st.sampled_from(["debug", "info", "warn", "error"]), text),
    st.builds(Progress, st.floats(allow_nan=False), text),
    st.builds(Done, data),
    st.builds(Failed, kinds, text, text),
)
to_worker = st.one_of(
    st.builds(Run, st.none() | data, text, text, text, text, data, count, count, count, count, count),
    st.builds(
        BundleRun, data, text, text, text, text, data, count, count, count, count, count, st.floats(0, 1e6),
        st.lists(st.tuples(text, data), max_size=3).map(tuple),
    ),
    st.builds(HostReply, st.booleans(), data),
)  # fmt: skip
from_zygote = st.one_of(
    st.builds(Hello, st.integers(0, 1000)),
    st.builds(Forked, count),
    st.builds(Exited, count, st.integers(-200, 65535), st.floats(0, 1e6), count),
)
forks = st.builds(Fork, count, st.floats(0, 1e6), count, st.lists(text, max_size=3).map(tuple))

CHANNELS = {
    "from the worker": (from_worker, messages.decode_from_worker),
    "to the worker": (to_worker, messages.decode_to_worker),
    "from the zygote": (from_zygote, messages.decode_from_zygote),
    "to the zygote": (forks, messages.decode_to_zygote),
}
channels = pytest.mark.parametrize("channel", CHANNELS)


@channels
@given(st.data())
def test_a_message_comes_back_as_it_was_sent(channel: str, data: st.DataObject) -> None:
    strategy, decode = CHANNELS[channel]
    message = data.draw(strategy)
    received = decode(messages.encode(message))
    assert received == message
    assert type(received) is type(message)


@channels
@given(raw=st.binary(max_size=200))
def test_garbage_is_a_message_or_one_of_the_two_errors_that_the_supervisor_expects(channel: str, raw: bytes) -> None:
    _, decode = CHANNELS[channel]
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        decode(raw)


@channels
@given(st.data())
def test_a_damaged_message_is_a_message_or_an_expected_error(channel: str, data: st.DataObject) -> None:
    strategy, decode = CHANNELS[channel]
    raw = bytearray(messages.encode(data.draw(strategy)))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        decode(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


WRONG: dict[str, Any] = {
    "an unknown tag": ["shutdown"],
    "a message to the worker": ["run", b"", "", "", "", b"", 1, 1, 1, 1, 1],
    "no tag": [1, 2],
    "a map": {"tag": "done", "value": b""},
    "a missing field": ["failed", "script_error", "x"],
    "a field of another type": ["done", 17],
    "a level that is none": ["log", "fatal", "x"],
    "a kind that is none": ["failed", "timeout", "x", ""],
    "a layer state that is none": ["ready", 1, [["seccomp", "perhaps", ""]]],
    "nothing": None,
    "a text": "done",
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_not_a_message_of_a_worker_is_refused(what: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        messages.decode_from_worker(msgspec.msgpack.encode(WRONG[what]))


def test_a_message_nested_without_end_is_refused() -> None:
    with pytest.raises((msgspec.MsgspecError, RecursionError)):
        messages.decode_from_worker(b"\x91" * 100_000)


def test_every_message_has_a_place_in_the_table_and_every_state_is_reached() -> None:
    placed = {message for _, message in TRANSITIONS}
    assert placed == {*get_args(FromWorker), *get_args(ToWorker)}
    assert set(TRANSITIONS.values()) == set(State) - {State.STARTING}
    assert {state for state, _ in TRANSITIONS} == set(State)


def test_tags_differ_within_each_channel() -> None:
    for union in (FromWorker, ToWorker, FromZygote):
        tags = [message.__struct_config__.tag for message in get_args(union)]
        assert len(set(tags)) == len(tags)

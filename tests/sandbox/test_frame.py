"""Frames: whatever the splits, the same payloads; what is too long is refused before anything is stored for it."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.wire.frame import HEADER_BYTES, FrameDecoder, FrameTooLarge, encode_frame

payloads = st.lists(st.binary(max_size=200), max_size=20)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    points = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(points)]


@given(payloads, st.lists(st.integers(min_value=0), max_size=30))
def test_any_split_of_the_bytes_yields_the_same_frames(sent: list[bytes], cuts: list[int]) -> None:
    decoder = FrameDecoder(200)
    received = []
    for piece in pieces(b"".join(map(encode_frame, sent)), cuts):
        received += decoder.feed(piece)
    assert received == sent
    assert decoder.idle


@given(payloads)
def test_one_byte_at_a_time_yields_the_same_frames(sent: list[bytes]) -> None:
    decoder = FrameDecoder(200)
    data = b"".join(map(encode_frame, sent))
    assert [frame for i in range(len(data)) for frame in decoder.feed(data[i : i + 1])] == sent


@given(st.binary(max_size=64), st.integers(min_value=1))
def test_a_partial_frame_is_held_and_never_handed_out(payload: bytes, missing: int) -> None:
    frame = encode_frame(payload)
    kept = frame[: len(frame) - 1 - missing % len(frame)]
    decoder = FrameDecoder(64)
    assert decoder.feed(kept) == []
    assert decoder.idle is (kept == b"")
    assert decoder.feed(frame[len(kept) :]) == [payload]


@given(st.integers(min_value=0, max_value=1000), st.integers(min_value=1, max_value=2**32 - 1))
def test_a_longer_frame_than_the_maximum_is_refused_at_its_prefix(maximum: int, over: int) -> None:
    length = min(maximum + over, 2**32 - 1)
    with pytest.raises(FrameTooLarge) as refused:
        FrameDecoder(maximum).feed(length.to_bytes(HEADER_BYTES, "big"))
    assert str(refused.value) == f"frame of {length} bytes; the limit is {maximum}"


def test_a_frame_of_exactly_the_maximum_passes_and_one_byte_more_does_not() -> None:
    assert FrameDecoder(5).feed(encode_frame(b"12345")) == [b"12345"]
    with pytest.raises(FrameTooLarge):
        FrameDecoder(5).feed(encode_frame(b"123456"))


def test_an_announced_giant_allocates_nothing() -> None:
    decoder = FrameDecoder(1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(FrameTooLarge):
            decoder.feed(b"\xff\xff\xff\xff")
        with pytest.raises(FrameTooLarge):
            decoder.feed(b"\xff\xff\xff\xff" * 3)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_an_announced_frame_within_the_maximum_allocates_only_what_arrived() -> None:
    decoder = FrameDecoder(1 << 30)
    tracemalloc.start()
    try:
        assert decoder.feed((1 << 30).to_bytes(HEADER_BYTES, "big") + b"x" * 1000) == []
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_empty_frames_are_frames() -> None:
    decoder = FrameDecoder(0)
    assert decoder.feed(encode_frame(b"") * 3) == [b"", b"", b""]
    assert decoder.feed(b"") == []

"""Server-sent events, from bytes that are cut anywhere."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.models.events import Events, EventTooLarge, ServerSent


def events_of(pieces: list[bytes], most: int = 10_000) -> list[ServerSent]:
    events = Events(most)
    return [event for piece in pieces for event in events.feed(piece)]


def cut(whole: bytes, size: int) -> list[bytes]:
    return [whole[at : at + size] for at in range(0, len(whole), size)]


TABLE = {
    "an event": (b"data: a\n\n", [("message", "a")]),
    "its type": (b"event: ping\ndata: a\n\ndata: b\n\n", [("ping", "a"), ("message", "b")]),
    "lines of data": (b"data: a\ndata:b\ndata:  c\n\n", [("message", "a\nb\n c")]),
    "no colon": (b"data\n\n", [("message", "")]),
    "comments, and fields that are not used": (b": x\nid: 1\nretry: 5\ndate: y\ndata: a\n\n", [("message", "a")]),
    "a type without data": (b"event: ping\n\ndata: a\n\n", [("message", "a")]),
    "a colon in the data": (b"data: a: b\n\n", [("message", "a: b")]),
    "a byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [("message", "a")]),
    "not UTF-8": (b"data: a\xffb\n\n", [("message", "a\ufffdb")]),
    "an event that the end cuts off": (b"data: a\n\ndata: b\n", [("message", "a")]),
    "ends of lines of three kinds": (b"data: a\r\n\r\ndata: b\r\rdata: c\n\r\n", [("message", x) for x in "abc"]),
    "nothing": (b"\n\n\r\r", []),
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_a_stream_gives_these_events(name: str, size: int) -> None:
    body, expected = TABLE[name]
    assert events_of(cut(body, size)) == expected


@given(
    st.lists(st.sampled_from([b"data: a\xc3\xa9", b"event: x", b": y", b"", b"\n", b"\r", b"\r\n"]), max_size=30),
    st.lists(st.integers(0, 60)),
)
def test_any_cut_of_a_stream_gives_the_same_events(parts: list[bytes], at: list[int]) -> None:
    whole = b"".join(parts)
    places = [0, *sorted(at), len(whole)]
    pieces = [whole[one:other] for one, other in pairwise(places)]
    assert events_of(pieces) == events_of([whole])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\r\r", "\n\r\n"])
def test_the_bound_of_an_event_counts_from_the_last_one_however_the_bytes_are_cut(size: int, end: str) -> None:
    body = f"data: some{end}".encode() * 20
    assert len(events_of(cut(body + b"data: " + b"x" * 20, size), 40)) == 20
    for more in (b"data: " + b"x" * 40, b": comment\n" * 5, b"data: line\n" * 5):
        with pytest.raises(EventTooLarge):
            events_of(cut(body + more, size), 40)

"""Counting values before they are made: never fewer than there are, and the same however the bytes are cut."""

import json
import math
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.packed import COUNTED_AT_ONCE, NotPlain, packed_values, plain_values
from engine.tenant import DEFAULT_TENANT, bind_limits
from engine.values import (
    JSON_AROUND_VALUE,
    JsonMarks,
    decoding,
    drained,
    is_plain,
    json_bytes_at_most,
    marks_at_most,
)

# What the counting looks at, more often than chance would have it.
TRICKY = st.text(st.sampled_from('",:[]{}\\ u0a3\n'), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TRICKY
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TRICKY, inner), max_leaves=30)
CUTS = st.lists(st.integers(0, 500), max_size=8)


def marks_of(text: bytes, cuts: list[int]) -> JsonMarks:
    marks = JsonMarks()
    at = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in pairwise(at):
        marks.feed(text[start:end])
    return marks


def slowly(value: Any) -> tuple[int, int, int]:
    """Values, marks and keys of a value, by a walk."""
    if not isinstance(value, dict | list):
        return 1, 0, 0
    inner = list(map(slowly, value.values() if isinstance(value, dict) else value))
    values, marks, keys = (sum(each[i] for each in inner) for i in range(3))
    return 1 + values, 1 + max(0, len(value) - 1) + marks, keys + (len(value) if isinstance(value, dict) else 0)


@given(VALUES, CUTS, st.booleans())
def test_marks_and_colons_are_exact_for_any_json_and_any_cut(value: Any, cuts: list[int], ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=None if ascii_only else 1).encode()
    values, marks, keys = slowly(value)
    counted = marks_of(text, cuts)
    assert (counted.marks, counted.colons) == (marks, keys)
    assert values <= counted.marks + 1 <= marks_at_most(text) + 1


@given(st.lists(st.sampled_from([b'"', b"\\", b",", b":", b"[", b"{", b"a"])).map(b"".join), CUTS, CUTS)
def test_of_any_bytes_every_cut_counts_the_same(text: bytes, one: list[int], other: list[int]) -> None:
    first, second = marks_of(text, one), marks_of(text, other)
    assert (first.marks, first.colons) == (second.marks, second.colons)
    assert first.marks <= marks_at_most(text)


# ---- msgpack -----------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=("Cs",)))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
    | st.sampled_from(["", "\0" * 40, '"\\' * 200, "\U0001f600" * 70_000]),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(TEXTS, inner),
    max_leaves=30,
)  # fmt: skip


@given(PLAIN)
def test_values_in_msgpack_are_counted_exactly(value: Any) -> None:
    values, _, keys = slowly(value)
    raw = msgspec.msgpack.encode(value)
    assert drained(plain_values(raw, values + keys)) == values + keys
    assert drained(plain_values(raw, 3)) == min(4, values + keys)
    assert len(orjson.dumps(value)) <= json_bytes_at_most(raw) + JSON_AROUND_VALUE * (values + keys)


def test_a_large_value_is_counted_decoded_and_checked_with_pauses_between() -> None:
    value = [1.5] * 45_000
    limits = bind_limits({}, DEFAULT_TENANT, {}, {}).values
    decoded = []

    def work() -> Generator[None, None, None]:
        decoded.append((yield from decoding(memoryview(msgspec.msgpack.encode(value)), limits)))

    # While counting; before decoding; before and after the check.
    assert len(list(work())) == 45_000 // COUNTED_AT_ONCE + 3
    assert decoded == [value]


@given(PLAIN | st.just(math.nan) | st.lists(st.just(math.inf)) | st.just({"a": [{1: 2}]}), st.integers(0, 5))
def test_plain_is_what_a_walk_says(value: Any, depth: int) -> None:
    def walk(value: Any, depth: int) -> bool:
        if isinstance(value, dict):
            return depth > 0 and all(type(key) is str and walk(item, depth - 1) for key, item in value.items())
        if isinstance(value, list):
            return depth > 0 and all(walk(item, depth - 1) for item in value)
        return not isinstance(value, float) or math.isfinite(value)

    assert is_plain(value, depth) is walk(value, depth)


# ---- msgpack of any kind ------------------------------------------------------------------------------------------

PACKED = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=4), inner, max_size=20),
    max_leaves=60,
)


def counted(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(1 + counted(item) for item in value.values())
    return 1 + sum(map(counted, value)) if isinstance(value, list) else 1


@given(PACKED)
def test_values_of_any_kind_are_counted_exactly(value: Any) -> None:
    assert drained(packed_values(msgspec.msgpack.encode(value), 100_000)) == counted(value)


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65_535, 65_536])
def test_of_texts_and_bytes_only_the_head_is_looked_at(size: int) -> None:
    assert drained(packed_values(msgspec.msgpack.encode(["x" * size, b"\x90" * size, 1]), 10)) == 4


@given(st.binary(max_size=200))
def test_what_is_no_msgpack_has_some_number_of_values(raw: bytes) -> None:
    assert 0 <= drained(packed_values(raw, 200)) <= len(raw)


def test_counting_ends_at_the_maximum() -> None:
    assert drained(packed_values(b"\x80" * 1_000, 10)) == 11


@given(st.binary(max_size=60))
def test_of_any_bytes_no_more_is_made_than_was_counted(raw: bytes) -> None:
    try:
        counted: int | None = drained(plain_values(raw, 1000))
    except NotPlain:
        counted = None
    try:
        values, _, keys = slowly(msgspec.msgpack.decode(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, TypeError):
        return
    # An extension is refused by the count, and so is what has one inside; a key that was there twice is one.
    assert counted is None or counted >= values + keys

"""Counting values before they are made: never fewer than there are, and the same however the bytes are cut."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.values import JsonMarks, marks_at_most

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

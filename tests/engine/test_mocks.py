"""Rows that answer host calls: which row matches which call, and what is remembered of the others."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bridge.mocks import MAX_MISSING, Mocks, Row, as_row, matches

PLAIN = st.recursive(
    st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(PLAIN)
def test_a_value_matches_itself_and_with_more_keys(value: Any) -> None:
    assert matches(value, value)
    if isinstance(value, dict):
        assert matches(value, {**value, "a key that no example has": 1})


@pytest.mark.parametrize(
    ("wanted", "given", "does"),
    [
        ({}, {"a": 1}, True),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, True),
        ({"a": {"b": 1}}, {"a": {"c": 2}}, False),
        ({"a": 1}, [], False),
        ([1], [1, 2], False),
        ([{"a": 1}], [{"a": 1, "b": 2}], True),
        (1, 1.0, True),
        (1, True, False),
        (True, True, True),
        ("x", b"x", True),
        ("x", b"\xff", False),
        (5, b"5", False),
    ],
)
def test_a_table_may_have_more_keys_and_all_else_is_equal(wanted: Any, given: Any, does: bool) -> None:
    assert matches(wanted, given) is does


def test_the_first_row_that_matches_and_is_not_used_up_answers() -> None:
    rows = [
        Row(name="env.get", given={"name": "A"}, reply="first", times=1),
        Row(name="env.get", reply="any"),
        Row(name="env.get", given={"name": "A"}, reply="never"),
        Row(name="sleep", times=2),
    ]
    mocks = Mocks(rows)
    answers = [mocks.answering("env.get", {"name": name}) for name in ("A", "A", "B")]
    assert [row.reply for row in answers if row] == ["first", "any", "any"]
    assert mocks.answering("fs.read", {}) is None
    assert mocks.answering("sleep", {}) is rows[3]
    assert mocks.unused == [rows[2], rows[3]]


@given(st.dictionaries(st.text(), PLAIN, max_size=5))
def test_the_row_to_paste_is_toml_that_matches_the_call(arguments: dict[str, Any]) -> None:
    (call,) = tomllib.loads(as_row("context.call_tool", arguments) + "\nreply = 1")["call"]
    assert call["name"] == "context.call_tool"
    assert matches(call.get("with", {}), arguments)


def test_the_row_to_paste_has_no_credentials_and_nothing_that_toml_cannot_have() -> None:
    row = as_row(
        "http.post", {"url": "https://x.example/?q=1", "headers": {"authorization": "t0ken"}, "body": "s3cret"}
    )
    assert row == '[[call]]\nname = "http.post"\nwith = {url = "https://x.example/?q=1"}'
    assert as_row("fs.read", {"path": b"\xff", "other": None}) == '[[call]]\nname = "fs.read"\nwith = {}'
    assert len(as_row("env.get", {"name": "x" * 10_000})) < 400


def test_refused_calls_are_remembered_once_each_and_within_a_bound() -> None:
    mocks = Mocks([], only=True)
    for number in range(100):
        for _ in range(2):
            said = mocks.refuse("env.get", {"name": str(number)})
    assert len(mocks.missing) == MAX_MISSING
    assert said.startswith("no row of the mocks answers this call; one that does begins with")
    assert said.endswith(' [[call]] name = "env.get" with = {name = "99"}')

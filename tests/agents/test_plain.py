"""A value of Python code's as JSON data: the identity for what is JSON, bounded, and a path for what is not."""

import enum
import json
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agents.shapes.plain import TooMuch, plain
from agents.shapes.shape import WrongShape

TEXT = st.text(st.characters(exclude_categories=("Cs",)))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


class Colour(str, enum.Enum):  # noqa: UP042 - whose str() is not its value, unlike that of StrEnum
    RED = "red"


class Model(BaseModel):
    colour: Colour
    inner: dict[str, tuple[int, ...]] = {}


def copied(value: Any, size: int = 10**6, depth: int = 64) -> Any:
    return plain(value, "the answer", size=size, depth=depth)


@given(JSON)
def test_every_json_value_stays_what_it_is_in_a_copy(value: Any) -> None:
    found = copied(value)
    assert found == value
    assert json.dumps(found) == json.dumps(value)
    if isinstance(value, list | dict):
        assert found is not value


@given(JSON)
def test_what_fits_a_size_has_a_json_text_of_about_that_size(value: Any) -> None:
    length = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    assert copied(value, size=4 * length + 16) == value
    with pytest.raises(TooMuch):
        copied([value] * 100, size=min(length * 4, 90))


def test_what_python_has_beside_json_becomes_json() -> None:
    value = {"a": (1, Colour.RED), "m": Model(colour=Colour.RED, inner={"x": (1, 2)}), "o": OrderedDict(b=True)}
    found = copied(value)
    assert found == {"a": [1, "red"], "m": {"colour": "red", "inner": {"x": [1, 2]}}, "o": {"b": True}}
    assert type(found["a"][1]) is str
    assert type(found["o"]) is dict


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "the answer is not JSON data"),
        ({"a": [1, {"b": b"x"}]}, "the answer: a[1].b is not JSON data"),
        ([float("nan")], "the answer: [0] is not a finite number"),
        ({"a": {5: 1}}, "the answer: a has a key that is not text"),
        ({"a": "\ud800"}, "the answer: a holds half of a surrogate pair, which is not text"),
        ({"\ud800": 1}, "the answer holds half of a surrogate pair, which is not text"),
        (Model.model_construct(colour=object()), "the answer is a model that has no JSON form"),
    ],
)
def test_what_has_no_json_form_is_named_by_its_path(value: Any, message: str) -> None:
    with pytest.raises(WrongShape) as raised:
        copied(value)
    assert str(raised.value) == message


def test_depth_is_counted_in_levels_and_a_value_that_holds_itself_is_too_deep() -> None:
    assert copied({"a": [1]}, depth=2) == {"a": [1]}
    with pytest.raises(TooMuch, match="value_depth"):
        copied({"a": [1]}, depth=1)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TooMuch, match="value_depth"):
        copied(endless)

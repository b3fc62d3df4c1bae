"""Request bodies: what is JSON, what is not, and the envelope rule."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Code, Problem
from server.body import MAX_DEPTH, parse_json, parse_object, unwrap

JSON = b"application/json"

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
texts = st.text(st.characters(exclude_categories=("Cs",)))
values = st.recursive(scalars | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20)
objects = st.dictionaries(texts, values)


def refused(raw: bytes, content_type: bytes | None = JSON) -> Problem:
    with pytest.raises(Problem) as caught:
        parse_object(raw, content_type)
    assert "orjson" not in caught.value.message
    return caught.value


@given(objects)
def test_every_json_object_comes_through_unchanged(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value, allow_nan=False).encode(), JSON) == value


@given(st.binary())
def test_every_byte_string_is_an_object_or_a_problem(raw: bytes) -> None:
    try:
        answer: object = parse_object(raw, JSON)
    except Problem as problem:
        answer = problem.code
    assert isinstance(answer, dict) or answer is Code.BAD_REQUEST


@given(objects, texts, values, values)
def test_a_duplicate_key_is_refused_and_named_at_any_depth(
    value: dict[str, Any], key: str, one: Any, other: Any
) -> None:
    name = json.dumps(key)
    inner = f"{{{name}: {json.dumps(one)}, {name}: {json.dumps(other)}}}"
    for raw in (inner, f'{{"outer": [1, {inner}], "rest": {json.dumps(value)}}}'):
        problem = refused(raw.encode())
        assert problem.code is Code.BAD_REQUEST
        assert "twice" in problem.message


def test_keys_that_differ_only_in_escaping_are_duplicates() -> None:
    assert "twice" in refused(rb'{"a": 1, "\u0061": 2}').message


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"nonsense",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": "\xff"}',
        rb'{"a": "\ud800"}',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b'{"a": 1} trailing',
        b"{'a': 1}",
        b'{"a": 1,}',
        b" ",
        b"[" * 100_000,
    ],
)
def test_what_is_not_json_is_a_bad_request(raw: bytes) -> None:
    assert refused(raw).code is Code.BAD_REQUEST


@pytest.mark.parametrize("raw", [b"[]", b"null", b"1", b'"text"', b"true"])
def test_a_body_that_is_not_an_object_is_a_bad_request(raw: bytes) -> None:
    problem = refused(raw)
    assert problem.code is Code.BAD_REQUEST
    assert "object" in problem.message


def test_the_depth_of_a_body_is_bounded_exactly() -> None:
    def nested(levels: int) -> bytes:
        return b'{"a": ' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"

    assert parse_json(nested(MAX_DEPTH))
    assert "deep" in refused(nested(MAX_DEPTH + 1)).message
    assert refused(nested(50_000)).code is Code.BAD_REQUEST


def test_many_shallow_containers_are_not_deep() -> None:
    assert len(parse_json(b"[" + b",".join([b"{}"] * (MAX_DEPTH + 5)) + b"]")) == MAX_DEPTH + 5


def test_integers_beyond_64_bits_become_floats() -> None:
    assert parse_object(b'{"n": 1000000000000000000000}', JSON) == {"n": 1e21}


@pytest.mark.parametrize("content_type", [None, JSON, b"text/plain"])
def test_an_empty_body_is_an_empty_object_whatever_its_type(content_type: bytes | None) -> None:
    assert parse_object(b"", content_type) == {}


@pytest.mark.parametrize(
    "content_type",
    [b"application/json", b"Application/JSON", b"application/json; charset=utf-8", JSON + b';charset="UTF-8"'],
)
def test_json_by_any_of_its_names_is_taken(content_type: bytes) -> None:
    assert parse_object(b"{}", content_type) == {}


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        b"",
        b"text/plain",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"application/jsonx",
        b"application/json; charset=latin-1",
    ],
)
def test_a_body_of_another_type_is_415(content_type: bytes | None) -> None:
    assert refused(b"{}", content_type).code is Code.UNSUPPORTED_MEDIA_TYPE


@given(objects)
def test_the_envelope_is_exactly_one_key_holding_an_object(value: dict[str, Any]) -> None:
    assert unwrap({"arguments": value}) == (value, True)
    assert unwrap({"arguments": value, "more": 1}) == ({"arguments": value, "more": 1}, False)
    if set(value) != {"arguments"}:
        assert unwrap(value) == (value, False)


@given(values.filter(lambda value: not isinstance(value, dict)))
def test_arguments_that_are_not_an_object_are_a_parameter_of_that_name(value: Any) -> None:
    assert unwrap({"arguments": value}) == ({"arguments": value}, False)

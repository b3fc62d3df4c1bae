"""Request bodies: what is JSON, what is not, and the envelope rule."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from machine import loop_s

from engine.errors import Code, Problem
from engine.values import marks_at_most
from engine.work import WORK
from server.http.asgi import Exchange
from server.http.body import FREE_BYTES, MAX_DEPTH, NAMED_BYTES, parse_json, parse_object, read_object, unwrap

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


# ---- bodies of any size: bounded in values, and in pieces ------------------------------------------------------------

MARKS = WORK["body"].max_values or 0
# What repeats in a body that is to cost much, each with what it begins and ends with.
REPEATED = [
    b"[]", b"{}", b"0", b"1.7976931348623157e308", b"1e-320", b"9" * 40, b"0." + b"123456789" * 4,
    # Halfway between two doubles, told apart by the last of 770 digits: a parser's slowest path.
    b"2." + str(2**1074 + 1).encode() * 2 + b"1", b"9007199254740993." + b"0" * 750 + b"1",
    b'""', b'"\\n\\u0000"', b'{":":1}', b'{"\\u003a":":"}', b'{"a":{"b":[]}}', b"[[[[[[[[]]]]]]]]",
    b"[" * 250 + b"]" * 250, '"\u00e9\U0001f600"'.encode(), b'"' + b"\\\\" * 40 + b'"',
    b'"' + b",:[{" * 10 + b'"', b'{"a":1,"a":1}',
]  # fmt: skip


async def read(raw: bytes, worst: list[float] | None = None) -> Any:
    """What `read_object` makes of a body; with `worst`, the CPU seconds of each step are added to it."""
    exchange = Exchange({b"content-type": JSON}, trio.CancelScope(), raw)

    @contextmanager
    def working() -> Iterator[None]:
        began = time.thread_time()
        yield
        if worst is not None:
            worst.append(time.thread_time() - began)

    exchange.working = working
    value = await read_object(exchange)
    assert exchange.body == b""
    return value


async def refusal(raw: bytes) -> Problem:
    with pytest.raises(Problem) as caught:
        await read(raw)
    return caught.value


def keyed(count: int) -> bytes:
    return b",".join(b'"k%d:\\u0041":{}' % i for i in range(count))


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
@pytest.mark.parametrize("item", [*REPEATED, None], ids=lambda item: "keys" if item is None else item[:12].decode())
async def test_the_worst_body_of_each_kind_keeps_others_waiting_for_no_longer_than_permitted(
    item: bytes | None,
) -> None:
    marks = 2 if item is None else max(1, marks_at_most(item) + 1)
    count = min(MARKS // marks - 5, 4_000_000 // (1 if item is None else len(item) + 1))
    raw = b'{"q":{%s}}' % keyed(count) if item is None else b'{"q":[%s]}' % b",".join([item] * count)
    best = math.inf
    for _ in range(3):
        steps: list[float] = []
        with suppress(Problem):  # duplicates are refused, after the work
            await read(raw, steps)
        best = min(best, max(steps))
    assert best <= loop_s()


@pytest.mark.parametrize("item", [b"[]", b"{}", b"0", b'{":":1}', b'""', b"[[[[[[[[]]]]]]]]"])
async def test_too_many_values_are_refused_before_one_is_made(item: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b'{"q":[%s]}' % b",".join([item] * (4_000_000 // (len(item) + 1)))
    monkeypatch.setattr("server.http.body.orjson", None)
    problem = await refusal(raw)
    assert problem.code is Code.BAD_REQUEST
    assert f"{MARKS} commas" in problem.message


async def test_the_bound_of_values_is_exact() -> None:
    def body(marks: int) -> bytes:
        return b'{"q":[%s]}' % b",".join([b"0"] * (marks - 1))

    assert len((await read(body(MARKS)))["q"]) == MARKS - 1
    assert "too many values" in (await refusal(body(MARKS + 1))).message


@pytest.mark.parametrize("text", ["a,b;c,[d]\n", '"quoted","{cell}"\n', "\\,", "{}[],:", "\u00e9,\U0001f600"])
async def test_texts_may_hold_any_number_of_commas_and_brackets(text: str) -> None:
    content = text * (2 * MARKS)
    assert (await read(json.dumps({"files": {"data.csv": content}}).encode()))["files"] == {"data.csv": content}


@given(objects, st.sampled_from(["", ",:[{" * 2000, '\\"\\\\:' * 1500, "\u003a" * 5000]))
def test_a_long_body_is_read_as_a_short_one_is(value: dict[str, Any], filler: str) -> None:
    raw = json.dumps({**value, "filler": filler + "x" * FREE_BYTES}, ensure_ascii=bool(value)).encode()
    assert trio.run(read, raw) == parse_json(raw)


@given(texts, values, values, st.sampled_from([FREE_BYTES, NAMED_BYTES]), st.booleans())
def test_a_duplicate_key_in_a_long_body_is_refused(key: str, one: Any, other: Any, size: int, escaped: bool) -> None:
    name = json.dumps(key)
    spelled = "".join(f"\\u{ord(each):04x}" for each in key)
    again = f'"{spelled}"' if escaped and key.isascii() else name
    inner = f"{{{name}: {json.dumps(one)}, {again}: {json.dumps(other)}}}"
    raw = f'{{"fill": ":{"x" * size}", "outer": [1, {inner}]}}'.encode()
    problem = trio.run(refusal, raw)
    assert problem.code is Code.BAD_REQUEST
    assert "twice" in problem.message


async def test_the_depth_of_a_long_body_is_bounded_exactly() -> None:
    def nested(levels: int) -> bytes:
        return b'{"fill": "%s", "a": ' % (b"[" * FREE_BYTES) + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"

    assert await read(nested(MAX_DEPTH))
    assert "deep" in (await refusal(nested(MAX_DEPTH + 1))).message


async def test_a_body_without_memory_is_unavailable_and_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> None:
        raise MemoryError

    raw = b'{"a": "%s"}' % (b"x" * FREE_BYTES)
    with monkeypatch.context() as patch:
        patch.setattr("server.http.body.require_memory", refuse)
        problem = await refusal(raw)
    assert (problem.code, problem.retry_after_s) == (Code.UNAVAILABLE, 1)
    assert await read(raw)


@pytest.mark.parametrize("raw", [b'{"a": "\xff"}', b"\xff\xfe{\x00}\x00", b'{"a": "\xed\xa0\x80"}'])
def test_a_body_that_is_not_utf8_is_refused_as_that(raw: bytes) -> None:
    with pytest.raises(Problem, match="the body is not UTF-8"):
        parse_json(raw)

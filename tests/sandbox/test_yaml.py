"""`yaml`: values of the core schema, and nothing that multiplies."""

import json
import math
import struct
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lua_support import error_of, value_of

from sandbox.natives import yaml
from sandbox.natives.refused import Refused

TEXT = st.text(alphabet="abc :-#'\"\\{}[]\n\tä漢1.", max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
# Each list has the one before ten times.
BOMB = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n" for before, name in zip("abcdef", "bcdefg", strict=True)
)


def parsed(text: str, *, several: bool = False, depth: int = 64) -> Any:
    documents = msgspec.msgpack.decode(yaml.parse(struct.pack(">HB", depth, several) + text.encode()))
    return documents if several else documents[0]


@given(JSON)
def test_json_is_yaml(value: Any) -> None:
    assert parsed(json.dumps(value, ensure_ascii=False)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: no\nb: on\nc: 2024-01-01\nd: 1:30", {"a": "no", "b": "on", "c": "2024-01-01", "d": "1:30"}),
        ("[~, null, true, 0o17, 0xff, 017, 1e3, .5, '1', \"2\", !!str 3]",
         [None, None, True, 15, 255, 17, 1000.0, 0.5, "1", "2", "3"]),
        ("1: a\ntrue: b", {"1": "a", "true": "b"}),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}", {"x": {"a": 1, "b": 2}, "y": {"b": 3, "a": 1}}),
        ("&k a: *k", {"a": "a"}),
        ("|\n  two\n  lines\n", "two\nlines\n"),
        ("- 123456789012345678901234567890", [1.2345678901234568e29]),
        ("- " + "9" * 5000, [math.inf]),
        ("- 0x" + "f" * 5000, [math.inf]),
        ("- 0o1" + "0" * 110, [8.0**110]),
        ("-9223372036854775808", -(2**63)),
    ],
)  # fmt: skip
def test_a_text_is_read(text: str, value: Any) -> None:
    assert parsed(text) == value


def test_documents_are_a_list_where_several_are_allowed() -> None:
    assert parsed("a\n---\nb\n", several=True) == ["a", "b"]
    assert value_of("return yaml.parse('', {all = true})") == []
    assert value_of("return yaml.parse('')") is None


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (BOMB, "more than 100000 values"),
        ("a: &a " + "x" * 100_000 + "\nb: [" + ", ".join(["*a"] * 1000) + "]", "more than 100000 values or 16777216"),
        ("- " * 100_000, "nested deeper than 64 levels"),
        ("[" * 100_000, "nested deeper than 64 levels"),
        ("&a [*a]", "is not there, or is around its alias"),
        ("a: !!python/object/apply:os.system ['id']", "has no meaning here"),
        ("a: !!int x", "'x' is no int"),
        ("a: 1\na: 2", "is there twice"),
        ("{<<: 1, <<: 2}", "is there twice"),
        ("a: {<<: [1]}", "<< merges maps only"),
        ("[" + "0," * 200_000 + "]", "more than 100000 values"),
        ("\x01", "control characters"),
        ("a: b: c", "mapping values are not allowed"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(text: str, refusal: str) -> None:
    with pytest.raises(Refused) as refused:
        parsed(text)
    assert refusal in str(refused.value)


@given(st.text(alphabet="ab:-?[]{},&*!|>'\"#%@`\n ~<0.", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(Refused):
        parsed(text, several=True)


def test_in_a_callback_it_is_refused_and_errors_name_the_scripts_line() -> None:
    assert "yaml.parse cannot be called here" in error_of("return ('a'):gsub('.', yaml.parse)")
    assert error_of("\nyaml.parse('[')").startswith("t.lua:2: yaml.parse: ")
    assert error_of("\nyaml.parse('\\xff')") == "t.lua:2: yaml.parse: the text is not UTF-8"

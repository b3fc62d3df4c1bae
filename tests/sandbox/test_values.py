"""Values across the boundary and in JSON: nothing is lost on the way, and what cannot cross says where it is."""

import base64
import hashlib
import hmac
import json
import math
from typing import Any

import pytest
from effort import effort
from hypothesis import given, settings
from hypothesis import strategies as st
from lua_support import error_of, run, value_of

INT64 = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
numbers = INT64 | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.booleans() | numbers | texts


def _nested(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(children, max_size=6) | st.dictionaries(texts, children, max_size=6)


# Null is nil in Lua: in a list it would leave a hole, in an object no key. Their own tests follow below.
values = st.recursive(scalars, _nested, max_leaves=25)
with_nulls = st.recursive(scalars | st.none(), _nested, max_leaves=25)


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down: 1 is not 1.0, and not True."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b) and a == b
    return bool(a == b)


def without_null_members(value: Any) -> Any:
    """What nil does to a value: object members that are null are gone, also lists' trailing ones."""
    if isinstance(value, dict):
        return {key: without_null_members(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        items = [without_null_members(item) for item in value]
        while items and items[-1] is None:
            items.pop()
        return items
    return value


def sparse(value: Any) -> bool:
    """Whether a list has more holes than Lua can tell from a table with some positions."""
    if isinstance(value, dict):
        return any(map(sparse, value.values()))
    if not isinstance(value, list):
        return False
    items = without_null_members(value)
    present = [item for item in items if item is not None]
    return len(items) > 2 * len(present) + 8 or any(map(sparse, present))


# The value codec ---------------------------------------------------------------------------------------------------


@given(values)
def test_a_value_through_lua_and_back_is_the_same(value: Any) -> None:
    assert same(value_of("return (...)", value), value)


@given(values)
def test_a_value_through_a_host_call_and_back_is_the_same(value: Any) -> None:
    found = value_of("return context.search({query = '', value = ...}).value", value)
    assert same(found, value)


@given(with_nulls.filter(lambda value: not sparse(value)))
def test_nulls_become_nil_which_leaves_no_member_and_no_tail(value: Any) -> None:
    assert same(value_of("return (...)", [value]), [without_null_members(value)] if value is not None else [])


@pytest.mark.parametrize(
    ("given_value", "found"),
    [
        (2**63, float(2**63)),
        (2**64 - 1, float(2**64 - 1)),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (-0.0, -0.0),
        (5e-324, 5e-324),
        (1e308, 1e308),
    ],
)
def test_numbers_keep_their_value_and_integers_beyond_64_bits_become_floats(given_value: Any, found: Any) -> None:
    assert same(value_of("return (...)", given_value), found)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536])
def test_every_length_class_of_texts_and_lists_crosses(size: int) -> None:
    value = {"text": "x" * size, "list": [1] * size, "map": {f"k{i}": i for i in range(min(size, 300))}}
    assert value_of("return (...)", value) == value


LISTS_AND_OBJECTS = {
    "return {}": {},
    "return json.array({})": [],
    "return {1, 2}": [1, 2],
    "return {a = 1}": {"a": 1},
    "return {{}, {}}": [{}, {}],
    "return json.array{a = {}}": {"a": {}},
    "return json.decode('[]')": [],
    "return json.decode('{}')": {},
    "return {json.decode('[[], {}]')}": [[[], {}]],
    "local t = json.decode('[1]') t[1] = nil return t": [],
    "local t = json.decode('{\"a\": 1}') t.a = nil return t": {},
    "return json.null": None,
    "return {json.null, 1}": [None, 1],
    "return {a = json.null}": {"a": None},
    "return nil": None,
    "return {1, nil, 3}": [1, None, 3],
    "return {nil, nil, 3}": [None, None, 3],
    "return {[1] = 1, [2] = 2, [9] = 9}": [1, 2, None, None, None, None, None, None, 9],
    "return setmetatable({1}, {__index = function() return 7 end, __len = function() return 99 end})": [1],
    "return setmetatable({a = 1}, {__pairs = function() error('no') end})": {"a": 1},
}


@pytest.mark.parametrize("body", LISTS_AND_OBJECTS)
def test_tables_are_lists_or_objects_by_what_they_hold(body: str) -> None:
    assert same(value_of(body), LISTS_AND_OBJECTS[body])


REFUSED = {
    "return {a = {1, 0/0}}": ("wrong_shape", ".a[2] is not a number (NaN)"),
    "return {1/0}": ("wrong_shape", "[1] is an infinite number"),
    "return {a = {b = -1/0}}": ("wrong_shape", ".a.b is an infinite number"),
    "return {f = print}": ("wrong_shape", ".f is a function"),
    "return coroutine.create(print)": ("wrong_shape", "value is a thread"),
    "return {[1] = 1, a = 2}": ("wrong_shape", "value is a table with both list items and named keys"),
    "return {x = {[1000] = 1}}": ("wrong_shape", ".x is a table with a list with too many holes"),
    "return {[1.5] = 1}": ("wrong_shape", "a key that is neither a string nor a list position"),
    "return {[0] = 1}": ("wrong_shape", "a key that is neither a string nor a list position"),
    "return {[true] = 1}": ("wrong_shape", "a key that is neither a string nor a list position"),
    "return {[{}] = 1}": ("wrong_shape", "a key that is neither a string nor a list position"),
    "local t = {} t.a = {t} return t": ("depth_limit", ".a[1] contains itself (a cycle)"),
    "local t = {} for _ = 1, 64 do t = {t} end return t": ("depth_limit", "is nested deeper than 64 levels"),
    "return {a = ('x'):rep(2000000)}": ("output_limit", ".a is larger than 1048576 bytes"),
    "local t = {} for i = 1, 300000 do t[i] = 'four' end return t": ("output_limit", "is larger than 1048576 bytes"),
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_cannot_cross_is_refused_and_named_by_its_path(body: str) -> None:
    ran = run(body)
    assert (ran.kind, ran.message) == (REFUSED[body][0], ran.message)
    assert ran.message.startswith("the answer of agent.resolve: value")
    assert REFUSED[body][1] in ran.message


def test_a_value_of_exactly_the_allowed_depth_crosses_and_one_level_more_does_not() -> None:
    nest = "local t = 1 for _ = 1, %d do t = {t} end return t"
    assert run(nest % 5, value_depth=5).kind == "done"
    assert run(nest % 6, value_depth=5).kind == "depth_limit"


def test_a_value_of_exactly_the_allowed_size_crosses_and_one_byte_more_does_not() -> None:
    body = "return ('x'):rep(%d)"
    assert run(body % (1000 - 3), output_bytes=1000).kind == "done"  # three bytes say that it is a text, and how long
    assert run(body % (1000 - 2), output_bytes=1000).kind == "output_limit"


def test_the_same_table_twice_is_no_cycle() -> None:
    assert value_of("local t = {1} return {t, t, {t}}") == [[1], [1], [[1]]]


def test_a_wrong_argument_of_a_host_call_is_a_catchable_error_that_names_its_path() -> None:
    ran = run("local ok, e = pcall(context.search, {query = 'q', filters = {print}}) return tostring(ok) .. e")
    assert ran.kind == "done"
    assert ran.calls == []
    assert ran.value.startswith("false")
    assert "context.search: the argument .filters[1] is a function" in ran.value


# json --------------------------------------------------------------------------------------------------------------


def _without_negative_zero(value: Any) -> Any:
    """The corner of -0.0 has a test of its own."""
    if isinstance(value, dict):
        return {key: _without_negative_zero(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_negative_zero(item) for item in value]
    return value + 0.0 if isinstance(value, float) else value


@given(values)
def test_json_decode_agrees_with_pythons(value: Any) -> None:
    positive = _without_negative_zero(value)
    assert same(value_of("return json.decode(...)", json.dumps(positive)), positive)
    assert same(value_of("return json.decode(...)", json.dumps(positive, ensure_ascii=False, indent=2)), positive)


@given(values)
def test_what_json_encode_writes_python_reads_back(value: Any) -> None:
    assert same(json.loads(value_of("return json.encode(...)", value)), value)


@given(with_nulls)
def test_json_null_keeps_every_null_when_it_is_asked_for(value: Any) -> None:
    positive = _without_negative_zero(value)
    written = value_of("return json.encode(json.decode(..., {null = json.null}))", json.dumps(positive))
    assert same(json.loads(written), positive)


def _parses(text: str) -> bool:
    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@settings(max_examples=effort(300))
@given(st.text(st.sampled_from('[]{}",:\\ntrufalse0123456789.eE+-u d8\t\n'), max_size=12))
def test_json_decode_takes_exactly_the_texts_that_python_takes(text: str) -> None:
    ran = run("local ok, e = pcall(json.decode, ...) return ok", text)
    assert ran.value is _parses(text), text


BAD_JSON = [
    "",
    " ",
    "nul",
    "nulll",
    "True",
    "NaN",
    "Infinity",
    "-Infinity",
    "-",
    "+1",
    "01",
    "-01",
    "1.",
    ".5",
    "1e",
    "1e+",
    "0x10",
    "1 2",
    "[1,]",
    "[,1]",
    "[1 2]",
    "[",
    "]",
    "[[]",
    '{"a" 1}',
    '{"a":1,}',
    "{a:1}",
    "{1:1}",
    "{'a':1}",
    '{"a":}',
    "{",
    '"',
    '"\\"',
    '"\\x41"',
    '"\\u12"',
    '"\\u12g4"',
    '"\n"',
    '"\t"',
    '"\x00"',
    "// no\n1",
    "/* no */1",
    "\ufeff1",
    "1\x00",
    "[1]]",
    "\u00a01",
    "\x0b1",
]


@pytest.mark.parametrize("text", BAD_JSON)
def test_json_decode_refuses_what_is_not_json(text: str) -> None:
    assert not _parses(text)
    assert error_of("local value = json.decode(...) return value", text).startswith("t.lua:1: json.decode: ")


def test_json_decode_names_the_byte_where_it_stopped() -> None:
    assert "at byte 5" in error_of("return json.decode('[1, x]')")
    assert "at byte 8" in error_of("return json.decode('{\"a\":1 2}')")


def test_json_decode_refuses_text_that_is_not_utf8_and_values_that_are_not_text() -> None:
    assert "not UTF-8" in error_of("return json.decode('\"\\xff\"')")
    assert "got nil" in error_of("return json.decode()")
    assert "got table" in error_of("return json.decode({})")


def test_json_decode_bounds_the_depth() -> None:
    assert "nested deeper than 64 levels" in error_of("return json.decode(('['):rep(100) .. (']'):rep(100))")
    assert run("return json.decode(('['):rep(60) .. (']'):rep(60))").kind == "done"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"\\ud83d\\ude00"', "😀"),
        ('"\\ud83d"', "\ufffd"),
        ('"\\ude00x"', "\ufffdx"),
        ('"\\ud83d\\u0041"', "\ufffdA"),
        ('"\\u0000"', "\0"),
        ('"\x7f"', "\x7f"),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", float(2**63)),
        ("-9223372036854775808", -(2**63)),
        ("-9223372036854775809", -float(2**63)),
        ("1.0", 1.0),
        ("1e2", 100.0),
        ("-0", 0),
        ("-0.0", -0.0),
        ("1e-400", 0.0),
    ],
)
def test_json_decode_reads_the_corners_of_json(text: str, found: Any) -> None:
    assert same(value_of("return json.decode(...)", text), found)


def test_a_json_number_beyond_every_float_is_no_value_that_could_be_returned() -> None:
    assert run("return json.decode('1e400')").kind == "wrong_shape"


def test_json_parse_is_another_name_of_decode() -> None:
    assert value_of("return json.parse('[1, {\"a\": []}]')") == [1, {"a": []}]


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        ("0/0", "NaN or infinity"),
        ("{1/0}", "NaN or infinity"),
        ("print", "a function value"),
        ("{a = '\\xff'}", "a string that is not UTF-8"),
        ("{1, a = 2}", "both list items and named keys"),
        ("{[1.5] = 1}", "a key that is neither"),
    ],
)
def test_json_encode_refuses_what_json_cannot_hold(expression: str, part: str) -> None:
    message = error_of(f"local text = json.encode({expression}) return text")
    assert message.startswith("t.lua:1: json.encode: cannot encode ")
    assert part in message


def test_json_encode_refuses_cycles_and_depth() -> None:
    assert "contains itself" in error_of("local t = {} t[1] = t return json.encode(t)")
    assert "nested deeper" in error_of("local t = {} for _ = 1, 100 do t = {t} end return json.encode(t)")


def test_json_works_inside_callbacks() -> None:
    assert value_of("return (('a'):gsub('a', function() return json.encode({1}) .. json.decode('2') end))") == "[1]2"


def test_json_null_is_a_constant_that_is_equal_to_itself_only() -> None:
    body = (
        "return {json.null == json.null, json.null ~= nil, tostring(json.null), pcall(function() json.null.x = 1 end)}"
    )
    assert value_of(body) == [True, True, "null", False, "t.lua:1: json.null cannot be changed"]


def test_json_array_returns_the_table_it_marks_and_refuses_other_values() -> None:
    assert value_of("local t = {} return rawequal(json.array(t), t)") is True
    assert "got string" in error_of("json.array('x')")


# base64 and crypto -------------------------------------------------------------------------------------------------

# Bytes cross into Lua as hexadecimal text, since a value of a script is text.
FROM_HEX = "local raw = (...):gsub('..', function(h) return string.char(tonumber(h, 16)) end) "
TO_HEX = "(%s):gsub('.', function(c) return ('%%02x'):format(c:byte()) end)"


@given(st.binary(max_size=200))
def test_base64_agrees_with_pythons(raw: bytes) -> None:
    encoded = base64.b64encode(raw).decode()
    assert value_of(FROM_HEX + "return base64.encode(raw)", raw.hex()) == encoded
    assert value_of("return (" + TO_HEX % "base64.decode(...)" + ")", encoded) == raw.hex()
    assert value_of("return (" + TO_HEX % "base64.decode(...)" + ")", encoded.rstrip("=")) == raw.hex()


@pytest.mark.parametrize("text", ["A", "AAAAA", "A=", "A===", "AA=A", "AA==AA==", "A*==", "ab_-", "====", "="])
def test_base64_decode_refuses_what_is_not_base64(text: str) -> None:
    assert "not base64" in error_of("return base64.decode(...)", text)


def test_base64_decode_ignores_white_space() -> None:
    assert value_of("return base64.decode(' aGV\\n sbG8= ')") == "hello"


@given(st.binary(max_size=200))
def test_sha256_agrees_with_pythons(raw: bytes) -> None:
    assert value_of(FROM_HEX + "return crypto.sha256(raw)", raw.hex()) == hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize("length", [0, 54, 55, 56, 63, 64, 65, 119, 120, 128, 10_000])
def test_sha256_agrees_at_every_edge_of_its_blocks(length: int) -> None:
    raw = bytes(range(256)) * 40
    assert value_of("return crypto.sha256(...)", "x" * length) == hashlib.sha256(b"x" * length).hexdigest()
    assert value_of(FROM_HEX + "return crypto.sha256(raw)", raw.hex()) == hashlib.sha256(raw).hexdigest()


@given(st.text(max_size=200), st.text(max_size=100))
def test_hmac_sha256_agrees_with_pythons(key: str, message: str) -> None:
    expected = hmac.new(key.encode(), message.encode(), hashlib.sha256).hexdigest()
    assert value_of("return crypto.hmac_sha256(...)", key, message) == expected


def test_crypto_names_the_function_that_was_given_something_else() -> None:
    assert "crypto.sha256: a string is expected, got number" in error_of("crypto.sha256(1)")
    assert "crypto.hmac_sha256: a string is expected, got nil" in error_of("crypto.hmac_sha256('k')")

"""`csv`: RFC 4180, beside Python's reader and writer."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lua_support import error_of, value_of

FIELDS = st.text(alphabet='ab,;"\n\r ä', max_size=6)
ROWS = st.lists(st.lists(FIELDS, min_size=1, max_size=4), max_size=5)


@given(ROWS)
def test_what_is_written_is_read_back_here_and_by_python(rows: list[list[str]]) -> None:
    text = value_of("return csv.encode((...))", rows)
    assert value_of("return csv.parse((...))", text) == rows
    assert list(csv.reader(io.StringIO(text, newline=""))) == rows


@given(ROWS, st.sampled_from([",", ";", "\t"]))
def test_what_python_writes_is_read(rows: list[list[str]], separator: str) -> None:
    out = io.StringIO()
    csv.writer(out, delimiter=separator).writerows(rows)
    assert value_of("local s, by = ... return csv.parse(s, {separator = by})", out.getvalue(), separator) == rows


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("csv.parse('')", []), ("csv.parse('a,b')", [["a", "b"]]), ("csv.parse('a\\n\\n\\r\\nb\\n')", [["a"], ["b"]]),
        ("csv.parse('\\xef\\xbb\\xbfa')", [["a"]]), ("csv.parse('a,b\\n1,2\\n3\\n', {header = true})",
                                                    [{"a": "1", "b": "2"}, {"a": "3"}]),
        ("csv.encode({})", ""), ("csv.encode({{n = 1, m = 2.0}, {m = false}})", "m,n\r\n2,1\r\nfalse,\r\n"),
        ("csv.encode({{'x'}}, {header = {'h'}})", "h\r\nx\r\n"),
        ("csv.encode({{b = 1, a = 2}}, {header = {'b'}})", "b\r\n1\r\n"),
    ],
)  # fmt: skip
def test_a_call_returns(call: str, expected: object) -> None:
    assert value_of(f"return {call}") == expected


@pytest.mark.parametrize(
    "call",
    [
        "csv.parse('\"a')", "csv.parse('\"a\"b')", "csv.parse(nil)", "csv.parse('a', 5)",
        "csv.parse('a', {separator = ''})",
        "csv.parse('a', {separator = 'x'})", "csv.parse('a\\n1,2', {header = true})", "csv.encode({1})",
        "csv.encode({a = 1})",
        "csv.encode({{{}}})", "csv.encode({{1}, {a = 1}})", "csv.encode({{1}}, {header = 5})",
    ],
)  # fmt: skip
def test_a_wrong_argument_is_an_error_at_the_scripts_line(call: str) -> None:
    assert error_of(f"\n{call}").startswith("t.lua:2: csv.")

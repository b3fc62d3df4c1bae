"""Rendering: columns, control characters, JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli import output
from cli.commands.tool import parse_params
from cli.output import exit_code_of
from engine.errors import Code, Problem

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "maybe": {"type": ["string", "null"]},
        "count": {"type": "integer"},
        "flag": {"type": "boolean"},
        "list": {"type": "array"},
        "any": {},
    },
}


@given(st.text())
def test_no_text_can_steer_a_terminal(text: str):
    shown = output.plain(text)
    assert all(c in "\n\t" or (ord(c) >= 0x20 and not 0x7F <= ord(c) <= 0x9F) for c in shown)
    assert output.plain(shown) == shown


def test_line_ends_of_other_systems_are_line_ends():
    assert output.plain("a\r\nb") == "a\nb"


@given(st.recursive(st.text() | st.integers() | st.booleans() | st.none(), lambda inner: st.lists(inner, max_size=3)))
def test_json_output_is_the_value_and_holds_no_control_characters(value: object):
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as out:
        output.say_json(value)
    assert json.loads(out.getvalue()) == value
    assert not any(0x7F <= ord(c) <= 0x9F or c == "\x1b" for c in out.getvalue())


def test_columns_are_aligned_by_the_width_that_a_terminal_shows(capsys):
    output.table([("a", "one"), ("日本", "two")], heading=("NAME", "WHAT"), indent="")
    assert capsys.readouterr().out == "NAME  WHAT\na     one\n日本  two\n"


def test_a_description_is_cut_to_its_first_line_and_a_width():
    assert output.shortened("\n  first line \nsecond", 60) == "first line"
    assert output.shortened("abcdef", 4) == "abc…"


def test_parameters_are_parsed_by_their_declared_types():
    given = {"text": "5", "maybe": "null", "count": "5", "flag": "true", "list": "[1]", "any": "{}", "extra": "plain"}
    assert parse_params(given, SCHEMA) == {
        "text": "5", "maybe": "null", "count": 5, "flag": True, "list": [1], "any": {}, "extra": "plain",
    }  # fmt: skip


def test_a_parameter_that_is_not_json_where_json_is_declared_is_exit_1():
    with pytest.raises(output.Exit, match="--param count: expected integer as JSON, got 'many'") as caught:
        parse_params({"count": "many"}, SCHEMA)
    assert caught.value.code == output.FAILED


def test_a_wrong_name_or_key_and_a_fault_of_the_engine_are_exit_code_2_and_all_else_is_1():
    codes = {code: exit_code_of(Problem(code, "why")) for code in Code}
    assert set(codes.values()) == {1, 2}
    assert {code for code, number in codes.items() if number == 2} == {
        Code.NOT_FOUND, Code.UNAUTHORIZED, Code.FORBIDDEN, Code.UNAVAILABLE, Code.INTERNAL, Code.WORKER_LOST,
    }  # fmt: skip

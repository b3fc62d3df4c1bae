"""Parameters against their schema: the first violation, in words that name the parameter."""

from typing import Any

import pytest

from agents.shapes.parameters import Parameters
from agents.tools import builtin
from engine.errors import Code, Problem

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 10},
        "count": {"type": "integer", "minimum": 1, "maximum": 100},
        "ratio": {"type": "number"},
        "kind": {"type": "string", "enum": ["bug", "task"]},
        "labels": {"type": "array", "items": {"type": "string"}},
        "where": {
            "type": "object",
            "properties": {"line": {"type": "integer"}, "file": {"type": "string"}},
            "required": ["file"],
        },
        "either": {"type": ["string", "null"]},
    },
    "required": ["title", "count"],
}
FULL = {"title": "t", "count": 1}

WRONG: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "missing required parameter: title"),
    "the second is missing": ({"title": "x"}, "missing required parameter: count"),
    "missing below": (FULL | {"where": {"line": 1}}, "missing required parameter: where.file"),
    "a number as text": (FULL | {"title": 5}, "parameter 'title' must be of type 'string', got integer"),
    "a boolean as integer": (FULL | {"count": True}, "parameter 'count' must be of type 'integer', got boolean"),
    "a fraction as integer": (FULL | {"count": 1.5}, "parameter 'count' must be of type 'integer', got number"),
    "a text as number": (FULL | {"ratio": "1"}, "parameter 'ratio' must be of type 'number', got string"),
    "null": (FULL | {"title": None}, "parameter 'title' must be of type 'string', got null"),
    "a list as object": (FULL | {"where": []}, "parameter 'where' must be of type 'object', got array"),
    "an object as list": (FULL | {"labels": {}}, "parameter 'labels' must be of type 'array', got object"),
    "a number in a list": (FULL | {"labels": ["a", 1]}, "parameter 'labels.1' must be of type 'string', got integer"),
    "a type below": (FULL | {"where": {"file": 1}}, "parameter 'where.file' must be of type 'string', got integer"),
    "none of the enum": (FULL | {"kind": "epic"}, 'parameter \'kind\' must be one of ["bug", "task"], got "epic"'),
    "too large": (FULL | {"count": 101}, "parameter 'count': "),
    "too small": (FULL | {"count": 0}, "parameter 'count': "),
    "too long": (FULL | {"title": "x" * 11}, "parameter 'title': "),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_parameter_is_named(what: str) -> None:
    params, text = WRONG[what]
    with pytest.raises(Problem) as wrong:
        Parameters(SCHEMA).check(params)
    assert wrong.value.code is Code.BAD_REQUEST
    assert wrong.value.message.startswith(text)
    assert len(wrong.value.message) < 300


@pytest.mark.parametrize("name", ["0", "7", "007", "+1", "00", "18446744073709551615", "18446744073709551616", "1.5"])
def test_a_parameter_whose_name_is_a_number_is_named(name: str) -> None:
    inner = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
    schema = {**inner, "properties": {**inner["properties"], "a": inner}}  # type: ignore[dict-item]
    for params, text in (
        ({name: "x"}, f"parameter '{name}' must be of type 'integer', got string"),
        ({}, f"missing required parameter: {name}"),
        ({name: 1, "a": {name: "x"}}, f"parameter 'a.{name}' must be of type 'integer', got string"),
        ({name: 1, "a": {}}, f"missing required parameter: a.{name}"),
    ):
        with pytest.raises(Problem) as wrong:
            Parameters(schema).check(params)
        assert wrong.value.message == text


def test_two_names_of_one_number_are_told_somehow() -> None:
    schema = {"type": "object", "properties": {"7": {"enum": [1]}, "007": {"type": "string"}, "+7": {"enum": [2]}}}
    for params in ({"7": 2}, {"007": 5}, {"+7": 5}):
        with pytest.raises(Problem, match="7"):
            Parameters(schema).check(params)


@pytest.mark.parametrize(
    "params",
    [
        FULL,
        FULL | {"unknown": 1},
        FULL | {"ratio": 1},
        FULL | {"labels": []},
        FULL | {"count": 2.0},
        FULL | {"where": {"file": "f", "more": None}},
    ],
)
def test_what_is_right_passes_and_unknown_parameters_pass_through(params: dict[str, Any]) -> None:
    Parameters(SCHEMA).check(params)


def test_several_allowed_types_are_told_in_the_words_of_the_schema() -> None:
    with pytest.raises(Problem) as wrong:
        Parameters(SCHEMA).check(FULL | {"either": 5})
    assert "['" not in wrong.value.message
    assert "'string'" in wrong.value.message
    assert "'null'" in wrong.value.message


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(Problem) as wrong:
        Parameters(SCHEMA).check(FULL | {"kind": "x" * 10_000})
    assert len(wrong.value.message) < 300


def test_the_schemas_of_the_builtin_tools_compile_and_describe_their_parameters() -> None:
    for info in (builtin.SEARCH, builtin.GET, builtin.SOURCES):
        Parameters(info.parameters)
        assert info.parameters["type"] == "object"
        assert info.read_only
        assert info.builtin
        for schema in info.parameters["properties"].values():
            assert schema["description"]
            assert schema["type"]

"""Lua tools: their parameters become a schema, every call is checked against it, and a bad tool is a load failure."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from agents_support import CALL, Project, problem
from hypothesis import given
from hypothesis import strategies as st

from agents.service import Service
from agents.shapes.parameters import Parameters
from agents.shapes.schema import parameters_schema, with_defaults
from agents.shapes.shape import WrongShape
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT

Open = Callable[..., AbstractAsyncContextManager[Service]]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/tools/error-budget.lua"

ADD = """
tool = { description = "Adds", parameters = {
    { name = "a", type = "integer", required = true, minimum = 0 },
    { name = "b", type = "integer", default = 5 },
    { name = "how", enum = { "plain", "loud" } },
    { name = "at", type = "object", properties = { x = { type = "number", default = 1 } } },
} }
function tool.execute(params, context)
    if params.how == "loud" then error("too loud") end
    return { sum = params.a + params.b, at = params.at, config = context.config }
end
"""


def tool_entry(project: Project, name: str, source: str, keys: str = "") -> str:
    (project.folder / f"{name}.lua").write_text(source)
    return f'[tools.script.{name}]\npath = "{name}.lua"\n{keys}\n'


async def test_a_tool_is_listed_with_its_schema_and_answers(project: Project, opened: Open) -> None:
    project.configure(tool_entry(project, "add", ADD, "unit = 'm'"))
    async with opened() as service:
        (info,) = [info for info in service.list_tools(DEFAULT_TENANT) if not info.builtin]
        assert info.parameters["required"] == ["a"]
        assert info.parameters["properties"]["a"] == {"type": "integer", "minimum": 0}
        assert info.parameters["properties"]["how"] == {"type": "string", "enum": ["plain", "loud"]}
        called = await service.call_tool("add", {"a": 1}, CALL)
        assert called.value == {"sum": 6, "config": {"unit": "m"}}
        nested = await service.call_tool("add", {"a": 1, "b": 1, "at": {}}, CALL)
        assert nested.value == {"sum": 2, "at": {"x": 1}, "config": {"unit": "m"}}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "missing required parameter: a"),
        ({"a": "1"}, "parameter 'a' must be of type 'integer', got string"),
        ({"a": None}, "parameter 'a' must be of type 'integer', got null"),
        ({"a": -1}, "parameter 'a': -1 is less than the minimum of 0"),
        ({"a": 1, "how": "x"}, "parameter 'how' must be one of"),
        ({"a": 1, "at": {"x": "y"}}, "parameter 'at.x' must be of type 'number', got string"),
    ],
)
async def test_a_call_that_the_schema_refuses_names_the_parameter(
    project: Project, opened: Open, params: dict[str, Any], message: str
) -> None:
    project.configure(tool_entry(project, "add", ADD))
    async with opened() as service:
        async with problem(Code.BAD_REQUEST, message):
            await service.call_tool("add", params, CALL)
        assert (await service.call_tool("add", {"a": 1}, CALL)).value["sum"] == 6


async def test_a_tool_that_raises_is_a_tool_error_with_its_line_and_the_next_call_works(
    project: Project, opened: Open
) -> None:
    project.configure(tool_entry(project, "add", ADD))
    async with opened() as service:
        with pytest.raises(Problem) as raised:
            await service.call_tool("add", {"a": 1, "how": "loud"}, CALL)
        assert raised.value.code is Code.TOOL_ERROR
        assert "add.lua:9: too loud" in raised.value.message
        assert (await service.call_tool("add", {"a": 1}, CALL)).value["sum"] == 6


async def test_an_answer_that_its_returns_schema_refuses_is_a_tool_error(project: Project, opened: Open) -> None:
    source = (
        "tool = { returns = { type = 'object', properties = { n = { type = 'integer' } } } } "
        "function tool.execute() return { n = 'x' } end"
    )
    project.configure(tool_entry(project, "liar", source))
    async with opened() as service, problem(Code.TOOL_ERROR, "does not match tool.returns", "value.n"):
        await service.call_tool("liar", {}, CALL)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("tool = {}", "tool.execute is missing"),
        ("return 1", "neither sets the global 'tool'"),
        ("tool = {parameters = 5} function tool.execute() end", "tool.parameters must be"),
        ("tool = {parameters = {{}}} function tool.execute() end", "tool.parameters[1].name must be a string"),
        (
            "tool = {parameters = {{name='a', type='text'}}} function tool.execute() end",
            "tool.parameters[1].type must be one of string",
        ),
        (
            "tool = {parameters = {{name='a'}, {name='a'}}} function tool.execute() end",
            "tool.parameters[2].name: 'a' is declared twice",
        ),
        (
            "tool = {parameters = {{name='a', minimum='x'}}} function tool.execute() end",
            "tool.parameters is not a JSON Schema",
        ),
        (
            "tool = {parameters = {{name='a', pattern='(a)\\\\1'}}} function tool.execute() end",
            "tool.parameters is not a JSON Schema",
        ),
        (
            "tool = {parameters = {type='object', ['$ref']='#'}} function tool.execute() end",
            "tool.parameters uses $ref",
        ),
        (
            "local p = {} for i = 1, 3000 do p[i] = {name = 'p' .. i} end "
            "tool = {parameters = p} function tool.execute() end",
            "tool.parameters is larger than 2000 values",
        ),
        ("local s = {} s.properties = {s = s} tool = {parameters = s} function tool.execute() end", "(a cycle)"),
    ],
)
async def test_a_bad_tool_is_a_load_failure_that_names_the_place_and_the_rest_works(
    project: Project, opened: Open, source: str, message: str
) -> None:
    project.configure(tool_entry(project, "bad", source) + tool_entry(project, "add", ADD))
    async with opened() as service:
        (failure,) = service.failures
        assert (failure.kind, failure.name) == ("tool.script", "bad")
        assert message in failure.message
        async with problem(Code.NOT_FOUND, "failed to load"):
            await service.call_tool("bad", {}, CALL)
        assert (await service.call_tool("add", {"a": 1}, CALL)).value["sum"] == 6


async def test_a_tool_cannot_take_the_name_of_a_builtin_one(project: Project, opened: Open) -> None:
    project.configure(tool_entry(project, "search", ADD))
    async with opened() as service:
        (failure,) = service.failures
        assert failure.message == "'search' is the name of a builtin tool"
        assert (await service.call_tool("search", {"query": "x"}, CALL)).value == {"results": []}


async def test_a_pattern_that_would_back_track_is_answered_at_once(project: Project, opened: Open) -> None:
    source = "tool = {parameters = {{name='a', pattern='^(a+)+$'}}} function tool.execute() return 1 end"
    project.configure(tool_entry(project, "trap", source))
    async with opened() as service, problem(Code.BAD_REQUEST, "parameter 'a'"):
        await service.call_tool("trap", {"a": "a" * 50_000 + "!"}, CALL)


async def test_the_tool_of_the_demo_works(project: Project, opened: Open) -> None:
    project.configure(tool_entry(project, "error-budget", EXAMPLE.read_text()))
    async with opened() as service:
        params = {"service": "payments-api", "availability": 99.96}
        called = await service.call_tool("error-budget", params, CALL)
        assert called.value == {"remaining_percent": 20.0, "minutes_left": 4.0, "verdict": "at risk"}


def test_a_parameter_is_its_own_schema_without_the_keys_of_the_list() -> None:
    schema = parameters_schema([{"name": "a", "required": True, "type": "array", "items": {"type": "string"}}])
    assert schema == {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "string"}}},
        "required": ["a"],
    }
    with pytest.raises(WrongShape, match=r"\[1\]\.required must be true or false"):
        parameters_schema([{"name": "a", "required": "yes"}])


_SCHEMAS = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer", "number", "boolean", "array", "object"])},
    optional={"enum": st.lists(st.integers(0, 3) | st.text(max_size=2), min_size=1, max_size=3)},
)
_VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5) | st.text(max_size=3) | st.just([])


@given(st.dictionaries(st.sampled_from("abc"), _SCHEMAS), st.dictionaries(st.sampled_from("abcd"), _VALUES))
def test_what_is_accepted_is_what_the_reference_library_accepts(
    properties: dict[str, Any], params: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": properties, "required": sorted(properties)[:1]}
    try:
        Parameters(schema).check(params)
        accepted = True
    except Problem:
        accepted = False
    assert accepted == jsonschema.Draft202012Validator(schema).is_valid(params)


def test_defaults_fill_what_is_absent_and_nothing_else() -> None:
    schema = {"properties": {"a": {"default": 1}, "b": {"properties": {"c": {"default": 2}}}, "d": {}}}
    assert with_defaults(schema, {"a": None, "b": {}, "e": 3}) == {"a": None, "b": {"c": 2}, "e": 3}
    assert with_defaults(schema, {}) == {"a": 1}

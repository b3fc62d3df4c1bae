"""Python tools: their parameters by schema or model, their answers, and the tools that they and scripts call."""

import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio
from agents_support import CALL, Project, problem
from python_support import Authored

from agents.agent import Call
from agents.service import Service, open_service
from engine.config import ConfigError, load_config
from engine.errors import Code, Problem
from engine.run import Hearers, LogLine
from engine.tenant import DEFAULT_TENANT
from engine.usage import report

Open = Callable[..., AbstractAsyncContextManager[Service]]

HEAD = """
import datetime, enum, trio
from typing import Annotated, Literal
from pydantic import BaseModel, Field, field_validator
from engine import *
"""


def tool(body: str, fields: str = "", before: str = "") -> str:
    """A class whose `execute(params, context)` has this body."""
    indented = "\n".join(f"        {line}" for line in body.splitlines())
    declared = "\n".join(f"    {line}" for line in fields.splitlines())
    return f"{HEAD}{before}\nclass It:\n{declared}\n    async def execute(self, params, context):\n{indented}\n"


def agent(body: str, fields: str = "") -> str:
    return tool(body, fields).replace("execute(self, params,", "resolve(self, args,")


ADD = tool(
    "return {'sum': params['a'] + params['b'], 'how': params.get('how'), 'n': context.config['n']}",
    """
description = "Adds"
title = "Sum"
annotations = {"readOnlyHint": True}
parameters = [
    {"name": "a", "type": "integer", "required": True, "minimum": 0},
    {"name": "b", "type": "integer", "default": 5},
    {"name": "how", "enum": ["plain", "loud"]},
]
returns = {"type": "object", "properties": {"sum": {"type": "integer"}}}
""".strip(),
)


async def test_a_tool_is_listed_with_its_schema_checked_and_called_with_its_defaults(
    project: Project, authored: Authored, opened: Open
) -> None:
    project.configure(authored.tool("add", ADD, "config = { n = 1 }"))
    async with opened() as service:
        (info,) = [info for info in service.list_tools(DEFAULT_TENANT) if not info.builtin]
        assert (info.name, info.title, info.description, info.read_only) == ("add", "Sum", "Adds", True)
        assert info.parameters["required"] == ["a"]
        assert info.parameters["properties"]["b"] == {"type": "integer", "default": 5}
        assert info.returns is not None
        called = await service.call_tool("add", {"a": 1}, CALL)
        assert (called.value, called.run) == ({"sum": 6, "how": None, "n": 1}, None)
        async with problem(Code.BAD_REQUEST, "missing required parameter: a"):
            await service.call_tool("add", {}, CALL)
        async with problem(Code.BAD_REQUEST, 'parameter \'how\' must be one of ["plain", "loud"], got "x"'):
            await service.call_tool("add", {"a": 1, "how": "x"}, CALL)


MODELS = """
class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"

class Size(BaseModel):
    width: int = Field(ge=1)
    height: int = 2

class Params(BaseModel):
    day: datetime.date
    size: Size = Size(width=1)
    more: list[Size] = []
    colour: Colour = Colour.RED
    name: str = Field("n", alias="Name", description="Its name")

    @field_validator("day")
    @classmethod
    def _not_a_sunday(cls, day):
        if day.weekday() == 6:
            raise ValueError("closed on Sundays")
        return day

class Answer(BaseModel):
    day: datetime.date
    area: int
    colour: Colour
"""


async def test_a_pydantic_model_is_the_schema_and_what_execute_gets_and_returns(
    project: Project, authored: Authored, opened: Open
) -> None:
    body = (
        "assert isinstance(params, Params)\n"
        "return Answer(day=params.day, area=params.size.width * params.size.height, colour=params.colour)"
    )
    project.configure(authored.tool("model", tool(body, "parameters = Params\nreturns = Answer", MODELS)))
    async with opened() as service:
        (info,) = [info for info in service.list_tools(DEFAULT_TENANT) if not info.builtin]
        assert set(info.parameters["properties"]) == {"day", "size", "more", "colour", "Name"}
        assert info.parameters["properties"]["Name"]["description"] == "Its name"
        assert info.parameters["properties"]["more"]["items"]["properties"]["width"]["minimum"] == 1
        assert "$ref" not in str(info.parameters) + str(info.returns)
        given = {"day": "2026-01-31", "size": {"width": 3}, "colour": "blue", "unknown": 1}
        called = await service.call_tool("model", given, CALL)
        assert called.value == {"day": "2026-01-31", "area": 6, "colour": "blue"}
        async with problem(Code.BAD_REQUEST, "missing required parameter: day"):
            await service.call_tool("model", {}, CALL)
        async with problem(Code.BAD_REQUEST, "parameter 'size.width': 0 is less than the minimum"):
            await service.call_tool("model", {"day": "2026-01-31", "size": {"width": 0}}, CALL)
        async with problem(Code.BAD_REQUEST, "parameter 'day': closed on Sundays"):
            await service.call_tool("model", {"day": "2026-02-01"}, CALL)
        async with problem(Code.BAD_REQUEST, "parameter 'day'"):
            await service.call_tool("model", {"day": "no date"}, CALL)
        assert (await service.call_tool("model", {"day": "2026-01-31"}, CALL)).value["area"] == 2


# fields, what stands before the class -> part of the message
UNUSABLE = {
    "parameters": ("parameters = 5", "", "tool.parameters must be a list of parameters or a JSON Schema"),
    "kind": ("parameters = [{'name': 'a', 'type': 'text'}]", "", "tool.parameters[1].type must be one of string"),
    "schema": ("parameters = {'properties': {'a': {'type': 'text'}}}", "", "tool.parameters is not a JSON Schema"),
    "reference": ("parameters = {'$ref': 'https://example.com'}", "", "tool.parameters uses $ref"),
    "returns": ("returns = []", "", "tool.returns must be a JSON Schema"),
    "no-object": ("parameters = {'type': 'string'}", "", "tool.parameters.type must be 'object'"),
    "tools": ("tools = 'search'", "", "tool: tools must be a list, got 'search'"),
    "hints": ("annotations = {'readOnlyHint': 1}", "", "annotations.readOnlyHint must be true or false"),
    "recursive": (
        "parameters = Node",
        "class Node(BaseModel):\n    below: list['Node'] = []\n",
        "tool.parameters: Node holds itself",
    ),
    "no-json": (
        "parameters = Odd",
        "class Odd(BaseModel):\n    model_config = {'arbitrary_types_allowed': True}\n    x: trio.Event\n",
        "parameters: Odd has no JSON Schema",
    ),
}


async def test_every_unusable_tool_is_a_load_failure_and_the_rest_is_served(
    project: Project, authored: Authored, opened: Open
) -> None:
    entries = "".join(
        authored.tool(name, tool("pass", fields, before)) for name, (fields, before, _) in UNUSABLE.items()
    )
    entries += authored.tool("no-execute", "class It: pass") + authored.tool("search", tool("return 1"))
    entries += authored.tool("good", tool("return params", "parameters = [{'name': 'arguments'}]"))
    project.configure(entries)
    async with opened() as service:
        found = {failure.name: failure for failure in service.failures}
        assert set(found) == {*UNUSABLE, "no-execute", "search"}
        assert {failure.kind for failure in found.values()} == {"tool.python"}
        for name, (*_, message) in UNUSABLE.items():
            assert message in found[name].message
        assert "has no method execute(params, context)" in found["no-execute"].message
        assert "'search' is the name of a builtin tool" in found["search"].message
        async with problem(Code.NOT_FOUND, "tool 'tools' failed to load"):
            await service.call_tool("tools", {}, CALL)
        assert "tools.python.good: a parameter is called 'arguments'" in service.warnings[0]
        assert (await service.call_tool("good", {"arguments": "x"}, CALL)).value == {"arguments": "x"}


async def test_entry_points_offer_tools_and_never_take_a_builtins_name(
    project: Project, authored: Authored, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = authored.module(tool("return 'installed'"))
    points = {"installed": f"{module}:It", "get": f"{module}:It"}
    monkeypatch.syspath_prepend(authored.package("toolbox", {"engine.tools": points}))
    monkeypatch.syspath_prepend(project.folder)
    project.configure()
    async with opened() as service:
        assert (await service.call_tool("installed", {}, CALL)).value == "installed"
        (failure,) = service.failures
        assert failure.message == "the installed package toolbox: 'get' is the name of a builtin tool"


async def test_any_json_value_is_an_answer_and_what_is_none_is_a_tool_error_with_its_path(
    project: Project, authored: Authored, opened: Open
) -> None:
    answers = {
        "null": "None", "text": "'ü'", "big": "2 ** 70", "list": "[1, (2.5, True)]", "deep": "{'a': [{'b': None}]}",
        "nan": "[1, float('inf')]", "bytes": "{'a': {'b': b''}}", "liar": "{'n': 'x'}",
    }  # fmt: skip
    returns = "returns = {'properties': {'n': {'type': 'integer'}}}"
    project.configure("".join(authored.tool(n, tool(f"return {answer}", returns)) for n, answer in answers.items()))
    async with opened() as service:
        values = {n: (await service.call_tool(n, {}, CALL)).value for n in ("null", "text", "big", "list", "deep")}
        assert values == {
            "null": None,
            "text": "ü",
            "big": 2**70,
            "list": [1, [2.5, True]],
            "deep": {"a": [{"b": None}]},
        }
        async with problem(Code.TOOL_ERROR, "tool 'nan': the answer of tool.execute: [1] is not a finite number"):
            await service.call_tool("nan", {}, CALL)
        async with problem(Code.TOOL_ERROR, "the answer of tool.execute: a.b is not JSON data"):
            await service.call_tool("bytes", {}, CALL)
        async with problem(Code.TOOL_ERROR, "tool 'liar'", "does not match tool.returns: value.n"):
            await service.call_tool("liar", {}, CALL)


async def test_failures_of_a_tool_are_told_as_those_of_an_agent_and_the_next_call_works(
    project: Project, authored: Authored, opened: Open
) -> None:
    project.configure(
        authored.tool("told", tool("raise CallFailed('no such table')"))
        + authored.tool("bug", tool("return {}['secret key']"))
        + authored.tool("slow", tool("await trio.sleep_forever()", "timeout = 0.05"))
        + authored.tool("good", tool("return 1"))
    )
    async with opened() as service:
        async with problem(Code.TOOL_ERROR, "tool 'told': no such table"):
            await service.call_tool("told", {}, CALL)
        with pytest.raises(Problem) as raised:
            await service.call_tool("bug", {}, CALL)
        assert raised.value.code is Code.TOOL_ERROR
        assert "secret" not in raised.value.message
        assert isinstance(raised.value.__cause__, KeyError)
        async with problem(Code.TIMEOUT, "tool 'slow' did not end within 0.05 s"):
            await service.call_tool("slow", {}, CALL)
        assert (await service.call_tool("good", {}, CALL)).value == 1


# ---- calling tools ----------------------------------------------------------------------------------------------

LUA_TOOL = """
tool = { tools = { "double", "down" }, parameters = { { name = "n", type = "integer", required = true } } }
function tool.execute(params, context)
    if params.n > 100 then error("too many") end
    if params.call then return context.call_tool(params.call, { n = params.n }) end
    return params.n + 1
end
"""
DOUBLE = tool("return params['n'] * 2", "parameters = [{'name': 'n', 'type': 'integer', 'required': True}]")


def lua(project: Project, section: str, name: str, source: str, keys: str = "") -> str:
    (project.folder / f"{name}.lua").write_text(source)
    return f'[{section}.script.{name}]\npath = "{name}.lua"\n{keys}\n'


async def test_an_agent_calls_the_tools_of_its_list_and_no_other_by_the_common_path(
    project: Project, authored: Authored, opened: Open
) -> None:
    body = """
told = []
for name, params in (("double", {"n": 4}), ("next", {"n": 4}), ("double", {"n": "x"}), ("double", {"n": {1}}),
                     ("next", {"n": 101}), ("other", {}), ("left-out", {}), ("ghost", {}), ("search", {"query": "x"})):
    try:
        told.append(str(await context.call_tool(name, params)))
    except CallFailed as failed:
        told.append(f"{failed.code}: {failed}")
return {"system": "|".join(told) + "|" + ",".join(context.tools)}
"""
    tools = "tools = ['double', 'next', 'left-out', 'ghost', 'search']"
    project.configure(
        authored.agent("calling", agent(body.strip(), tools), 'tools = ["double", "next", "ghost", "search"]')
        + authored.agent("uncaught", agent("await context.call_tool('double')", "tools = ['double']"))
        + authored.tool("double", DOUBLE)
        + authored.tool("other", DOUBLE)
        + authored.tool("left-out", DOUBLE)
        + lua(project, "tools", "next", LUA_TOOL)
    )
    async with opened() as service:
        told = (await service.resolve("calling", {}, CALL)).prompt.system.split("|")
        assert told[:2] == ["8", "5"]
        assert told[2] == "bad_request: parameter 'n' must be of type 'integer', got string"
        assert told[3] == "bad_request: the parameters of context.call_tool: n is not JSON data"
        assert told[4].startswith("tool_error: tool 'next': next.lua:4: too many")
        assert told[5].startswith("tool_not_allowed: 'other' is not in agent.tools")
        assert told[6].startswith("tool_not_allowed: 'left-out' is not in agent.tools, or its configuration leaves it")
        assert told[7] == "not_found: no tool registered with name: ghost"
        assert told[8] == "{'results': []}"
        assert told[9] == "double,next,ghost,search"
        async with problem(Code.AGENT_ERROR, "agent 'uncaught': missing required parameter: n"):
            await service.resolve("uncaught", {}, CALL)


async def test_a_script_calls_a_python_tool_and_pays_for_what_that_asks(
    project: Project, authored: Authored, opened: Open
) -> None:
    asking = tool("for _ in range(params['n']):\n    await context.search('x')\nreturn context.tenant",
                  "parameters = [{'name': 'n', 'type': 'integer'}]")  # fmt: skip
    source = """
        agent = { tools = { "asking", "told" } }
        function agent.resolve(args, config, context)
            local _, message = pcall(context.call_tool, "told", {})
            return { system = context.call_tool("asking", { n = args.n }) .. " " .. message }
        end
    """
    project.configure(
        authored.tool("asking", asking)
        + authored.tool("told", tool("context.log.info('heard')\nraise CallFailed('no such table')"))
        + lua(project, "agents", "script", source, "limits = { host_calls = 10 }")
    )
    lines: list[LogLine] = []
    async with opened() as service:
        resolved = await service.resolve("script", {"n": 8}, Call(DEFAULT_TENANT, Hearers(log=lines.append)))
        booked = {row["agent"]: row for row in report(await service.usage.sums_of("default"))["by_agent"]}
        assert booked["tool:asking"]["outcomes"] == {"ok": 1}
        assert booked["tool:asking"]["host_calls_by_name"] == {"context.search": 8}
        assert booked["tool:told"]["outcomes"] == {"script_error": 1}
        assert booked["tool:asking"]["wall_ms"] > 0
        assert resolved.prompt.system.startswith("default ")
        assert "tool 'told': no such table" in resolved.prompt.system
        assert lines == [LogLine("info", "heard")]
        async with problem(Code.CALL_LIMIT, "10 host calls"):
            await service.resolve("script", {"n": 9}, CALL)
        assert (await service.resolve("script", {"n": 1}, CALL)).prompt.system.startswith("default ")


async def test_a_scripts_deadline_ends_the_python_tool_that_it_called(
    project: Project, authored: Authored, opened: Open
) -> None:
    module = authored.module(
        tool("try:\n    await trio.sleep_forever()\nfinally:\n    left.append(True)", "", "left = []")
    )
    source = """
        agent = { tools = { "slow" } }
        function agent.resolve(args, config, context) pcall(context.call_tool, "slow", {}) return { system = "" } end
    """
    project.configure(
        f'[tools.python.slow]\npath = "{module}:It"\n' + lua(project, "agents", "script", source, "timeout = 0.3")
    )
    async with opened() as service:
        with trio.fail_after(20):
            async with problem(Code.TIMEOUT, "0.3 s"):
                await service.resolve("script", {}, CALL)
        assert sys.modules[module].left == [True]
        assert (await service.call_tool("search", {"query": "x"}, CALL)).value == {"results": []}


async def test_an_agents_deadline_ends_the_lua_tool_that_it_called_and_its_worker_is_replaced(
    project: Project, authored: Authored, opened: Open
) -> None:
    endless = "tool = { execute = function() while true do end end }"
    project.configure(
        authored.agent(
            "hasty", agent("return await context.call_tool('endless')", "tools = ['endless']"), "timeout = 0.3"
        )
        + lua(project, "tools", "endless", endless)
        + lua(project, "tools", "next", LUA_TOOL)
    )
    async with opened() as service:
        with trio.fail_after(20):
            for _ in range(3):  # more often than there are workers
                async with problem(Code.TIMEOUT, "agent 'hasty' did not end within 0.3 s"):
                    await service.resolve("hasty", {}, CALL)
            assert (await service.call_tool("next", {"n": 1}, CALL)).value == 2


async def test_no_tool_is_called_from_below_itself_and_depth_is_bounded(
    project: Project, authored: Authored, opened: Open
) -> None:
    passing = "return await context.call_tool(context.config['to'], params)"
    chain = ["a", "b", "c", "d", "e"]
    entries = "".join(
        authored.tool(name, tool(passing, f"tools = ['{to}']"), f'config = {{ to = "{to}" }}')
        for name, to in [*zip(chain, [*chain[1:], "end"], strict=True), ("self", "self"), ("down", "up")]
    )
    project.configure(
        entries
        + authored.tool("end", tool("return 'reached'"))
        + lua(project, "tools", "up", LUA_TOOL)
        + authored.agent(
            "echo", agent("return await context.call_tool('echo')", "tools = ['echo']"), 'expose = ["tool"]'
        )
    )
    async with opened() as service:
        async with problem(Code.TOOL_ERROR, "'self' calls itself: self -> self"):
            await service.call_tool("self", {}, CALL)
        async with problem(Code.TOOL_ERROR, "'down' calls itself: down -> up -> down"):
            await service.call_tool("down", {"n": 1, "call": "down"}, CALL)
        async with problem(Code.TOOL_ERROR, "'up' calls itself: up -> down -> up"):
            await service.call_tool("up", {"n": 1, "call": "down"}, CALL)
        async with problem(Code.AGENT_ERROR, "'echo' calls itself: echo -> echo"):
            await service.call_tool("echo", {}, CALL)
        async with problem(Code.TOOL_ERROR, "tools may call tools 4 deep: a -> b -> c -> d -> e"):
            await service.call_tool("a", {}, CALL)
        assert (await service.call_tool("c", {}, CALL)).value == "reached"


async def test_a_tool_offered_to_an_agent_alone_is_refused_to_others_by_name(
    project: Project, authored: Authored, opened: Open
) -> None:
    project.configure(
        authored.agent("with", agent("return {'system': ''}", "tools = ['double']"))
        + authored.agent("without", agent("return {'system': ''}"))
        + authored.tool("double", DOUBLE)
    )
    async with opened() as service:
        assert [info.name for info in service.list_tools(DEFAULT_TENANT, "with")] == ["double"]
        assert (await service.call_tool("double", {"n": 2}, CALL, agent="with")).value == 4
        async with problem(Code.TOOL_NOT_ALLOWED, "agent 'without' may not use the tool 'double'"):
            await service.call_tool("double", {"n": 2}, CALL, agent="without")


# ---- objects of a program's own ---------------------------------------------------------------------------------


class Get:
    name = "get"

    async def execute(self, params: Any, context: Any) -> Any:
        return None


async def test_a_program_cannot_take_the_name_of_a_builtin_tool(project: Project) -> None:
    project.configure()
    loaded = load_config(project.folder / "engine.toml", environ={}, cwd=project.folder)
    with pytest.raises(ConfigError, match=r"tools\[0\] \(.*:Get\): 'get' is the name of a builtin tool"):
        async with open_service(loaded, tools=[Get()]):
            raise AssertionError("opened")

"""What every front end calls: names, checks and their order, arguments, narrowing, the builtin tools."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from agents_support import CALL, Project, agent, problem

from agents.agent import Call
from agents.code.failure import RunFailed
from agents.service import Service
from engine.errors import Code, Problem
from engine.run import Hearers, LogLine
from engine.tenant import DEFAULT_TENANT, Tenant
from sandbox.wire.outcome import Outcome

Open = Callable[..., AbstractAsyncContextManager[Service]]

INLINE = """
[agents.reviewer]
description = "Reviews"
tools = ["search", "ticket"]
system_prompt = "You review."
"""


@pytest.fixture
def mixed(project: Project) -> Project:
    project.configure(
        INLINE
        + project.script("plain", agent("return {system = 'for ' .. args.who, messages = {}}"))
        + project.script(
            "asking",
            agent(
                "return {system = json.encode(args)}",
                "arguments = {{name = 'service', required = true}, {name = 'severity', description = 'P1'}}",
            ),
        )
        + project.script("narrowed", agent("return {system = 'n'}"), 'tools = ["get", "other"]')
    )
    return project


async def test_agents_are_listed_in_the_order_of_the_configuration(mixed: Project, opened: Open) -> None:
    async with opened() as service:
        listed = [info.model_dump() for info in service.list_agents(DEFAULT_TENANT)]
    assert [info["name"] for info in listed] == ["reviewer", "plain", "asking", "narrowed"]
    assert listed[0] == {
        "name": "reviewer",
        "description": "Reviews",
        "tools": ("search", "ticket"),
        "source": "toml",
        "arguments": (),
        "title": None,
        "expose": ("prompt",),
    }
    assert listed[1]["source"] == "lua"
    assert listed[1]["description"] == "Lua agent: plain"
    assert listed[2]["arguments"] == (
        {"name": "service", "description": "", "required": True, "enum": None},
        {"name": "severity", "description": "P1", "required": False, "enum": None},
    )
    assert listed[3]["tools"] == ("get",)


async def test_checks_of_a_tool_call_come_in_their_order(mixed: Project, opened: Open) -> None:
    async with opened() as service:
        async with problem(Code.NOT_FOUND, "no agent registered with name: nobody"):
            await service.call_tool("nothing", {"query": 5}, CALL, agent="nobody")
        async with problem(Code.TOOL_NOT_ALLOWED, "agent 'reviewer' may not use the tool 'get'"):
            await service.call_tool("get", {}, CALL, agent="reviewer")
        async with problem(Code.TOOL_NOT_ALLOWED, "may not use the tool 'nothing'"):
            await service.call_tool("nothing", {}, CALL, agent="reviewer")
        async with problem(Code.NOT_FOUND, "no tool registered with name: ticket"):
            await service.call_tool("ticket", {}, CALL, agent="reviewer")
        async with problem(Code.BAD_REQUEST, "missing required parameter: query"):
            await service.call_tool("search", {}, CALL, agent="reviewer")
        assert (await service.call_tool("search", {"query": "x"}, CALL, agent="reviewer")).value == {"results": []}
        async with problem(Code.NOT_FOUND, "no tool registered with name: nothing"):
            await service.call_tool("nothing", {}, CALL)
        async with problem(Code.NOT_FOUND):
            await service.call_tool("x" * 10_000, {}, CALL)


async def test_the_tools_of_an_agent_are_those_of_its_list_that_exist(mixed: Project, opened: Open) -> None:
    async with opened() as service:
        assert [info.name for info in service.list_tools(DEFAULT_TENANT)] == ["search", "get", "sources"]
        assert [info.name for info in service.list_tools(DEFAULT_TENANT, "reviewer")] == ["search"]
        async with problem(Code.NOT_FOUND, "no agent registered with name: nobody"):
            service.list_tools(DEFAULT_TENANT, "nobody")


async def test_an_agent_is_resolved_with_its_arguments(mixed: Project, opened: Open) -> None:
    async with opened() as service:
        resolved = await service.resolve("plain", {"who": "you", "unknown": [1, {"a": None}]}, CALL)
        assert (resolved.prompt.system, resolved.prompt.tools, resolved.prompt.messages) == (
            "for you",
            ("search", "get"),
            (),
        )
        assert resolved.run is not None
        assert resolved.run.outcome is Outcome.OK
        inline = await service.resolve("reviewer", {"anything": 1}, CALL)
        assert (inline.prompt.system, inline.prompt.tools, inline.run) == ("You review.", ("search", "ticket"), None)


async def test_required_arguments_are_checked_before_anything_runs(mixed: Project, opened: Open) -> None:
    async with opened() as service:
        ended = service.engine.render_metrics()
        for arguments in ({}, {"severity": "P1"}, {"service": None}):
            async with problem(Code.BAD_REQUEST, "missing required argument: service"):
                await service.resolve("asking", arguments, CALL)
        assert service.engine.render_metrics() == ended
        for value in ("", False, 0, [], {}):
            assert (await service.resolve("asking", {"service": value}, CALL)).prompt.system
        async with problem(Code.NOT_FOUND, "no agent registered with name: nobody"):
            await service.resolve("nobody", {}, CALL)


async def test_json_arguments_pass_through(mixed: Project, opened: Open) -> None:
    value = {"n": 1.5, "list": [], "object": {}, "text": "ü", "yes": True}
    async with opened() as service:
        prompt = (await service.resolve("asking", {"service": value}, CALL)).prompt
    assert json.loads(prompt.system) == {"service": value}


async def test_an_agent_may_narrow_its_tools_and_never_widen_them(project: Project, opened: Open) -> None:
    project.configure(
        project.script("narrow", agent("return {system = '', tools = {'get'}}"))
        + project.script("none", agent("return {system = '', tools = {}}"))
        + project.script("kept", agent("return {system = ''}"))
        + project.script("wide", agent("return {system = '', tools = {'search', 'sources'}}"))
        + project.script("configured", agent("return {system = '', tools = {'search', 'get'}}"), 'tools = ["get"]')
    )
    async with opened() as service:
        assert (await service.resolve("narrow", {}, CALL)).prompt.tools == ("get",)
        assert (await service.resolve("none", {}, CALL)).prompt.tools == ()
        assert (await service.resolve("kept", {}, CALL)).prompt.tools == ("search", "get")
        async with problem(Code.AGENT_ERROR, "agent 'wide'", "'sources', which agent.tools does not declare"):
            await service.resolve("wide", {}, CALL)
        async with problem(Code.AGENT_ERROR, "agent 'configured'", "'search'"):
            await service.resolve("configured", {}, CALL)


# body of resolve, keys of the entry -> code, parts of the message
FAILS: dict[str, tuple[str, str, Code, tuple[str, ...]]] = {
    "raises": ("error('broken')", "", Code.AGENT_ERROR, ("agent 'raises': raises.lua:2: broken",)),
    "nothing": ("return nil", "", Code.AGENT_ERROR, ("the answer of agent.resolve is nil",)),
    "no-system": ("return {tools = {}}", "", Code.AGENT_ERROR, ("system is missing",)),
    "role": (
        "return {system = '', messages = {{role = 'tool', content = ''}}}",
        "",
        Code.AGENT_ERROR,
        ("messages[1].role must be 'user', 'assistant' or 'system', got 'tool'",),
    ),
    "function": ("return {system = '', more = print}", "", Code.AGENT_ERROR, (".more is a function",)),
    "nan": ("return {system = '', more = 0/0}", "", Code.AGENT_ERROR, (".more is not a number",)),
    "not-granted": ("context.search(5)", "", Code.AGENT_ERROR, ("not-granted.lua:2: context.search: query",)),
    "slow": ("while true do end", "timeout = 0.3", Code.TIMEOUT, ("within 0.3 s",)),
    "busy": ("while true do end", "limits = { cpu_s = 0.1 }", Code.CPU_LIMIT, ("0.1 s of CPU",)),
    "hungry": (
        "local t = {} while true do t[#t + 1] = ('x'):rep(1e6) .. #t end",
        "limits = { memory_bytes = 8000000 }",
        Code.MEMORY_LIMIT,
        ("of memory",),
    ),
    "talkative": (
        "return {system = ('x'):rep(2000)}",
        "limits = { output_bytes = 1000 }",
        Code.OUTPUT_LIMIT,
        (".system",),
    ),
    "calling": (
        "while true do pcall(context.sources) end",
        "limits = { host_calls = 3 }",
        Code.CALL_LIMIT,
        ("more than 3 host calls",),
    ),
}


async def test_every_way_to_fail_has_its_code_and_the_next_call_works(project: Project, opened: Open) -> None:
    project.configure(
        "".join(project.script(name, agent(body), keys) for name, (body, keys, *_) in FAILS.items())
        + project.script("good", agent())
    )
    async with opened() as service:
        assert service.failures == ()
        for name, (_, _, code, parts) in FAILS.items():
            with pytest.raises(Problem) as failed:
                await service.resolve(name, {}, CALL)
            assert failed.value.code is code, failed.value.message
            text = failed.value.message
            assert text.startswith(f"agent '{name}': ")
            for part in parts:
                assert part in text
            assert failed.value.run_id
            assert (await service.resolve("good", {}, CALL)).prompt.system == "S"


async def test_a_failed_run_carries_its_limit_its_log_and_its_traceback(project: Project, opened: Open) -> None:
    project.configure(
        project.script("slow", agent("log.info('begun') while true do end"), "timeout = 0.3")
        + project.script("raises", agent("log.info('begun') error('x')"))
    )
    lines: list[LogLine] = []
    async with opened() as service:
        with pytest.raises(RunFailed) as failed:
            await service.resolve("slow", {}, Call(DEFAULT_TENANT, Hearers(log=lines.append)))
        assert failed.value.limit is not None
        assert (failed.value.limit.name, failed.value.limit.bound, failed.value.limit.source) == (
            "timeout_s",
            0.3,
            "script",
        )
        assert failed.value.result.logs == tuple(lines) == (LogLine("info", "begun"),)
        with pytest.raises(RunFailed) as failed:
            await service.resolve("raises", {}, CALL)
        assert failed.value.traceback == "raises.lua:2: in agent.resolve"


async def test_progress_of_a_script_reaches_the_caller(project: Project, opened: Open) -> None:
    project.configure(project.script("steps", agent("context.progress(0.5, 'half') return {system = ''}")))
    seen: list[Any] = []
    async with opened() as service:
        await service.resolve("steps", {}, Call(DEFAULT_TENANT, Hearers(progress=lambda *step: seen.append(step))))
    assert seen == [(0.5, "half")]


async def test_scripts_belong_to_the_default_tenant_or_to_those_that_are_named(project: Project, opened: Open) -> None:
    project.configure(
        project.script("mine", agent())
        + project.script("theirs", agent(), 'tenants = ["acme"]')
        + project.script("all", agent(), 'tenants = ["*"]')
    )
    async with opened() as service:
        acme = Tenant("acme")
        assert [info.name for info in service.list_agents(DEFAULT_TENANT)] == ["all", "mine"]
        assert [info.name for info in service.list_agents(acme)] == ["all", "theirs"]
        async with problem(Code.NOT_FOUND, "no agent registered with name: theirs"):
            await service.resolve("theirs", {}, CALL)
        assert (await service.resolve("theirs", {}, Call(acme))).prompt.system == "S"
        assert [info.name for info in service.list_tools(acme)] == ["search", "get", "sources"]


# Builtin tools ------------------------------------------------------------------------------------------------------

BAD_PARAMS = {
    ("search", '{"query": "  "}'): "search: query must not be empty",
    ("search", '{"query": 5}'): "parameter 'query' must be of type 'string', got integer",
    ("search", '{"query": "x", "limit": 1.5}'): "parameter 'limit' must be of type 'integer', got number",
    ("search", '{"query": "x", "limit": "5"}'): "parameter 'limit' must be of type 'integer', got string",
    ("search", '{"query": "x", "mode": "magic"}'): "parameter 'mode' must be one of",
    ("search", '{"query": "x", "since": "yesterday"}'): "search: since: 'yesterday' is not a date",
    ("search", '{"query": "x", "filters": {"source": 5}}'): "parameter 'filters.source' must be of type 'string'",
    (
        "search",
        '{"query": "x", "source": "a", "filters": {"source": "b"}}',
    ): "search: source and filters.source disagree",
    ("get", "{}"): "missing required parameter: id",
    ("get", '{"id": " "}'): "get: id must not be empty",
}


async def test_builtin_tools_refuse_wrong_parameters_by_name(project: Project, opened: Open) -> None:
    project.configure('[embedding]\nprovider = "disabled"\n')
    async with opened() as service:
        for (tool, params), text in BAD_PARAMS.items():
            with pytest.raises(Problem) as refused:
                await service.call_tool(tool, json.loads(params), CALL)
            assert refused.value.code is Code.BAD_REQUEST, params
            assert refused.value.message.startswith(text), params
        async with problem(Code.NOT_FOUND, "get: document not found: none"):
            await service.call_tool("get", {"id": "none"}, CALL)
        async with problem(Code.EMBEDDINGS_DISABLED):
            await service.call_tool("search", {"query": "x", "mode": "semantic"}, CALL)
        assert (await service.call_tool("sources", {}, CALL)).value == {"sources": []}
        assert (await service.call_tool("sources", {"unknown": 1}, CALL)).value == {"sources": []}


@pytest.mark.parametrize(("given", "used"), [(0, 1), (-5, 1), (101, 100), (500, 100)])
async def test_a_limit_beyond_its_bounds_is_brought_to_them_with_a_warning(
    project: Project, opened: Open, given: int, used: int
) -> None:
    project.configure()
    async with opened() as service:
        answer = (await service.call_tool("search", {"query": "x", "limit": given}, CALL)).value
    assert answer["warnings"] == [f"limit {given} is not from 1 to 100: {used} was used"]


async def test_what_a_search_does_not_know_is_ignored_with_a_warning(project: Project, opened: Open) -> None:
    project.configure()
    async with opened() as service:
        params = {"query": "x", "sorce": "y", "n" * 99: 1, "source": "none", "filters": {"untill": 1}}
        answer = (await service.call_tool("search", params, CALL)).value
        assert answer["warnings"] == [
            "unknown parameter 'sorce' was ignored",
            f"unknown parameter {'n' * 64!r} was ignored",
            "unknown parameter 'filters.untill' was ignored",
            "there is no such source; sources lists those there are",
        ]
        many = (await service.call_tool("search", {"query": "x"} | {f"p{n}": n for n in range(99)}, CALL)).value
        assert many["warnings"][4:] == ["unknown parameter 'p4' was ignored", "94 more were ignored"]


async def test_a_search_that_names_no_mode_has_that_of_the_configuration(project: Project, opened: Open) -> None:
    project.configure('[embedding]\nprovider = "disabled"\n[retrieval]\ndefault_mode = "semantic"\n')
    async with opened() as service:
        async with problem(Code.EMBEDDINGS_DISABLED):
            await service.call_tool("search", {"query": "x"}, CALL)
        assert (await service.call_tool("search", {"query": "x", "mode": "keyword"}, CALL)).value == {"results": []}
        (search, *_) = service.list_tools(DEFAULT_TENANT)
        assert search.parameters["properties"]["mode"]["default"] == "semantic"


async def test_a_search_by_meaning_without_an_embedder_says_what_it_did_instead(project: Project, opened: Open) -> None:
    project.configure('[embedding]\nprovider = "disabled"\n')
    async with opened() as service:
        answer = (await service.call_tool("search", {"query": "x", "mode": "hybrid"}, CALL)).value
    assert answer["results"] == []
    assert answer["warnings"]

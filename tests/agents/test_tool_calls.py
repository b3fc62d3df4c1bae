"""Scripts that call tools: only those of their list, under the tool's own authority, inside the caller's budgets."""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio
from agents_support import CALL, Project, agent, problem

from agents.agent import Call
from agents.service import Service
from engine.engine import Engine
from engine.errors import Code
from engine.run import CallRecord, Hearers, LogLine
from engine.tenant import DEFAULT_TENANT, Tenant
from knowledge.sqlite import reading

Open = Callable[..., AbstractAsyncContextManager[Service]]

DOUBLE = """
tool = { description = "Doubles", parameters = { { name = "n", type = "integer", required = true },
    { name = "plus", type = "integer", default = 1 } } }
function tool.execute(params, context)
    if params.n < 0 then error("too small: " .. params.n) end
    return params.n * 2 + params.plus
end
"""


def tool_entry(project: Project, name: str, source: str, keys: str = "") -> str:
    (project.folder / f"{name}.lua").write_text(source)
    return f'[tools.script.{name}]\npath = "{name}.lua"\n{keys}\n'


def caller(body: str, tools: str = "'double'", fields: str = "") -> str:
    """An agent whose system text is what the body returns, as JSON."""
    return (
        f"agent = {{ tools = {{{tools}}}, {fields} }}\n"
        f"function agent.resolve(args, config, context) local function f() {body} end"
        " return {system = json.encode({f()})} end"
    )


async def answer(service: Service, name: str = "a", call: Call = CALL) -> str:
    with trio.fail_after(20):
        return (await service.resolve(name, {}, call)).prompt.system


async def still_works(service: Service, name: str = "a") -> None:
    assert (await service.call_tool("double", {"n": 1}, CALL)).value == 3


async def test_both_spellings_call_the_tool_and_get_its_flat_value(project: Project, opened: Open) -> None:
    body = "return context.tools.double({n = 2}), context.call_tool('double', {n = 3, plus = 0})"
    project.configure(project.script("a", caller(body)) + tool_entry(project, "double", DOUBLE))
    async with opened() as service:
        assert await answer(service) == "[5,6]"


async def test_a_tool_of_another_list_is_refused_and_the_refusal_says_why(project: Project, opened: Open) -> None:
    body = "return pcall(context.tools.double, {n = 2})"
    project.configure(project.script("a", caller(body, tools="'search'")) + tool_entry(project, "double", DOUBLE))
    async with opened() as service:
        said = await answer(service)
        assert said.startswith("[false,")
        assert "'double' is not in agent.tools" in said
        assert "its tools are search" in said
        await still_works(service)


async def test_the_configuration_narrows_what_a_script_may_call(project: Project, opened: Open) -> None:
    body = (
        "local names = {} for name in pairs(context.tools) do names[#names + 1] = name end"
        " return names, pcall(context.tools.double, {n = 2})"
    )
    project.configure(
        project.script("a", caller(body, tools="'double', 'search'"), "tools = ['search']")
        + tool_entry(project, "double", DOUBLE)
    )
    async with opened() as service:
        assert (await answer(service)).startswith('[["search"],false,')


async def test_builtin_tools_can_be_called_too(project: Project, opened: Open) -> None:
    project.configure(project.script("a", caller("return #context.tools.search({query = 'x'}).results", "'search'")))
    async with opened() as service:
        assert await answer(service) == "[0]"


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ("{}", "missing required parameter: n"),
        ("{n = 'two'}", "parameter 'n' must be of type 'integer', got string"),
        ("{n = -1}", "too small: -1"),
        ("7", "params: expected table"),
        ("nil", "missing required parameter: n"),
    ],
)
async def test_what_the_tool_refuses_is_an_error_that_pcall_catches(
    project: Project, opened: Open, params: str, said: str
) -> None:
    body = f"return pcall(context.call_tool, 'double', {params})"
    project.configure(project.script("a", caller(body)) + tool_entry(project, "double", DOUBLE))
    async with opened() as service:
        answered = await answer(service)
        assert answered.startswith("[false,")
        assert said in answered
        await still_works(service)


async def test_an_uncaught_error_of_a_tool_is_the_agents_error(project: Project, opened: Open) -> None:
    project.configure(
        project.script("a", caller("return context.tools.double({n = -1})")) + tool_entry(project, "double", DOUBLE)
    )
    async with opened() as service:
        async with problem(Code.AGENT_ERROR, "agent 'a'", "tool 'double'", "too small: -1"):
            await answer(service)
        await still_works(service)


async def test_a_tool_runs_under_its_own_authority_not_its_callers(project: Project, opened: Open) -> None:
    reveal = (
        "tool = {description = 'r', parameters = {}} function tool.execute(params, context)"
        " return {env.get('TOKEN') or 'nothing', context.config.mine, next(context.tools) or 'no tools'} end"
    )
    body = "return env.get('TOKEN') or 'nothing', context.tools.reveal({})"
    project.configure(
        project.script("a", caller(body, "'reveal'"))
        + tool_entry(project, "reveal", reveal, "env = ['TOKEN']\nmine = 'yes'")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKEN", "value of the token")
        async with opened() as service:
            assert await answer(service) == '["nothing",["value of the token","yes","no tools"]]'


async def test_tools_call_tools_of_their_own_list(project: Project, opened: Open) -> None:
    outer = (
        "tool = {description = 'o', parameters = {}, tools = {'double'}} function tool.execute(params, context)"
        " return context.tools.double({n = 4}) end"
    )
    project.configure(
        project.script("a", caller("return context.tools.outer({})", "'outer'"))
        + tool_entry(project, "outer", outer)
        + tool_entry(project, "double", DOUBLE)
    )
    async with opened() as service:
        assert await answer(service) == "[9]"
        assert (await service.call_tool("outer", {}, CALL)).value == 9


def chain(name: str, following: str) -> str:
    return (
        f"tool = {{description = 'c', parameters = {{}}, tools = {{'{following}'}}}}"
        f" function tool.execute(params, context) return context.tools['{following}']({{}}) end"
    )


async def test_a_cycle_of_tools_is_refused_with_its_path(project: Project, opened: Open) -> None:
    project.configure(
        project.script("a", caller("return pcall(context.tools.x, {})", "'x'"))
        + tool_entry(project, "x", chain("x", "y"))
        + tool_entry(project, "y", chain("y", "x"))
        + tool_entry(project, "me", chain("me", "me"))
        + tool_entry(project, "double", DOUBLE)
    )
    async with opened() as service:
        assert "'x' calls itself: x -> y -> x" in await answer(service)
        async with problem(Code.TOOL_ERROR, "'me' calls itself: me -> me"):
            await service.call_tool("me", {}, CALL)
        await still_works(service)


async def test_depth_is_bounded(project: Project, opened: Open) -> None:
    tools = "".join(tool_entry(project, f"t{i}", chain(f"t{i}", f"t{i + 1}")) for i in range(6))
    project.configure(
        project.script("a", caller("return pcall(context.tools.t0, {})", "'t0'"))
        + tools
        + tool_entry(project, "double", DOUBLE)
    )
    async with opened() as service:
        assert "tools may call tools 4 deep: t0 -> t1 -> t2 -> t3 -> t4" in await answer(service)
        await still_works(service)


async def test_one_worker_is_enough_for_a_tool_that_is_called_by_a_script(project: Project, opened: Open) -> None:
    body = "return context.tools.double({n = 1}), context.tools.double({n = 2})"
    project.configure(project.script("a", caller(body)) + tool_entry(project, "double", DOUBLE))
    text = (project.folder / "engine.toml").read_text().replace("workers = 2", "workers = 1")
    (project.folder / "engine.toml").write_text(text)
    async with opened() as service:
        answers: list[str] = []

        async def one() -> None:
            answers.append(await answer(service))

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(one)
        assert answers == ["[3,5]"] * 6


SPIN = "tool = {description = 's', parameters = {}} function tool.execute() while true do end end"


async def test_the_callers_deadline_ends_the_tool_too(project: Project, opened: Open) -> None:
    project.configure(
        project.script("a", caller("return pcall(context.tools.spin, {})", "'spin'"), "timeout = 0.4")
        + tool_entry(project, "spin", SPIN, "timeout = 60")
        + tool_entry(project, "double", DOUBLE)
    )
    async with opened() as service:
        async with problem(Code.TIMEOUT, "agent 'a'"):
            await answer(service)
        assert service.engine.health()["workers"]["leased"] == 0
        await still_works(service)


async def test_the_tools_cpu_time_is_taken_from_the_callers_budget(project: Project, opened: Open) -> None:
    project.configure(
        project.script("a", caller("pcall(context.tools.spin, {}) return 'went on'", "'spin'"), "limits.cpu_s = 0.2")
        + tool_entry(project, "spin", SPIN)
        + tool_entry(project, "double", DOUBLE)
    )
    async with opened() as service:
        async with problem(Code.CPU_LIMIT, "agent 'a'"):
            await answer(service)
        await still_works(service)


async def test_a_tool_that_passes_a_limit_of_its_own_is_an_error_of_the_call(project: Project, opened: Open) -> None:
    project.configure(
        project.script("a", caller("return pcall(context.tools.spin, {})", "'spin'"))
        + tool_entry(project, "spin", SPIN, "limits.cpu_s = 0.1")
        + tool_entry(project, "double", DOUBLE)
    )
    async with opened() as service:
        said = await answer(service)
        assert said.startswith("[false,")
        assert "limits.cpu_s" in said
        await still_works(service)


async def test_the_tools_host_calls_are_taken_from_the_callers_budget(project: Project, opened: Open) -> None:
    searching = (
        "tool = {description = 's', parameters = {}} function tool.execute(params, context)"
        " for i = 1, 5 do context.search('x') end return 1 end"
    )
    body = "local r = 0 for i = 1, 3 do if pcall(context.tools.searching, {}) then r = r + 1 end end return r"
    entry = tool_entry(project, "searching", searching) + tool_entry(project, "double", DOUBLE)
    project.configure(project.script("a", caller(body, "'searching'"), "limits.host_calls = 14") + entry)
    async with opened() as service:
        async with problem(Code.CALL_LIMIT, "agent 'a'"):
            await answer(service)
        await still_works(service)
    project.configure(project.script("a", caller(body, "'searching'"), "limits.host_calls = 18") + entry)
    async with opened() as service:
        resolved = await service.resolve("a", {}, CALL)
        assert resolved.prompt.system == "[3]"
        assert resolved.run is not None
        assert (resolved.run.usage.host_call_count, resolved.run.usage.nested_host_calls) == (3, 15)


async def test_log_lines_and_calls_of_a_tool_reach_the_hearers_of_the_caller(project: Project, opened: Open) -> None:
    noisy = (
        "tool = {description = 'n', parameters = {}} function tool.execute(params, context)"
        " log.info('from the tool') context.search('x') return 1 end"
    )
    project.configure(
        project.script("a", caller("return context.tools.noisy({})", "'noisy'")) + tool_entry(project, "noisy", noisy)
    )
    lines: list[LogLine] = []
    told: list[CallRecord] = []
    async with opened() as service:
        await answer(service, call=Call(DEFAULT_TENANT, Hearers(log=lines.append, call=told.append)))
    assert [line.text for line in lines] == ["from the tool"]
    assert [record.name for record in told] == ["context.search", "context.call_tool"]


async def test_tools_side_by_side_all_answer(project: Project, opened: Open) -> None:
    body = (
        "local fs = {} for i = 1, 10 do fs[i] = function() return context.tools.double({n = i, plus = 0}) end end"
        " local r = context.parallel(fs) local sum = 0 for i = 1, r.n do sum = sum + r[i] end return sum"
    )
    project.configure(project.script("a", caller(body)) + tool_entry(project, "double", DOUBLE))
    async with opened() as service:
        assert await answer(service) == "[110]"


@pytest.mark.parametrize("place", ["system", "error", "log"])
async def test_a_secret_of_the_configuration_shows_in_no_error_and_no_log(
    project: Project, opened: Open, place: str
) -> None:
    secret = "hunter2-hunter2"
    deeds: dict[str, Any] = {
        "system": "return {system = 'fine'}",
        "error": "error('rejected: ' .. config.token .. ' and ' .. base64.encode('me:' .. config.token))",
        "log": "log.info(config.token) print(base64.encode('me:' .. config.token)) return {system = 'fine'}",
    }
    project.configure(project.script("a", agent(deeds[place]), "token = '${TOKEN}'"))
    lines: list[LogLine] = []
    async with opened(TOKEN=secret) as service:
        call = Call(DEFAULT_TENANT, Hearers(log=lines.append))
        if place == "error":
            async with problem(Code.AGENT_ERROR, "rejected: [redacted] and "):
                await answer(service, call=call)
        else:
            assert await answer(service, call=call) == "fine"
        assert all(secret not in line.text and "aHVudGVy" not in line.text for line in lines)
        assert len(lines) == (2 if place == "log" else 0)


async def test_what_a_search_computes_is_charged_to_the_run_that_calls_or_to_the_tenant(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched, charge, charged = reading.search, Engine.charge, list[float]()

    def slow(*arguments: Any, **named: Any) -> Any:
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass
        return searched(*arguments, **named)

    def noted(engine: Engine, tenant: Tenant, cpu_s: float, work: str | None = None) -> None:
        charged.append(cpu_s)
        charge(engine, tenant, cpu_s, work)

    monkeypatch.setattr(reading, "search", slow)
    monkeypatch.setattr(Engine, "charge", noted)
    agents = {"host": "return #context.search('one')", "tool": "return #context.tools.search({query = 'two'}).results"}
    scripts = "".join(project.script(name, caller(body, tools="'search'"), 'grants = ["context.search"]')
                      for name, body in agents.items())  # fmt: skip
    project.configure(scripts)
    async with opened() as service:
        for name in agents:
            with trio.fail_after(20):
                result = (await service.resolve(name, {}, CALL)).run
            assert result is not None
            assert result.usage.cpu_s + result.usage.nested_cpu_s >= 0.2
        assert sum(charged) < 0.2  # what the runs paid for is not charged twice
        await service.call_tool("search", {"query": "three"}, CALL)
        assert sum(charged) >= 0.2

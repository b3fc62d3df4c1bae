"""What front ends find beside prompts: agents as tools, completions, annotations; declared once, true everywhere."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from agents_support import CALL, Project, agent, problem

from agents.service import Service
from agents.shapes.shape import WrongShape, agent_declaration, completions, tool_declaration
from engine.errors import Code
from engine.tenant import DEFAULT_TENANT
from sandbox.wire.outcome import Outcome

Open = Callable[..., AbstractAsyncContextManager[Service]]

ARGUMENTS = "arguments = {{ name = 'service', required = true }, { name = 'severity', enum = { 'P1', 'P2' } }}"
COMPLETING = """
agent = { arguments = {{ name = "service" }, { name = "team" }, { name = "level", enum = { "low", "high" } }} }
function agent.resolve() return { system = "s" } end
function agent.complete(argument, value, context)
    if argument == "service" then
        return { value .. "-api", (context.arguments.team or "no team") .. "/" .. value }
    elseif argument == "team" then
        return {}
    elseif argument == "many" then
        local many = {}
        for i = 1, 150 do many[i] = "v" .. i end
        return many
    elseif argument == "sources" then
        return { tostring(#context.sources()) }
    elseif argument == "broken" then
        error("no idea")
    elseif argument == "shapeless" then
        return { "a", 5 }
    elseif argument == "forever" then
        while true do end
    end
end
"""


def tool(fields: str = "") -> str:
    return f"tool = {{ description = 'T', {fields} }}\nfunction tool.execute(params) return {{ ok = true }} end"


def tool_entry(project: Project, name: str, source: str, keys: str = "") -> str:
    (project.folder / f"{name}-tool.lua").write_text(source)
    return f'[tools.script.{name}]\npath = "{name}-tool.lua"\n{keys}\n'


# ---- agents as tools -------------------------------------------------------------------------------------------


async def test_an_exposed_agent_is_a_tool_that_answers_with_its_prompt(project: Project, opened: Open) -> None:
    project.configure(
        project.script("oncall", agent("return {system = args.service}", ARGUMENTS), 'expose = ["prompt", "tool"]')
        + project.script("quiet", agent())
        + '[agents.fixed]\ndescription = "Fixed"\nsystem_prompt = "Be brief."\nexpose = ["tool"]\n'
    )
    async with opened() as service:
        assert service.failures == ()
        infos = {info.name: info for info in service.list_tools(DEFAULT_TENANT)}
        assert {"oncall", "fixed"} <= set(infos)
        assert "quiet" not in infos
        assert infos["oncall"].parameters["required"] == ["service"]
        assert infos["oncall"].parameters["properties"]["severity"]["enum"] == ["P1", "P2"]
        assert infos["oncall"].read_only
        called = await service.call_tool("oncall", {"service": "api"}, CALL)
        assert called.value == {"system": "api", "tools": ["search", "get"], "messages": []}
        assert called.run is not None
        assert (await service.call_tool("fixed", {}, CALL)).value["system"] == "Be brief."
        async with problem(Code.BAD_REQUEST, "service"):
            await service.call_tool("oncall", {}, CALL)
        async with problem(Code.BAD_REQUEST, "severity"):
            await service.call_tool("oncall", {"service": "api", "severity": "P9"}, CALL)
        exposed = {info.name: info.expose for info in service.list_agents(DEFAULT_TENANT)}
        assert exposed == {"oncall": ("prompt", "tool"), "quiet": ("prompt",), "fixed": ("tool",)}


async def test_an_agent_with_a_granted_host_does_not_claim_to_be_harmless(project: Project, opened: Open) -> None:
    keys = 'expose = ["tool"]\nallow_hosts = ["api.example.com"]'
    project.configure(project.script("caller", agent(), keys))
    async with opened() as service:
        info = service.tool_info(DEFAULT_TENANT, "caller")
    assert info is not None
    assert not info.read_only
    assert info.open_world is None


async def test_an_agent_exposed_under_the_name_of_a_tool_is_a_load_failure(project: Project, opened: Open) -> None:
    project.configure(
        project.script("search", agent(), 'expose = ["prompt", "tool"]')
        + project.script("lookup", agent(), 'expose = ["tool"]')
        + tool_entry(project, "lookup", tool())
        + project.script("fine", agent(), 'expose = ["tool"]')
    )
    async with opened() as service:
        failures = {failure.name: failure for failure in service.failures}
        assert set(failures) == {"search", "lookup"}
        assert failures["lookup"].outcome is Outcome.SCRIPT_ERROR
        assert "another tool named 'lookup'" in failures["lookup"].message
        assert [info.name for info in service.list_agents(DEFAULT_TENANT)] == ["fine"]
        assert (await service.call_tool("lookup", {}, CALL)).value == {"ok": True}
        assert (await service.call_tool("fine", {}, CALL)).value["system"] == "S"


async def test_a_script_may_call_an_exposed_agent_that_it_lists(project: Project, opened: Open) -> None:
    caller = """
    agent = { tools = { "inner" } }
    function agent.resolve(args, config, context) return context.tools.inner({ service = "db" }) end
    """
    project.configure(
        project.script("outer", caller)
        + project.script("inner", agent("return {system = 'in ' .. args.service, tools = {}}"), 'expose = ["tool"]')
    )
    async with opened() as service:
        assert (await service.resolve("outer", {}, CALL)).prompt.system == "in db"


# ---- completion --------------------------------------------------------------------------------------------------


async def test_a_script_completes_what_is_typed_and_knows_the_other_arguments(project: Project, opened: Open) -> None:
    project.configure(project.script("helper", COMPLETING) + project.script("plain", agent()))

    async with opened() as service:

        async def complete(argument: str, value: str, name: str = "helper", **given: str) -> tuple[str, ...] | None:
            return await service.complete(name, argument, value, given, CALL)

        assert await complete("service", "pay", team="core") == ("pay-api", "core/pay")
        assert await complete("service", "pay") == ("pay-api", "no team/pay")
        assert await complete("team", "x") == ()
        assert await complete("sources", "") == ("0",)
        assert len(await complete("many", "") or ()) == 150
        assert await complete("level", "l") is None
        assert await complete("anything", "l", "plain") is None
        async with problem(Code.AGENT_ERROR, "no idea"):
            await complete("broken", "")
        async with problem(Code.AGENT_ERROR, "agent.complete", "[2]"):
            await complete("shapeless", "")
        async with problem(Code.NOT_FOUND, "nobody"):
            await complete("service", "", "nobody")
        assert await complete("service", "x") == ("x-api", "no team/x")


async def test_a_completion_ends_long_before_a_run_would(
    project: Project, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.kinds.lua.COMPLETE_S", 0.3)
    project.configure(project.script("helper", COMPLETING))
    async with opened() as service:
        async with problem(Code.TIMEOUT, "0.3 s"):
            await service.complete("helper", "forever", "", {}, CALL)
        assert await service.complete("helper", "team", "", {}, CALL) == ()


@pytest.mark.parametrize("answer", ["text", 5, {"a": "b"}, [1], ["a", None], [["a"]]])
def test_only_a_list_of_strings_completes(answer: object) -> None:
    with pytest.raises(WrongShape, match=r"agent\.complete"):
        completions(answer)


# ---- declared values ---------------------------------------------------------------------------------------------


async def test_a_declared_value_is_asked_for_and_no_other(project: Project, opened: Open) -> None:
    project.configure(project.script("oncall", agent("return {system = args.severity or '-'}", ARGUMENTS)))
    async with opened() as service:
        (info,) = service.list_agents(DEFAULT_TENANT)
        assert info.arguments[1].enum == ("P1", "P2")
        assert (await service.resolve("oncall", {"service": "x", "severity": "P2"}, CALL)).prompt.system == "P2"
        assert (await service.resolve("oncall", {"service": "x", "severity": None}, CALL)).prompt.system == "-"
        for wrong in ("P3", 1, ["P1"]):
            async with problem(Code.BAD_REQUEST, "severity must be one of: P1, P2"):
                await service.resolve("oncall", {"service": "x", "severity": wrong}, CALL)


@pytest.mark.parametrize("values", ["'P1'", "{ 1, 2 }", "{ a = 'b' }"])
async def test_values_that_are_no_list_of_strings_are_a_load_failure(
    project: Project, opened: Open, values: str
) -> None:
    project.configure(project.script("odd", agent(fields=f"arguments = {{{{ name = 'a', enum = {values} }}}}")))
    async with opened() as service:
        (failure,) = service.failures
        assert "arguments[1].enum" in failure.message


# ---- annotations and titles --------------------------------------------------------------------------------------


async def test_a_tool_claims_what_it_declares_and_what_the_sandbox_sees_to(project: Project, opened: Open) -> None:
    hosts = 'allow_hosts = ["api.example.com"]'
    declared = "title = 'Make a ticket', annotations = { readOnlyHint = false, destructiveHint = false, "
    declared += "idempotentHint = true, openWorldHint = true }"
    project.configure(
        tool_entry(project, "alone", tool())
        + tool_entry(project, "reaching", tool(), hosts)
        + tool_entry(project, "delegating", tool("tools = { 'alone' }"))
        + tool_entry(project, "saying", tool(declared), hosts)
        + project.script("titled", agent(fields="title = 'On call'"))
    )
    async with opened() as service:
        assert service.failures == ()
        hints = {
            info.name: (info.read_only, info.destructive, info.idempotent, info.open_world)
            for info in service.list_tools(DEFAULT_TENANT)
        }
        assert hints["alone"] == (True, None, None, False)
        assert hints["reaching"] == hints["delegating"] == (False, None, None, None)
        assert hints["saying"] == (False, False, True, True)
        assert hints["search"] == (True, None, True, False)
        saying = service.tool_info(DEFAULT_TENANT, "saying")
        assert saying is not None
        assert saying.title == "Make a ticket"
        assert service.list_agents(DEFAULT_TENANT)[0].title == "On call"


def test_annotations_that_contradict_each_other_or_are_no_booleans_are_refused() -> None:
    with pytest.raises(WrongShape, match="contradict"):
        tool_declaration({"annotations": {"readOnlyHint": True, "destructiveHint": True}})
    with pytest.raises(WrongShape, match=r"annotations\.readOnlyHint must be true or false, got 'yes'"):
        tool_declaration({"annotations": {"readOnlyHint": "yes"}})
    with pytest.raises(WrongShape, match="title must be a string"):
        agent_declaration({"title": 5})
    assert tool_declaration({"annotations": {"color": "red"}}).annotations is not None

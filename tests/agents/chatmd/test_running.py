"""Documents that run: a real service and its Lua tools, with models that play scripts."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

sys.path.insert(0, str(Path(__file__).parent))

from agents_support import CALL, Project, problem
from running_support import entry, heard, program, said, tool

from agents.agent import Call
from agents.asking import CannotAsk
from agents.chatmd.program import Declared, Nested, Unavailable, Words
from agents.service import Service
from engine.errors import Code, Problem
from engine.models.shapes import Answer, Request
from engine.tenant import DEFAULT_TENANT, Tenant

Open = Callable[..., AbstractAsyncContextManager[Service]]

SHOUT = """
tool = { description = "Says it loud", annotations = {readOnlyHint = true},
         parameters = {{name = "text", type = "string", required = true}} }
function tool.execute(params, context)
  if params.text == "bad" then error("no such text") end
  return {loud = params.text:upper()}
end
"""
TICKET = """
tool = { description = "Makes a ticket", annotations = {destructiveHint = true} }
function tool.execute(params, context) return "made" end
"""
SLEEP = """
tool = { description = "Waits" }
function tool.execute(params, context) sleep(0.5) return "slept" end
"""
SHOUTS = Declared("tenant", "shout")
HELLO = program(
    said("system", "You are a very polite assistant."), said("assistant", "Hello!  How can I help you today?")
)


@pytest.fixture
def served(project: Project, opened: Open) -> Callable[..., AbstractAsyncContextManager[Service]]:
    """The service of the project with tools and these models, each with its replies."""

    @asynccontextmanager
    async def serve(keys: str = "", **replies: list[str]) -> AsyncIterator[Service]:
        models = ""
        for name, each in replies.items():
            (project.folder / f"{name}.toml").write_text("".join(f"[[reply]]\n{reply}\n" for reply in each))
            models += f'[models.{name}]\napi = "script"\npath = "{name}.toml"\n{keys}\n'
        scripts = "".join(
            project.script(name, source).replace("agents.script", "tools.script")
            for name, source in (("shout", SHOUT), ("ticket", TICKET), ("sleep", SLEEP))
        )
        project.configure(scripts + models)
        async with opened() as service:
            yield service

    return serve


PRICE = "price = { input = 1, cached_input = 0.5, output = 10 }"
CALLS_SHOUT = 'text = "Let me see."\ntool_calls = [{ name = "shout", arguments = { text = "hi" } }]\n'
ASKED = {"input": "What is the weather?"}


async def test_the_document_of_the_seed_answers_with_one_string_and_its_figures(served: Any) -> None:
    usage = "usage = { input = 100, cached = 40, output = 20 }"
    async with served(PRICE, demo=[f'text = "I am afraid I cannot say."\n{usage}']) as service:
        hello = tool(service, HELLO)
        assert hello.info.parameters == {
            "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
        }  # fmt: skip
        assert hello.info.returns is None
        assert hello.info.read_only
        called = await service.call_tool("helper", ASKED, CALL)
    assert called.value == "I am afraid I cannot say."
    run = called.model_run
    assert run is not None
    told = run.as_json()
    assert len(told.pop("run_id")) == 16
    assert told == {
        "outcome": "ok", "model": "demo", "turns": 1, "tool_calls": 0, "input_tokens": 100, "cached_tokens": 40,
        "output_tokens": 20, "cost_usd": (60 + 20 + 200) / 1e6, "estimated": False, "closed_by": None,
    }  # fmt: skip


async def test_tools_are_called_under_their_own_grants_and_the_model_gets_their_answers(served: Any) -> None:
    async with served(demo=[CALLS_SHOUT, 'when = "HI"\ntext = "It says HI."', 'text = "wrong"']) as service:
        tool(service, program(tools=(SHOUTS,)))
        call, reports = heard()
        called = await service.call_tool("helper", ASKED, call)
    assert called.value == "Let me see.\nIt says HI."
    assert (called.model_run.turns, called.model_run.tool_calls, called.model_run.cost_usd) == (2, 1, None)
    values = [value for value, _ in reports]
    assert values == sorted(set(values))
    assert [text for _, text in reports] == ["Starting agent", "Turn 1", "shout", "Turn 2", "Completed"]
    assert (values[0], values[-1]) == (0, 1)


async def test_what_a_tool_refuses_goes_back_to_the_model(served: Any) -> None:
    wrong = [
        '{ name = "shout", arguments = { text = "bad" } }',
        '{ name = "shout", arguments = { text = 1 } }',
        '{ name = "shout", arguments = "no JSON" }',
        '{ name = "nothing", arguments = {} }',
        '{ name = "search", arguments = { query = "x" } }',
    ]
    async with served(demo=[f"tool_calls = [{', '.join(wrong)}]", 'text = "I give up."']) as service:
        made = tool(service, program(tools=(SHOUTS, Declared("tenant", "search"))), entry(tools=("shout",)))
        requests = seen(made)
        assert (await service.call_tool("helper", ASKED, CALL)).value == "I give up."
    results = [each.text for each in requests[1].messages if hasattr(each, "failed")]
    assert "no such text" in results[0]
    assert "parameter 'text' must be of type 'string', got integer" in results[1]
    assert results[2:] == [
        "shout: its arguments must be a JSON object of at most 128 levels and 10,000 values",
        "there is no tool 'nothing'; the tools are: shout",
        "there is no tool 'search'; the tools are: shout",  # the entry leaves it out
    ]


def seen(made: Any) -> list[Request]:
    """The requests that the tool's model gets from now on."""
    found: list[Request] = []
    for served in made.means.models._served.values():
        inner = served.wire.send
        served.wire.send = lambda request, key, inner=inner: found.append(request) or inner(request, key)
    return found


async def test_calls_of_one_turn_run_side_by_side_and_their_results_keep_their_order(served: Any) -> None:
    calls = ", ".join(["{ name = 'sleep' }", "{ name = 'shout', arguments = { text = 'x' } }", "{ name = 'sleep' }"])
    async with served(demo=[f"tool_calls = [{calls}]", 'text = "done"']) as service:
        made = tool(service, program(tools=(Declared("tenant", "sleep"), SHOUTS)))
        requests = seen(made)
        began = trio.current_time()
        await service.call_tool("helper", ASKED, CALL)
        assert trio.current_time() - began < 0.95  # one after the other, it would be a second
    results = [each.text for each in requests[1].messages if hasattr(each, "failed")]
    assert results == ["slept", '{"loud":"X"}', "slept"]


async def test_a_tool_that_calls_itself_through_its_document_is_refused_by_name(served: Any) -> None:
    again = 'tool_calls = [{ name = "helper", arguments = { input = "again" } }]'
    async with served(demo=[again, 'text = "enough"']) as service:
        made = tool(service, program(tools=(Declared("tenant", "helper"),)))
        requests = seen(made)
        assert (await service.call_tool("helper", ASKED, CALL)).value == "enough"
    results = [each.text for each in requests[1].messages if hasattr(each, "failed")]
    assert results == ["'helper' calls itself: helper -> helper"]


async def test_a_document_calls_another_one_which_begins_afresh_and_shares_its_budget(served: Any) -> None:
    outer = 'when = "weather"\ntool_calls = [{ name = "expert", arguments = { input = "Rain in Oslo?" } }]'
    inner = 'when = "Oslo"\ntext = "No rain."'
    async with served(demo=[outer, inner, 'when = "No rain"\ntext = "It is dry."']) as service:
        expert = program(said("system", "You know it all."))
        made = tool(service, program(tools=(Declared("document", "expert", path="e"),), documents={"e": expert}))
        requests = seen(made)
        called = await service.call_tool("helper", ASKED, CALL)
    assert called.value == "It is dry."
    assert called.model_run.turns == 3
    assert [type(each).__name__ for each in requests[1].messages] == ["System", "User"]


async def test_the_answer_of_a_document_in_a_message_stands_in_its_place(served: Any) -> None:
    async with served(demo=['when = "Summarise"\ntext = "short"', 'when = "short"\ntext = "fine"']) as service:
        nested = Nested("s.chatmd", "s", (Words("Summarise this"),))
        tool(service, program(said("user", "Given: ", nested), documents={"s": program()}), entry(parameters={
            "type": "object", "properties": {}}))  # fmt: skip
        called = await service.call_tool("helper", {}, CALL)
    assert (called.value, called.model_run.turns) == ("fine", 2)


async def test_a_model_that_calls_for_ever_ends_in_its_limit_and_the_next_run_works(served: Any) -> None:
    async with served(
        demo=[CALLS_SHOUT.replace('text = "Let me see."', ""), 'when = "please"\ntext = "yes"']
    ) as service:
        tool(service, program(tools=(SHOUTS,)), entry(limits={"model_turns": 3}))
        call, reports = heard()
        async with problem(Code.MODEL_LIMIT, "agent 'helper'", "its 3 turns are used up", "limits.model_turns"):
            await service.call_tool("helper", ASKED, call)
        assert reports[-1] == (1, "Failed")
        with pytest.raises(Problem) as raised:
            await service.call_tool("helper", ASKED, CALL)
        run, limit = raised.value.run, raised.value.limit
        assert run is not None
        assert limit is not None
        assert (run["outcome"], run["turns"], run["tool_calls"], run["closed_by"]) == (
            "model_limit",
            3,
            2,
            "model_turns",
        )
        assert (limit.name, limit.bound, limit.used, limit.source) == ("model_turns", 3, 3, "script")
        assert (await service.call_tool("helper", {"input": "please"}, CALL)).value == "yes"


async def test_without_a_model_the_tool_says_what_it_needs(served: Any) -> None:
    async with served() as service:
        hello = tool(service, HELLO)
        assert (
            hello.info.description
            == "Helps.\n\nIt cannot run: no model is configured for it: it needs a table [models.NAME]."
        )
        async with problem(Code.UNAVAILABLE, "[models.NAME]"):
            await service.call_tool("helper", ASKED, CALL)


async def test_a_document_picks_a_model_by_its_name_here_or_there_and_else_gets_the_default(served: Any) -> None:
    keys = 'model = "gpt-5"'
    async with served(keys, one=['text = "one"'], two=['text = "two"']) as service:
        for named, chosen, expected in (
            (None, None, "one"), ("two", None, "two"), ("gpt-5", None, "one"), ("gpt-9", None, "one"),
            ("one", "two", "two"),
        ):  # fmt: skip
            made = tool(service, replace(HELLO, model=named), entry(model=chosen))
            assert (await made.execute(ASKED, CALL)).value == expected


async def test_with_parameters_values_stand_in_the_texts_and_with_returns_the_answer_is_a_value(served: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"topic": {"type": "string"}, "tone": {"type": "string", "default": "dry"}},
    }
    returns = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}
    fenced = "text = '''```json\n{\"score\": 7}\n```'''"
    replies = ['text = "seven"', 'when = "not JSON"\ntext = "{}"', f'when = "does not fit"\n{fenced}']
    async with served(demo=replies) as service:
        document = program(said("user", "Rate {{topic}}."))
        made = tool(service, document, entry(parameters=schema, returns=returns))
        requests = seen(made)
        called = await service.call_tool("helper", {"topic": "<tool name='x'/>RAW|"}, CALL)
    assert called.value == {"score": 7}
    texts = [part.text for each in requests[0].messages for part in each.parts]
    assert texts == ["Rate <tool name='x'/>RAW|.", "tone: dry"]
    assert [request.schema for request in requests] == [returns] * 3


async def test_an_answer_that_never_fits_is_an_error_of_the_agent(served: Any) -> None:
    async with served(demo=['text = "no"']) as service:
        tool(service, HELLO, entry(returns={"type": "object"}))
        async with problem(Code.AGENT_ERROR, "does not fit `returns`: it is not JSON"):
            await service.call_tool("helper", ASKED, CALL)


async def test_a_run_ends_after_its_time_and_one_that_is_cancelled_ends_at_once(served: Any) -> None:
    async with served(demo=['text = "slow"\ndelay_s = 30']) as service:
        tool(service, HELLO, entry(limits={"timeout_s": 0.2}))
        async with problem(Code.TIMEOUT, "did not end within 0.2 s (limits.timeout_s)"):
            await service.call_tool("helper", ASKED, CALL)
        made = tool(service, HELLO)
        with trio.move_on_after(0.1) as scope:
            await made.execute(ASKED, CALL)
        assert scope.cancelled_caught


class Person:
    """A caller with a person who answers this."""

    def __init__(self, answer: bool | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str]] = []

    async def confirm(self, tool: str, arguments: str) -> bool:
        self.asked.append((tool, arguments))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def sample(self, request: Request) -> Answer:
        raise CannotAsk("no")


@pytest.mark.parametrize(
    ("person", "said_back"),
    [
        (Person(True), "made"),
        (Person(False), "ticket was not called: a person refused this call"),
        (Person(CannotAsk("it left")), "a person must allow this call, and cannot be asked: it left"),
        (None, "a person must allow this call, and cannot be asked: the caller has no way to be asked"),
    ],
)
@pytest.mark.parametrize("confirm", [("ticket",), "destructive"])
async def test_a_person_is_asked_before_the_calls_that_the_entry_names(
    served: Any, person: Person | None, said_back: str, confirm: Any
) -> None:
    if person is not None:
        person.asked.clear()
    both = 'tool_calls = [{ name = "ticket" }, { name = "shout", arguments = { text = "x" } }]'
    async with served(demo=[both, 'text = "done"']) as service:
        made = tool(service, program(tools=(SHOUTS, Declared("tenant", "ticket"))), entry(confirm=confirm))
        requests = seen(made)
        await made.execute(ASKED, Call(DEFAULT_TENANT, ask=person))
    results = [each.text for each in requests[1].messages if hasattr(each, "failed")]
    assert said_back in results[0]
    assert results[1] == '{"loud":"X"}'
    if person is not None:
        assert person.asked == [("ticket", "{}")]


async def test_a_tool_that_reads_files_is_confirmed_under_the_name_that_its_document_gives_it(served: Any) -> None:
    person = Person(False)
    call = 'tool_calls = [{ name = "read_file", arguments = { file = "a.md" } }]'
    async with served(demo=[call, 'text = "done"']) as service:
        made = tool(service, program(tools=(Declared("file", "get_contents"),)), entry(confirm=("get_contents",)))
        await made.execute(ASKED, Call(DEFAULT_TENANT, ask=person))
    assert [name for name, _ in person.asked] == ["read_file"]


class Witness:
    """What the audit log would hear."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, ...]] = []

    def refused(self, tenant: Tenant, agent: str, tool: str) -> None:
        self.heard.append(("refused", tenant.id, agent, tool))

    def decided(self, tenant: Tenant, agent: str, tool: str, *, allowed: bool) -> None:
        self.heard.append(("allowed" if allowed else "not allowed", tenant.id, agent, tool))


@pytest.mark.parametrize(
    ("person", "decision"),
    [(Person(True), "allowed"), (Person(False), "not allowed"), (Person(CannotAsk("it left")), "refused")],
)
async def test_refused_tools_and_decisions_of_persons_are_told_by_their_names(
    served: Any, person: Person, decision: str
) -> None:
    calls = 'tool_calls = [{ name = "ticket", arguments = { x = "s3cret" } }, { name = "shout", arguments = {} }, '
    calls += '{ name = "drop" }]'
    async with served(demo=[calls, 'text = "done"']) as service:
        witness = Witness()
        service.engine.tell_tools(witness)
        declared = (SHOUTS, Declared("tenant", "ticket"))
        await tool(service, program(tools=declared), entry(confirm=("ticket",))).execute(
            ASKED, Call(DEFAULT_TENANT, ask=person)
        )
    expected = [("refused", "default", "helper", "drop"), (decision, "default", "helper", "ticket")]
    assert sorted(witness.heard) == sorted(expected)


async def test_tools_that_are_not_there_are_told_to_the_model_in_one_line(served: Any) -> None:
    async with served(demo=['text = "ok"']) as service:
        missing = (Unavailable("bash", "never run"),)
        made = tool(service, program(tools=(Declared("tenant", "gone"), SHOUTS), unavailable=missing))
        requests = seen(made)
        await service.call_tool("helper", ASKED, CALL)
        assert requests[0].messages[0].text == "These tools are not available: bash, gone."  # type: ignore[union-attr]
        assert [each.name for each in requests[0].tools] == ["shout"]


async def test_the_first_request_can_be_seen_without_a_call(served: Any) -> None:
    async with served(demo=['text = "never"']) as service:
        made = tool(service, program(said("system", "Be brief."), tools=(SHOUTS,)))
        step: Any = await made.first_step(ASKED, CALL)
        assert [type(each).__name__ for each in step.request.messages] == ["System", "User"]
        assert step.request.tools[0].parameters["required"] == ["text"]

"""Documents that run with models of servers: those that do wrong, those that stall, and callers that leave."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "models"))

from agents_support import CALL, Project, agent
from models_support import http, serving, stubbed
from running_support import entry, program, said, tool

from agents.chatmd.program import Declared
from agents.service import Service
from engine.errors import Code, Problem
from engine.spending.meter import Meter
from engine.tenant import DEFAULT_TENANT
from engine.usage import report

Open = Callable[..., AbstractAsyncContextManager[Service]]
Serve = Callable[..., AbstractAsyncContextManager[Service]]

SHOUT = """
tool = { description = "Says it loud", parameters = {{name = "text", type = "string", required = true}} }
function tool.execute(params, context) return params.text:upper() end
"""
ASKED = {"input": "Hello?"}
KEY = "sk-very-secret"


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110
        await trio.sleep(0.005)


@pytest.fixture
def served(project: Project, opened: Open) -> Serve:
    """The service of the project with a tool, an agent and a model at an address."""

    @asynccontextmanager
    async def serve(url: str, keys: str = "") -> AsyncIterator[Service]:
        shout = project.script("shout", SHOUT).replace("agents.script", "tools.script")
        model = f'[models.demo]\napi = "openai"\nmodel = "m"\nurl = "{url}/v1"\nkey = "{KEY}"\nretries = 0\n{keys}\n'
        project.configure(shout + project.script("guide", agent()) + model)
        async with opened() as service:
            yield service

    return serve


def chunks(*deltas: str, usage: str = "") -> bytes:
    """A stream of Chat Completions with these deltas."""
    events = [f'{{"choices": [{{"delta": {delta}}}]}}' for delta in deltas]
    events.append('{"choices": [{"delta": {}, "finish_reason": "stop"}]}')
    events += [f'{{"choices": [], "usage": {usage}}}'] if usage else []
    return http("".join(f"data: {event}\n\n" for event in (*events, "[DONE]")))


def calls(arguments: str = '"{}"', name: str = "shout", more: str = "") -> str:
    return f'{{"tool_calls": [{{"function": {{"name": "{name}", "arguments": {arguments}}}{more}}}]}}'


SAID = chunks('{"content": "fine"}', usage='{"prompt_tokens": 10, "completion_tokens": 2}')
TEXT = '"{\\"text\\": \\"hi\\"}"'

FAILING = {
    "garbage": (http("data: {this is no JSON\n\n"), Code.MODEL_ERROR),
    "half a stream": (http('data: {"choices": [{"delta": {"content": "half"}}]}\n\n'), Code.MODEL_ERROR),
    "nothing": (http(""), Code.MODEL_ERROR),
    "an empty answer": (chunks("{}"), Code.MODEL_ERROR),
    "a wrong key": (http(f'{{"error": {{"message": "no {KEY}"}}}}', 401, "application/json"), Code.MODEL_ERROR),
    "a redirect": (http("", 307, location="http://127.0.0.1:1/"), Code.MODEL_ERROR),
    "ten megabytes": (chunks(f'{{"content": "{"x" * 900_000}"}}', *[f'{{"content": "{"x" * 900_000}"}}'] * 10),
                      Code.OUTPUT_LIMIT),
    "unknown tools for ever": (chunks(calls(name="nothing")), Code.MODEL_LIMIT),
    "arguments that are no JSON for ever": (chunks(calls('"{"')), Code.MODEL_LIMIT),
    "the same call for ever": (chunks(calls(TEXT, more=', "id": "same"')), Code.MODEL_LIMIT),
}  # fmt: skip


@pytest.mark.parametrize("what", FAILING)
async def test_a_model_that_does_wrong_ends_the_run_within_its_limits_and_the_next_run_works(
    served: Serve, what: str
) -> None:
    answer, code = FAILING[what]
    async with serving(answer) as (server, url), served(url, "timeout_s = 5") as service:
        tool(service, program(tools=(Declared("tenant", "shout"),)), entry(limits={"model_turns": 4, "tool_calls": 3}))
        with trio.fail_after(20), pytest.raises(Problem) as raised:
            await service.call_tool("helper", ASKED, CALL)
        problem = raised.value
        assert problem.code is code, problem.message
        assert problem.run is not None
        assert problem.run["outcome"] == code.value
        assert len(server.asked) == problem.run["turns"] <= 4
        assert problem.run["tool_calls"] <= 3
        assert KEY not in str(problem.envelope())
        server.answers[:] = [SAID]
        assert (await service.call_tool("helper", ASKED, CALL)).value == "fine"


async def test_a_model_that_gives_no_ids_and_no_usage_is_understood_and_its_tokens_are_estimated(served: Serve) -> None:
    first = chunks(calls(TEXT), calls(TEXT, more=', "index": 1'))
    async with serving(first, chunks('{"content": "done"}')) as (server, url), served(url) as service:
        tool(service, program(tools=(Declared("tenant", "shout"),)))
        called = await service.call_tool("helper", ASKED, CALL)
    run = called.model_run
    assert run is not None
    assert (called.value, run.estimated) == ("done", True)
    assert run.input_tokens > 50
    results = [each for each in server.asked[1].body["messages"] if each["role"] == "tool"]
    assert [each["content"] for each in results] == ["HI"] * len(results)
    assert len({each["tool_call_id"] for each in results}) == len(results)


STALLS = '[[reply]]\nwhen = "Hello"\ntext = "a long answer that stalls"\nfault = "stall"\n[[reply]]\ntext = "fine"\n'


async def test_a_model_that_thinks_until_its_time_is_over_uses_up_what_was_reserved_for_it(served: Serve) -> None:
    script = '[[reply]]\nwhen = "Hello"\ntext = "too late"\ndelay_s = 5\n[[reply]]\ntext = "fine"\n'
    keys = "timeout_s = 0.3\nmax_output_tokens = 90\nprice = { input = 1, output = 1000 }"
    async with stubbed(script) as (_, url), served(url, keys) as service:
        spending = service.engine.spending
        spending._meter = Meter()  # as with tenants
        helper = tool(service, program())
        with pytest.raises(Problem, match="takes longer than"):
            await helper.execute(ASKED, CALL)
        used = spending.used(DEFAULT_TENANT)
        assert used["model_tokens_per_minute"] > 90
        assert 0.09 < used["cost_usd_per_day"] < 0.1
        assert used["model_runs"] == 0
        assert (await helper.execute({"input": "next"}, CALL)).value == "fine"
        assert spending.used(DEFAULT_TENANT)["cost_usd_per_day"] < 0.1


async def test_the_input_that_a_server_reports_of_answers_without_a_text_is_in_the_figures_of_the_run(
    served: Serve,
) -> None:
    started = '{"type":"message_start","message":{"usage":{"input_tokens":500,"output_tokens":1}}}'
    whole = (
        '{"type":"message","content":[{"type":"text","text":"fine"}],"stop_reason":"end_turn",'
        '"usage":{"input_tokens":500,"output_tokens":2}}'
    )
    cut, good = http(f"data: {started}\n\n"), http(whole, kind="application/json")
    wire = '[models.cut]\napi = "anthropic"\nmodel = "m"\nurl = "{url}"\nprice = { input = 2, output = 10 }\n'
    async with serving(cut, good, cut) as (server, url):
        async with served(url, wire.replace("{url}", url) + "retries = 1\n") as service:
            document = tool(service, program(said("system", "You are kind.")), entry(model="cut"))
            run = (await document.execute(ASKED, CALL)).model_run
            assert run is not None
            assert (run.input_tokens, run.output_tokens, run.turns, run.estimated) == (1000, 3, 1, False)
            assert run.cost_usd == 0.00203
            with pytest.raises(Problem) as caught:
                await document.execute(ASKED, CALL)
            assert caught.value.code is Code.MODEL_ERROR
            assert caught.value.run is not None
            assert caught.value.run["input_tokens"] == 1000
            total = report(await service.usage.sums_of(DEFAULT_TENANT.id))["total"]
            assert (total["input_tokens"], total["model_calls"]) == (2000, 1)
        assert len(server.asked) == 4


async def test_a_caller_that_leaves_in_the_middle_of_an_answer_closes_the_connection_to_the_model(
    served: Serve,
) -> None:
    async with stubbed(STALLS) as (stub, url), served(url) as service:
        made = tool(service, program())
        with trio.CancelScope() as leaving:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(made.execute, ASKED, CALL)
                await until(lambda: stub.requests == 1)
                await trio.sleep(0.1)  # half of the answer is on its way
                leaving.cancel()
        with trio.fail_after(0.25):
            await until(lambda: stub.left == 1)
        assert (await service.call_tool("helper", {"input": "And now?"}, CALL)).value == "fine"
        rows = report(service.engine.book.sums_of("default"))["by_agent"]
        (sums,) = (row for row in rows if row["agent"] == "agent:helper")
        assert sums["outcomes"] == {"cancelled": 1, "ok": 1}
        assert sums["model_calls"] == 1  # of the other, what was heard counts as tokens


async def test_runs_that_wait_for_their_model_hold_no_worker(served: Serve) -> None:
    async with stubbed(STALLS) as (stub, url), served(url, "at_once = 200") as service:
        made = tool(service, program(said("system", "Be brief.")))
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(made.execute, ASKED, CALL)
            with trio.fail_after(30):
                await until(lambda: stub.requests == 200)
            assert service.engine.statistics().running == 0
            with trio.fail_after(10):
                assert (await service.resolve("guide", {}, CALL)).prompt.system == "S"
            nursery.cancel_scope.cancel()
        assert (await service.call_tool("helper", {"input": "And now?"}, CALL)).value == "fine"

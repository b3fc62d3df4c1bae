"""Calls that ask their client for a person's permission, or for an answer of its model; in the call, and in a task."""

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio
import mcp_types as t
import pytest
import trio
from asking_support import (
    ASKED,
    EVERYTHING,
    Answers,
    Asking,
    GetTask,
    OneTask,
    TaskResult,
    TasksExtension,
    TaskState,
    UpdateTask,
    call,
    send,
)
from keys_support import keyed
from mcp import Client
from mcp_support import handshake, message, until
from server_support import Running, serving

from agents.asking import ROUNDS, CannotAsk
from agents.service import open_service
from engine.config import load_config
from engine.models.shapes import Message, ModelFailed, Request, Text, User
from server.mcp.asking import Confirm, Sample
from server.mcp.tasks import WAITING

ASKABLE = {"elicitation": {}, "sampling": {"tools": {}}}
YES, NO = {"action": "accept", "content": {}}, {"action": "decline"}


@pytest.fixture
async def server() -> AsyncIterator[Running]:
    async with serving(Asking()) as running:
        yield running


async def asks(server: Running, name: str = "confirms", *, client: Any = None, **arguments: Any) -> dict[str, Any]:
    """The result of a call that is a round of questions."""
    answer = await send(server, "tools/call", call(name, **arguments), ASKABLE, client=client)
    assert answer["result"]["resultType"] == "input_required", answer
    return dict(answer["result"])


def answered(name: str, asked: dict[str, Any], response: Any, **arguments: Any) -> dict[str, Any]:
    """The params of the call that answers every question of a round."""
    given = dict.fromkeys(asked["inputRequests"], response)
    return {**call(name, **arguments), "inputResponses": given, "requestState": asked["requestState"]}


async def reply(server: Running, asked: dict[str, Any], response: Any = YES, **arguments: Any) -> dict[str, Any]:
    return await send(server, "tools/call", answered("confirms", asked, response, **arguments), ASKABLE)


async def assert_works(server: Running) -> None:
    assert (await send(server, "tools/call", call("number")))["result"]["structuredContent"] == 42
    assert (await reply(server, await asks(server)))["result"]["structuredContent"] == [True]
    await until(lambda: len(server.mcp.runs) == 0)


# ---- inside the call -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "allowed"),
    [(YES, True), ({"action": "accept"}, True), (NO, False), ({"action": "cancel"}, False)],
)
async def test_no_answer_but_yes_is_a_yes(server: Running, response: Any, allowed: bool) -> None:
    asked = await asks(server, arguments='{"title": "Disk full"}')
    (question,) = asked["inputRequests"].values()
    assert question["method"] == "elicitation/create"
    assert question["params"]["mode"] == "form"
    assert "tool0" in question["params"]["message"]
    assert '{"title": "Disk full"}' in question["params"]["message"]
    answer = await reply(server, asked, response, arguments='{"title": "Disk full"}')
    assert answer["result"]["structuredContent"] == [allowed]
    await until(lambda: len(server.mcp.runs) == 0)


async def test_questions_side_by_side_are_one_round_and_those_one_after_another_are_several(server: Running) -> None:
    asked = await asks(server, beside=3)
    assert len(asked["inputRequests"]) == 3
    first, *others = asked["inputRequests"]
    params = {**answered("confirms", asked, NO, beside=3), "inputResponses": {first: NO}}
    rest = (await send(server, "tools/call", params, ASKABLE))["result"]
    assert list(rest["inputRequests"]) == others
    answer = await reply(server, rest, beside=3)
    assert sorted(answer["result"]["structuredContent"]) == [False, True, True]
    asked, keys = await asks(server, times=2), set()
    for _ in range(2):
        keys |= set(asked["inputRequests"])
        answer = await reply(server, asked, times=2)
        asked = answer["result"]
    assert len(keys) == 2
    assert asked["structuredContent"] == [True, True]


async def test_a_call_asks_ten_times_and_no_more(server: Running) -> None:
    asked = await asks(server, times=ROUNDS + 1)
    for _ in range(ROUNDS - 1):
        asked = (await reply(server, asked, times=ROUNDS + 1))["result"]
        assert asked["resultType"] == "input_required"
    last = (await reply(server, asked, times=ROUNDS + 1))["result"]
    assert "10 times" in last["structuredContent"]["cannot"]
    await assert_works(server)


@pytest.mark.parametrize(
    ("name", "capabilities", "missing"),
    [
        ("confirms", {"sampling": {}}, "elicitation"),
        ("confirms", {"elicitation": {"url": {}}, "sampling": {}}, "elicitation"),
        ("samples", {"elicitation": {}}, "sampling"),
        ("samples", {"sampling": {}}, "sampling"),  # the request has tools
        ("confirms", {"extensions": EVERYTHING["extensions"]}, "elicitation"),
    ],
)
async def test_a_client_without_the_capability_is_not_asked(
    server: Running, name: str, capabilities: dict[str, Any], missing: str
) -> None:
    answer = await send(server, "tools/call", call(name), capabilities)
    assert answer["result"]["structuredContent"]["missing"] == missing
    await assert_works(server)


async def test_revisions_without_a_way_back_cannot_be_asked(server: Running) -> None:
    async with server.client() as client:
        answer = message(await client.post("/mcp", **handshake("tools/call", call("confirms"))))
        assert answer["result"]["structuredContent"] == {"cannot": "no way back"}
        rest = await client.post("/tools/confirms", json={})
    assert rest.json()["result"] == {"cannot": "no way back"}


async def test_arguments_too_long_to_show_are_not_shown_in_part(server: Running) -> None:
    answer = await send(server, "tools/call", call("confirms", arguments="x" * 20_000), ASKABLE)
    assert "too many to show" in answer["result"]["structuredContent"]["cannot"]


# ---- states --------------------------------------------------------------------------------------------------------


async def test_a_state_is_used_once(server: Running) -> None:
    asked = await asks(server)
    assert (await reply(server, asked))["result"]["structuredContent"] == [True]
    again = await reply(server, asked)
    assert again["error"]["code"] == -32602
    assert again["error"]["data"] == {"reason": "invalid_request_state"}
    asked = await asks(server)
    answers: list[dict[str, Any]] = []

    async def one() -> None:
        answers.append(await reply(server, asked))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(one)
    assert sorted("result" in each for each in answers) == [False] * 4 + [True]
    await assert_works(server)


async def test_a_forged_or_foreign_state_is_refused_and_the_call_waits_on(tmp_path: Path) -> None:
    async with keyed(tmp_path) as keyed_server:
        service = Asking()
        keyed_server.running.service.tools.update(service.tools)
        monkey = keyed_server.running.service
        monkey.call_tool = service.call_tool  # type: ignore[method-assign]
        server = keyed_server.running
        async with keyed_server.client("use") as mine, keyed_server.client("other") as theirs:
            asked = await asks(server, client=mine)
            params = answered("confirms", asked, YES)
            state = params["requestState"]
            forged = f"{state[:-2]}{'AA' if state[-2:] != 'AA' else 'BB'}"
            for client, query, change in (
                (theirs, "", {}),
                (mine, "?agent=helper", {}),
                (mine, "", {"requestState": forged}),
                (mine, "", {"requestState": ""}),
                (mine, "", {"requestState": "0" * 32}),
                (mine, "", {"arguments": {"times": 2}}),
                (mine, "", {"name": "samples"}),
            ):
                answer = await send(server, "tools/call", {**params, **change}, ASKABLE, client=client, query=query)
                assert answer["error"]["code"] == -32602, (query, change)
            answer = await send(server, "tools/call", params, ASKABLE, client=mine)
            assert answer["result"]["structuredContent"] == [True]


async def test_an_answer_of_another_kind_is_refused_and_the_state_stays_good(server: Running) -> None:
    asked = await asks(server)
    sampled = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "yes"}}
    for wrong in (sampled, {"action": "perhaps"}, 7, None):
        assert (await reply(server, asked, wrong))["error"]["code"] == -32602
    params = answered("confirms", asked, YES)
    params["inputResponses"]["zz"] = NO
    answer = await send(server, "tools/call", params, ASKABLE)
    assert answer["result"]["structuredContent"] == [True]


async def test_a_client_that_never_comes_back_frees_its_call(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.mcp.tasks.ANSWER_S", 0.2)
    asked = await asks(server)
    assert server.service.under_way == 1  # type: ignore[attr-defined]
    with trio.fail_after(1):
        while server.service.under_way or len(server.mcp.runs):  # type: ignore[attr-defined]  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert (await reply(server, asked))["error"]["code"] == -32602
    assert server.mcp.runs._room._held == 0
    monkeypatch.undo()
    await assert_works(server)


async def test_a_client_that_leaves_in_a_later_round_cancels_its_call(server: Running) -> None:
    asked = await asks(server)
    params = answered("confirms", asked, YES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(send, server, "tools/call", call("slow"), ASKABLE))
        await server.service.entered.wait()
        nursery.cancel_scope.cancel()
    with trio.fail_after(0.25):
        await server.service.cancelled.wait()
    assert (await send(server, "tools/call", params, ASKABLE))["result"]["structuredContent"] == [True]


async def test_64_calls_of_a_tenant_wait_for_an_answer_and_no_more(server: Running) -> None:
    async with server.client() as client:
        for _ in range(WAITING):
            last = await asks(server, client=client)
        more = await send(server, "tools/call", call("confirms"), ASKABLE, client=client)
    assert "64 calls" in more["result"]["structuredContent"]["cannot"]
    await reply(server, last)
    assert "inputRequests" in await asks(server)


async def test_a_drain_ends_the_calls_that_wait_and_refuses_new_questions() -> None:
    async with serving(Asking()) as server:
        await asks(server)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            late: list[dict[str, Any]] = []

            async def one() -> None:
                late.append(await send(server, "tools/call", call("confirms", s=0.3), ASKABLE))

            nursery.start_soon(one)
            await until(lambda: server.service.under_way == 2)  # type: ignore[attr-defined]
            server.stop.set()
            await until(lambda: server.service.under_way == 1)  # type: ignore[attr-defined]
        assert "shutting down" in late[0]["result"]["structuredContent"]["cannot"]
        await server.ended.wait()
        assert trio.current_time() - began < 3


# ---- the client's model --------------------------------------------------------------------------------------------


def test_a_conversation_is_put_into_the_forms_of_mcp() -> None:
    params = Sample.of(ASKED).request().model_dump(by_alias=True, mode="json", exclude_none=True)["params"]
    assert params["systemPrompt"] == "Be brief."
    assert params["maxTokens"] == 50
    assert [each["role"] for each in params["messages"]] == ["user", "assistant", "user"]
    what, look, results = (each["content"] for each in params["messages"])
    assert [each["type"] for each in what] == ["text", "image", "text"]
    assert [each["type"] for each in look] == ["text", "tool_use"]
    assert [each["toolUseId"] for each in results] == ["c1", "c2"]
    assert [each.get("isError") for each in results] == [None, True]
    assert params["tools"][0]["inputSchema"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("content", "stop", "found"),
    [
        ({"type": "text", "text": "A cat."}, "endTurn", {"text": "A cat.", "calls": [], "reason": "stop"}),
        ({"type": "text", "text": "A c"}, "maxTokens", {"text": "A c", "calls": [], "reason": "length"}),
        (
            [{"type": "text", "text": "So"}, {"type": "tool_use", "id": "7", "name": "look", "input": {"a": 1}}],
            "toolUse",
            {"text": "So", "calls": ["look"], "reason": "tool_calls"},
        ),
        (
            {"type": "text", "text": "x" * 1001},
            "endTurn",
            {"failed": "its answer is larger than 1000 bytes (output_bytes)"},
        ),
        ([], "endTurn", {"failed": "its answer holds neither text nor a tool call"}),
    ],
)
async def test_the_clients_model_answers(server: Running, content: Any, stop: str, found: dict[str, Any]) -> None:
    asked = await asks(server, "samples")
    sampled = {"role": "assistant", "model": "m", "content": content, "stopReason": stop}
    answer = await send(server, "tools/call", answered("samples", asked, sampled), ASKABLE)
    assert answer["result"]["structuredContent"] == found
    if "text" in found:
        usage = server.service.answers[-1].usage  # type: ignore[attr-defined]
        assert usage.estimated
        assert usage.input > 50
        assert usage.output > 0


def test_a_person_sees_characters_that_change_or_hide_a_text() -> None:
    given = '{"to": "Zoë 東京 \u202egro.elpmaxe\u202c\u200b\U000e0041"}'
    asked = Confirm("send", given).request().model_dump(mode="json")
    shown = asked["params"]["message"].partition("\n\n")[2]
    assert shown == '{"to": "Zoë 東京 \\u202egro.elpmaxe\\u202c\\u200b\\udb40\\udc41"}'
    assert json.loads(shown) == json.loads(given)


def called(number: int, **input: Any) -> t.CreateMessageResultWithTools:
    block = t.ToolUseContent(id="c", name="look", input=input)
    return t.CreateMessageResultWithTools(role="assistant", model="m", content=[block] * number)


def test_calls_of_the_clients_model_are_bounded_as_those_of_others() -> None:
    form = Sample.of(Request((User((Text("Hi"),)),)))
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    for arguments in ({"at": deep}, {"at": float("nan")}):
        (call,) = form.read(called(1, **arguments)).calls
        assert call.arguments is None  # it goes back to the model as an error
    (call,) = form.read(called(1, at=2**70)).calls
    assert call.arguments == {"at": float(2**70)}
    assert len(form.read(called(1000)).calls) == 1000
    with pytest.raises(ModelFailed, match="calls more than 1,000 tools"):
        form.read(called(1001))


def test_an_answer_in_another_role_is_none() -> None:
    form = Sample.of(Request((User(()),)))
    with pytest.raises(ModelFailed, match="role"):
        form.read(t.CreateMessageResult(role="user", content=t.TextContent(type="text", text="x"), model="m"))


@pytest.mark.parametrize(
    "messages", [[User(())] * 201, [User((Text("x" * 150_000),))] * 2, [User((Text("\n" * 200_000),))]]
)
def test_a_conversation_beyond_the_bounds_is_not_sent(messages: list[Message]) -> None:
    with pytest.raises(CannotAsk, match="conversation"):
        Sample.of(Request(messages))


# ---- in a task -----------------------------------------------------------------------------------------------------


async def test_a_task_asks_by_its_state_and_takes_each_answer_once(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.mcp.tasks.LATE_S", 0.05)
    created = (await send(server, "tools/call", call("confirms", s=0.2, beside=2)))["result"]
    id = created["taskId"]
    with trio.fail_after(20):
        while (told := (await send(server, "tasks/get", {"taskId": id}))["result"])["status"] == "working":  # noqa: ASYNC110
            await trio.sleep(0.02)
    assert told["status"] == "input_required"
    first, second = told["inputRequests"]
    wrong = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "yes"}}
    answer = await send(server, "tasks/update", {"taskId": id, "inputResponses": {first: wrong}})
    assert answer["error"]["code"] == -32602
    for responses in ({first: NO, "nothing": YES}, {first: YES}):
        answer = await send(server, "tasks/update", {"taskId": id, "inputResponses": responses})
        assert answer["result"]["resultType"] == "complete"
    told = (await send(server, "tasks/get", {"taskId": id}))["result"]
    assert (told["status"], list(told["inputRequests"])) == ("input_required", [second])
    await send(server, "tasks/update", {"taskId": id, "inputResponses": {second: YES}})
    with trio.fail_after(20):
        while (told := (await send(server, "tasks/get", {"taskId": id}))["result"])["status"] == "working":  # noqa: ASYNC110
            await trio.sleep(0.02)
    assert (told["status"], sorted(told["result"]["structuredContent"])) == ("completed", [False, True])


async def test_a_task_whose_question_is_not_answered_goes_on_without(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.mcp.tasks.LATE_S", 0.05)
    monkeypatch.setattr("server.mcp.tasks.ANSWER_S", 0.1)
    id = (await send(server, "tools/call", call("confirms", s=0.1)))["result"]["taskId"]
    with trio.fail_after(20):
        while (told := (await send(server, "tasks/get", {"taskId": id}))["result"])["status"] != "completed":  # noqa: ASYNC110
            await trio.sleep(0.02)
    assert "did not answer" in told["result"]["structuredContent"]["cannot"]


async def test_an_eleventh_question_makes_a_task_where_the_client_knows_them(server: Running) -> None:
    answer = (await send(server, "tools/call", call("confirms", times=ROUNDS + 1)))["result"]
    while answer["resultType"] == "input_required":
        params = answered("confirms", answer, YES, times=ROUNDS + 1)
        answer = (await send(server, "tools/call", params))["result"]
    assert (answer["resultType"], answer["status"]) == ("task", "input_required")


# ---- the official client -------------------------------------------------------------------------------------------


async def official(url: str) -> None:
    """Elicitation answered by yes, no and cancel; sampling; both in a task, too."""
    actions: list[Any] = ["accept", "decline", "cancel"]

    async def elicit(context: Any, params: Any) -> t.ElicitResult:
        assert isinstance(params, t.ElicitRequestFormParams)
        return t.ElicitResult(action=actions.pop(0))

    async def sample(context: Any, params: t.CreateMessageRequestParams) -> t.CreateMessageResult:
        assert params.system_prompt == "Be brief."
        return t.CreateMessageResult(role="assistant", content=t.TextContent(type="text", text="A cat."), model="m")

    extension = TasksExtension()
    async with Client(
        url,
        mode="2026-07-28",
        elicitation_callback=elicit,
        sampling_callback=sample,
        sampling_capabilities=t.SamplingCapability(tools=t.SamplingToolsCapability()),
        extensions=[extension],
    ) as client:
        answer = await client.call_tool("confirms", {"times": 3})
        assert answer.structured_content == [True, False, False]
        answer = await client.call_tool("samples", {})
        assert answer.structured_content == {"text": "A cat.", "calls": [], "reason": "stop"}
        created = await client.session.call_tool("confirms", {"s": 0.6}, allow_claimed=True)
        assert isinstance(created, TaskResult)
        one = OneTask(task_id=created.task_id)
        with anyio.fail_after(20):
            while True:
                state = await client.session.send_request(GetTask(params=one), TaskState)
                if state.status != "working":
                    break
                await anyio.sleep(0.02)
        assert state.status == "input_required"
        (key,) = (state.model_extra or {})["inputRequests"]
        answers = Answers(task_id=created.task_id, input_responses={key: t.ElicitResult(action="accept")})
        await client.session.send_request(UpdateTask(params=answers), t.EmptyResult)
        with anyio.fail_after(20):
            while state.status != "completed":
                await anyio.sleep(0.02)
                state = await client.session.send_request(GetTask(params=one), TaskState)
        assert state.result is not None
        assert state.result["structuredContent"] == [True]


@pytest.mark.parametrize("library", ["trio", "asyncio"])
async def test_the_official_client_is_asked(server: Running, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.mcp.tasks.LATE_S", 0.4)
    url = f"{server.url}/mcp"
    if library == "trio":
        await official(url)
    else:
        await trio.to_thread.run_sync(partial(anyio.run, official, url, backend="asyncio"))


# ---- a document ----------------------------------------------------------------------------------------------------

DOCUMENT = """<tool name="ticket" />
<system>You file tickets.</system>
"""
CONFIG = """
[db]
path = "knowledge.sqlite"
[models.demo]
api = "script"
path = "demo.toml"
[agents.chatmd.clerk]
path = "clerk.chatmd"
confirm = ["ticket"]
"""
CALLS = '[[reply]]\ntool_calls = [{ name = "ticket", arguments = { title = "Disk full" } }]\n'
NOT_FILED = '[[reply]]\nwhen = "was not called"\ntext = "It is not filed."\n'
REPLIES = f'{CALLS}[[reply]]\nwhen = "filed"\ntext = "It is filed."\n{CALLS}{NOT_FILED}{CALLS}{NOT_FILED}'


class Ticket:
    """Files a ticket."""

    name = "ticket"
    parameters: ClassVar[dict[str, Any]] = {"type": "object", "properties": {"title": {"type": "string"}}}

    def __init__(self) -> None:
        self.filed: list[Any] = []

    async def execute(self, params: Any, context: Any) -> str:
        self.filed.append(params)
        return "filed"


async def test_a_document_asks_a_person_before_a_call_and_no_answer_makes_a_tool_run_twice(tmp_path: Path) -> None:
    for name, text in (("engine.toml", CONFIG), ("clerk.chatmd", DOCUMENT), ("demo.toml", REPLIES)):
        (tmp_path / name).write_text(text)
    loaded, ticket = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path), Ticket()
    given = {"input": "The disk is full."}
    async with open_service(loaded, tools=[ticket]) as service, serving(service) as server:  # type: ignore[arg-type]
        assert service.failures == ()
        for response, text, filed in ((YES, "It is filed.", 1), (NO, "It is not filed.", 1)):
            asked = await asks(server, "clerk", **given)
            (question,) = asked["inputRequests"].values()
            assert "Disk full" in question["params"]["message"]
            params = answered("clerk", asked, response, **given)
            answer = (await send(server, "tools/call", params, ASKABLE))["result"]
            assert answer["content"][0]["text"] == text
            assert answer["_meta"]["engine/run"]["turns"] == 2
            assert (await send(server, "tools/call", params, ASKABLE))["error"]["code"] == -32602
            assert len(ticket.filed) == filed
        answer = (await send(server, "tools/call", call("clerk", **given), {}))["result"]
        assert answer["content"][0]["text"] == "It is not filed."
        assert len(ticket.filed) == 1

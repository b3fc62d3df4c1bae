"""What the tests of tasks and of questions share: a service whose tools wait and ask, and clients that can be asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import mcp_types as t
import trio
from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from mcp_support import META, MODERN, message, modern
from mcp_types import RequestParams, Result
from pydantic import BaseModel, ConfigDict
from server_support import ANY_OBJECT, FakeService, Running

from agents.agent import Call
from agents.asking import CannotAsk
from agents.tool import Called, ModelRun, ToolInfo
from engine.errors import Code, Problem
from engine.models.shapes import (
    Answer,
    Assistant,
    Image,
    ModelFailed,
    Request,
    System,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    User,
)
from sandbox.wire.outcome import Outcome

TASKS = "io.modelcontextprotocol/tasks"
EVERYTHING: dict[str, Any] = {"extensions": {TASKS: {}}, "elicitation": {}, "sampling": {"tools": {}}}
ASKED = Request(
    (
        System("Be brief."),
        User((Text("What is it?"), Image(data="aGk=", media_type="image/png"), Image(url="https://h.test/i.png"))),
        Assistant("Let me look.", (ToolCall("c1", "look", {"at": "it"}, '{"at": "it"}'),)),
        ToolResult("c1", "a cat"),
        ToolResult("c2", "no", failed=True),
    ),
    tools=(Tool("look", "Look", {"properties": {}}),),
    max_output_tokens=50,
    output_bytes=1000,
)


RUN = ModelRun(
    run_id="r", outcome=Outcome.OK, model="m", turns=1, tool_calls=0, input_tokens=5, cached_tokens=0,
    output_tokens=2, cost_usd=None, estimated=True, closed_by=None,
)  # fmt: skip


@dataclass
class Asking(FakeService):
    """Its tools wait, fail late, and ask. `under_way` are the calls of them that have not ended."""

    under_way: int = 0
    answers: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("wait", "confirms", "samples"):
            self.tools[name] = ToolInfo(name=name, description=name, builtin=False, parameters=ANY_OBJECT)

    async def call_tool(self, name: str, params: Mapping[str, Any], call: Call, agent: str | None = None) -> Called:
        if name not in ("wait", "confirms", "samples"):
            return await super().call_tool(name, params, call, agent)
        self.under_way += 1
        try:
            return Called(await self._answer(name, params, call), model_run=RUN)
        finally:
            self.under_way -= 1

    async def _answer(self, name: str, params: Mapping[str, Any], call: Call) -> Any:
        if call.hearers.progress is not None:
            call.hearers.progress(0.5, "half")
        await trio.sleep(params.get("s", 0))
        try:
            match name:
                case "confirms":
                    return await self._confirm(params, call)
                case "samples":
                    assert call.ask is not None
                    return await self._sample(call)
        except CannotAsk as cannot:
            return {"cannot": str(cannot), "missing": cannot.missing}
        if (code := params.get("fails")) == "bug":
            raise RuntimeError("secret detail")
        if code is not None:
            raise Problem(Code(code), "it failed late", run_id="r7")
        return "x" * params["size"] if "size" in params else params.get("value", "done")

    async def _confirm(self, params: Mapping[str, Any], call: Call) -> Any:
        if call.ask is None:
            return {"cannot": "no way back"}
        ask = call.ask
        found: dict[int, bool] = {}

        async def one(number: int) -> None:
            found[number] = await ask.confirm(f"tool{number}", params.get("arguments", "{}"))

        if params.get("beside"):
            async with trio.open_nursery() as nursery:
                for number in range(params["beside"]):
                    nursery.start_soon(one, number)
        else:
            for number in range(params.get("times", 1)):
                await one(number)
        return [found[number] for number in sorted(found)]

    async def _sample(self, call: Call) -> Any:
        assert call.ask is not None
        try:
            answer: Answer = await call.ask.sample(ASKED)
        except ModelFailed as failed:
            return {"failed": str(failed)}
        self.answers.append(answer)
        return {"text": answer.text, "calls": [each.name for each in answer.calls], "reason": answer.reason}


def able(method: str, params: dict[str, Any], capabilities: dict[str, Any] = EVERYTHING) -> dict[str, Any]:
    """A request of 2026-07-28 whose client declares these capabilities."""
    ask = modern(method, params)
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": capabilities}
    ask["json"]["params"]["_meta"] = {**params.get("_meta", {}), **meta}
    if "taskId" in params:
        ask["headers"]["mcp-name"] = params["taskId"]
    return ask


async def send(
    server: Running,
    method: str,
    params: dict[str, Any],
    capabilities: dict[str, Any] = EVERYTHING,
    *,
    query: str = "",
    client: Any = None,
) -> dict[str, Any]:
    """The JSON-RPC answer of one request."""
    ask = able(method, params, capabilities)
    if client is not None:
        return message(await client.post(f"/mcp{query}", **ask))
    async with server.client() as own:
        return message(await own.post(f"/mcp{query}", **ask))


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


# ---- the official client -----------------------------------------------------------------------------------------


class TaskResult(Result):
    model_config = ConfigDict(extra="allow", alias_generator=t.CallToolResult.model_config["alias_generator"])
    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class OneTask(RequestParams):
    task_id: str


class GetTask(t.Request[OneTask, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: OneTask
    name_param = "taskId"


class CancelTask(t.Request[OneTask, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: OneTask
    name_param = "taskId"


class Answers(OneTask):
    input_responses: t.InputResponses


class UpdateTask(t.Request[Answers, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    params: Answers
    name_param = "taskId"


class TaskState(Result):
    model_config = ConfigDict(extra="allow", alias_generator=t.CallToolResult.model_config["alias_generator"])
    status: str = ""
    result: dict[str, Any] | None = None


class TaskNews(BaseModel):
    model_config = ConfigDict(extra="allow")
    taskId: str
    status: str


class TasksExtension(ClientExtension):
    """The tasks extension for the official client: a call that becomes one raises nothing, and is left to the test."""

    identifier = TASKS

    def __init__(self) -> None:
        self.news: list[TaskNews] = []

    def claims(self) -> Any:
        async def resolve(result: TaskResult, context: ClaimContext) -> t.CallToolResult:
            raise AssertionError("the tests ask for tasks themselves")

        return [ResultClaim(result_type="task", model=TaskResult, resolve=resolve)]

    def notifications(self) -> Any:
        async def heard(news: TaskNews) -> None:
            self.news.append(news)

        return [NotificationBinding(method="notifications/tasks", params_type=TaskNews, handler=heard)]


__all__ = ["MODERN", "Asking", "TasksExtension", "able", "call", "send"]

"""MCP over standard input and output: the lines themselves, the official client, and how the process ends."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psutil
import pytest
import trio
import trio.testing
import warm_start
from asking_support import EVERYTHING, GetTask, OneTask, TaskResult, TasksExtension, TaskState
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_support import META
from mcp_types import JSONRPCNotification, JSONRPCResponse
from server_support import FakeService

from agents.changes import Change
from cli.main import run as run_command
from engine.tenant import DEFAULT_TENANT
from knowledge.access import Reader
from server.mcp.wire import LAST_ANSWERS_S, UNDER_WAY, Lines, Wire
from server.stdio import serve_client

ROOT = Path(__file__).resolve().parents[2]
MAX_LINE = 4096


# ---- lines ------------------------------------------------------------------------------------------------------

SHORT = 8


def whole(data: bytes) -> list[bytes | None]:
    """What `Lines` should make of all these bytes, the stream's end included."""
    lines = (None if len(line) > SHORT else line for line in data.split(b"\n"))
    return [line for line in lines if line is None or line.strip()]


@given(st.lists(st.text("ab \n\r", max_size=12).map(str.encode)))
def test_any_split_of_the_bytes_gives_the_same_lines(pieces: list[bytes]) -> None:
    lines = Lines(SHORT)
    found = [line for piece in pieces for line in lines.feed(piece)] + lines.close()
    assert found == whole(b"".join(pieces))


def test_a_line_that_never_ends_is_told_once_and_not_kept() -> None:
    lines = Lines(SHORT)
    assert [lines.feed(b"x" * 5) for _ in range(1000)].count([None]) == 1
    assert lines.feed(b"\nnext\n") == [b"next"]


# ---- one client, over streams in memory -------------------------------------------------------------------------


@dataclass
class Store:
    """As much of a store as listening needs. Its revision is what the test says."""

    now: int = 1

    async def revision(self, reader: Reader) -> int:
        return self.now

    async def digests(self, ids: Any, reader: Reader) -> dict[str, str]:
        return {}


@dataclass
class Connected:
    """A client's end of a session with a fake service."""

    stream: trio.StapledStream[Any, Any]
    service: FakeService
    stop: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)
    gone: bool = False
    _heard: bytes = b""

    async def say(self, *lines: bytes | dict[str, Any]) -> None:
        for line in lines:
            data = line if isinstance(line, bytes) else json.dumps(line).encode()
            await self.stream.send_all(data + b"\n")

    async def hear(self) -> dict[str, Any]:
        """The next line. Raises EOFError at the end."""
        with trio.fail_after(3600):
            while b"\n" not in self._heard:
                data = await self.stream.receive_some()
                if not data:
                    raise EOFError
                self._heard += bytes(data)
        line, _, self._heard = self._heard.partition(b"\n")
        return dict(json.loads(line))

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        await self.say(message)
        return await self.hear()

    async def assert_works(self) -> None:
        answer = await self.ask(call("number", 999))
        assert (answer["id"], answer["result"]["structuredContent"]) == (999, 42)


@asynccontextmanager
async def talking(
    service: FakeService | None = None, agent: str | None = None, graceful_timeout_s: float = 10
) -> AsyncIterator[Connected]:
    ours, theirs = trio.testing.memory_stream_pair()
    client = Connected(theirs, service or FakeService(store=Store()))
    wire = Wire(
        ours,
        ours,
        max_line_bytes=MAX_LINE,
        graceful_timeout_s=graceful_timeout_s,
        reader_gone=lambda: client.gone,
    )

    async def serve() -> None:
        await serve_client(
            client.service,  # type: ignore[arg-type]
            wire,
            client.stop,
            tenant=DEFAULT_TENANT,
            agent=agent,
            graceful_timeout_s=graceful_timeout_s,
        )
        client.ended.set()
        await ours.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield client
        nursery.cancel_scope.cancel()


def request(method: str, number: int | str, meta: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
    """A request of 2026-07-28."""
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": META | (meta or {})}}


def call(tool: str, number: int | str, meta: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    return request("tools/call", number, meta, name=tool, arguments=arguments)


def initialize(version: str = "2025-06-18") -> dict[str, Any]:
    client = {"name": "test", "version": "1"}
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}

GARBAGE = {
    b"garbage": -32700,
    b"\xff\xfe\x00": -32700,
    b'{"jsonrpc": "2.0", "id": 1, "id": 2, "method": "ping"}': -32700,
    b"[]": -32600,
    b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]': -32600,
    b"42": -32600,
    b'{"id": 1, "method": "ping"}': -32600,
    b'{"jsonrpc": "2.0", "id": null, "method": "ping"}': -32600,
    b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}': -32600,
    b'{"jsonrpc": "2.0", "method": "x", "params": []}': -32600,
    b'{"jsonrpc": "2.0", "id": 1, "error": {}}': -32600,
    b'{"jsonrpc": "2.0", "method": "\\ud800"}': -32700,
    b'{"x": "' + b"x" * MAX_LINE + b'"}': -32600,
}


@pytest.mark.parametrize("line", GARBAGE, ids=lambda line: repr(line[:40]))
async def test_a_malformed_line_gets_the_error_of_json_rpc_and_the_session_goes_on(line: bytes) -> None:
    async with talking() as client:
        await client.say(line)
        answer = await client.hear()
        assert answer["error"]["code"] == GARBAGE[line]
        assert answer["id"] is None
        await client.assert_works()
        await client.say(line)
        assert (await client.hear())["error"]["code"] == GARBAGE[line]
        await client.assert_works()


async def test_a_malformed_request_with_an_id_is_answered_under_it() -> None:
    async with talking() as client:
        for malformed in ({"method": 7}, {"method": "ping", "params": 1}, {}):
            answer = await client.ask({"jsonrpc": "2.0", "id": "seven", **malformed})
            assert (answer["id"], answer["error"]["code"]) == ("seven", -32600)
        await client.assert_works()


async def test_blank_lines_and_answers_to_nothing_are_passed_over() -> None:
    async with talking() as client:
        await client.say(b"", b" \r", {"jsonrpc": "2.0", "id": 5, "result": {}})
        await client.assert_works()


async def test_a_handshake_client_is_served_and_one_of_the_other_era_is_refused() -> None:
    async with talking() as client:
        hello = await client.ask(initialize())
        assert hello["result"]["protocolVersion"] == "2025-06-18"
        assert hello["result"]["capabilities"]["tools"] == {"listChanged": True}
        tools = await client.ask({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert {tool["name"] for tool in tools["result"]["tools"]} == set(client.service.tools)
        assert (await client.ask(call("number", 2)))["error"]["code"] == -32600


async def test_a_client_that_is_limited_to_an_agent_sees_that_alone() -> None:
    async with talking(agent="helper") as client:
        tools = await client.ask(request("tools/list", 1))
        prompts = await client.ask(request("prompts/list", 2))
        assert [tool["name"] for tool in tools["result"]["tools"]] == ["echo"]
        assert [prompt["name"] for prompt in prompts["result"]["prompts"]] == ["helper"]
        assert (await client.ask(call("number", 3)))["error"]["code"] == -32602
        assert (await client.ask(call("echo", 4, a=1)))["result"]["structuredContent"] == {"a": 1}


async def test_a_fault_of_ours_shows_nothing() -> None:
    async with talking() as client:
        answer = await client.ask(call("bug", 1))
        assert answer["error"]["message"].startswith("internal error (reference ")
        await client.assert_works()


async def test_progress_comes_before_the_answer_and_only_rises() -> None:
    async with talking() as client:
        await client.say(call("steps", 1, {"progressToken": "p"}))
        told = [await client.hear() for _ in range(4)]
    assert [each["params"]["progress"] for each in told[:3]] == [0.25, 0.5, 1.0]
    assert {each["params"]["progressToken"] for each in told[:3]} == {"p"}
    assert told[3]["result"]["structuredContent"] == "stepped"


async def test_a_cancelled_request_ends_unanswered_and_its_id_may_be_used_again() -> None:
    async with talking() as client:
        await client.say(call("slow", 1))
        await client.service.entered.wait()
        await client.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await client.service.cancelled.wait()
        assert (await client.ask(call("echo", 1)))["result"]["structuredContent"] == {}
        await client.assert_works()


async def test_the_id_of_a_request_under_way_cannot_be_used_for_another() -> None:
    async with talking() as client:
        await client.say(call("slow", 1))
        await client.service.entered.wait()
        refused = await client.ask(call("number", 1))
        assert (refused["id"], refused["error"]["code"]) == (None, -32600)
        client.service.release.set()
        answer = await client.hear()
        assert (answer["id"], answer["result"]["structuredContent"]) == (1, "done")


async def test_more_requests_than_may_be_under_way_are_refused_until_some_have_ended() -> None:
    async with talking() as client:
        await client.say(*(call("slow", number) for number in range(UNDER_WAY + 2)))
        refused = [await client.hear(), await client.hear()]
        assert [each["id"] for each in refused] == [UNDER_WAY, UNDER_WAY + 1]
        assert {each["error"]["data"]["code"] for each in refused} == {"unavailable"}
        client.service.release.set()
        assert {(await client.hear())["id"] for _ in range(UNDER_WAY)} == set(range(UNDER_WAY))
        await client.assert_works()


async def test_a_client_of_2026_listens_and_gets_a_final_result_when_the_server_goes() -> None:
    store = Store()
    async with talking(FakeService(store=store)) as client:
        await client.say(request("subscriptions/listen", "l", notifications={"resourcesListChanged": True}))
        assert (await client.hear())["method"] == "notifications/subscriptions/acknowledged"
        store.now += 1
        assert (await client.hear())["method"] == "notifications/resources/list_changed"
        client.stop.set()
        final = await client.hear()
        assert (final["id"], "result" in final) == ("l", True)
        await client.ended.wait()


async def test_a_client_of_2026_gets_a_long_call_as_a_task_and_asks_for_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    meta = {"io.modelcontextprotocol/clientCapabilities": EVERYTHING}
    async with talking() as client:
        created = (await client.ask(call("slow", 1, meta)))["result"]
        assert (created["resultType"], created["status"]) == ("task", "working")
        client.service.release.set()
        await trio.testing.wait_all_tasks_blocked()
        told = (await client.ask(request("tasks/get", 2, meta, taskId=created["taskId"])))["result"]
        assert (told["status"], told["result"]["structuredContent"]) == ("completed", "done")
        await client.assert_works()


async def test_a_handshake_client_is_told_of_changes_without_asking_and_others_are_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = Store()
    async with talking(FakeService(store=store)) as client:
        await client.ask(initialize())
        store.now += 1
        await client.say(INITIALIZED)
        await trio.testing.wait_all_tasks_blocked()
        store.now += 1
        assert await client.hear() == {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}
        client.service.changes.tell(Change(agents=True, tools=True, tenant="somebody else"))
        client.service.changes.tell(Change(agents=False, tools=True))
        assert await client.hear() == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        client.service.changes.tell(Change(agents=True, tools=False))
        assert await client.hear() == {"jsonrpc": "2.0", "method": "notifications/prompts/list_changed"}
    async with talking(FakeService(store=store)) as client:
        await client.assert_works()
        await client.say(INITIALIZED)
        await trio.testing.wait_all_tasks_blocked()
        store.now += 1
        client.service.changes.tell(Change(agents=True, tools=True))
        await trio.sleep(60)
        await client.assert_works()


async def test_at_the_end_of_input_what_is_under_way_is_still_answered() -> None:
    async with talking() as client:
        await client.say(call("slow", 1), call("echo", 2))
        await client.stream.send_all(json.dumps(call("number", 3)).encode())  # without a line end
        await client.stream.send_eof()
        await client.service.entered.wait()
        client.service.release.set()
        assert {(await client.hear())["id"] for _ in range(3)} == {1, 2, 3}
        await client.ended.wait()
        with pytest.raises(EOFError):
            await client.hear()


async def test_at_the_end_of_input_what_takes_too_long_is_told_so_and_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with talking() as client:
        await client.say(call("slow", 1))
        await client.stream.send_eof()
        started = trio.current_time()
        answer = await client.hear()
        assert answer["error"] == {
            "code": -32603,
            "message": "the server is shutting down",
            "data": {"run_id": None, "code": "unavailable"},
        }
        assert trio.current_time() - started == pytest.approx(LAST_ANSWERS_S)
        await client.ended.wait()
        assert client.service.cancelled.is_set()


async def test_after_stop_what_is_under_way_has_the_graceful_time_and_nothing_else_is_begun(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with talking(graceful_timeout_s=5) as client:
        await client.say(call("slow", 1))
        await client.service.entered.wait()
        client.stop.set()
        await trio.testing.wait_all_tasks_blocked()
        await client.say(call("echo", 2))
        await trio.sleep(4)
        assert client.service.seen == [("slow", {})]
        client.service.release.set()
        assert (await client.hear())["result"]["structuredContent"] == "done"
        await client.ended.wait()
        assert [name for name, _ in client.service.seen] == ["slow"]


async def test_a_line_that_a_stop_cuts_off_is_not_taken_for_one() -> None:
    async with talking() as client:
        await client.assert_works()
        await client.stream.send_all(b'{"jsonrpc": "2.0", ')
        await trio.testing.wait_all_tasks_blocked()
        client.stop.set()
        with pytest.raises(EOFError):
            await client.hear()


async def test_a_client_that_is_gone_ends_what_it_asked_for_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with talking() as client:
        await client.say(call("slow", 1), call("echo", 2))
        await client.service.entered.wait()
        started = trio.current_time()
        client.gone = True
        await client.stream.aclose()
        await client.ended.wait()
        assert client.service.cancelled.is_set()
        assert trio.current_time() - started < LAST_ANSWERS_S


async def test_a_client_that_never_reads_is_not_read_from_either_and_does_not_keep_the_server(
    autojump_clock: trio.testing.MockClock,
) -> None:
    service = FakeService(store=Store())
    ours, theirs = trio.testing.lockstep_stream_pair()  # a send waits for its reader
    wire = Wire(ours, ours, max_line_bytes=MAX_LINE, graceful_timeout_s=2)
    stop, said = trio.Event(), 0

    async def flood() -> None:
        nonlocal said
        while True:
            said += 1
            await theirs.send_all(json.dumps(call("echo", said)).encode() + b"\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flood)
        nursery.start_soon(partial(trio.sleep, 100))
        async with trio.open_nursery() as serving:
            serving.start_soon(
                partial(
                    serve_client,
                    service,  # type: ignore[arg-type]
                    wire,
                    stop,
                    tenant=DEFAULT_TENANT,
                    agent=None,
                    graceful_timeout_s=2,
                )
            )
            await trio.sleep(10)
            begun = len(service.seen)
            assert begun <= UNDER_WAY + 1
            await trio.sleep(10)
            assert len(service.seen) == begun
            stop.set()
        assert trio.current_time() < 30
        nursery.cancel_scope.cancel()


async def test_a_line_is_whole_even_when_its_sender_is_cancelled_while_it_is_written() -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    wire = Wire(ours, ours, max_line_bytes=MAX_LINE, graceful_timeout_s=1)

    def told(text: str) -> Awaitable[None]:
        return wire.send(JSONRPCNotification(jsonrpc="2.0", method="x", params={"text": text}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.write)
        with trio.CancelScope() as scope:
            nursery.start_soon(told, "a" * 5000)
            await trio.testing.wait_all_tasks_blocked()
            assert len(await theirs.receive_some(10)) == 10  # it is being written
            scope.cancel()
        nursery.start_soon(told, "b")
        heard = b""
        while heard.count(b"\n") < 2:
            heard += await theirs.receive_some(1000)
        nursery.cancel_scope.cancel()
    first, second, _ = heard.split(b"\n")
    assert first.endswith(b'a"}}')
    assert json.loads(second)["params"] == {"text": "b"}


async def test_an_answer_that_cannot_be_written_becomes_an_error_and_odd_text_is_escaped() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    wire = Wire(ours, ours, max_line_bytes=MAX_LINE, graceful_timeout_s=1)
    client = Connected(theirs, FakeService())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.write)
        await client.say(call("value", 1))
        assert await wire.next() is not None
        await wire.send(JSONRPCResponse(jsonrpc="2.0", id=1, result={"value": object()}))
        failed = await client.hear()
        assert (failed["id"], failed["error"]["data"]["code"]) == (1, "internal")
        await wire.send(JSONRPCNotification(jsonrpc="2.0", method="x", params={"text": "\ud800", "large": 2**70}))
        assert (await client.hear())["params"] == {"text": "\ud800", "large": 2**70}
        nursery.cancel_scope.cancel()


# ---- a process --------------------------------------------------------------------------------------------------

STEPS = """
tool = { description = "Reports on its way", parameters = { wait = { type = "boolean" } } }
function tool.execute(params, context)
  print("a line of the script")
  context.progress(0.25, "first")
  context.progress(0.5, "second")
  while params.wait do sleep(0.02) end
  return "done"
end
"""
GREETER = """
agent = { description = "Greets", tools = { "search" }, arguments = { { name = "who", required = true } } }
function agent.resolve(args, config, context) return { system = "Greet " .. args.who .. "." } end
"""
CONFIG = """
[server]
graceful_timeout_s = 0.3
[sandbox]
workers = 1
[tools.script.steps]
path = "steps.lua"
[agents.script.greeter]
path = "greeter.lua"
"""
COMMAND = (sys.executable, "-m", "cli.main", "serve", "--stdio")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "engine.toml").write_text(CONFIG)
    (tmp_path / "steps.lua").write_text(STEPS)
    (tmp_path / "greeter.lua").write_text(GREETER)
    return tmp_path


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ENGINE_", "CTX_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ["PYTHONPATH"]))}


@dataclass
class Process:
    """The command with its three streams, and everything that it started."""

    process: "subprocess.Popen[bytes]"

    def say(self, *messages: dict[str, Any] | bytes) -> None:
        assert self.process.stdin is not None
        for message in messages:
            self.process.stdin.write((message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def begin_endless_call(self) -> None:
        self.say(call("steps", 1, {"progressToken": 1}, wait=True))
        assert self.hear()["method"] == "notifications/progress"

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def ended(self) -> tuple[int, list[dict[str, Any]], str]:
        """Exit code, what was left on standard output, and standard error."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, [json.loads(line) for line in out.splitlines()], err.decode()


@contextmanager
def started(folder: Path, *options: str) -> Iterator[Process]:
    with warm_start.Popen(
        [*COMMAND, *options],
        cwd=folder,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield Process(process)
        finally:
            process.kill()


def assert_gone(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []


async def use_everything(folder: Path, mode: str) -> tuple[str, list[Any], list[str]]:
    """List, resolve, call with progress, cancel and call again; the revision, the progress, the messages."""
    told: list[Any] = []

    async def progress(fraction: float, total: float | None, message: str | None) -> None:
        told.append((fraction, total, message))

    parameters = StdioServerParameters(command=COMMAND[0], args=list(COMMAND[1:]), cwd=folder, env=environment())
    with (folder / "err.txt").open("w") as err:
        async with Client(stdio_client(parameters, errlog=err), mode=mode) as client:  # type: ignore[arg-type]
            assert [tool.name for tool in (await client.list_tools()).tools] == ["get", "search", "sources", "steps"]
            assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["greeter"]
            prompt = await client.get_prompt("greeter", {"who": "Ada"})
            called = await client.call_tool("steps", {}, progress_callback=progress)
            assert called.content[0].text == "done"  # type: ignore[union-attr]
            running = anyio.Event()

            async def begun(*_: Any) -> None:
                running.set()

            async with anyio.create_task_group() as group:
                group.start_soon(partial(client.call_tool, "steps", {"wait": True}, progress_callback=begun))
                await running.wait()
                group.cancel_scope.cancel()
            # There is one worker: it was taken from the cancelled call.
            assert (await client.call_tool("steps", {})).content[0].text == "done"  # type: ignore[union-attr]
            messages = [message.content.text for message in prompt.messages]  # type: ignore[union-attr]
            return client.protocol_version or "", told, messages


@pytest.mark.parametrize(
    ("run", "mode", "revision"), [("trio", "auto", "2026-07-28"), ("asyncio", "legacy", "2025-11-25")]
)
def test_the_official_client_lists_resolves_calls_hears_progress_and_cancels(
    project: Path, run: str, mode: str, revision: str
) -> None:
    main: Callable[[], Any] = partial(use_everything, project, mode)
    answer = trio.run(main) if run == "trio" else asyncio.run(main())
    assert answer == (revision, [(0.25, 1.0, "first"), (0.5, 1.0, "second")], ["Greet Ada."])
    log = (project / "err.txt").read_text()
    assert "a line of the script" in log
    assert "Traceback" not in log


DOCUMENT = """
[agents.chatmd.teller]
path = "teller.chatmd"
[models.demo]
api = "script"
path = "demo.toml"
"""
REPLIES = """
[[reply]]
when = "long"
delay_s = 2.3
text = "At last."
[[reply]]
when = "never"
delay_s = 60
[[reply]]
text = "Told."
"""


async def use_a_document(folder: Path) -> None:
    """Its prompt, a run with progress, one that is cancelled, and one that becomes a task."""
    told: list[tuple[float, str | None]] = []

    async def progress(fraction: float, total: float | None, message: str | None) -> None:
        told.append((fraction, message))

    parameters = StdioServerParameters(command=COMMAND[0], args=list(COMMAND[1:]), cwd=folder, env=environment())
    with (folder / "err.txt").open("w") as err:
        async with Client(stdio_client(parameters, errlog=err), mode="auto", extensions=[TasksExtension()]) as client:
            prompt = await client.get_prompt("teller", {"input": "Tell me."})
            assert [message.content.text for message in prompt.messages] == ["You tell.", "Tell me."]  # type: ignore[union-attr]
            assert (prompt.meta or {})["engine/chatmd"]["source"] == "<system>You tell.</system>"
            called = await client.call_tool("teller", {"input": "Tell me."}, progress_callback=progress)
            assert called.content[0].text == "Told."  # type: ignore[union-attr]
            assert (called.meta or {})["engine/run"]["outcome"] == "ok"
            assert [told[0], told[-1]] == [(0.0, "Starting agent"), (1.0, "Completed")]
            running = anyio.Event()

            async def begun(*_: Any) -> None:
                running.set()

            async with anyio.create_task_group() as group:
                group.start_soon(partial(client.call_tool, "teller", {"input": "never"}, progress_callback=begun))
                await running.wait()
                group.cancel_scope.cancel()
            task = await client.session.call_tool("teller", {"input": "long"}, allow_claimed=True)
            assert isinstance(task, TaskResult)
            state = await client.session.send_request(GetTask(params=OneTask(task_id=task.task_id)), TaskState)
            with anyio.fail_after(20):
                while state.status == "working":
                    await anyio.sleep(0.05)
                    state = await client.session.send_request(GetTask(params=OneTask(task_id=task.task_id)), TaskState)
            assert (state.status, (state.result or {})["content"][0]["text"]) == ("completed", "At last.")


def test_a_document_is_a_prompt_a_tool_and_a_task_for_the_official_client(project: Path) -> None:
    files = {"engine.toml": CONFIG + DOCUMENT, "demo.toml": REPLIES, "teller.chatmd": "<system>You tell.</system>"}
    for name, text in files.items():
        (project / name).write_text(text)
    trio.run(use_a_document, project)
    log = (project / "err.txt").read_text()
    assert [line for line in log.splitlines() if "document ran" in line and "cancelled" in line]
    assert "Traceback" not in log


def test_sigterm_gives_what_is_under_way_its_time_and_ends_with_0(project: Path) -> None:
    with started(project) as process:
        process.begin_endless_call()
        family = process.family()
        sockets = psutil.Process(process.process.pid).net_connections()
        process.process.send_signal(signal.SIGTERM)
        code, rest, err = process.ended()
    assert code == 0
    assert (rest[-1]["id"], rest[-1]["error"]["data"]["code"]) == (1, "unavailable")
    assert "Traceback" not in err
    assert [each for each in sockets if each.status == psutil.CONN_LISTEN] == []
    assert len(family) > 2
    assert_gone(family)


def test_a_client_that_dies_takes_everything_with_it(project: Path) -> None:
    with started(project) as process:
        process.begin_endless_call()
        family = process.family()
        for stream in (process.process.stdin, process.process.stdout, process.process.stderr):
            assert stream is not None
            stream.close()
        assert process.process.wait(60) == 0
    assert_gone(family)


def test_standard_output_has_messages_alone_and_the_end_of_input_is_exit_0_and_closes_the_port_of_bind(
    project: Path,
) -> None:
    with started(project, "--bind", "127.0.0.1:0", "--agent", "greeter") as process:
        assert process.process.stderr is not None
        line = next(line for line in process.process.stderr if b"HTTP is served on " in line)
        url = line.decode().split()[-1]
        assert httpx2.get(f"{url}/health").json()["status"] == "ok"
        assert httpx2.post(f"{url}/tools/steps", json={}, timeout=60).json() == {"result": "done"}
        process.say(b"garbage", request("tools/list", 1), b"{" * 100_000)
        answers = [process.hear() for _ in range(3)]
        family = process.family()
        code, rest, err = process.ended()
    assert [each["error"]["code"] for each in answers if "error" in each] == [-32700, -32700]
    (tools,) = (each["result"]["tools"] for each in answers if "result" in each)
    assert [tool["name"] for tool in tools] == ["search"]
    assert (code, rest) == (0, [])
    assert "a line of the script" in err
    assert_gone(family)
    host, port = url.removeprefix("http://").split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


# What a process does with a fake service whose library, children and tools write wherever they like.
STRAY = """
import os, subprocess, sys, trio
from contextlib import asynccontextmanager
sys.path[:0] = {path!r}
from server.stdio import run_stdio, take_standard_streams
from server_support import FakeService

service = FakeService()
streams = take_standard_streams()

@asynccontextmanager
async def opener(loaded):
    print("by print")
    os.write(1, b"by descriptor\\n")
    subprocess.run(["echo", "by a child"])
    subprocess.run(["cat"], timeout=30)  # reads nothing of the client's
    yield service

code = trio.run(lambda: run_stdio(service.loaded, streams, opener=opener))
print("at the end")
sys.exit(code)
"""


def test_nothing_that_others_write_reaches_the_client() -> None:
    program = STRAY.format(path=[str(ROOT), str(Path(__file__).parent)])
    done = warm_start.run(
        [sys.executable, "-c", program],
        input=json.dumps(call("number", 1)).encode() + b"\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["result"]["structuredContent"] == 42
    assert done.returncode == 0
    for words in (b"by print", b"by descriptor", b"by a child", b"at the end"):
        assert words in done.stderr


FLOOD = """
import sys, trio
from contextlib import asynccontextmanager
sys.path[:0] = {path!r}
from server.logs import log
from server.stdio import run_stdio, take_standard_streams
from server_support import FakeService

service = FakeService()
streams = take_standard_streams()

@asynccontextmanager
async def opener(loaded):
    for n in range(1000):
        log.warning("x" * 500)
    yield service

sys.exit(trio.run(lambda: run_stdio(service.loaded, streams, opener=opener)))
"""


def test_a_client_that_does_not_read_the_log_does_not_stop_the_server() -> None:
    program = FLOOD.format(path=[str(ROOT), str(Path(__file__).parent)])
    with warm_start.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        process = Process(child)
        process.say(call("number", 1))
        assert process.hear()["result"]["structuredContent"] == 42
        assert child.stderr is not None
        assert child.stderr.read(1000)
        code, _, err = process.ended()
    assert code == 0
    assert 30_000 < len(err) < 200_000


def test_an_unknown_agent_is_exit_2_and_nothing_on_standard_output(project: Path) -> None:
    with started(project, "--agent", "nobody") as process:
        code, out, err = process.ended()
    assert (code, out) == (2, [])
    assert err.splitlines()[-1].startswith("error: --agent: ")


def test_a_closed_standard_input_is_exit_2(project: Path) -> None:
    words = " ".join(COMMAND)
    done = subprocess.run(f"{words} <&-", shell=True, cwd=project, env=environment(), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"standard input" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--agent", "greeter"), "/mcp?agent=NAME"),  # over HTTP the address says which
        (("--stdio", "--directory", "nowhere"), "error: nowhere: "),
        (("--stdio", "--bind", "nonsense"), "error: --bind: "),
    ],
)
def test_misuse_is_exit_2(options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["serve", *options]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert words in told.err

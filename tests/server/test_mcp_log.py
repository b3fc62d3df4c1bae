"""What a script logs, as an MCP client receives it while the call lasts: in both eras, over HTTP and stdio."""

import sys
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_support import META, events, every_mode, handshake, message, modern
from mcp_types import LoggingLevel
from server_support import Running, serving

from agents.service import open_service
from engine.config import load_config
from engine.run import LogLine
from engine.tenant import DEFAULT_TENANT
from server.mcp.log import DEFAULT, LEVELS, SessionLevel, passes, wanted
from server.mcp.progress import BACKLOG, LINES, Waiting, reporting

LOG_LEVEL = "io.modelcontextprotocol/logLevel"
SEVERITY = list(get_args(LoggingLevel))
CONFIG = """
[db]
path = "knowledge.sqlite"
[sandbox]
workers = 2
reserve = 0
[agents.script.oncall]
path = "oncall.lua"
[tools.script.talks]
path = "talks.lua"
[tools.script.inner]
path = "inner.lua"
[tools.script.fails]
path = "fails.lua"
"""
SCRIPTS = {
    "oncall.lua": """
agent = { arguments = { { name = "service" } } }
function agent.resolve(args) log.warn("resolving") return { system = "On call" } end
function agent.complete() log.warn("completing") return { "api" } end
""",
    "talks.lua": """
tool = { tools = { "inner" } }
function tool.execute(params, context)
    log.debug("one") log.info("two")
    context.progress(0.5, "half")
    context.tools.inner({})
    log.warn("four") log.error("five") print("six")
    return "done"
end
""",
    "inner.lua": 'tool = {}\nfunction tool.execute() log.info("three") return 1 end',
    "fails.lua": 'tool = {}\nfunction tool.execute() log.error("before") error("no", 0) end',
}
ALL = [("debug", "one"), ("info", "two"), ("info", "three"), ("warning", "four"), ("error", "five"), ("info", "six")]


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Running]:
    configured(tmp_path)
    loaded = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path)
    async with open_service(loaded) as service, serving(service) as running:  # type: ignore[arg-type]
        assert service.failures == ()
        yield running


def configured(folder: Path) -> None:
    (folder / "engine.toml").write_text(CONFIG)
    for name, source in SCRIPTS.items():
        (folder / name).write_text(source)


def severe(least: str) -> list[tuple[str, str]]:
    return [line for line in ALL if SEVERITY.index(line[0]) >= SEVERITY.index(least)]


async def said(server: Running, ask: dict[str, Any], **meta: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The log messages of a call, and its answer, which comes last."""
    ask["json"]["params"]["_meta"] = {**ask["json"]["params"].get("_meta", {}), **meta}
    async with server.client() as client:
        response = await client.post("/mcp", **ask)
    found = events(response.text) or [response.json()]
    return [each["params"] for each in found[:-1] if each["method"] == "notifications/message"], found[-1]


def pairs(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["level"], each["data"]) for each in messages]


TALKS: dict[str, Any] = {"name": "talks", "arguments": {}}


@pytest.mark.parametrize("least", SEVERITY)
async def test_a_request_of_2026_is_sent_the_level_that_it_names_and_above(real: Running, least: str) -> None:
    messages, answer = await said(real, modern("tools/call", TALKS), **{LOG_LEVEL: least})
    assert pairs(messages) == severe(least)
    assert {each["logger"] for each in messages} <= {"talks"}
    assert answer["result"]["structuredContent"] == "done"


async def test_a_request_of_2026_that_names_no_level_is_sent_plain_json(real: Running) -> None:
    async with real.client() as client:
        answer = await client.post("/mcp", **modern("tools/call", TALKS))
    assert answer.headers["content-type"] == "application/json"
    messages, _ = await said(real, modern("tools/call", TALKS), progressToken="t")
    assert messages == []


async def test_a_level_that_there_is_not_is_a_wrong_param(real: Running) -> None:
    _, answer = await said(real, modern("tools/call", TALKS), **{LOG_LEVEL: "loud"})
    assert answer["error"]["code"] == -32602
    assert LOG_LEVEL in answer["error"]["message"]


async def test_a_handshake_call_over_http_is_sent_the_usual_level_on_its_own_stream(real: Running) -> None:
    messages, answer = await said(real, handshake("tools/call", TALKS))
    assert pairs(messages) == severe(DEFAULT)
    assert answer["result"]["structuredContent"] == {"result": "done"}


async def test_progress_and_log_lines_keep_their_order(real: Running) -> None:
    ask = modern("tools/call", TALKS)
    ask["json"]["params"]["_meta"] = {**META, "progressToken": "t", LOG_LEVEL: "debug"}
    async with real.client() as client:
        found = events((await client.post("/mcp", **ask)).text)
    told = [each["params"].get("data", each["params"].get("message")) for each in found[:-1]]
    assert told == ["one", "two", "half", "three", "four", "five", "six"]


async def test_a_call_that_fails_says_first_what_it_logged(real: Running) -> None:
    messages, answer = await said(real, modern("tools/call", {"name": "fails"}), **{LOG_LEVEL: "info"})
    assert pairs(messages) == [("error", "before")]
    assert answer["result"]["isError"] is True


async def test_prompts_and_completions_are_calls_too(real: Running) -> None:
    ref = {"type": "ref/prompt", "name": "oncall"}
    completing = {"ref": ref, "argument": {"name": "service", "value": ""}}
    for method, params, line in (
        ("prompts/get", {"name": "oncall"}, "resolving"),
        ("completion/complete", completing, "completing"),
    ):
        for ask in (modern(method, params), handshake(method, params)):
            messages, answer = await said(real, ask, **{LOG_LEVEL: "info"})
            assert [(each["logger"], each["data"]) for each in messages] == [("oncall", line)]
            assert "result" in answer


async def test_set_level_is_of_the_handshake_revisions_alone(real: Running) -> None:
    async with real.client() as client:
        for level in SEVERITY:
            assert message(await client.post("/mcp", **handshake("logging/setLevel", {"level": level})))["result"] == {}
        loud = message(await client.post("/mcp", **handshake("logging/setLevel", {"level": "loud"})))
        assert loud["error"]["code"] == -32602
        gone = await client.post("/mcp", **modern("logging/setLevel", {"level": "info"}))
        assert (gone.status_code, message(gone)["error"]["code"]) == (404, -32601)
    # There is no session, so what one request sets is nothing to the next.
    messages, _ = await said(real, handshake("tools/call", TALKS))
    assert pairs(messages) == severe(DEFAULT)


@every_mode
async def test_the_official_client_hears_the_log_over_http(real: Running, mode: str) -> None:
    heard: list[tuple[str, str]] = []

    async def hear(params: Any) -> None:
        heard.append((params.level, params.data))

    async with Client(f"{real.url}/mcp", mode=mode, logging_callback=hear) as client:
        meta: Any = {} if mode == "legacy" else {LOG_LEVEL: "warning"}
        answer = await client.call_tool("talks", {}, meta=meta)
        assert not answer.is_error
    assert heard == severe(DEFAULT if mode == "legacy" else "warning")


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
def test_a_session_over_stdio_keeps_its_level(tmp_path: Path) -> None:
    configured(tmp_path)
    heard: list[tuple[str, str]] = []

    async def hear(params: Any) -> None:
        heard.append((params.level, params.data))

    async def talk() -> None:
        command = ["-m", "cli.main", "serve", "mcp", "--stdio", "--config", str(tmp_path / "engine.toml")]
        parameters = StdioServerParameters(
            command=sys.executable, args=command, cwd=tmp_path, env={"PYTHONPATH": str(Path(__file__).parents[2])}
        )
        async with Client(stdio_client(parameters), mode="legacy", logging_callback=hear) as client:
            for level in (None, "error", "debug"):
                heard.clear()
                if level is not None:
                    await client.set_logging_level(level)
                await client.call_tool("talks", {})
                assert heard == severe(level or DEFAULT)

    anyio.run(talk)


# ---- what waits for a slow reader --------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.none(), st.sampled_from(list(LEVELS))), max_size=3 * LINES))
def test_what_waits_is_bounded_in_order_and_says_what_is_missing(items: list[str | None]) -> None:
    waiting = Waiting()
    for number, level in enumerate(items):
        if level is None:
            waiting.report((float(number), None))
        else:
            waiting.line(LogLine(level, str(number)))
    out = []
    while waiting:
        out.append(waiting.next())
    lines = sum(level is not None for level in items)
    notes = [each for each in out if isinstance(each, LogLine) and not each.text.isdigit()]
    numbers = [int(each.text) if isinstance(each, LogLine) else int(each[0]) for each in out if each not in notes]
    assert numbers == sorted(numbers)
    assert len([each for each in out if isinstance(each, tuple)]) == min(BACKLOG, len(items) - lines)
    left_out = max(0, lines - LINES)
    assert [int(each.text.split()[0]) for each in notes] == ([left_out] if left_out else [])


async def test_a_slow_reader_does_not_hold_the_run_up() -> None:
    reading = trio.Event()
    heard: list[LogLine] = []

    async def send_line(line: LogLine) -> None:
        await reading.wait()
        heard.append(line)

    async with reporting(DEFAULT_TENANT, None, send_line) as call:
        assert call.hearers.log is not None
        assert call.hearers.progress is None
        for number in range(10_000):
            call.hearers.log(LogLine("info", str(number)))
        reading.set()
    assert [line.text for line in heard[:-1]] == [str(number) for number in range(LINES)]
    assert heard[-1] == LogLine("warn", f"{10_000 - LINES} log lines were left out: the client reads too slowly")


def test_every_level_of_a_script_passes_exactly_those_of_its_severity() -> None:
    for level, least in product(LEVELS, SEVERITY):
        expected = SEVERITY.index(LEVELS[level]) >= SEVERITY.index(least)
        assert passes(LogLine(level, ""), least) is expected


@given(st.one_of(st.none(), st.dictionaries(st.sampled_from([LOG_LEVEL, "x"]), st.one_of(st.text(), st.integers()))))
def test_without_a_session_only_a_level_that_there_is_asks_for_lines(meta: dict[str, Any] | None) -> None:
    found = wanted(meta, None)
    assert found == ((meta or {}).get(LOG_LEVEL) if (meta or {}).get(LOG_LEVEL) in SEVERITY else None)
    assert wanted(meta, SessionLevel("error")) == "error"

"""A document whose model is that of the client that calls it (`api = "client"`)."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types as t
import pytest
import trio
from asking_support import call, send
from mcp import Client
from mcp_support import handshake, message
from server_support import Running, serving

from agents.asking import ROUNDS
from agents.service import open_service
from engine.config import ConfigError, load_config

CONFIG = """
[db]
path = "engine.sqlite"
[models.yours]
api = "client"
[agents.chatmd.adder]
path = "adder.chatmd"
[agents.chatmd.plain]
path = "plain.chatmd"
[tools.script.add]
path = "add.lua"
"""
FILES = {
    "adder.chatmd": '<tool name="add"/>\n<system>You add.</system>\n',
    "plain.chatmd": "<system>You answer.</system>\n",
    "add.lua": """tool = {
  description = "Adds.",
  parameters = { type = "object", properties = { a = { type = "integer" }, b = { type = "integer" } } },
}
function tool.execute(params) return params.a + params.b end
""",
}
NO_TOOLS = {"sampling": {}}
GIVEN = {"input": "What is 40 and 2?"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    for name, text in {"engine.toml": CONFIG, **FILES}.items():
        (tmp_path / name).write_text(text)
    loaded = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path)
    async with open_service(loaded) as service, serving(service) as running:  # type: ignore[arg-type]
        assert service.failures == ()
        yield running


def _calling(number: int) -> t.CreateMessageResultWithTools:
    block = t.ToolUseContent(type="tool_use", id=f"c{number}", name="add", input={"a": 40, "b": 2})
    return t.CreateMessageResultWithTools(role="assistant", content=[block], model="m", stop_reason="toolUse")


def _saying(text: str) -> t.CreateMessageResult:
    return t.CreateMessageResult(role="assistant", content=t.TextContent(type="text", text=text), model="m")


async def _official(url: str, *, ever: bool) -> t.CallToolResult:
    """The answer of `adder` to a client whose model calls the tool once, or `ever`."""
    asked: list[t.CreateMessageRequestParams] = []

    async def sample(context: Any, params: t.CreateMessageRequestParams) -> Any:
        asked.append(params)
        assert params.system_prompt == "You add."
        last = params.messages[-1].content
        called = params.tools and (params.tool_choice is None or params.tool_choice.mode != "none")
        if called and (ever or len(asked) == 1):
            return _calling(len(asked))
        return _saying(f"It is 42, after {len(asked)}: {type(last[0] if isinstance(last, list) else last).__name__}.")

    async with Client(
        url, mode="2026-07-28", sampling_callback=sample,
        sampling_capabilities=t.SamplingCapability(tools=t.SamplingToolsCapability()),
    ) as client:  # fmt: skip
        return await client.call_tool("adder", GIVEN)


@pytest.mark.parametrize("library", ["trio", "asyncio"])
async def test_the_official_client_answers_each_turn_by_its_own_model(server: Running, library: str) -> None:
    url = f"{server.url}/mcp"
    calling = partial(anyio.run, partial(_official, url, ever=False), backend=library)
    answer = await trio.to_thread.run_sync(calling)
    assert not answer.is_error, answer
    assert answer.content[0].text == "It is 42, after 2: ToolResultContent."
    figures = answer.meta["engine/run"]
    assert (figures["model"], figures["turns"], figures["tool_calls"]) == ("yours", 2, 1)
    assert (figures["estimated"], figures["cost_usd"]) == (True, None)


async def test_a_model_that_calls_tools_for_ever_answers_in_the_last_round_that_its_client_takes(
    server: Running,
) -> None:
    calling = partial(anyio.run, partial(_official, f"{server.url}/mcp", ever=True), backend="trio")
    answer = await trio.to_thread.run_sync(calling)
    assert not answer.is_error, answer
    figures = answer.meta["engine/run"]
    assert (figures["turns"], figures["closed_by"]) == (ROUNDS, "model_turns")


@pytest.mark.parametrize(
    ("name", "capabilities", "missing"),
    [("plain", {}, "sampling"), ("adder", NO_TOOLS, "sampling.tools"), ("plain", {"elicitation": {}}, "sampling")],
)
async def test_a_client_without_the_capability_gets_unavailable_which_names_it(
    server: Running, name: str, capabilities: dict[str, Any], missing: str
) -> None:
    answer = (await send(server, "tools/call", call(name, **GIVEN), capabilities))["result"]
    assert answer["isError"]
    assert missing in answer["content"][0]["text"]
    assert answer["_meta"]["engine/error"]["code"] == "unavailable", answer


async def test_callers_over_rest_and_of_a_handshake_have_no_way_to_be_asked(server: Running) -> None:
    async with server.client() as client:
        answer = await client.post("/tools/plain", json=GIVEN)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "unavailable"
        assert "sampling" in answer.json()["error"]["message"]
        told = message(await client.post("/mcp", **handshake("tools/call", call("plain", **GIVEN))))
        assert "sampling" in told["result"]["content"][0]["text"]


@pytest.mark.parametrize("key", ['url = "https://h.test"', 'model = "m"', "price = { input = 1, output = 1 }"])
def test_keys_of_servers_have_no_meaning_for_a_clients_model(tmp_path: Path, key: str) -> None:
    (tmp_path / "engine.toml").write_text(f'[models.yours]\napi = "client"\n{key}\n')
    with pytest.raises(ConfigError, match=r"has no meaning with api = 'client'"):
        load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path)

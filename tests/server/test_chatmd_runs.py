"""Documents that run, over REST and MCP: figures in answers and errors, progress, lists, what does not load."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp_support import MODES, connected
from server_support import Running, serving

from agents.service import open_service
from engine.config import load_config

HELLO = "<system>You are a very polite assistant.</system>\n<assistant>Hello!  How can I help you today?</assistant>\n"
HELPER = '<config model="gpt-9"/>\n<tool name="shout"/>\n<user>About {{topic}}.</user>\n'
SHOUT = """
tool = { description = "Says it loud", parameters = {{name = "text", type = "string", required = true}} }
function tool.execute(params, context) return params.text:upper() end
"""
REPLIES = """
[[reply]]
when = "weather"
text = "I cannot see the sky."
usage = { input = 100, cached = 50, output = 10 }

[[reply]]
when = "cats"
tool_calls = [{ name = "shout", arguments = { text = "meow" } }]

[[reply]]
when = "MEOW"
text = "They say MEOW."

[[reply]]
when = "dogs"
tool_calls = [{ name = "shout", arguments = { text = "dogs" } }]

[[reply]]
when = "DOGS"
tool_calls = [{ name = "shout", arguments = { text = "dogs" } }]
"""
CONFIG = """
[db]
path = "knowledge.sqlite"
[sandbox]
workers = 1
reserve = 0
[tools.script.shout]
path = "shout.lua"
[agents.chatmd]
dir = "prompts"
[agents.chatmd.helper]
path = "helper.chatmd"
limits = { model_turns = 3 }
[agents.chatmd.helper.parameters]
type = "object"
additionalProperties = false
required = ["topic"]
[agents.chatmd.helper.parameters.properties.topic]
type = "string"
[agents.chatmd.dear]
path = "prompts/hello_world.chatmd"
limits = { cost_usd = 2 }
[agents.chatmd.other]
path = "prompts/hello_world.chatmd"
model = "nothing"
"""
MODEL = """
[models.demo]
api = "script"
path = "replies.toml"
"""
PRICE = "price = { input = 1, output = 10 }\n"
ASKED = {"input": "What is the weather?"}


def project(folder: Path, models: str) -> Path:
    (folder / "prompts").mkdir()
    files = {
        "engine.toml": CONFIG + models, "prompts/hello_world.chatmd": HELLO, "helper.chatmd": HELPER,
        "shout.lua": SHOUT, "replies.toml": REPLIES,
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder / "engine.toml"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    loaded = load_config(project(tmp_path, MODEL), environ={}, cwd=tmp_path)
    async with open_service(loaded) as service, serving(service) as running:  # type: ignore[arg-type]
        yield running


async def test_rest_tells_the_figures_of_a_run_in_answers_and_in_errors(server: Running) -> None:
    async with server.client() as client:
        answer = (await client.post("/tools/hello_world", json=ASKED)).json()
        assert answer["result"] == "I cannot see the sky."
        run = answer["run"]
        assert (run["outcome"], run["model"], run["turns"], run["tool_calls"]) == ("ok", "demo", 1, 0)
        assert (run["input_tokens"], run["cached_tokens"], run["output_tokens"]) == (100, 50, 10)
        assert (run["cost_usd"], run["estimated"], run["closed_by"]) == (None, False, None)

        cats = (await client.post("/tools/helper", json={"topic": "cats"})).json()
        assert (cats["result"], cats["run"]["tool_calls"]) == ("They say MEOW.", 1)

        dogs = await client.post("/tools/helper", json={"topic": "dogs"})
        error = dogs.json()["error"]
        assert (dogs.status_code, error["code"]) == (500, "model_limit")
        assert error["limit"] == {"name": "model_turns", "bound": 3, "used": 3, "unit": "count", "source": "script"}
        assert (error["run"]["outcome"], error["run"]["closed_by"], error["run"]["turns"]) == (
            "model_limit", "model_turns", 3,
        )  # fmt: skip
        assert error["run_id"] == error["run"]["run_id"]

        for wrong, told in (({}, "input"), ({"args": ASKED}, "input"), ({"input": 3}, "input")):
            refused = await client.post("/tools/hello_world", json=wrong)
            assert refused.status_code == 400
            assert told in refused.json()["error"]["message"]
        unknown = await client.post("/tools/helper", json={"topic": "cats", "tone": "dry"})
        assert (unknown.status_code, "tone" in unknown.json()["error"]["message"]) == (400, True)


async def test_clients_of_mcp_get_the_figures_and_hear_of_turns_and_calls_in_every_era(server: Running) -> None:
    for mode in MODES:
        async with connected(server, mode) as client:
            tools = {each.name: each for each in (await client.list_tools()).tools}
            assert tools["hello_world"].annotations.read_only_hint is True  # type: ignore[union-attr]
            assert tools["helper"].input_schema["required"] == ["topic"]
            heard: list[tuple[float, str | None]] = []

            async def hear(progress: float, total: float | None, message: str | None, heard: Any = heard) -> None:
                heard.append((progress, message))

            result = await client.call_tool("helper", {"topic": "cats"}, progress_callback=hear)
            assert [each.text for each in result.content] == ["They say MEOW."]  # type: ignore[union-attr]
            assert result.meta is not None
            assert (result.meta["engine/run"]["turns"], result.meta["engine/run"]["tool_calls"]) == (2, 1)
            assert [text for _, text in heard] == ["Starting agent", "Turn 1", "shout", "Turn 2", "Completed"]
            values = [value for value, _ in heard]
            assert values == sorted(set(values))
            assert (values[0], values[-1]) == (0, 1)
            failed = await client.call_tool("helper", {"topic": "dogs"})
            assert failed.is_error
            assert failed.meta is not None
            assert failed.meta["engine/run"]["outcome"] == "model_limit"
            assert failed.meta["engine/error"]["code"] == "model_limit"
            named = await client.call_tool("hello_world", {})
            assert named.is_error
            assert "input" in named.content[0].text  # type: ignore[union-attr]


async def test_a_limit_of_money_or_a_model_that_cannot_hold_is_a_load_failure_and_a_wrong_name_a_warning(
    tmp_path: Path,
) -> None:
    path = project(tmp_path, MODEL)
    async with open_service(load_config(path, environ={}, cwd=tmp_path)) as service:
        failures = {each.name: each.message for each in service.failures}
        assert failures == {
            "dear": "limits.cost_usd cannot hold: the model 'demo' has no price (models.demo.price)",
            "other": "model = 'nothing': the tenant 'default' has the models demo",
        }
        assert [each for each in service.warnings if "unknown-model" in each] == [
            "agents.chatmd.helper: unknown-model: the document names 'gpt-9', "
            "which is no model of the tenant 'default'; it runs with 'demo'"
        ]
    path.write_text(CONFIG + MODEL + PRICE)
    async with open_service(load_config(path, environ={}, cwd=tmp_path)) as service:
        assert [each.name for each in service.failures] == ["other"]


async def test_without_a_model_the_tool_says_so_a_call_is_unavailable_and_the_prompt_works(tmp_path: Path) -> None:
    loaded = load_config(project(tmp_path, ""), environ={}, cwd=tmp_path)
    async with open_service(loaded) as service, serving(service) as running:  # type: ignore[arg-type]
        async with running.client() as client:
            refused = await client.post("/tools/hello_world", json=ASKED)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
            assert "[models.NAME]" in refused.json()["error"]["message"]
            assert (await client.post("/agents/hello_world/prompt", json=ASKED)).status_code == 200
        for mode in MODES:
            async with connected(running, mode) as client:
                tools = {each.name: each for each in (await client.list_tools()).tools}
                assert "no model" in (tools["hello_world"].description or "")
                result = await client.call_tool("hello_world", ASKED)
                assert result.is_error
                assert "[models.NAME]" in result.content[0].text  # type: ignore[union-attr]
                assert (await client.get_prompt("hello_world")).messages

"""Documents in ChatMD over the wire: as prompts of REST and of the official client of MCP, in every era."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp_support import MODES, connected
from server_support import Running, serving

from agents.service import open_service
from engine.config import load_config

HELLO = "<system>You are a very polite assistant.</system>\n<assistant>Hello!  How can I help you today?</assistant>\n"
LOOK = """<system>Look: <doc src="x.md" local/></system>
<user>At <img src="p.png" local/><img src="https://ok.example/q"/><doc src="big.md" local/></user><tool name="gone"/>"""
PIXEL = b"\x89PNG\r\n\x1a\n" + bytes(100_000)
BIG = '"<>\n' * 40_000
REPLIES = """
[[reply]]
when = "weather"
text = "I cannot see the sky."
[[reply]]
text = "Yes?"
"""
CONFIG = """
[db]
path = "knowledge.sqlite"
[sandbox]
workers = 1
reserve = 0
[agents.chatmd]
dir = "prompts"
[agents.chatmd.look]
path = "look.chatmd"
allow_hosts = ["ok.example"]
[models.scripted]
api = "script"
path = "replies.toml"
[agents.plain]
description = "A text"
system_prompt = "S"
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "prompts").mkdir()
    (folder / "prompts/hello_world.chatmd").write_text(HELLO)
    for name, content in {
        "engine.toml": CONFIG,
        "look.chatmd": LOOK,
        "x.md": "of x",
        "big.md": BIG,
        "replies.toml": REPLIES,
    }.items():
        (folder / name).write_text(content)
    (folder / "p.png").write_bytes(PIXEL)
    return folder


@pytest.fixture
async def server(project: Path) -> AsyncIterator[Running]:
    loaded = load_config(project / "engine.toml", environ={}, cwd=project)
    async with open_service(loaded) as service, serving(service) as running:  # type: ignore[arg-type]
        assert service.failures == ()
        yield running


async def test_rest_has_documents_as_text_images_as_blocks_and_the_source_apart(server: Running) -> None:
    async with server.client() as client:
        greeting = {"role": "assistant", "content": "Hello!  How can I help you today?"}
        hello = (await client.post("/agents/hello_world/prompt", json={})).json()
        assert hello == {"system": "You are a very polite assistant.", "tools": [], "messages": [greeting]}
        asked = await client.post("/agents/hello_world/prompt", json={"arguments": {"input": "What?"}})
        assert asked.json()["result"]["messages"] == [greeting, {"role": "user", "content": "What?"}]

        look = (await client.post("/agents/look/prompt", json={})).json()
        assert (look["system"], look["tools"]) == ("Look: of x", [])
        assert look["unavailable"] == (await client.get("/agents/look/source")).json()["unavailable"]
        assert {"name": "gone", "reason": "there is no tool of this name"} in look["unavailable"]
        assert look["messages"] == [
            {
                "role": "user",
                "content": f"At {BIG}",
                "blocks": [
                    {"type": "text", "text": "At "},
                    {"type": "image", "data": base64.b64encode(PIXEL).decode(), "mime_type": "image/png"},
                    {"type": "resource_link", "uri": "https://ok.example/q", "name": "https://ok.example/q",
                     "mime_type": None},
                    {"type": "text", "text": BIG},
                ],
            }
        ]  # fmt: skip
        source = (await client.get("/agents/look/source")).json()
        assert (source["source"], source["imports"], len(source["sha256"])) == (LOOK, [], 64)
        assert source["unavailable"] == [{"name": "gone", "reason": "there is no tool of this name"}]
        listed = (await client.get("/agents/list")).json()["agents"]
        assert [(each["name"], each["source"]) for each in listed] == [
            ("look", "chatmd"), ("plain", "toml"), ("hello_world", "chatmd"),
        ]  # fmt: skip
        for name in ("plain", "none"):
            assert (await client.get(f"/agents/{name}/source")).status_code == 404
        wrong = await client.post("/agents/hello_world/prompt", json={"input": 3})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "bad_request")
        # Other kinds answer as they did: no key of a message is new.
        assert (
            await client.post("/agents/plain/prompt", json={})
        ).content == b'{"system":"S","tools":[],"messages":[]}'


async def test_clients_of_mcp_get_resources_images_and_links_in_every_era(server: Running) -> None:
    for mode in MODES:
        async with connected(server, mode) as client:
            prompts = {each.name: each for each in (await client.list_prompts()).prompts}
            assert [each.required for each in prompts["hello_world"].arguments or ()] == [False]
            hello = await client.get_prompt("hello_world", {"input": "What?"})
            assert [(each.role, each.content.text) for each in hello.messages] == [  # type: ignore[union-attr]
                ("user", "You are a very polite assistant."),
                ("assistant", "Hello!  How can I help you today?"),
                ("user", "What?"),
            ]
            assert hello.meta is not None
            assert hello.meta["engine/chatmd"]["source"] == HELLO
            assert hello.meta["engine/prompt"]["system"] == "You are a very polite assistant."

            look = await client.get_prompt("look")
            shown = [
                json.loads(each.content.model_dump_json(by_alias=True, exclude_none=True)) for each in look.messages
            ]
            assert shown == [
                {"type": "text", "text": "Look: "},
                {"type": "resource",
                 "resource": {"uri": "chatmd:///x.md", "mimeType": "text/markdown", "text": "of x"}},
                {"type": "text", "text": "At "},
                {"type": "image", "data": base64.b64encode(PIXEL).decode(), "mimeType": "image/png"},
                {"type": "resource_link", "uri": "https://ok.example/q", "name": "https://ok.example/q"},
                {"type": "resource",
                 "resource": {"uri": "chatmd:///big.md", "mimeType": "text/markdown", "text": BIG}},
            ]  # fmt: skip
            assert look.meta is not None
            assert look.meta["engine/chatmd"]["unavailable"][0]["name"] == "gone"
            assert look.meta["engine/prompt"]["messages"] == [{"role": "user", "content": f"At {BIG}"}]


async def test_the_seeds_document_answers_over_rest_and_in_every_era_of_mcp(server: Running) -> None:
    asked = {"input": "What is the weather?"}
    async with server.client() as client:
        answer = (await client.post("/tools/hello_world", json=asked)).json()
        assert answer["result"] == "I cannot see the sky."
        assert (answer["run"]["outcome"], answer["run"]["model"]) == ("ok", "scripted")
        wrong = await client.post("/tools/hello_world", json={"args": asked})
        assert (wrong.status_code, "input" in wrong.json()["error"]["message"]) == (400, True)
    for mode in MODES:
        async with connected(server, mode) as client:
            (tool,) = [each for each in (await client.list_tools()).tools if each.name == "hello_world"]
            assert tool.input_schema == {
                "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
            }  # fmt: skip
            result = await client.call_tool("hello_world", asked)
            assert [each.text for each in result.content] == ["I cannot see the sky."]  # type: ignore[union-attr]

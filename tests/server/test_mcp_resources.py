"""The caller's documents as MCP resources, and what may be completed: over real HTTP, with the official client."""

from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_support import MODERN, connected, document, every_mode, fill, handshake, library, message, modern
from mcp_types import PromptReference, ResourceTemplateReference

from server.mcp.handlers import MAX_ECHO
from server.mcp.shapes import DOCUMENT_TEMPLATE, TITLE_TEMPLATE, document_id, source_and_title, uri_of

RUNBOOK = document("a/payments.md", "Restart it.", title="Payments API runbook", content_type="text/markdown")


def damage(folder: Path) -> None:
    for part in folder.glob("store.sqlite*"):
        part.write_bytes(b"\0" * 100_000)


@every_mode
async def test_documents_are_listed_with_what_a_reader_wants_to_know(tmp_path: Path, mode: str) -> None:
    dated = document("b.txt", "é", title=None, updated_at="2026-01-31T12:00:00Z")
    async with library(tmp_path, RUNBOOK, dated) as server, connected(server, mode) as client:
        resources = (await client.list_resources()).resources
    assert [each.name for each in resources] == ["filesystem:notes/a/payments.md", "filesystem:notes/b.txt"]
    assert [each.title for each in resources] == ["Payments API runbook", "B.txt"]
    assert [each.mime_type for each in resources] == ["text/markdown", "text/plain"]
    assert [each.size for each in resources] == [11, 2]
    assert resources[1].annotations is not None
    assert resources[0].annotations is None


@every_mode
async def test_a_listed_document_can_be_read(tmp_path: Path, mode: str) -> None:
    async with library(tmp_path, RUNBOOK) as server, connected(server, mode) as client:
        (listed,) = (await client.list_resources()).resources
        (contents,) = (await client.read_resource(listed.uri)).contents
    assert contents.uri == listed.uri
    assert contents.text == "Restart it."
    assert contents.mime_type == "text/markdown"
    assert contents.meta["engine/document"]["source_id"] == "a/payments.md"
    assert contents.meta["engine/document"]["untrusted"] is False


@every_mode
async def test_a_document_can_be_read_by_source_and_title(tmp_path: Path, mode: str) -> None:
    odd = document("odd", "odd", title="50% of A/B? é")
    twins = (document("one", "1", title="Twin"), document("two", "2", title="Twin"))
    async with library(tmp_path, RUNBOOK, odd, *twins) as server, connected(server, mode) as client:
        templates = (await client.list_resource_templates()).resource_templates
        assert [each.uri_template for each in templates] == [DOCUMENT_TEMPLATE, TITLE_TEMPLATE]
        for title, texts in (
            ("Payments%20API%20runbook", {"Restart it."}),
            ("50%25%20of%20A%2FB%3F%20%C3%A9", {"odd"}),
            ("Twin", {"1", "2"}),
        ):
            uri = f"engine://sources/filesystem%3Anotes/{title}"
            found = (await client.read_resource(uri)).contents
            assert {each.text for each in found} == texts
            assert {each.uri for each in found} == {uri}


@pytest.mark.parametrize(
    "uri",
    [
        "engine://documents/nothing",
        "engine://documents/",
        "engine://documents/a/b",
        "engine://documents/%ED%A0%80%00",
        "engine://sources/filesystem%3Anotes/Nothing",
        "engine://sources/filesystem%3Anotes/",
        "engine://sources//Twin",
        "engine://sources/a/b/c",
        "engine://else",
        "file:///etc/passwd",
        "",
        "x" * 10_000,
    ],
)
async def test_what_is_not_there_is_the_error_of_the_revision_with_its_address(tmp_path: Path, uri: str) -> None:
    async with library(tmp_path, RUNBOOK) as server, server.client() as client:
        # An address as long as a header may not be does not reach us; the header is checked against it.
        ask = modern("resources/read", {"uri": uri}, **{"mcp-name": uri})
        response = await client.post("/mcp", **ask)
        assert response.status_code == 400
        error = message(response)["error"]
        assert error["code"] == -32602
        assert error["data"] == {"uri": uri[:MAX_ECHO]}
        error = message(await client.post("/mcp", **handshake("resources/read", {"uri": uri})))["error"]
        assert (error["code"], error["data"]) == (-32002, {"uri": uri[:MAX_ECHO]})
        assert len(message(await client.post("/mcp", **modern("resources/list")))["result"]["resources"]) == 1


@every_mode
async def test_documents_come_in_pages_that_neither_repeat_nor_skip(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.mcp.handlers.PAGE", 3)
    async with library(tmp_path, *(document(f"d{n}") for n in range(4))) as server, connected(server, mode) as client:
        await fill(server.service.store, *(document(f"e{n}") for n in range(4)), source="git:other")
        names: list[str] = []
        cursor = None
        while True:
            result = await client.list_resources(cursor=cursor)
            names += [each.name for each in result.resources]
            cursor = result.next_cursor
            if cursor is None:
                break
        assert names == [f"filesystem:notes/d{n}" for n in range(4)] + [f"git:other/e{n}" for n in range(4)]
        stolen = (await client.list_resources()).next_cursor
        for ask in (client.list_tools(cursor=stolen), client.list_resource_templates(cursor=stolen)):
            with pytest.raises(MCPError) as caught:
                await ask
            assert caught.value.code == -32602


@every_mode
async def test_an_agents_address_shows_documents_only_to_an_agent_that_may_get_them(tmp_path: Path, mode: str) -> None:
    async with library(tmp_path, RUNBOOK) as server:
        async with connected(server, mode, "?agent=reader") as client:
            (listed,) = (await client.list_resources()).resources
            assert (await client.read_resource(listed.uri)).contents
            assert (await client.list_resource_templates()).resource_templates
        async with connected(server, mode, "?agent=helper") as client:
            assert (await client.list_resources()).resources == []
            assert (await client.list_resource_templates()).resource_templates == []
            with pytest.raises(MCPError):
                await client.read_resource(listed.uri)
            ref = ResourceTemplateReference(uri=TITLE_TEMPLATE)
            with pytest.raises(MCPError):
                await client.complete(ref, {"name": "title", "value": ""})


async def test_lists_of_documents_may_be_kept_for_a_while_and_are_private(tmp_path: Path) -> None:
    async with library(tmp_path, RUNBOOK) as server, server.client() as client:
        listed = message(await client.post("/mcp", **modern("resources/list")))["result"]
        uri = listed["resources"][0]["uri"]
        read = message(await client.post("/mcp", **modern("resources/read", {"uri": uri}, **{"mcp-name": uri})))
        templates = message(await client.post("/mcp", **modern("resources/templates/list")))
    for result in (listed, read["result"], templates["result"]):
        assert result["cacheScope"] == "private"
        assert result["ttlMs"] >= 0


async def test_a_store_that_cannot_answer_is_told_without_a_path(tmp_path: Path) -> None:
    async with library(tmp_path, RUNBOOK) as server, server.client() as client:
        damage(tmp_path)
        response = await client.post("/mcp", **modern("resources/list"))
        error = message(response)["error"]
    assert error["code"] == -32603
    assert error["data"]["code"] == "unavailable"
    assert str(tmp_path) not in response.text


# ---- completion --------------------------------------------------------------------------------------------------


async def completed(client: Client, ref: Any, name: str, value: str, **given: str) -> Any:
    return (await client.complete(ref, {"name": name, "value": value}, given or None)).completion


@every_mode
async def test_declared_values_are_completed_those_that_begin_so_first(tmp_path: Path, mode: str) -> None:
    both = PromptReference(name="both")
    async with library(tmp_path) as server, connected(server, mode) as client:
        found = await completed(client, both, "severity", "p1")
        assert found.values == ["P1 outage", "not a P1"]
        assert (found.total, found.has_more) == (2, False)
        assert (await completed(client, both, "severity", "")).total == 3
        assert (await completed(client, both, "severity", "x")).values == []
        assert (await completed(client, PromptReference(name="helper"), "service", "x")).values == []


@every_mode
async def test_a_script_completes_with_the_others_in_sight_and_at_most_100_are_shown(tmp_path: Path, mode: str) -> None:
    both = PromptReference(name="both")
    async with library(tmp_path) as server, connected(server, mode) as client:
        found = await completed(client, both, "service", "pay", severity="P1 outage")
        assert found.values == ["pay0", "pay1"]
        assert server.service.completed[-1] == ("both", "service", "pay", {"severity": "P1 outage"})
        found = await completed(client, both, "service", "many")
        assert (len(found.values), found.total, found.has_more) == (100, 150, True)
        with pytest.raises(MCPError) as caught:
            await completed(client, both, "broken", "")
        assert (caught.value.code, caught.value.message) == (-32603, "agent 'both': no")


@every_mode
async def test_sources_and_titles_of_documents_are_completed(tmp_path: Path, mode: str) -> None:
    template = ResourceTemplateReference(uri=TITLE_TEMPLATE)
    async with library(tmp_path, RUNBOOK, document("x", title="Payroll")) as server, connected(server, mode) as client:
        await fill(server.service.store, document("y", title="Paydays"), source="git:other")
        found = await completed(client, template, "source", "git")
        assert found.values == ["git:other"]
        found = await completed(client, template, "title", "pay")
        assert found.values == ["Paydays", "Payments API runbook", "Payroll"]
        found = await completed(client, template, "title", "pay", source="git:other")
        assert found.values == ["Paydays"]
        by_id = ResourceTemplateReference(uri=DOCUMENT_TEMPLATE)
        assert (await completed(client, by_id, "id", "a")).values == []
        await fill(server.service.store, *(document(f"m{n}", title=f"Many {n:03}") for n in range(130)))
        found = await completed(client, template, "title", "many")
        assert (len(found.values), found.total, found.has_more) == (100, None, True)


@every_mode
@pytest.mark.parametrize(
    ("ref", "name"),
    [
        (PromptReference(name="nobody"), "a"),
        (PromptReference(name="both"), "undeclared"),
        (PromptReference(name="tool-only"), "a"),
        (ResourceTemplateReference(uri=TITLE_TEMPLATE), "id"),
        (ResourceTemplateReference(uri="file:///{path}"), "path"),
    ],
)
async def test_what_cannot_be_completed_is_invalid_params(tmp_path: Path, mode: str, ref: Any, name: str) -> None:
    async with library(tmp_path) as server, connected(server, mode) as client:
        with pytest.raises(MCPError) as caught:
            await completed(client, ref, name, "")
        assert caught.value.code == -32602
        assert (await completed(client, PromptReference(name="both"), "severity", "P2")).total == 1


# ---- agents as tools, seen from outside --------------------------------------------------------------------------


@every_mode
async def test_an_agent_is_where_its_configuration_exposes_it(tmp_path: Path, mode: str) -> None:
    async with library(tmp_path) as server, connected(server, mode) as client:
        prompts = {each.name: each for each in (await client.list_prompts()).prompts}
        tools = {each.name for each in (await client.list_tools()).tools}
        assert "both" in prompts
        assert prompts["both"].title == "Both of them"
        assert "tool-only" not in prompts
        assert {"both", "tool-only"} <= tools
        called = await client.call_tool("both", {})
        assert called.structured_content == {"system": "You are both.", "tools": [], "messages": []}
        with pytest.raises(MCPError) as caught:
            await client.get_prompt("tool-only", {})
        assert caught.value.code == -32602


@every_mode
async def test_an_agents_own_address_offers_it_as_a_tool_too(tmp_path: Path, mode: str) -> None:
    async with library(tmp_path) as server:
        async with connected(server, mode, "?agent=both") as client:
            assert [each.name for each in (await client.list_tools()).tools] == ["both", "echo"]
            assert (await client.call_tool("both", {})).structured_content["system"] == "You are both."
            assert not (await client.call_tool("echo", {})).is_error
            with pytest.raises(MCPError):
                await client.call_tool("tool-only", {})
        async with connected(server, mode, "?agent=tool-only") as client:
            assert [each.name for each in (await client.list_tools()).tools] == ["tool-only"]
            assert (await client.list_prompts()).prompts == []


async def test_the_server_says_who_it_is_in_every_answer_of_2026(tmp_path: Path) -> None:
    async with library(tmp_path) as server, server.client() as client:
        found = message(await client.post("/mcp", **modern("server/discover")))["result"]
        listed = message(await client.post("/mcp", **modern("tools/list")))["result"]
    for result in (found, listed):
        about = result["_meta"]["io.modelcontextprotocol/serverInfo"]
        assert (about["name"], about["title"]) == ("engine", "Engine")
        assert about["icons"][0]["src"].startswith("data:image/svg+xml;base64,")
        assert len(str(about)) < 700
    assert found["supportedVersions"] == [MODERN]
    assert found["capabilities"] == {
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "completions": {},
        "logging": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    }


# ---- addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("identifier", ["3f6e8578-cd39-5656-896a-60d6b638a1fd", "a b/c?d#e%", "é"])
def test_an_address_leads_back_to_its_document(identifier: str) -> None:
    assert document_id(uri_of(identifier)) == identifier


def test_addresses_of_one_form_are_not_of_the_other() -> None:
    assert document_id("engine://sources/a/b") is None
    assert source_and_title("engine://documents/a") is None
    assert source_and_title("engine://sources/git%3Ax/A%2FB") == ("git:x", "A/B")

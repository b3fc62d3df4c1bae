"""Every way to read documents, with keys that have a label and keys that do not: a hidden document is not there."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp_support import Listening, modern
from server_support import Running, assert_envelope, serving

from agents.service import open_service
from engine.config import load_config
from knowledge.access import EVERYTHING, Access, SourceAccess
from knowledge.sqlite.store import open_store
from knowledge.store import Batch, NewDocument
from knowledge.stores import store_path

# In the title, the text, the source_id and the source of the hidden document, and nowhere else.
MARK = "zanzibar"
HIDDEN, SHOWN = f"filesystem:{MARK}", "filesystem:open"
NO_ID = "00000000-0000-5000-8000-000000000000"

CONFIG = f"""
[db]
path = "data/engine.sqlite"
[sandbox]
workers = 2
reserve = 0
[tenants]
enabled = true
operator_key = "the-operators-own-key"
[connectors.filesystem.{MARK}]
root = "docs"
tenants = ["acme"]
access = ["hr"]
[connectors.filesystem.open]
root = "docs"
tenants = ["acme"]
[agents.script.plain]
path = "reads.lua"
tenants = ["acme"]
[agents.script.cleared]
path = "reads.lua"
tenants = ["acme"]
labels = ["hr", "legal"]
[agents.script.narrow]
path = "reads.lua"
tenants = ["acme"]
labels = ["hr"]
sources = ["open"]
[tools.script.inner]
path = "inner.lua"
tenants = ["acme"]
labels = ["hr"]
"""
# What a script finds by each of its calls; `inner` is a tool that is granted the label itself.
READS = """
agent = { tools = { "search", "get", "sources", "inner" }, arguments = { { name = "about" } } }
local function all(args, context)
    local found = { hits = #context.search("word"), sources = #context.sources() }
    found.got = pcall(context.get, args.id)
    found.tool = #context.tools.search({ query = "word" }).results
    found.inner = context.tools.inner({}).hits
    found.parallel = context.parallel{ function() return #context.search("word") end }[1]
    return found
end
function agent.resolve(args, config, context) return { system = json.encode(all(args, context)) } end
function agent.complete(argument, value, context)
    local titles = {}
    for i, hit in ipairs(context.search("word")) do titles[i] = hit.title end
    return titles
end
"""
INNER = """
tool = { parameters = {} }
function tool.execute(params, context) return { hits = #context.search("word") } end
"""


def document(source_id: str, title: str) -> NewDocument:
    return NewDocument(source_id=source_id, title=title, body=f"{title} word", chunks=[f"{title} word"], digest=title)


@dataclass
class World:
    """A server, keys by name, and the id of the hidden document."""

    running: Running
    path: Path
    keys: dict[str, str]
    hidden: str

    @asynccontextmanager
    async def client(self, who: str) -> AsyncIterator[httpx2.AsyncClient]:
        async with self.running.client() as client:
            client.headers["authorization"] = f"Bearer {self.keys[who]}"
            yield client

    async def write(self, source: str, **change: Any) -> None:
        access = SourceAccess({HIDDEN: Access.of(["hr"])})
        async with open_store(self.path, access=access) as store:
            await store.apply(Batch(source=source, **change))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    for name, text in {"engine.toml": CONFIG, "reads.lua": READS, "inner.lua": INNER}.items():
        (tmp_path / name).write_text(text)
    loaded = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path)
    path = store_path(loaded.config.db.path, "acme")
    access = SourceAccess({HIDDEN: Access.of(["hr"])})
    async with open_store(path, create=True, access=access) as store:
        await store.apply(Batch(source=HIDDEN, upserts=[document(f"{MARK}.md", MARK)]))
        await store.apply(Batch(source=SHOWN, upserts=[document("open.md", "open")]))
        hidden = next(each.id for each in await store.documents(EVERYTHING, limit=9) if MARK in each.source_id)
    async with open_service(loaded) as service, serving(service) as running:  # type: ignore[arg-type]
        keys = {"operator": "the-operators-own-key"}
        await service.control.tenants.create("acme", actor="cli")
        for name, labels in {"plain": (), "hr": ("hr",), "ops": ("ops",)}.items():
            _, keys[name] = await service.control.keys.create(
                "acme", actor="cli", scopes=("use", "publish", "admin"), labels=labels
            )
        yield World(running, path, keys, hidden)


def mcp(method: str, **params: Any) -> dict[str, Any]:
    asked = modern(method, params)
    if "uri" in params:
        asked["headers"]["mcp-name"] = params["uri"]
    return asked


CLEARED = {"type": "ref/prompt", "name": "cleared"}
TITLES = {"type": "ref/resource", "uri": "engine://sources/{source}/{title}"}
READS_OF_ALL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "search": ("POST", "/tools/search", {"json": {"query": "word", "limit": 100, "passages": 3}}),
    "explained search": ("POST", "/tools/search", {"json": {"query": "word", "mode": "hybrid", "explain": True}}),
    "search of the source": ("POST", "/tools/search", {"json": {"query": "word", "source": HIDDEN.partition(":")[2]}}),
    "sources": ("GET", "/tools/sources", {}),
    "sources by POST": ("POST", "/tools/sources", {"json": {}}),
    "MCP search": ("POST", "/mcp", mcp("tools/call", name="search", arguments={"query": "word"})),
    "MCP sources": ("POST", "/mcp", mcp("tools/call", name="sources", arguments={})),
    "MCP resources": ("POST", "/mcp", mcp("resources/list")),
    "MCP completion of sources": (
        "POST", "/mcp", mcp("completion/complete", ref=TITLES, argument={"name": "source", "value": ""})),
    "MCP completion of titles": (
        "POST", "/mcp", mcp("completion/complete", ref=TITLES, argument={"name": "title", "value": ""})),
    "an agent's completion": (
        "POST", "/mcp", mcp("completion/complete", ref=CLEARED, argument={"name": "about", "value": ""})),
    "everything else": ("GET", "/limits", {}),
    "agents": ("GET", "/agents/list", {}),
}  # fmt: skip


async def test_a_key_without_the_label_finds_no_byte_of_a_hidden_document(world: World) -> None:
    for who in ("plain", "ops"):
        async with world.client(who) as client:
            for name, (method, path, how) in READS_OF_ALL.items():
                answer = await client.request(method, path, **how)
                assert answer.status_code == 200, (name, answer.text)
                text = answer.text.replace(f"/sources/{HIDDEN}", "")
                assert MARK not in text, (who, name)
                assert world.hidden not in text, (who, name)
            (source,) = (await client.get("/tools/sources")).json()["sources"]
            assert (source["source"], source["document_count"], source["chunk_count"]) == (SHOWN, 1, 1)
    async with world.client("hr") as client:  # so that nothing above was empty for another reason
        for name, (method, path, how) in READS_OF_ALL.items():
            if path != "/limits" and name != "agents":
                assert MARK in (await client.request(method, path, **how)).text, name


async def test_a_hidden_document_answers_exactly_as_one_that_does_not_exist(world: World) -> None:
    asks = (
        ("/tools/get", lambda of: {"json": {"id": of}}),
        ("/tools/get", lambda of: {"json": {"id": of, "lines": "1"}}),
        ("/mcp", lambda of: mcp("tools/call", name="get", arguments={"id": of})),
        ("/mcp", lambda of: mcp("resources/read", uri=f"engine://documents/{of}")),
    )
    async with world.client("plain") as client:
        for path, ask in asks:
            hidden, absent = [(await client.post(path, **ask(of))) for of in (world.hidden, NO_ID)]
            assert hidden.status_code == absent.status_code
            assert hidden.text.replace(world.hidden, NO_ID) == absent.text
        titled = await client.post("/mcp", **mcp("resources/read", uri=f"engine://sources/filesystem%3A{MARK}/{MARK}"))
        assert titled.json()["error"]["message"] == "there is no such document"
        assert_envelope(await client.post("/tools/get", json={"id": world.hidden}), 404, "not_found")
    for who in ("hr", "operator"):
        async with world.client(who) as client:
            tenant = "?tenant=acme" if who == "operator" else ""
            answer = await client.post(f"/tools/get{tenant}", json={"id": world.hidden})
            assert answer.json()["title"] == MARK


async def test_a_source_that_is_hidden_from_a_key_cannot_be_synchronised_with_it(world: World) -> None:
    async with world.client("plain") as client:
        for source in (HIDDEN, HIDDEN.replace(":", "%3A")):
            hidden, absent = [await client.post(f"/sources/{each}/sync") for each in (source, "filesystem:none")]
            assert_envelope(hidden, 404, "not_found")
            assert hidden.text.replace(HIDDEN, "filesystem:none") == absent.text
        assert (await client.post(f"/sources/{SHOWN}/sync")).status_code != 404
    async with world.client("hr") as client:
        assert (await client.post(f"/sources/{HIDDEN}/sync")).status_code != 404


NOTHING = {"hits": 1, "sources": 1, "got": False, "tool": 1, "inner": 1, "parallel": 1}
EVERY = {"hits": 2, "sources": 2, "got": True, "tool": 2, "inner": 2, "parallel": 2}
SEEN = {
    ("plain", "plain"): NOTHING, ("plain", "cleared"): NOTHING, ("hr", "plain"): NOTHING, ("hr", "cleared"): EVERY,
    ("hr", "narrow"): NOTHING, ("operator", "plain"): NOTHING, ("operator", "cleared"): EVERY,
    ("ops", "cleared"): NOTHING,
}  # fmt: skip


async def test_inside_a_script_a_document_is_shown_to_the_key_and_granted_to_the_script(world: World) -> None:
    for (who, agent), expected in SEEN.items():
        async with world.client(who) as client:
            tenant = "?tenant=acme" if who == "operator" else ""
            answer = await client.post(f"/agents/{agent}/prompt{tenant}", json={"id": world.hidden})
            assert answer.status_code == 200, answer.text
            assert json.loads(answer.json()["system"]) == expected, (who, agent)
    async with world.client("hr") as client:  # the tool alone is granted the label
        assert (await client.post("/tools/inner", json={})).json()["result"] == {"hits": 2}


async def test_a_published_script_reads_labels_once_they_are_approved(world: World) -> None:
    source = READS.replace("sources = #context.sources()", "sources = 0").replace(', "inner"', "")
    source = source.replace("found.inner = context.tools.inner({}).hits", "")

    def package(version: str, **grants: Any) -> dict[str, Any]:
        return {"version": version, "main": "main.lua", "files": {"main.lua": source}, "grants": grants}

    async with world.client("hr") as client:

        async def hits() -> int:
            answer = await client.post("/agents/community/prompt", json={"id": world.hidden})
            found: int = json.loads(answer.json()["system"])["hits"]
            return found

        assert (await client.put("/agents/community", json=package("1"))).json()["active"]
        assert await hits() == 1
        waits = (
            await client.put("/agents/community", json=package("2", labels=["hr"], hosts=["a.example.com"]))
        ).json()
        assert (waits["active"], waits["asks"]) == (False, {"hosts": ["a.example.com"], "labels": ["hr"]})
        assert "with the labels hr, from all sources" in waits["means"]
        assert await hits() == 1
        assert (await client.post("/agents/community/versions/2/approve", json={})).json()["active"]
        assert await hits() == 2
        narrower = package("3", labels=["hr"], hosts=["a.example.com"], sources=["open"])
        third = (await client.put("/agents/community", json=narrower)).json()
        assert (third["active"], third["means"], third["grants"]["sources"]) == (True, None, ["open"])
        assert await hits() == 1


@asynccontextmanager
async def listening(world: World, who: str) -> AsyncIterator[Listening]:
    wanted = {"resourcesListChanged": True, "resourceSubscriptions": [f"engine://documents/{world.hidden}"]}
    ask = modern("subscriptions/listen", {"notifications": wanted})
    async with world.client(who) as client, client.stream("POST", "/mcp", **ask) as response:
        stream = Listening(response)
        assert (await stream.next())["method"] == "notifications/subscriptions/acknowledged"
        yield stream


async def test_a_subscriber_hears_only_of_changes_that_it_may_see(world: World) -> None:
    async with listening(world, "plain") as plain, listening(world, "hr") as hr:
        await world.write(HIDDEN, upserts=[document(f"{MARK}.md", f"{MARK} changed")])
        first = [(await hr.next())["method"] for _ in range(2)]
        assert sorted(first) == ["notifications/resources/list_changed", "notifications/resources/updated"]
        await world.write(SHOWN, upserts=[document("open.md", "open too")])
        assert (await hr.next())["method"] == "notifications/resources/list_changed"
        # Events stay in order: an event of the first change would come before this one, and a second one after it.
        assert (await plain.next())["method"] == "notifications/resources/list_changed"
        await world.write(SHOWN, upserts=[document("open.md", "open again")])
        assert (await plain.next())["method"] == "notifications/resources/list_changed"
        await world.write(HIDDEN, deletes=[f"{MARK}.md"])
        assert sorted([(await hr.next())["method"] for _ in range(3)])[-1] == "notifications/resources/updated"

"""Every route and MCP method, asked with a tenant's own key, another tenant's, none, an expired and a suspended one."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp_support import modern
from server_support import assert_envelope, serving

from agents.service import Service, open_service
from engine.config import load_config
from knowledge.access import EVERYTHING
from knowledge.sqlite.store import open_store
from knowledge.store import Batch, NewDocument, SearchQuery
from knowledge.stores import store_path

# Stands in everything that belongs to acme, and in nothing else.
MARK = "zanzibar"
CONFIG = f"""
[db]
path = "data/engine.sqlite"
[sandbox]
workers = 2
reserve = 0
[tenants]
enabled = true
operator_key = "the-operators-own-key"
[tenants.quota]
requests_per_second = 1000
burst = 1000
[connectors.filesystem.{MARK}-docs]
root = "docs"
tenants = ["acme"]
[agents.script.{MARK}-agent]
path = "agent.lua"
tenants = ["acme"]
expose = ["prompt", "tool"]
[tools.script.{MARK}-tool]
path = "tool.lua"
tenants = ["acme"]
[agents.script.{MARK}-broken]
path = "broken.lua"
tenants = ["acme"]
[tools.script.{MARK}-missing]
path = "missing.lua"
tenants = ["acme"]
[tools.script.peek]
path = "peek.lua"
tenants = ["zeta"]
[agents.common]
description = "Everybody's"
system_prompt = "Be brief."
tools = ["search"]
tenants = ["*"]
"""
AGENT = f"""
agent = {{
    description = "{MARK}", tools = {{ "search", "{MARK}-tool" }},
    arguments = {{ {{ name = "{MARK}_argument", enum = {{ "{MARK}-value" }} }} }},
}}
function agent.resolve(args, config, context) return {{ system = "{MARK} " .. #context.search("{MARK}") }} end
"""
TOOL = f"""
tool = {{ description = "{MARK}", parameters = {{}} }}
function tool.execute(params, context) return {{ said = "{MARK}", found = #context.search("word") }} end
"""
# A script that lies beside the stores.
PEEK = """
tool = { parameters = { path = { type = "string" } } }
function tool.execute(params, context)
    local _, read = pcall(fs.read, params.path)
    local _, listed = pcall(fs.list, params.path)
    return { read = read, listed = listed }
end
"""
REFUSED = ("none", "wrong", "expired", "revoked", "suspended")


@dataclass(frozen=True)
class Ask:
    """One request. In `path` and `body`, NAME stands for what it is about."""

    method: str
    path: str
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()

    def about(self, name: str) -> "Ask":
        def put(value: Any) -> Any:
            return json.loads(json.dumps(value).replace("NAME", name))

        headers = tuple((key, value.replace("NAME", name)) for key, value in self.headers)
        return Ask(self.method, self.path.replace("NAME", name), put(self.body), headers)

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.body['method'] if self.path.startswith('/mcp') else ''}".strip()


def mcp(method: str, path: str = "/mcp", **params: Any) -> Ask:
    asked = modern(method, params)
    if "uri" in params:
        asked["headers"]["mcp-name"] = params["uri"]
    return Ask("POST", path, asked["json"], tuple(asked["headers"].items()))


REF = {"type": "ref/prompt", "name": "NAME"}
# About everything that the tenant has.
LISTS = (
    Ask("GET", "/tools/list"),
    Ask("GET", "/agents/list"),
    Ask("GET", "/tools/sources"),
    Ask("POST", "/tools/sources", {}),
    Ask("POST", "/tools/search", {"query": f"{MARK} word"}),
    Ask("POST", "/tools/search", {"query": "word", "source": f"filesystem:{MARK}-docs"}),
    Ask("GET", "/limits"),
    Ask("GET", "/usage"),
    mcp("tools/list"),
    mcp("prompts/list"),
    mcp("resources/list"),
    mcp("resources/templates/list"),
    mcp("server/discover"),
    mcp("tools/call", name="search", arguments={"query": f"{MARK} word"}),
    mcp("tools/call", name="sources", arguments={}),
)
# About one thing: (what to ask, the name of acme's, the name of nothing).
AGENT_NAMES = (f"{MARK}-agent", f"{MARK}-broken")
TOOL_NAMES = (f"{MARK}-tool", f"{MARK}-missing")
NAMED: tuple[tuple[Ask, tuple[str, ...]], ...] = (
    (Ask("POST", "/agents/NAME/prompt", {}), AGENT_NAMES),
    (Ask("GET", "/tools/list?agent=NAME"), AGENT_NAMES),
    (Ask("POST", "/tools/search?agent=NAME", {"query": "word"}), AGENT_NAMES),
    (Ask("GET", "/agents/NAME/versions"), AGENT_NAMES),
    (Ask("POST", "/agents/NAME/versions/1/activate", {}), AGENT_NAMES),
    (Ask("POST", "/tools/NAME", {}), TOOL_NAMES),
    (Ask("POST", "/tools/NAME?agent=common", {}), TOOL_NAMES),
    (Ask("GET", "/tools/NAME/versions"), TOOL_NAMES),
    (mcp("prompts/get", name="NAME", arguments={}), AGENT_NAMES),
    (mcp("tools/call", name="NAME", arguments={}), (*TOOL_NAMES, f"{MARK}-agent")),
    (mcp("tools/list", "/mcp?agent=NAME"), AGENT_NAMES),
    (mcp("completion/complete", ref=REF, argument={"name": f"{MARK}_argument", "value": ""}), AGENT_NAMES),
    (Ask("POST", "/tools/get", {"id": "NAME"}), ("ID",)),
    (mcp("tools/call", name="get", arguments={"id": "NAME"}), ("ID",)),
    (mcp("resources/read", uri="engine://documents/NAME"), ("ID",)),
    (mcp("resources/read", uri="engine://sources/NAME/word"), (f"filesystem%3A{MARK}-docs",)),
)


@dataclass
class Matrix:
    """A server with tenants, keys by who holds them, and the id of a document of acme's."""

    service: Service
    client: httpx2.AsyncClient
    keys: dict[str, str]
    document: str

    async def ask(self, who: str, ask: Ask) -> httpx2.Response:
        headers = {name: value for name, value in ask.headers if name != "content-type"}
        if self.keys.get(who):
            headers["authorization"] = f"Bearer {self.keys[who]}"
        content = {} if ask.body is None else {"json": ask.body}
        return await self.client.request(ask.method, ask.path, headers=headers, **content)

    def named(self, name: str) -> str:
        return self.document if name == "ID" else name

    def nothing(self, name: str) -> str:
        """A name of the same form and length, of nothing that anybody has."""
        if name == "ID":
            return "00000000-0000-5000-8000-000000000000"
        return name.replace(MARK, "nonesuch")


@pytest.fixture
async def matrix(tmp_path: Path) -> AsyncIterator[Matrix]:
    files = {"engine.toml": CONFIG, "agent.lua": AGENT, "tool.lua": TOOL, "broken.lua": "agent = (", "peek.lua": PEEK}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    loaded = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path)
    path = loaded.config.db.path
    theirs = NewDocument(source_id=f"{MARK}.md", body=f"{MARK} word", chunks=[f"{MARK} word"], digest="1", title="word")
    others = NewDocument(source_id="z.md", body="a word", chunks=["a word"], digest="2", title="word")
    async with open_store(store_path(path, "acme"), create=True) as store:
        await store.apply(Batch(source=f"filesystem:{MARK}-docs", upserts=[theirs]))
        ((hit),) = (await store.search(SearchQuery(query=MARK), EVERYTHING)).hits
    async with open_store(store_path(path, "zeta"), create=True) as store:
        await store.apply(Batch(source="filesystem:z", upserts=[others]))
    async with open_service(loaded) as service, serving(service) as running:  # type: ignore[arg-type]
        control, keys = service.control, {"none": "", "wrong": "ek_000000000000_" + "0" * 64}
        keys["operator"] = "the-operators-own-key"
        for tenant in ("acme", "zeta", "asleep"):
            await control.tenants.create(tenant, actor="cli")
        everything = ("use", "publish", "admin")
        for who, tenant, expires in (
            ("own", "acme", None), ("other", "zeta", None), ("suspended", "asleep", None), ("revoked", "acme", None),
            ("expired", "acme", time.time() - 1),
        ):  # fmt: skip
            record, keys[who] = await control.keys.create(tenant, actor="cli", scopes=everything, expires_at=expires)
            if who == "revoked":
                await control.keys.revoke(record.id, actor="cli")
        await control.tenants.set_state("asleep", "suspended", actor="cli")
        async with running.client() as client:
            yield Matrix(service, client, keys, hit.id)


def all_named() -> Iterator[tuple[Ask, str]]:
    for ask, names in NAMED:
        for name in names:
            yield ask, name


async def test_without_a_good_key_every_route_and_method_says_the_same(matrix: Matrix) -> None:
    asks = [
        *LISTS,
        *(ask.about(matrix.named(name)) for ask, name in all_named()),
        Ask("GET", "/metrics"),
        Ask("GET", "/x"),
    ]
    seen = set()
    for ask in asks:
        for who in REFUSED:
            answered = await matrix.ask(who, ask)
            assert_envelope(answered, 401, "unauthorized")
            headers = {name: value for name, value in answered.headers.items() if name not in ("date", "vary")}
            seen.add((answered.text, json.dumps(headers, sort_keys=True)))
    assert len(seen) == 1, seen


async def test_a_tenant_reaches_everything_of_its_own(matrix: Matrix) -> None:
    for ask in LISTS:
        answered = await matrix.ask("own", ask)
        assert answered.status_code == 200, (str(ask), answered.text)
    for path in ("/tools/list", "/agents/list", "/tools/sources"):
        assert MARK in (await matrix.ask("own", Ask("GET", path))).text
    for ask in (mcp("tools/list"), mcp("prompts/list"), mcp("resources/list")):
        assert MARK in (await matrix.ask("own", ask)).text
    prompt = await matrix.ask("own", Ask("POST", f"/agents/{MARK}-agent/prompt", {}))
    assert prompt.json()["system"] == f"{MARK} 1"
    tool = await matrix.ask("own", Ask("POST", f"/tools/{MARK}-tool", {}))
    assert tool.json()["result"] == {"said": MARK, "found": 1}
    document = await matrix.ask("own", Ask("POST", "/tools/get", {"id": matrix.document}))
    assert document.json()["body"] == f"{MARK} word"
    read = await matrix.ask("own", mcp("resources/read", uri=f"engine://documents/{matrix.document}"))
    assert MARK in read.text
    broken = await matrix.ask("own", Ask("POST", f"/agents/{MARK}-broken/prompt", {}))
    assert "failed to load" in assert_envelope(broken, 404, "not_found")["message"]


async def test_nothing_of_another_tenant_is_in_any_list_search_or_description(matrix: Matrix) -> None:
    for ask in LISTS:
        answered = await matrix.ask("other", ask)
        assert answered.status_code == 200, (str(ask), answered.text)
        assert MARK not in answered.text, str(ask)
        assert matrix.document not in answered.text, str(ask)
    # What it has itself is there, so that the lists above were not empty for another reason.
    assert "common" in (await matrix.ask("other", Ask("GET", "/agents/list"))).text
    found = await matrix.ask("other", Ask("POST", "/tools/search", {"query": f"{MARK} word"}))
    assert [hit["source_id"] for hit in found.json()["results"]] == ["z.md"]


async def test_what_another_tenant_has_gets_exactly_what_nothing_gets(matrix: Matrix) -> None:
    for ask, name in all_named():
        theirs, none = matrix.named(name), matrix.nothing(name)
        assert len(theirs) == len(none) or name != "ID"
        asked = await matrix.ask("other", ask.about(theirs))
        nothing = await matrix.ask("other", ask.about(none))
        assert asked.status_code == nothing.status_code, (str(ask), name, asked.text, nothing.text)
        assert asked.text.replace(theirs, none) == nothing.text, (str(ask), name)
        # What is named back is what was asked for, and nothing beside it.
        assert MARK not in asked.text.replace(theirs, "")


async def test_a_script_that_lies_beside_the_stores_reads_and_lists_none_of_them(matrix: Matrix) -> None:
    for path, said in (
        ("data/tenants", "data/tenants' is a folder of the engine's own, which no script may read"),
        ("data/tenants/acme.sqlite", "data/tenants' is a folder of the engine's own, which no script may read"),
        ("data/tenants/zeta.sqlite", "data/tenants' is a folder of the engine's own, which no script may read"),
        ("data/tenants/none.sqlite", "data/tenants' is a folder of the engine's own, which no script may read"),
        ("data/engine.sqlite", "data/engine.sqlite' is a file of the engine's own, which no script may read"),
    ):
        found = (await matrix.ask("other", Ask("POST", "/tools/peek", {"path": path}))).json()["result"]
        shown = found["listed"] if path == "data/tenants" else found["read"]
        assert shown.endswith(said), (path, found)
        assert isinstance(found["listed"], str)
    assert (await matrix.ask("other", Ask("POST", "/tools/peek", {"path": "tool.lua"}))).json()["result"][
        "read"
    ] == TOOL


async def test_the_operators_key_speaks_for_a_tenant_and_sees_that_ones_things_alone(matrix: Matrix) -> None:
    acme = await matrix.ask("operator", Ask("GET", "/agents/list?tenant=acme"))
    assert MARK in acme.text
    zeta = await matrix.ask("operator", Ask("GET", "/agents/list?tenant=zeta"))
    assert MARK not in zeta.text
    # For anybody else the parameter means nothing.
    assert MARK not in (await matrix.ask("other", Ask("GET", "/agents/list?tenant=acme"))).text


async def test_metrics_name_no_tenant_and_nothing_of_one(matrix: Matrix) -> None:
    await matrix.ask("own", Ask("POST", f"/agents/{MARK}-agent/prompt", {}))
    metrics = await matrix.ask("operator", Ask("GET", "/metrics"))
    assert metrics.status_code == 200
    for word in (MARK, "acme", "zeta"):
        assert word not in metrics.text
    assert_envelope(await matrix.ask("own", Ask("GET", "/metrics")), 403, "forbidden")


async def test_a_deleted_tenants_documents_and_agents_are_gone_for_its_keys_and_for_a_new_tenant_of_the_name(
    matrix: Matrix,
) -> None:
    assert "acme" in (await matrix.ask("operator", Ask("GET", "/admin/tenants"))).text
    gone = await matrix.ask("operator", Ask("DELETE", "/admin/tenants/acme"))
    assert gone.status_code == 200, gone.text
    assert_envelope(await matrix.ask("own", Ask("GET", "/agents/list")), 401, "unauthorized")
    await matrix.service.control.tenants.create("acme", actor="cli")
    _, matrix.keys["new"] = await matrix.service.control.keys.create("acme", actor="cli", scopes=("use",))
    found = await matrix.ask("new", Ask("POST", "/tools/search", {"query": MARK}))
    assert found.json()["results"] == []
    sources = (await matrix.ask("new", Ask("GET", "/tools/sources"))).json()["sources"]
    assert [(source["source"], source["document_count"]) for source in sources] == [(f"filesystem:{MARK}-docs", 0)]


async def test_documents_count_against_what_a_tenant_may_publish(matrix: Matrix) -> None:
    package = {"version": "1", "kind": "toml", "main": "a.toml", "files": {"a.toml": "x"}}
    stored = await matrix.service.stores.stored_bytes("acme")
    assert stored > 10_000
    put = Ask("PUT", "/agents/fresh", package)
    await matrix.service.control.tenants.change("acme", actor="cli", quotas={"stored_bytes": stored})
    refused = assert_envelope(await matrix.ask("own", _toml(put)), 429, "quota_exceeded")
    assert (refused["limit"]["name"], refused["limit"]["bound"]) == ("stored_bytes", stored)
    assert refused["limit"]["used"] > stored
    await matrix.service.control.tenants.change("acme", actor="cli", quotas={"stored_bytes": stored + 10_000})
    assert (await matrix.ask("own", _toml(put))).status_code == 201


def _toml(put: Ask) -> Ask:
    text = 'description = "Fresh"\nsystem_prompt = "Be fresh."\n'
    return Ask(put.method, put.path, {**put.body, "files": {"a.toml": text}})

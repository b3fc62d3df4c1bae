"""Publishing over REST, with keys and without, on the real thing; and what a power cut leaves."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
import warm_start
from mcp_support import modern
from server_support import assert_envelope, serving

from agents.service import Service, open_service
from engine.config import load_config

CONFIG = """
[db]
path = "data/engine.sqlite"
[sandbox]
workers = 2
reserve = 0
"""
WITH_KEYS = """
[tenants]
enabled = true
operator_key = "the-operators-own-key"
"""
LUA = """
agent = { description = "Says %s", tools = {"search"} }
function agent.resolve(args, config, context) return { system = "%s" } end
"""
ROOT = Path(__file__).resolve().parents[2]
OPERATOR = {"authorization": "Bearer the-operators-own-key"}


def package(says: str, version: str, **more: Any) -> dict[str, Any]:
    return {"version": version, "kind": "lua", "main": "a.lua", "files": {"a.lua": LUA % (says, says)}, **more}


@dataclass
class Tenants:
    """A server that asks for keys, and the keys of a tenant by their scopes."""

    service: Service
    client: httpx2.AsyncClient
    keys: dict[str, dict[str, str]]

    async def put(self, who: str, says: str, version: str, name: str = "helper", **more: Any) -> httpx2.Response:
        return await self.client.put(f"/agents/{name}", json=package(says, version, **more), headers=self.keys[who])

    async def post(self, who: str, action: str, version: str, name: str = "helper") -> httpx2.Response:
        path = f"/agents/{name}/versions/{version}/{action}"
        return await self.client.post(path, headers=self.keys[who])

    async def says(self, who: str = "use", name: str = "helper") -> Any:
        answer = await self.client.post(f"/agents/{name}/prompt", json={}, headers=self.keys[who])
        return answer.json()["system"] if answer.status_code == 200 else answer.status_code


@pytest.fixture
async def tenants(tmp_path: Path) -> AsyncIterator[Tenants]:
    (tmp_path / "engine.toml").write_text(CONFIG + WITH_KEYS)
    loaded = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path)
    async with open_service(loaded) as service, serving(service) as running:  # type: ignore[arg-type]
        keys = {"operator": OPERATOR}
        for tenant in ("acme", "other"):
            await service.control.tenants.create(tenant, actor="cli")
        for who, tenant, scopes in (
            ("use", "acme", ("use",)),
            ("publish", "acme", ("publish",)),
            ("admin", "acme", ("admin",)),
            ("other", "other", ("use", "publish", "admin")),
        ):
            _, key = await service.control.keys.create(tenant, actor="cli", scopes=scopes)
            keys[who] = {"x-api-key": key}
        async with running.client() as client:
            yield Tenants(service, client, keys)


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a server without keys."""
    (tmp_path / "engine.toml").write_text(CONFIG)
    loaded = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path)
    async with (
        open_service(loaded) as service,
        serving(service) as running,  # type: ignore[arg-type]
        running.client() as client,
    ):
        yield client


async def test_an_upload_is_answered_by_what_became_of_it(tenants: Tenants) -> None:
    created = await tenants.put("publish", "one", "1")
    assert created.status_code == 201
    body = created.json()
    assert (body["name"], body["version"], body["active"], body["asks"]) == ("helper", "1", True, {})
    assert re.fullmatch("[0-9a-f]{64}", body["digest"])
    assert body["published_by"].startswith("key:")
    assert await tenants.says() == "one"

    again = await tenants.put("publish", "one", "1")
    assert again.status_code == 200
    assert again.json()["digest"] == body["digest"]
    assert_envelope(await tenants.put("publish", "other", "1"), 409, "conflict")

    waits = await tenants.put("publish", "two", "2", grants={"hosts": ["api.example.com"], "tools": ["t"]})
    assert waits.status_code == 202
    assert (waits.json()["active"], waits.json()["asks"]) == (False, {"hosts": ["api.example.com"], "tools": ["t"]})
    assert await tenants.says() == "one"

    assert_envelope(await tenants.post("publish", "activate", "2"), 409, "conflict")
    approved = await tenants.post("admin", "approve", "2")
    assert (approved.status_code, approved.json()["active"]) == (200, True)
    assert await tenants.says() == "two"

    back = await tenants.post("publish", "activate", "1")
    assert (back.status_code, back.json()["active"]) == (200, True)
    assert await tenants.says() == "one"

    listed = await tenants.client.get("/agents/helper/versions", headers=tenants.keys["publish"])
    assert [(each["version"], each["active"], each["approved"]) for each in listed.json()["versions"]] == [
        ("2", False, True),
        ("1", True, True),
    ]
    gone = await tenants.post("publish", "deprecate", "1")
    assert (gone.json()["active"], gone.json()["deprecated"]) == (False, True)
    assert await tenants.says() == 404


async def test_each_action_takes_its_scope(tenants: Tenants) -> None:
    assert_envelope(await tenants.put("use", "one", "1"), 403, "forbidden")
    assert_envelope(await tenants.put("admin", "one", "1"), 403, "forbidden")
    await tenants.put("publish", "one", "1", grants={"secrets": ["TOKEN"]})
    assert_envelope(await tenants.post("publish", "approve", "1"), 403, "forbidden")
    for action in ("activate", "approve", "deprecate"):
        assert_envelope(await tenants.post("use", action, "1"), 403, "forbidden")
    for who, status in (("use", 403), ("publish", 200), ("admin", 200)):
        listed = await tenants.client.get("/agents/helper/versions", headers=tenants.keys[who])
        assert listed.status_code == status
    assert_envelope(await tenants.client.put("/agents/helper", json=package("x", "1")), 401, "unauthorized")


async def test_another_tenants_agent_is_answered_like_one_that_does_not_exist(tenants: Tenants) -> None:
    await tenants.put("publish", "one", "1")
    for path in ("/agents/{}/versions", "/agents/{}/versions/1/activate", "/agents/{}/prompt"):
        answers = []
        for name in ("helper", "nobody"):
            method = "GET" if path.endswith("versions") else "POST"
            answer = await tenants.client.request(method, path.format(name), headers=tenants.keys["other"])
            answers.append(answer.text.replace(name, "NAME"))
            assert answer.status_code == 404
        assert answers[0] == answers[1]
    # The name is still free for the other tenant, and both are called as their own.
    assert (await tenants.put("other", "theirs", "1")).status_code == 201
    assert (await tenants.says(), await tenants.says("other")) == ("one", "theirs")
    assert_envelope(await tenants.post("other", "approve", "2"), 404, "not_found")


async def test_the_operator_approves_for_a_tenant_what_it_may_not_grant_itself(tenants: Tenants) -> None:
    await tenants.put("publish", "one", "1", grants={"hosts": ["10.0.0.5"], "env": ["HOME"]})
    error = assert_envelope(await tenants.post("admin", "approve", "1"), 403, "forbidden")
    assert "10.0.0.5" in error["message"]
    path = "/agents/helper/versions/1/approve"
    assert_envelope(await tenants.client.post(path, headers=OPERATOR), 404, "not_found")
    approved = await tenants.client.post(f"{path}?tenant=acme", headers=OPERATOR)
    assert (approved.status_code, approved.json()["approved_by"]) == (200, "operator")
    assert await tenants.says() == "one"


async def test_what_was_done_is_in_the_audit_log_without_any_content(tenants: Tenants) -> None:
    await tenants.put("publish", "one", "1", config={"note": "a very private note"})
    await tenants.put("publish", "two", "1")
    await tenants.post("publish", "deprecate", "1")
    rows = [row for row in await tenants.service.control.audit.last(tenant="acme") if row.action.startswith("agent.")]
    assert [(row.action, row.target, row.outcome) for row in rows] == [
        ("agent.publish", "helper 1", "ok"),
        ("agent.publish", "helper 1", "conflict"),
        ("agent.deprecate", "helper 1", "ok"),
    ]
    assert "private note" not in str(rows)


async def test_mcp_clients_see_and_call_what_their_tenant_published(tenants: Tenants) -> None:
    async def prompts(who: str) -> list[str]:
        asked = modern("prompts/list", None, **tenants.keys[who])
        answer = await tenants.client.post("/mcp", **asked)
        return [prompt["name"] for prompt in answer.json()["result"]["prompts"]]

    await tenants.put("publish", "one", "1")
    assert await prompts("use") == ["helper"]
    assert await prompts("other") == []
    got = await tenants.client.post("/mcp", **modern("prompts/get", {"name": "helper"}, **tenants.keys["use"]))
    assert "one" in json.dumps(got.json()["result"]["messages"])


async def test_published_tools_have_the_same_routes(tenants: Tenants) -> None:
    source = "tool = { parameters = {{name = 'a', type = 'integer'}} } function tool.execute(p) return p.a + 1 end"
    body = {"version": "1", "main": "t.lua", "files": {"t.lua": source}}
    put = await tenants.client.put("/tools/adder", json=body, headers=tenants.keys["publish"])
    assert put.status_code == 201
    called = await tenants.client.post("/tools/adder", json={"a": 1}, headers=tenants.keys["use"])
    assert called.json() == {"result": 2}
    assert_envelope(
        await tenants.client.post("/tools/adder", json={"a": 1}, headers=tenants.keys["other"]), 404, "not_found"
    )
    for action in ("activate", "approve", "deprecate"):
        path = f"/tools/adder/versions/1/{action}"
        who = "admin" if action == "approve" else "publish"
        assert (await tenants.client.post(path, headers=tenants.keys[who])).status_code == 200
    listed = await tenants.client.get("/tools/adder/versions", headers=tenants.keys["admin"])
    assert listed.json()["versions"][0]["deprecated"] is True
    clash = await tenants.client.put("/tools/search", json=body, headers=tenants.keys["publish"])
    assert_envelope(clash, 409, "conflict")


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "bad_request"),
        (b"[]", "application/json", 400, "bad_request"),
        (b'{"version": "1", "version": "2"}', "application/json", 400, "bad_request"),
        (b'{"version": "1"}', "application/json", 400, "bad_request"),
        (b'{"version": "1"}', "text/plain", 415, "unsupported_media_type"),
        (b"", "application/json", 400, "bad_request"),
        (b'{"version": "\\ud800"}', "application/json", 400, "bad_request"),
    ],
)
async def test_a_body_that_is_no_package_is_refused_in_the_envelope(
    content: bytes, kind: str, status: int, code: str, alone: httpx2.AsyncClient
) -> None:
    answer = await alone.put("/agents/helper", content=content, headers={"content-type": kind})
    assert_envelope(answer, status, code)


async def test_names_that_are_tricks_reach_nothing(alone: httpx2.AsyncClient) -> None:
    for name in ("%2e%2e", "a%2Fb", "a%00b", "%EF%BC%A8elper", "x" * 65, "a%20b"):
        answer = await alone.put(f"/agents/{name}", json=package("one", "1"))
        assert answer.status_code in (400, 404), name
        assert set(answer.json()) == {"error"}
    assert_envelope(await alone.get("/agents/helper"), 405, "method_not_allowed")
    put = await alone.put("/agents/list", json=package("one", "1"))
    assert put.status_code == 201
    assert (await alone.get("/agents/list")).json()["agents"][0]["name"] == "list"


async def test_a_change_takes_no_body(alone: httpx2.AsyncClient) -> None:
    await alone.put("/agents/helper", json=package("one", "1"))
    answer = await alone.post("/agents/helper/versions/1/activate", json={"version": "2"})
    assert_envelope(answer, 400, "bad_request")
    assert (await alone.post("/agents/helper/versions/1/activate", json={})).status_code == 200


async def test_without_keys_every_client_on_this_machine_publishes(alone: httpx2.AsyncClient) -> None:
    put = await alone.put("/agents/helper", json=package("one", "1", grants={"env": ["HOME"]}))
    assert put.status_code == 202
    approved = await alone.post("/agents/helper/versions/1/approve")
    assert approved.status_code == 200
    assert (await alone.post("/agents/helper/prompt", json={})).json()["system"] == "one"
    proxied = await alone.put("/agents/helper", json=package("two", "2"), headers={"x-forwarded-for": "203.0.113.7"})
    assert_envelope(proxied, 403, "forbidden")
    page = await alone.put("/agents/helper", json=package("two", "2"), headers={"origin": "https://evil.example"})
    assert_envelope(page, 403, "forbidden")


async def test_what_a_tenant_has_published_is_not_read_before_subscribed_asks_for_it(tenants: Tenants) -> None:
    await tenants.put("publish", "one", "1")
    loaded = tenants.service.loaded
    async with open_service(loaded) as service:
        assert service.registry.agents("acme") == []
        async with service.published(await service.control.tenants.for_runs("acme")):
            assert [agent.info.name for agent in service.registry.agents("acme")] == ["helper"]


# ---- a power cut ----------------------------------------------------------------------------------------------------


@contextmanager
def started(folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """A server in a process of its own, gone with the block."""
    command = ["serve", "--bind", "127.0.0.1:0", "--config", str(folder / "engine.toml")]
    with warm_start.Popen(
        [sys.executable, "-m", "cli.main", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "ENGINE_LOG": "critical"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@asynccontextmanager
async def client_of(process: "subprocess.Popen[str]") -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a server that is just starting."""

    def url() -> str:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"listening on (http://\S+)", line):
                return found[1]
        raise AssertionError("the server did not start")

    async with httpx2.AsyncClient(base_url=await trio.to_thread.run_sync(url), timeout=30) as client:
        yield client


def numbered(version: int) -> dict[str, Any]:
    """A version whose script and file say which one it is."""
    reads = "agent = {} function agent.resolve() return { system = '%s' .. fs.read('x.md') } end"
    return package("", str(version)) | {"files": {"a.lua": reads % version, "x.md": str(version)}}


async def upload_until_it_is_gone(client: httpx2.AsyncClient, first: int, enough: trio.Event) -> tuple[int, int]:
    """Upload version after version, until the server dies; the last one that was answered, and the last one sent."""
    version = first
    while True:
        try:
            answer = await client.put("/agents/helper", json=numbered(version))
        except httpx2.HTTPError:
            return version - 1, version
        assert answer.status_code == 201, answer.text
        if version == first + 2:
            enough.set()
        version += 1


async def newest_of(client: httpx2.AsyncClient) -> int:
    """The newest version that is there, which is the active one, and whole."""
    found = (await client.get("/agents/helper/versions")).json()["versions"]
    newest = max(int(each["version"]) for each in found)
    assert [each["version"] for each in found if each["active"]] == [str(newest)]
    assert (await client.post("/agents/helper/prompt", json={})).json()["system"] == f"{newest}{newest}"
    return newest


async def kill(process: "subprocess.Popen[str]", when: trio.Event, later: float) -> None:
    await when.wait()
    await trio.sleep(later)
    process.send_signal(signal.SIGKILL)


async def test_a_server_that_is_killed_while_it_publishes_comes_back_with_whole_versions(tmp_path: Path) -> None:
    """What was answered is there, what is there is whole, and the next upload works."""
    (tmp_path / "engine.toml").write_text(CONFIG.replace('"data', f'"{tmp_path}/data'))
    answered = sent = 0
    for cut in range(2):
        with started(tmp_path) as process:
            async with client_of(process) as client, trio.open_nursery() as nursery:
                if sent:
                    sent = await newest_of(client)
                    assert answered <= sent
                enough = trio.Event()
                nursery.start_soon(kill, process, enough, 0.004 * cut)  # another moment of an upload each time
                answered, sent = await upload_until_it_is_gone(client, sent + 1, enough)
    with started(tmp_path) as process:
        async with client_of(process) as client:
            assert answered <= await newest_of(client) <= sent
            assert (await client.put("/agents/helper", json=numbered(10_000))).status_code == 201
            assert await newest_of(client) == 10_000
            process.terminate()
            assert await trio.to_thread.run_sync(process.wait) == 0

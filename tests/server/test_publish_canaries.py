"""Canaries over REST and MCP with many keys: what is asked for, what is listed, who gets which version, who pays."""

import csv
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from mcp_support import handshake, message, modern
from server_support import assert_envelope, serving
from test_publish import CONFIG, OPERATOR, WITH_KEYS

from agents.service import Service, open_service
from control.versions.share import is_served
from engine.config import load_config

LUA = """
agent = { description = "v%s", tools = {"search"}, arguments = {{name = "a%s"}} }
function agent.resolve() return { system = "v%s" } end
"""
TOOL = """
tool = { description = "v%s", parameters = {{name = "a%s"}} }
function tool.execute() log.info("here") return "v%s" end
"""
DENIED = TOOL.replace("log.info", "pcall(http.get, 'https://a.example.com') log.info")
KEYS = 12


@dataclass
class Shared:
    """A server with a tenant that has many keys, and two versions of an agent and of a tool: 1 is active, 2 is not."""

    service: Service
    client: httpx2.AsyncClient
    publisher: dict[str, str]
    keys: dict[str, dict[str, str]]

    async def put(self, version: str, kind: str = "agents", percent: str = "") -> httpx2.Response:
        source = (LUA if kind == "agents" else DENIED) % (version, version, version)
        body = {"version": version, "main": "a.lua", "files": {"a.lua": source}}
        return await self.client.put(f"/{kind}/thing{percent}", json=body, headers=self.publisher)

    async def act(self, version: str, body: Any, kind: str = "agents", action: str = "activate") -> httpx2.Response:
        path = f"/{kind}/thing/versions/{version}/{action}"
        return await self.client.post(path, json=body, headers=self.publisher)

    def expected(self, percent: int, version: str = "2") -> dict[str, str]:
        return {key: f"v{2 if is_served('acme', 'thing', version, key, percent) else 1}" for key in self.keys}


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[Shared]:
    (tmp_path / "engine.toml").write_text(CONFIG + WITH_KEYS)
    loaded = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path)
    async with open_service(loaded) as service, serving(service) as running:  # type: ignore[arg-type]
        await service.control.tenants.create("acme", actor="cli", quotas={"requests_per_second": 1000, "burst": 1000})
        _, publisher = await service.control.keys.create("acme", actor="cli", scopes=["use", "publish", "admin"])
        made = [await service.control.keys.create("acme", actor="cli", scopes=["use"]) for _ in range(KEYS)]
        async with running.client() as client:
            keys = {record.id: {"x-api-key": key} for record, key in made}
            found = Shared(service, client, {"x-api-key": publisher}, keys)
            for kind in ("agents", "tools"):
                for version in ("2", "1"):
                    assert (await found.put(version, kind)).status_code == 201
            yield found


async def test_rest_and_both_eras_of_mcp_give_a_caller_the_same_version_in_lists_and_calls(shared: Shared) -> None:
    for kind in ("agents", "tools"):
        answer = await shared.act("2", {"percent": 50}, kind)
        assert (answer.status_code, answer.json()["active"], answer.json()["percent"]) == (200, False, 50)
    expected = shared.expected(50)
    assert set(expected.values()) == {"v1", "v2"}, "made of random ids, one time in two thousand all are on one side"
    for key, headers in shared.keys.items():
        client, version = shared.client, expected[key]

        async def rpc(method: str, era: Any = modern, _headers: dict[str, str] = headers, **params: Any) -> Any:
            asked = era(method, params)
            asked["headers"] |= _headers
            return message(await shared.client.post("/mcp", **asked))["result"]

        prompt = await client.post("/agents/thing/prompt", json={}, headers=headers)
        assert prompt.json()["system"] == version
        called = await client.post("/tools/thing", json={}, headers=headers)
        assert called.json() == {"result": version}
        agents = (await client.get("/agents/list", headers=headers)).json()["agents"]
        tools = (await client.get("/tools/list", headers=headers)).json()["tools"]
        assert [each["description"] for each in [*agents, *tools] if each["name"] == "thing"] == [version, version]
        described = (await client.get("/openapi.json", headers=headers)).json()["paths"]
        assert described["/tools/thing"]["post"]["description"] == version
        for era in (modern, handshake):
            listed = (await rpc("prompts/list", era))["prompts"]
            assert [each["description"] for each in listed] == [version]
            listed = (await rpc("tools/list", era))["tools"]
            assert [each["description"] for each in listed if each["name"] == "thing"] == [version]
            got = await rpc("prompts/get", era, name="thing")
            assert version in json.dumps(got["messages"])
            called = await rpc("tools/call", era, name="thing", arguments={})
            assert called["content"][0]["text"] == f'"{version}"' or called["content"][0]["text"] == version


WRONG = (0, 101, -1, 1.5, True, False, "50", None, [50], {"percent": 50}, 1e30, 10**30)


@pytest.mark.parametrize("action", ["activate", "approve"])
async def test_any_other_percent_is_a_400_that_names_the_bounds(action: str, shared: Shared) -> None:
    for percent in WRONG:
        answer = await shared.act("2", {"percent": percent}, action=action)
        assert_envelope(answer, 400, "bad_request")
        assert "percent must be a whole number from 1 to 100" in answer.json()["error"]["message"], percent
        listed = await shared.client.get("/agents/thing/versions", headers=shared.publisher)
        percents = {each["version"]: each["percent"] for each in listed.json()["versions"]}
        assert percents == {"1": 100, "2": 0}, percent


async def test_a_change_takes_percent_alone_and_a_deprecation_not_even_that(shared: Shared) -> None:
    assert_envelope(await shared.act("2", {"percent": 50, "version": "1"}), 400, "bad_request")
    assert_envelope(await shared.act("2", {"percent": 50}, action="deprecate"), 400, "bad_request")
    in_query = await shared.client.post("/agents/thing/versions/2/activate?percent=50", headers=shared.publisher)
    assert_envelope(in_query, 400, "bad_request")
    assert_envelope(await shared.act("1", {"percent": 50}), 409, "conflict")
    assert_envelope(await shared.act("9", {"percent": 50}), 404, "not_found")
    assert (await shared.act("2", {"percent": 50.0})).json()["percent"] == 50
    whole = await shared.act("2", {"percent": 100})
    assert (whole.json()["active"], whole.json()["percent"]) == (True, 100)


async def test_an_upload_may_begin_as_a_canary(shared: Shared) -> None:
    for wrong in ("0", "101", "1.5", "x", "", "%2B5", "٥", "1" * 100):
        answer = await shared.put("3", percent=f"?percent={wrong}")
        assert_envelope(answer, 400, "bad_request")
        assert "from 1 to 100" in answer.json()["error"]["message"]
    put = await shared.put("3", percent="?percent=20")
    assert (put.status_code, put.json()["active"], put.json()["percent"]) == (201, False, 20)
    assert (await shared.put("3", percent="?percent=90")).json()["percent"] == 20, "the same content changes nothing"
    body = {"version": "1", "main": "a.lua", "files": {"a.lua": LUA % (1, 1, 1)}}
    alone = await shared.client.put("/agents/alone?percent=20", json=body, headers=shared.publisher)
    assert_envelope(alone, 409, "conflict")
    missing = await shared.client.get("/agents/alone/versions", headers=shared.publisher)
    assert_envelope(missing, 404, "not_found")


async def test_usage_audit_log_and_denied_calls_name_the_version(shared: Shared) -> None:
    await shared.act("2", {"percent": 50}, "tools")
    expected = list(shared.expected(50).values())
    for headers in shared.keys.values():
        await shared.client.post("/tools/thing", json={}, headers=headers)
    usage = (await shared.client.get("/usage", headers=shared.publisher)).json()
    versions = {row["version"]: row["runs"] for row in usage["by_version"]}
    assert versions == {"tool:thing@1": expected.count("v1"), "tool:thing@2": expected.count("v2")}
    table = (await shared.client.get("/usage?format=csv", headers=shared.publisher)).text.splitlines()
    assert "version" in table[0].split(",")
    assert {row["version"] for row in csv.DictReader(table) if "tool:thing" in row.values()} == {"", "1", "2"}
    await shared.act("1", {}, "tools")
    rows = (await shared.client.get("/audit?limit=1000", headers=shared.publisher)).json()["audit"]
    changes = [(row["action"], row["target"]) for row in rows if row["action"] == "tool.activate"]
    assert changes == [("tool.activate", "thing 2 50%"), ("tool.activate", "thing 1")]
    denied: set[str] = set()
    with trio.fail_after(20):
        while denied != {"script:thing@1", "script:thing@2"}:  # they are written some time later
            rows = (await shared.client.get("/audit?limit=1000", headers=shared.publisher)).json()["audit"]
            denied = {row["actor"] for row in rows if row["outcome"] == "denied"}
            await trio.sleep(0.05)


async def test_an_operator_gets_one_version_for_a_tenant(shared: Shared) -> None:
    await shared.act("2", {"percent": 50})
    expected = "v2" if is_served("acme", "thing", "2", "", 50) else "v1"
    for _ in range(3):
        answer = await shared.client.post("/agents/thing/prompt?tenant=acme", json={}, headers=OPERATOR)
        assert answer.json()["system"] == expected

"""Keys, tenants and the audit log with a whole engine behind them: real workers, real scripts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest
import trio
from server_support import assert_envelope

from agents.service import Service, open_service
from engine.config import LoadedConfig, parse_config
from server.app import listen, open_app, serve_app

CONFIG = """
[tenants]
enabled = true
operator_key = "the-operator"
secrets_key = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="
[tools.script.reach]
path = "reach.lua"
tenants = ["*"]
[tools.script.house]
path = "reach.lua"
"""
REACH = """
tool = { description = "Tries what it may not" }
function tool.execute()
    local asked, why = pcall(http.get, "http://10.0.0.1/secret-path")
    local read = pcall(fs.read, "../../etc/passwd")
    local called = pcall(context and context.call_tool or error, "search", { query = "x" })
    return { asked = asked, read = read, called = called, why = tostring(why) }
end
"""


@asynccontextmanager
async def open_all(folder: Path) -> AsyncIterator[tuple[Service, str]]:
    config, _ = parse_config(CONFIG, environ={}, cwd=folder)
    async with (
        open_service(LoadedConfig(config, None, folder)) as service,
        await listen("127.0.0.1", 0) as listener,
        open_app(service, config.server, "127.0.0.1") as app,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(partial(serve_app, app, listener, trio.Event(), graceful_timeout_s=0))
        yield service, f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.fixture
async def whole(tmp_path: Path) -> AsyncIterator[tuple[Service, str]]:
    (tmp_path / "reach.lua").write_text(REACH)
    async with open_all(tmp_path) as found:
        yield found


async def test_a_tenant_calls_what_is_offered_to_it_and_what_its_scripts_are_denied_is_in_the_audit_log(
    whole: tuple[Service, str],
) -> None:
    _, url = whole
    async with httpx2.AsyncClient(base_url=url, timeout=30, headers={"x-api-key": "the-operator"}) as operator:
        assert (await operator.post("/admin/tenants", json={"name": "acme"})).status_code == 201
        made = (await operator.post("/admin/tenants/acme/keys", json={})).json()
        async with httpx2.AsyncClient(base_url=url, timeout=30, headers={"x-api-key": made["key"]}) as client:
            listed = [tool["name"] for tool in (await client.get("/tools/list")).json()["tools"]]
            assert "reach" in listed
            assert "house" not in listed
            unknown = assert_envelope(await client.post("/tools/nothing", json={}), 404, "not_found")
            others = assert_envelope(await client.post("/tools/house", json={}), 404, "not_found")
            assert others["message"] == unknown["message"].replace("nothing", "house")
            answer = await client.post("/tools/reach", json={})
            assert answer.status_code == 200, answer.text
            assert answer.json()["result"]["asked"] is False
            assert answer.json()["result"]["read"] is False
        rows = []
        with trio.fail_after(20):
            while len(rows) < 2:
                await trio.sleep(0.05)
                audit = await operator.get("/admin/audit?tenant=acme")
                rows = [row for row in audit.json()["audit"] if row["action"] == "call"]
        assert {(row["actor"], row["target"], row["outcome"]) for row in rows} >= {
            ("script:reach", "http.get", "denied"),
            ("script:reach", "fs.read", "denied"),
        }
        assert "secret-path" not in audit.text
        assert "10.0.0.1" not in audit.text
        usage = (await operator.get("/usage?tenant=acme")).json()
        assert usage["total"]["runs"] == 1
        proof = (await operator.delete("/admin/tenants/acme")).json()
        assert set(proof["left"].values()) == {0}
        async with httpx2.AsyncClient(base_url=url, timeout=30, headers={"x-api-key": made["key"]}) as client:
            assert_envelope(await client.post("/tools/reach", json={}), 401, "unauthorized")
        assert (await operator.post("/tools/house", json={})).status_code == 200

"""Tokens at the whole engine: a configuration file, workers, published agents, usage and the audit log."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from oauth_support import RESOURCE, FakeIssuer, claims, fake_issuer, signed
from server_support import Running, assert_envelope, serving

from agents.service import Service, open_service
from engine.config import load_config

CONFIG = """
[db]
path = "data/engine.sqlite"
[sandbox]
workers = 1
reserve = 0
[tenants]
enabled = true
secrets_key = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="
[tenants.quota]
requests_per_second = 1
burst = 12
[tenants.oauth]
resource = "RESOURCE"
[tenants.oauth.issuers.sso]
issuer = "ISSUER"
tenant_claim = "org_id"
tenants = { org-1 = "acme", org-2 = "other" }
allow_hosts = ["HOST"]
"""
LUA = 'agent = {}\nfunction agent.resolve(args, config, context) return { system = "It is " .. config.word } end'
PACKAGE = {"version": "1.0.0", "kind": "lua", "main": "a.lua", "files": {"a.lua": LUA}, "config": {"word": "mine"}}


@pytest.fixture
async def issuer() -> AsyncIterator[FakeIssuer]:
    async with fake_issuer() as found:
        yield found


@pytest.fixture
async def whole(tmp_path: Path, issuer: FakeIssuer) -> AsyncIterator[tuple[Service, Running]]:
    host = issuer.url.removeprefix("http://")
    text = CONFIG.replace("RESOURCE", RESOURCE).replace("ISSUER", issuer.url).replace("HOST", host)
    (tmp_path / "engine.toml").write_text(text)
    loaded = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path)
    async with open_service(loaded) as service, serving(service) as running:  # type: ignore[arg-type]
        for tenant in ("acme", "other"):
            await service.control.tenants.create(tenant, actor="cli")
        yield service, running


async def test_a_user_publishes_and_calls_for_the_tenant_and_both_logs_name_the_user(
    whole: tuple[Service, Running], issuer: FakeIssuer
) -> None:
    service, running = whole

    def headers(scope: str, **more: Any) -> dict[str, str]:
        return {"authorization": f"Bearer {signed(claims(iss=issuer.url, scope=scope, **more))}"}

    author, caller = headers("engine:publish", sub="author"), headers("engine:use", sub="auth0|caller")
    stranger = headers("engine:use engine:publish", org_id="org-2")
    async with running.client() as client:
        uploaded = await client.put("/agents/helper", json=PACKAGE, headers=author)
        assert uploaded.status_code in (200, 201), uploaded.text
        await client.post("/agents/helper/versions/1.0.0/activate", headers=author)
        refused = await client.post("/agents/helper/prompt", json={}, headers=author)
        assert_envelope(refused, 403, "forbidden")
        answer = await client.post("/agents/helper/prompt", json={}, headers=caller)
        assert answer.json()["system"] == "It is mine"
        assert_envelope(await client.post("/agents/helper/prompt", json={}, headers=stranger), 404, "not_found")
        usage = (await client.get("/usage", headers=caller)).json()
        assert "oauth:sso:auth0|caller" in str(usage)
        audit = await service.control.audit.last(tenant="acme")
        assert {row.actor for row in audit if row.action.startswith("agent.")} == {"oauth:sso:author"}
        # The quota is the tenant's, with any key; the other tenant has its own.
        statuses = {(await client.get("/agents/list", headers=caller)).status_code for _ in range(20)}
        assert statuses == {200, 429}
        assert (await client.get("/agents/list", headers=author)).status_code == 429
        assert (await client.get("/agents/list", headers=stranger)).status_code == 200

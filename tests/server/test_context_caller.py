"""`context.caller` over REST and MCP: a key by its id and its name in the audit log, a token by its subject."""

import json
from pathlib import Path
from typing import Any

import pytest
from mcp_support import modern
from server_support import Running, serving

from agents.agent import Call
from agents.service import open_service
from engine.config import load_config
from engine.errors import Problem
from engine.tenant import DEFAULT_TENANT, Tenant

CONFIG = """
[db]
path = "data/engine.sqlite"
[sandbox]
workers = 2
reserve = 0
[agents.script.who]
path = "who.lua"
tenants = ["*"]
[tools.script.inner]
path = "inner.lua"
tenants = ["*"]
"""
KEYS = """
[tenants]
enabled = true
operator_key = "the-operators-own-key"
"""
WHO = """
agent = { tools = { "inner" } }
function agent.resolve(args, config, context)
    return { system = json.encode({ context.caller, context.tools.inner() }) }
end
"""
INNER = """
tool = {}
function tool.execute(params, context) return context.caller end
"""


def project(folder: Path, text: str) -> Any:
    (folder / "who.lua").write_text(WHO)
    (folder / "inner.lua").write_text(INNER)
    (folder / "engine.toml").write_text(text)
    return load_config(folder / "engine.toml", environ={}, cwd=folder)


def seen(prompt: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(prompt)
    return found


async def test_two_keys_are_two_callers_over_rest_and_mcp(tmp_path: Path) -> None:
    loaded = project(tmp_path, CONFIG + KEYS)
    async with open_service(loaded) as service, serving(service) as running:  # type: ignore[arg-type]
        await service.control.tenants.create("acme", actor="cli")
        runs = set()
        for tenant in ("acme", "acme", "default"):
            record, key = await service.control.keys.create(tenant, actor="cli")
            shown = {"id": record.id, "name": f"key:{record.id}"}
            for outer, inner in (await over_rest(running, key), await over_mcp(running, key)):
                runs |= {outer.pop("run_id"), inner.pop("run_id")}
                assert outer == {"tenant": tenant, "agent": "who", "key": shown}
                assert inner == {"tenant": tenant, "agent": "inner", "key": shown}
                assert key not in json.dumps([outer, inner])
        assert len(runs) == 12
        outer, inner = await over_rest(running, "the-operators-own-key")
        assert "key" not in outer
        assert "key" not in inner


async def over_rest(running: Running, key: str) -> list[dict[str, Any]]:
    async with running.client() as client:
        answer = await client.post("/agents/who/prompt", json={}, headers={"x-api-key": key})
    assert answer.status_code == 200, answer.text
    return seen(answer.json()["system"])


async def over_mcp(running: Running, key: str) -> list[dict[str, Any]]:
    async with running.client() as client:
        answer = await client.post("/mcp", **modern("prompts/get", {"name": "who"}, **{"x-api-key": key}))
    assert answer.status_code == 200, answer.text
    return seen(answer.json()["result"]["messages"][0]["content"]["text"])


async def test_a_token_is_named_by_issuer_and_subject_as_in_the_audit_log(tmp_path: Path) -> None:
    async with open_service(project(tmp_path, CONFIG)) as service:
        resolved = await service.resolve("who", {}, Call(Tenant("acme", key="oauth:sso:auth0|ada")))
    for shown in seen(resolved.prompt.system):
        assert shown["key"] == {"id": "oauth:sso:auth0|ada", "name": "oauth:sso:auth0|ada"}


async def test_without_keys_there_is_a_tenant_and_a_run(tmp_path: Path) -> None:
    async with open_service(project(tmp_path, CONFIG)) as service, serving(service) as running:  # type: ignore[arg-type]
        async with running.client() as client:
            answer = await client.post("/agents/who/prompt", json={})
        outer, _ = seen(answer.json()["system"])
        assert len(outer.pop("run_id")) == 16
        assert outer == {"tenant": "default", "agent": "who"}


@pytest.mark.parametrize("text", ["the word in a comment: caller", "no such word"])
async def test_it_is_there_for_scripts_whose_text_has_the_word(tmp_path: Path, text: str) -> None:
    loaded = project(tmp_path, CONFIG)
    computed = f'local n = "call" .. "er" return {{ system = type(context[n]) }} -- {text}'
    (tmp_path / "who.lua").write_text(f"agent = {{}} function agent.resolve(args, config, context) {computed}\nend")
    async with open_service(loaded) as service:
        resolved = await service.resolve("who", {}, Call(DEFAULT_TENANT))
    assert resolved.prompt.system == ("table" if "caller" in text else "nil")


async def test_a_failed_run_has_the_id_that_the_script_was_shown(tmp_path: Path) -> None:
    loaded = project(tmp_path, CONFIG)
    (tmp_path / "who.lua").write_text(
        "agent = {} function agent.resolve(a, b, context) error('run ' .. context.caller.run_id) end"
    )
    async with open_service(loaded) as service:
        with pytest.raises(Problem) as raised:
            await service.resolve("who", {}, Call(DEFAULT_TENANT))
    assert f"run {raised.value.run_id}" in raised.value.message

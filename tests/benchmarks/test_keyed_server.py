"""A server with keys, and one that publishes while it is called: the engine itself, over REST and both eras of MCP."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import warm_start

from agents.service import Service, open_service
from benchmarks.bench import Plan, Watch, measure
from benchmarks.load.schedule import Load
from benchmarks.processes import Work
from benchmarks.publishing import published
from benchmarks.scenario import Ask, Scenario, load
from benchmarks.targets.address import parse_url, resolve
from benchmarks.targets.target import Unfit
from engine.config import LoadedConfig, parse_config
from engine.tenant import DEFAULT_TENANT
from server.app import listen, open_app, serve_app
from storage.lanes import rows

ROOT = Path(__file__).resolve().parents[2]
PLAIN = """
[sandbox]
workers = 2
reserve = 1
[limits]
queue_timeout_s = 60
"""
# Quotas so wide that they are not what is tested; `lonely` has no script of a scenario.
KEYED = (
    PLAIN
    + """
[tenants]
enabled = true
secrets_key = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="
[tenants.quota]
requests_per_second = 1000
burst = 1000
cpu_seconds_per_minute = 600
"""
)
TARGETS = (("http", "2026"), ("mcp", "2026"), ("mcp", "handshake"))
NOOP_ALONE = replace(load("noop"), asks=(Ask(name="noop", kind="agent", what="bench-noop"),))
SHORT = Load(rate=40, duration_s=0.5, warm_up_s=0.0)


@dataclass
class Serving:
    """A server, and the keys of its tenants."""

    url: str
    service: Service
    keys: dict[str, str] = field(default_factory=dict)

    async def loaded(self, scenario: str | Scenario, target: str, era: str, *keys: str, **more: Any) -> dict[str, Any]:
        """The result of a short load with the keys of these tenants, or with what is no tenant's name as the key."""
        plan = Plan(
            target=target, scenario=load(scenario) if isinstance(scenario, str) else scenario, load=SHORT, url=self.url,
            era=era, keys=tuple(self.keys.get(key, key) for key in keys), **more,
        )  # type: ignore[arg-type] # fmt: skip
        with trio.fail_after(60):
            return await measure(plan, Watch())


@asynccontextmanager
async def serving(folder: Path, text: str) -> AsyncIterator[Serving]:
    text = f'[db]\npath = "{folder}/store.sqlite"\n' + text
    config, _ = parse_config(text, environ={}, cwd=folder)
    async with (
        open_service(LoadedConfig(config, None, folder)) as service,
        await listen("127.0.0.1", 0) as listener,
        open_app(service, config.server, "127.0.0.1") as app,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(partial(serve_app, app, listener, trio.Event(), graceful_timeout_s=0))
        yield Serving(f"http://127.0.0.1:{listener.socket.getsockname()[1]}", service)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Serving]:
    """Tenants `acme` and `other`, who have the agent of `noop`, and `lonely`, who has not; `caller` is a key of acme's
    that may not publish."""
    text = KEYED + load("noop").server_config().replace('["*"]', '["acme", "other"]')
    async with serving(tmp_path, text) as server:
        control = server.service.control
        for tenant in ("acme", "other", "lonely"):
            await control.tenants.create(tenant, actor="cli")
            _, server.keys[tenant] = await control.keys.create(tenant, actor="cli", scopes=["use", "publish"])
        _, server.keys["caller"] = await control.keys.create("acme", actor="cli", scopes=["use"])
        yield server


async def test_every_request_carries_the_key_of_its_tenant(keyed: Serving) -> None:
    for target, era in TARGETS:
        result = await keyed.loaded("noop", target, era, "acme", "other", tenants=2)
        assert result["outcomes"] == {"ok": 20}
        assert result["notes"] == []
        assert set(result["by"]["tenant"]) == {"tenant-1", "tenant-2"}
    used = [sum(sums.runs for sums in (await keyed.service.usage.sums_of(name)).values()) for name in ("acme", "other")]
    assert sum(used) == 60
    assert min(used) > 0


async def test_a_key_that_the_server_refuses_is_named_before_the_load_and_not_shown(keyed: Serving) -> None:
    for target, era in TARGETS:
        with pytest.raises(Unfit) as refused:
            await keyed.loaded("noop", target, era, "acme", "engine_wrong", tenants=2)
        assert str(refused.value) == "the server refuses key 2 of --key-file ('tenant-2'): unauthorized"


async def test_a_server_that_asks_for_keys_is_not_loaded_without_one(keyed: Serving) -> None:
    for target, era in TARGETS:
        with pytest.raises(Unfit, match="the server asks for keys: give a file of them with --key-file"):
            await keyed.loaded("noop", target, era)


async def test_a_tenant_without_the_agent_is_named_before_the_load(keyed: Serving) -> None:
    for target, era in TARGETS:
        with pytest.raises(Unfit, match=r"no agent 'bench-noop' for the tenant of key 2 of --key-file \('tenant-2'\)"):
            await keyed.loaded(NOOP_ALONE, target, era, "acme", "lonely", tenants=2)


async def test_what_stands_in_is_asked_when_one_of_the_tenants_lacks_the_agent(keyed: Serving) -> None:
    result = await keyed.loaded("noop", "http", "2026", "acme", "lonely", tenants=2)
    assert result["requests"] == ["the front end alone"]
    assert result["outcomes"] == {"ok": 20}


async def test_a_scenario_whose_tenants_all_have_names_needs_no_key_beside_theirs(keyed: Serving) -> None:
    quiet, neighbour = (replace(NOOP_ALONE.asks[0], name=name, tenant=name) for name in ("quiet", "neighbour"))
    scenario = replace(NOOP_ALONE, asks=(quiet, neighbour), needs_tenants=True)
    result = await keyed.loaded(scenario, "http", "2026", "acme", "other", "lonely")
    assert set(result["by"]["tenant"]) == {"quiet", "neighbour"}
    assert result["outcomes"] == {"ok": 20}
    assert result["notes"] == ["keys of --key-file that are not used: 1 (--tenants says how many tenants ask)"]


async def test_the_command_reads_keys_from_a_file_and_says_which_is_refused(keyed: Serving, tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("ENGINE_", "CTX_"))}

    async def bench(*keys: str) -> "subprocess.CompletedProcess[bytes]":
        (tmp_path / "keys").write_text("# acme\n\n" + "\n".join(keys) + "\n")
        words = ("http", keyed.url, "--scenario", "noop", "--rate", "40", "--duration", "200ms", "--warm-up", "0s")
        run = partial(
            warm_start.run, [sys.executable, "-m", "cli.main", "bench", *words, "--key-file", "keys", "--json=-"],
            cwd=tmp_path, env=environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, timeout=60,
        )  # fmt: skip
        return await trio.to_thread.run_sync(run)

    fine = await bench(keyed.keys["acme"])
    result = json.loads(fine.stdout)
    # On a machine with other load, the tester may be the bottleneck of eight requests.
    assert fine.returncode == (0 if result["valid"] else 1), fine.stderr
    assert result["outcomes"] == {"ok": 8}
    assert keyed.keys["acme"].encode() not in fine.stdout + fine.stderr
    wrong = await bench("engine_wrong")
    assert wrong.returncode == 2
    assert wrong.stderr.decode().splitlines() == [
        "error: the server refuses key 1 of --key-file ('default'): unauthorized"
    ]


# ---- publish and call --------------------------------------------------------------------------------------------


async def test_a_server_is_called_while_versions_are_published_and_no_call_fails(tmp_path: Path) -> None:
    async with serving(tmp_path, PLAIN) as server:
        for target, era in TARGETS:
            result = await server.loaded("churn", target, era)
            assert result["outcomes"] == {"ok": 21}
            assert {name: each["count"] for name, each in result["by"]["request"].items()} == {
                "bench-churn": 20, "publish": 1,
            }  # fmt: skip
            assert set(result["by"]["phase"]) == {"alone", "with the others"}
            assert result["requests"] == ["agent bench-churn", "publish bench-churn"]
            assert result["notes"] == []
        # Each load had a name of its own, and none of them is left where people see it.
        async with server.service.published(DEFAULT_TENANT):
            assert server.service.list_agents(DEFAULT_TENANT) == []
        kept = await server.service.control._database.read(
            lambda db: rows(db, "SELECT name, version, deprecated FROM versions")
        )
        assert len({name for name, _, _ in kept}) == 3
        assert sorted((version, deprecated) for _, version, deprecated in kept) == [("0", 0)] * 3 + [("1", 1)] * 3


async def test_every_tenant_publishes_and_calls_its_own(keyed: Serving) -> None:
    result = await keyed.loaded("churn", "http", "2026", "acme", "other", tenants=2, processes=2)
    assert result["outcomes"] == {"ok": 21}
    kept = await keyed.service.control._database.read(lambda db: rows(db, "SELECT DISTINCT tenant FROM versions"))
    assert sorted(kept) == [("acme",), ("other",)]


async def test_a_key_that_may_not_publish_is_told_before_the_load(keyed: Serving) -> None:
    for target, era in TARGETS:
        with pytest.raises(Unfit, match=r"does not publish .* forbidden; .* keys that have the scope 'publish'"):
            await keyed.loaded("churn", target, era, "caller")


async def test_a_pool_of_several_tenants_publishes_and_calls(tmp_path: Path) -> None:
    own = LoadedConfig(parse_config(PLAIN, environ={}, cwd=tmp_path)[0], None, tmp_path)
    plan = Plan(target="run", scenario=load("churn"), load=SHORT, own=own, tenants=2)
    with trio.fail_after(60):
        result = await measure(plan, Watch())
    assert result["outcomes"] == {"ok": 21}
    assert set(result["by"]["tenant"]) == {"tenant-1", "tenant-2"}


async def test_what_could_not_be_taken_out_of_service_is_told(keyed: Serving) -> None:
    control = keyed.service.control
    record, key = await control.keys.create("acme", actor="cli", scopes=["use", "publish"])
    work = Work(load=SHORT, asks=load("churn").asks, tenants=("default",), keys={"default": key})
    address = await resolve(parse_url(keyed.url), allow_remote=False)
    with trio.fail_after(60):
        async with published(work, address) as left:
            await control.keys.revoke(record.id, actor="cli")
    assert left == [
        "what was published is left on the server, first the agent 'bench-churn' of 'default': unauthorized"
    ]


async def test_what_one_tenant_published_is_taken_back_when_another_may_not(keyed: Serving) -> None:
    with pytest.raises(Unfit, match=r"'tenant-2': forbidden"):
        await keyed.loaded("churn", "http", "2026", "other", "caller", tenants=2)
    kept = await keyed.service.control._database.read(
        lambda db: rows(db, "SELECT tenant, active, deprecated FROM versions")
    )
    assert kept == [("other", 0, 1)]

"""Quotas and usage on the real thing: keys, scripts in workers, refusals over REST and MCP, sums that are sums."""

import csv
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from asking_support import able
from server_support import Running, assert_envelope, serving

from agents.service import Service, open_service
from engine.config import load_config
from engine.errors import Code, Problem
from engine.models.reserving import Price
from engine.models.shapes import Usage as Tokens

OPERATOR = "the-operator-of-the-tests-of-quotas"
CONFIG = f"""
[db]
path = "knowledge.sqlite"
[tenants]
enabled = true
operator_key = "{OPERATOR}"
[tenants.quota]
requests_per_second = 1000
burst = 1000
[sandbox]
workers = 1
reserve = 1
"""
SCRIPTS = {
    "echo": "return { system = 'here' }",
    "finds": "context.search('x') context.sources() return { system = 'found' }",
    "burns": "local t = os.clock() while os.clock() - t < 0.3 do end return { system = 'burnt' }",
    "forever": "while true do end",
    "asks": "while true do pcall(context.search, 'x') end",
    "dozes": "sleep(20) return { system = 'slept' }",
    "fails": "error('no luck')",
}


@dataclass
class Quoted:
    """A server that asks for keys, and its service."""

    running: Running
    service: Service

    async def tenant(self, name: str, **quotas: float) -> str:
        """A new tenant's key."""
        await self.service.control.tenants.create(name, actor="cli", quotas=quotas)
        return (await self.service.control.keys.create(name, actor="cli", scopes=["use"]))[1]

    def client(self, key: str) -> httpx2.AsyncClient:
        return self.running.client(headers={"x-api-key": key})

    async def usage(self, tenant: str) -> dict[str, Any]:
        async with self.client(OPERATOR) as client:
            return dict((await client.get(f"/admin/tenants/{tenant}/usage")).json())


@asynccontextmanager
async def opened(folder: Path, config: str = "") -> AsyncIterator[Quoted]:
    text = CONFIG
    for table in filter(None, config.split("\n\n")):
        head, _, rest = table.partition("\n")
        text = text.replace(f"{head}\n", f"{head}\n{rest}\n") if f"{head}\n" in text else f"{text}\n{table}\n"
    for name, body in SCRIPTS.items():
        source = f"agent = {{ tools = {{}} }}\nfunction agent.resolve(args, config, context)\n{body}\nend"
        (folder / f"{name}.lua").write_text(source)
        text += f'[agents.script.{name}]\npath = "{name}.lua"\ntenants = ["*"]\n'
        text += "limits = { host_calls = 5000, cpu_s = 60 }\n"
    (folder / "engine.toml").write_text(text)
    loaded = load_config(folder / "engine.toml", environ={}, cwd=folder)
    async with open_service(loaded) as service, serving(service) as running:  # type: ignore[arg-type]
        yield Quoted(running, service)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Quoted]:
    async with opened(tmp_path) as found:
        yield found


async def assert_works(server: Quoted, key: str) -> None:
    async with server.client(key) as client:
        answer = await client.post("/agents/echo/prompt")
        assert (answer.status_code, answer.json()["system"]) == (200, "here"), answer.text


def assert_refused(answer: httpx2.Response, code: str, name: str, bound: float, source: str) -> dict[str, Any]:
    """Hold that a refusal names the limit in its body and its headers."""
    error = assert_envelope(answer, 429, code)
    assert (error["limit"]["name"], error["limit"]["bound"], error["limit"]["source"]) == (name, bound, source)
    assert int(answer.headers["ratelimit-limit"]) == bound
    assert int(answer.headers["ratelimit-remaining"]) == 0
    assert int(answer.headers["retry-after"]) == int(answer.headers["ratelimit-reset"]) >= 1
    assert int(answer.headers["retry-after"]) >= error["retry_after_s"] > 0
    return error


# Requests ------------------------------------------------------------------------------------------------------


async def test_requests_beyond_the_burst_are_refused_on_every_path_and_of_that_tenant_alone(server: Quoted) -> None:
    slow = await server.tenant("slow", requests_per_second=0.01, burst=3)
    other = await server.tenant("other")
    async with server.client(slow) as client:
        for path in ("/agents/list", "/limits", "/nowhere"):
            assert (await client.get(path)).status_code in (200, 404)
        for path in ("/agents/list", "/nowhere", "/admin/tenants"):
            error = assert_envelope(await client.get(path), 429, "rate_limited")
            assert error["limit"] == {
                "name": "requests_per_second", "bound": 0.01, "used": 0.01, "unit": "count", "source": "tenant",
            }  # fmt: skip
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert_envelope(await client.post("/mcp", json=message), 429, "rate_limited")
        large = b"x" * 3_000_000  # its body is not waited for
        refused = await client.post("/agents/echo/prompt", content=large, headers={"content-type": "application/json"})
        assert refused.headers["retry-after"] == "100"
    await assert_works(server, other)


async def test_a_task_that_is_polled_in_a_loop_counts_as_requests(server: Quoted) -> None:
    slow = await server.tenant("slow", requests_per_second=0.01, burst=5)
    other = await server.tenant("other")
    ask = able("tasks/get", {"taskId": "0" * 32})
    async with server.client(slow) as client:
        codes = [(await client.post("/mcp", **ask)).status_code for _ in range(20)]
    assert codes == [400] * 5 + [429] * 15
    await assert_works(server, other)


async def test_the_operator_is_never_refused_for_a_tenants_sake(server: Quoted) -> None:
    slow = await server.tenant("slow", requests_per_second=0.01, burst=1)
    async with server.client(slow) as client:
        assert [(await client.get("/limits")).status_code for _ in range(3)] == [200, 429, 429]
    async with server.client(OPERATOR) as client:
        for _ in range(5):
            assert (await client.get("/limits?tenant=slow")).status_code == 200


# Runs ------------------------------------------------------------------------------------------------------------


async def test_a_tenant_that_used_up_its_cpu_minute_is_refused_before_its_next_run(server: Quoted) -> None:
    burner, other = await server.tenant("burner", cpu_seconds_per_minute=0.1), await server.tenant("other")
    async with server.client(burner) as client:
        stopped = await client.post("/agents/burns/prompt")
        error = assert_envelope(stopped, 429, "quota_exceeded")
        assert error["run_id"]
        assert (error["limit"]["name"], error["limit"]["unit"], error["limit"]["source"]) == (
            "cpu_seconds_per_minute", "s", "tenant",
        )  # fmt: skip
        assert 0.1 <= error["limit"]["used"] < 0.3, "it was stopped while it ran"
        refused = assert_envelope(await client.post("/agents/echo/prompt"), 429, "quota_exceeded")
        assert "run_id" not in refused
        assert 50 < refused["retry_after_s"] <= 61
        quotas = (await client.get("/limits")).json()["quotas"]
        assert quotas["cpu_seconds_per_minute"]["used"] >= 0.1
    await assert_works(server, other)
    usage = (await server.usage("burner"))["total"]
    assert usage["outcomes"] == {"cpu_limit": 1, "rejected": 1}


async def test_a_flood_of_host_calls_ends_with_the_quota_and_not_with_an_error_that_the_script_could_catch(
    server: Quoted,
) -> None:
    asker, other = await server.tenant("asker", host_calls_per_minute=50), await server.tenant("other")
    async with server.client(asker) as client:
        error = assert_refused(
            await client.post("/agents/asks/prompt"), "quota_exceeded", "host_calls_per_minute", 50, "tenant"
        )
        assert error["run_id"]
        assert_refused(
            await client.post("/agents/echo/prompt"), "quota_exceeded", "host_calls_per_minute", 50, "tenant"
        )
    await assert_works(server, other)


async def test_a_full_queue_and_too_many_runs_at_once_are_told_apart(tmp_path: Path) -> None:
    async with opened(tmp_path, "[tenants]\non_limit = 'reject'") as server:
        key, other = await server.tenant("two", concurrent_runs=1), await server.tenant("other")
        async with server.client(key) as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.post, "/agents/dozes/prompt")
            await until_begun(client)
            assert_refused(await client.post("/agents/echo/prompt"), "quota_exceeded", "concurrent_runs", 1, "tenant")
            nursery.cancel_scope.cancel()
        await until_idle(server)  # no queue here: while the cancelled run ends, others are refused
        await assert_works(server, other)


async def until_idle(server: Quoted) -> None:
    with trio.fail_after(20):
        while server.service.engine.health()["workers"]["leased"]:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def until_begun(client: httpx2.AsyncClient) -> None:
    with trio.fail_after(20):
        while (await client.get("/limits")).json()["quotas"]["concurrent_runs"]["used"] == 0:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_a_queue_that_is_full_refuses_at_once(server: Quoted) -> None:
    key = await server.tenant("short", queue_length=0)
    async with server.client(key) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.post, "/agents/dozes/prompt")
        await until_begun(client)
        assert_refused(await client.post("/agents/echo/prompt"), "queue_full", "queue_length", 0, "tenant")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("agent", ["forever", "dozes"])
async def test_endless_and_sleeping_runs_of_other_tenants_leave_workers_for_all(server: Quoted, agent: str) -> None:
    """There is one worker: without turns, the last call would wait for 20 s."""
    keys = [await server.tenant(f"hog-{number}") for number in range(3)]
    modest = await server.tenant("modest")
    async with trio.open_nursery() as nursery:
        for key in keys:
            client = await nursery.start(held, server, key)
            nursery.start_soon(client.post, f"/agents/{agent}/prompt")
        async with server.client(keys[0]) as client:
            await until_begun(client)
        with trio.fail_after(8):
            for _ in range(5):
                await assert_works(server, modest)
        nursery.cancel_scope.cancel()
    await until_idle(server)
    await assert_works(server, keys[0])


async def held(server: Quoted, key: str, task_status: trio.TaskStatus[httpx2.AsyncClient]) -> None:
    async with server.client(key) as client:
        task_status.started(client)
        await trio.sleep_forever()


async def test_runs_that_were_put_aside_keep_their_deadline_and_come_to_their_end(server: Quoted) -> None:
    keys = [await server.tenant(f"t{number}") for number in range(4)]
    answers: list[httpx2.Response] = []

    async def burn(key: str) -> None:
        async with server.client(key) as client:
            answers.append(await client.post("/agents/burns/prompt"))

    async with trio.open_nursery() as nursery:
        for key in keys:
            nursery.start_soon(burn, key)
    assert [answer.json().get("system") for answer in answers] == ["burnt"] * 4


# Messages of refusals ----------------------------------------------------------------------------------------------


async def test_limits_show_every_quota_with_whom_it_is_from_and_what_is_used(server: Quoted) -> None:
    key = await server.tenant("acme", queue_length=7)
    async with server.client(key) as client:
        quotas = (await client.get("/limits")).json()["quotas"]
    assert quotas["queue_length"] == {"value": 7, "unit": "count", "source": "tenant", "used": 0}
    assert quotas["concurrent_runs"] == {"value": 1, "unit": "count", "source": "engine", "used": 0}
    assert (quotas["stored_bytes"]["value"], quotas["stored_bytes"]["used"]) == (1 << 30, 0)
    assert set(quotas["burst"]) == {"value", "unit", "source", "used"}


async def test_usage_is_the_sum_of_the_runs_by_agent_key_and_day(server: Quoted) -> None:
    await server.service.control.tenants.create("acme", actor="cli")
    keys = [await server.service.control.keys.create("acme", actor="cli", scopes=["use"]) for _ in range(2)]
    other = await server.tenant("other")
    plan = {0: ["echo", "finds", "fails"], 1: ["finds", "finds"]}
    for number, agents in plan.items():
        async with server.client(keys[number][1]) as client:
            for agent in agents:
                await client.post(f"/agents/{agent}/prompt")
    await assert_works(server, other)
    async with server.client(keys[0][1]) as client:
        usage = (await client.get("/usage")).json()
        table = list(csv.DictReader(io.StringIO((await client.get("/usage?format=csv")).text)))
        assert_envelope(await client.get("/usage?format=xml"), 400, "bad_request")
    assert usage["total"]["runs"] == 5
    assert usage["total"]["outcomes"] == {"ok": 4, "script_error": 1}
    assert usage["total"]["host_calls_by_name"] == {"context.search": 3, "context.sources": 3}
    assert {row["agent"]: row["runs"] for row in usage["by_agent"]} == {
        "agent:echo": 1,
        "agent:fails": 1,
        "agent:finds": 3,
    }
    assert {row["key"]: row["runs"] for row in usage["by_key"]} == {keys[0][0].id: 3, keys[1][0].id: 2}
    assert len(usage["by_day"]) in (1, 2)  # midnight may have passed
    for rows in (usage["by_agent"], usage["by_key"], usage["by_day"]):
        for name in ("runs", "cpu_ms", "wall_ms", "queue_ms", "host_calls", "bytes_in", "bytes_out"):
            assert sum(row[name] for row in rows) == pytest.approx(usage["total"][name], abs=1e-6)
    assert sum(int(row["runs"]) for row in table) == 5
    assert sum(int(row["outcome_ok"]) for row in table) == 4
    assert {row["tenant"] for row in table} == {"acme"}
    assert usage["total"]["cpu_ms"] > 0


async def test_what_models_cost_is_by_model_exact_and_counts_in_the_quotas_after_a_restart(tmp_path: Path) -> None:
    price, asked = Price(Fraction(3), Fraction(3, 10), Fraction(15)), Tokens(1000, 400, 200)
    one = {"model_calls": 1, "input_tokens": 1000, "cached_tokens": 400, "output_tokens": 200}

    async def asks(server: Quoted, *models: str) -> None:
        tenant = await server.service.control.tenants.for_runs("spends")
        async with server.service.engine.spending.model_run(tenant, "agent:writer") as run:
            for model in models:
                with run.call(model, 1000, 300, price) as call:
                    call.used(asked, price.cost(asked))

    async with opened(tmp_path) as server:
        key = await server.tenant("spends", cost_usd_per_day=0.02)
        await asks(server, "large", "small")
        await server.service.usage.flush()
        await asks(server, "small")
        usage = await server.usage("spends")
        async with server.client(key) as client:
            quotas = (await client.get("/limits")).json()["quotas"]
            (line,) = csv.DictReader(io.StringIO((await client.get("/usage?format=csv")).text))
        assert (quotas["cost_usd_per_day"]["used"], quotas["cost_usd_per_day"]["unit"]) == (0.01476, "USD")
        assert (quotas["model_tokens_per_minute"]["used"], quotas["model_runs"]["value"]) == (3600, 16)
    assert usage["by_model"] == [
        {"model": "large", **one, "cost_usd": 0.00492},
        {"model": "small", **{name: 2 * value for name, value in one.items()}, "cost_usd": 0.00984},
    ]
    assert usage["total"]["cost_usd"] == 0.01476
    assert {name: usage["total"][name] for name in one} == {name: 3 * value for name, value in one.items()}
    assert (line["model_calls"], line["cost_usd"]) == ("3", "0.01476")
    async with opened(tmp_path) as server:
        assert (await server.usage("spends"))["by_model"] == usage["by_model"]
        with pytest.raises(Problem, match="cost_usd_per_day"):
            await asks(server, "large")
        with pytest.raises(Problem, match="cost_usd_per_day"):
            await asks(server, "large")
        await assert_works(server, key)
        await server.service.control.tenants.delete("spends", actor="cli")
        again = await server.tenant("spends")
        async with server.client(again) as client:
            assert (await client.get("/usage")).json()["by_model"] == []
        await asks(server, "large")


async def test_usage_survives_the_process_and_goes_with_the_tenant(tmp_path: Path) -> None:
    async with opened(tmp_path) as server:
        for name in ("stays", "goes"):
            await assert_works(server, await server.tenant(name))
        await server.service.control.tenants.delete("goes", actor="cli")
    async with opened(tmp_path) as server:
        assert (await server.usage("stays"))["total"]["runs"] == 1
        again = await server.tenant("goes")
        async with server.client(again) as client:
            assert (await client.get("/usage")).json()["total"]["runs"] == 0


async def test_what_could_not_be_written_down_is_not_lost(server: Quoted, monkeypatch: pytest.MonkeyPatch) -> None:
    key = await server.tenant("acme")
    await assert_works(server, key)

    async def full(work: Any) -> None:
        raise Problem(Code.UNAVAILABLE, "the disk that holds the control store is full; nothing was changed")

    with monkeypatch.context() as patched:
        patched.setattr(server.service.control._database, "write", full)
        with pytest.raises(Problem):
            await server.service.usage.flush()
    assert (await server.usage("acme"))["total"]["runs"] == 1


async def test_a_client_that_leaves_is_charged_for_what_its_run_used(server: Quoted) -> None:
    key = await server.tenant("leaver")
    async with server.client(key) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.post, "/agents/forever/prompt")
        await until_begun(client)
        nursery.cancel_scope.cancel()
    with trio.fail_after(20):
        while not (total := (await server.usage("leaver"))["total"])["runs"]:  # noqa: ASYNC110
            await trio.sleep(0.02)
    assert total["outcomes"] == {"cancelled": 1}
    await assert_works(server, key)


async def test_without_tenants_only_what_bounds_the_queue_is_shown_and_usage_begins_with_the_process(
    tmp_path: Path,
) -> None:
    (tmp_path / "echo.lua").write_text("agent = { tools = {}, resolve = function() return { system = 'here' } end }")
    (tmp_path / "engine.toml").write_text(
        "[db]\npath = 'k.sqlite'\n[sandbox]\nworkers = 1\nreserve = 0\n[agents.script.echo]\npath = 'echo.lua'\n"
    )
    loaded = load_config(tmp_path / "engine.toml", environ={}, cwd=tmp_path)
    async with (
        open_service(loaded) as service,
        serving(service) as running,  # type: ignore[arg-type]
        running.client() as client,
    ):
        for _ in range(60):  # more than the burst of a tenant
            assert (await client.get("/limits")).status_code == 200
        assert set((await client.get("/limits")).json()["quotas"]) == {"concurrent_runs", "queue_length", "kv_bytes"}
        before = (await client.get("/usage")).json()["total"]["runs"]
        assert (await client.post("/agents/echo/prompt")).status_code == 200
        usage = (await client.get("/usage")).json()
    assert usage["total"]["runs"] == before + 1
    assert usage["by_key"] == []
    assert json.loads(json.dumps(usage)) == usage
    names = {path.name for path in await trio.Path(tmp_path).iterdir()}
    assert names == {"echo.lua", "engine.toml", "k.sqlite"}, "no control store is made unless it is needed"

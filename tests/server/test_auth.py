"""Keys: who gets in, what those hear who do not, and that nothing else is decided before."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from keys_support import OPERATOR, Keyed, keyed
from server_support import FakeService, Running, assert_envelope, parse, read_answer, request, serving

from engine.config import ServerConfig
from server.app import Refused, open_server
from server.http import auth as module
from server.http.auth import presented
from server.http.routes import Need
from server.http.target import read_path
from server.rest.routes import Rest, Routes


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed(tmp_path) as found:
        yield found


# ---- what a request presents ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([], None),
        ([("authorization", "Bearer k")], "k"),
        ([("authorization", "bearer   k ")], "k"),
        ([("x-api-key", " k ")], "k"),
        ([("x-api-key", "k"), ("authorization", "Bearer k")], "k"),
        ([("x-api-key", "k"), ("authorization", "Bearer l")], None),
        ([("x-api-key", "k"), ("x-api-key", "l")], None),
        ([("x-api-key", "k"), ("x-api-key", "k")], "k"),
        ([("authorization", "Bearer k"), ("authorization", "Bearer l")], None),
        ([("authorization", "Basic azo="), ("x-api-key", "k")], None),
        ([("authorization", "Bearer"), ("x-api-key", "k")], None),
        ([("authorization", "Basic azo=")], None),
        ([("authorization", "k")], None),
        ([("authorization", "Bearer ")], None),
        ([("x-api-key", "")], None),
        ([("x-api-key", "\xff")], "\xff"),
    ],
)
def test_a_request_presents_one_key_or_none(headers: list[tuple[str, str]], key: str | None) -> None:
    assert presented([(name.encode(), value.encode("latin-1")) for name, value in headers]) == key


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("POST", "/tools/search", True),
        ("GET", "/tools/sources", True),
        ("POST", "/agents/x/prompt", True),
        ("POST", "/mcp", True),
        ("GET", "/mcp/", True),
        ("GET", "/tools/list", False),
        ("GET", "/agents/list", False),
        ("GET", "/usage", False),
        ("PUT", "/agents/x", False),
        ("POST", "/agents/x/versions/1/activate", False),
    ],
)
def test_calling_needs_the_scope_use(method: str, path: str, needed: bool) -> None:
    found = Rest(Routes(FakeService()).all()).table.find(method, read_path(path.encode()))  # type: ignore[arg-type]
    assert (found.need is Need.USE) is needed


# ---- who gets in ------------------------------------------------------------------------------------------------


async def test_a_key_works_in_either_header_for_its_tenant(server: Keyed) -> None:
    async with server.running.client() as client:
        for headers in ({"Authorization": f"Bearer {server.keys['use']}"}, {"X-API-Key": server.keys["use"]}):
            answer = await client.post("/tools/echo", json={"a": 1}, headers=headers)
            assert (answer.status_code, answer.json()) == (200, {"result": {"a": 1}})


async def every_refusal(server: Keyed) -> dict[str, httpx2.Response]:
    """What is heard with no key, and with each kind of key that opens nothing."""
    control = server.control
    _, expired = await control.keys.create("acme", actor="cli", expires_at=time.time() - 1)
    revoked, gone = await control.keys.create("acme", actor="cli")
    await control.keys.revoke(revoked.id, actor="cli")
    await control.tenants.create("asleep", actor="cli")
    _, suspended = await control.keys.create("asleep", actor="cli")
    await control.tenants.set_state("asleep", "suspended", actor="cli")
    good = server.keys["use"]
    wrong = good[:-1] + ("0" if good[-1] != "0" else "1")
    presents: dict[str, list[tuple[str, str]]] = {
        "none": [],
        "unknown": [("x-api-key", "ek_000000000000_" + "0" * 64)],
        "no key at all": [("x-api-key", "hello")],
        "wrong": [("x-api-key", wrong)],
        "expired": [("x-api-key", expired)],
        "revoked": [("x-api-key", gone)],
        "suspended": [("x-api-key", suspended)],
        "both and different": [("x-api-key", good), ("authorization", f"Bearer {server.keys['all']}")],
        "another scheme": [("authorization", f"Basic {good}")],
        "an id": [("x-api-key", server.ids["use"])],
    }
    async with server.running.client() as client:
        return {name: await client.get("/agents/list", headers=headers) for name, headers in presents.items()}


async def test_there_is_one_answer_for_whatever_is_wrong_with_a_key(server: Keyed) -> None:
    answers = await every_refusal(server)
    for name, answer in answers.items():
        assert_envelope(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == 'Bearer realm="engine"', name
    assert len({answer.text for answer in answers.values()}) == 1
    assert len({tuple(sorted(answer.headers.keys())) for answer in answers.values()}) == 1
    async with server.client("use") as client:
        assert (await client.get("/agents/list")).status_code == 200


ANYTHING = [
    ("GET", "/", b""),
    ("GET", "/nothing/here", b""),
    ("DELETE", "/tools/list", b""),
    ("POST", "/tools/echo", b"{not json"),
    ("POST", "/tools/unknown", b"{}"),
    ("GET", "/tools/list?agent=unknown", b""),
    ("GET", "/tools/list?agent=a&agent=b", b""),
    ("POST", "/agents/unknown/prompt", b"{}"),
    ("PUT", "/agents/x", b"{}"),
    ("GET", "/agents/x/versions", b""),
    ("GET", "/limits", b""),
    ("GET", "/usage", b""),
    ("GET", "/metrics", b""),
    ("POST", "/mcp", b"[]"),
    ("GET", "/mcp?agent=unknown", b""),
    ("GET", "/mcp/", b""),
    ("GET", "/admin/tenants", b""),
    ("GET", "/admin/nothing", b""),
    ("GET", "/healthy", b""),
    ("GET", "/health/", b""),
    ("OPTIONS", "/tools/list", b""),
    ("OPTIONS", "*", b""),
    ("HEAD", "/tools/list", b""),
    ("GET", "/.well-known", b""),
]


async def test_without_a_key_nothing_else_is_looked_at(server: Keyed) -> None:
    for method, target, content in ANYTHING:
        answer = parse(await server.running.raw(request(method, target, content, "Connection: close")))
        assert answer.status_code == 401, (method, target)
        if method != "HEAD":
            assert json.loads(answer.content)["error"]["code"] == "unauthorized"


async def test_without_a_key_a_body_is_neither_read_nor_waited_for(server: Keyed) -> None:
    async with await server.running.connect() as stream:
        await stream.send_all(request("POST", "/tools/echo", b"", "Content-Length: 100000000"))
        assert parse(await read_answer(stream)).status_code == 401
    async with await server.running.connect() as stream:
        await stream.send_all(request("POST", "/tools/echo", b"", "Content-Length: 10"))
        assert parse(await read_answer(stream)).status_code == 401


async def test_without_a_key_a_foreign_host_or_origin_hears_the_same(server: Keyed) -> None:
    foreign = parse(await server.running.raw(request("GET", "/agents/list", host="evil.example")))
    assert_envelope(foreign, 401, "unauthorized")
    async with server.running.client() as client:
        origin = {"origin": "https://evil.example"}
        assert_envelope(await client.post("/tools/echo", json={}, headers=origin), 401, "unauthorized")
    key = f"X-API-Key: {server.keys['use']}"
    assert_envelope(
        await server.running.raw(request("GET", "/agents/list", b"", key, host="evil.example")), 421, "misdirected"
    )


async def test_a_preflight_of_an_allowed_origin_needs_no_key_and_a_refusal_can_be_read_by_its_page(
    server: Keyed,
) -> None:
    page = {"origin": "http://localhost:3000"}
    async with server.running.client() as client:
        asking = {**page, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        answer = await client.options("/tools/echo", headers=asking)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-headers"] == "authorization"
        refused = await client.get("/agents/list", headers=page)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, page["origin"])
        foreign = await client.options("/tools/echo", headers={**asking, "origin": "https://evil.example"})
        assert foreign.status_code == 401


async def test_health_needs_no_key_and_says_more_to_the_operator_alone(server: Keyed) -> None:
    for key in (None, "use", "all"):
        async with server.client(key) as client:
            answer = await client.get("/health")
            assert (answer.status_code, set(answer.json())) == (200, {"status", "version"})
    async with server.client("operator") as client:
        assert {"layers", "workers", "scripts_failing"} <= set((await client.get("/health")).json())
    async with server.running.client(headers={"x-api-key": "wrong"}) as client:
        assert set((await client.get("/health")).json()) == {"status", "version"}


async def test_well_known_paths_are_404_with_every_key_and_lead_nowhere_else(server: Keyed) -> None:
    assert_envelope(await server.running.raw(request("GET", "/.well-known/oauth-protected-resource")), 404, "not_found")
    # What could be read in another way is not below it.
    for target in ("/.well-known/../agents/list", "/.well-known/%2e%2e/mcp", "/.well-known//x"):
        assert_envelope(await server.running.raw(request("GET", target)), 401, "unauthorized")
        key = f"X-API-Key: {server.keys['use']}"
        assert_envelope(await server.running.raw(request("GET", target, b"", key)), 404, "not_found")
    async with server.client("operator") as client:
        assert_envelope(await client.get("/.well-known/mcp"), 404, "not_found")


async def test_metrics_are_for_the_operators_key(server: Keyed) -> None:
    async with server.client("all") as client:
        assert_envelope(await client.get("/metrics"), 403, "forbidden")
    async with server.client("operator") as client:
        assert (await client.get("/metrics")).status_code == 200


async def test_a_key_without_the_scope_use_calls_nothing(server: Keyed) -> None:
    for method, target in (
        ("POST", "/tools/echo"),
        ("POST", "/tools/none"),
        ("POST", "/agents/helper/prompt"),
        ("GET", "/tools/sources"),
        ("POST", "/mcp"),
    ):
        for key in ("publish", "admin"):
            async with server.client(key) as client:
                error = assert_envelope(await client.request(method, target, json={}), 403, "forbidden")
                assert error["message"] == "this key has no scope 'use'"
        async with server.client("all") as client:
            assert (await client.request(method, target, json={})).status_code != 403


async def test_a_key_of_any_scope_sees_the_lists_and_limits_of_its_tenant(server: Keyed) -> None:
    for key in ("use", "publish", "admin"):
        async with server.client(key) as client:
            for target in ("/tools/list", "/agents/list", "/limits"):
                assert (await client.get(target)).status_code == 200


async def test_suspending_revoking_and_resuming_count_from_the_next_request_on_one_connection(server: Keyed) -> None:
    async with server.client("use") as client, server.client("other") as other:
        assert (await client.get("/agents/list")).status_code == 200
        await server.control.tenants.set_state("acme", "suspended", actor="cli")
        assert_envelope(await client.get("/agents/list"), 401, "unauthorized")
        assert (await other.get("/agents/list")).status_code == 200
        await server.control.tenants.set_state("acme", "active", actor="cli")
        assert (await client.get("/agents/list")).status_code == 200
        await server.control.keys.revoke(server.ids["use"], actor="cli")
        assert_envelope(await client.get("/agents/list"), 401, "unauthorized")


async def test_only_the_operator_speaks_for_a_tenant_that_it_names(server: Keyed) -> None:
    async with server.client("operator") as client:
        assert_envelope(await client.get("/agents/list?tenant=ghost"), 404, "not_found")
        assert_envelope(await client.get("/agents/list?tenant=a&tenant=b"), 400, "bad_request")
        assert (await client.get("/agents/list?tenant=acme")).status_code == 200
    async with server.client("use") as client:
        assert (await client.get("/agents/list?tenant=ghost")).status_code == 200
        assert (await client.get("/agents/list?tenant=other")).status_code == 200


async def test_every_request_carries_its_own_tenant_also_side_by_side(server: Keyed) -> None:
    heard: dict[str, set[str]] = {"acme": set(), "other": set()}
    service: Any = server.running.service
    original = service.call_tool

    async def telling(name: str, params: Any, call: Any, agent: Any = None) -> Any:
        heard[call.tenant.id].add(params["from"])
        await trio.lowlevel.checkpoint()
        return await original(name, params, call, agent)

    service.call_tool = telling
    async with server.client("use") as acme, server.client("other") as other, trio.open_nursery() as nursery:
        for number in range(20):
            client, name = ((acme, "acme"), (other, "other"))[number % 2]
            nursery.start_soon(lambda c=client, n=name: c.post("/tools/echo", json={"from": n}))
    assert heard == {"acme": {"acme"}, "other": {"other"}}


# ---- MCP --------------------------------------------------------------------------------------------------------

LISTEN = {
    "jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen",
    "params": {
        "notifications": {"toolsListChanged": True},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    },
}  # fmt: skip
MCP_HEADERS = {
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "subscriptions/listen",
    "accept": "text/event-stream, application/json",
}


@pytest.mark.parametrize("how", ["suspended", "revoked", "expired"])
async def test_an_open_stream_ends_when_its_key_opens_nothing_any_more_and_others_go_on(
    server: Keyed, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(module, "LOOK_ANYWAY_S", 0.05)
    control = server.control
    record, key = await control.keys.create("acme", actor="cli", expires_at=time.time() + 3600)
    ended = trio.Event()

    async def listening(key: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with (
            server.running.client(headers={"x-api-key": key}) as client,
            client.stream("POST", "/mcp", json=LISTEN, headers=MCP_HEADERS) as answer,
        ):
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    task_status.started()
        ended.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(listening, server.keys["other"])
        await nursery.start(listening, key)
        if how == "suspended":
            await control.tenants.set_state("acme", "suspended", actor="cli")
        elif how == "revoked":
            await control.keys.revoke(record.id, actor="cli")
        else:
            monkeypatch.setattr(control.keys, "_clock", lambda: time.time() + 7200)
        with trio.fail_after(20):
            await ended.wait()
        await trio.sleep(0.1)
        assert len(server.running.mcp.listeners) == 1
        nursery.cancel_scope.cancel()


# ---- off --------------------------------------------------------------------------------------------------------


async def test_where_tenants_are_off_keys_mean_nothing_and_there_is_no_admin() -> None:
    async with serving() as running:
        await _without_tenants(running)


async def _without_tenants(running: Running) -> None:
    async with running.client(headers={"x-api-key": "whatever"}) as client:
        assert (await client.get("/agents/list")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
        assert_envelope(await client.get("/metrics", headers={"forwarded": "for=1.2.3.4"}), 403, "forbidden")
        for target in ("/admin", "/admin/tenants", "/admin/nothing"):
            error = assert_envelope(await client.get(target), 404, "not_found")
            assert error["message"] == "there are no tenants here: tenants.enabled is false"


async def test_a_public_bind_needs_keys_or_to_be_asked_for() -> None:
    service = FakeService(ServerConfig(bind="0.0.0.0:0"))

    class Reached(Exception):
        pass

    @asynccontextmanager
    async def opener(loaded: Any) -> Any:
        raise Reached
        yield

    with pytest.raises(Refused, match=r"set tenants\.enabled = true"):
        async with open_server(service.loaded, None, opener):
            pass
    tenants = service.loaded.config.tenants.model_copy(update={"enabled": True})
    loaded = replace(service.loaded, config=service.loaded.config.model_copy(update={"tenants": tenants}))
    with pytest.raises(Reached):
        async with open_server(loaded, None, opener):
            pass


async def test_a_flood_of_unknown_keys_leaves_good_ones_answered(server: Keyed) -> None:
    async def flood(number: int) -> None:
        async with server.running.client(headers={"x-api-key": "x"}) as client:
            for each in range(20):
                answer = await client.get("/agents/list", headers={"x-api-key": f"ek_{number:06}{each:06}_" + "0" * 64})
                assert answer.status_code == 401

    async with server.client("use") as client, trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(flood, number)
        for _ in range(20):
            assert (await client.get("/agents/list")).status_code == 200
    async with server.running.client(headers={"x-api-key": OPERATOR}) as client:
        assert (await client.get("/agents/list")).status_code == 200


async def test_enormous_headers_are_refused_and_the_server_goes_on(server: Keyed) -> None:
    answer = await server.running.raw(request("GET", "/agents/list", b"", "X-API-Key: " + "x" * 200_000))
    assert answer == b"" or parse(answer).status_code in (400, 401, 431)
    async with server.client("use") as client:
        assert (await client.get("/agents/list")).status_code == 200

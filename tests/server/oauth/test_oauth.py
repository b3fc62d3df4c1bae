"""Tokens at a server: which are accepted, how others are refused, and what that costs other tenants."""

import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from mcp_support import modern
from oauth_support import (
    RESOURCE,
    FakeIssuer,
    Opened,
    claims,
    ec_key,
    fake_issuer,
    issuer_table,
    oauth,
    opened,
    part,
    public,
    raw_signed,
    rsa_key,
    signed,
)
from server_support import assert_envelope, parse, request

from engine.work import WORK
from server.http import auth
from server.oauth import attempts, issuers
from server.oauth.token import Reason

METADATA = "http://127.0.0.1:7331/.well-known/oauth-protected-resource/mcp"
NO_TOKEN = f'Bearer realm="engine", scope="engine:use", resource_metadata="{METADATA}"'
INVALID = f'Bearer realm="engine", error="invalid_token", scope="engine:use", resource_metadata="{METADATA}"'

Make = Callable[..., str]


@pytest.fixture(autouse=True)
def _the_machine_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuers, "WAIT_S", 30)
    monkeypatch.setattr(issuers, "FETCH_S", 60)


@pytest.fixture
async def issuer() -> AsyncIterator[FakeIssuer]:
    async with fake_issuer() as found:
        yield found


@pytest.fixture
async def server(tmp_path: Path, issuer: FakeIssuer) -> AsyncIterator[Opened]:
    async with opened(tmp_path, oauth(sso=issuer_table(issuer.url))) as found:
        yield found


@pytest.fixture
def make(issuer: FakeIssuer) -> Make:
    """A token of the issuer; arguments change its claims."""

    def token(**more: Any) -> str:
        return signed(claims(iss=issuer.url, **more))

    return token


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def ask(server: Opened, token: str, target: str = "/agents/list", method: str = "GET", **more: Any) -> Any:
    async with server.running.client(headers=bearer(token)) as client:
        return await client.request(method, target, **more)


def assert_refused(answer: httpx2.Response, reason: Reason) -> None:
    assert assert_envelope(answer, 401, "unauthorized")["message"] == reason.value
    assert answer.headers["www-authenticate"] == INVALID


# ---- who gets in ------------------------------------------------------------------------------------------------


async def test_a_token_works_over_rest_and_mcp_for_the_tenant_of_its_claims(server: Opened, make: Make) -> None:
    async with server.running.client(headers=bearer(make())) as client:
        assert (await client.post("/tools/echo", json={"a": 1})).json() == {"result": {"a": 1}}
        listed = await client.post("/mcp", **modern("tools/list"))
        assert "echo" in {tool["name"] for tool in listed.json()["result"]["tools"]}
    assert (await ask(server, make(org_id="org-2"))).status_code == 200
    assert {call.tenant.id for call in server.running.service.seen if hasattr(call, "tenant")} <= {"acme"}


async def test_keys_work_beside_tokens(server: Opened) -> None:
    _, key = await server.control.keys.create("acme", actor="cli")
    for header in (bearer(key), {"x-api-key": key}, bearer(server.operator)):
        async with server.running.client(headers=header) as client:
            assert (await client.get("/agents/list")).status_code == 200


async def test_usage_counts_for_the_tenant_and_names_the_sender(server: Opened, make: Make) -> None:
    service: Any = server.running.service
    heard: list[Any] = []
    original = service.call_tool

    async def telling(name: str, params: Any, call: Any, agent: Any = None) -> Any:
        heard.append(call.tenant)
        return await original(name, params, call, agent)

    service.call_tool = telling
    await ask(server, make(), "/tools/echo", "POST", json={})
    await ask(server, make(org_id="org-2", sub="bob smith"), "/tools/echo", "POST", json={})
    digest = hashlib.sha256(b"bob smith").hexdigest()[:40]
    assert [(tenant.id, tenant.key) for tenant in heard] == [
        ("acme", "oauth:sso:alice"),
        ("other", f"oauth:sso:sha256-{digest}"),
    ]


async def test_a_token_is_never_the_operators(server: Opened, make: Make) -> None:
    token = make(scope="engine:use engine:publish engine:admin operator", operator=True)
    for target in ("/admin/tenants", "/admin/nothing", "/metrics"):
        answer = await ask(server, token, target)
        assert_envelope(answer, 403, "forbidden")
        assert "www-authenticate" not in answer.headers
    assert (await ask(server, token, "/agents/list?tenant=other")).status_code == 200


async def test_suspending_a_tenant_ends_its_tokens_with_the_next_request(server: Opened, make: Make) -> None:
    token = make()
    assert (await ask(server, token)).status_code == 200
    await server.control.tenants.set_state("acme", "suspended", actor="cli")
    assert_refused(await ask(server, token), Reason.TENANT)
    assert (await ask(server, make(org_id="org-2"))).status_code == 200
    await server.control.tenants.set_state("acme", "active", actor="cli")
    assert (await ask(server, token)).status_code == 200
    await server.control.tenants.delete("other", actor="cli")
    assert_refused(await ask(server, make(org_id="org-2")), Reason.TENANT)


async def test_two_issuers_with_one_subject_are_two_senders_and_neither_signs_for_the_other(tmp_path: Path) -> None:
    async with fake_issuer() as one, fake_issuer() as two:
        two.set_keys(public(ec_key()))
        config = oauth(one=issuer_table(one.url), two=issuer_table(two.url, tenants={"org-1": "other"}))
        async with opened(tmp_path, config) as server:
            heard: list[Any] = []
            service: Any = server.running.service
            service.list_agents = lambda tenant: heard.append(tenant) or []
            assert (await ask(server, signed(claims(iss=one.url)))).status_code == 200
            assert (await ask(server, signed(claims(iss=two.url), ec_key(), "ES256"))).status_code == 200
            assert [(tenant.id, tenant.key) for tenant in heard] == [
                ("acme", "oauth:one:alice"),
                ("other", "oauth:two:alice"),
            ]
            assert_refused(await ask(server, signed(claims(iss=two.url))), Reason.FORGED)
            assert_refused(await ask(server, signed(claims(iss=one.url), ec_key(), "ES256")), Reason.FORGED)


# ---- refusals ---------------------------------------------------------------------------------------------------


async def test_without_a_token_the_answer_says_where_to_log_in(server: Opened) -> None:
    async with server.running.client() as client:
        for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Basic azo="}):
            answer = await client.post("/mcp", headers=headers)
            assert_envelope(answer, 401, "unauthorized")
            assert answer.headers.get_list("www-authenticate") == [NO_TOKEN]


async def test_the_metadata_of_the_resource_needs_no_token(server: Opened, issuer: FakeIssuer) -> None:
    async with server.running.client() as client:
        for path in ("", "/mcp"):
            for headers in ({}, bearer("eyJ.eyJ.x"), {"x-api-key": "wrong"}):
                answer = await client.get(f"/.well-known/oauth-protected-resource{path}", headers=headers)
                assert answer.status_code == 200
                assert answer.json() == {
                    "resource": RESOURCE,
                    "authorization_servers": [issuer.url],
                    "scopes_supported": ["engine:use", "engine:publish", "engine:admin"],
                    "bearer_methods_supported": ["header"],
                    "resource_name": "engine",
                }
        assert_envelope(await client.get("/.well-known/oauth-authorization-server"), 404, "not_found")


async def test_a_token_with_too_few_scopes_is_told_which_one_to_log_in_with(server: Opened, make: Make) -> None:
    for scope, method, target, needed in (
        ("openid", "POST", "/mcp", "engine:use"),
        ("openid", "GET", "/agents/list", "engine:use"),
        ("engine:use", "PUT", "/agents/x", "engine:publish"),
        ("engine:use", "GET", "/agents/x/versions", "engine:publish"),
        ("engine:publish", "POST", "/agents/x/versions/1/approve", "engine:admin"),
    ):
        answer = await ask(server, make(scope=scope), target, method, json={})
        error = assert_envelope(answer, 403, "forbidden")
        assert needed in error["message"]
        assert answer.headers["www-authenticate"] == (
            f'Bearer realm="engine", error="insufficient_scope", scope="{needed}", resource_metadata="{METADATA}"'
        )


async def test_a_key_with_too_few_scopes_is_told_of_no_log_in(server: Opened) -> None:
    _, key = await server.control.keys.create("acme", actor="cli", scopes=["publish"])
    answer = await ask(server, key, "/mcp", "POST")
    assert "www-authenticate" not in answer.headers
    assert assert_envelope(answer, 403, "forbidden")["message"] == "this key has no scope 'use'"


def hostile(url: str) -> dict[str, tuple[str, Reason]]:
    good = claims(iss=url)
    header = {"alg": "RS256", "kid": "k1"}
    head, payload = json.dumps(header).encode(), json.dumps(good).encode()
    now = int(time.time())
    return {
        "expired": (signed({**good, "exp": now - 120}), Reason.EXPIRED),
        "early": (signed({**good, "nbf": now + 600}), Reason.EARLY),
        "of tomorrow": (signed({**good, "iat": now + 86400}), Reason.EARLY),
        "for another audience": (signed({**good, "aud": "https://other.example.com/mcp"}), Reason.AUDIENCE),
        "no audience": (signed({k: v for k, v in good.items() if k != "aud"}), Reason.AUDIENCE),
        "of another tenant": (signed({**good, "org_id": "org-9"}), Reason.TENANT),
        "without an expiry": (signed({k: v for k, v in good.items() if k != "exp"}), Reason.CLAIMS),
        "bound to a key": (signed({**good, "cnf": {"jkt": "x"}}), Reason.BOUND),
        "of another issuer": (signed({**good, "iss": "https://evil.example"}), Reason.FORGED),
        "of an issuer with a slash": (signed({**good, "iss": url + "/"}), Reason.FORGED),
        "signed by none": (f"{part({'alg': 'none', 'kid': 'k1'})}.{part(good)}.AA", Reason.FORGED),
        "without a signature": (f"{part(header)}.{part(good)}.", Reason.FORGED),
        "with another signature": (f"{part(header)}.{part(good)}.{part(b'x' * 256)}", Reason.FORGED),
        "signed by another key": (signed(good, rsa_key(number=1)), Reason.FORGED),
        "of an algorithm that is not configured": (signed(good, algorithm="RS512"), Reason.FORGED),
        "with a key that is not there": (signed(good, kid="k9"), Reason.FORGED),
        "with a claim twice": (raw_signed(head, payload[:-1] + b',"sub":"mallory"}'), Reason.FORGED),
        "with a critical header": (signed(good, crit=["exp"], exp=1), Reason.FORGED),
        "of another type": (signed(good, typ="dpop+jwt"), Reason.FORGED),
        "of many values": (signed({**good, "junk": [0] * 600}), Reason.FORGED),
        "of 9 KB": (signed({**good, "junk": "x" * 9000}), Reason.FORGED),
        "nothing much": ("eyJ9.e30.AA", Reason.FORGED),
    }


async def test_a_hostile_token_gets_a_typed_error_and_the_next_one_works(
    server: Opened, issuer: FakeIssuer, make: Make
) -> None:
    for name, (token, reason) in hostile(issuer.url).items():
        answer = await ask(server, token)
        assert_refused(answer, reason), name
        assert len(answer.content) < 500
    assert (await ask(server, make())).status_code == 200
    assert issuer.times("/keys") <= 2


async def test_a_megabyte_of_claims_is_refused_with_its_head(server: Opened, make: Make) -> None:
    header = f"Authorization: Bearer {make(junk='x' * 2**20)}"
    with suppress(trio.BrokenResourceError):  # the server closes before all of it is sent
        answer = await server.running.raw(request("GET", "/agents/list", b"", header))
        assert answer == b"" or parse(answer).status_code in (400, 401, 431)
    assert (await ask(server, make())).status_code == 200


async def test_a_token_that_disagrees_with_a_key_is_no_credential(server: Opened, make: Make) -> None:
    _, key = await server.control.keys.create("acme", actor="cli")
    async with server.running.client(headers={**bearer(make()), "x-api-key": key}) as client:
        assert_envelope(await client.get("/agents/list"), 401, "unauthorized")


async def test_without_log_in_configured_a_token_is_a_wrong_key(tmp_path: Path, make: Make) -> None:
    from keys_support import keyed

    async with keyed(tmp_path) as server, server.running.client(headers=bearer(make())) as client:
        answer = await client.get("/agents/list")
        assert_envelope(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == 'Bearer realm="engine"'
        assert_envelope(await client.get("/.well-known/oauth-protected-resource"), 404, "not_found")


# ---- keys that change, issuers that hang, floods ----------------------------------------------------------------


async def test_a_token_ends_with_its_key_and_at_its_expiry_though_it_was_verified_before(
    server: Opened, issuer: FakeIssuer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = make()
    assert (await ask(server, token)).status_code == 200
    issuer.set_keys(public(rsa_key(number=1), kid="k2"))
    monkeypatch.setattr(issuers, "REFETCH_S", 0.0)
    rotated = signed(claims(iss=issuer.url), rsa_key(number=1), kid="k2")
    assert (await ask(server, rotated)).status_code == 200
    assert_refused(await ask(server, token), Reason.FORGED)
    tokens = server.running.guard.auth._tokens
    assert tokens is not None
    monkeypatch.setattr(tokens, "_clock", lambda: time.time() + 700)
    assert_refused(await ask(server, rotated), Reason.EXPIRED)


async def test_an_issuer_that_hangs_disturbs_neither_keys_nor_tokens_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_issuer() as one, fake_issuer() as two:
        two.hang = True
        config = oauth(one=issuer_table(one.url), two=issuer_table(two.url))
        async with opened(tmp_path, config) as server, trio.open_nursery() as nursery:
            hung = signed(claims(iss=two.url))
            for _ in range(10):
                nursery.start_soon(ask, server, hung)
            with trio.fail_after(30):
                for _ in range(10):
                    assert (await ask(server, signed(claims(iss=one.url)))).status_code == 200
            monkeypatch.setattr(issuers, "WAIT_S", 0.05)
            answer = await ask(server, hung)
            assert_envelope(answer, 503, "unavailable")
            assert answer.headers["retry-after"] == "5"
            nursery.cancel_scope.cancel()


async def test_a_flood_of_wrong_tokens_is_bounded_and_leaves_verified_ones_alone(
    server: Opened, issuer: FakeIssuer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "PER_ADDRESS", 0.0)
    monkeypatch.setattr(attempts, "ADDRESS_BURST", 20.0)
    good = make()
    assert (await ask(server, good)).status_code == 200
    statuses = []
    async with server.running.client() as client:
        for number in range(60):
            wrong = signed(claims(iss=issuer.url), kid=f"unknown-{number}")
            statuses.append((await client.get("/agents/list", headers=bearer(wrong))).status_code)
    assert statuses == [401] * 20 + [429] * 40
    assert issuer.times("/keys") <= 2
    assert (await ask(server, good)).status_code == 200
    _, key = await server.control.keys.create("acme", actor="cli")
    assert (await ask(server, key)).status_code == 200


def test_attempts_are_bounded_by_address_and_in_all_and_come_back() -> None:
    found = attempts.Attempts(0.0)

    def burst(address: str, now: float) -> int:
        count = 0
        while found.allowed(address, now):
            found.count(address, now)
            count += 1
        return count

    assert burst("a", 0.0) == attempts.ADDRESS_BURST
    assert burst("b", 0.0) == attempts.ADDRESS_BURST
    assert burst("a", 1.0) == attempts.PER_ADDRESS
    assert sum(burst(f"c{n}", 1.0) for n in range(50)) < attempts.ALL_BURST + 50
    assert burst("d", 1.0) == 1
    assert burst("d", 1000.0) == attempts.ADDRESS_BURST
    for number in range(2 * attempts.MAX_ADDRESSES):
        found.count(f"x{number}", 2000.0)
    assert len(found._addresses) == attempts.MAX_ADDRESSES
    found = attempts.Attempts(0.0)
    for number in range(int(attempts.FIRST_BURST)):
        assert found.allowed(f"x{number}", 0.0)
        found.count(f"x{number}", 0.0)
    assert not found.allowed("another", 0.0)
    assert found.allowed("another", 1.0)


def test_a_flood_of_other_addresses_leaves_an_address_alone_that_has_sent_nothing_wrong() -> None:
    found = attempts.Attempts(0.0)
    for step in range(3000):
        for host in range(3):
            address = f"2001:db8::{3 * step + host:x}" if step % 2 else f"192.0.2.{host + step % 60}"
            if found.allowed(address, step / 100):
                found.count(address, step / 100)
        assert found.allowed("198.51.100.7", step / 100)
        assert found.allowed("2001:db8:0:1::7", step / 100)


def test_a_network_of_64_bits_and_an_address_of_ipv4_in_ipv6_are_one_sender() -> None:
    for addresses in (["2001:db8::1", "2001:db8::ffff:2"], ["192.0.2.1", "::ffff:192.0.2.1"], ["", ""]):
        found = attempts.Attempts(0.0)
        for _ in range(int(attempts.ADDRESS_BURST)):
            assert found.allowed(addresses[0], 0.0)
            found.count(addresses[0], 0.0)
        assert not found.allowed(addresses[1], 0.0)


async def test_an_open_stream_ends_when_its_token_expires(
    server: Opened, issuer: FakeIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(auth, "LOOK_ANYWAY_S", 0.05)
    tokens = server.running.guard.auth._tokens
    assert tokens is not None
    await server.control.tenants.set_state("acme", "active", actor="cli")
    token = signed(claims(iss=issuer.url))
    listen = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    listen["headers"] |= bearer(token)
    async with server.running.client() as client, client.stream("POST", "/mcp", **listen) as stream:
        assert stream.status_code == 200
        lines = stream.aiter_lines()
        with trio.fail_after(10):
            await anext(lines)
            await trio.sleep(0.2)  # looked at several times
            monkeypatch.setattr(tokens, "_clock", lambda: time.time() + 700)
            async for _ in lines:
                pass


def test_the_work_on_a_token_is_in_the_list() -> None:
    assert WORK["token"].max_bytes == 8192
    assert WORK["issuer keys"].max_bytes == 256 * 1024

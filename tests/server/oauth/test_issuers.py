"""An issuer's keys: fetched through the egress guard, cached, rotated, and bounded in every respect."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from oauth_support import FakeIssuer, claims, fake_issuer, issuer_table, oauth, public, rsa_key, signed

from engine.config import ConfigError, parse_config
from engine.egress.outbound import Outbound
from engine.errors import Code, Problem
from server.oauth import issuers
from server.oauth.issuers import FRESH_S, REFETCH_S, RETRY_S, STALE_S, Issuer, metadata_urls
from server.oauth.token import Token, read_token

METADATA = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"


@pytest.fixture(autouse=True)
def _the_machine_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuers, "WAIT_S", 30)
    monkeypatch.setattr(issuers, "FETCH_S", 30)


@pytest.fixture
async def issuer() -> AsyncIterator[FakeIssuer]:
    async with fake_issuer() as found:
        yield found


@asynccontextmanager
async def known(fake: FakeIssuer, **table: Any) -> AsyncIterator[Issuer]:
    config = oauth(sso=issuer_table(fake.url, **table)).issuers["sso"]
    async with trio.open_nursery() as nursery:
        found = Issuer("sso", config, Outbound())
        found.open(nursery)
        yield found
        nursery.cancel_scope.cancel()


def token(fake: FakeIssuer, kid: str = "k1") -> Token:
    return read_token(signed(claims(iss=fake.url), kid=kid))


async def has(issuer: Issuer, token: Token) -> bool:
    return await issuer.find(token, wait=True) is not None


async def unavailable(issuer: Issuer, token: Token) -> str:
    with pytest.raises(Problem) as caught:
        await issuer.find(token, wait=True)
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.retry_after_s == RETRY_S
    return caught.value.message


def reasons(logged: list[Any]) -> list[str]:
    return [entry["reason"] for entry in logged if entry["event"] == "the keys of an issuer cannot be fetched"]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Moves the clock of issuers forward."""
    moved = 0.0
    real = trio.current_time

    class Clock:
        def __getattr__(self, name: str) -> Any:
            return getattr(trio, name)

        def current_time(self) -> float:
            return real() + moved

    monkeypatch.setattr(issuers, "trio", Clock())

    def move(seconds: float) -> None:
        nonlocal moved
        moved += seconds

    return move


async def test_keys_are_found_by_the_metadata_of_the_issuer_and_fetched_once(issuer: FakeIssuer) -> None:
    async with known(issuer) as found:
        for _ in range(20):
            assert await has(found, token(issuer))
    assert issuer.asked == [METADATA, "/keys"]


async def test_metadata_of_openid_connect_counts_as_well(issuer: FakeIssuer) -> None:
    issuer.answers[OPENID] = issuer.answers.pop(METADATA)
    async with known(issuer) as found:
        assert await has(found, token(issuer))
    assert issuer.asked == [METADATA, OPENID, "/keys"]


async def test_the_place_of_the_keys_may_be_configured(issuer: FakeIssuer) -> None:
    async with known(issuer, jwks_uri=f"{issuer.url}/keys") as found:
        assert await has(found, token(issuer))
    assert issuer.asked == ["/keys"]


def test_metadata_is_looked_for_in_the_order_of_the_specification() -> None:
    assert metadata_urls("https://sso.example.com") == (
        "https://sso.example.com/.well-known/oauth-authorization-server",
        "https://sso.example.com/.well-known/openid-configuration",
    )
    assert metadata_urls("https://sso.example.com/") == metadata_urls("https://sso.example.com")
    assert metadata_urls("https://sso.example.com/realms/a") == (
        "https://sso.example.com/.well-known/oauth-authorization-server/realms/a",
        "https://sso.example.com/.well-known/openid-configuration/realms/a",
        "https://sso.example.com/realms/a/.well-known/openid-configuration",
    )


async def test_an_unknown_kid_has_the_keys_fetched_again_and_a_new_key_is_found(issuer: FakeIssuer, later: Any) -> None:
    async with known(issuer) as found:
        assert await has(found, token(issuer))
        issuer.set_keys(public(rsa_key(), kid="k2"))
        later(REFETCH_S)
        assert await has(found, token(issuer, "k2"))
        assert not await has(found, token(issuer))


async def test_a_flood_of_unknown_kids_is_one_fetch(issuer: FakeIssuer, later: Any) -> None:
    async with known(issuer) as found:
        assert await has(found, token(issuer))
        later(REFETCH_S)
        async with trio.open_nursery() as nursery:
            for number in range(500):
                nursery.start_soon(has, found, token(issuer, f"unknown-{number}"))
        for number in range(500):
            assert not await has(found, token(issuer, f"another-{number}"))
    assert issuer.times("/keys") == 2


async def test_keys_are_fetched_again_beside_the_request_once_they_are_old(issuer: FakeIssuer, later: Any) -> None:
    async with known(issuer) as found:
        assert await has(found, token(issuer))
        issuer.set_keys(public(rsa_key(), kid="k2"))
        later(FRESH_S)
        assert await has(found, token(issuer))  # with the old keys, at once
        with trio.fail_after(30):
            while await found.find(token(issuer), wait=False) is not None:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert await has(found, token(issuer, "k2"))


async def test_cached_keys_work_while_the_issuer_hangs_until_they_are_too_old(
    issuer: FakeIssuer, later: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with known(issuer) as found:
        assert await has(found, token(issuer))
        issuer.hang = True
        later(FRESH_S)
        with trio.fail_after(10):
            for _ in range(100):
                assert await has(found, token(issuer))
        monkeypatch.setattr(issuers, "WAIT_S", 0.05)
        later(STALE_S)
        assert "cannot be fetched" in await unavailable(found, token(issuer))


async def test_an_issuer_that_hangs_costs_a_request_a_bounded_time_and_is_asked_again(
    issuer: FakeIssuer, later: Any, monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    monkeypatch.setattr(issuers, "WAIT_S", 0.05)
    monkeypatch.setattr(issuers, "FETCH_S", 0.2)
    issuer.hang = True
    async with known(issuer) as found:
        with trio.fail_after(10):
            await unavailable(found, token(issuer))
            while not reasons(logged):  # noqa: ASYNC110
                await trio.sleep(0.05)
        issuer.hang = False
        later(RETRY_S)
        monkeypatch.setattr(issuers, "WAIT_S", 30)
        monkeypatch.setattr(issuers, "FETCH_S", 30)
        assert await has(found, token(issuer))
    assert any("no complete answer" in reason for reason in reasons(logged))


async def test_so_many_requests_wait_for_an_issuer_and_no_more(
    issuer: FakeIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuers, "MAX_WAITING", 3)
    issuer.hang = True

    async def wait(found: Issuer) -> None:
        await found.find(token(issuer), wait=True)

    async with known(issuer) as found, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait, found)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(10):
            await unavailable(found, token(issuer))
        nursery.cancel_scope.cancel()


BAD = [
    ({METADATA: 404}, "no metadata"),
    ({METADATA: 500}, "status 500"),
    ({METADATA: b"<html>"}, "not JSON"),
    ({METADATA: b"{}"}, "its issuer is not"),
    ({METADATA: b'{"issuer": "https://evil.example", "jwks_uri": "https://evil.example/keys"}'}, "its issuer is not"),
    ({METADATA: b"x" * 100_000}, "larger than"),
    ({METADATA: b'{"a":[' + b"1," * 5000 + b"1]}"}, "values"),
    ({"/keys": 302}, "status 302"),
    ({"/keys": b"x" * 300_000}, "larger than"),
    ({"/keys": b'{"keys":[' + b"{}," * 5000 + b"{}]}"}, "values"),
    ({"/keys": b"[]"}, "no JWKS"),
    ({"/keys": b'{"keys": [], "keys": []}'}, "twice"),
]


@pytest.mark.parametrize(("answers", "said"), BAD, ids=[said + str(n) for n, (_, said) in enumerate(BAD)])
async def test_what_an_issuer_answers_is_bounded_and_checked(
    issuer: FakeIssuer, answers: dict[str, Any], said: str, logged: list[Any]
) -> None:
    issuer.answers |= answers
    issuer.location = f"{issuer.url}/elsewhere"
    async with known(issuer) as found:
        await unavailable(found, token(issuer))
    assert said in reasons(logged)[0]
    assert "/elsewhere" not in issuer.asked


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("http://127.0.0.1:1/keys", "not a public address"),
        ("http://example.com/keys", "https"),
        ("https://169.254.169.254/latest", "not a public address"),
        ("https://keys.example.com/keys", "keys.example.com"),
        ("file:///etc/passwd", "https"),
        (7, "no jwks_uri"),
    ],
)
async def test_metadata_leads_to_no_host_that_is_not_configured(
    issuer: FakeIssuer, uri: Any, said: str, logged: list[Any]
) -> None:
    issuer.answers[METADATA] = json.dumps({"issuer": issuer.url, "jwks_uri": uri}).encode()
    async with known(issuer) as found:
        await unavailable(found, token(issuer))
    assert said in reasons(logged)[0]


HEAD = '[tenants]\nenabled = true\n[tenants.oauth]\nresource = "https://engine.example.com/mcp"\n'
SSO = '[tenants.oauth.issuers.sso]\nissuer = "https://sso.example.com"\n'
LOCAL = '[tenants.oauth.issuers.sso]\nissuer = "http://127.0.0.1:8"\n'
KEY = 'true\noperator_key = "eyJhbGciOiJub25lIn0.e30.AA"'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD, "tenants.oauth: required key 'issuers' is missing"),
        (HEAD + "issuers = {}", "expected 1 to 16 tables [tenants.oauth.issuers.NAME]"),
        (HEAD + SSO, "tenants.oauth.issuers.sso: give one of tenant and tenant_claim"),
        (HEAD + SSO + 'tenant = "a"\ntenant_claim = "b"', "give one of tenant and tenant_claim"),
        (HEAD + SSO + 'tenant = "a"\ntenants = { x = "y" }', "tenants needs tenant_claim"),
        (HEAD + SSO + 'tenant = "a"\naudiance = ["x"]', "did you mean 'audience'?"),
        (HEAD + SSO + 'tenant = "a"\nalgorithms = ["HS256"]', "tenants.oauth.issuers.sso.algorithms[0]: expected"),
        (HEAD + SSO + 'tenant = "a"\nalgorithms = ["none"]', "algorithms[0]: expected"),
        (HEAD + SSO + 'tenant = "a"\nalgorithms = []', "at least one algorithm"),
        (HEAD + SSO + 'tenant = "a"\nscopes = { use = ["a b"] }', "scopes.use[0]: expected the name of a scope"),
        (HEAD + SSO + 'tenant = "a"\nscopes = { call = ["a"] }', "scopes.call: unknown key"),
        (HEAD + SSO + 'tenant = "a"\ndefault_scopes = ["operator"]', "default_scopes[0]: expected"),
        (HEAD + SSO + 'tenant = "a"\nkey_claim = []', "key_claim: expected the name of a claim"),
        (HEAD + SSO + 'tenant = "a"\njwks_uri = "https://keys.example.com/"', "keys.example.com is not among"),
        (HEAD + SSO.replace("https", "http") + 'tenant = "a"', "expected a URL that begins with https://"),
        (HEAD + SSO.replace("sso.e", "u:p@sso.e") + 'tenant = "a"', "must not hold a user"),
        (HEAD + SSO.replace("com", "com/?a=b") + 'tenant = "a"', "without query and fragment"),
        (HEAD + LOCAL + 'tenant = "a"', 'allow_hosts = ["127.0.0.1:8"]'),
        (HEAD + SSO + 'tenant = "a"\n' + SSO.replace("sso]", "two]") + 'tenant = "b"', "two issuers have the same URL"),
        (HEAD.replace("/mcp", "/") + SSO + 'tenant = "a"', "tenants.oauth.resource: expected the URL of /mcp"),
        (HEAD.replace("true", "false") + SSO + 'tenant = "a"', "oauth needs tenants.enabled = true"),
        (HEAD.replace("true", KEY) + SSO + 'tenant = "a"', "operator_key has the form of a token"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_configuration_names_its_key(text: str, said: str, tmp_path: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, environ={}, cwd=tmp_path)
    assert said in str(caught.value)

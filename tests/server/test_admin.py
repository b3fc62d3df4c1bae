"""The operator's routes, over real sockets with a real control store."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from keys_support import Keyed, keyed
from server_support import assert_envelope, request


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed(tmp_path) as found:
        yield found


async def test_a_tenant_lives_from_creation_to_a_deletion_that_is_proved(server: Keyed) -> None:
    async with server.client("operator") as client:
        made = await client.post("/admin/tenants", json={"name": "fresh", "quotas": {"burst": 3}})
        assert made.status_code == 201
        assert {"name", "state", "created_at", "quotas", "ceilings", "weight"} == set(made.json())
        assert (await client.get("/admin/tenants/fresh")).json() == made.json()
        changed = await client.put("/admin/tenants/fresh", json={"ceilings": {"timeout_s": 2}, "weight": 2})
        assert changed.json()["quotas"] == {"burst": 3}
        assert changed.json()["ceilings"] == {"timeout_s": 2}
        names = [each["name"] for each in (await client.get("/admin/tenants")).json()["tenants"]]
        assert names == ["acme", "default", "fresh", "other"]
        assert (await client.post("/admin/tenants/fresh/suspend")).json()["state"] == "suspended"
        assert (await client.post("/admin/tenants/fresh/resume", json={})).json()["state"] == "active"
        await client.post("/admin/tenants/fresh/keys", json={})
        proof = (await client.delete("/admin/tenants/fresh")).json()
        assert (proof["tenant"], proof["removed"]["keys"]) == ("fresh", 1)
        assert set(proof["left"].values()) == {0}
        assert_envelope(await client.get("/admin/tenants/fresh"), 404, "not_found")


async def test_a_key_that_was_created_here_works_until_it_is_revoked_here(server: Keyed) -> None:
    async with server.client("operator") as client:
        made = await client.post("/admin/tenants/acme/keys", json={"scopes": ["use", "admin"], "expires": "1d"})
        assert made.status_code == 201
        assert made.json()["scopes"] == ["use", "admin"]
        key, identifier = made.json()["key"], made.json()["id"]
        async with server.running.client(headers={"x-api-key": key}) as theirs:
            assert (await theirs.get("/agents/list")).status_code == 200
            listed = await client.get("/admin/tenants/acme/keys")
            assert identifier in [each["id"] for each in listed.json()["keys"]]
            assert key not in listed.text
            assert (await client.delete(f"/admin/keys/{identifier}")).json()["revoked_at"] is not None
            assert_envelope(await theirs.get("/agents/list"), 401, "unauthorized")
        assert_envelope(await client.delete("/admin/keys/key_none"), 404, "not_found")


async def test_a_secret_is_written_and_listed_and_never_read(server: Keyed) -> None:
    async with server.client("operator") as client:
        target = "/admin/tenants/acme/secrets/TOKEN"
        made = await client.put(target, json={"value": "s3ntinel", "hosts": ["api.example.com"]})
        assert made.status_code == 200
        listed = await client.get("/admin/tenants/acme/secrets")
        assert [each["name"] for each in listed.json()["secrets"]] == ["TOKEN"]
        assert (await client.get("/admin/tenants/other/secrets")).json() == {"secrets": []}
        assert_envelope(await client.get(target), 405, "method_not_allowed")
        audit = await client.get("/admin/audit?tenant=acme")
        assert "s3ntinel" not in made.text + listed.text + audit.text
        assert (await client.delete(target)).json() == {"deleted": "TOKEN"}
        assert_envelope(await client.delete(target), 404, "not_found")


async def test_the_audit_log_names_the_operator_and_can_be_asked_by_tenant_and_time(server: Keyed) -> None:
    async with server.client("operator") as client:
        await client.post("/admin/tenants/acme/suspend")
        found = (await client.get("/admin/audit?tenant=acme&since=1h&limit=1")).json()["audit"]
        (row,) = found
        assert (row["actor"], row["action"], row["target"], row["outcome"]) == (
            "operator", "tenant.suspend", "acme", "ok",
        )  # fmt: skip
        assert (await client.get("/admin/audit?tenant=ghost")).json() == {"audit": []}
        for query in ("limit=0", "limit=x", "limit=10001", "since=soon", "who=me", "tenant=a&tenant=b"):
            assert_envelope(await client.get(f"/admin/audit?{query}"), 400, "bad_request")


REFUSED: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/admin/tenants", {}, 400, "missing required key: name"),
    ("POST", "/admin/tenants", {"name": 1}, 400, "name: expected a text"),
    ("POST", "/admin/tenants", {"name": "a/b"}, 400, "cannot name a tenant"),
    ("POST", "/admin/tenants", {"name": "x", "quota": {}}, 400, "unknown key 'quota'"),
    ("POST", "/admin/tenants", {"name": "x", "quotas": {"burst": "1"}}, 400, "quota burst"),
    ("POST", "/admin/tenants", {"name": "x", "weight": True}, 400, "weight: expected a number"),
    ("POST", "/admin/tenants", {"name": "ACME"}, 409, "'acme' exists"),
    ("PUT", "/admin/tenants/ghost", {"weight": 1}, 404, "there is no tenant 'ghost'"),
    ("POST", "/admin/tenants/ghost/suspend", {}, 404, "there is no tenant 'ghost'"),
    ("POST", "/admin/tenants/acme/suspend", {"why": ""}, 400, "this takes none"),
    ("DELETE", "/admin/tenants/ghost", None, 404, "there is no tenant 'ghost'"),
    ("DELETE", "/admin/tenants/default", None, 409, "it stays"),
    ("POST", "/admin/tenants/ghost/keys", {}, 404, "there is no tenant 'ghost'"),
    ("POST", "/admin/tenants/acme/keys", {"scopes": "use"}, 400, "scopes: expected a list"),
    ("POST", "/admin/tenants/acme/keys", {"scopes": [1]}, 400, "scopes: expected a list"),
    ("POST", "/admin/tenants/acme/keys", {"scopes": []}, 400, "at least one scope"),
    ("POST", "/admin/tenants/acme/keys", {"expires": "1999-01-01"}, 400, "is not in the future"),
    ("PUT", "/admin/tenants/acme/secrets/A", {"value": "v", "hosts": ["*"]}, 400, "'*' would send it"),
    ("PUT", "/admin/tenants/acme/secrets/A", {"value": "v"}, 400, "missing required key: hosts"),
    ("GET", "/admin/nothing", None, 404, "there is nothing at"),
    ("DELETE", "/admin/tenants", None, 405, "does not take this method"),
]


async def test_what_cannot_be_done_is_refused_with_the_reason_and_changes_nothing(server: Keyed) -> None:
    codes = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 409: "conflict"}
    async with server.client("operator") as client:
        before = (await client.get("/admin/tenants")).text
        for method, target, body, status, said in REFUSED:
            given = {} if body is None else {"json": body}
            answer = await client.request(method, target, **given)
            assert said in assert_envelope(answer, status, codes[status])["message"], (method, target, body)
        assert (await client.get("/admin/tenants")).text == before


async def test_no_key_of_a_tenant_reaches_any_of_it_or_learns_what_is_there(server: Keyed) -> None:
    texts = set()
    async with server.client("all") as client:
        for method, target in (
            ("GET", "/admin"),
            ("GET", "/admin/tenants"),
            ("POST", "/admin/tenants"),
            ("GET", "/admin/tenants/acme"),
            ("GET", "/admin/tenants/other"),
            ("GET", "/admin/tenants/ghost"),
            ("DELETE", "/admin/tenants/other"),
            ("POST", "/admin/tenants/acme/keys"),
            ("DELETE", f"/admin/keys/{server.ids['other']}"),
            ("DELETE", "/admin/keys/key_none"),
            ("GET", "/admin/audit"),
            ("GET", "/admin/nothing"),
            ("GET", "/admin/tenants?tenant=acme"),
        ):
            answer = await client.request(method, target)
            assert_envelope(answer, 403, "forbidden")
            texts.add(answer.text)
    assert len(texts) == 1
    async with server.client("other") as client:
        assert (await client.get("/agents/list")).status_code == 200


@pytest.mark.parametrize("prefix", ["//", "///", "/./", "/x/../", "/%2e/", "/%2f", "/;/", "/\\", "http://localhost//"])
async def test_no_spelling_of_a_path_gives_a_tenants_key_what_is_the_operators(server: Keyed, prefix: str) -> None:
    key = f"X-API-Key: {server.keys['all']}"
    for method, target in (
        ("POST", "admin/tenants/other/keys"),
        ("GET", "admin/tenants"),
        ("POST", "admin/tenants/other/suspend"),
        ("DELETE", "admin/tenants/other"),
    ):
        answer = await server.running.raw(request(method, prefix + target, b"", key))
        assert_envelope(answer, 404, "not_found")
    async with server.client("operator") as client:
        assert (await client.get("/admin/tenants/other")).json()["state"] == "active"
    async with server.client("other") as client:
        assert (await client.get("/agents/list")).status_code == 200

"""Errors as problem details (RFC 9457), and how many requests are left: on every answer, whatever layer gives it."""

import json
from pathlib import Path
from typing import Any

import pytest
from keys_support import keyed
from server_support import FakeService, Running, assert_envelope, serving

from engine.config import ServerConfig
from engine.errors import Code, LimitUse, Problem
from engine.quota import RequestsLeft
from server.http.problem_json import MEDIA, as_problem, is_wanted
from server.http.rates import rate_headers
from server.problems import problem_answer

ACCEPT = {"accept": "application/problem+json"}


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("application/problem+json", True),
        ("Application/Problem+JSON", True),
        ("application/json, application/problem+json", True),
        ("text/html, application/problem+json;q=0.5, application/json;q=0.5", True),
        ("application/problem+json;charset=utf-8;q=0.1", True),
        ("application/problem+json;q=0.5, application/json", False),
        ("application/problem+json;q=0", False),
        ("application/problem+json;q=x", False),
        ("application/problem+jsonx", False),
        ("application/json", False),
        ("application/*", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_problem_details_are_for_those_who_name_them(accept: str, wanted: bool) -> None:
    assert is_wanted(accept.encode()) is wanted


def test_an_accept_of_any_length_is_read_in_linear_time() -> None:
    for part in (b"application/problem+json;", b"application/problem+json,", b";q=0,", b",;,;"):
        is_wanted(MEDIA + b"," + part * 4_000)


@pytest.mark.parametrize("code", Code)
def test_every_fact_of_the_envelope_is_in_the_details(code: Code) -> None:
    use = LimitUse("timeout_s", 1, None, "s", "script")
    answer = problem_answer(Problem(code, "why ü", run_id="r", limit=use, retry_after_s=1.5, traceback="a:1"))
    details = as_problem(answer.body, answer.status)
    assert details is not None
    error = json.loads(answer.body)["error"]
    found = json.loads(details)
    assert found == {
        "type": f"urn:engine:error:{code.value}", "title": found["title"], "status": code.spec.status,
        "detail": "why ü", **{key: value for key, value in error.items() if key != "message"},
    }  # fmt: skip
    assert found["title"].lower() == code.value.replace("_", " ")


@pytest.mark.parametrize(
    "body", [b"", b"x", b"[]", b"{}", b'{"error": 1}', b'{"jsonrpc": "2.0", "error": {"code": -32600, "message": "m"}}']
)
def test_what_is_no_envelope_stays_as_it_is(body: bytes) -> None:
    assert as_problem(body, 400) is None


# Errors of every layer: guard, keys, router, Quart's routes, calls, the body, a bug.
ERRORS: tuple[tuple[str, str, dict[str, Any], int, str], ...] = (
    ("GET", "/nothing", {}, 404, "not_found"),
    ("GET", "//health", {}, 404, "not_found"),
    ("GET", "/health?agent=a&agent=b", {}, 400, "bad_request"),
    ("DELETE", "/health", {}, 405, "method_not_allowed"),
    ("GET", "/tools/list?agent=unknown", {}, 404, "not_found"),
    ("POST", "/agents/helper/prompt", {"json": {}}, 400, "bad_request"),
    ("POST", "/agents/broken/prompt", {"json": {}}, 500, "agent_error"),
    ("POST", "/agents/bug/prompt", {"json": {}}, 500, "internal"),
    ("POST", "/tools/raises", {"json": {"code": "memory_limit"}}, 500, "memory_limit"),
    ("POST", "/tools/raises", {"json": {"code": "queue_full"}}, 429, "queue_full"),
    ("POST", "/tools/echo", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, "bad_request"),
    ("POST", "/tools/echo", {"content": b"{}"}, 415, "unsupported_media_type"),
    ("POST", "/tools/echo", {"content": b"x" * 3_000, "headers": {"content-type": "application/json"}}, 413,
     "too_large"),
    ("GET", "/health", {"headers": {"host": "evil.example"}}, 421, "misdirected"),
    ("POST", "/tools/echo", {"json": {}, "headers": {"origin": "https://evil.example"}}, 403, "forbidden"),
    ("POST", "/mcp?agent=unknown", {"json": {}}, 404, "not_found"),
)  # fmt: skip


async def test_an_error_of_every_layer_has_both_forms_with_the_same_facts() -> None:
    service = FakeService(server=ServerConfig(max_body_bytes=2_000))
    async with serving(service) as running, running.client() as client:
        for method, path, options, status, code in ERRORS:
            headers = options.get("headers", {})
            plain = await client.request(method, path, **options)
            error = assert_envelope(plain, status, code)
            for asked in (method, *(["HEAD"] if method == "GET" else [])):
                answer = await client.request(asked, path, **{**options, "headers": headers | ACCEPT})
                assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
                assert "accept" in answer.headers.get_list("vary"), path
                assert answer.headers.get("allow") == plain.headers.get("allow")
                assert answer.headers.get("retry-after") == plain.headers.get("retry-after")
            if method != "GET":
                details = answer.json()
                assert (details["status"], details["code"]) == (status, code)
                if code != "internal":  # each has a reference of its own
                    assert details["detail"] == error["message"]
                assert {key: details[key] for key in set(error) - {"message"}} == {
                    key: error[key] for key in set(error) - {"message"}
                }


async def test_an_answer_that_is_no_error_is_not_changed(server: Running) -> None:
    async with server.client(headers=ACCEPT) as client:
        answer = await client.post("/tools/value", json={"value": {"error": {"code": "x", "message": "y"}}})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert "accept" not in answer.headers.get_list("vary")
        rpc = await client.post("/mcp", content=b"[]", headers={"content-type": "application/json"})
        assert rpc.headers["content-type"] != "application/problem+json"


# ---- how many requests are left ---------------------------------------------------------------------------------


def test_the_headers_are_structured_fields_within_their_bounds() -> None:
    assert dict(rate_headers(RequestsLeft(40, 2, 37, 1))) == {
        b"ratelimit-policy": b'"requests";q=40;w=2',
        b"ratelimit": b'"requests";r=37;t=1',
    }
    largest = dict(rate_headers(RequestsLeft(10**20, 10**20, 10**20, 10**20)))
    assert b"q=999999999999999;w=999999999999999" in largest[b"ratelimit-policy"]


async def test_every_answer_to_a_tenants_key_says_how_many_requests_are_left_and_no_other_does(tmp_path: Path) -> None:
    async with keyed(tmp_path) as server:
        server.running.service.engine.left = RequestsLeft(40, 2, 37, 1)
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        asked: tuple[tuple[str, str, Any], ...] = (
            ("GET", "/health", None), ("GET", "/agents/list", None), ("GET", "/nothing", None), ("GET", "//x", None),
            ("GET", "/metrics", None), ("OPTIONS", "/agents/list", None), ("POST", "/tools/echo", {}),
            ("POST", "/agents/helper/prompt", {}), ("POST", "/mcp", rpc), ("POST", "/mcp", []),
        )  # fmt: skip
        for who in (None, "use", "operator"):
            async with server.client(who) as client:
                for method, path, body in asked:
                    answer = await client.request(method, path, json=body)
                    shown = (answer.headers.get("ratelimit-policy"), answer.headers.get("ratelimit"))
                    expected = ('"requests";q=40;w=2', '"requests";r=37;t=1') if who == "use" else (None, None)
                    assert shown == expected, (who, method, path)

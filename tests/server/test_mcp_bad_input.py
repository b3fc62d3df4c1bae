"""What clients get wrong, by accident or not: the status and code of the specification, and the next call works."""

import json
from contextlib import suppress
from random import Random
from typing import Any

import httpx2
import pytest
import trio
from mcp_support import META, MODERN, assert_works, handshake, message, modern
from server_support import FakeService, Running, assert_envelope, parse, request, serving

from engine.config import ServerConfig
from engine.work import WORK
from server.mcp.message import MAX_TYPED, MAX_TYPED_TEXT, refuse_message

HEADER_MISMATCH, UNSUPPORTED_VERSION = -32020, -32022
ECHO: dict[str, Any] = {"name": "echo", "arguments": {}}
PROTOCOL_VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


def without(ask: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**ask, "headers": {key: value for key, value in ask["headers"].items() if key not in names}}


def with_meta(ask: dict[str, Any], meta: Any) -> dict[str, Any]:
    message = ask["json"]
    return {**ask, "json": {**message, "params": {**message["params"], "_meta": meta}}}


async def answered(server: Running, ask: dict[str, Any]) -> tuple[httpx2.Response, dict[str, Any]]:
    """The answer and its JSON-RPC error. Nothing was run for it, and the next call works."""
    before = len(server.service.seen)
    async with server.client() as client:
        response = await client.post("/mcp", **ask)
    error = message(response)["error"]
    assert len(server.service.seen) == before
    for leak in ("pydantic", "Traceback", "validation error", "<class", "/usr"):
        assert leak not in response.text
    await assert_works(server)
    return response, error


# ---- headers and body --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        without(modern("tools/call", ECHO), "mcp-method"),
        without(modern("tools/call", ECHO), "mcp-name"),
        without(modern("tools/call", ECHO), "mcp-protocol-version"),
        without(modern("prompts/get", {"name": "helper"}), "mcp-name"),
        without(modern("resources/read", {"uri": "engine://documents/x"}), "mcp-name"),
        modern("tools/call", ECHO, **{"mcp-method": "tools/list"}),
        modern("tools/call", ECHO, **{"mcp-method": "TOOLS/CALL"}),
        modern("tools/call", ECHO, **{"mcp-name": "value"}),
        modern("tools/call", ECHO, **{"mcp-name": "=?base64?broken"}),
        modern("tools/call", ECHO, **{"mcp-name": "=?base64?!!!?="}),
        modern("tools/call", ECHO, **{"mcp-protocol-version": "2025-11-25"}),
        modern("tools/call", ECHO, **{"mcp-protocol-version": "2099-01-01"}),
    ],
)
async def test_headers_that_are_missing_or_disagree_with_the_body_are_a_mismatch(
    server: Running, ask: dict[str, Any]
) -> None:
    response, error = await answered(server, ask)
    assert response.status_code == 400
    assert error["code"] == HEADER_MISMATCH
    assert message(response)["id"] == 1


@pytest.mark.parametrize("name", ["mcp-method", "mcp-name", "mcp-protocol-version"])
async def test_a_header_that_is_given_twice_is_a_mismatch(server: Running, name: str) -> None:
    ask = modern("tools/call", ECHO)
    for first in (ask["headers"][name], "other", "2025-11-25"):
        headers = [*ask["headers"].items(), (name, first)]
        response, error = await answered(server, {"json": ask["json"], "headers": headers})
        assert (response.status_code, error["code"]) == (400, HEADER_MISMATCH)
        response, error = await answered(server, {"json": ask["json"], "headers": headers[::-1]})
        assert (response.status_code, error["code"]) == (400, HEADER_MISMATCH)


async def test_an_unknown_version_is_answered_with_the_known_ones(server: Running) -> None:
    ask = with_meta(
        modern("tools/list", **{"mcp-protocol-version": "2099-01-01"}), {**META, PROTOCOL_VERSION: "2099-01-01"}
    )
    response, error = await answered(server, ask)
    assert (response.status_code, error["code"]) == (400, UNSUPPORTED_VERSION)
    assert error["data"] == {"supported": [MODERN], "requested": "2099-01-01"}
    for version in ("garbage", "", "2024-01-01", "x" * 5000):
        ask = handshake("tools/list")
        ask["headers"]["mcp-protocol-version"] = version
        response, error = await answered(server, ask)
        assert (response.status_code, error["code"]) == (400, UNSUPPORTED_VERSION)
        assert MODERN in error["data"]["supported"]
        assert "2025-11-25" in error["data"]["supported"]


@pytest.mark.parametrize(
    "meta",
    [
        None,
        5,
        [],
        {},
        {PROTOCOL_VERSION: MODERN},
        {CAPABILITIES: {}},
        {**META, CAPABILITIES: 5},
        {**META, "io.modelcontextprotocol/clientInfo": 5},
        {**META, "progressToken": {}},
        {**META, "progressToken": None},
    ],
)
async def test_an_envelope_that_is_not_one_is_invalid_params(server: Running, meta: Any) -> None:
    response, error = await answered(server, with_meta(modern("tools/list"), meta))
    assert (response.status_code, error["code"]) == (400, -32602)
    assert "_meta" in error["message"]


@pytest.mark.parametrize("accept", ["text/html", "application/json", "text/event-stream"])
@pytest.mark.parametrize("era", [modern, handshake])
async def test_a_client_that_cannot_take_the_answer_is_told_what_it_must_take(
    server: Running, era: Any, accept: str
) -> None:
    ask = era("tools/list")
    ask["headers"]["accept"] = accept
    response, error = await answered(server, ask)
    assert response.status_code == 406
    assert "text/event-stream" in error["message"]


# ---- params ------------------------------------------------------------------------------------------------------

WRONG_PARAMS: list[tuple[str, dict[str, Any], str]] = [
    ("tools/call", {"name": "echo", "arguments": []}, "params.arguments must be an object"),
    ("tools/call", {"name": "echo", "arguments": "x"}, "params.arguments must be an object"),
    ("tools/call", {}, "params.name is missing"),
    ("tools/list", {"cursor": 5}, "params.cursor must be a string"),
    ("prompts/get", {"name": "helper", "arguments": {"service": 5}}, "params.arguments.service must be a string"),
    ("prompts/get", {"name": "helper", "arguments": {"service": None}}, "a prompt's arguments are strings"),
    ("prompts/get", {"name": "helper", "arguments": ["x"]}, "params.arguments must be an object"),
    ("resources/read", {}, "params.uri is missing"),
    ("completion/complete", {"ref": {"type": "ref/other"}, "argument": {"name": "a", "value": "b"}}, "params.ref"),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "helper"}, "argument": {"name": "service", "value": 5}},
        "params.argument.value must be a string",
    ),
]
UNKNOWN: list[tuple[str, dict[str, Any], str]] = [
    ("tools/call", {"name": "nothing"}, "nothing"),
    ("tools/call", {"name": ""}, ""),
    ("tools/call", {"name": "x" * 1000}, ""),
    ("prompts/get", {"name": "nobody"}, "nobody"),
    ("prompts/get", {"name": "helper"}, "service"),
    ("tools/list", {"cursor": "forged"}, "cursor"),
    ("prompts/list", {"cursor": ""}, "cursor"),
    ("resources/list", {"cursor": "AAAAAAAAAAAAAAAAAAAAAAAA"}, "cursor"),
    ("resources/templates/list", {"cursor": "2"}, "cursor"),
]


@pytest.mark.parametrize(("method", "params", "words"), WRONG_PARAMS)
async def test_params_of_the_wrong_type_are_invalid_params_and_named(
    server: Running, method: str, params: dict[str, Any], words: str
) -> None:
    for era, status in ((modern, 400), (handshake, 200)):
        response, error = await answered(server, era(method, params))
        assert (response.status_code, error["code"]) == (status, -32602)
        assert words in error["message"]


@pytest.mark.parametrize(("method", "params", "words"), UNKNOWN)
async def test_unknown_tools_prompts_and_cursors_are_invalid_params(
    server: Running, method: str, params: dict[str, Any], words: str
) -> None:
    for era, status in ((modern, 400), (handshake, 200)):
        async with server.client() as client:
            response = await client.post("/mcp", **era(method, params))
        error = message(response)["error"]
        assert (response.status_code, error["code"]) == (status, -32602)
        assert words in error["message"]
        assert len(response.content) < 4000
    await assert_works(server)


@pytest.mark.parametrize("method", ["no/such", "", "initialize/x", "notifications/progress", "__init__", "x" * 1000])
async def test_an_unknown_method_is_method_not_found(server: Running, method: str) -> None:
    response, error = await answered(server, modern(method))
    assert (response.status_code, error["code"]) == (404, -32601)
    response, error = await answered(server, handshake(method))
    assert (response.status_code, error["code"]) == (200, -32601)


@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel", "resources/subscribe"])
async def test_a_method_that_2026_took_away_is_not_found_there(server: Running, method: str) -> None:
    response, error = await answered(server, modern(method, {"level": "info", "uri": "x"}))
    assert (response.status_code, error["code"]) == (404, -32601)


@pytest.mark.parametrize("state", ["forged", "v1.AAAA", "", 5, {"a": 1}, "v1." + "A" * 10_000])
async def test_a_forged_request_state_is_invalid_params(server: Running, state: Any) -> None:
    for method, params in (("tools/call", ECHO), ("prompts/get", {"name": "helper", "arguments": {"service": "x"}})):
        response, error = await answered(server, modern(method, {**params, "requestState": state}))
        assert (response.status_code, error["code"]) == (400, -32602)


async def test_answers_without_a_request_change_nothing(server: Running) -> None:
    given = {"a": {"action": "accept", "content": {"x": 1}}}
    async with server.client() as client:
        response = await client.post("/mcp", **modern("tools/call", {**ECHO, "inputResponses": given}))
    assert message(response)["result"]["structuredContent"] == {}


async def test_a_tools_own_parameter_in_a_header_must_agree_with_the_body() -> None:
    service = FakeService()
    schema = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}
    service.tools["echo"] = service.tools["echo"].model_copy(update={"parameters": schema})
    async with serving(service) as server:
        call = {"name": "echo", "arguments": {"city": "Oslo"}}
        for headers in ({}, {"mcp-param-city": "Rome"}, {"mcp-param-city": "=?base64?SGVsbG8?="}):
            response, error = await answered(server, modern("tools/call", call, **headers))
            assert (response.status_code, error["code"]) == (400, HEADER_MISMATCH)
        async with server.client() as client:
            for value in ("Oslo", "=?base64?T3Nsbw==?="):
                response = await client.post("/mcp", **modern("tools/call", call, **{"mcp-param-city": value}))
                assert message(response)["result"]["structuredContent"] == {"city": "Oslo"}


# ---- the transport -----------------------------------------------------------------------------------------------


async def test_a_body_of_ten_megabytes_is_413_and_the_connection_usable_or_closed(server: Running) -> None:
    body = json.dumps(modern("tools/call", {"name": "echo", "arguments": {"a": "x" * 10_000_000}})["json"]).encode()
    head = request("POST", "/mcp", body, "Accept: */*")
    async with await server.connect() as stream:
        answer = b""
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(head)

            nursery.start_soon(send)
            with trio.fail_after(20):
                while part := await stream.receive_some():
                    answer += part
            nursery.cancel_scope.cancel()
    assert_envelope(answer, 413, "too_large")
    assert parse(answer).headers["connection"] == "close"
    await assert_works(server)


@pytest.mark.parametrize("kind", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
async def test_a_body_that_never_ends_is_408_and_holds_up_nobody(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.http.guard.LINGER_S", 0.2)
    async with serving(FakeService(ServerConfig(body_timeout_s=0.3))) as server, await server.connect() as stream:
        head = ["POST /mcp HTTP/1.1", "Host: localhost", "Content-Type: application/json", kind, "", ""]
        await stream.send_all("\r\n".join(head).encode() + (b"5\r\n{    \r\n" if "chunked" in kind else b"{"))
        await assert_works(server)
        answer = b""
        with trio.fail_after(20):
            while part := await stream.receive_some():
                answer += part
    assert_envelope(answer, 408, "body_timeout")


@pytest.mark.parametrize("era", [modern, handshake])
async def test_a_foreign_host_or_page_gets_nothing(server: Running, era: Any) -> None:
    ask = era("tools/call", ECHO)
    async with server.client() as client:
        for headers, status, code in (
            ({"host": "evil.example"}, 421, "misdirected"),
            ({"origin": "https://evil.example"}, 403, "forbidden"),
            ({"origin": "null"}, 403, "forbidden"),
        ):
            response = await client.post("/mcp", json=ask["json"], headers={**ask["headers"], **headers})
            assert_envelope(response, status, code)
            assert "access-control-allow-origin" not in response.headers
    assert server.service.seen == []
    await assert_works(server)


async def test_a_client_that_never_reads_its_answer_is_given_up(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.transport.http1.WRITE_TIMEOUT_S", 0.3)
    ask = modern("tools/call", {"name": "value", "arguments": {"value": "x" * 3_000_000}})
    body = json.dumps(ask["json"]).encode()
    head = request("POST", "/mcp", body, *(f"{key}: {value}" for key, value in ask["headers"].items()))
    async with await server.connect() as stream:
        for _ in range(3):  # more than the kernel takes for a reader that sleeps
            with trio.move_on_after(2):
                try:
                    await stream.send_all(head)
                except trio.BrokenResourceError:
                    break
        with trio.fail_after(30):
            while server.guard.in_flight:
                await trio.testing.wait_all_tasks_blocked(0.01)
    await assert_works(server)


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
@pytest.mark.parametrize("era", [modern, handshake])
async def test_the_connection_is_closed_when_the_client_asks_for_it(server: Running, era: Any, connection: str) -> None:
    # The SDK cancels its own task as soon as the answer is out; the closing must not go with it.
    ask = era("tools/call", ECHO)
    body = json.dumps(ask["json"]).encode()
    headers = [f"{key}: {value}" for key, value in ask["headers"].items()]
    for _ in range(10):
        async with await server.connect() as stream:
            await stream.send_all(request("POST", "/mcp", body, f"Connection: {connection}", *headers))
            answer = b""
            with trio.fail_after(20):
                while part := await stream.receive_some():
                    answer += part
                    if connection == "keep-alive" and b"structuredContent" in answer:
                        break
            assert b"structuredContent" in answer


def test_one_message_is_told_from_everything_else() -> None:
    assert refuse_message(b'{"jsonrpc":"2.0","id":1,"method":"ping"}') is None
    assert refuse_message(b'{"jsonrpc":"2.0","id":1,"result":{}}') is None
    assert refuse_message(b'{"jsonrpc":"2.0","method":"notifications/x"}') is None
    for raw in (b"[]", b"5", b"{}", b'{"jsonrpc":"2.0","id":1}', b'{"jsonrpc":"2.0","id":true,"method":"x"}'):
        answer = refuse_message(raw)
        assert answer is not None
        assert json.loads(answer.body)["error"]["code"] == -32600


# ---- whatever comes ----------------------------------------------------------------------------------------------

JUNK: tuple[Any, ...] = (None, True, 0, -1, 1.5, 1e308, "", "x", [], [[]], {}, {"x": 1}, "engine://documents/x")
METHODS = (
    "initialize", "server/discover", "ping", "tools/list", "tools/call", "prompts/list", "prompts/get",
    "resources/list", "resources/read", "resources/templates/list", "completion/complete", "subscriptions/listen",
    "logging/setLevel", "notifications/cancelled", "notifications/initialized", "notifications/progress", "x", "",
)  # fmt: skip
KEYS = ("name", "arguments", "uri", "cursor", "ref", "argument", "level", "notifications", "protocolVersion",
        "capabilities", "clientInfo", "requestId", "context", "inputResponses", "requestState")  # fmt: skip
META_KEYS = (*META, "progressToken", "io.modelcontextprotocol/logLevel")
LIBRARY_TEXT = (
    "pydantic", "validation error", "Traceback", "input_value", "input_type", "union[", "For further information",
    "<class", "JSONRPC", "Params", "starlette", "/usr", ".py",
)  # fmt: skip


def any_message(random: Random) -> dict[str, Any]:
    """A message that is nearly one of JSON-RPC: any part may be missing, of another type, or of another message."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": random.choice((1, "a", *JUNK)), "method": random.choice(METHODS)}
    params = {key: random.choice(JUNK) for key in random.sample(KEYS, random.randrange(4))}
    if random.random() < 0.7:
        params["name"] = random.choice(("echo", "helper"))
    if random.random() < 0.3:
        params["ref"] = {"type": random.choice(("ref/prompt", "ref/resource", "x")), "name": random.choice(JUNK)}
    params["_meta"] = {**META, **{key: random.choice(JUNK) for key in random.sample(META_KEYS, random.randrange(3))}}
    body["params"] = random.choice((params, params, params, random.choice(JUNK)))
    if random.random() < 0.2:
        body["result"] = random.choice(JUNK)
    if random.random() < 0.2:
        body["error"] = random.choice((*JUNK, {"code": random.choice(JUNK), "message": random.choice(JUNK)}))
    for key in random.sample(list(body), random.choice((0, 0, 0, 1, 2))):
        del body[key]
    return body


@pytest.mark.parametrize("seed", range(4))
async def test_no_message_is_answered_with_the_text_of_a_library(server: Running, seed: int) -> None:
    random = Random(seed)
    async with server.client() as client:
        for _ in range(60):
            body = any_message(random)
            make = random.choice((modern, handshake))
            asked = make(str(body.get("method", "x")) or "x")["headers"]
            async with client.stream("POST", "/mcp", headers=asked, json=body) as response:
                with trio.move_on_after(5):
                    if body.get("method") != "subscriptions/listen":
                        await response.aread()
            text = response.text if response.is_stream_consumed else ""
            assert response.status_code < 500, body
            assert [leak for leak in LIBRARY_TEXT if leak in text] == [], body
    await assert_works(server)


@pytest.mark.parametrize("token", [True, False, None, 1.5, [], {}])
@pytest.mark.parametrize("make", [modern, handshake])
async def test_a_progress_token_is_a_string_or_a_whole_number(server: Running, make: Any, token: Any) -> None:
    ask, meta = make("tools/call", ECHO), META if make is modern else {}
    _, error = await answered(server, with_meta(ask, {**meta, "progressToken": token}))
    assert error["code"] == -32602
    assert "params._meta.progressToken must be a string or a whole number" in error["message"]
    for right in ("t", 0, 7):
        async with server.client() as client:
            answer = await client.post("/mcp", **with_meta(ask, {**meta, "progressToken": right}))
        assert message(answer)["result"]["structuredContent"] == {}


@pytest.mark.parametrize(
    "error", [{}, {"code": 1}, {"message": "x"}, {"code": "1", "message": "x"}, {"code": True, "message": ""}]
)
async def test_an_answer_with_half_an_error_is_no_message(server: Running, error: dict[str, Any]) -> None:
    for make in (modern, handshake):
        ask = make("x")
        response, refused = await answered(server, {**ask, "json": {"jsonrpc": "2.0", "id": 1, "error": error}})
        assert (response.status_code, refused["code"], refused["message"]) == (400, -32600, "the message is malformed")


# ---- messages with many values -----------------------------------------------------------------------------------

MANY = {f"k{i}": 1 for i in range(2 * MAX_TYPED)}


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {**ECHO, "inputResponses": MANY}),
        ("tools/call", {**ECHO, "task": {"ttl": 1, "more": list(MANY)}}),
        ("prompts/get", {"name": "helper", "arguments": MANY}),
        ("resources/read", {"uri": "engine://documents/x", "inputResponses": MANY}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "helper"}, "context": {"arguments": MANY}}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": [1] * 2 * MAX_TYPED}}),
        ("tools/list", {"cursor": [[[]] * MAX_TYPED]}),
        ("nothing/known", MANY),
    ],
)
@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_what_the_protocol_types_is_bounded_in_values(
    server: Running, method: str, params: dict[str, Any], era: str
) -> None:
    ask = modern(method, params) if era == "modern" else handshake(method, params)
    response, error = await answered(server, ask)
    assert (response.status_code, error["code"]) == (400, -32600)
    assert f"{MAX_TYPED} values" in error["message"]


LONG = "x" * 2 * MAX_TYPED_TEXT


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": LONG, "arguments": {}}),
        ("prompts/get", {"name": "helper", "_meta": {LONG: 1}}),
        ("resources/read", {"uri": "engine://documents/" + "%41" * MAX_TYPED_TEXT}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "helper"}, "argument": {"name": LONG}}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": [LONG[:9000]] * 20}}),
        ("tools/list", {"cursor": LONG}),
    ],
)
async def test_what_the_protocol_types_is_bounded_in_characters(
    server: Running, method: str, params: dict[str, Any]
) -> None:
    response, error = await answered(server, handshake(method, params))
    assert (response.status_code, error["code"]) == (400, -32600)
    assert f"{MAX_TYPED_TEXT} characters" in error["message"]


@pytest.mark.parametrize(("method", "params"), [("tools/call", {**ECHO, "_meta": {"progressToken": LONG}}), (LONG, {})])
async def test_a_method_and_a_progress_token_are_no_long_texts(
    server: Running, method: str, params: dict[str, Any]
) -> None:
    response, error = await answered(server, handshake(method, params))
    assert (response.status_code, error["code"]) == (400, -32600)
    assert len(response.content) < 1000


async def test_an_id_is_no_long_text(server: Running) -> None:
    ask = handshake("ping")
    response, error = await answered(server, {**ask, "json": {**ask["json"], "id": LONG}})
    assert (response.status_code, error["code"]) == (400, -32600)
    assert len(response.content) < 1000


async def test_arguments_may_hold_long_texts(server: Running) -> None:
    async with server.client() as client:
        for method, name in (("tools/call", "echo"), ("prompts/get", "helper")):
            ask = handshake(method, {"name": name, "arguments": {"topic": LONG}})
            assert "characters" not in (await client.post("/mcp", **ask)).text


async def test_arguments_of_a_tool_may_hold_many_values(server: Running) -> None:
    arguments = {"rows": list(MANY.items()), **MANY}
    async with server.client() as client:
        for ask in (modern, handshake):
            response = await client.post("/mcp", **ask("tools/call", {"name": "echo", "arguments": arguments}))
            assert "error" not in message(response)


async def test_more_values_than_a_message_may_hold_are_refused_before_one_is_made(server: Running) -> None:
    bound = WORK["message"].max_values or 0
    response, error = await answered(server, modern("tools/call", {"name": "echo", "arguments": {"a": [0] * bound}}))
    assert (response.status_code, error["code"]) == (400, -32700)
    assert f"{bound} commas" in error["message"]


# ---- what answers repeat -----------------------------------------------------------------------------------------

HUGE = "x" * 1_000_000


@pytest.mark.parametrize("era", [modern, handshake])
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": HUGE, "arguments": {}}),
        ("prompts/get", {"name": HUGE}),
        ("resources/read", {"uri": f"engine://documents/{HUGE}"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": HUGE}, "argument": {"name": HUGE, "value": ""}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": HUGE}, "argument": {"name": "a", "value": ""}}),
        ("tools/list", {"cursor": HUGE}),
        ("tools/call", {**ECHO, "_meta": {**META, "progressToken": HUGE}}),
        ("tools/call", {**ECHO, "_meta": {**META, PROTOCOL_VERSION: HUGE}}),
        (HUGE, {}),
    ],
)
async def test_no_error_repeats_much_of_what_was_sent(
    server: Running, era: Any, method: str, params: dict[str, Any]
) -> None:
    ask = era(method, params)
    ask["json"]["params"] |= params
    for name in ("mcp-method", "mcp-name"):
        if len(ask["headers"].get(name, "")) > 1000:
            ask["headers"][name] = "x"
    async with server.client() as client:
        assert len((await client.post("/mcp", **ask)).content) < 16_384
    await assert_works(server)


@pytest.mark.parametrize("era", [modern, handshake])
async def test_an_id_that_is_long_is_malformed(server: Running, era: Any) -> None:
    ask = era("tools/call", ECHO)
    ask["json"]["id"] = HUGE
    response, error = await answered(server, ask)
    assert (response.status_code, error["code"]) == (400, -32600)
    ask["json"]["id"] = "x" * 256
    async with server.client() as client:
        assert message(await client.post("/mcp", **ask))["id"] == "x" * 256

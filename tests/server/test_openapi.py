"""The description of the API: what each key may call is in it and nothing else, and what the pages show fits it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import trio
from keys_support import Keyed, keyed
from pages import HTTP, PAGES, blocks, quoted, section
from server_support import FakeService, Running, serving
from test_docs import request_of
from test_routes import ROUTES

from agents.agent import AgentArgument, AgentInfo
from agents.tool import ToolInfo
from engine.errors import CODES
from engine.host.lag import LoopWatch, watched
from server.http.asgi import Exchange
from server.rest.openapi import KEPT, MAX_OWN_BYTES, OpenApi, needs_met
from server.rest.operations import OPERATIONS
from server.rest.shapes import COMPONENTS

Document = dict[str, Any]


async def described(running: Running, key: str | None = None) -> Document:
    async with running.client(headers={} if key is None else {"x-api-key": key}) as client:
        answer = await client.get("/openapi.json")
    assert answer.status_code == 200, answer.text
    found: Document = answer.json()
    return found


def operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    """Every operation with its method and path."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def rows(document: Document, service: FakeService) -> set[str]:
    """The operations that are rows of the table of routes, in its spelling."""
    own = {f"/tools/{name}" for name in service.tools} | {f"/agents/{name}/prompt" for name in service.agents}
    return {
        "* /mcp"
        if path == "/mcp"
        else f"{method} {path.replace('{path}', '<path:path>').replace('{', '<').replace('}', '>')}"
        for method, path, _ in operations(document)
        if path not in own or method != "POST"
    }


def validator(document: Document, schema: Any) -> jsonschema_rs.Draft202012Validator:
    """A validator of a schema inside a document."""
    return jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})


def test_every_route_has_its_operation_and_every_operation_its_route() -> None:
    assert set(OPERATIONS) == set(ROUTES)


def test_every_component_is_referred_to_and_every_reference_leads_to_one() -> None:
    text = repr([(each.answers, each.body) for each in OPERATIONS.values()]) + repr(COMPONENTS)
    assert set(re.findall(r"#/components/schemas/(\w+)", text)) == set(COMPONENTS) - {"Error", "Problem"}


@pytest.mark.parametrize("key", ["use", "publish", "admin", "all", "operator"])
async def test_a_key_is_described_exactly_what_it_may_call(key: str, tmp_path: Path) -> None:
    async with keyed(tmp_path) as server:
        document = await described(server.running, server.keys[key])
        identity = await server.control.keys.authenticate(server.keys[key])
        assert identity is not None
        table = server.running.guard.auth.table
        may = {f"{each.method} {each.rule}" for each in table.routes if each.need in needs_met(identity, True)}
        assert rows(document, server.running.service) == may
        own = "/agents/helper/prompt" in document["paths"]
        assert own == (key in ("use", "all", "operator"))
        assert ("Tenant" in document["components"]["schemas"]) == (key == "operator"), "what it may not call is unseen"


async def test_without_keys_a_client_elsewhere_is_described_no_route_of_this_machine() -> None:
    async with serving() as running:
        here = await described(running)
        async with running.client(headers={"x-forwarded-for": "203.0.113.9"}) as client:
            elsewhere = (await client.get("/openapi.json")).json()
    assert "/metrics" in here["paths"]
    assert "put" in here["paths"]["/agents/{name}"]
    assert not {"/metrics", "/agents/{name}"} & set(elsewhere["paths"])
    assert not any(path.startswith("/admin") for path in here["paths"])
    assert "securitySchemes" not in here["components"]


async def test_the_document_is_one_that_openapi_describes(tmp_path: Path) -> None:
    """Its own rules, as far as JSON Schema cannot say them: names of operations, parameters of paths, references."""
    async with keyed(tmp_path) as server:
        document = await described(server.running, server.keys["operator"])
    named = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(named) == len(set(named))
    for method, path, operation in operations(document):
        parameters = [(each["name"], each["in"]) for each in operation.get("parameters", ())]
        assert len(parameters) == len(set(parameters)), path
        assert {name for name, place in parameters if place == "path"} == set(re.findall("{([^}]+)}", path))
        assert any(status.startswith("2") for status in operation["responses"]), (method, path)
        for scheme in operation["security"]:
            assert set(scheme) <= set(document["components"]["securitySchemes"])
    assert set(document["components"]["schemas"]) == set(COMPONENTS)
    for schema in document["components"]["schemas"].values():
        validator(document, schema)


# ---- the pages --------------------------------------------------------------------------------------------------


def found_for(document: Document, method: str, path: str) -> Document | None:
    """The operation of a path: a literal one is the better one."""
    item = document["paths"].get(path)
    if item is not None and method.lower() in item:
        return dict(item[method.lower()])
    for rule, item in document["paths"].items():
        if re.fullmatch(re.sub(r"\\{[^}]+\\}", "[^/]+", re.escape(rule)), path) and method.lower() in item:
            return dict(item[method.lower()])
    return None


async def test_every_status_and_code_of_the_page_is_in_the_document(tmp_path: Path) -> None:
    async with keyed(tmp_path) as server:
        document = await described(server.running, server.keys["operator"])
    told = {
        (status, code)
        for _, _, operation in operations(document)
        for status, answer in operation["responses"].items()
        for code in quoted(answer["description"])
    }
    assert told == {(str(spec.status), code.value) for code, spec in CODES.items()}
    statuses = set(re.findall(r"\b[2-5]\d\d\b(?=:)", section(HTTP, "PUT /agents/NAME, PUT /tools/NAME").text))
    assert statuses <= set(document["paths"]["/agents/{name}"]["put"]["responses"])
    assert "304" in document["paths"]["/tools/list"]["get"]["responses"]


async def test_every_example_of_the_pages_fits_the_document(tmp_path: Path) -> None:
    async with keyed(tmp_path) as server:
        document = await described(server.running, server.keys["operator"])
    seen = 0
    for page in PAGES:
        for block, after in zip(blocks(page), [*blocks(page)[1:], None], strict=False):
            commands = re.findall(r"^curl .*?(?=^curl |\Z)", block.text, re.MULTILINE | re.DOTALL)
            for command in commands if block.info == "sh" else ():
                asked = request_of(command)
                path = asked.target.partition("?")[0]
                if (asked.method, path) == ("GET", "/mcp"):
                    continue
                operation = found_for(document, asked.method, path)
                assert operation is not None, block.where
                answer = operation["responses"][str(asked.expected)]
                seen += 1
                if asked.body:
                    body = operation["requestBody"]["content"]["application/json"]["schema"]
                    validator(document, body).validate(json.loads(asked.body))
                if len(commands) == 1 and after is not None and after.info == "json" and '…": "…' not in after.text:
                    media = dict(asked.headers).get("accept", "").partition(",")[0] or "application/json"
                    shape = answer["content"][media]["schema"]
                    validator(document, shape).validate(json.loads(after.text))
    assert seen > 10


async def test_the_answers_of_a_server_fit_its_document(tmp_path: Path) -> None:
    async with keyed(tmp_path) as server:
        document = await described(server.running, server.keys["operator"])
        async with server.client("operator") as client:
            for method, path, body in ASKED:
                answer = await client.request(method, path, json=body)
                operation = found_for(document, method, path.partition("?")[0])
                assert operation is not None, path
                shown = operation["responses"][str(answer.status_code)]["content"]
                schema = shown[answer.headers["content-type"].partition(";")[0]]["schema"]
                validator(document, schema).validate(answer.json())
                if body is not None and answer.status_code < 300:
                    validator(document, operation["requestBody"]["content"]["application/json"]["schema"]).validate(
                        body
                    )


ASKED: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/health", None),
    ("GET", "/openapi.json", None),
    ("GET", "/limits", None),
    ("GET", "/tools/list", None),
    ("GET", "/agents/list", None),
    ("POST", "/tools/search", {"query": "x"}),
    ("POST", "/tools/search", {"arguments": {"query": "x"}}),
    ("POST", "/tools/number", {}),
    ("POST", "/tools/raises", {"code": "memory_limit"}),
    ("POST", "/tools/raises", {"code": "queue_full"}),
    ("POST", "/tools/nothing", {}),
    ("POST", "/agents/helper/prompt", {"service": "x"}),
    ("POST", "/agents/helper/prompt", {"arguments": {"service": "x"}}),
    ("POST", "/agents/helper/prompt", {}),
    ("GET", "/admin/tenants", None),
    ("POST", "/admin/tenants", {"name": "fresh", "quotas": {"burst": 3}}),
    ("POST", "/admin/tenants", {"name": "fresh"}),
    ("GET", "/admin/tenants/fresh", None),
    ("PUT", "/admin/tenants/fresh", {"weight": 2}),
    ("POST", "/admin/tenants/fresh/suspend", None),
    ("POST", "/admin/tenants/fresh/resume", None),
    ("POST", "/admin/tenants/fresh/keys", {"scopes": ["use"], "expires": "30d"}),
    ("GET", "/admin/tenants/fresh/keys", None),
    ("PUT", "/admin/tenants/fresh/secrets/TOKEN", {"value": "x", "hosts": ["example.com"]}),
    ("GET", "/admin/tenants/fresh/secrets", None),
    ("DELETE", "/admin/tenants/fresh/secrets/TOKEN", None),
    ("GET", "/admin/audit", None),
    ("GET", "/admin/audit?limit=x", None),
    ("DELETE", "/admin/tenants/fresh", None),
    ("DELETE", "/admin/tenants/fresh", None),
)  # fmt: skip


# ---- bounds and what is kept ------------------------------------------------------------------------------------


def large(count: int, size: int) -> list[ToolInfo]:
    """Tools whose schemas take so many bytes each."""
    schema = {"type": "object", "properties": {"a": {"description": "x" * size}}}
    return [ToolInfo(name=f"t{n}", description="", builtin=False, parameters=schema) for n in range(count)]


async def test_a_document_is_bounded_and_says_what_it_leaves_out() -> None:
    service = FakeService()
    service.tools = {tool.name: tool for tool in large(1_000, 16_000)}
    async with serving(service) as running, running.client() as client:
        answer = await client.get("/openapi.json")
    document = answer.json()
    there = sum(path.startswith("/tools/t") for path in document["paths"])
    agents = sum(f"/agents/{name}/prompt" in document["paths"] for name in service.agents)
    assert len(answer.content) < MAX_OWN_BYTES + 256 * 1024
    assert 20 < there < 200
    left_out = 1_000 - there + len(service.agents) - agents
    assert f"{left_out} agents and tools are left out" in document["info"]["description"]


async def test_what_a_document_leaves_out_is_rendered_in_pieces_that_are_paid_for_as_well() -> None:
    service = FakeService()
    service.tools = {tool.name: tool for tool in large(1_000, 60_000)}
    made = OpenApi(service, frozenset())  # type: ignore[arg-type]
    exchange, paid, watch = Exchange({}, trio.CancelScope()), [], LoopWatch()
    exchange.charge, exchange.keyed = paid.append, False
    with watched(watch):
        await made.show(exchange)
        await trio.lowlevel.checkpoint()
    assert len(paid) > 200
    assert watch.lag().cpu_s < sum(paid) / 2


async def test_a_document_is_made_once_while_nothing_changes_and_anew_when_a_tool_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []
    from server.rest import openapi

    encode = openapi._document
    monkeypatch.setattr(openapi, "_document", lambda *given: made.append(given) or encode(*given))
    service = FakeService()
    async with serving(service) as running, running.client() as client:
        first = await client.get("/openapi.json")
        tag = first.headers["etag"]
        same = await client.get("/openapi.json", headers={"if-none-match": f'"other", {tag}'})
        assert (same.status_code, same.content, same.headers["etag"], len(made)) == (304, b"", tag, 1)
        service.tools["echo"] = service.tools["echo"].model_copy(update={"description": "Another"})
        changed = await client.get("/openapi.json", headers={"if-none-match": tag})
        assert (changed.status_code, len(made)) == (200, 2)
        assert changed.headers["etag"] != tag


async def test_so_many_documents_are_kept_and_no_more(tmp_path: Path) -> None:
    async with keyed(tmp_path) as server:
        for n in range(KEPT + 3):
            await server.control.tenants.create(f"t{n}", actor="cli")
            async with server.client("operator") as client:
                assert (await client.get(f"/openapi.json?tenant=t{n}")).status_code == 200
        assert len(kept_of(server)) == KEPT


def kept_of(server: Keyed) -> Any:
    handler = next(each.handler for each in server.running.guard.auth.table.routes if each.rule == "/openapi.json")
    return handler.__self__._kept  # type: ignore[union-attr]


async def test_what_a_tenant_writes_into_its_tools_leads_to_no_schema_of_others(tmp_path: Path) -> None:
    """Nor do references of its own lead anywhere: in the document they would point at another place."""
    service_tools = [
        ToolInfo(name="sly", description='"#/components/schemas/Nothing"', builtin=False,
                 parameters={"$defs": {"a": {}}, "properties": {"a": {"$ref": "#/$defs/a"}}}),
    ]  # fmt: skip
    agent = AgentInfo(
        name="quoted", description="</script>", tools=(), source="lua",
        arguments=(AgentArgument(name='a"b', required=True), AgentArgument(name="c", enum=("x", "y"))),
    )  # fmt: skip
    service = FakeService()
    service.tools, service.agents = {tool.name: tool for tool in service_tools}, {"quoted": agent}
    async with serving(service) as running:
        document = await described(running)
    flat, _ = document["paths"]["/tools/sly"]["post"]["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    assert flat == {"type": "object"}
    given = document["paths"]["/agents/quoted/prompt"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    takes = validator(document, given)
    assert takes.is_valid({'a"b': 1, "c": None})
    assert takes.is_valid({"arguments": {'a"b': 1, "c": "x"}})
    assert not takes.is_valid({'a"b': None})
    assert not takes.is_valid({'a"b': 1, "c": "z"})


async def test_a_body_is_required_where_an_empty_one_would_be_refused() -> None:
    service = FakeService()
    schema = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
    service.tools = {
        name: ToolInfo(name=name, description="", builtin=False, parameters=parameters)
        for name, parameters in (("some", schema), ("none", {"type": "object"}))
    }
    service.agents = {
        name: AgentInfo(name=name, description="", tools=(), source="lua", arguments=(given,))
        for name, given in (("some", AgentArgument(name="a", required=True)), ("none", AgentArgument(name="a")))
    }
    async with serving(service) as running:
        paths = (await described(running))["paths"]
    for path in ("/tools/%s", "/agents/%s/prompt"):
        required = [paths[path % name]["post"]["requestBody"]["required"] for name in ("some", "none")]
        assert required == [True, False], path


# ---- lists that have not changed --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/tools/list", "/agents/list", "/openapi.json"])
async def test_a_list_that_is_known_is_304_and_one_that_is_not_is_whole(path: str, server: Running) -> None:
    async with server.client() as client:
        first = await client.get(path)
        tag = first.headers["etag"]
        assert tag.startswith('W/"')
        assert first.headers["cache-control"] == "private, no-cache"
        for known in (tag, tag.removeprefix("W/"), "*", f'W/"a,b" , {tag}', f'"x",{tag}'):
            again = await client.get(path, headers={"if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag), known
            assert (await client.head(path, headers={"if-none-match": known})).status_code == 304
        for unknown in ('"x"', "", tag.strip('W/"'), f'"{tag}"'):
            assert (await client.get(path, headers={"if-none-match": unknown})).content == first.content, unknown


async def test_a_list_that_has_changed_has_another_tag(server: Running) -> None:
    async with server.client() as client:
        before = (await client.get("/agents/list")).headers["etag"]
        del server.service.agents["slow"]
        after = await client.get("/agents/list", headers={"if-none-match": before})
    assert after.status_code == 200
    assert after.headers["etag"] != before


async def test_a_header_of_many_tags_is_read_in_no_time(server: Running) -> None:
    for given in (b'"' * 8_000, b'W/"' * 4_000, b'"a",' * 3_000, b"\xff" * 8_000):
        answer = await server.raw(
            b"GET /tools/list HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: " + given + b"\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 200"), answer[:100]

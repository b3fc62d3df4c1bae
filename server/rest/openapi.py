"""`GET /openapi.json`: OpenAPI 3.1 of what the caller's key may call, with the tenant's own agents and tools.

Made from the one table of routes, their `OPERATIONS`, and what the tenant's tools and agents declare. A tenant may have
a thousand of them with 17 KiB each, so the document has as many as its bound allows and says how many it leaves out.
It is charged to the tenant, made in pieces, and cached until one of the objects that it was made from is replaced.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
import trio

from agents.agent import AgentInfo
from agents.tool import ToolInfo
from control.identity import Identity
from engine.errors import Code, Problem
from engine.work import WORK
from server.about import engine_version
from server.http.asgi import Exchange
from server.http.etags import ETag
from server.http.routes import Need, Route
from server.problems import Answer, body_answer, encode
from server.rest.operations import (
    AGENT,
    ENVELOPE,
    JSON,
    OPERATIONS,
    PROBLEM_JSON,
    PROMPT_ANSWER,
    Operation,
    Parameter,
    flat_or_wrapped,
    wrapped,
)
from server.rest.shapes import ANY_OBJECT, COMPONENTS, TEXT, Schema, ref

if TYPE_CHECKING:
    from agents.service import Service

# Bytes of JSON that a tenant's agents and tools may take in one document.
MAX_OWN_BYTES = WORK["description"].max_bytes or 0
# Documents in the cache: one for each tenant and each set of needs that keys of the tenant meet.
KEPT = 16
# Bytes rendered between two checkpoints: 2 ms of work.
_AT_ONCE_BYTES = 128 * 1024
_NAME = re.compile("<(?:path:)?([^>]+)>")
_TO_NAMES = str.maketrans(".-", "__")
_REFERENCE = re.compile(rb'"#/components/schemas/([A-Za-z]+)')
# A reference in a tool's schema would point into this document instead. Only Python tools of the operator have any.
_REFERS = b'"$ref"'


@dataclass(frozen=True, slots=True)
class _Document:
    """A document in the cache, and the objects that it was made from."""

    tools: Sequence[ToolInfo]
    agents: Sequence[AgentInfo]
    tag: ETag
    body: bytes

    def is_current(self, tools: Sequence[ToolInfo], agents: Sequence[AgentInfo]) -> bool:
        return _same(self.tools, tools) and _same(self.agents, agents)


def _same(before: Sequence[object], now: Sequence[object]) -> bool:
    return len(before) == len(now) and all(one is other for one, other in zip(before, now, strict=True))


class OpenApi:
    """The documents of one server. `rows` is its table of routes, complete before the first document is made."""

    def __init__(self, service: "Service", flat_tools: frozenset[str]) -> None:
        self.rows: Sequence[Route] = ()
        self._service = service
        self._flat = flat_tools
        # By tenant, needs that the key meets, and whether there are keys; the least recently used first.
        self._kept: OrderedDict[tuple[str, frozenset[Need], bool], _Document] = OrderedDict()

    async def show(self, exchange: Exchange) -> Answer:
        """The document for this caller."""
        tenant, keyed = exchange.tenant, exchange.keyed
        needs = needs_met(exchange.identity, keyed)
        tools = self._service.list_tools(tenant) if Need.USE in needs else []
        agents = self._service.list_agents(tenant) if Need.USE in needs else []
        key = (tenant.id, needs, keyed)
        document = self._kept.get(key)
        if document is None or not document.is_current(tools, agents):
            body = await self._made(exchange, needs, tools, agents)
            document = self._kept[key] = _Document(tools, agents, ETag(body), body)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        known = document.tag.is_known(exchange.headers)
        return document.tag.unchanged() if known else document.tag.on(body_answer(document.body))

    async def _made(
        self, exchange: Exchange, needs: frozenset[Need], tools: Sequence[ToolInfo], agents: Sequence[AgentInfo]
    ) -> bytes:
        rows = [row for row in self.rows if row.need in needs]
        shown: dict[str, dict[str, Any]] = {}
        for row in rows:
            path, method = _path(row.rule), "post" if row.method == "*" else row.method.lower()
            shown.setdefault(path, {})[method] = orjson.Fragment(_shared(row, exchange.keyed))
        left_out, size, since, began_s = 0, 0, 0, time.thread_time()
        for path, rendered in self._own(tools, agents, keyed=exchange.keyed):
            since += len(rendered)  # what is left out was rendered, too
            if size + len(rendered) > MAX_OWN_BYTES:
                left_out += 1
            else:
                size += len(rendered)
                shown.setdefault(path, {})["post"] = orjson.Fragment(rendered)
            if since > _AT_ONCE_BYTES:
                exchange.charge(time.thread_time() - began_s)
                await trio.lowlevel.checkpoint()
                since, began_s = 0, time.thread_time()
        body = encode(_document(shown, exchange.keyed, left_out))
        exchange.charge(time.thread_time() - began_s)
        return body

    def _own(
        self, tools: Sequence[ToolInfo], agents: Sequence[AgentInfo], *, keyed: bool
    ) -> Iterator[tuple[str, bytes]]:
        for tool in tools:
            yield f"/tools/{tool.name}", encode(_tool(tool, tool.name in self._flat, keyed))
        for agent in agents:
            yield f"/agents/{agent.name}/prompt", encode(_agent(agent, keyed))


def needs_met(identity: Identity, keyed: bool) -> frozenset[Need]:
    """The needs in the table of routes that this identity meets."""
    return frozenset(need for need in Need if _met(need, identity, keyed))


def _met(need: Need, identity: Identity, keyed: bool) -> bool:
    try:
        need.check(identity, keyed)
    except Problem:
        return False
    return True


def _path(rule: str) -> str:
    return _NAME.sub(r"{\1}", rule)


@lru_cache(maxsize=256)
def _shared(row: Route, keyed: bool) -> bytes:
    """The operation of one row of the table: the same for every tenant."""
    operation = OPERATIONS.get(f"{row.method} {row.rule}", Operation(f"{row.method} {row.rule}", {200: {}}))
    return encode(_operation(row.method, row.rule, row.need, operation, keyed))


def _operation(method: str, rule: str, need: Need, operation: Operation, keyed: bool) -> dict[str, Any]:
    names = _NAME.findall(rule)
    open_to_all = need is Need.NOTHING
    errors = operation.errors(keyed=keyed, open_to_all=open_to_all, named=bool(names))
    answers = {status: _answer(status, media, operation.tagged) for status, media in operation.answers.items()}
    if operation.tagged:
        answers[304] = {"description": "The value is the one that If-None-Match names", "headers": _TAGGED}
    responses = _by_status({**{status: _error(status, codes) for status, codes in errors.items()}, **answers})
    if keyed and not open_to_all:
        for each in responses.values():
            each["headers"] = {**each.get("headers", {}), **_RATES}
    parts = [part for part in _NAME.sub(r"\1", rule).split("/") if part]
    found: dict[str, Any] = {
        "operationId": "_".join([*("call" if method == "*" else method.lower(),), *parts]).translate(_TO_NAMES),
        "summary": operation.summary,
        "tags": [parts[0].strip(".").partition(".")[0]],
        "responses": responses,
    }
    parameters = [_in_path(name) for name in names] + [_in_query(each) for each in operation.query]
    if operation.tagged:
        parameters.append({"name": "If-None-Match", "in": "header", "schema": TEXT})
    if parameters:
        found["parameters"] = parameters
    if operation.body is not None:
        found["requestBody"] = {"required": operation.needs_body, "content": {JSON: {"schema": operation.body}}}
    if keyed:
        found["security"] = [{}] if open_to_all else [{"bearer": []}, {"key": []}]
    return found


def _by_status(answers: Mapping[int, Any]) -> dict[str, Any]:
    return {str(status): answers[status] for status in sorted(answers)}


def _answer(status: int, media: Mapping[str, Schema | None], tagged: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if media:
        found["content"] = {kind: {"schema": schema} for kind, schema in media.items()}
    if tagged:
        found["headers"] = _TAGGED
    return found


# Headers of answers to a tenant's key; the operator's key has no rate.
_RATES = {name: {"$ref": f"#/components/headers/{name}"} for name in ("RateLimit", "RateLimit-Policy")}
_TAGGED = {"ETag": {"schema": TEXT}}
_RETRY = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}


def _error(status: int, codes: Sequence[Code]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "description": f"{HTTPStatus(status).phrase}: {', '.join(f'`{code.value}`' for code in codes)}",
        "content": {JSON: {"schema": ref("Error")}, PROBLEM_JSON: {"schema": ref("Problem")}},
    }
    if status == 405:
        found["headers"] = {"Allow": {"schema": TEXT}}
    elif status == 401:
        found["headers"] = {"WWW-Authenticate": {"schema": TEXT}}
    elif any(code.spec.retry for code in codes):
        found["headers"] = _RETRY
    return found


# What a part of a path may be. Names have fewer characters than these: a path with others is a path without a route
# (`target`).
_PART = "^[A-Za-z0-9_][A-Za-z0-9._~+:-]*$"
_PARTS = {"secret": "^[A-Za-z_][A-Za-z0-9_]*$"}


def _in_path(name: str) -> dict[str, Any]:
    if name == "path":
        about = "The path of a file. It may have slashes, which are not escaped."
        return {"name": name, "in": "path", "required": True, "schema": TEXT, "description": about}
    schema = {"type": "string", "pattern": _PARTS.get(name, _PART), "maxLength": 64}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name, "in": "query", "required": parameter.required, "schema": parameter.schema,
        "description": parameter.about,
    }  # fmt: skip


# ---- the tenant's own -------------------------------------------------------------------------------------------


def _tool(tool: ToolInfo, flat: bool, keyed: bool) -> dict[str, Any]:
    returns = _own_schema(tool.returns if tool.returns is not None else {})
    inside = wrapped("result", returns)
    operation = Operation(
        tool.title or f"Call {tool.name}",
        {200: {JSON: {"anyOf": [returns, inside]} if flat else inside}},
        flat_or_wrapped(_own_schema(tool.parameters)),
        needs_body=bool(tool.parameters.get("required")),
        query=(AGENT, ENVELOPE) if flat else (AGENT,),
        codes=OPERATIONS["POST /tools/<name>"].codes,
    )
    return _own(operation, "call_tool", tool.name, tool.description, keyed)


def _agent(agent: AgentInfo, keyed: bool) -> dict[str, Any]:
    operation = Operation(
        agent.title or f"The prompt of {agent.name}",
        {200: {JSON: PROMPT_ANSWER}},
        flat_or_wrapped(
            {
                "type": "object",
                "properties": {
                    each.name: _argument(each.description, each.enum, required=each.required)
                    for each in agent.arguments
                },
                "required": [each.name for each in agent.arguments if each.required],
            }
        ),
        needs_body=any(each.required for each in agent.arguments),
        codes=OPERATIONS["POST /agents/<name>/prompt"].codes,
    )
    return _own(operation, "prompt", agent.name, agent.description, keyed)


def _argument(about: str, enum: Sequence[str] | None, *, required: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"description": about}
    if enum is not None:
        found["enum"] = [*enum, *(() if required else (None,))]
    elif required:
        found["not"] = {"type": "null"}
    return found


def _own(operation: Operation, verb: str, name: str, description: str, keyed: bool) -> dict[str, Any]:
    rule = "/tools/<name>" if verb == "call_tool" else "/agents/<name>/prompt"
    found = _operation("POST", rule, Need.USE, operation, keyed)
    parameters = [each for each in found.pop("parameters", ()) if each["in"] != "path"]
    if parameters:
        found["parameters"] = parameters
    return {**found, "operationId": f"{verb}_{name}", "description": description}


def _own_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool's schema inside the document."""
    return ANY_OBJECT if _REFERS in encode(schema) else schema


# ---- the whole --------------------------------------------------------------------------------------------------


def _document(paths: Mapping[str, Any], keyed: bool, left_out: int) -> dict[str, Any]:
    about = "What this key may call. docs/http-api.md says what each operation does."
    if left_out:
        about += (
            f" {left_out} agents and tools are left out, as their schemas would take more than "
            f"{MAX_OWN_BYTES} bytes; /agents/list and /tools/list have them."
        )
    components: dict[str, Any] = {"schemas": _components(encode(paths))}
    if keyed:
        components["headers"] = {name: {"schema": TEXT} for name in _RATES}
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "engine", "version": engine_version(), "description": about},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": components,
    }


def _components(paths: bytes) -> dict[str, Any]:
    """The components that these paths refer to, directly or not. No other is included: it would reveal a route."""
    found, pending = set[str](), _named(paths)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending |= _references(name)
    return {name: COMPONENTS[name] for name in COMPONENTS if name in found}


@cache
def _references(name: str) -> frozenset[str]:
    return frozenset(_named(encode(COMPONENTS[name])))


def _named(rendered: bytes) -> set[str]:
    # Texts of a tenant may look like a reference: only names of components count.
    return {name for each in _REFERENCE.findall(rendered) if (name := each.decode()) in COMPONENTS}

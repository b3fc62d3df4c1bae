"""What each route takes and answers, by its row in the table of routes. Pure.

`GET /openapi.json` is made from the rows of the table, this list and the schemas of a tenant's tools. A route without a
row here is still in the document, with nothing but its errors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.errors import Code
from server.rest.shapes import (
    ANY_OBJECT,
    MOMENT,
    PERCENT,
    QUERY_TEXT,
    TEXT,
    Schema,
    body,
    listing,
    maybe,
    object_of,
    ref,
)

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"

# Errors of every route: of its query or its head, of the origin or the key's scopes, of its Host, of the server itself.
_ALWAYS = (Code.BAD_REQUEST, Code.FORBIDDEN, Code.MISDIRECTED, Code.INTERNAL, Code.UNAVAILABLE)
# Errors of every route that needs a key, on a server with keys.
_KEYED = (Code.UNAUTHORIZED, Code.RATE_LIMITED, Code.QUOTA_EXCEEDED)
# Errors of every route with a body.
_BODY = (Code.BODY_TIMEOUT, Code.TOO_LARGE, Code.UNSUPPORTED_MEDIA_TYPE, Code.RATE_LIMITED)
# Errors of a run.
_SCRIPT = (
    Code.TIMEOUT, Code.CPU_LIMIT, Code.QUOTA_EXCEEDED, Code.QUEUE_FULL, Code.QUEUE_TIMEOUT, Code.AGENT_ERROR,
    Code.TOOL_ERROR, Code.MEMORY_LIMIT, Code.OUTPUT_LIMIT, Code.CALL_LIMIT, Code.POLICY_VIOLATION, Code.WORKER_LOST,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query."""

    name: str
    schema: Schema
    about: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One route: its success by status and media type, what its body may be, and the codes that are its own.

    An empty body is `{}`, so HTTP requires none; `needs_body` says that `{}` is refused. `tagged`: with an `ETag`.
    """

    summary: str
    answers: Mapping[int, Mapping[str, Schema | None]]
    body: Schema | None = None
    needs_body: bool = False
    query: Sequence[Parameter] = ()
    codes: tuple[Code, ...] = ()
    tagged: bool = False

    def errors(self, *, keyed: bool, open_to_all: bool, named: bool) -> dict[int, list[Code]]:
        """The codes of its errors by status. `named`: its path contains a name."""
        found = (
            *_ALWAYS,
            *(_KEYED if keyed and not open_to_all else ()),
            *(_BODY if self.body is not None else ()),
            *((Code.NOT_FOUND,) if named or _TENANT in self.query else ()),
            *self.codes,
        )
        by_status: dict[int, list[Code]] = {}
        for code in sorted(set(found), key=lambda code: (code.spec.status, code.value)):
            by_status.setdefault(code.spec.status, []).append(code)
        return by_status


def _json(schema: Schema, status: int = 200) -> dict[int, Mapping[str, Schema | None]]:
    return {status: {JSON: schema}}


def flat_or_wrapped(arguments: Schema) -> Schema:
    """A body in its two forms (docs/http-api.md, the envelope rule)."""
    return {"anyOf": [arguments, wrapped("arguments", arguments)]}


def wrapped(key: str, inner: Schema) -> Schema:
    """An object with nothing but this key."""
    return body({key: inner})


AGENT = Parameter("agent", QUERY_TEXT, "Limits the tools to those that this agent may use.")
ENVELOPE = Parameter(
    "envelope", {"enum": ["flat", "wrapped"]}, 'Whether `search`, `get` and `sources` answer `{"result": ...}`, too.'
)
_TENANT = Parameter("tenant", QUERY_TEXT, "With the operator's key: the tenant to act for.")
_SINCE = Parameter("since", MOMENT, "A period before now (90s, 30m, 12h, 30d, 8w), a date or a time.")
_LIMIT = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 10_000}, "At most this many rows, the newest.")
_AUDIT_LIMIT = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1_000}, "At most this many rows.")
_AFTER = Parameter("after", {"type": "integer", "minimum": 0}, "Events after this `seq`.")
_EVENTS = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1_000}, "At most this many events.")
_BEFORE = Parameter("before", QUERY_TEXT, "The `before` of an answer, for the page of older rows.")
_FORMAT = Parameter("format", {"enum": ["json", "csv"]}, "A table with one line for every agent, key and day.")

_PERCENT = Parameter("percent", PERCENT, "The share of the callers that get the version, if it needs no approval.")
_PATH = Parameter("path", {**QUERY_TEXT, "minLength": 1}, "The path of the file in the package.", required=True)

_FILE: Mapping[int, Mapping[str, Schema | None]] = {200: {"text/plain": TEXT}}
_USAGE: Mapping[int, Mapping[str, Schema | None]] = {200: {JSON: ref("Usage"), "text/csv": TEXT}}
PROMPT_ANSWER: Schema = {"anyOf": [ref("Prompt"), wrapped("result", ref("Prompt"))]}


def _publishing(root: str) -> dict[str, Operation]:
    """The routes of versions, of agents or of tools."""
    one = "an agent" if root == "agents" else "a tool"
    version = f"/{root}/<name>/versions/<version>"
    return {
        f"PUT /{root}/<name>": Operation(
            f"Publish a version of {one}",
            {status: {JSON: ref("Version")} for status in (200, 201, 202)},
            ref("Package"), needs_body=True, query=(_PERCENT,), codes=(Code.CONFLICT, Code.TOO_LARGE, *_SCRIPT),
        ),
        f"GET /{root}/<name>/versions": Operation(
            f"List the published versions of {one}", _json(listing("versions", ref("Version"))), tagged=True
        ),
        f"GET {version}": Operation(
            f"A published version of {one}, with its files and what it changes", _json(ref("WholeVersion"))
        ),
        f"GET {version}/files": Operation(
            "A file of a published version, by its path in the query", _FILE, query=(_PATH,), tagged=True
        ),
        f"GET {version}/files/<path:path>": Operation("A file of a published version", _FILE, tagged=True),
        f"POST {version}/activate": Operation(
            "Make a version the active one, or a canary", _json(ref("Version")), ref("Share"),
            codes=(Code.CONFLICT, Code.QUOTA_EXCEEDED),
        ),
        f"POST {version}/approve": Operation(
            "Approve all that a version requests, and activate it", _json(ref("Version")), ref("Share"),
            codes=(Code.CONFLICT, Code.QUOTA_EXCEEDED),
        ),
        f"POST {version}/deprecate": Operation("Take a version out of service for good", _json(ref("Version"))),
    }  # fmt: skip


OPERATIONS: Mapping[str, Operation] = {
    "GET /health": Operation("The state of the server", _json(ref("Health"))),
    "GET /metrics": Operation("Prometheus text", {200: {"text/plain": TEXT}}),
    "GET /openapi.json": Operation("This document", _json(ANY_OBJECT), query=(_TENANT,), tagged=True),
    "GET /.well-known/oauth-protected-resource": Operation(
        "Where clients of MCP log in (RFC 9728)", _json(ANY_OBJECT), codes=(Code.NOT_FOUND,)
    ),
    "GET /.well-known/oauth-protected-resource/mcp": Operation(
        "The same, for clients that add the path of MCP", _json(ANY_OBJECT), codes=(Code.NOT_FOUND,)
    ),
    "GET /limits": Operation("The limits of a run, and the tenant's quotas", _json(ref("Limits")), query=(_TENANT,)),
    "GET /usage": Operation("The usage of the tenant's runs", _USAGE, query=(_FORMAT, _TENANT)),
    "GET /audit": Operation(
        "The audit log of the tenant",
        _json(object_of({"audit": {"type": "array", "items": ref("AuditRow")}, "before": maybe(TEXT)})),
        query=(_SINCE, _AUDIT_LIMIT, _BEFORE, _TENANT),
    ),
    "GET /tools/list": Operation(
        "List the tools", _json(listing("tools", ref("Tool"))), query=(AGENT, _TENANT), codes=(Code.NOT_FOUND,),
        tagged=True,
    ),
    "GET /tools/sources": Operation(
        "List the sources of the knowledge base", _json(ANY_OBJECT), query=(AGENT, ENVELOPE, _TENANT),
        codes=(Code.NOT_FOUND, Code.TOOL_NOT_ALLOWED),
    ),
    "POST /sources/<label>/sync": Operation(
        "Synchronise a source", _json(object_of({"run": ref("SyncRun")}), 202), body({}), query=(_TENANT,),
        codes=(Code.CONFLICT,),
    ),
    "POST /teams": Operation(
        "Create a team", _json(ANY_OBJECT, 201), body({"name": TEXT, "budget": ANY_OBJECT}), needs_body=True,
        query=(_TENANT,), codes=(Code.CONFLICT, Code.QUOTA_EXCEEDED, Code.NOT_FOUND),
    ),
    "GET /teams": Operation("List the teams", _json(ANY_OBJECT), query=(_TENANT,), codes=(Code.NOT_FOUND,)),
    "GET /teams/<name>": Operation("The agents of a team, and what waits and why", _json(ANY_OBJECT), query=(_TENANT,)),
    "DELETE /teams/<name>": Operation("Delete a team with everything of it", _json(ANY_OBJECT), query=(_TENANT,)),
    "GET /teams/<name>/events": Operation(
        "What happened in a team, in order", _json(ANY_OBJECT), query=(_AFTER, _EVENTS, _TENANT)
    ),
    "POST /teams/<name>/stop": Operation("Stop a team", _json(ANY_OBJECT), body({}), query=(_TENANT,)),
    "POST /tools/<name>": Operation(
        "Call a tool", _json(ANY_OBJECT), ANY_OBJECT, query=(AGENT, ENVELOPE, _TENANT),
        codes=(
            Code.EMBEDDINGS_DISABLED, Code.TOOL_NOT_ALLOWED, Code.METHOD_NOT_ALLOWED, *_SCRIPT, Code.MODEL_LIMIT,
            Code.MODEL_ERROR,
        ),
    ),
    "GET /agents/list": Operation(
        "List the agents", _json(listing("agents", ref("Agent"))), query=(_TENANT,), tagged=True
    ),
    "POST /agents/<name>/prompt": Operation(
        "Resolve an agent's prompt", _json(PROMPT_ANSWER), ANY_OBJECT, query=(_TENANT,),
        codes=(Code.EMBEDDINGS_DISABLED, *_SCRIPT),
    ),
    "GET /agents/<name>/source": Operation(
        "The document behind an agent, and what of it has no effect", _json(ref("Source")), query=(_TENANT,)
    ),
    "* /mcp": Operation(
        "MCP: Streamable HTTP, without sessions",
        {200: {JSON: ref("RpcMessage"), "text/event-stream": TEXT}, 202: {}},
        ref("RpcMessage"), needs_body=True, query=(AGENT, _TENANT), codes=(Code.NOT_FOUND,),
    ),
    **_publishing("agents"),
    **_publishing("tools"),
    "GET /admin/tenants": Operation("List the tenants", _json(listing("tenants", ref("Tenant")))),
    "POST /admin/tenants": Operation(
        "Create a tenant", _json(ref("Tenant"), 201), ref("NewTenant"), needs_body=True, codes=(Code.CONFLICT,)
    ),
    "GET /admin/tenants/<name>": Operation("One tenant", _json(ref("Tenant"))),
    "PUT /admin/tenants/<name>": Operation("Change a tenant", _json(ref("Tenant")), ref("TenantChange")),
    "DELETE /admin/tenants/<name>": Operation(
        "Delete a tenant with everything it has", _json(ref("Deletion")), codes=(Code.CONFLICT,)
    ),
    "GET /admin/tenants/<name>/usage": Operation("The usage of a tenant's runs", _USAGE, query=(_FORMAT,)),
    "POST /admin/tenants/<name>/suspend": Operation("Suspend a tenant", _json(ref("Tenant"))),
    "POST /admin/tenants/<name>/resume": Operation("Resume a tenant", _json(ref("Tenant"))),
    "GET /admin/tenants/<name>/keys": Operation("List a tenant's keys", _json(listing("keys", ref("Key")))),
    "POST /admin/tenants/<name>/keys": Operation("Create a key", _json(ref("MadeKey"), 201), ref("NewKey")),
    "DELETE /admin/keys/<name>": Operation("Revoke a key", _json(ref("Key"))),
    "GET /admin/tenants/<name>/secrets": Operation(
        "List a tenant's secrets, without their values", _json(listing("secrets", ref("Secret")))
    ),
    "PUT /admin/tenants/<name>/secrets/<secret>": Operation(
        "Set a secret", _json(ref("Secret")), ref("NewSecret"), needs_body=True
    ),
    "DELETE /admin/tenants/<name>/secrets/<secret>": Operation(
        "Delete a secret", _json(object_of({"deleted": TEXT}))
    ),
    "GET /admin/audit": Operation(
        "The audit log of all tenants", _json(listing("audit", ref("AuditRow"))),
        query=(Parameter("tenant", QUERY_TEXT, "Rows of this tenant alone."), _SINCE, _LIMIT),
    ),
}  # fmt: skip

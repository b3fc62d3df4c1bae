"""JSON Schemas (2020-12) of what REST takes and answers, for `GET /openapi.json`. Pure.

Each is a component: a reference names it. Answers may have more keys than these (docs/http-api.md), so none of them is
closed; bodies that refuse unknown keys are.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from agents.agent import AgentInfo, AgentPrompt
from agents.tool import ToolInfo
from control.records import SCOPES
from control.versions.share import ALL
from engine.config import QuotaTable
from engine.errors import Code
from engine.quota import QUOTAS
from engine.usage import CUTS, ModelSums, Sums
from sandbox.wire.limits import SPECS
from sandbox.wire.outcome import Outcome

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
BOOL: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
ANY_OBJECT: Schema = {"type": "object"}
# What a query may hold: no control characters.
QUERY_TEXT: Schema = {"type": "string", "pattern": "^[^\\u0000-\\u001f\\u007f]*$"}
# A period before now, a date or a time.
MOMENT: Schema = {
    "anyOf": [
        {"type": "string", "pattern": "^[0-9]{1,9}[smhdw]$"},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "date-time"},
    ]
}
TENANT_NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"}


def ref(name: str) -> Schema:
    """A reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def maybe(schema: Schema) -> Schema:
    """The same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def listing(key: str, item: Schema) -> Schema:
    """An object with one list."""
    return object_of({key: {"type": "array", "items": item}})


def object_of(properties: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with all of `properties`, perhaps some of `optional`, and perhaps other keys."""
    return {"type": "object", "required": list(properties), "properties": {**properties, **(optional or {})}}


def body(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """A body that is refused with any other key."""
    return {**object_of(required, optional), "additionalProperties": False}


def table(value: Schema) -> Schema:
    """An object with any keys, each with a value of this schema."""
    return {"type": "object", "additionalProperties": value}


def _bound(source: Schema, **more: Schema) -> Schema:
    return object_of({"value": NUMBER, "unit": TEXT, "source": source, **more})


_SOURCE: Schema = {"enum": ["script", "tenant", "engine"]}
_LIMIT = object_of({"name": TEXT, "bound": NUMBER, "used": maybe(NUMBER), "unit": TEXT, "source": _SOURCE})
_FACTS: Mapping[str, Schema] = {
    "run_id": TEXT,
    "limit": _LIMIT,
    "retry_after_s": NUMBER,
    "traceback": TEXT,
    "run": ref("Run"),
}
_CODE: Schema = {"enum": [code.value for code in Code]}
_SUMS = {
    name: table(WHOLE) if isinstance(value, dict) else NUMBER if isinstance(value, float) else WHOLE
    for name, value in Sums().as_json().items()
}
_OF_MODELS = {name: NUMBER if isinstance(value, float) else WHOLE for name, value in ModelSums().as_json().items()}
_GRANTS: Mapping[str, Schema] = {
    **{kind: {"type": "array", "items": TEXT} for kind in ("hosts", "secrets", "env", "tools")},
    "limits": table(NUMBER),
}
# Only where they are requested.
_LATER: Mapping[str, Schema] = {
    "kv": BOOL, **{kind: {"type": "array", "items": TEXT} for kind in ("labels", "models", "sources")}
}  # fmt: skip
_VERSION: Mapping[str, Schema] = {
    "name": TEXT, "version": TEXT, "digest": TEXT, "size": WHOLE, "active": BOOL,
    "percent": {"type": "integer", "minimum": 0, "maximum": ALL}, "approved": BOOL, "deprecated": BOOL,
    "published_at": TIME, "published_by": TEXT, "approved_by": maybe(TEXT), "grants": object_of(_GRANTS, _LATER),
    "asks": {"type": "object", "properties": {**_GRANTS, **_LATER}}, "means": maybe(TEXT),
}  # fmt: skip
# The share of the callers that a request gives a version: all of them, or that of a canary.
_UNAVAILABLE: Schema = {"type": "array", "items": object_of({"name": TEXT, "reason": TEXT})}


def _prompt() -> Schema:
    """A prompt; that of a document may say what it declares in vain."""
    found = AgentPrompt.model_json_schema(
        mode="serialization", ref_template="#/components/schemas/Prompt/$defs/{model}"
    )
    return {**found, "properties": {**found["properties"], "unavailable": _UNAVAILABLE}}


PERCENT: Schema = {"type": "integer", "minimum": 1, "maximum": ALL}
_KEY: Mapping[str, Schema] = {
    "id": TEXT, "tenant": TEXT, "prefix": TEXT, "scopes": {"type": "array", "items": {"enum": list(SCOPES)}},
    "created_at": TIME, "expires_at": maybe(TIME), "revoked_at": maybe(TIME),
    "labels": {"type": "array", "items": TEXT},
}  # fmt: skip
_QUOTAS = table(NUMBER)
_OF_A_TENANT: Mapping[str, Schema] = {
    "quotas": TypeAdapter(QuotaTable).json_schema(),
    "ceilings": body({}, {name: {"type": "integer" if spec.integral else "number", "exclusiveMinimum": 0}
                          for name, spec in SPECS.items()}),
    "weight": {"type": "number", "minimum": 0.01, "maximum": 100},
}  # fmt: skip
_TENANT: Mapping[str, Schema] = {
    "name": TEXT, "state": {"enum": ["active", "suspended"]}, "created_at": TIME, "quotas": _QUOTAS,
    "ceilings": table(NUMBER), "weight": NUMBER,
}  # fmt: skip

COMPONENTS: Mapping[str, Schema] = {
    "Error": {
        "description": "Every error has this shape.",
        **object_of({"error": object_of({"code": _CODE, "message": TEXT}, _FACTS)}),
    },
    "Problem": {
        "description": "An error for clients that accept application/problem+json (RFC 9457).",
        **object_of({"type": TEXT, "title": TEXT, "status": WHOLE, "detail": TEXT, "code": _CODE}, _FACTS),
    },
    "Run": {
        "description": "The figures of a document's run with a model (docs/chatmd.md).",
        **object_of(
            {
                "run_id": TEXT, "outcome": {"enum": [outcome.value for outcome in Outcome]}, "model": TEXT,
                "turns": WHOLE, "tool_calls": WHOLE, "input_tokens": WHOLE, "cached_tokens": WHOLE,
                "output_tokens": WHOLE, "cost_usd": maybe(NUMBER), "estimated": BOOL, "closed_by": maybe(TEXT),
            }
        ),
    },
    "Health": object_of(
        {"status": {"const": "ok"}, "version": TEXT},
        {
            "workers": table(WHOLE), "queued": WHOLE, "loop_lag_ms": table(NUMBER),
            "layers": {"type": "array", "items": object_of({"name": TEXT, "state": TEXT, "detail": TEXT,
                                                            "required": BOOL})},
            "scripts_failing": WHOLE, "configuration": {"enum": ["ok", "stale"]},
        },
    ),
    "Limits": object_of(
        {
            "limits": object_of({name: _bound(_SOURCE) for name in SPECS}),
            "quotas": {"type": "object", "properties": {
                name: _bound(_SOURCE, used=maybe(NUMBER)) for name in QUOTAS}},
        }
    ),
    "Usage": object_of(
        {
            "total": object_of(_SUMS),
            **{f"by_{what}": {"type": "array", "items": object_of({what: TEXT, **_SUMS})}
               for what in CUTS},
            "by_model": {"type": "array", "items": object_of({"model": TEXT, **_OF_MODELS})},
        }
    ),
    "Tool": ToolInfo.model_json_schema(mode="serialization"),
    "Agent": AgentInfo.model_json_schema(
        mode="serialization", ref_template="#/components/schemas/Agent/$defs/{model}"
    ),
    "Prompt": _prompt(),
    "Source": object_of(
        {
            "source": TEXT, "sha256": TEXT, "imports": {"type": "array", "items": TEXT},
            "unavailable": _UNAVAILABLE,
            "left_out": object_of(
                {"tool_calls": WHOLE, "tool_responses": WHOLE, "reasoning": WHOLE, "agents": WHOLE}
            ),
        }
    ),
    "Package": {
        "description": "A manifest with its files (docs/publishing.md).",
        **body(
            {"version": TEXT, "main": TEXT, "files": {**table(TEXT), "minProperties": 1}},
            {
                "name": TEXT, "kind": TEXT, "tools": maybe({"type": "array", "items": TEXT}),
                "arguments": maybe({"type": "array", "items": ANY_OBJECT}),
                "grants": maybe(body({}, {**_GRANTS, **_LATER})),
                "config": maybe(ANY_OBJECT),
            },
        ),
    },
    "Share": body({}, {"percent": PERCENT}),
    "Version": object_of(_VERSION, {"warnings": {"type": "array", "items": TEXT}}),
    "WholeVersion": object_of(
        {
            **_VERSION, "kind": TEXT, "main": TEXT, "tools": maybe({"type": "array", "items": TEXT}),
            "arguments": maybe({"type": "array", "items": ANY_OBJECT}), "config": ANY_OBJECT,
            "files": {"type": "array", "items": object_of({"path": TEXT, "size": WHOLE})},
            "changes": maybe(object_of({"against": TEXT, **{
                what: {"type": "array", "items": TEXT} for what in ("added", "removed", "changed")}})),
        }
    ),
    "Tenant": object_of(_TENANT),
    "NewTenant": body({"name": TENANT_NAME}, _OF_A_TENANT),
    "TenantChange": body({}, _OF_A_TENANT),
    "Deletion": object_of({"tenant": TEXT, "removed": table(WHOLE), "left": table(WHOLE)}),
    "Key": object_of(_KEY),
    "NewKey": body({}, {"scopes": {"type": "array", "items": {"enum": list(SCOPES)}, "minItems": 1},
                        "expires": TEXT, "labels": {"type": "array", "items": TEXT}}),
    "MadeKey": object_of({**_KEY, "key": {**TEXT, "description": "The text of the key, shown this once."}}),
    "Secret": object_of({"name": TEXT, "tenant": TEXT, "hosts": {"type": "array", "items": TEXT}, "created_at": TIME,
                         "updated_at": TIME}),
    "NewSecret": body({"value": {**TEXT, "minLength": 1}, "hosts": {"type": "array", "items": TEXT, "minItems": 1}}),
    "AuditRow": object_of({"at": TIME, "actor": TEXT, "action": TEXT, "target": TEXT, "outcome": TEXT,
                           "tenant": maybe(TEXT)}),
    "SyncRun": object_of({"id": TEXT, "source": TEXT, "started_at": TIME, "state": {"enum": ["running", "queued"]}}),
    "RpcMessage": object_of({"jsonrpc": {"const": "2.0"}}, {"id": {}, "method": TEXT, "params": ANY_OBJECT,
                                                            "result": ANY_OBJECT, "error": ANY_OBJECT}),
}  # fmt: skip

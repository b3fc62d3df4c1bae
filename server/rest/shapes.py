"""JSON Schemas (2020-12) of what REST takes and answers, for `GET /openapi.json`. Pure.

Each is a component: a reference names it. Answers may have more keys than these (docs/http-api.md), so none of them is
closed; bodies that refuse unknown keys are.
"""

from collections.abc import Mapping
from typing import Any

from agents.agent import AgentInfo, AgentPrompt
from agents.tool import ToolInfo
from control.records import SCOPES
from engine.errors import Code
from engine.quota import QUOTAS
from engine.usage import Sums
from sandbox.wire.limits import SPECS

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
YES: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
ANY_OBJECT: Schema = {"type": "object"}


def ref(name: str) -> Schema:
    """A reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def maybe(schema: Schema) -> Schema:
    """The same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def listing(key: str, item: Schema) -> Schema:
    """An object with one list."""
    return closed_to({key: {"type": "array", "items": item}})


def closed_to(properties: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object that has all of `properties`, and perhaps some of `optional`."""
    return {"type": "object", "required": list(properties), "properties": {**properties, **(optional or {})}}


def body(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """A body that is refused with any other key."""
    return {**closed_to(required, optional), "additionalProperties": False}


def table(value: Schema) -> Schema:
    """An object with any keys, of such values."""
    return {"type": "object", "additionalProperties": value}


def _bound(source: Schema, **more: Schema) -> Schema:
    return closed_to({"value": NUMBER, "unit": TEXT, "source": source, **more})


_SOURCE: Schema = {"enum": ["script", "tenant", "engine"]}
_LIMIT = closed_to({"name": TEXT, "bound": NUMBER, "used": maybe(NUMBER), "unit": TEXT, "source": _SOURCE})
_FACTS: Mapping[str, Schema] = {
    "run_id": TEXT,
    "limit": _LIMIT,
    "retry_after_s": NUMBER,
    "traceback": TEXT,
}
_CODE: Schema = {"enum": [code.value for code in Code]}
_SUMS = {
    name: table(WHOLE) if isinstance(value, dict) else NUMBER if isinstance(value, float) else WHOLE
    for name, value in Sums().as_json().items()
}
_GRANTS: Mapping[str, Schema] = {
    **{kind: {"type": "array", "items": TEXT} for kind in ("hosts", "secrets", "env", "tools")},
    "limits": table(NUMBER),
}
# Only where it is requested.
_KV: Mapping[str, Schema] = {"kv": YES}
_VERSION: Mapping[str, Schema] = {
    "name": TEXT, "version": TEXT, "digest": TEXT, "size": WHOLE, "active": YES, "approved": YES, "deprecated": YES,
    "published_at": TIME, "published_by": TEXT, "approved_by": maybe(TEXT), "grants": closed_to(_GRANTS, _KV),
    "asks": {"type": "object", "properties": {**_GRANTS, **_KV}},
}  # fmt: skip
_KEY: Mapping[str, Schema] = {
    "id": TEXT, "tenant": TEXT, "prefix": TEXT, "scopes": {"type": "array", "items": {"enum": list(SCOPES)}},
    "created_at": TIME, "expires_at": maybe(TIME), "revoked_at": maybe(TIME),
}  # fmt: skip
_QUOTAS = table(NUMBER)
_TENANT: Mapping[str, Schema] = {
    "name": TEXT, "state": {"enum": ["active", "suspended"]}, "created_at": TIME, "quotas": _QUOTAS,
    "ceilings": table(NUMBER), "weight": NUMBER,
}  # fmt: skip

COMPONENTS: Mapping[str, Schema] = {
    "Error": {
        "description": "Every error has this shape.",
        **closed_to({"error": closed_to({"code": _CODE, "message": TEXT}, _FACTS)}),
    },
    "Problem": {
        "description": "An error for clients that accept application/problem+json (RFC 9457).",
        **closed_to({"type": TEXT, "title": TEXT, "status": WHOLE, "detail": TEXT, "code": _CODE}, _FACTS),
    },
    "Health": closed_to(
        {"status": {"const": "ok"}, "version": TEXT},
        {
            "workers": table(WHOLE), "queued": WHOLE, "loop_lag_ms": table(NUMBER),
            "layers": {"type": "array", "items": closed_to({"name": TEXT, "state": TEXT, "detail": TEXT,
                                                            "required": YES})},
            "scripts_failing": WHOLE, "configuration": {"enum": ["ok", "stale"]},
        },
    ),
    "Limits": closed_to(
        {
            "limits": closed_to({name: _bound(_SOURCE) for name in SPECS}),
            "quotas": {"type": "object", "properties": {
                name: _bound(_SOURCE, used=maybe(NUMBER)) for name in QUOTAS}},
        }
    ),
    "Usage": closed_to(
        {
            "total": closed_to(_SUMS),
            **{f"by_{what}": {"type": "array", "items": closed_to({what: TEXT, **_SUMS})}
               for what in ("agent", "key", "day")},
        }
    ),
    "Tool": ToolInfo.model_json_schema(mode="serialization"),
    "Agent": {
        **AgentInfo.model_json_schema(mode="serialization", ref_template="#/components/schemas/Agent/$defs/{model}"),
    },
    "Prompt": {
        **AgentPrompt.model_json_schema(mode="serialization",
                                        ref_template="#/components/schemas/Prompt/$defs/{model}"),
    },
    "Package": {
        "description": "A manifest with its files (docs/publishing.md).",
        **body(
            {"version": TEXT, "main": TEXT, "files": {**table(TEXT), "minProperties": 1}},
            {
                "name": TEXT, "kind": TEXT, "tools": maybe({"type": "array", "items": TEXT}),
                "arguments": maybe({"type": "array", "items": ANY_OBJECT}),
                "grants": maybe(body({}, {**_GRANTS, **_KV})),
                "config": maybe(ANY_OBJECT),
            },
        ),
    },
    "Version": closed_to(_VERSION, {"warnings": {"type": "array", "items": TEXT}}),
    "WholeVersion": closed_to(
        {
            **_VERSION, "kind": TEXT, "main": TEXT, "tools": maybe({"type": "array", "items": TEXT}),
            "arguments": maybe({"type": "array", "items": ANY_OBJECT}), "config": ANY_OBJECT,
            "files": {"type": "array", "items": closed_to({"path": TEXT, "size": WHOLE})},
            "changes": maybe(closed_to({"against": TEXT, **{
                what: {"type": "array", "items": TEXT} for what in ("added", "removed", "changed")}})),
        }
    ),
    "Tenant": closed_to(_TENANT),
    "NewTenant": body({"name": TEXT}, {"quotas": ANY_OBJECT, "ceilings": ANY_OBJECT, "weight": NUMBER}),
    "TenantChange": body({}, {"quotas": ANY_OBJECT, "ceilings": ANY_OBJECT, "weight": NUMBER}),
    "Deletion": closed_to({"tenant": TEXT, "removed": table(WHOLE), "left": table(WHOLE)}),
    "Key": closed_to(_KEY),
    "NewKey": body({}, {"scopes": {"type": "array", "items": {"enum": list(SCOPES)}, "minItems": 1},
                        "expires": TEXT}),
    "MadeKey": closed_to({**_KEY, "key": {**TEXT, "description": "The text of the key, shown this once."}}),
    "Secret": closed_to({"name": TEXT, "tenant": TEXT, "hosts": {"type": "array", "items": TEXT}, "created_at": TIME,
                         "updated_at": TIME}),
    "NewSecret": body({"value": TEXT, "hosts": {"type": "array", "items": TEXT}}),
    "AuditRow": closed_to({"at": TIME, "actor": TEXT, "action": TEXT, "target": TEXT, "outcome": TEXT,
                           "tenant": maybe(TEXT)}),
    "RpcMessage": closed_to({"jsonrpc": {"const": "2.0"}}, {"id": {}, "method": TEXT, "params": ANY_OBJECT,
                                                            "result": ANY_OBJECT, "error": ANY_OBJECT}),
}  # fmt: skip

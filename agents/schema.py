"""A script's `parameters` table to JSON Schema (2020-12), with the bounds that a stranger's schema needs.

Two spellings: ctx's list of `{name, type, required, description, default, enum, ...}`, whose further keys are JSON
Schema keywords of that parameter, and a JSON Schema object as it stands.
"""

from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from agents.shape import WrongShape

# Far above any schema a person writes; a larger one costs every list and every call.
MAX_SCHEMA_NODES = 2_000
TYPES = ("string", "integer", "number", "boolean", "array", "object")
# Of the list spelling: what is not a keyword of the parameter's own schema.
_NOT_KEYWORDS = {"name", "required"}


def parameters_schema(declared: Any, what: str = "tool.parameters") -> dict[str, Any]:
    """The schema of a tool's parameters: always of type object. Raises WrongShape, naming the place."""
    if declared in (None, [], {}):
        return {"type": "object", "properties": {}}
    schema = _from_list(declared, what) if isinstance(declared, list) else _from_object(declared, what)
    check_schema(schema, what)
    return schema


def returns_schema(declared: Any) -> dict[str, Any] | None:
    """The schema of a tool's answer, if it declares one. Raises WrongShape."""
    if declared in (None, {}):
        return None
    if not isinstance(declared, dict):
        raise WrongShape("tool.returns must be a JSON Schema: a table with named fields")
    check_schema(declared, "tool.returns")
    return declared


def check_schema(schema: Mapping[str, Any], what: str) -> None:
    """Refuse what is no schema, is enormous, refers elsewhere, or has a pattern that could back-track."""
    nodes = 0
    pending: list[Any] = [schema]
    while pending:
        value = pending.pop()
        nodes += 1
        if nodes > MAX_SCHEMA_NODES:
            raise WrongShape(f"{what} is larger than {MAX_SCHEMA_NODES} values")
        if isinstance(value, dict):
            if reference := next((key for key in ("$ref", "$dynamicRef") if key in value), None):
                raise WrongShape(f"{what} uses {reference}; a schema must stand by itself")
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    try:
        compile_schema(schema)
    except (ValueError, jsonschema_rs.ValidationError) as error:
        raise WrongShape(f"{what} is not a JSON Schema: {str(error).splitlines()[0][:200]}") from None


def compile_schema(schema: Mapping[str, Any]) -> jsonschema_rs.Draft202012Validator:
    """A validator whose patterns run in linear time: no look-around, no back-references (RE2's language)."""
    return jsonschema_rs.Draft202012Validator(dict(schema), pattern_options=jsonschema_rs.RegexOptions())


def with_defaults(schema: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with the declared default of every property that is absent, in nested objects, too."""
    filled = dict(params)
    for name, part in schema.get("properties", {}).items():
        if not isinstance(part, dict):
            continue
        if name not in filled and "default" in part:
            filled[name] = part["default"]
        elif isinstance(filled.get(name), dict):
            filled[name] = with_defaults(part, filled[name])
    return filled


def _from_object(declared: Any, what: str) -> dict[str, Any]:
    if not isinstance(declared, dict):
        raise WrongShape(f"{what} must be a list of parameters or a JSON Schema")
    if declared.get("type", "object") != "object":
        raise WrongShape(f"{what}.type must be 'object'")
    return {"type": "object", "properties": {}, **_lists_restored(declared)}


def _from_list(declared: list[Any], what: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for position, parameter in enumerate(declared, 1):
        where = f"{what}[{position}]"
        if not isinstance(parameter, dict):
            raise WrongShape(f"{where} must be a table")
        name = parameter.get("name")
        if not isinstance(name, str) or not name:
            raise WrongShape(f"{where}.name must be a string")
        if name in properties:
            raise WrongShape(f"{where}.name: {name!r} is declared twice")
        kind = parameter.get("type", "string")
        if kind not in TYPES:
            raise WrongShape(f"{where}.type must be one of {', '.join(TYPES)}")
        if not isinstance(parameter.get("required", False), bool):
            raise WrongShape(f"{where}.required must be true or false")
        if parameter.get("required"):
            required.append(name)
        keywords = {key: value for key, value in parameter.items() if key not in _NOT_KEYWORDS}
        properties[name] = {"type": kind, **_lists_restored(keywords)}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return schema


# Lua has one empty table; under these keywords it is a list.
_LIST_KEYWORDS = {"required", "enum", "allOf", "anyOf", "oneOf", "prefixItems", "examples"}


def _lists_restored(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: [] if key in _LIST_KEYWORDS and value == {} else value for key, value in schema.items()}

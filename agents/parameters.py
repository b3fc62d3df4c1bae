"""Parameters of tools against their JSON Schema: one code path for REST, MCP and the command line."""

from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from agents.schema import compile_schema
from engine.errors import Code, Problem


class Parameters:
    """A compiled schema (JSON Schema 2020-12, an object). Compile once, check often."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._validator = compile_schema(schema)

    def check(self, params: Mapping[str, Any]) -> None:
        """Raises Problem `bad_request` for the first violation, in the order of the schema, naming the parameter."""
        if self._validator.is_valid(params):
            return
        error = next(iter(self._validator.iter_errors(params)))
        raise Problem(Code.BAD_REQUEST, _text(error, self._schema, params))


def _text(error: jsonschema_rs.ValidationError, schema: Mapping[str, Any], params: Mapping[str, Any]) -> str:
    name = ".".join(str(part) for part in error.instance_path)
    keyword = str(error.schema_path[-1]) if error.schema_path else ""
    if keyword == "required":
        inside = _at(params, list(error.instance_path))
        wanted = _at(schema, list(error.schema_path))
        missing = [key for key in wanted if key not in inside] if isinstance(wanted, list) else []
        full = ".".join(filter(None, (name, missing[0]))) if missing else name
        return f"missing required parameter: {full}"
    if keyword == "type":
        wanted = _at(schema, list(error.schema_path))
        types = " or ".join(f"'{each}'" for each in ([wanted] if isinstance(wanted, str) else wanted))
        return f"parameter '{name}' must be of type {types}, got {_json_type(error.instance)}"
    if keyword == "enum":
        allowed = ", ".join(f'"{value}"' for value in _at(schema, list(error.schema_path)))
        return f"parameter '{name}' must be one of [{allowed}], got {_shown(error.instance)}"
    return f"parameter '{name}': {error.message[:200]}" if name else error.message[:200]


def _at(value: Any, path: list[Any]) -> Any:
    for part in path:
        value = value[part]
    return value


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _shown(value: Any) -> str:
    return f'"{value[:64]}"' if isinstance(value, str) else _json_type(value)

"""Validation of tools' parameters with their JSON Schema: one code path for REST, MCP and the command line."""

from collections.abc import Generator, Mapping
from contextlib import nullcontext
from typing import Any

from jsonschema_rs import ValidationError

from agents.shapes.checked import CheckedSchema, TooMuchWork, Working, Wrong
from agents.shapes.shape import WrongShape
from engine.errors import Code, Problem
from engine.values import drained

# An error lists at most this many of an enum's values: as many as a person reads.
_SHOWN_OPTIONS = 32


class Parameters:
    """A schema (JSON Schema 2020-12, an object) to validate parameters with."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._checked = CheckedSchema(schema)

    def check(self, params: Mapping[str, Any], working: Working = nullcontext) -> None:
        """`checking`, without a pause."""
        drained(self.checking(params, working))

    def checking(self, params: Mapping[str, Any], working: Working) -> Generator[None, None, None]:
        """Raise Problem `bad_request` for the first violation, in the order of the schema, naming the parameter.

        Also for parameters that take too much work to validate. All but a little of the work is done inside
        `working()`; yields between pieces of it for large ones. Raises Problem `tool_error` for a schema that an older
        version accepted and this one does not.
        """
        try:
            wrong = yield from self._checked.validating(params, working)
        except TooMuchWork as much:
            raise Problem(Code.BAD_REQUEST, f"the parameters are too large: {much}") from None
        except (ValueError, ValidationError, WrongShape):
            raise Problem(Code.TOOL_ERROR, "tool.parameters is not a JSON Schema that this version takes") from None
        if wrong is not None:
            raise Problem(Code.BAD_REQUEST, _text(wrong, params))


def checking_answer(answers: CheckedSchema, value: Any, working: Working) -> Generator[None, None, None]:
    """Raise WrongShape for a tool's answer that does not match `tool.returns`, or takes too much work to validate.

    Yields between pieces of the work for a large answer.
    """
    try:
        wrong = yield from answers.validating(value, working)
    except TooMuchWork as much:
        raise WrongShape(f"the answer of tool.execute is too large for tool.returns: {much}") from None
    except (ValueError, ValidationError):
        raise WrongShape("tool.returns is not a JSON Schema that this version takes") from None
    if wrong is not None:
        path = "".join(f".{part}" for part in wrong.path)[:200]
        told = f": {wrong.text}" if wrong.text else ""
        raise WrongShape(f"the answer of tool.execute does not match tool.returns: value{path}{told}")


def _text(wrong: Wrong, params: Mapping[str, Any]) -> str:
    name = ".".join(str(part) for part in wrong.path)[:200]
    expected = wrong.expected
    if wrong.keyword == "required":
        inside = _at(params, wrong.path)
        missing = [key for key in expected if key not in inside] if isinstance(expected, list) else []
        full = ".".join(filter(None, (name, missing[0][:200]))) if missing else name
        return f"missing required parameter: {full}"
    if wrong.keyword == "type" and expected is not None:
        types = " or ".join(f"'{each}'" for each in ([expected] if isinstance(expected, str) else expected))
        return f"parameter '{name}' must be of type {types}, got {_json_type(wrong.seen)}"
    if wrong.keyword == "enum" and expected is not None:
        allowed = ", ".join(f'"{str(value)[:64]}"' for value in expected[:_SHOWN_OPTIONS])
        more = ", ..." if len(expected) > _SHOWN_OPTIONS else ""
        return f"parameter '{name}' must be one of [{allowed}{more}], got {_as_text(wrong.seen)}"
    if not wrong.text:
        return f"parameter '{name}' does not match its schema" if name else "the parameters do not match their schema"
    return f"parameter '{name}': {wrong.text}" if name else wrong.text


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
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


def _as_text(value: Any) -> str:
    return f'"{value[:64]}"' if isinstance(value, str) else _json_type(value)

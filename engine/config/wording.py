"""From pydantic's errors to one phrase in TOML's terms. Pure."""

from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from engine.config.errors import Loc, Table, Wrong, as_seen, unknown_key
from engine.config.models import Config
from engine.config.shape import Shape
from engine.names import nearest
from engine.quota import QUOTAS
from sandbox.wire.limits import SPECS

# What each of pydantic's error types expects, in TOML's terms. {} is filled from the error's context.
_EXPECTATIONS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "expected": "{what}",
}


def explain(error: Any, shape: Shape, raw: Table) -> Wrong:
    """One pydantic error in the file's terms."""
    loc: Loc = error["loc"]
    if loc and loc[-1] == "[key]":
        loc = loc[:-1]
        return Wrong(shape.in_file(loc), f"expected {error['ctx']['what']}, got {as_seen(loc[-1])}")
    if error["type"] == "extra_forbidden":
        return unknown_key(shape.in_file(loc), _known_keys(loc[:-1]))
    if error["type"] == "missing":
        table = shape.in_file(loc[:-1])
        return Wrong(table, f"required key {loc[-1]!r} is missing{_mistyped(loc, table, raw)}")
    loc = shape.in_file(loc)
    if error["type"] == "phrase":
        return Wrong(loc, error["msg"])
    # The text of the file, before expansion: a value from the environment may be a secret.
    seen: Any = raw
    for part in loc:
        seen = seen[part]
    if error["type"] not in _EXPECTATIONS:
        return Wrong(loc, f"{error['msg']}, got {as_seen(seen)}")
    context = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in error.get("ctx", {}).items()}
    return Wrong(loc, f"expected {_EXPECTATIONS[error['type']].format(**context)}, got {as_seen(seen)}")


def _mistyped(loc: Loc, table: Loc, raw: Table) -> str:
    """The unknown key of the file that resembles the missing one at `loc`, as a hint."""
    seen: Any = raw
    for part in table:
        seen = seen.get(part, {}) if isinstance(seen, dict) else {}
    unknown = [key for key in seen if key not in _known_keys(loc[:-1])] if isinstance(seen, dict) else []
    near = nearest(str(loc[-1]), unknown)
    return f"; {near!r} may be a misspelling of it" if near else ""


def _known_keys(loc: Loc) -> list[str]:
    """The keys of the table at `loc` of the models."""

    def alternatives(annotation: Any) -> Iterator[Any]:
        yield from get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)

    node: Any = Config
    for part in loc:
        found: Any = None
        for choice in alternatives(node):
            if isinstance(choice, type) and issubclass(choice, BaseModel) and part in choice.model_fields:
                found = choice.model_fields[str(part)].annotation
            elif get_origin(choice) is dict:
                found = get_args(choice)[1]
            elif get_origin(choice) is tuple and isinstance(part, int):
                found = get_args(choice)[0]
        node = found
    if loc == ("limits", "defaults"):
        return [*SPECS, "max", "queue_timeout_s"]
    if loc == ("tenants", "quota"):
        return list(QUOTAS)
    if isinstance(node, type) and issubclass(node, BaseModel):
        return list(node.model_fields)
    return list(SPECS)

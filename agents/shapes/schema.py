"""A script's `parameters` table as JSON Schema (2020-12), with the bounds that an untrusted schema needs.

Two forms: ctx's list of `{name, type, required, description, default, enum, ...}`, where other keys are JSON Schema
keywords for that parameter, and a JSON Schema object.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jsonschema_rs

from agents.shapes.schema_work import UNEVALUATED
from agents.shapes.shape import WrongShape

# Far above any schema that a person writes; a larger one makes every list and every call slower.
MAX_SCHEMA_NODES = 2_000
MAX_SCHEMA_CHARS = 64 * 1024
MAX_SCHEMA_DEPTH = 64
# Patterns cost mostly their compilation: 4 ms for one of this size. Those of one schema together may have twice that.
MAX_PATTERNS = 64
MAX_PATTERN_KIB = 256
MAX_PATTERNS_KIB = 512
# Bound on parsing the patterns of one schema, in microseconds: 30 ms in all, as each is parsed up to six times.
MAX_PATTERN_WORK = 5_000
# The cost of parsing a character, a class, and a class of a Unicode property with a value, which is searched for.
# For each class of ECMA-262 that the library expands, it parses the whole pattern again, as expanded so far: 22 s for
# 4 KiB of `\w`. None of this bounds the cost of an inline flag: 0.7 ms a class.
_CHAR_WORK, _CLASS_WORK, _PROPERTY_WORK, _AGAIN_WORK, _SPELLED_CHARS = 0.5, 35, 150, 0.09, 30
_SPELLED_OUT = frozenset("wWdDsSc")
_FLAGS = re.compile(r"\(\?[a-zA-Z-]*[:)]")
# The size of a compiled pattern is taken as the smallest of these that it fits in.
_SIZES_KIB = (1, 4, 16, 64, MAX_PATTERN_KIB)
TYPES = ("string", "integer", "number", "boolean", "array", "object")
# Keys of the list form that are not keywords of the parameter's own schema.
_NOT_KEYWORDS = {"name", "required"}
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# Keywords that contain schemas: one, a list, or a mapping by name.
_ONE = (
    "not", "if", "then", "else", "items", "contains", "additionalProperties", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties", "contentSchema",
)  # fmt: skip
_SOME = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
# Those of them whose schemas apply to the same value as the schema around them.
_SAME_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")


def parameters_schema(declared: Any, what: str = "tool.parameters", *, compiles: bool = False) -> dict[str, Any]:
    """The schema of a tool's parameters: always of type object. Raises WrongShape, naming the place.

    `compiles` says that it has compiled before, and skips that: it is most of the cost of a check.
    """
    if declared in (None, [], {}):
        return {"type": "object", "properties": {}}
    if (
        isinstance(declared, list) and len(declared) > MAX_SCHEMA_NODES
    ):  # before a schema is made of them: 2 us for each
        raise WrongShape(f"{what} is larger than {MAX_SCHEMA_NODES} values")
    schema = _from_list(declared, what) if isinstance(declared, list) else _from_object(declared, what)
    check_schema(schema, what, compiles=compiles)
    return schema


def returns_schema(declared: Any, *, compiles: bool = False) -> dict[str, Any] | None:
    """The schema of a tool's answer, if it declares one. Raises WrongShape."""
    if declared in (None, {}):
        return None
    if not isinstance(declared, dict):
        raise WrongShape("tool.returns must be a JSON Schema: a table with named fields")
    check_schema(declared, "tool.returns", compiles=compiles)
    return declared


def check_schema(schema: Mapping[str, Any], what: str, *, compiles: bool = False) -> None:
    """Refuse schemas that are invalid, very large, contain references, or cost far more than their size suggests.

    Raises WrongShape. For accepted ones, `agents.shapes.schema_work` bounds the work of validating any value.
    """
    _check_size(schema, what)
    _check_keywords(schema, what)
    if compiles:
        return
    _check_patterns(schema, what)
    try:
        compile_schema(schema)
    except (ValueError, jsonschema_rs.ValidationError) as error:
        raise WrongShape(f"{what} is not a JSON Schema: {_reason(error)}") from None


def compile_schema(schema: Mapping[str, Any]) -> jsonschema_rs.Draft202012Validator:
    """A validator whose patterns run in linear time: no look-around, no back-references (RE2's language).

    Always of draft 2020-12, whatever `$schema` says. Raises ValueError and ValidationError.
    """
    own = {key: value for key, value in schema.items() if key != "$schema"}
    kib = MAX_PATTERN_KIB * 1024
    options = jsonschema_rs.RegexOptions(size_limit=kib, dfa_size_limit=kib)
    return jsonschema_rs.Draft202012Validator(own, pattern_options=options, offline=True)


def subschemas(schema: Any) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """Every schema in a schema, itself first, and whether a keyword `unevaluated*` evaluates it again."""
    pending: list[tuple[Any, bool]] = [(schema, False)]
    while pending:
        each, again = pending.pop()
        if not isinstance(each, dict):
            continue
        yield each, again
        beside = again or any(key in each for key in UNEVALUATED)
        for key, held in each.items():
            inner: Iterable[Any] = [held] if key in _ONE else ()
            if key in _SOME and isinstance(held, list):
                inner = held
            elif key in _NAMED and isinstance(held, dict):
                inner = held.values()
            pending += [(part, beside if key in _SAME_PLACE else again) for part in inner]


def patterns_of(schema: Mapping[str, Any]) -> set[str]:
    """The regular expressions of a schema."""
    found: set[str] = set()
    for each, _ in subschemas(schema):
        if isinstance(named := each.get("patternProperties"), dict):
            found.update(named)
        if isinstance(each.get("pattern"), str):
            found.add(each["pattern"])
    return found


def pattern_kib(pattern: str) -> int:
    """The size of a compiled pattern in KiB, rounded up. Raises WrongShape if the pattern is invalid or too large."""
    pattern_work(pattern)
    for size in _SIZES_KIB:
        options = jsonschema_rs.RegexOptions(size_limit=size * 1024, dfa_size_limit=size * 1024)
        try:
            jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=options, offline=True)
        except (ValueError, jsonschema_rs.ValidationError):
            continue
        return size
    raise WrongShape(
        f"the pattern {pattern[:64]!r} is larger than {MAX_PATTERN_KIB} KiB when it is compiled, or is not valid "
        "(look-around and back-references are not supported); for lengths, use minLength and maxLength"
    )


def pattern_work(pattern: str) -> float:
    """A bound on the microseconds to parse a pattern. Raises WrongShape for one that takes too long."""
    escapes = re.findall(r"\\(.)", pattern, re.DOTALL)
    bare = re.sub(r"\\.", "", pattern, flags=re.DOTALL)
    if any(flags[0] != "(?:" for flags in _FLAGS.finditer(bare)):
        raise WrongShape(f"the pattern {pattern[:64]!r} has inline flags, which JSON Schema does not have")
    spelled = sum(escape in _SPELLED_OUT for escape in escapes)
    properties = sum(escape in "pP" for escape in escapes)
    classes = spelled + bare.count("[") + bare.count(".")
    again = spelled * (len(pattern) + _SPELLED_CHARS * spelled)
    known = properties if "=" in bare or ":" in bare else 0
    work = (
        _CHAR_WORK * len(pattern) + _CLASS_WORK * (classes + properties) + _PROPERTY_WORK * known + _AGAIN_WORK * again
    )
    if work > MAX_PATTERN_WORK:
        raise WrongShape(
            f"the pattern {pattern[:64]!r} takes too long to read: it has {len(pattern)} characters and "
            f"{classes + properties} classes"
        )
    return work


def with_defaults(schema: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters, with the declared default for every absent property, in nested objects too."""
    filled = dict(params)
    for name, part in schema.get("properties", {}).items():
        if not isinstance(part, dict):
            continue
        if name not in filled and "default" in part:
            filled[name] = part["default"]
        elif isinstance(filled.get(name), dict):
            filled[name] = with_defaults(part, filled[name])
    return filled


def _check_size(schema: Mapping[str, Any], what: str) -> None:
    nodes = 0
    pending: list[tuple[Any, int]] = [(schema, 1)]
    texts = 0
    while pending:
        value, depth = pending.pop()
        nodes += 1
        if nodes > MAX_SCHEMA_NODES:
            raise WrongShape(f"{what} is larger than {MAX_SCHEMA_NODES} values")
        if depth > MAX_SCHEMA_DEPTH:
            raise WrongShape(f"{what} nests deeper than {MAX_SCHEMA_DEPTH} levels")
        inner: list[Any] = []
        if isinstance(value, dict):
            if reference := next((key for key in _REFERENCES if key in value), None):
                raise WrongShape(f"{what} uses {reference}; a schema must stand by itself")
            # A subschema with its own dialect has keywords that the bounds do not cover.
            if depth > 1 and isinstance(value.get("$schema"), str):
                raise WrongShape(f"{what} uses $schema below its top; all of it is of draft 2020-12")
            texts += sum(map(len, value))
            inner = list(value.values())
        elif isinstance(value, list):
            inner = value
        elif isinstance(value, str):
            texts += len(value)
        if texts > MAX_SCHEMA_CHARS:
            raise WrongShape(f"{what} has more than {MAX_SCHEMA_CHARS} characters of text")
        pending += [(each, depth + 1) for each in inner]


def _check_keywords(schema: Mapping[str, Any], what: str) -> None:
    """Refuse keywords whose cost multiplies: each `unevaluated*` evaluates all keywords beside it again, so nested ones
    take 2.6 times as long for every level."""
    for each, again in subschemas(schema):
        if again and (keyword := next((key for key in UNEVALUATED if key in each), None)):
            raise WrongShape(
                f"{what} uses {keyword} inside a schema that another one evaluates; use additionalProperties or items"
            )


def _check_patterns(schema: Mapping[str, Any], what: str) -> None:
    found = patterns_of(schema)
    if len(found) > MAX_PATTERNS:
        raise WrongShape(f"{what} has {len(found)} patterns; the most is {MAX_PATTERNS}")
    total, reading = 0, 0.0
    for pattern in found:
        try:
            reading += pattern_work(pattern)
            if reading > MAX_PATTERN_WORK:
                raise WrongShape("its patterns together take too long to read: they have too many classes")
            total += pattern_kib(pattern)
        except WrongShape as wrong:
            raise WrongShape(f"{what} is not a JSON Schema: {wrong}") from None
        if total > MAX_PATTERNS_KIB:
            raise WrongShape(f"{what}: its patterns are larger than {MAX_PATTERNS_KIB} KiB when they are compiled")


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or ["it cannot be compiled"])[0][:200]


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
LIST_KEYWORDS = {"required", "enum", "allOf", "anyOf", "oneOf", "prefixItems", "examples"}


def _lists_restored(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: [] if key in LIST_KEYWORDS and value == {} else value for key, value in schema.items()}

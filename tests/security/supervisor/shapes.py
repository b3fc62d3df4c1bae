"""Inputs at random, by where they enter: a small value, repeated until the input is as large as it may be.

What costs the supervisor most is never one strange value but very many of one that costs a little; so a `Genome` is a
unit and where it goes, and an attack of any size is made of it. `mutated` changes one thing: a search can climb.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from sandbox.wire.limits import MIB
from supervisor.attack import BODY, Ask, Attack, Place, Plan, answers, filled, message, post, text
from supervisor.uploads import lua, tool_source, upload

_LEAVES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 0.1, 1e308, 2**53 + 1, 2**63, "", "x", "search", "sources", ":", "\\n", "%41",
    "\u0000",    '"', "{[,", "\U0001f600", "é", "a-secret-that-", "x" * 40, "\\u0041" * 8, "1" * 30,
)  # fmt: skip
_KEYS = ("", "a", "name", "type", "role", "content", "query", "required", "description", ":", "k" * 30, "\U0001f600")
_FIELDS = {
    "body": ("q", "arguments", "topic"),
    "mcp": ("arguments", "_meta", "name", "cursor"),
    "instance": ("a",),
    "declaration": ("tools", "arguments", "description", "title", "functions", "other", "parameters", "returns"),
    "answer": ("messages", "tools", "other"),
    "call": ("query", "filters", "limit", "sources", "other"),
    "frame": ("done", "search", "calls"),
    "head": ("header", "query", "path", "key", "cookie"),
}
KINDS = tuple(_FIELDS)
_SCHEMAS: tuple[Callable[[Any], Any], ...] = (
    lambda s: {"anyOf": [s, s]}, lambda s: {"allOf": [s] * 20}, lambda s: {"oneOf": [s, s]}, lambda s: {"not": s},
    lambda s: {"items": s}, lambda s: {"properties": {"a": s}}, lambda s: {"additionalProperties": s},
    lambda s: {"contains": s}, lambda s: {"propertyNames": s}, lambda s: {"patternProperties": {"(a|b)*c": s}},
    lambda s: {"if": s, "then": s, "else": s}, lambda s: {**s, "uniqueItems": True},
    lambda s: {"prefixItems": [s] * 20},
    lambda s: {**s, "unevaluatedProperties": False}, lambda s: {**s, "unevaluatedItems": False},
    lambda s: {"dependentSchemas": {"a": s}}, lambda s: {**s, "minContains": 2, "contains": {}},
)  # fmt: skip
_PLAIN: tuple[Any, ...] = (
    {}, {"type": "string"}, {"type": "integer"}, {"enum": list(range(50))}, {"const": {"a": [1, 2, 3]}},
    {"pattern": "(a|aa)+$"}, {"pattern": "\\p{L}{1,50}"}, {"format": "date-time"}, {"format": "email"},
    {"format": "uri"}, {"format": "regex"}, {"format": "idn-hostname"}, {"multipleOf": 0.01}, {"minLength": 3},
    {"required": ["x", "y"]},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Genome:
    """What an attack is made of. `keyed`: the units are in an object of different keys, not in a list."""

    kind: str
    field: str
    unit: Any
    keyed: bool = False
    schema: Any = None

    def told(self) -> dict[str, Any]:
        """As JSON, to be made again by `of`."""
        return {each: getattr(self, each) for each in ("kind", "field", "unit", "keyed", "schema")}


def of(told: dict[str, Any]) -> Genome:
    """A genome that was told."""
    return Genome(**told)


def value(chance: random.Random, depth: int = 3) -> Any:
    """A small value."""
    pick = chance.random()
    if depth == 0 or pick < 0.4:
        return chance.choice(_LEAVES)
    if pick < 0.7:
        return [value(chance, depth - 1) for _ in range(chance.choice((0, 1, 1, 2, 8)))]
    return {chance.choice(_KEYS): value(chance, depth - 1) for _ in range(chance.choice((0, 1, 1, 2, 4)))}


def schema(chance: random.Random, depth: int = 3) -> Any:
    """A schema for one property."""
    made = chance.choice(_PLAIN)
    for _ in range(chance.randrange(depth + 1)):
        made = chance.choice(_SCHEMAS)(made)
    return made


def genome(kind: str, chance: random.Random) -> Genome:
    """A first guess."""
    return Genome(kind, chance.choice(_FIELDS[kind]), value(chance), chance.random() < 0.3, schema(chance))


def mutated(one: Genome, chance: random.Random) -> Genome:
    """The same with one thing changed."""
    pick = chance.random()
    if pick < 0.15:
        return replace(one, field=chance.choice(_FIELDS[one.kind]))
    if pick < 0.25:
        return replace(one, keyed=not one.keyed)
    if pick < 0.45 and one.kind == "instance":
        grown = chance.choice(_SCHEMAS)(one.schema) if chance.random() < 0.6 else schema(chance)
        return replace(one, schema=grown)
    if pick < 0.6:
        return replace(one, unit=value(chance))
    return replace(one, unit=_changed(one.unit, chance))


def _changed(unit: Any, chance: random.Random) -> Any:
    pick = chance.random()
    if pick < 0.2:
        return [unit]
    if pick < 0.35:
        return {chance.choice(_KEYS): unit}
    if isinstance(unit, list) and unit:
        at = chance.randrange(len(unit))
        return [*unit, unit[at]] if pick < 0.5 else [*unit[:at], _changed(unit[at], chance), *unit[at + 1 :]]
    if isinstance(unit, dict) and unit:
        key = chance.choice(list(unit))
        return {**unit, key: _changed(unit[key], chance)}
    if isinstance(unit, str) and unit and pick < 0.7:
        return (unit * 2)[:200]
    return chance.choice(_LEAVES)


# ---- from a genome to an attack ---------------------------------------------------------------------------------


def attack(one: Genome, size: int = BODY) -> Attack:
    """The attack of this size, or of the largest that its kind permits."""
    name = f"{one.kind} {json.dumps(one.told())[:200]}"
    return _MAKERS[one.kind](name, one, size)


def _json(one: Genome, size: int) -> bytes:
    unit = text(one.unit)
    if not one.keyed:
        return filled(b"[", unit, b"]", size)
    count = max(1, size // (len(unit) + 10))
    return b"{" + b",".join(b'"%x":%s' % (number, unit) for number in range(count)) + b"}"


def _body(name: str, one: Genome, size: int) -> Attack:
    body = b'{"%s":%s}' % (one.field.encode(), _json(one, min(size, BODY) - 64))
    return Attack(name, ("body",), lambda place: Plan((post("/agents/echo/prompt", body),), len(body)))


def _mcp(name: str, one: Genome, size: int) -> Attack:
    said = _json(one, min(size, BODY) - 256)
    field = b"" if one.field == "name" else b'"name":"echo",'
    params = b'{%s"%s":%s}' % (field, one.field.encode(), b'{"a":%s}' % said if one.field == "arguments" else said)
    method = "tools/list" if one.field == "cursor" else "prompts/get"
    return Attack(name, ("body",), lambda place: Plan((message(method, params),), len(params)))


def _instance(name: str, one: Genome, size: int) -> Attack:
    body = b'{"a":%s}' % _json(one, min(size, BODY) - 64)
    schema = {"type": "object", "properties": {"a": {"items": one.schema, "additionalProperties": one.schema}}}

    def plan(place: Place) -> Plan:
        published = upload(place.name, tool_source(schema), "tools")
        return Plan((post(f"/tools/{place.name}", body),), len(body), published)

    return Attack(name, ("validation",), plan)


def _repeated(one: Genome, size: int) -> tuple[str, int]:
    """Lua that makes a table of units, and how many bytes it is on its way to the supervisor."""
    packed = len(msgspec.msgpack.encode(one.unit)) + (6 if one.keyed else 0)
    count = max(1, size // packed)
    key = "('%x'):format(i)" if one.keyed else "i"
    source = f"local unit, t = {lua(one.unit)}, {{}} for i = 1, {count} do t[{key}] = unit end\n"
    return source, count * packed


def _declaration(name: str, one: Genome, size: int) -> Attack:
    made, size = _repeated(one, min(size, MIB - 64 * 1024))
    is_tool = one.field in ("parameters", "returns")
    root, called = ("tool", "execute") if is_tool else ("agent", "resolve")
    source = f"{made}{root} = {{ {one.field} = t }}\nfunction {root}.{called}() return {{}} end"
    return Attack(name, ("declaration",), lambda place: Plan(upload(place.name, source, f"{root}s"), size))


def _answer(name: str, one: Genome, size: int) -> Attack:
    made, size = _repeated(one, size)
    return answers(name, ("answer",), f"{made}return {{ system = 'x', {one.field} = t }}", size)


def _call(name: str, one: Genome, size: int) -> Attack:
    made, size = _repeated(one, size)
    return answers(
        name, ("call",), f"{made}pcall(context.search, {{ query = 'x', {one.field} = t }}) return {{}}", size
    )


def _head(name: str, one: Genome, size: int) -> Attack:
    unit = "".join(each if " " < each < "\x7f" and each != "%" else f"%{ord(each):02x}"[:3] for each in lua(one.unit))
    long = (unit * 8_000)[: min(size, 12_000)]
    ask = {
        "header": Ask("POST", "/agents/echo/prompt", b"{}", (("x-a", long),)),
        "cookie": Ask("POST", "/agents/echo/prompt", b"{}", (("cookie", long), ("accept", long[:2_000]))),
        "key": Ask("GET", "/limits", headers=(("authorization", f"Bearer {long}"),)),
        "query": Ask("GET", f"/tools/list?agent={long}"),
        "path": Ask("GET", f"/agents/{long}/versions"),
    }[one.field]
    return Attack(name, ("head",), lambda place: Plan((ask,), len(long)))


def _frame(name: str, one: Genome, size: int) -> Attack:
    """Frames that plain Lua would not send: the same values, by a worker with machine code."""
    unit = msgspec.msgpack.encode(one.unit).hex()
    given = b'{"frame":"any:%s:%s:%d:"}' % (one.field.encode(), unit.encode(), size)
    return answers(
        name, ("frame",), "return { system = 'x' }", size, head="--! any\n", given=given, may_violate=True
    )  # fmt: skip


_MAKERS: dict[str, Callable[[str, Genome, int], Attack]] = {
    "body": _body, "mcp": _mcp, "instance": _instance, "declaration": _declaration, "answer": _answer, "call": _call,
    "head": _head, "frame": _frame,
}  # fmt: skip

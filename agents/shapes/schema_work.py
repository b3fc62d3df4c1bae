"""An upper bound on the work of validating a value with a JSON Schema, computed before validation. Pure.

The unit is 10 ns on the machine that the figures in docs/adr/0006 were measured on. Every keyword has a weight, its
highest known cost, and a schema becomes a `Plan`: the weights that apply to one location in a value, and the plans of
the locations below. Without references, a node of a schema is applied to a location once, so the sum over all locations
is a bound. `tests/agents/test_schema_work.py` tests the worst known use of every keyword against it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

# 40 ms: below the 50 ms bound on any piece of work (`engine.work.LOOP_S`).
MAX_WORK = 4_000_000
# Walking value and schema together takes Python up to 0.3 us a location.
MAX_STEPS = 60_000

# Comparing numbers between these takes one or two microseconds whatever their digits; outside, up to forty, as the
# library then computes with hundreds of digits.
_LARGE, _SMALL = 1e30, 1e-30
_INT64 = 2**63

# Weights: of any keyword; of looking up a name; of comparing a fraction, and one outside those bounds.
_KEYWORD, _NAME, _FRACTION, _ODD = 5, 10, 320, 3_000
_MULTIPLE, _MULTIPLE_ODD = 300, 4_500
# Of hashing a value below `uniqueItems`; the second is for fractions, which are rendered first.
_HASHED, _HASHED_ODD = 40, 400
# Integers beyond 64 bits with a sign all have the same hash, so each is compared with every other one (100 units a
# pair).
_PAIR = 100
# A keyword `unevaluated*` evaluates all keywords beside it again (2.6 times measured).
_AGAIN = 4
# Of a character for each KiB of compiled pattern, if the automaton does not fit its cache (up to 210 ns).
PATTERN_UNIT = 25

BRANCHES = ("allOf", "anyOf", "oneOf")
_IN_PLACE = ("not", "if", "then", "else")
_OF_ITEMS = ("items", "contains", "unevaluatedItems")
_OF_OTHERS = ("additionalProperties", "unevaluatedProperties")
UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LENGTHS = ("minLength", "maxLength", "format", "contentEncoding", "contentMediaType")
_REQUIRED = ("dependentRequired", "dependencies")


@dataclass(slots=True)
class Weights:
    """The cost of one value, by kind. `odd` is a number outside the bounds above, `char` a character of a string."""

    value: float = 0
    mapping: float = 0
    fraction: float = 0
    odd: float = 0
    char: float = 0
    pair: float = 0

    def add(self, other: "Weights", times: float = 1) -> None:
        self.value += times * other.value
        self.mapping += times * other.mapping
        self.fraction += times * other.fraction
        self.odd += times * other.odd
        self.char += times * other.char
        self.pair += times * other.pair

    def work(self, counts: "Counts") -> float:
        """The work on these numbers of values."""
        return (
            self.value * counts.values
            + self.mapping * counts.mappings
            + self.fraction * counts.fractions
            + self.odd * counts.odd
            + self.char * counts.chars
            + self.pair * counts.huge * counts.huge
        )


@dataclass(slots=True)
class Plan:
    """The weights of all keywords that a schema applies to one location, and the plans of the locations below it.

    `keys` applies to the names of an object, `within` to every value at any depth below. `other` and `items` apply to
    every field and item, even if the schema selects only some of them.
    """

    here: Weights = field(default_factory=Weights)
    keys: Weights = field(default_factory=Weights)
    within: Weights = field(default_factory=Weights)
    fields: dict[str, "Plan"] = field(default_factory=dict)
    other: "Plan | None" = None
    items: "Plan | None" = None

    def total(self) -> Weights:
        """The sum of all weights: a bound that does not distinguish locations."""
        summed = Weights()
        for plan in self._all():
            for weights in (plan.here, plan.keys, plan.within):
                summed.add(weights)
        return summed

    def _all(self) -> "Iterator[Plan]":
        pending = [self]
        while pending:
            plan = pending.pop()
            yield plan
            pending += plan.fields.values()
            pending += [below for below in (plan.other, plan.items) if below is not None]

    def field_named(self, name: str) -> "Plan":
        return self.fields.setdefault(name, Plan())

    def others(self) -> "Plan":
        self.other = self.other or Plan()
        return self.other

    def each_item(self) -> "Plan":
        self.items = self.items or Plan()
        return self.items


@dataclass(slots=True)
class Counts:
    """Numbers of values by kind. Keys of objects count as strings; `huge` are integers beyond 64 bits with a sign."""

    values: int = 0
    mappings: int = 0
    fractions: int = 0
    odd: int = 0
    chars: int = 0
    huge: int = 0

    def scalar(self, value: Any) -> None:
        """Count one value that is not a container."""
        self.values += 1
        kind = type(value)
        if kind is str:
            self.chars += len(value) if value.isascii() else 4 * len(value)
        elif kind is float:
            size = abs(value)
            if _SMALL < size < _LARGE or not size:
                self.fractions += 1
            else:
                self.odd += 1
        elif kind is int and not -_INT64 <= value < _INT64:
            self.odd += 1
            self.huge += 1

    def scalars(self, values: list[Any], kinds: set[type]) -> None:
        """`scalar` for many values of these types. C code visits each: 50 ns instead of 300."""
        if str in kinds:
            texts = values if len(kinds) == 1 else [value for value in values if type(value) is str]
            self.values += len(texts)
            self._chars(texts)
            values = [] if len(kinds) == 1 else [value for value in values if type(value) is not str]
        if float in kinds or (values and int in kinds and not _within_64_bits(values)):
            for value in values:
                self.scalar(value)
        else:
            self.values += len(values)

    def names(self, names: list[str]) -> None:
        """Count names of fields."""
        self.values += len(names)
        self._chars(names)

    def _chars(self, texts: list[str]) -> None:
        whole = "".join(texts)
        if whole.isascii():
            self.chars += len(whole)
        else:
            self.chars += sum(len(text) if text.isascii() else 4 * len(text) for text in texts)


def counted(value: Any) -> Counts:
    """Count a value and everything in it, keys included."""
    return _counted([value])


def _counted(level: list[Any]) -> Counts:
    """Count these values and everything in them. Level by level, so that C code visits each: 100 ns instead of 500."""
    counts = Counts()
    while level:
        mappings, lists = _sorted_out(level, counts)
        counts.names([*chain.from_iterable(mappings)])
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, mappings))]
    return counts


def _sorted_out(values: list[Any], counts: Counts) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """The objects and the lists among values. Counts all the values, but not their contents."""
    kinds = set(map(type, values))
    mappings = [value for value in values if type(value) is dict] if dict in kinds else []
    lists = [value for value in values if type(value) is list] if list in kinds else []
    counts.values += len(mappings) + len(lists)
    counts.mappings += len(mappings)
    if mappings or lists:
        values = [value for value in values if type(value) is not dict and type(value) is not list]
        kinds -= {dict, list}
    if values:
        counts.scalars(values, kinds)
    return mappings, lists


def _within_64_bits(values: list[Any]) -> bool:
    """Whether all integers among values (without strings and fractions) fit in 64 bits, with a sign."""
    numbers = [value for value in values if value is not None]
    return not numbers or (min(numbers) >= -_INT64 and max(numbers) < _INT64)


def work(plan: Plan, value: Any) -> float:
    """A bound on the work of validating the value, location by location. Infinite if computing it takes too long.

    All values at locations of one plan are counted together. Integers that are compared in pairs count as if they were
    at one location, which overestimates.
    """
    total, steps = 0.0, 0
    pending: list[tuple[Plan, list[Any]]] = [(plan, [value])]
    while pending:
        plan, values = pending.pop()
        counts, names = Counts(), Counts()
        mappings, lists = _sorted_out(values, counts)
        names.names([*chain.from_iterable(mappings)])
        total += plan.here.work(counts) + plan.keys.work(names)
        steps += len(values) + names.values
        if plan.within.value and (mappings or lists):
            inner = _counted([*mappings, *lists])
            steps += inner.values
            total += plan.within.work(inner)
        if total > MAX_WORK or steps > MAX_STEPS:
            return float("inf")
        pending += _below(plan, mappings, lists, names.values)
    return total


def _below(
    plan: Plan, mappings: list[dict[str, Any]], lists: list[list[Any]], names: int
) -> Iterator[tuple[Plan, list[Any]]]:
    """The values one level down, by their plans."""
    if plan.fields and mappings:
        found: dict[str, list[Any]] = {}
        if len(plan.fields) * len(mappings) <= 2 * names:
            for name in plan.fields:
                found[name] = [mapping[name] for mapping in mappings if name in mapping]
        else:
            for mapping in mappings:
                for name in plan.fields.keys() & mapping.keys():
                    found.setdefault(name, []).append(mapping[name])
        yield from ((plan.fields[name], values) for name, values in found.items() if values)
    if plan.other is not None and mappings:
        yield plan.other, [*chain.from_iterable(map(dict.values, mappings))]
    if plan.items is not None and lists:
        yield plan.items, [*chain.from_iterable(lists)]


def plan_of(schema: Any, pattern_kib: Callable[[str], int]) -> Plan:
    """The plan of a schema. `pattern_kib` returns the compiled size of a pattern."""
    plan = Plan()
    _Planning(pattern_kib).add(schema, plan, 1)
    return plan


@dataclass(frozen=True, slots=True)
class _Planning:
    pattern_kib: Callable[[str], int]

    def add(self, schema: Any, plan: Plan, times: float) -> None:
        """Add the cost of the schema at this location, `times` times."""
        plan.here.add(Weights(value=_KEYWORD), times)
        if not isinstance(schema, dict):
            return
        for keyword, said in schema.items():
            plan.here.add(Weights(value=_KEYWORD), times)
            self._own(keyword, said, plan, times)
        beside = times * _AGAIN if any(keyword in schema for keyword in UNEVALUATED) else times
        self._in_place(schema, plan, beside)
        self._below(schema, plan, times, beside)

    def _own(self, keyword: str, said: Any, plan: Plan, times: float) -> None:
        """Add the cost of a keyword that contains no schemas."""
        if keyword in _BOUNDS:
            plan.here.add(_compared(said), times)
        elif keyword == "multipleOf":
            odd = _is_odd(said)
            plan.here.add(Weights(fraction=_MULTIPLE_ODD if odd else _MULTIPLE, odd=_MULTIPLE_ODD), times)
        elif keyword in ("enum", "const"):
            plan.here.add(_among(said if keyword == "enum" and isinstance(said, list) else [said]), times)
        elif keyword in _LENGTHS:
            plan.here.add(Weights(char=1), times)
        elif keyword == "pattern" and isinstance(said, str):
            plan.here.add(self._pattern(said), times)
        elif keyword == "uniqueItems":
            hashed = Weights(value=_HASHED, fraction=_HASHED, odd=_HASHED_ODD, char=1, pair=_PAIR)
            plan.within.add(hashed, times)
        elif keyword == "required" and isinstance(said, list):
            plan.here.add(Weights(mapping=_NAME * len(said)), times)
        elif keyword in _REQUIRED and isinstance(said, dict):
            names = sum(1 + len(each) for each in said.values() if isinstance(each, list))
            plan.here.add(Weights(mapping=_NAME * (names + len(said))), times)

    def _in_place(self, schema: Mapping[str, Any], plan: Plan, times: float) -> None:
        """Add the schemas that apply to the same location."""
        for keyword in BRANCHES:
            for each in schema.get(keyword, ()):
                self.add(each, plan, times)
        for keyword in _IN_PLACE:
            if keyword in schema:
                self.add(schema[keyword], plan, times)
        for keyword in ("dependentSchemas", "dependencies"):
            for each in schema.get(keyword, {}).values():
                if not isinstance(each, list):
                    plan.here.add(Weights(mapping=_NAME), times)
                    self.add(each, plan, times)

    def _below(self, schema: Mapping[str, Any], plan: Plan, times: float, beside: float) -> None:
        """Add the schemas that apply to fields, names and items."""
        properties = schema.get("properties", {})
        plan.here.add(Weights(mapping=len(properties)), times)
        plan.keys.add(Weights(value=_NAME), times)
        for name, each in properties.items():
            self.add(each, plan.field_named(name), times)
        patterns = schema.get("patternProperties", {})
        for pattern, each in patterns.items():
            # Once for itself, and once to find the fields that `additionalProperties` applies to.
            plan.keys.add(self._pattern(pattern), 2 * beside)
            self.add(each, plan.others(), times)
        for keyword in _OF_OTHERS:
            if keyword in schema:
                plan.keys.add(Weights(value=_NAME), beside)
                self.add(schema[keyword], plan.others(), times)
        if "propertyNames" in schema:
            names = Plan()
            self.add(schema["propertyNames"], names, times)
            plan.keys.add(names.here)
        for keyword in _OF_ITEMS:
            if keyword in schema:
                self.add(schema[keyword], plan.each_item(), beside if keyword == "contains" else times)
        for each in schema.get("prefixItems", ()):
            self.add(each, plan.each_item(), times)

    def _pattern(self, pattern: str) -> Weights:
        return Weights(value=2 * _NAME, char=PATTERN_UNIT * self.pattern_kib(pattern))


def _is_odd(number: Any) -> bool:
    if isinstance(number, bool) or not isinstance(number, int | float) or not number:
        return False
    return not _SMALL < abs(number) < _LARGE


def _compared(number: Any) -> Weights:
    return Weights(fraction=_ODD if _is_odd(number) else _FRACTION, odd=_ODD)


def _among(options: list[Any]) -> Weights:
    """The cost of comparing a value with each of these. Strings and the like are looked up; others compared in turn."""
    if all(isinstance(each, str | bool | None) for each in options):
        return Weights(value=_NAME)
    inside = counted(options)
    number = _ODD if inside.odd else _FRACTION
    if any(isinstance(each, dict | list) for each in options):  # compared as a whole, including every number in it
        return Weights(value=inside.values * (3 * _NAME + number), odd=inside.values * _ODD)
    plain = not inside.fractions and not inside.odd
    return Weights(value=_NAME if plain else inside.values * number,
                   fraction=inside.values * number, odd=inside.values * _ODD)  # fmt: skip

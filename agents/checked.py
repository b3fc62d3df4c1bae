"""Values against a JSON Schema whose work was bounded before, and what is wrong with them.

A check that could take longer than the bound is refused. Compiled schemas are made when they are first needed and put
away, the least recently used first, when all of them are more than `KEPT_BYTES`.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any

import jsonschema_rs

from agents.schema import compile_schema, pattern_kib, patterns_of, subschemas
from agents.schema_work import MAX_WORK, Counts, Plan, Weights, counted, plan_of, work

# Of all compiled schemas together. One of 1,000 values takes 0.5 MiB, and its plan as much.
KEPT_BYTES = 64 * 1024 * 1024
_NODE_BYTES = 1_536
# A compiled pattern and the automata that are made of it while it is used (three caches of its own size).
_PATTERN_BYTES = 4 * 1024
# What is wrong is told in detail of values up to this size: the library's message renders the value, and where
# branches fail, it makes every error in every branch before the first is told (18 us each, and 18 s in all were seen).
_TELL_CHARS = 16 * 1024
_TELL_VALUES = 1_024
_TELL_ERRORS = 1_000
_BRANCHING = ("anyOf", "oneOf")
# A check below this much work costs less than to charge for it.
_FREE_WORK = 20_000

Working = Callable[[], AbstractContextManager[None]]


class TooMuchWork(Exception):
    """The check could take longer than the bound; the text has the sizes."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """The first violation: its path, the keyword, what that says and what was seen. `text` is empty where not told."""

    path: tuple[str | int, ...]
    keyword: str = ""
    expected: Any = None
    seen: Any = None
    text: str = ""


@dataclass(slots=True, eq=False)
class _Made:
    """What checking takes: the validator, the plan of its work and the plan's sum.

    An object of at most `few` values, none of which holds others, and with texts of at most `short` characters each, is
    checked within _FREE_WORK. `used` says that something was checked since the list of what is kept was last looked at.
    """

    validator: jsonschema_rs.Draft202012Validator
    plan: Plan
    total: Weights
    few: int
    short: int
    used: bool = True


class CheckedSchema:
    """A schema that was checked (`agents.schema`), to hold values against. Thread-safe."""

    __slots__ = ("_branching", "_made", "_nodes", "_schema")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._nodes = _nodes(schema)
        self._branching = _branches(schema)
        # Invariant: not None exactly while the schema is in _KEPT.
        self._made: _Made | None = None

    def wrong(self, value: Any, working: Working = nullcontext) -> Wrong | None:
        """The first violation, or None. More than a little work is done inside of `working()`.

        Raises TooMuchWork, and ValueError for a schema that does not compile.
        """
        made = self._made
        if made is None:
            with working():
                made = _KEPT.make(self)
        made.used = True
        if _is_small(value, made.few, made.short) and made.validator.is_valid(value):
            return None
        with working():  # counting is work, too: 0.1 us a value
            counts = counted(value)
            bound = made.total.of(counts)
            if bound > MAX_WORK and work(made.plan, value) > MAX_WORK:
                raise TooMuchWork(
                    f"{counts.values} values with {counts.chars} characters are too much to check against a schema of "
                    f"{self._nodes} values: that could take longer than {MAX_WORK // 100_000} ms"
                )
            return None if made.validator.is_valid(value) else self._told(value, counts, made.validator)

    def made(self) -> _Made:
        """Compile the schema. Raises ValueError and ValidationError."""
        sizes = {pattern: pattern_kib(pattern) for pattern in patterns_of(self._schema)}
        plan = plan_of(self._schema, lambda pattern: sizes[pattern])
        total = plan.total()
        each = total.value + total.mapping + total.fraction + total.odd + total.pair
        few = min(16, int(_FREE_WORK / 2 / (2 * each)) - 1)
        short = int(_FREE_WORK / 2 / (2 * 4 * 16 * total.char + 1))
        return _Made(compile_schema(self._schema), plan, total, few, short)

    @property
    def size(self) -> int:
        """About how many bytes it takes while it is compiled."""
        return self._nodes * _NODE_BYTES + len(patterns_of(self._schema)) * _PATTERN_BYTES

    def _told(self, value: Any, counts: Counts, validator: jsonschema_rs.Draft202012Validator) -> Wrong:
        if self._tellable(counts, self._nodes, self._branching):
            return _first(self._schema, value, validator)
        return self._narrowed(value)

    def _narrowed(self, value: Any) -> Wrong:
        """What is wrong with a large value: the name of the first wrong field, and more where that is a small one."""
        if not isinstance(value, dict):
            return Wrong(())
        required = self._schema.get("required", ())
        if missing := next((name for name in required if name not in value), None):
            return Wrong((), "required", [missing], value)
        for name, part in self._schema.get("properties", {}).items():
            if name not in value:
                continue
            alone, field = {"properties": {name: part}}, {name: value[name]}
            validator = compile_schema(alone)
            if not validator.is_valid(field):
                if self._tellable(counted(field), _nodes(alone), _branches(alone)):
                    return _first(alone, field, validator)
                return Wrong((name,))
        return Wrong(())

    @staticmethod
    def _tellable(counts: Counts, nodes: int, branching: bool) -> bool:
        small = counts.chars <= _TELL_CHARS and counts.values <= _TELL_VALUES
        return small and (not branching or counts.values * nodes <= _TELL_ERRORS)


class _Kept:
    """The schemas that are compiled, in the order in which they are looked at. Invariant: `_size` is their sum."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._used: OrderedDict[CheckedSchema, int] = OrderedDict()
        self._lock = Lock()

    def make(self, schema: CheckedSchema) -> _Made:
        made, size = schema.made(), schema.size
        with self._lock:
            if schema._made is None:
                self._used[schema] = size
                self._size += size
            schema._made = made
            while self._size > self._most and len(self._used) > 1:
                oldest, freed = self._used.popitem(last=False)
                if oldest is schema or (oldest._made is not None and oldest._made.used):
                    self._used[oldest] = freed  # another round, unless it is used in that
                    (oldest._made or made).used = False
                    continue
                oldest._made = None
                self._size -= freed
        return made


_KEPT = _Kept(KEPT_BYTES)


def _is_small(value: Any, few: int, short: int) -> bool:
    """Whether it is an object of few and short values. For nearly every call this is all the counting there is."""
    if type(value) is not dict or len(value) > few:
        return False
    for name, each in value.items():
        kind = type(each)
        if kind is str:
            if len(each) > short:
                return False
        elif kind is dict or kind is list:
            return False
        if len(name) > short:
            return False
    return True


def _first(schema: Mapping[str, Any], value: Any, validator: jsonschema_rs.Draft202012Validator) -> Wrong:
    """What the library says of a small value. It stops at the first violation."""
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        keyword = str(error.schema_path[-1]) if error.schema_path else ""
        expected = _at(schema, error.schema_path)
        return Wrong(tuple(error.instance_path), keyword, expected, error.instance, error.message[:200])
    return Wrong(())


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        value = value[part]
    return value


def _nodes(schema: Mapping[str, Any]) -> int:
    return counted(schema).values


def _branches(schema: Mapping[str, Any]) -> bool:
    return any(keyword in each for each, _ in subschemas(schema) for keyword in _BRANCHING)

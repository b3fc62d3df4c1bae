"""Validation of values with a JSON Schema, in bounded time.

A validation that could take longer than the bound is refused. Schemas are compiled on first use, and kept in a cache of
`KEPT_BYTES` with eviction of entries not used recently.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any

import jsonschema_rs

from agents.shapes.schema import compile_schema, pattern_kib, patterns_of, subschemas
from agents.shapes.schema_work import MAX_WORK, Counts, Plan, Weights, counted, plan_of, work
from engine.values import drained

# Bound on all compiled schemas together. One of 1,000 values takes 0.5 MiB, and its plan as much.
KEPT_BYTES = 64 * 1024 * 1024
_NODE_BYTES = 1_536
# A compiled pattern and the automata built from it during use (three caches of its own size).
_PATTERN_BYTES = 4 * 1024
# Bounds for a detailed error: the library's message renders the value, and if branches fail, it makes every error in
# every branch before it reports the first (18 us each, and 18 s in all were seen).
_TELL_CHARS = 16 * 1024
_TELL_VALUES = 1_024
_TELL_ERRORS = 1_000
_BRANCHING = ("anyOf", "oneOf")
# A validation below this much work costs less than charging for it.
_FREE_WORK = 20_000
# A value with more values than this is counted, measured and validated with a pause between each: 1 ms of counting.
PAUSE_VALUES = 10_000

Working = Callable[[], AbstractContextManager[None]]


class TooMuchWork(Exception):
    """The validation could take longer than the bound; the text has the sizes."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """The first violation: path, keyword, the keyword's value and the value seen. `text` is empty without detail."""

    path: tuple[str | int, ...]
    keyword: str = ""
    expected: Any = None
    seen: Any = None
    text: str = ""


@dataclass(slots=True, eq=False)
class _Made:
    """A compiled schema: the validator, the plan of its work and the plan's total.

    A flat object of at most `few` values, with strings of at most `short` characters each, is validated within
    _FREE_WORK. `used` is the cache's second-chance bit: set on each use, cleared when eviction passes over the entry.
    """

    validator: jsonschema_rs.Draft202012Validator
    plan: Plan
    total: Weights
    few: int
    short: int
    used: bool = True


class CheckedSchema:
    """A schema that `agents.shapes.schema` has accepted, to validate values with. Thread-safe."""

    __slots__ = ("_branching", "_made", "_nodes", "_schema")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._nodes = _nodes(schema)
        self._branching = _branches(schema)
        # Invariant: not None exactly while the schema is in the cache _CACHE.
        self._made: _Made | None = None

    def wrong(self, value: Any, working: Working = nullcontext) -> Wrong | None:
        """`validating`, without a pause."""
        return drained(self.validating(value, working))

    def validating(self, value: Any, working: Working) -> Generator[None, None, Wrong | None]:
        """The first violation, or None. All but a little of the work is done inside `working()`.

        Yields between pieces of the work if the value is not small: a caller on the event loop lets other tasks run
        there. Raises TooMuchWork, and ValueError for a schema that does not compile.
        """
        made = self._made
        if made is None:
            with working():
                made = _CACHE.make(self)
        made.used = True
        if _is_small(value, made.few, made.short) and made.validator.is_valid(value):
            return None
        with working():  # counting is work too: 0.1 us a value
            counts = counted(value)
        if made.total.work(counts) > MAX_WORK:
            yield
            with working():
                needed = work(made.plan, value)
            if needed > MAX_WORK:
                raise TooMuchWork(
                    f"{counts.values} values with {counts.chars} characters are too much to check against a schema of "
                    f"{self._nodes} values: that could take longer than {MAX_WORK // 100_000} ms"
                )
        if counts.values > PAUSE_VALUES:
            yield
        with working():
            return None if made.validator.is_valid(value) else self._describe(value, counts, made.validator)

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
        """About how many bytes the compiled schema takes."""
        return self._nodes * _NODE_BYTES + len(patterns_of(self._schema)) * _PATTERN_BYTES

    def _describe(self, value: Any, counts: Counts, validator: jsonschema_rs.Draft202012Validator) -> Wrong:
        if self._tellable(counts, self._nodes, self._branching):
            return _first(self._schema, value, validator)
        return self._narrowed(value)

    def _narrowed(self, value: Any) -> Wrong:
        """The violation in a large value: the name of the first wrong field, with detail if that field is small."""
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


class _SchemaCache:
    """The cache of compiled schemas, in the order of eviction. Invariant: `_size` is the sum of their sizes."""

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
                    self._used[oldest] = freed  # a second chance: evicted in the next round unless used until then
                    (oldest._made or made).used = False
                    continue
                oldest._made = None
                self._size -= freed
        return made


_CACHE = _SchemaCache(KEPT_BYTES)


def _is_small(value: Any, few: int, short: int) -> bool:
    """Whether it is an object of few and short values. Nearly every call needs no other counting."""
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
    """The library's error for a small value. It stops at the first violation."""
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        keyword = str(error.schema_path[-1]) if error.schema_path else ""
        _, expected = _followed(schema, error.schema_path)
        path, _ = _followed(value, error.instance_path)
        return Wrong(path, keyword, expected, error.instance, error.message[:200])
    return Wrong(())


def _followed(value: Any, path: Sequence[str | int]) -> tuple[tuple[str | int, ...], Any]:
    """A path of the library's with the names that are there, and the value at its end; None if it is not there.

    The library takes a name of digits for a position: of `007` it says 7.
    """
    found: list[str | int] = []
    for part in path:
        if isinstance(value, dict):
            name = part if part in value else _named_by_number(value, str(part))
            found.append(name)
            value = value.get(name)
        else:
            found.append(part)
            there = isinstance(value, list) and isinstance(part, int) and part < len(value)
            value = value[part] if there else None
    return tuple(found), value


def _named_by_number(fields: Mapping[str, Any], number: str) -> str:
    return number if number in fields else next((n for n in fields if (n.lstrip("+0") or "0") == number), number)


def _nodes(schema: Mapping[str, Any]) -> int:
    return counted(schema).values


def _branches(schema: Mapping[str, Any]) -> bool:
    return any(keyword in each for each, _ in subschemas(schema) for keyword in _BRANCHING)

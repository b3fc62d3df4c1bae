"""What checking values against strangers' schemas may cost: every keyword at its worst, grown until it is refused.

CPU time of this thread is counted, so that other work on the machine does not blur it.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jsonschema_rs
import pytest
from effort import effort
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import loop_s

from agents.shapes.checked import CheckedSchema, TooMuchWork
from agents.shapes.parameters import Parameters
from agents.shapes.schema import check_schema, parameters_schema
from agents.shapes.schema_work import MAX_WORK, Counts, counted, plan_of, work
from agents.shapes.shape import WrongShape
from engine.errors import Code, Problem

Case = Callable[[int], tuple[Any, Any]]

# Caches are cold and the machine is shared: what is meant is milliseconds, not the seconds that were seen.
BOUND_S = 2.5 * loop_s()
MOST_VALUES = 50_000  # what a body may have
MOST_CHARS = 4_000_000


def _names(n: int) -> dict[str, int]:
    return {f"x{i}": 1 for i in range(n)}


def _nested(n: int, around: Callable[[Any], Any], inner: Any) -> Any:
    for _ in range(min(n, 25)):
        inner = around(inner)
    return inner


# Every keyword of JSON Schema 2020-12 (and of older drafts that the library knows), at the worst that was found: from a
# size to a schema and a value.
WORST: dict[str, Case] = {
    "type": lambda n: ({"items": {"type": ["null", "string", "boolean", "integer"]}}, [1] * n),
    "type, wrong": lambda n: ({"items": {"allOf": [{"type": "string"}] * 900}}, [1] * n),
    "type of the whole, wrong": lambda n: ({"type": "string"}, [1] * n),
    "enum of numbers": lambda n: ({"items": {"enum": [i + 0.5 for i in range(1_900)]}}, [1_899.5] * n),
    "enum of numbers far out": lambda n: ({"items": {"enum": [i * 5e-324 for i in range(1_900)]}}, [1e300] * n),
    "enum of integers, a fraction": lambda n: ({"items": {"enum": list(range(1_900))}}, [1_899.5] * n),
    "enum of lists": lambda n: ({"items": {"enum": [[i] for i in range(900)]}}, [[899]] * n),
    "enum of objects": lambda n: ({"items": {"enum": [{"a": i + 0.5} for i in range(600)]}}, [{"a": 599.5}] * n),
    "enum of mixed": lambda n: ({"items": {"enum": [[1.5], "a", *range(1_000)]}}, [1e300, "b", [1]] * n),
    "enum of the whole": lambda n: ({"enum": [{"a": i} for i in range(600)]}, [1] * n),
    "const": lambda n: ({"items": {"const": [1.5] * 1_000}}, [[1.5] * 1_000] * (n // 1_000 + 1)),
    "const far out": lambda n: ({"items": {"const": 5e-324}}, [1e300] * n),
    "multipleOf": lambda n: ({"items": {"multipleOf": 0.01}}, [123.45] * n),
    "multipleOf far out": lambda n: ({"items": {"anyOf": [{"multipleOf": 1e-300}] * 9}}, [1e300] * n),
    "multipleOf of the tiny": lambda n: ({"items": {"anyOf": [{"multipleOf": 0.1}, {}]}}, [5e-324] * n),
    **{
        f"{keyword} {bound:g}": lambda n, keyword=keyword, bound=bound: (
            {"items": {"anyOf": [{keyword: bound}] * 9 + [True]}},
            [1e300, -1e300, 1.5, 5e-324, 2**63] * (n // 5 + 1),
        )
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        for bound in (5, 0.1, 1e-300)
    },
    "maxLength": lambda n: ({"allOf": [{"maxLength": 10**7}] * 900}, "\u00e9" * n),
    "minLength": lambda n: ({"items": {"minLength": 1}}, ["\U0001f600" * 1_000] * (n // 1_000 + 1)),
    "pattern": lambda n: ({"pattern": "^a*$"}, "a" * (30 * n)),
    "pattern of many states": lambda n: ({"pattern": "[ab]*a[ab]{100}c"}, "ab" * n),
    "pattern of most states": lambda n: ({"pattern": "[ab]*a[ab]{1000}c"}, "ab" * n),
    "patterns": lambda n: ({"items": {"allOf": [{"pattern": rf"[a-z]*{i}?$"} for i in range(60)]}}, ["abc" * 9] * n),
    "format": lambda n: ({"items": {"format": "idn-email"}}, ["a." * 30] * n),
    "contentEncoding": lambda n: ({"contentEncoding": "base64", "contentMediaType": "application/json"}, "ab" * n),
    "properties": lambda n: ({"items": {"properties": {name: {"type": "integer"} for name in _names(600)}}},
                             [_names(600)] * (n // 600 + 1)),
    "patternProperties": lambda n: ({"patternProperties": {f"q{i}": True for i in range(60)},
                                     "additionalProperties": {"type": "integer"}}, _names(n)),
    "additionalProperties": lambda n: ({"additionalProperties": {"type": "integer"},
                                        "properties": dict.fromkeys(_names(900), True)}, _names(n)),
    "propertyNames": lambda n: ({"propertyNames": {"allOf": [{"pattern": "[a-z]*1*$"}] * 200}}, _names(n)),
    "required": lambda n: ({"items": {"required": list(_names(1_900))}}, [_names(1_900)] * (n // 1_900 + 1)),
    "dependentRequired": lambda n: ({"items": {"dependentRequired": {name: ["x1"] for name in _names(900)}}},
                                    [_names(900)] * (n // 900 + 1)),
    "dependentSchemas": lambda n: ({"items": {"dependentSchemas": {name: {"minItems": 1} for name in _names(600)}}},
                                   [_names(600)] * (n // 600 + 1)),
    "dependencies": lambda n: ({"items": {"dependencies": {name: ["x1"] for name in _names(900)}}},
                               [_names(900)] * (n // 900 + 1)),
    "minProperties": lambda n: ({"items": {"minProperties": 0, "maxProperties": 9}}, [{"a": 1}] * n),
    "minItems": lambda n: ({"items": {"minItems": 0, "maxItems": 9}}, [[1]] * n),
    "uniqueItems": lambda n: ({"uniqueItems": True}, [i + 0.5 for i in range(n)]),
    "uniqueItems of objects": lambda n: ({"uniqueItems": True}, [{"a": i, "b": [i]} for i in range(n)]),
    "uniqueItems of large integers": lambda n: ({"uniqueItems": True}, [2**63 + i for i in range(n)]),
    "uniqueItems of tiny numbers": lambda n: ({"uniqueItems": True}, [i * 5e-324 for i in range(n)]),
    "uniqueItems of texts": lambda n: ({"uniqueItems": True}, [f"{'y' * 30}{i}" for i in range(n)]),
    "uniqueItems at every depth": lambda n: (
        _nested(20, lambda inner: {"uniqueItems": True, "items": inner}, {}), _nested(20, lambda i: [i], list(range(n)))
    ),
    "items": lambda n: ({"items": {"items": {"allOf": [{"type": "integer"}] * 900}}}, [[1] * 10] * (n // 10 + 1)),
    "prefixItems": lambda n: ({"items": {"prefixItems": [{"type": "integer"}] * 900}}, [[1] * 900] * (n // 900 + 1)),
    "contains": lambda n: ({"contains": {"anyOf": [{"const": i} for i in range(2, 300)]}}, [1] * n),
    "minContains": lambda n: ({"contains": {"type": "integer"}, "minContains": 10**9}, [1] * n),
    "allOf": lambda n: ({"items": {"allOf": [{"minimum": 0}] * 900}}, [1] * n),
    "anyOf": lambda n: ({"items": {"anyOf": [{"type": "string"}] * 900 + [{"type": "integer"}]}}, [1] * n),
    "anyOf, wrong": lambda n: ({"anyOf": [{"items": {"type": "string"}}] * 10}, [1] * n),
    "anyOf of anyOf, wrong": lambda n: (_nested(8, lambda inner: {"anyOf": [inner, inner]}, {"items": False}), [1] * n),
    "oneOf": lambda n: ({"items": {"oneOf": [{"type": "string"}] * 900 + [{"type": "integer"}]}}, [1] * n),
    "oneOf, wrong": lambda n: ({"oneOf": [{"items": {"type": "string"}}] * 10}, [1] * n),
    "not": lambda n: ({"items": _nested(25, lambda inner: {"not": inner}, {"type": "string"})}, [1] * n),
    "if": lambda n: ({"items": _nested(20, lambda inner: {"if": {}, "then": inner, "else": False}, {})}, [1] * n),
    "unevaluatedProperties": lambda n: (
        {"unevaluatedProperties": False, "anyOf": [{"properties": dict.fromkeys(_names(300), True)}] * 3}, _names(300)
    ),
    "unevaluatedProperties of unevaluatedProperties": lambda n: (
        {"properties": {"a": _nested(n, lambda inner: {"anyOf": [inner], "unevaluatedProperties": False},
                                     {"unevaluatedProperties": False})}}, {"a": {"x": 1}}),
    "unevaluatedProperties far below": lambda n: (
        _nested(n, lambda inner: {"anyOf": [{"properties": {"a": inner}}], "unevaluatedProperties": False},
                {"unevaluatedProperties": False}), _nested(n, lambda inner: {"a": inner}, {})),
    "unevaluatedProperties at every depth": lambda n: (
        _nested(n, lambda inner: {"properties": {"a": inner}, "unevaluatedProperties": False}, True),
        _nested(n, lambda inner: {"a": inner}, 1)),
    "unevaluatedItems": lambda n: (
        {"unevaluatedItems": False, "contains": {"items": {"allOf": [{"type": "integer"}] * 100}}},
        [[1] * 100] * (n // 100 + 1)),
    "unevaluatedItems of unevaluatedItems": lambda n: (
        _nested(n, lambda inner: {"anyOf": [inner, {}], "unevaluatedItems": False}, {"unevaluatedItems": False}), [1]),
    "default": lambda n: ({"properties": {name: {"default": "x" * 60} for name in _names(500)}}, {}),
    "$defs": lambda n: ({"$defs": {name: {"type": "string"} for name in _names(900)}}, [1] * n),
}  # fmt: skip


def _check(schema: dict[str, Any], value: Any) -> str:
    """What comes of publishing the schema and of one call with the value."""
    try:
        check_schema(schema, "tool.parameters")
    except WrongShape:
        return "refused schema"
    try:
        return "wrong" if CheckedSchema(schema).wrong(value) else "right"
    except TooMuchWork:
        return "refused value"


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
@pytest.mark.parametrize("keyword", WORST)
def test_no_keyword_at_its_worst_takes_longer_than_the_loop_may(keyword: str) -> None:
    n = 1
    while n <= MOST_VALUES:
        schema, value = WORST[keyword](n)
        counts = counted(value)
        if counts.values > MOST_VALUES or counts.chars > MOST_CHARS:
            return
        took: list[float] = []
        while len(took) < 3 and min(took, default=1) > BOUND_S / 2:  # the first one also pages memory in
            began = time.thread_time()
            came_of_it = _check(schema, value)
            took.append(time.thread_time() - began)
        assert min(took) < BOUND_S, (keyword, n, came_of_it, took)
        if came_of_it.startswith("refused"):
            return
        n = n * 3 + 1


_SMALL = st.sampled_from([1, 0.5, 5e-324, 1e300, 2**63, "a", "aab" * 20, None, True, [], {}])
_VALUES = st.recursive(
    _SMALL,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=30,
)
_LEAVES = st.one_of(
    st.fixed_dictionaries({}, optional={
        "type": st.sampled_from(["string", "integer", "object", "array"]), "minimum": st.sampled_from([0, 0.1, 1e300]),
        "multipleOf": st.sampled_from([1, 0.1]), "pattern": st.sampled_from(["^a*$", "[ab]*a[ab]{30}c"]),
        "uniqueItems": st.just(True), "const": _VALUES, "enum": st.lists(_VALUES, min_size=1, max_size=5),
        "required": st.lists(st.sampled_from("abc"), unique=True), "maxLength": st.just(9),
    }),
    st.booleans(),
)  # fmt: skip


def _around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=4)
    named = st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    return st.fixed_dictionaries({}, optional={
        "allOf": some, "anyOf": some, "oneOf": some, "not": inner, "if": inner, "then": inner, "else": inner,
        "items": inner, "prefixItems": some, "contains": inner, "properties": named, "patternProperties": named,
        "additionalProperties": inner, "propertyNames": inner, "dependentSchemas": named, "unevaluatedItems": inner,
        "unevaluatedProperties": inner,
    })  # fmt: skip


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
@settings(max_examples=effort(150), deadline=None)
@given(st.recursive(_LEAVES, _around, max_leaves=12), _VALUES)
def test_whatever_schema_and_value_are_the_bound_is_above_the_time(schema: Any, value: Any) -> None:
    if not isinstance(schema, dict):
        return
    try:
        check_schema(schema, "schema")
    except WrongShape:
        return
    plan = plan_of(schema, lambda pattern: 1)
    bound = work(plan, value)
    assert bound <= plan.total().work(counted(value)) or bound == float("inf")
    validator = jsonschema_rs.Draft202012Validator(schema, pattern_options=jsonschema_rs.RegexOptions())
    validator.is_valid(value)
    began = time.thread_time()
    for _ in range(20):
        validator.is_valid(value)
    took = (time.thread_time() - began) / 20
    # A call costs a microsecond before it begins; three times for a machine that is slower than the one measured.
    assert took < 3 * (bound * 1e-8 + 20e-6), (schema, value, bound, took)


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
def test_an_error_in_every_branch_is_told_without_making_them_all() -> None:
    """The library makes each error of each branch, each with the value in its text: 18 s for 100,000 numbers."""
    parameters = Parameters({"properties": {"a": {"anyOf": [{"items": {"type": "string"}}] * 10}, "b": {}}})
    began = time.thread_time()
    with pytest.raises(Problem, match="parameter 'a' does not match its schema") as wrong:
        parameters.check({"b": 1, "a": [1] * 5_000})
    assert time.thread_time() - began < BOUND_S
    assert wrong.value.code is Code.BAD_REQUEST


def test_a_small_mistake_beside_a_large_value_is_told_in_full() -> None:
    parameters = Parameters({"properties": {"text": {"type": "string"}, "n": {"type": "integer"}}, "required": ["n"]})
    with pytest.raises(Problem, match="parameter 'n' must be of type 'integer', got string"):
        parameters.check({"text": "x" * 1_000_000, "n": "5"})
    with pytest.raises(Problem, match="missing required parameter: n"):
        parameters.check({"text": "x" * 1_000_000})


def test_parameters_that_are_too_much_are_refused_with_both_sizes() -> None:
    parameters = Parameters({"properties": {"a": {"items": {"allOf": [{"type": "integer"}] * 900}}}})
    with pytest.raises(Problem, match=r"20003 values .* a schema of \d+ values") as wrong:
        parameters.check({"a": [1] * 20_000})
    assert wrong.value.code is Code.BAD_REQUEST
    parameters.check({"a": [1] * 50})


def test_other_tasks_run_between_the_pieces_of_a_large_validation_and_never_during_a_small_one() -> None:
    checked = CheckedSchema({"properties": {"a": {"items": {"type": "integer"}}}})
    assert len(list(checked.validating({"a": [1] * 45_000}, nullcontext))) >= 1
    assert len(list(checked.validating({"a": [1] * 100}, nullcontext))) == 0


def test_large_values_against_honest_schemas_pass() -> None:
    """Places are distinguished before a value is refused: a pattern for names does not make a long text beside it too
    much, nor fifty fields a long list."""
    fields: dict[str, Any] = {f"field{i}": {"type": "string", "maxLength": 100} for i in range(50)}
    schema = parameters_schema(
        {"properties": {"name": {"type": "string", "pattern": r"^\w{1,64}$"}, "body": {"type": "string"},
                        "rows": {"items": {"type": "object", "properties": fields, "required": ["field1"]}}}}
    )  # fmt: skip
    rows = [{f"field{i}": "some text" for i in range(8)} for _ in range(1_000)]
    Parameters(schema).check({"name": "a_name", "body": "x" * 1_000_000, "rows": rows})
    assert MAX_WORK > 0


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=40,
    )
)
def test_counting_many_values_at_once_counts_what_one_by_one_does(value: Any) -> None:
    slowly, pending = Counts(), [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict | list):
            slowly.values += 1
            pending += each.values() if isinstance(each, dict) else each
        if isinstance(each, dict):
            slowly.mappings += 1
            for name in each:
                slowly.scalar(name)
        elif not isinstance(each, list):
            slowly.scalar(each)
    assert counted(value) == slowly

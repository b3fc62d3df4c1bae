"""What it takes to read the regular expressions of a schema is known before they are compiled."""

import time

import pytest

from agents.shapes.schema import MAX_PATTERN_WORK, check_schema, pattern_work
from agents.shapes.shape import WrongShape

ALLOWED = (r"^[A-Z]{2,5}-\d{4}$", r"^\w{1,64}$", r"^(?:\d{1,3}\.){3}\d{1,3}$", r"(?<year>\d{4})", r"\(?i\)", r"\p{L}+")
# Each took between half a second and hours.
REFUSED = (
    r"\w" * 2048, r"\S" * 500, r"\d" * 1000, r"[\s]" * 500, r"\cA" * 10_000, r"\s" * 50 + "a" * 20_000,
    r"(?i)\p{L}", r"(?i:\p{L})", r"(?s-u)a", r"\p{age=15.0}" * 300, r"[\p{L}&&\p{Lu}]" * 4000, "a" * 60_000,
)  # fmt: skip


@pytest.mark.parametrize("pattern", ALLOWED)
def test_patterns_that_people_write_are_taken(pattern: str) -> None:
    assert pattern_work(pattern) < MAX_PATTERN_WORK / 20
    check_schema({"type": "object", "propertyNames": {"pattern": pattern}}, "tool.parameters")


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
@pytest.mark.parametrize("pattern", REFUSED, ids=lambda pattern: f"{pattern[:12]} of {len(pattern)}")
def test_patterns_that_take_long_to_read_are_refused_unread(pattern: str) -> None:
    began = time.thread_time()
    for schema in ({"pattern": pattern}, {"items": {"patternProperties": {pattern: True}}}):
        with pytest.raises(WrongShape, match=r"takes too long|inline flags"):
            check_schema(schema, "tool.parameters")
    assert time.thread_time() - began < 0.25


def test_patterns_are_bounded_together() -> None:
    schema = {"properties": {f"p{n}": {"pattern": r"\w" * 20 + str(n)} for n in range(20)}}
    with pytest.raises(WrongShape, match="together take too long"):
        check_schema(schema, "tool.parameters")

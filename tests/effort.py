"""How much a test tries that could try for ever: less in `make test` than in CI (HYPOTHESIS_PROFILE=thorough).

What a test asserts is the same; a defect that only the larger figure finds is found before it is merged. Tests that
take `part` of a table have the marker `whole`: `make fuzz` runs them with all of it.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import hypothesis

T = TypeVar("T")

# Examples of a property in `make fuzz`, which tries everything.
WHOLE = 1000


def _examples() -> int:
    examples: int = hypothesis.settings().max_examples
    return examples


def whole() -> bool:
    """Whether tests try every row of their tables: in `make fuzz`."""
    return _examples() >= WHOLE


def effort(thorough: int) -> int:
    """So many of `thorough` tries as properties have examples of 100; at least one."""
    return max(1, min(thorough, round(thorough * _examples() / 100)))


def part(table: Iterable[T], kind: Callable[[T], Hashable], one_in: int) -> list[T]:
    """The first row of each kind and one in so many of those after it, the same ones every time; all in `make fuzz`."""
    if whole():
        return list(table)
    seen: dict[Hashable, int] = {}
    found = []
    for row in table:
        number = seen[kind(row)] = seen.get(kind(row), -1) + 1
        if number % one_in == 0:
            found.append(row)
    return found

"""How much a test tries that could try for ever: less in `make test` than in CI (HYPOTHESIS_PROFILE=thorough).

What a test asserts is the same; a defect that only the larger figure finds is found before it is merged.
"""

import hypothesis


def effort(thorough: int) -> int:
    """So many of `thorough` tries as properties have examples of 100; at least one."""
    examples: int = hypothesis.settings().max_examples
    return max(1, min(thorough, round(thorough * examples / 100)))

"""The soak and the fuzzer, short: `make soak` and `make fuzz` run the same code for long."""

from fuzz import fuzz
from soak import problems, soak


def test_random_programs_end_in_an_outcome_and_never_lose_a_worker() -> None:
    seen = fuzz(seconds=20, batches=2)
    assert sum(seen.values()) >= 100
    assert seen.get("ok", 0) > 0, "the grammar must make programs that run"


async def test_a_short_soak_leaves_no_process_descriptor_or_cgroup() -> None:
    figures = await soak(150, seed=7)
    assert sum(figures.outcomes.values()) >= 150
    assert figures.outcomes["ok"] > 0
    leftovers = [problem for problem in problems(figures) if "ping" not in problem]  # a figure, not for a noisy machine
    assert leftovers == []

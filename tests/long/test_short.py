"""The soak and the fuzzer, short: `make soak` and `make fuzz` run the same code for long."""

import mcp_soak
import pytest
from fuzz import KINDS, fuzz
from soak import problems, soak


@pytest.mark.parametrize("kind", KINDS)
def test_random_programs_end_in_an_outcome_and_never_lose_a_worker_nor_forge_a_security_event(kind: str) -> None:
    seen = fuzz(kind, seconds=20, batches=2)
    assert sum(seen.values()) >= 100
    assert seen.get("ok", 0) > 0, "the grammar must make programs that run"


async def test_a_short_soak_leaves_no_process_descriptor_or_cgroup() -> None:
    figures = await soak(150, seed=7)
    assert sum(figures.outcomes.values()) >= 150
    assert figures.outcomes["ok"] > 0
    leftovers = [problem for problem in problems(figures) if "ping" not in problem]  # a figure, not for a noisy machine
    assert leftovers == []


async def test_a_short_soak_of_mcp_leaves_no_task_worker_or_descriptor_and_its_memory_flat() -> None:
    figures = await mcp_soak.soak(500, slices=2, seed=11)
    assert sum(figures.answers.values()) + sum(figures.left.values()) == 500
    for era in ("2026", "handshake"):
        assert figures.answers[f"{era} result"] > 0
    assert set(figures.left) == set(mcp_soak.WAYS), "every way of leaving must be tried"
    assert mcp_soak.problems(figures) == []


async def test_a_soak_of_mcp_reports_what_is_left_over() -> None:
    before = {"tasks": 20, "descriptors": 30, "processes": 6, "memory": 100}
    figures = mcp_soak.Figures(states=[before, {**before, "descriptors": 31}, {**before, "memory": 111}], status=0)
    assert mcp_soak.problems(figures) == ["descriptors left over: 30 31 30", "memory grew from 100 to 111 bytes"]

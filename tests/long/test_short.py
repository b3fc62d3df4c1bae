"""The soak and the fuzzer, short: `make soak` and `make fuzz` run the same code for long."""

import http_soak
import mcp_soak
import pytest
from fuzz import KINDS, fuzz
from fuzz_supervisor import climb
from soak import problems, soak
from sync_kills import kill_often
from sync_sources import KINDS as SOURCES


@pytest.mark.parametrize("kind", KINDS)
def test_random_programs_end_in_an_outcome_and_never_lose_a_worker_nor_forge_a_security_event(kind: str) -> None:
    seen = fuzz(kind, seconds=20, batches=1)
    assert sum(seen.values()) >= 100
    assert seen.get("ok", 0) > 0, "the grammar must make programs that run"


async def test_a_short_soak_leaves_no_process_descriptor_or_cgroup() -> None:
    figures = await soak(150, seed=7)
    assert sum(figures.outcomes.values()) >= 150
    assert figures.outcomes["ok"] > 0
    leftovers = [problem for problem in problems(figures) if "ping" not in problem]  # a figure, not for a noisy machine
    assert leftovers == []


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
async def test_a_short_search_for_what_costs_the_supervisor_most_finds_nothing_beyond_the_bounds() -> None:
    best, worst = await climb(seconds=30, tries=1)
    assert all(found[0].ns_a_byte > 0 for found in best.values())
    assert [f"{cost.name}: {problem}" for cost in worst for problem in cost.problems()] == []


@pytest.mark.rerun(reason="a machine whose cores are taken is late by more than is promised")
async def test_a_short_soak_over_http_fails_no_client_that_behaves_and_leaves_nothing_behind() -> None:
    figures = await http_soak.soak(0.1, seed=3)
    assert figures.answers.total() > 50
    assert figures.attacks.total() > 5
    leftovers = [each for each in http_soak.problems(figures) if "/health" not in each]  # a figure, as above
    assert leftovers == []


def test_a_soak_over_http_reports_what_it_must_not_show() -> None:
    rest = {"tasks": 20, "descriptors": 30, "processes": 6, "workers beyond their bound": 0, "memory": 100}
    figures = http_soak.Figures(before=rest, after={**rest, "tasks": 21, "memory": 200}, status=0)
    figures.failed.append("steady-1 GET /limits: 429")
    figures.pings, figures.lags = [0.001] * 90 + [0.2] * 10, [0.0] * 90 + [0.2] * 10
    figures.attacks["no answer"] = 2
    found = http_soak.problems(figures)
    assert [each.split()[0] for each in found] == ["1", "/health", "tasks", "tasks", "memory", "attacks"]
    figures.lags = [0.01] * 100  # then it was the machine
    assert not any(each.startswith("/health") for each in http_soak.problems(figures))


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


@pytest.mark.parametrize("kind", sorted(SOURCES.keys() - {"s3"}))  # `test_s3.py` has a server running
def test_a_sync_that_is_killed_twice_ends_as_an_undisturbed_one(kind: str) -> None:
    figures = kill_often(kind, points=2, seed=5, count=12, by_line=True)
    assert figures.killed == 2
    assert figures.problems == []

"""oom_score_adj: when the host runs out of memory, workers go first (proc_pid_oom_score_adj(5))."""

from pathlib import Path

from sandbox.confine.plan import FleetPlan

_FIRST_TO_GO = "1000"


def apply(plan: FleetPlan) -> str:
    """Raising the score needs no privilege, and workers inherit it."""
    file = Path("/proc/self/oom_score_adj")
    file.write_text(_FIRST_TO_GO)
    return f"score {file.read_text().strip()}"

"""What the benchmark of the scheduler alone counts."""

import pytest

from benchmarks.aims import bounds


@pytest.mark.parametrize("tenants", [1, 30])
def test_as_many_runs_wait_at_the_end_as_at_the_start_so_that_every_run_meets_the_same_queue(
    tenants: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bounds.Scheduler] = []

    class Seen(bounds.Scheduler):
        def __init__(self, slots: int, places: int) -> None:
            super().__init__(slots, places)
            made.append(self)

    monkeypatch.setattr(bounds, "Scheduler", Seen)
    assert bounds.steps(tenants, 50) > 0
    (scheduler,) = made
    assert scheduler.queued + scheduler.begun == 3 * tenants
    assert scheduler.running > 0

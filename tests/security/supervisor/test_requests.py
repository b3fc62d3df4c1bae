"""Bodies, messages and heads of the largest permitted size."""

import pytest
from effort import part

from supervisor.driver import problems
from supervisor.requests import ATTACKS


@pytest.mark.whole
@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
async def test_no_request_of_the_largest_size_keeps_the_loop_swells_the_supervisor_or_goes_unpaid() -> None:
    assert await problems(part(ATTACKS, lambda each: each.work, one_in=4)) == []

"""What plain Lua returns, logs and asks, up to the limits that a tenant's admin may approve."""

import pytest
from effort import part

from supervisor.answers import ATTACKS
from supervisor.driver import problems


@pytest.mark.whole
@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
async def test_no_answer_keeps_the_loop_swells_the_supervisor_or_goes_unpaid() -> None:
    assert await problems(part(ATTACKS, lambda each: each.work, one_in=6)) == []

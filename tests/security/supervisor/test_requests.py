"""Bodies, messages and heads of the largest permitted size."""

from supervisor.driver import problems
from supervisor.requests import ATTACKS


async def test_no_request_of_the_largest_size_keeps_the_loop_swells_the_supervisor_or_goes_unpaid() -> None:
    assert await problems(ATTACKS) == []

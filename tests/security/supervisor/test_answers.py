"""What plain Lua returns, logs and asks, up to the limits that a tenant's admin may approve."""

from supervisor.answers import ATTACKS
from supervisor.driver import problems


async def test_no_answer_keeps_the_loop_swells_the_supervisor_or_goes_unpaid() -> None:
    assert await problems(ATTACKS) == []

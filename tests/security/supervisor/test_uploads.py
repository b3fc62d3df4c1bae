"""Schemas, instances and packages of the largest permitted size."""

from supervisor.driver import problems
from supervisor.uploads import ATTACKS


async def test_no_upload_keeps_the_loop_swells_the_supervisor_or_goes_unpaid() -> None:
    assert await problems(ATTACKS) == []

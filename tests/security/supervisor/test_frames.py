"""What a worker with machine code of its own sends."""

from supervisor.driver import problems
from supervisor.frames import ATTACKS


async def test_no_frame_keeps_the_loop_swells_the_supervisor_or_goes_unpaid() -> None:
    assert await problems(ATTACKS) == []

"""What scripts say of themselves, within the limits of a run."""

import pytest

from supervisor.declarations import ATTACKS
from supervisor.driver import problems


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
async def test_no_declaration_keeps_the_loop_swells_the_supervisor_or_goes_unpaid() -> None:
    assert await problems(ATTACKS) == []

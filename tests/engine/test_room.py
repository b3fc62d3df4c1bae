"""What an engine needs of the limits of its process: pure, and taken of this process as far as it goes."""

import resource

from hypothesis import given
from hypothesis import strategies as st

from engine.workers import ulimits as room
from engine.workers.pool import PoolSettings
from engine.workers.ulimits import Bounds, files_needed, shortfall, space_needed

SETTINGS = st.builds(
    PoolSettings,
    workers=st.integers(1, 300),
    reserve=st.integers(0, 20),
    max_depth=st.integers(0, 4),
    suspended=st.integers(0, 20),
    memory_bytes=st.integers(1, 1 << 32),
)
MAYBE = st.none() | st.integers(1, 1 << 34)


@given(SETTINGS, st.builds(Bounds, MAYBE, MAYBE, MAYBE), st.integers(0, 200))
def test_what_is_missing_is_one_line_that_names_the_limit_what_it_is_and_what_it_should_be(
    settings: PoolSettings, bounds: Bounds, files_open: int
) -> None:
    missing = shortfall(settings, bounds, files_open)
    files, space = files_needed(settings, files_open), space_needed(settings)
    if bounds.files is not None and bounds.files < files:
        wanted = (f"{bounds.files} open files", "ulimit -n", f"{files} are needed")
    elif bounds.address_space is not None and bounds.address_space < space:
        wanted = (f"{bounds.address_space >> 20} MiB", "ulimit -v", f"{space >> 20} are needed")
    elif bounds.processes is not None and bounds.processes < settings.at_most + room.PROCESSES_BESIDE:
        wanted = (f"{bounds.processes} processes", "ulimit -u", "are needed")
    else:
        assert missing is None
        return
    assert missing is not None
    assert "\n" not in missing
    assert all(part in missing for part in wanted), missing


@given(SETTINGS)
def test_every_worker_there_may_be_has_its_descriptors(settings: PoolSettings) -> None:
    assert files_needed(settings, 0) >= settings.at_most * room.FILES_A_WORKER


def test_a_low_soft_limit_is_raised_as_far_as_is_needed_and_the_hard_one_stays() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    settings = PoolSettings(workers=2, suspended=12, max_depth=4)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
        assert room.take(settings) is None
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft >= files_needed(settings, 3)
        assert hard == before[1]
        assert room.take(settings) is None
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

"""What of a run's progress a client hears: what the script says, else its host calls; always upwards, never late."""

from itertools import pairwise

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from engine.run import CallRecord
from engine.tenant import DEFAULT_TENANT
from server.mcp.progress import BACKLOG, EVERY_S, LONG_S, Reports, reporting

SEARCH = CallRecord("context.search", 0.1)


def test_only_values_that_rise_are_told() -> None:
    progress = Reports(0.0)
    said = [progress.report(value, None) for value in (0.0, 0.2, 0.2, 0.1, float("nan"), float("inf"), 0.3)]
    assert [report and report[0] for report in said] == [0.0, 0.2, None, None, None, None, 0.3]


def test_host_calls_of_a_short_run_are_not_told() -> None:
    progress = Reports(10.0)
    assert progress.call(SEARCH, 10.0 + LONG_S - 0.01) is None
    report = progress.call(SEARCH, 10.0 + LONG_S)
    assert report is not None
    assert report[1] == "context.search"


def test_host_calls_of_a_long_run_are_told_now_and_then_and_leave_room_for_the_script() -> None:
    progress = Reports(0.0)
    values = [report[0] for n in range(400) if (report := progress.call(SEARCH, LONG_S + n * EVERY_S / 2)) is not None]
    assert len(values) == 200
    assert values == sorted(set(values))
    assert values[-1] < 0.05
    assert progress.report(0.1, "reading") == (0.1, "reading")
    assert progress.call(SEARCH, 10_000.0) is None


@given(st.lists(st.one_of(st.floats(), st.none()), max_size=50))
def test_whatever_comes_values_rise(said: list[float | None]) -> None:
    progress = Reports(0.0)
    now = LONG_S
    values = []
    for each in said:
        now += EVERY_S
        report = progress.call(SEARCH, now) if each is None else progress.report(each, None)
        if report is not None:
            values.append(report[0])
    assert all(before < after for before, after in pairwise(values))


async def test_everything_is_told_before_the_block_ends() -> None:
    sent: list[tuple[float, float | None, str | None]] = []

    async def send(value: float, total: float | None, message: str | None) -> None:
        await trio.lowlevel.checkpoint()
        sent.append((value, total, message))

    async with reporting(DEFAULT_TENANT, send) as call:
        assert call.hearers.progress is not None
        call.hearers.progress(0.5, "half")
        call.hearers.progress(1.0, None)
    assert sent == [(0.5, 1.0, "half"), (1.0, 1.0, None)]


async def test_a_slow_reader_misses_old_reports_and_never_the_last() -> None:
    sent: list[float] = []
    reading = trio.Event()

    async def send(value: float, total: float | None, message: str | None) -> None:
        await reading.wait()
        sent.append(value)

    async with reporting(DEFAULT_TENANT, send) as call:
        assert call.hearers.progress is not None
        for n in range(1000):
            call.hearers.progress(n / 1000, None)
            await trio.lowlevel.checkpoint()
        reading.set()
    assert len(sent) <= BACKLOG + 1
    assert sent[-1] == 0.999


async def test_a_run_that_fails_still_tells_what_it_said(autojump_clock: trio.testing.MockClock) -> None:
    sent: list[str | None] = []

    async def send(value: float, total: float | None, message: str | None) -> None:
        sent.append(message)

    caught = None
    try:
        async with reporting(DEFAULT_TENANT, send) as call:
            assert call.hearers.call is not None
            await trio.sleep(LONG_S + 1)
            call.hearers.call(SEARCH)
            await trio.sleep(1)
            raise RuntimeError("no")
    except* RuntimeError as group:
        caught = group
    assert caught is not None
    assert sent == ["context.search"]

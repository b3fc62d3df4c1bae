"""The watch on the event loop: the longest time in which it looked at no input, on the wall's clock and on its own."""

import math
import time
from collections.abc import Iterator

import pytest
import structlog
import trio
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Config
from engine.engine import open_engine
from engine.host import lag
from engine.host.lag import NOTED_S, WINDOW_S, Longest, LoopWatch, watched
from engine.tenant import Tenant

seconds = st.floats(0, 300, allow_nan=False)


@given(st.lists(st.tuples(seconds, st.floats(0, 9)), max_size=60), st.lists(seconds, max_size=5))
def test_the_longest_is_that_of_the_last_minute_wherever_one_looks(
    noted: list[tuple[float, float]], looks: list[float]
) -> None:
    longest, seen = Longest(), list[tuple[float, float]]()
    for now, amount in sorted([*noted, *((look, -1.0) for look in looks)]):
        if amount >= 0:
            longest.add(amount, now)
            seen.append((now, amount))
            continue
        expected = [a for at, a in seen if now < math.floor(at) + 1 + WINDOW_S]
        assert longest.within(now) == max(expected, default=0.0)


@given(st.lists(st.floats(0, 9), min_size=1, max_size=1000))
def test_the_longest_keeps_no_more_than_one_amount_a_second(amounts: list[float]) -> None:
    longest = Longest()
    for position, amount in enumerate(amounts):
        longest.add(amount, position / 100)
    assert len(longest._slots) <= 1 + len(amounts) // 100


def compute(cpu_s: float) -> None:
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


async def turn() -> None:
    """Let the loop look at its input twice: what was under way has been noted then."""
    for _ in range(2):
        await trio.lowlevel.checkpoint()


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
async def test_computing_is_lag_on_both_clocks_and_waiting_for_another_is_lag_on_the_walls_alone() -> None:
    watch = LoopWatch()
    with watched(watch):
        await turn()
        time.sleep(0.1)  # noqa: ASYNC251
        await turn()
        slept = watch.lag()
        compute(0.2)
        await turn()
        computed = watch.lag()
    assert slept.wall_s >= 0.1
    assert slept.cpu_s < 0.05
    assert computed.wall_s >= computed.cpu_s >= 0.2 - 0.01


@pytest.mark.rerun(reason="a piece of CPU time grows with what shares the core and its caches")
async def test_many_short_steps_are_no_lag() -> None:
    watch = LoopWatch()
    with watched(watch):
        await turn()
        for _ in range(100):
            compute(0.001)
            await trio.lowlevel.checkpoint()
        assert watch.lag().cpu_s < 0.05


async def test_an_idle_loop_costs_nothing_and_has_no_lag() -> None:
    watch, calls = LoopWatch(), 0
    inner = watch.before_io_wait

    def counted(timeout: float) -> None:
        nonlocal calls
        calls += 1
        inner(timeout)

    watch.before_io_wait = counted  # type: ignore[method-assign]
    with watched(watch):
        await trio.sleep(0.5)
        assert calls <= 5
        assert watch.lag().cpu_s < 0.05


async def test_the_watch_is_gone_with_its_block() -> None:
    watch = LoopWatch()
    with watched(watch):
        pass
    compute(0.05)
    await turn()
    assert watch.lag() == lag.Lag(0.0, 0.0)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[structlog.types.EventDict]]:
    monkeypatch.setattr(lag, "STARTING_S", 0.0)
    with structlog.testing.capture_logs() as lines:
        yield lines


async def test_one_line_says_that_the_loop_was_kept_for_whom_and_how_often_since(
    said: list[structlog.types.EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.model_validate({"sandbox": {"workers": 1, "reserve": 0}, "tenants": {"enabled": True}})
    async with open_engine(config) as engine:
        for _ in range(3):
            with engine.work_for(Tenant("acme")):
                compute(0.06)
            await turn()
        monkeypatch.setattr(lag, "LOG_EVERY_S", 0.0)
        engine.loop._quiet_until = 0.0
        compute(0.06)
        await turn()
        shown = engine.health()["loop_lag_ms"]
        metrics = engine.render_metrics().decode()
    kept = [line for line in said if line["event"] == "event loop kept"]
    assert [(line["tenant"], line["unsaid"]) for line in kept] == [("acme", 0), (None, 2)]
    assert all(line["ms"] >= line["cpu_ms"] >= 55 for line in kept)
    assert shown["longest"] >= shown["longest_cpu"] >= 55
    assert 'engine_loop_lag_seconds{clock="cpu"} 0.0' in metrics


async def test_a_loop_that_only_lost_its_core_writes_no_line(said: list[structlog.types.EventDict]) -> None:
    watch = LoopWatch()
    with watched(watch):
        await turn()
        time.sleep(0.2)  # noqa: ASYNC251
        await turn()
    assert watch.lag().wall_s >= 0.2 > NOTED_S
    assert not [line for line in said if line["event"] == "event loop kept"]

"""`sleep`: waiting counts to the wall deadline, and to nothing else."""

import math

import pytest
import trio
from engine_support import ALL_GRANTS, run, small_config
from host_call_support import Caller
from trio.testing import MockClock

from engine.bridge import sleep
from engine.engine import open_engine
from engine.run import Authority
from sandbox.wire.outcome import Outcome


def sleeper() -> Caller:
    return Caller.of(sleep.functions(), Authority())


@pytest.mark.parametrize("seconds", [0, 0.0, 0.25, 3, 86_400])
async def test_a_sleep_lasts_as_long_as_it_was_asked_to(seconds: float, autojump_clock: MockClock) -> None:
    started = trio.current_time()
    assert await sleeper().value("sleep", seconds=seconds) is None
    assert trio.current_time() - started == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-1, "-1"),
        (-0.001, "-0.001"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (86_401, "86401"),
        (1e300, "1e+300"),
        (1 << 63, "9.22337e+18"),
    ],
)
async def test_what_is_no_time_to_wait_is_refused_at_once(
    seconds: float, shown: str, autojump_clock: MockClock
) -> None:
    started = trio.current_time()
    told = await sleeper().refusal("sleep", seconds=seconds)
    assert told == f"sleep: seconds must be a number from 0 to 86400, got {shown}"
    assert trio.current_time() == started


@pytest.mark.parametrize("seconds", ["1", None, True, [1], {"s": 1}])
async def test_what_is_no_number_is_refused(seconds: object) -> None:
    assert (await sleeper().refusal("sleep", seconds=seconds)).startswith("sleep: seconds: expected number, got ")


async def test_sleeps_do_not_wait_for_each_other(autojump_clock: MockClock) -> None:
    caller = sleeper()
    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(lambda: caller.value("sleep", seconds=10))
    assert trio.current_time() - started == pytest.approx(10)


async def test_a_cancelled_sleep_ends(autojump_clock: MockClock) -> None:
    with trio.move_on_after(5) as scope:
        await sleeper().value("sleep", seconds=60)
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(5)


async def test_a_script_sleeps_beyond_its_cpu_budget_but_not_beyond_its_deadline() -> None:
    grants = ALL_GRANTS | sleep.GRANTS
    async with open_engine(small_config(), sleep.functions()) as engine:
        # far longer than its CPU budget: a run that waits uses none of it
        slept = await run(engine, "sleep(0.4) return 'woke'", grants=grants, limits={"cpu_s": 0.2})
        assert (slept.outcome, slept.value) == (Outcome.OK, "woke"), slept.failure
        assert slept.usage.host_calls == {"sleep": 1}

        late = await run(engine, "pcall(sleep, 60) return 'woke'", grants=grants, limits={"timeout_s": 0.3})
        assert late.outcome is Outcome.TIMEOUT

        refused = await run(engine, "return {pcall(sleep, -1)}", grants=grants)
        assert refused.value[0] is False
        assert "sleep: seconds must be a number from 0" in refused.value[1]

        assert (await run(engine, "sleep(0) return 1", grants=grants)).value == 1

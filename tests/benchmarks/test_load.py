"""Loads on a clock of our own: what the open model shows and the closed one hides, to the millisecond."""

import pytest
import trio
from bench_support import ASK, OK, clock, delaying, loaded, stalling
from trio.testing import MockClock

from benchmarks.load.account import Answer, Recorder
from benchmarks.load.making import make_load
from benchmarks.load.schedule import Load, Request
from benchmarks.processes import Work, make
from benchmarks.scenario import Ask


@pytest.fixture
def autojump_clock() -> MockClock:
    return clock()


async def test_a_fixed_delay_is_every_percentile(autojump_clock: MockClock) -> None:
    account, target = await loaded(Load(rate=100, duration_s=10, warm_up_s=1), delaying(0.020))
    found = account.latencies.summary()
    assert account.outcomes == {"ok": 1000}
    for name in ("p50_ms", "p90_ms", "p99_ms", "p99.9_ms", "max_ms", "mean_ms"):
        assert found[name] == pytest.approx(20, rel=0.001)
    assert account.warm_up == 100
    assert [at for at, _ in target.seen] == pytest.approx([number / 100 for number in range(1100)])
    assert (account.late, account.dropped, account.errors) == (0, 0, 0)


STALL = stalling(every_s=10.0, for_s=1.0, otherwise_s=0.010)


async def test_the_open_model_shows_a_stall_of_a_second_in_every_ten(autojump_clock: MockClock) -> None:
    account, _ = await loaded(Load(rate=50, duration_s=40, warm_up_s=0), STALL)
    found = account.latencies.summary()
    assert account.measured == 2000
    # A tenth of the requests is meant to leave in a stall, spread over its second.
    assert found["p50_ms"] == pytest.approx(10, rel=0.01)
    assert found["p99_ms"] == pytest.approx(910, abs=21)
    assert found["p99.9_ms"] == pytest.approx(1000, abs=21)
    assert found["max_ms"] == pytest.approx(1010, rel=0.001)


async def test_the_closed_model_hides_it(autojump_clock: MockClock) -> None:
    account, _ = await loaded(Load(rate=None, concurrency=1, duration_s=40, warm_up_s=0), STALL)
    found = account.latencies.summary()
    assert account.measured == pytest.approx(3600, rel=0.01)
    # One request of each stall is all that is ever seen of it.
    assert found["p50_ms"] == found["p99_ms"] == pytest.approx(10, rel=0.01)
    assert sum(count for value, count in account.latencies.counts().items() if value > 20_000) == 4


async def test_one_percent_of_errors_is_counted_and_has_its_own_latencies(autojump_clock: MockClock) -> None:
    async def behave(at: float, request: Request) -> Answer:
        failed = request.number % 100 == 99
        await trio.sleep(0.002 if failed else 0.010)
        return Answer(outcome="http_500") if failed else OK

    account, _ = await loaded(Load(rate=1000, duration_s=2, warm_up_s=0), behave)
    assert account.outcomes == {"ok": 1980, "http_500": 20}
    assert (account.errors, account.failed_share) == (20, 0.01)
    assert account.by["outcome"]["http_500"].summary()["p99_ms"] == pytest.approx(2, rel=0.01)
    assert account.by["outcome"]["ok"].summary()["p50_ms"] == pytest.approx(10, rel=0.01)


async def test_latency_counts_from_the_intended_start_when_the_tester_is_late(autojump_clock: MockClock) -> None:
    load = Load(rate=10, duration_s=1, warm_up_s=0)

    async def late(at: float) -> None:
        await trio.sleep_until(at + 0.050)

    class Late:
        def __enter__(self):  # type: ignore[no-untyped-def]
            return late

        def __exit__(self, *error: object) -> None:
            return None

    account, _ = await loaded(load, delaying(0.010), timer=Late)
    assert account.latencies.summary()["p50_ms"] == pytest.approx(60, rel=0.01)
    assert account.lag.summary()["p50_ms"] == pytest.approx(50, rel=0.01)
    assert account.late == 9  # the first was on time: it is due at once


async def test_what_does_not_fit_under_way_is_dropped_and_counted(autojump_clock: MockClock) -> None:
    account, target = await loaded(Load(rate=10, duration_s=10, warm_up_s=0, max_in_flight=5), delaying(0.95))
    # Five at once, each for nearly a second: five of the ten a second get through.
    assert account.outcomes["ok"] == 50
    assert account.dropped == 50
    assert account.most_in_flight == 5
    assert account.failed_share == 0.5
    assert len(target.seen) == 50


async def test_an_answer_that_does_not_come_is_given_up_and_counted(autojump_clock: MockClock) -> None:
    account, _ = await loaded(Load(rate=5, duration_s=2, warm_up_s=0, timeout_s=3), delaying(1000))
    assert account.outcomes == {"no_answer": 10}
    assert account.latencies.summary()["p50_ms"] == pytest.approx(3000, rel=0.001)
    assert account.answered_in_time == 0


async def test_only_answers_that_came_in_the_measured_time_make_the_rate(autojump_clock: MockClock) -> None:
    account, _ = await loaded(Load(rate=10, duration_s=10, warm_up_s=2), delaying(1.0))
    # Those asked for in the last second of the warm-up come in it, those of the last second of the load do not.
    assert account.answered_in_time == 100
    assert (account.measured, account.warm_up) == (100, 20)


async def test_a_closed_load_keeps_so_many_under_way_and_no_more(autojump_clock: MockClock) -> None:
    load = Load(rate=None, concurrency=8, duration_s=10, warm_up_s=0)
    account, _ = await loaded(load, delaying(0.1))
    assert account.most_in_flight == 8
    assert account.measured == pytest.approx(800, abs=8)


async def test_what_comes_beside_is_told_apart_from_the_rates_own_requests(autojump_clock: MockClock) -> None:
    quiet = Ask(name="quiet", kind="agent", what="a", tenant="quiet")
    noisy = Ask(name="noisy", kind="agent", what="b", tenant="noisy", beside=4.0, start=0.5, expect=("cpu_limit",))

    async def behave(at: float, request: Request) -> Answer:
        await trio.sleep(0.010 if at < 5 else 0.030)
        return Answer(outcome="ok" if request.tenant == "quiet" else "cpu_limit")

    account, _ = await loaded(Load(rate=10, duration_s=10, warm_up_s=0), behave, quiet, noisy)
    phases = account.by["phase"]
    assert {name: each.count for name, each in phases.items()} == {"alone": 50, "with the others": 50}
    assert phases["alone"].summary()["p99_ms"] == pytest.approx(10, rel=0.01)
    assert phases["with the others"].summary()["p50_ms"] == pytest.approx(30, rel=0.01)
    assert {name: each.count for name, each in account.by["tenant"].items()} == {"quiet": 100, "noisy": 200}
    assert account.errors == 0


async def test_a_rate_that_no_machine_holds_ends_in_time_and_is_told(autojump_clock: MockClock) -> None:
    load = Load(rate=1e6, duration_s=3600, warm_up_s=60, max_in_flight=10)

    async def asleep(at: float) -> None:
        await trio.sleep(5000)

    class Asleep:
        def __enter__(self):  # type: ignore[no-untyped-def]
            return asleep

        def __exit__(self, *error: object) -> None:
            return None

    account, _ = await loaded(load, delaying(0.001), timer=Asleep)
    assert account.warm_up == 1
    assert account.dropped == account.never_sent == 3_600_000_000


async def test_an_interrupt_keeps_what_there_is_and_counts_what_was_cut_off(autojump_clock: MockClock) -> None:
    load = Load(rate=10, duration_s=100, warm_up_s=1)
    stop = trio.Event()

    class Target:
        async def send(self, request: Request) -> Answer:
            await trio.sleep(0.5)
            return OK

    async with trio.open_nursery() as nursery:

        async def interrupt() -> None:
            await trio.sleep(11)
            stop.set()

        nursery.start_soon(interrupt)
        work = Work(load=load, asks=(ASK,), tenants=("default",), target="run")
        # The precise timer is the kernel's and knows nothing of this clock.
        with pytest.MonkeyPatch.context() as patch:
            from benchmarks.load.making import trio_timer

            patch.setattr("benchmarks.processes.precise_timer", trio_timer)
            made = await make(work, Target(), stop, None)
    assert made.interrupted
    assert made.elapsed_s == pytest.approx(10)
    assert 94 <= made.account.measured <= 96
    assert 4 <= made.account.unfinished <= 6
    assert made.account.in_flight == 0


async def test_a_bug_in_a_target_is_not_swallowed(autojump_clock: MockClock) -> None:
    async def behave(at: float, request: Request) -> Answer:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        await loaded(Load(rate=1, duration_s=1, warm_up_s=0), behave)
    assert caught.group_contains(ZeroDivisionError)


async def test_progress_is_the_state_of_the_account(autojump_clock: MockClock) -> None:
    load = Load(rate=10, duration_s=10, warm_up_s=0)
    account = Recorder(load)
    seen = []

    class Target:
        async def send(self, request: Request) -> Answer:
            await trio.sleep(0.2)
            return OK

    async with trio.open_nursery() as nursery:

        async def look() -> None:
            from benchmarks.load.progress import Progress

            await trio.sleep(5.05)
            seen.append(Progress.from_wire(Progress.from_account(account).wire()))

        nursery.start_soon(look)
        await make_load(load, (ASK,), ("default",), Target(), account)
    (progress,) = seen
    assert progress.outcomes == {"ok": 49}
    assert progress.in_flight == 2
    assert progress.recent.count == 49

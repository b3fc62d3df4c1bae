"""Faults in a live run and in idle workers: each is reported as what it was, and the next run works."""

from collections.abc import AsyncIterator

import pytest
import trio
from engine_support import FOREVER, SPIN, FakeStore, request, run, small_config, works, works_again
from faults import INSIDE, OUTSIDE, Expected, faulty_script, until_ended, zygote_of
from structlog.testing import capture_logs

from engine.bridge import knowledge
from engine.engine import Engine, open_engine
from engine.run import Hearers, LogLine, RunResult
from engine.tenant import Tenant
from sandbox.wire.outcome import Outcome


@pytest.fixture
async def hostile(store: FakeStore, hostile_workers: None) -> AsyncIterator[Engine]:
    """An engine whose workers carry out the faults of `faults.INSIDE`."""
    async with open_engine(small_config(), knowledge.functions(lambda _: store, default_limit=12)) as opened:
        yield opened


def security_events(logged: list[dict[str, object]]) -> list[dict[str, object]]:
    return [entry for entry in logged if entry["event"] == "security event"]


def check(result: RunResult, expected: Expected, logged: list[dict[str, object]]) -> None:
    assert result.outcome is expected.outcome, result.failure
    assert result.failure is not None
    assert expected.message in result.failure.message
    events = security_events(logged)
    assert bool(events) is expected.security_event, events
    for event in events:
        assert (event["run_id"], event["tenant"], event["log_level"]) == (result.run_id, "default", "warning")


def deadline_s(expected: Expected) -> float:
    """Short where a run ends by it; else so long that a busy machine comes to the fault before."""
    return 0.3 if expected.outcome is Outcome.TIMEOUT else 10


@pytest.mark.parametrize("fault", INSIDE)
async def test_a_dishonest_worker_is_found_out_and_the_next_run_works(hostile: Engine, fault: str) -> None:
    with capture_logs() as logged:
        result = await run(hostile, faulty_script(fault), limits={"timeout_s": deadline_s(INSIDE[fault])})
    check(result, INSIDE[fault], logged)
    await works(hostile)


async def run_while_faulting(engine: Engine, script: str, fault: str) -> RunResult:
    """Run a script and, once it says that it is running, do this to its worker."""
    running = trio.Event()
    results: list[RunResult] = []

    def on_log(line: LogLine) -> None:
        running.set()

    async def execute() -> None:
        asked = request(engine, script, limits={"timeout_s": max(0.5, deadline_s(OUTSIDE[fault][1]))})
        results.append(await engine.execute(asked, hearers=Hearers(log=on_log)))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(execute)
            await running.wait()
            (worker,) = engine.statistics().workers_that_are("leased")
            OUTSIDE[fault][0](worker)
    return results[0]


@pytest.mark.parametrize("fault", OUTSIDE)
async def test_a_worker_that_is_hit_while_it_computes_is_reported_and_the_engine_recovers(
    engine: Engine, fault: str
) -> None:
    with capture_logs() as logged:
        result = await run_while_faulting(engine, SPIN, fault)
    check(result, OUTSIDE[fault][1], logged)
    await works_again(engine)


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP", "zygote killed"])
async def test_a_worker_that_is_hit_between_host_calls_is_reported_and_the_engine_recovers(
    engine: Engine, fault: str
) -> None:
    with capture_logs() as logged:
        result = await run_while_faulting(engine, FOREVER.replace("while", "for i = 1, 100 do end while"), fault)
    # Host calls are counted, so a run that the fault leaves alone for long enough ends at their limit.
    if result.outcome is not Outcome.CALL_LIMIT:
        check(result, OUTSIDE[fault][1], logged)
    await works_again(engine)


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSEGV", "zygote killed"])
async def test_a_worker_that_ends_while_the_host_answers_is_reported_once_the_answer_is_sent(
    engine: Engine, store: FakeStore, fault: str
) -> None:
    results: list[RunResult] = []

    async def execute() -> None:
        results.append(await engine.execute(request(engine, "return context.search('hold')")))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(execute)
            await store.entered.wait()
            (worker,) = engine.statistics().workers_that_are("leased")
            OUTSIDE[fault][0](worker)
            await until_ended(worker)  # a zygote's end is known a moment before that of its workers
            store.release.set()
    assert results[0].outcome is Outcome.WORKER_LOST
    await works_again(engine)


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSEGV", "zygote killed"])
async def test_an_idle_worker_that_ended_is_not_leased_again(engine: Engine, fault: str) -> None:
    await works(engine)
    (worker,) = engine._pool.by_state()["idle"]
    OUTSIDE[fault][0](worker)
    with trio.fail_after(10):
        await worker.wait()
    await works_again(engine)
    assert worker.serial not in engine._pool._idle


async def test_a_stopped_idle_worker_costs_one_run_its_deadline_and_no_more(engine: Engine) -> None:
    await works(engine)
    (worker,) = engine.statistics().workers_that_are("idle")
    OUTSIDE["SIGSTOP"][0](worker)
    result = await run(engine, "return 1", limits={"timeout_s": 0.3})
    assert result.outcome is Outcome.TIMEOUT
    await works(engine)


async def kill_zygote(engine: Engine) -> int:
    """Kill it and wait until every worker of it has ended. Returns its number."""
    workers = engine.statistics().workers
    zygote = zygote_of(workers[0])
    zygote.kill()
    with trio.fail_after(10):
        for worker in workers:
            await until_ended(worker)
    return zygote.pid


async def test_a_zygote_that_is_killed_takes_its_workers_along_and_is_replaced(engine: Engine) -> None:
    await works(engine)
    killed = await kill_zygote(engine)
    await works_again(engine)
    assert {zygote_of(worker).pid for worker in engine.statistics().workers_that_are("idle")}.isdisjoint({killed})


async def test_a_zygote_that_is_killed_again_and_again_is_replaced_every_time(engine: Engine) -> None:
    killed = set()
    for _ in range(3):
        await works_again(engine)
        killed.add(await kill_zygote(engine))
    await works_again(engine)
    assert len(killed) == 3


async def test_faults_of_one_tenant_do_not_touch_the_run_of_another(hostile: Engine, store: FakeStore) -> None:
    results: list[RunResult] = []

    async def other() -> None:
        results.append(await run(hostile, "return #context.search('hold')", tenant=Tenant("other")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await store.entered.wait()
        for fault in ("garbage frame", "segmentation fault", "illegal system call", "the end", "done twice"):
            await run(hostile, faulty_script(fault), limits={"timeout_s": 0.3}, tenant=Tenant("hostile"))
        store.release.set()
    assert (results[0].outcome, results[0].value) == (Outcome.OK, 1)


async def test_half_a_frame_after_an_answer_is_found_out_before_the_next_run(hostile: Engine) -> None:
    result = await run(hostile, faulty_script("done, then half a frame"))
    assert result.outcome is Outcome.OK
    result = await run(hostile, "return 2")
    assert result.outcome is Outcome.POLICY_VIOLATION
    await works(hostile)


async def test_an_answer_that_was_left_over_is_not_the_next_runs(hostile: Engine) -> None:
    result = await run(hostile, faulty_script("a second answer later"))
    assert result.outcome is Outcome.OK
    (worker,) = hostile._pool._idle.values()
    with trio.fail_after(10):
        await trio.lowlevel.wait_readable(worker._child.from_worker)
    result = await run(hostile, "return 'fresh'")
    assert result.value != "stale"
    await works(hostile)


async def test_a_host_call_that_fails_within_the_engine_tells_the_script_nothing_of_it(engine: Engine) -> None:
    with capture_logs() as logged:
        result = await run(engine, "local ok, e = pcall(context.search, 'bug') return {ok, e}")
    assert result.value[0] is False
    assert "internal error" in result.value[1]
    assert "host" not in result.value[1]
    assert [entry["log_level"] for entry in logged] == ["error"]
    await works(engine)

"""What a worker holds and computes beside what its Lua state may: measured, charged, and ended where it is too much."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from engine_support import FakeStore, run, works
from faults import AFTER_ANSWER, HOARDING, faulty_script
from structlog.testing import capture_logs

from engine.bridge import knowledge
from engine.config import parse_config
from engine.engine import Engine, open_engine
from engine.tenant import Tenant
from engine.workers import worker as workers
from engine.workers.worker import Worker
from sandbox.wire.limits import MIB
from sandbox.wire.outcome import Outcome

MANY = "[sandbox]\nworkers = 2\nreserve = 1\n[tenants]\nenabled = true\n[db]\npath = 'x.sqlite'\n"
TENANT = Tenant("watched")
# Workers are looked at more often than usual, for a test that waits for several looks.
INSPECT_S = 0.05


@pytest.fixture
async def watched(
    store: FakeStore, hostile_workers: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[Engine]:
    """An engine with quotas, whose workers carry out the faults of `faults`."""
    monkeypatch.setattr("engine.engine.INSPECT_S", INSPECT_S)
    config, _ = parse_config(MANY, environ={}, cwd=tmp_path)
    async with open_engine(config, knowledge.functions(lambda _: store, default_limit=12)) as opened:
        yield opened


def charged_s(opened: Engine, tenant: Tenant = TENANT) -> float:
    assert opened._ledger is not None
    return opened._ledger.used(tenant.id, trio.current_time())["cpu_seconds_per_minute"]


async def until_it_rests(worker: Worker, seconds: float = 2 * INSPECT_S) -> None:
    """Until it has computed nothing for so long, and was looked at since."""
    with trio.fail_after(20):
        while True:
            before_s = worker.cpu_s()
            await trio.sleep(seconds)
            if worker.cpu_s() == before_s == worker._settled_cpu_s:
                break


@pytest.mark.parametrize("fault", AFTER_ANSWER)
async def test_a_worker_that_goes_on_after_its_answer_is_ended_charged_and_reported(
    watched: Engine, fault: str
) -> None:
    with capture_logs() as logged:
        result = await run(watched, faulty_script(fault), limits={"memory_bytes": MIB}, tenant=TENANT)
        assert result.outcome is Outcome.OK
        (worker,) = watched._pool._idle.values()
        with trio.fail_after(20):
            await worker.closed.wait()
    events = [entry for entry in logged if entry["event"] == "security event"]
    assert [entry["tenant"] for entry in events] == [TENANT.id]
    assert AFTER_ANSWER[fault] in events[0]["event_kind"]
    assert watched.metrics.security_events == 1
    # The tenant pays for all of it; a little more is used between the last look and the end.
    assert charged_s(watched) == pytest.approx(worker.cpu_s(), abs=0.1)
    if "work" in fault:
        assert charged_s(watched) > workers.AFTER_ANSWER_S
    await works(watched, TENANT)


@pytest.mark.parametrize("fault", HOARDING)
async def test_a_run_whose_worker_holds_more_than_lua_may_is_ended(watched: Engine, fault: str) -> None:
    result = await run(watched, faulty_script(fault), limits={"memory_bytes": 16 * MIB, "timeout_s": 15})
    assert result.outcome is Outcome.MEMORY_LIMIT, result.failure
    assert result.failure is not None
    assert result.failure.limit is not None
    assert result.failure.limit.name == "memory_bytes"
    assert result.usage.wall_s < 10
    await works(watched)


async def test_a_worker_that_took_more_than_it_may_within_a_run_is_not_used_again(watched: Engine) -> None:
    fault = "memory before its answer, and then silence"
    result = await run(watched, faulty_script(fault), limits={"memory_bytes": MIB})
    assert result.outcome in (Outcome.OK, Outcome.MEMORY_LIMIT)
    assert not watched._pool._idle
    await works(watched)


async def test_what_a_worker_does_for_the_next_runs_is_charged_to_its_tenant(watched: Engine) -> None:
    """It compiles the script after the answer, so as to keep it."""
    source = b"agent = { resolve = function() return 1 end }\n" + b"local function f(a) return a end\n" * 150
    source += b"x = { " + b"'a', " * 180_000 + b"}"
    result = await run(watched, source, tenant=TENANT)
    assert result.outcome is Outcome.OK, result.failure
    at_once_s = charged_s(watched)
    (worker,) = watched._pool._idle.values()
    await until_it_rests(worker, 0.3)  # a busy machine may let it begin late
    assert charged_s(watched) > at_once_s + 0.002
    again = await run(watched, source, tenant=TENANT)
    assert again.outcome is Outcome.OK
    assert not watched.metrics.security_events


# Scripts after which an honest worker has the most to do, or keeps the most: in bytes of memory, or in its compiler.
HONEST = {
    "small strings": b"t = {} for i = 1, 400000 do t[i] = ('%d abcdefgh'):format(i) end",
    "tables": b"t = {} for i = 1, 600000 do t[i] = {} end",
    "closures": b"for i = 1, 500000 do local p = t t = function() return p end end",
    "one string": b"t = ('x'):rep(20 << 20)",
    "what pcall caught": b"pcall(function() t = {} for i = 1, 1e9 do t[i] = ('x'):rep(5000) .. i end end)",
    "labels": b"".join(b"::a%d:: x = 1 " % i for i in range(20_000)),
    "much text": b"x = { " + b"1.5, " * 200_000 + b"}",
}


@pytest.mark.parametrize("name", HONEST)
async def test_no_script_is_taken_for_a_worker_that_misbehaves(watched: Engine, name: str) -> None:
    source = HONEST[name] + b"\nagent = { resolve = function() return 1 end }"
    with capture_logs() as logged:
        for memory_bytes in (64 * MIB, 256 * MIB, 64 * MIB):
            result = await run(watched, source, limits={"memory_bytes": memory_bytes, "timeout_s": 20})
            assert result.outcome is Outcome.OK, result.failure
            (worker,) = watched._pool._idle.values()
            await until_it_rests(worker)
            assert worker.misdeed() is None
            assert worker.alive
    assert not [entry for entry in logged if entry["event"] == "security event"]
    await works(watched)

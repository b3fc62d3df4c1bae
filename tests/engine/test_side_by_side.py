"""Host calls side by side: several under way for one run, in turn by tenant, and nothing left when a worker ends."""

import os
import random
import signal
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import trio
from engine_support import request, run, small_config
from faults import faulty_script

from engine.bridge import CallRefused, HostContext, HostFunction
from engine.engine import Engine, open_engine
from engine.run import CallRecord, Hearers, LogLine
from engine.tenant import Tenant
from sandbox.wire.outcome import Outcome


class Named(msgspec.Struct):
    query: str


class Calls:
    """A family whose calls wait for each other: `meet` until as many as expected have come, `hold` until cancelled."""

    def __init__(self) -> None:
        self.under_way = 0
        self.most = 0
        self.met = trio.Event()
        self.expected = 0
        self.cancelled = 0
        self.holding = trio.Event()

    async def search(self, context: HostContext, arguments: Named) -> Any:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            match arguments.query:
                case "meet":
                    if self.under_way >= self.expected:
                        self.met.set()
                    await self.met.wait()
                case "hold":
                    self.holding.set()
                    await trio.sleep_forever()
                case "refuse":
                    raise CallRefused("no")
            return arguments.query
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.under_way -= 1


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def side(calls: Calls) -> AsyncIterator[Engine]:
    async with open_engine(small_config(), [HostFunction("context.search", Named, calls.search, at_once=8)]) as opened:
        yield opened


def asking(query: str, times: int) -> str:
    return (
        f"local fs = {{}} for i = 1, {times} do fs[i] = function() return context.search('{query}') end end"
        " local r = context.parallel(fs) return r.n"
    )


async def still_works(engine: Engine, tenant: Tenant | None = None) -> None:
    how: dict[str, Any] = {} if tenant is None else {"tenant": tenant}
    result = await run(engine, "return context.parallel{function() return context.search('a') end}[1]", **how)
    assert (result.outcome, result.value) == (Outcome.OK, "a"), result.failure


async def test_calls_of_one_run_are_under_way_together(side: Engine, calls: Calls) -> None:
    calls.expected = 5
    result = await run(side, asking("meet", 5))
    assert (result.outcome, result.value) == (Outcome.OK, 5), result.failure
    assert calls.most == 5
    assert result.usage.host_calls == {"context.search": 5}


async def test_a_tenant_has_only_so_many_calls_of_a_family_under_way_and_the_others_wait(
    side: Engine, calls: Calls
) -> None:
    calls.expected = 8
    result = await run(side, asking("meet", 40))
    assert (result.outcome, result.value) == (Outcome.OK, 40), result.failure
    assert calls.most == 8


async def test_a_tenant_whose_calls_all_hang_delays_no_other_tenant(side: Engine, calls: Calls) -> None:
    slow = Tenant("slow")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(side.execute, request(side, asking("hold", 20), tenant=slow))
        await calls.holding.wait()
        await still_works(side, Tenant("other"))
        nursery.cancel_scope.cancel()
    assert calls.under_way == 0
    await still_works(side, slow)


async def test_every_call_counts_and_the_one_too_many_ends_the_run(side: Engine, calls: Calls) -> None:
    result = await run(side, asking("a", 10) + "", limits={"host_calls": 9})
    assert result.outcome is Outcome.CALL_LIMIT
    assert calls.under_way == 0
    await still_works(side)


async def test_a_deadline_cancels_the_calls_under_way(side: Engine, calls: Calls) -> None:
    result = await run(side, asking("hold", 3), limits={"timeout_s": 0.2})
    assert result.outcome is Outcome.TIMEOUT
    assert (calls.cancelled, calls.under_way) == (3, 0)
    await still_works(side)


@pytest.mark.parametrize("script", [asking("hold", 3), "return context.search('hold')"])
async def test_a_worker_that_dies_while_it_waits_ends_the_run_at_once_and_cancels_its_calls(
    side: Engine, calls: Calls, script: str
) -> None:
    async with trio.open_nursery() as nursery:

        async def kill() -> None:
            await calls.holding.wait()
            (worker,) = side.statistics().workers_that_are("leased")
            os.kill(worker.pid, signal.SIGKILL)

        nursery.start_soon(kill)
        result = await run(side, script, limits={"timeout_s": 300})
    assert result.outcome is Outcome.WORKER_LOST
    assert calls.under_way == 0
    await still_works(side)


async def test_a_worker_that_answers_while_calls_are_under_way_has_them_cancelled(
    calls: Calls, hostile_workers: None
) -> None:
    functions = [HostFunction("context.search", Named, calls.search)]
    async with open_engine(small_config(), functions) as opened:
        result = await run(opened, faulty_script("done while a call is under way"))
        assert result.outcome is Outcome.OK, result.failure
        assert (calls.cancelled, calls.under_way) == (1, 0)
        await still_works(opened)


async def test_functions_that_run_out_of_memory_leave_no_call_behind(side: Engine, calls: Calls) -> None:
    body = (
        "local hungry = function() context.search('a') local t = {} for i = 1, 1e9 do t[i] = {i} end end"
        " local ok = pcall(context.parallel, {hungry, function() context.search('b') end, hungry})"
        " return {ok, context.search('next')}"
    )
    result = await run(side, body, limits={"memory_bytes": 4 << 20})
    assert result.value == [False, "next"], result.failure
    assert calls.under_way == 0
    await still_works(side)


async def test_a_refused_call_is_an_error_in_its_function_and_calls_are_told_as_they_end(
    side: Engine, calls: Calls
) -> None:
    told: list[CallRecord] = []
    lines: list[LogLine] = []
    body = (
        "local r = context.parallel{function() local ok, e = pcall(context.search, 'refuse') log.info(e) return ok end,"
        " function() return context.search('a') end} return {r[1], r[2]}"
    )
    result = await run(side, body, hearers=Hearers(call=told.append, log=lines.append))
    assert result.value == [False, "a"]
    assert {(record.name, record.refused) for record in told} == {
        ("context.search", "context.search: no"),
        ("context.search", None),
    }
    assert [line.text for line in lines] == ["context.search: no"]


OUTPUT_BYTES = 64 * 1024


@pytest.mark.parametrize("seed", range(6))
async def test_calls_side_by_side_of_any_sizes_go_through_and_hold_no_more_than_one_call_may(seed: int) -> None:
    """In old workers four of them were one frame that is too large, which is what an attacker would send."""
    rng = random.Random(seed)
    sizes = [rng.choice((0, 10, OUTPUT_BYTES // rng.randint(1, 8) - 32)) for _ in range(rng.randint(4, 90))]
    under_way = most = 0

    async def weigh(_: HostContext, arguments: Named) -> int:
        nonlocal under_way, most
        under_way += len(arguments.query)
        most = max(most, under_way)
        await trio.sleep(rng.choice((0, 0, 0.001)))
        under_way -= len(arguments.query)
        return len(arguments.query)

    body = (
        "local fs, sizes = {}, (...) for i = 1, #sizes do"
        "  fs[i] = function() return context.search(('a'):rep(sizes[i])) end end"
        " local r = context.parallel(fs) r.n = nil return r"
    )
    async with open_engine(small_config(), [HostFunction("context.search", Named, weigh)]) as opened:
        result = await run(opened, body, sizes, limits={"output_bytes": OUTPUT_BYTES})
        assert (result.outcome, result.value) == (Outcome.OK, sizes), result.failure
        assert 0 < most <= OUTPUT_BYTES
        again = await run(opened, body, [1, 2], limits={"output_bytes": OUTPUT_BYTES})
        assert again.value == [1, 2]


async def test_an_error_with_the_longest_text_and_traceback_fits_the_smallest_message(side: Engine) -> None:
    """Bytes that are not UTF-8 are three each in a message."""
    body = (
        "local name = ('\\xff'):rep(3000) local t = {} local function deeper(n)"
        "  if n == 0 then error(('\\xff'):rep(20000), 0) end local f = {[name] = deeper} "
        + "t['"
        + "\\xff" * 1500
        + "'] = deeper "
        + "return (t['"
        + "\\xff" * 1500
        + "'](n - 1)) end return (deeper(40))"
    )
    result = await run(side, body, limits={"output_bytes": 1, "log_bytes": 1})
    assert result.outcome is Outcome.SCRIPT_ERROR, result.failure
    assert result.failure is not None
    assert "\N{REPLACEMENT CHARACTER}" * 1500 in (result.failure.traceback or "")

"""Runs on real workers: every outcome with its limit, cancellation, reuse, admission, draining, usage."""

import gc
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import trio
from engine_support import FakeStore, request, run, small_config, works
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

import engine.engine
from engine.bridge import knowledge
from engine.engine import SUSPENDED, Engine, SandboxUnavailable, WorkerStatistics, open_engine, required_layers
from engine.errors import Code, Problem
from engine.run import Hearers, LogLine, RunResult, Script, Usage
from engine.scheduling.turns import Turn
from engine.tenant import DEFAULT_TENANT, Tenant
from engine.usage import Accounts
from engine.workers.worker import Worker
from sandbox.wire.layers import REQUIRED
from sandbox.wire.messages import BundleRun, Run, ToWorker
from sandbox.wire.outcome import Outcome
from sandbox.wire.script_cache import MAX_SCRIPTS

MIB = 1 << 20
ROOT = str(Path(engine.engine.__file__).parents[1])
ONE = "workers = 1\nreserve = 0"


@asynccontextmanager
async def opened(sandbox: str = ONE, limits: str = "", store: FakeStore | None = None) -> AsyncIterator[Engine]:
    shared = store or FakeStore()
    functions = knowledge.functions(lambda _: shared, default_limit=12)
    async with open_engine(small_config(sandbox, limits), functions) as engine:
        yield engine


def pids(engine: Engine) -> set[int]:
    return {worker.pid for worker in engine.statistics().workers}


def leased(engine: Engine) -> list[WorkerStatistics]:
    return engine.statistics().workers_that_are("leased")


def idle(engine: Engine) -> list[WorkerStatistics]:
    return engine.statistics().workers_that_are("idle")


# What a script gets and gives ---------------------------------------------------------------------------------


async def test_a_value_comes_back_as_plain_data(engine: Engine) -> None:
    result = await run(engine, "local a, b, c = ... return {a, b, c}", {"a": [1, 2.5, "x", True, []]}, [[]], "text")
    assert (result.outcome, result.failure) == (Outcome.OK, None)
    assert result.value == [{"a": [1, 2.5, "x", True, []]}, [[]], "text"]


async def test_config_and_arguments_are_handed_over(engine: Engine) -> None:
    result = await run(engine, "return {context.config, (...)}", {"who": "me"}, config={"limit": 5, "list": []})
    assert result.value == [{"limit": 5, "list": []}, {"who": "me"}]


async def test_describing_a_script_runs_its_top_level_alone(engine: Engine) -> None:
    script = b"agent = {name = 'x', tools = {}, resolve = function() error('no') end}"
    result = await run(engine, script, method=None)
    assert result.value == {"name": "x", "tools": {}, "functions": ["resolve"]}


async def test_every_run_has_an_id_of_its_own(engine: Engine) -> None:
    found = [await run(engine, "return 1"), await run(engine, "return 1"), await run(engine, "error('x')")]
    assert len({result.run_id for result in found}) == 3


async def test_no_state_flows_from_one_run_to_the_next(engine: Engine) -> None:
    await run(engine, "leak = 1 string.leak = 2 json.leak = 3 math.randomseed(1) return 1")
    result = await run(engine, "return {leak == nil, string.leak == nil, json.leak == nil}")
    assert result.value == [True, True, True]


async def test_what_a_run_leaves_pending_delays_no_other(engine: Engine) -> None:
    """Suspended coroutines with variables to close, and tables with finalizers that never were armed."""
    body = """
        local forever = function() while true do end end
        held = coroutine.create(function()
            local x <close> = setmetatable({}, {__close = forever})
            coroutine.yield()
        end)
        coroutine.resume(held)
        local meta = {}
        kept = setmetatable({}, meta)
        meta.__gc = forever
        return 1
    """
    for _ in range(3):
        result = await run(engine, body, limits={"timeout_s": 2})
        assert result.value == 1
    await works(engine)


# Outcomes --------------------------------------------------------------------------------------------------------

BOMB = "local t = {} while true do t[#t + 1] = ('x'):rep(100000) .. #t end"

# body, limits asked -> outcome, limit, part of the message
ENDS: dict[str, tuple[str, dict[str, float], Outcome, str | None, str]] = {
    "a loop at its deadline": ("while true do end", {"timeout_s": 0.3}, Outcome.TIMEOUT, "timeout_s", "within 0.3 s"),
    "a loop inside pcall": (
        "while true do pcall(function() while true do end end) end",
        {"timeout_s": 0.3},
        Outcome.TIMEOUT,
        "timeout_s",
        "within 0.3 s",
    ),
    "one call of C that does not end": (
        "return (('a'):rep(4000)):find(('a-'):rep(20) .. 'b')",
        {"timeout_s": 0.3},
        Outcome.TIMEOUT,
        "timeout_s",
        "within 0.3 s",
    ),
    "a loop in a coroutine": (
        "coroutine.wrap(function() while true do end end)()",
        {"timeout_s": 0.3},
        Outcome.TIMEOUT,
        "timeout_s",
        "",
    ),
    "a loop in an error's own text": (
        "error(setmetatable({}, {__tostring = function() while true do end end}))",
        {"timeout_s": 0.3},
        Outcome.TIMEOUT,
        "timeout_s",
        "",
    ),
    "a loop at the top level": ("", {"timeout_s": 0.3}, Outcome.TIMEOUT, "timeout_s", ""),
    "CPU time": ("while true do end", {"cpu_s": 0.1}, Outcome.CPU_LIMIT, "cpu_s", "more than 0.1 s of CPU time"),
    "CPU time inside xpcall": (
        "while true do xpcall(error, function() while true do end end) end",
        {"cpu_s": 0.1},
        Outcome.CPU_LIMIT,
        "cpu_s",
        "",
    ),
    "memory": (BOMB, {"memory_bytes": 8 * MIB}, Outcome.MEMORY_LIMIT, "memory_bytes", "more than 8 MiB of memory"),
    "one string": (
        "return #('x'):rep(1 << 30)",
        {"memory_bytes": 8 * MIB},
        Outcome.MEMORY_LIMIT,
        "memory_bytes",
        "8 MiB",
    ),
    "memory in a coroutine": (
        f"coroutine.wrap(function() {BOMB} end)()",
        {"memory_bytes": 8 * MIB},
        Outcome.MEMORY_LIMIT,
        "memory_bytes",
        "",
    ),
    "a large answer": (
        "return {a = {('x'):rep(2000)}}",
        {"output_bytes": 1000},
        Outcome.OUTPUT_LIMIT,
        "output_bytes",
        ".a[1] is larger than 1000 bytes",
    ),
    "a cycle": ("local t = {} t.t = t return t", {}, Outcome.OUTPUT_LIMIT, "value_depth", ".t contains itself"),
    "a deep answer": (
        "local t = {} for _ = 1, 30 do t = {t} end return t",
        {"value_depth": 20},
        Outcome.OUTPUT_LIMIT,
        "value_depth",
        "nested deeper than 20 levels",
    ),
    "a million calls": (
        "for _ = 1, 1e6 do pcall(context.sources) end return 1",
        {"host_calls": 50},
        Outcome.CALL_LIMIT,
        "host_calls",
        "more than 50 host calls",
    ),
    "calls of what is not granted": (
        "for _ = 1, 1e6 do pcall(context.get, 'x') end return 1",
        {"host_calls": 20},
        Outcome.CALL_LIMIT,
        "host_calls",
        "more than 20 host calls",
    ),
    "an error": ("\nerror('x')", {}, Outcome.SCRIPT_ERROR, None, "t.lua:2: x"),
    "an error that is a table": ("error({})", {}, Outcome.SCRIPT_ERROR, None, "(the error is a table value)"),
    "an error that claims memory": (
        "error('not enough memory', 0)",
        {},
        Outcome.SCRIPT_ERROR,
        None,
        "not enough memory",
    ),
    "an uncaught host call": ("context.get('none')", {}, Outcome.SCRIPT_ERROR, None, "document not found: none"),
    "a wrong shape": ("return {a = print}", {}, Outcome.SCRIPT_ERROR, None, ".a is a function"),
    "no number": ("return {0/0}", {}, Outcome.SCRIPT_ERROR, None, "[1] is not a number (NaN)"),
    "a syntax error": ("local = 1", {}, Outcome.SCRIPT_ERROR, None, "t.lua:1: "),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_run_ends_in_a_typed_outcome_and_the_next_one_works(engine: Engine, end: str) -> None:
    body, limits, outcome, limit, message = ENDS[end]
    script: str | bytes = b"while true do end" if end == "a loop at the top level" else body
    result = await run(engine, script, limits=limits)
    assert result.outcome is outcome, result.failure
    assert result.value is None
    assert result.failure is not None
    assert message in result.failure.message
    if limit is None:
        assert result.failure.limit is None
    else:
        found = result.failure.limit
        assert found is not None
        assert (found.name, found.bound) == (limit, limits.get(limit, 64))
        assert found.source == ("script" if limit in limits else "engine")
        assert found.unit == {"s": "s", "bytes": "bytes", "calls": "count", "depth": "levels"}[limit.rpartition("_")[2]]
    await works(engine)


async def test_a_limit_set_by_a_tenant_is_named_as_the_tenants(engine: Engine) -> None:
    tenant = Tenant("small", ceilings={"timeout_s": 0.2})
    result = await run(engine, "while true do end", tenant=tenant)
    assert result.failure is not None
    assert result.failure.limit is not None
    assert (result.failure.limit.bound, result.failure.limit.source) == (0.2, "tenant")
    await works(engine, tenant)


async def test_memory_that_is_caught_lets_the_script_go_on_below_the_bound(engine: Engine) -> None:
    body = f"local ok, e = pcall(function() {BOMB} end) return {{ok, e, #context.search('on')}}"
    result = await run(engine, body, limits={"memory_bytes": 8 * MIB})
    assert (result.outcome, result.value) == (Outcome.OK, [False, "not enough memory", 1])
    await works(engine)


async def test_waiting_for_the_host_uses_wall_time_but_no_cpu_time(engine: Engine, store: FakeStore) -> None:
    result = await run(engine, "context.search('hold')", limits={"timeout_s": 0.4, "cpu_s": 0.1})
    assert result.outcome is Outcome.TIMEOUT
    assert store.cancelled.is_set()
    assert result.usage.cpu_s < 0.1 < result.usage.wall_s
    await works(engine)


async def test_a_script_error_has_the_scripts_own_traceback(engine: Engine) -> None:
    script = b"agent = {}\nlocal function inner() error('deep') end\nfunction agent.resolve()\n  inner()\nend"
    result = await run(engine, script)
    assert result.failure is not None
    assert result.failure.traceback is not None
    assert [line.partition(": ")[0] for line in result.failure.traceback.splitlines()] == ["t.lua:2", "t.lua:4"]
    assert "agent.resolve" in result.failure.traceback


async def test_nothing_that_is_told_holds_a_path_of_the_host_or_python(engine: Engine) -> None:
    bodies = ["error('x')", "context.search(5)", "context.search('bug')", "return print", "context.get({})", "x.y = 1"]
    for body in bodies:
        failure = (await run(engine, body)).failure
        assert failure is not None
        text = failure.message + (failure.traceback or "")
        assert not any(word in text for word in (ROOT, "site-packages", ".py", "Traceback", "msgspec", "0x")), text


async def test_every_run_is_booked_once_however_it_ends(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    booked: list[Outcome] = []
    ended = Accounts.ended

    def spy(accounts: Accounts, tenant: Tenant, agent: str, outcome: Outcome, usage: Usage) -> None:
        booked.append(outcome)
        ended(accounts, tenant, agent, outcome, usage)

    monkeypatch.setattr(Accounts, "ended", spy)
    await run(engine, "return 1")
    await run(engine, "error('no')")
    await run(engine, "while true do end", limits={"timeout_s": 0.2})
    with trio.move_on_after(0.2):
        await run(engine, "while true do end")
    assert booked == [Outcome.OK, Outcome.SCRIPT_ERROR, Outcome.TIMEOUT, Outcome.CANCELLED]
    await works(engine)


# Log and progress --------------------------------------------------------------------------------------------------


async def test_lines_and_progress_arrive_as_they_are_made(engine: Engine) -> None:
    lines: list[LogLine] = []
    progress: list[tuple[float, str | None]] = []
    result = await run(
        engine,
        "log.warn('one', 2) context.progress(0.5, 'half') print('three') context.progress(1)",
        hearers=Hearers(log=lines.append, progress=lambda fraction, message: progress.append((fraction, message))),
    )
    assert lines == [LogLine("warn", "one\t2"), LogLine("info", "three")]
    assert progress == [(0.5, "half"), (1.0, None)]
    assert result.logs == tuple(lines)


async def test_lines_before_a_kill_are_kept(engine: Engine) -> None:
    result = await run(engine, "log.info('before') while true do end", limits={"timeout_s": 0.2})
    assert (result.outcome, result.logs) == (Outcome.TIMEOUT, (LogLine("info", "before"),))


async def test_too_much_log_is_cut_and_says_so_and_the_run_goes_on(engine: Engine) -> None:
    result = await run(engine, "for i = 1, 1000 do print(('x'):rep(100)) end return 1", limits={"log_bytes": 1000})
    assert (result.outcome, result.value) == (Outcome.OK, 1)
    assert result.logs[-1].text.endswith("[log truncated: limit reached]")
    assert sum(len(line.text) for line in result.logs) < 1100
    await works(engine)


async def test_a_result_says_whether_its_log_was_cut(engine: Engine) -> None:
    result = await run(engine, "for i = 1, 1000 do print(('x'):rep(100)) end return 1", limits={"log_bytes": 1000})
    assert result.logs_truncated
    assert not (await run(engine, "print('x')")).logs_truncated


async def test_endless_empty_lines_do_not_end_a_run(engine: Engine) -> None:
    result = await run(engine, "for i = 1, 200000 do print() end return 1", limits={"log_bytes": 1000})
    assert (result.outcome, result.value) == (Outcome.OK, 1)
    assert len(result.logs) <= 65


async def test_endless_progress_does_not_end_a_run(engine: Engine) -> None:
    result = await run(engine, "for i = 1, 5000 do context.progress(i / 5000) end return 1")
    assert (result.outcome, result.value) == (Outcome.OK, 1)


# Grants and arguments of host calls ------------------------------------------------------------------------------


async def test_nothing_is_granted_unless_it_is_asked_for(engine: Engine, store: FakeStore) -> None:
    body = "local ok, e = pcall(context.search, 'x') return {ok, e}"
    result = await run(engine, body, grants=frozenset())
    assert result.value[0] is False
    assert "context.search is not granted to 'test'" in result.value[1]
    assert store.queries == []
    result = await run(engine, body, grants=frozenset({"context.search"}))
    assert result.value[0] is True


async def test_an_uncaught_refusal_ends_the_run_with_its_line(engine: Engine) -> None:
    result = await run(engine, "\n\ncontext.get('doc-1')", grants=frozenset())
    assert result.outcome is Outcome.SCRIPT_ERROR
    assert result.failure is not None
    assert result.failure.message == "t.lua:3: context.get is not granted to 'test'"


BAD_CALLS = {
    "context.search()": "query is nil: it is required",
    "context.search(5)": "query: expected string, got number",
    "context.search{query = 'x', limit = 'many'}": "limit: expected",
    "context.search{query = 'x', mode = 'magic'}": "mode: ",
    "context.search{query = 'x', filters = 5}": "filters: expected table or nil, got number",
    "context.search{query = 'x', filters = {source = 5}}": "filters.source: expected string or nil, got number",
    "context.get(true)": "id: expected string, got boolean",
    "context.get{}": "id is nil: it is required",
    "context.get({1, 2})": "expected table, got list",
    "context.get{id = {1}}": "id: expected string, got list",
}


@pytest.mark.parametrize("call", BAD_CALLS)
async def test_a_bad_argument_of_a_host_call_is_a_catchable_error_that_names_it(engine: Engine, call: str) -> None:
    result = await run(engine, f"local ok, e = pcall(function() {call} end) return {{ok, e}}")
    assert result.outcome is Outcome.OK
    assert result.value[0] is False
    name = call.partition("(")[0].partition("{")[0]
    assert result.value[1].startswith(f"t.lua:1: {name}: ")
    assert BAD_CALLS[call] in result.value[1]


async def test_an_argument_that_lua_cannot_take_is_refused_and_the_next_run_works(engine: Engine) -> None:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    for argument in ("\ud800", nested):
        with pytest.raises(Problem) as refused:
            await run(engine, "return 1", argument)
        assert refused.value.code is Code.BAD_REQUEST
        await works(engine)


async def test_integers_beyond_64_bits_reach_a_script_as_floats(engine: Engine) -> None:
    result = await run(engine, "return {math.type((...).n), (...).n == 2.0 ^ 70}", {"n": 1 << 70})
    assert result.value == ["float", True]


# Cancellation, reuse, replacement ------------------------------------------------------------------------------


@pytest.mark.parametrize("body", ["log.info('x') while true do end", "context.search('hold')"])
async def test_cancelling_kills_and_reaps_before_the_task_ends(engine: Engine, store: FakeStore, body: str) -> None:
    running = trio.Event()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            asked, hearers = request(engine, body), Hearers(log=lambda line: running.set())
            nursery.start_soon(engine.execute, asked, None, hearers)
            if "hold" in body:
                await store.entered.wait()
            else:
                await running.wait()
            (worker,) = leased(engine)
            nursery.cancel_scope.cancel()
    assert not psutil.pid_exists(worker.pid) or psutil.Process(worker.pid).status() == psutil.STATUS_ZOMBIE
    assert leased(engine) == []
    assert store.cancelled.is_set() is ("hold" in body)
    assert b'engine_runs_total{outcome="cancelled"} 1.0' in engine.render_metrics()
    await works(engine)


async def test_cancelling_before_the_start_costs_nothing() -> None:
    store = FakeStore()
    async with opened(store=store) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(run, engine, "return context.search('hold')")
        await store.entered.wait()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as waiting:
                waiting.start_soon(run, engine, "error('it ran')")
                await wait_all_tasks_blocked()
                assert engine.health()["queued"] == 1
                scope.cancel()
        assert engine.health()["queued"] == 0
        store.release.set()


async def test_a_worker_is_reused_by_its_own_tenant_only() -> None:
    trace: dict[str, list[set[int]]] = {"a": [], "b": []}
    async with opened("workers = 2\nreserve = 0") as engine:
        for tenant in "abababbaab":
            before = leased(engine)
            result = await run(engine, "return 1", tenant=Tenant(tenant))
            assert result.outcome is Outcome.OK
            assert before == []
            trace[tenant].append({worker.pid for worker in idle(engine) if worker.tenant == tenant})
    assert all(len(found) == 1 for found in trace["a"] + trace["b"])
    assert len(set.union(*trace["a"])) == 1
    assert len(set.union(*trace["b"])) == 1
    assert set.union(*trace["a"]).isdisjoint(set.union(*trace["b"]))


async def test_a_worker_of_one_tenant_gives_way_to_another_and_never_changes_hands() -> None:
    owners: dict[int, set[str]] = {}
    places = 1 + SUSPENDED  # while no run is suspended, its place keeps one more tenant's worker
    async with opened(ONE) as engine:
        for number in range(2 * (places + 1)):
            tenant = Tenant(f"t{number % (places + 1)}")
            await run(engine, "return 1", tenant=tenant)
            for worker in idle(engine):
                owners.setdefault(worker.serial, set()).add(worker.tenant or "")
            assert len(idle(engine)) == min(number + 1, places)
    assert all(len(found) == 1 for found in owners.values())
    assert len(owners) == 2 * (places + 1)


@pytest.mark.parametrize("body", ["error('x')", "return print", "context.get('none')", "return ('x'):rep(2000000)"])
async def test_a_worker_is_replaced_after_any_end_but_a_clean_one(body: str) -> None:
    async with opened() as engine:
        await works(engine)
        (before,) = idle(engine)
        await works(engine)
        assert [worker.serial for worker in idle(engine)] == [before.serial]
        assert (await run(engine, body)).outcome is not Outcome.OK
        with trio.fail_after(10):
            while before.pid in pids(engine):
                await trio.lowlevel.checkpoint()
        await works(engine)
        (after,) = idle(engine)
        assert after.serial != before.serial


async def test_with_isolation_by_execution_every_run_has_a_process_of_its_own() -> None:
    async with opened('workers = 2\nreserve = 2\nisolation = "execution"') as engine:
        served: list[int] = []
        for _ in range(5):
            note = Hearers(log=lambda line: served.append(leased(engine)[0].serial))
            await run(engine, "print(1)", hearers=note)
            assert idle(engine) == []
        assert len(set(served)) == 5


async def test_a_worker_serves_so_many_runs_and_no_more() -> None:
    async with opened(ONE + "\nmax_runs_per_worker = 3") as engine:
        served = []
        for _ in range(7):
            note = Hearers(log=lambda line: served.append(leased(engine)[0].serial))
            await run(engine, "print(1)", hearers=note)
    assert [served.count(serial) for serial in dict.fromkeys(served)] == [3, 3, 1]


async def test_a_worker_is_sent_each_script_once_and_again_when_it_kept_too_many_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[bytes] = []
    send = Worker._send

    async def noting(worker: Worker, message: ToWorker) -> None:
        if isinstance(message, Run) and message.source is not None:
            sent.append(message.source)
        await send(worker, message)

    monkeypatch.setattr(Worker, "_send", noting)
    scripts = [f"agent = {{resolve = function() return {n} end}}".encode() for n in range(MAX_SCRIPTS + 1)]
    async with opened() as eng:
        for n in (0, 0, 1, 0, 1):
            assert (await run(eng, scripts[n])).value == n
        assert sent == scripts[:2]
        for n, script in enumerate(scripts):
            assert (await run(eng, script)).value == n
        assert sent == scripts
        assert (await run(eng, scripts[0])).value == 0
        assert sent == [*scripts, scripts[0]]
        assert len(pids(eng)) == 1


async def test_a_script_that_was_run_before_fails_as_it_did_the_first_time() -> None:
    failing = b"agent = {}\nfunction agent.resolve()\n  error('deep')\nend"
    async with opened() as eng:
        for name in ("a.lua", "b.lua", "a.lua"):
            for _ in range(2):
                asked = msgspec.structs.replace(request(eng, failing), script=Script.from_source(name, failing))
                result = await eng.execute(asked)
                assert result.failure is not None
                assert (result.failure.message, result.failure.traceback) == (
                    f"{name}:3: deep", f"{name}:3: in agent.resolve"
                )  # fmt: skip


async def test_the_files_that_a_script_requires_are_sent_with_it_once_and_count_in_the_workers_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[ToWorker] = []
    send = Worker._send

    async def noting(worker: Worker, message: ToWorker) -> None:
        if isinstance(message, Run):
            sent.append(message)
        await send(worker, message)

    monkeypatch.setattr(Worker, "_send", noting)

    def with_file(text: bytes) -> Script:
        source = b"agent = {resolve = function() return require('./a') end}"
        return Script.from_source("t.lua", source, [("a.lua", text)])

    scripts = [with_file(b"return %d --" % n + b"x" * 900_000) for n in range(3)]
    async with opened() as eng:

        async def value(n: int) -> Any:
            asked = msgspec.structs.replace(request(eng, b""), script=scripts[n])
            return (await eng.execute(asked)).value

        assert [await value(n) for n in (0, 0, 0, 1, 0, 2, 0, 1)] == [0, 0, 0, 1, 0, 2, 0, 1]
        # The third, and then the second again, each have no room beside two others.
        assert [isinstance(message, BundleRun) for message in sent] == [
            True, False, False, True, False, True, False, True,
        ]  # fmt: skip
        assert len(pids(eng)) == 1
        assert (await run(eng, "return 1")).value == 1
        assert type(sent[-1]) is Run


# Admission -----------------------------------------------------------------------------------------------------


async def test_a_full_queue_refuses_at_once() -> None:
    store = FakeStore()
    async with opened(limits="[tenants.quota]\nqueue_length = 2", store=store) as eng, trio.open_nursery() as nursery:
        nursery.start_soon(run, eng, "return context.search('hold')")
        await store.entered.wait()
        for _ in range(2):
            nursery.start_soon(run, eng, "return 1")
        await wait_all_tasks_blocked()
        with pytest.raises(Problem) as refused:
            await run(eng, "return 1")
        problem = refused.value
        assert problem.code is Code.QUEUE_FULL
        assert problem.limit is not None
        assert (problem.limit.name, problem.limit.bound, problem.limit.unit) == ("queue_length", 2, "count")
        assert problem.retry_after_s
        result = await run_soon(eng, store, nursery)
        assert result.outcome is Outcome.OK
        assert b'outcome="rejected"} 1.0' in eng.render_metrics()
    assert eng.health()["queued"] == 0


async def test_runs_that_are_cancelled_in_the_moment_of_their_start_lose_no_slot() -> None:
    """When a client with many queued runs goes away, the one that runs ends and starts another that is going, too."""
    store = FakeStore()
    async with opened(store=store) as eng:
        for _ in range(3):
            store.entered = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, eng, "return context.search('hold')")
                await store.entered.wait()
                for _ in range(10):
                    nursery.start_soon(run, eng, "return 1")
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            assert (eng._scheduler.running, eng._scheduler.begun, eng._scheduler.queued) == (0, 0, 0)
        async with trio.open_nursery() as nursery:
            offered = [eng._scheduler.offer("other", 0, queue_length=9) for _ in range(2)]
            assert eng._scheduler.next_start(0) is offered[0]
            nursery.start_soon(run, eng, "return 1")
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()  # its task hears of it only after what comes next
            eng._scheduler.finish(offered[0], 0.0)  # type: ignore[arg-type]
            eng._scheduler.withdraw(offered[1])  # type: ignore[arg-type]
            eng._turns.start_waiting()
        assert (eng._scheduler.running, eng._scheduler.begun, eng._scheduler.queued) == (0, 0, 0)
        await works(eng)


async def run_soon(eng: Engine, store: FakeStore, nursery: trio.Nursery) -> RunResult:
    """A run of another tenant, which is admitted whatever the first one's queue holds."""
    store.release.set()
    return await run(eng, "return 1", tenant=Tenant("other"))


async def test_who_waits_too_long_is_told_so_and_is_not_run() -> None:
    store = FakeStore()
    async with opened(limits="queue_timeout_s = 0.1", store=store) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(run, engine, "return context.search('hold')")
        await store.entered.wait()
        with pytest.raises(Problem) as refused:
            await run(engine, "context.search('it ran')")
        assert refused.value.code is Code.QUEUE_TIMEOUT
        assert refused.value.limit is not None
        assert (refused.value.limit.name, refused.value.limit.bound) == ("queue_timeout_s", 0.1)
        store.release.set()
    assert [query.query for query in store.queries] == ["hold"]


async def test_who_waits_is_started_when_a_worker_becomes_free(store: FakeStore) -> None:
    results: list[RunResult] = []

    async def one(engine: Engine, tenant: Tenant) -> None:
        results.append(await run(engine, "return 1", tenant=tenant))

    async with opened(store=store) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(run, engine, "return context.search('hold')")
        await store.entered.wait()
        for number in range(6):
            nursery.start_soon(one, engine, Tenant(f"t{number % 3}"))
        await wait_all_tasks_blocked()
        assert engine.health()["queued"] == 6
        assert len(leased(engine)) == 1
        store.release.set()
    assert [result.value for result in results] == [1] * 6
    assert all(result.usage.queue_s > 0 for result in results)


async def test_never_more_runs_compute_at_once_than_there_are_workers() -> None:
    most = 0

    async with opened("workers = 2\nreserve = 1") as engine:

        def look(line: LogLine) -> None:
            nonlocal most
            most = max(most, engine.statistics().running)

        async with trio.open_nursery() as nursery:
            for number in range(12):
                working = "for i = 1, 5 do local t = os.clock() while os.clock() - t < 0.01 do end print(i) end"
                asked, hearers = request(engine, working, tenant=Tenant(f"t{number}")), Hearers(log=look)
                nursery.start_soon(engine.execute, asked, None, hearers)
    assert most == 2


async def test_draining_refuses_new_runs_and_waits_for_those_under_way(engine: Engine, store: FakeStore) -> None:
    drained = trio.Event()
    results: list[RunResult] = []

    async def held() -> None:
        results.append(await run(engine, "return #context.search('hold')"))

    async def drain() -> None:
        await engine.drain()
        drained.set()

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held)
            await store.entered.wait()
            nursery.start_soon(drain)
            await wait_all_tasks_blocked()
            with pytest.raises(Problem) as refused:
                await engine.execute(request(engine, "return 1"))
            assert refused.value.code is Code.UNAVAILABLE
            assert refused.value.retry_after_s
            assert not drained.is_set()
            store.release.set()
            await drained.wait()
    assert results[0].value == 1


async def test_draining_lets_those_that_wait_run_too() -> None:
    store = FakeStore()
    done = []

    async def waiting(engine: Engine) -> None:
        done.append((await run(engine, "return 1")).value)

    with trio.fail_after(20):
        async with opened(store=store) as engine, trio.open_nursery() as nursery:
            nursery.start_soon(run, engine, "return context.search('hold')")
            await store.entered.wait()
            nursery.start_soon(waiting, engine)
            await wait_all_tasks_blocked()
            nursery.start_soon(engine.drain)
            await wait_all_tasks_blocked()
            store.release.set()
    assert done == [1]


async def test_an_idle_engine_is_drained_at_once(engine: Engine) -> None:
    with trio.fail_after(5):
        await engine.drain()
        await engine.drain()


async def test_a_failure_inside_the_engine_frees_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as eng:
        with monkeypatch.context() as broken:
            broken.setattr(engine.execution, "_message", lambda request, worker, run_id: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await run(eng, "return 1")
        await works(eng)
        with trio.fail_after(5):
            await eng.drain()


# Usage, metrics, security log ------------------------------------------------------------------------------------


async def test_usage_is_plausible(engine: Engine) -> None:
    body = "local x = 0 for i = 1, 3e6 do x = x + i end context.search('a') context.search('b') pcall(context.get, 'c')"
    result = await run(engine, body + " return ('x'):rep(1000)")
    usage = result.usage
    assert usage.host_calls == {"context.search": 2, "context.get": 1}
    assert usage.host_call_count == 3
    assert 0 < usage.cpu_s < 5
    assert usage.cpu_s <= usage.wall_s * 1.5
    assert usage.queue_s >= 0
    assert 4 * MIB < usage.peak_memory_bytes < 200 * MIB
    assert usage.bytes_in > len(body)
    assert usage.bytes_out > 1000


async def test_the_memory_of_a_run_shows_in_its_usage(engine: Engine) -> None:
    small = (await run(engine, "return 1")).usage.peak_memory_bytes
    large = (await run(engine, "return #('x'):rep(40 * 1024 * 1024)")).usage.peak_memory_bytes
    assert large > small + 30 * MIB
    await works(engine)


async def test_names_that_are_no_host_calls_do_not_grow_our_tables(engine: Engine) -> None:
    result = await run(engine, "for i = 1, 5 do pcall(context.search, 'x') end return 1", grants=frozenset())
    assert result.usage.host_calls == {"context.search": 5}


async def test_runs_are_counted_by_outcome(engine: Engine) -> None:
    await run(engine, "return 1")
    await run(engine, "error('x')")
    await run(engine, "while true do end", limits={"cpu_s": 0.05})
    text = engine.render_metrics().decode()
    for outcome in ("ok", "script_error", "cpu_limit"):
        assert f'engine_runs_total{{outcome="{outcome}"}} 1.0' in text
    assert "engine_run_seconds_count 3.0" in text
    assert f"engine_workers_spawned_total {engine.statistics().spawned}.0" in text
    assert 'sandbox_layer_active{layer="seccomp"} 1.0' in text


async def test_health_tells_of_workers_layers_and_trouble(engine: Engine) -> None:
    await works(engine)
    health = engine.health()
    assert health["workers"]["idle"] == 1
    assert health["queued"] == 0
    assert health["trouble"] is None
    assert {layer["name"] for layer in health["layers"] if layer["required"]} == set(REQUIRED)
    json.dumps(health)


async def test_ordinary_ends_are_no_security_events(engine: Engine) -> None:
    with capture_logs() as logged:
        for body in ("error('x')", "return print", BOMB):
            await run(engine, body, limits={"memory_bytes": 8 * MIB})
    assert [entry for entry in logged if entry["event"] == "security event"] == []
    assert "engine_security_events_total 0.0" in engine.render_metrics().decode()


# Opening ---------------------------------------------------------------------------------------------------------


async def test_every_required_layer_is_active(engine: Engine) -> None:
    states = {layer.name: layer.state for layer in engine.layers}
    assert {name: states[name] for name in REQUIRED} == dict.fromkeys(REQUIRED, "active")
    assert all(layer.detail for layer in engine.layers)


async def test_a_required_layer_that_is_missing_keeps_the_engine_from_opening() -> None:
    with pytest.raises(SandboxUnavailable, match="seccomp is off"):
        async with open_engine(small_config(ONE + '\ndisable = ["seccomp"]')):
            raise AssertionError("it opened")


async def test_a_layer_that_is_not_required_may_be_missing_and_is_reported() -> None:
    async with opened(ONE + '\ndisable = ["landlock"]') as engine:
        (layer,) = [layer for layer in engine.layers if layer.name == "landlock"]
        assert (layer.state, layer.required) == ("off", False)
        await works(engine)


def test_the_configuration_may_insist_on_more_layers_or_fewer() -> None:
    assert required_layers(small_config()) == frozenset(REQUIRED)
    more = small_config('require = ["landlock", "seccomp"]')
    assert required_layers(more) == {"landlock", "seccomp"}


async def test_a_zygote_that_does_not_start_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.workers.zygote, "_BOOT", "raise SystemExit('it is broken')")
    with pytest.raises(SandboxUnavailable, match="it is broken"):
        async with open_engine(small_config()):
            raise AssertionError("it opened")


async def test_closing_gives_every_descriptor_back_at_once() -> None:
    before = psutil.Process().num_fds()
    gc.disable()
    try:
        with pytest.raises(ZeroDivisionError):
            async with open_engine(small_config(ONE)):
                raise ZeroDivisionError
        assert psutil.Process().num_fds() == before
    finally:
        gc.enable()


async def test_what_the_block_raises_comes_out_as_it_was() -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_engine(small_config()):
            raise ZeroDivisionError


async def test_closing_while_a_run_is_under_way_ends_it() -> None:
    store = FakeStore()
    ended = []

    async def held(eng: Engine) -> None:
        try:
            await run(eng, "context.search('hold')")
        finally:
            ended.append(True)

    with trio.fail_after(20):
        async with opened(store=store) as eng, trio.open_nursery() as nursery:
            nursery.start_soon(held, eng)
            await store.entered.wait()
            nursery.cancel_scope.cancel()
    assert ended == [True]


async def test_two_engines_live_side_by_side() -> None:
    async with opened() as first, opened() as second:
        await works(first)
        await works(second)
        assert pids(first).isdisjoint(pids(second))


async def test_results_hold_only_json(engine: Engine) -> None:
    result = await run(engine, "return {1.5, -0.0, 1 << 62, {a = json.null}, ''}")
    assert json.loads(json.dumps(result.value)) == [1.5, 0.0, 1 << 62, {"a": None}, ""]
    assert math.copysign(1, result.value[1]) == -1


async def test_the_default_tenant_has_no_ceilings() -> None:
    assert dict(DEFAULT_TENANT.ceilings) == {}


async def test_what_a_script_logs_is_one_record_of_the_engines_log(engine: Engine) -> None:
    with capture_logs() as records:
        await run(engine, "log.warn('first') print('second', 2) return 1")
        await run(engine, "return 1")
    (record,) = [record for record in records if record["event"] == "script log"]
    assert record["lines"] == ["[warn] first", "[info] second\t2"]
    assert record["tenant"] == "default"


# ---- large answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ("local e, t = {}, {} for i = 1, 500000 do t[i] = e end return t", "values"),
        ("return ('\\0'):rep(8 * 1024 * 1024)", "json_bytes"),
    ],
)
async def test_an_answer_that_costs_too_much_to_take_is_an_output_limit(engine: Engine, body: str, limit: str) -> None:
    result = await run(engine, body, limits={"output_bytes": 9 * 1024 * 1024})
    assert result.outcome is Outcome.OUTPUT_LIMIT
    assert result.failure is not None
    assert result.failure.limit is not None
    assert (result.failure.limit.name, result.failure.limit.source) == (limit, "engine")
    assert f"{result.failure.limit.bound}" in result.failure.message
    await works(engine)


async def test_what_a_large_answer_costs_the_supervisor_is_its_tenants() -> None:
    tenant = Tenant("large")
    async with opened(limits="[tenants]\nenabled = true\n[tenants.quota]\ncpu_seconds_per_minute = 60") as eng:
        judged: list[float] = []
        leave = Turn._leave

        def left(turn: Turn, worker: Worker) -> None:
            before = turn.cpu_s()
            leave(turn, worker)
            judged.append(turn.cpu_s() - before)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Turn, "_leave", left)
            result = await run(eng, "local t = {} for i = 1, 45000 do t[i] = 'x' .. i end return t", tenant=tenant)
        assert (result.outcome, len(result.value)) == (Outcome.OK, 45_000)
        assert judged[0] > 0.002
        await works(eng, tenant)

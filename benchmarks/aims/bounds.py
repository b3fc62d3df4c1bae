"""Figures that must not grow: how far a hostile run exceeds its deadline, and the cost of a run with many tenants.

    python -m benchmarks.aims.bounds

prints the scheduler's CPU time for a run by the number of waiting tenants; `benchmarks.aims.table` has the rest.
"""

import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from benchmarks.aims.contest import tree_cpu_s
from benchmarks.aims.floor import AGENT, DOCUMENT, OneDocument
from benchmarks.report import machine
from engine.bridge import knowledge
from engine.config import Config, LimitsConfig, SandboxConfig
from engine.engine import Engine, open_engine
from engine.run import RunRequest, Script
from engine.scheduling.scheduler import NotAdmitted, Scheduler
from engine.tenant import DEFAULT_TENANT, Tenant
from sandbox.wire.outcome import Outcome

DEADLINE_S = 0.5

# None of them ends by itself; each keeps the interpreter busy in a different way.
HOSTILE = {
    "loop": "while true do end",
    "loop in pcall": "while true do pcall(function() while true do end end) end",
    "pattern": "local s = string.rep('a', 60000) while true do s:find('.-.-.-.-b') end",
    "host calls": "while true do pcall(context.get, 'nothing') end",
    "coroutines": "while true do coroutine.wrap(function() while true do end end)() end",
}


@asynccontextmanager
async def open_with(sandbox: SandboxConfig, queue_timeout_s: float = 10) -> AsyncIterator[Engine]:
    """An engine with the one document of `floor.py`."""
    config = Config(sandbox=sandbox, limits=LimitsConfig(queue_timeout_s=queue_timeout_s))
    async with open_engine(config, knowledge.functions(lambda _: OneDocument(), default_limit=12)) as engine:
        yield engine


def request_of(engine: Engine, tenant: Tenant, source: bytes, asked: dict[str, float]) -> RunRequest:
    return RunRequest(
        tenant=tenant,
        name="floor",
        script=Script.from_source("floor.lua", source),
        root="agent",
        method="resolve",
        args=({"id": DOCUMENT.id}, {}),
        limits=engine.limits_for(asked, tenant),
        grants=frozenset({knowledge.GET}),
    )


# ---- deadlines --------------------------------------------------------------------------------------------------


async def ends(rounds: int) -> dict[str, list[float]]:
    """The time by which each hostile run exceeded its deadline, from the call to the answer: kind -> rounds."""
    seen: dict[str, list[float]] = {name: [] for name in HOSTILE}
    asked: dict[str, float] = {"timeout_s": DEADLINE_S, "cpu_s": 10, "host_calls": 10_000}
    async with open_with(SandboxConfig(workers=2)) as engine:
        for _ in range(rounds):
            for name, body in HOSTILE.items():
                source = f"agent = {{}}\nfunction agent.resolve(args, config, context)\n{body}\nend\n".encode()
                result = await engine.execute(request_of(engine, DEFAULT_TENANT, source, asked))
                if result.outcome is Outcome.CALL_LIMIT:  # it used up its calls before the deadline: no figure
                    continue
                if result.outcome is not Outcome.TIMEOUT:
                    raise RuntimeError(f"{name!r} ended as {result.outcome.value}")
                seen[name].append(result.usage.wall_s / DEADLINE_S)
    return {name: values for name, values in seen.items() if values}


# ---- the cost of a run ------------------------------------------------------------------------------------------

# Number of tenants, and of waiting runs for each: a queue of 10,000.
MANY = 1_000
WAITING = 10


async def costs(rounds: int, seconds: float) -> dict[str, list[float]]:
    """CPU microseconds per run of the whole tree: one tenant without a queue, and a thousand with ten runs each.

    Each run has its own process (`execution` isolation): with `tenant` isolation, the first figure would measure how
    often a worker is reused.
    """
    seen: dict[str, list[float]] = {"one": [], "many": []}
    few, many = [DEFAULT_TENANT], [Tenant(f"t{number}") for number in range(MANY)]
    for number in range(rounds):
        for name, tenants, each in (("one", few, 2), ("many", many, WAITING))[:: -1 if number % 2 else 1]:
            sandbox = SandboxConfig(workers=2, isolation="execution")
            async with open_with(sandbox, queue_timeout_s=600) as engine:
                seen[name].append(await _cpu_us(engine, tenants, each, seconds))
    return seen


async def _cpu_us(engine: Engine, tenants: list[Tenant], each: int, seconds: float) -> float:
    """CPU microseconds per run while every tenant keeps `each` runs in progress or queued."""
    ended = 0

    async def keep_asking(request: RunRequest) -> None:
        nonlocal ended
        while True:
            result = await engine.execute(request)
            if result.failure is not None:
                raise RuntimeError(f"a run failed: {result.outcome.value}")
            ended += 1

    async with trio.open_nursery() as nursery:
        for tenant in tenants:
            request = request_of(engine, tenant, AGENT, {})
            for _ in range(each):
                nursery.start_soon(keep_asking, request)
        await trio.sleep(seconds / 2)  # by now all of them have sent their calls
        ended_before, cpu_before = ended, tree_cpu_s(os.getpid())
        await trio.sleep(seconds)
        runs, cpu_s = ended - ended_before, tree_cpu_s(os.getpid()) - cpu_before
        nursery.cancel_scope.cancel()
    if not runs:
        raise RuntimeError(f"no run ended within {seconds:g} s")
    return cpu_s / runs * 1e6


# ---- the scheduler alone ----------------------------------------------------------------------------------------


def steps(tenants: int, runs: int) -> float:
    """CPU microseconds of the scheduler per run (offered, started, reviewed, ended), with so many waiting tenants."""
    scheduler = Scheduler(slots=2, places=14)

    def offer(number: int, now: float) -> None:
        if isinstance(scheduler.offer(f"t{number}", now, queue_length=WAITING), NotAdmitted):
            raise RuntimeError("a run was refused")

    for number in range(tenants):
        for _ in range(3):
            offer(number, 0.0)
    begun = time.process_time()
    for now in range(runs):
        while scheduler.next_start(now) is not None:
            pass
        scheduler.preempt(now)
        first = scheduler.on_slots[0]
        scheduler.finish(first, 0.001)
        offer(int(first.tenant[1:]), now)
    return (time.process_time() - begun) / runs * 1e6


def main() -> None:
    print(machine.line(machine.facts()))
    for tenants in (1, 10, 100, 1_000, 10_000):
        taken = statistics.median(steps(tenants, 3_000) for _ in range(5))
        print(f"{tenants:6,} tenants that wait: {taken:.1f} us of the scheduler a run")


if __name__ == "__main__":
    main()

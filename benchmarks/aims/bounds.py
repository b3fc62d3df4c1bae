"""Figures that must not grow: how far a hostile run exceeds its deadline, the cost of a run with many tenants, and the
memory of idle workers.

    python -m benchmarks.aims.bounds

prints the scheduler's CPU time for a run by the number of waiting tenants; `benchmarks.aims.table` has the rest.
"""

import os
import statistics
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import psutil
import trio

from benchmarks.aims.floor import open_floor
from benchmarks.aims.harness import take_turns, tree_cpu_s
from benchmarks.aims.job import job, open_job_engine
from benchmarks.report import machine
from engine.config import Config, SandboxConfig
from engine.engine import Engine, open_engine
from engine.run import RunRequest
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


# ---- deadlines --------------------------------------------------------------------------------------------------


async def ends(rounds: int) -> dict[str, list[float]]:
    """The time by which each hostile run exceeded its deadline, from the call to the answer: kind -> rounds."""
    seen: dict[str, list[float]] = {name: [] for name in HOSTILE}
    asked: dict[str, float] = {"timeout_s": DEADLINE_S, "cpu_s": 10, "host_calls": 10_000}
    async with open_job_engine(SandboxConfig(workers=2)) as engine:
        for _ in range(rounds):
            for name, body in HOSTILE.items():
                source = f"agent = {{}}\nfunction agent.resolve(args, config, context)\n{body}\nend\n".encode()
                result = await engine.execute(job(engine, DEFAULT_TENANT, source, asked))
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
    few, many = [DEFAULT_TENANT], [Tenant(f"t{number}") for number in range(MANY)]
    turns = {"one": partial(_cpu_us, few, 2, seconds), "many": partial(_cpu_us, many, WAITING, seconds)}
    return await take_turns(turns, rounds)


async def _cpu_us(tenants: list[Tenant], each: int, seconds: float) -> float:
    async with open_job_engine(SandboxConfig(workers=2, isolation="execution"), queue_timeout_s=600) as engine:
        return await _cpu_us_on(engine, tenants, each, seconds)


async def _cpu_us_on(engine: Engine, tenants: list[Tenant], each: int, seconds: float) -> float:
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
            request = job(engine, tenant)
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


# ---- memory of idle workers -------------------------------------------------------------------------------------

# Proportional set size (PSS) counts a page that N processes share as one Nth each.

# Number of idle workers, and of plain ones beside them: enough to spread shared pages as on a server.
FLEET = 16
_LOOKS, _LOOK_EVERY_S = 240, 0.25


class Unreadable(Exception):
    """The memory of another user's process cannot be read. One line with the remedy."""


def pss_bytes(pid: int) -> int:
    """PSS of one process. Raises Unreadable."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        raise Unreadable("the memory of confined workers can be read by root only, and on Linux only") from None
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


async def idle_fleet(count: int) -> tuple[float, int]:
    """PSS of `count` idle confined workers: the mean of one, and of all with the processes that forked them.

    In bytes. Raises Unreadable, and RuntimeError if so many cannot be started.
    """
    config = Config(sandbox=SandboxConfig(workers=2, reserve=count))
    known = {process.pid for process in psutil.Process().children(recursive=True)}
    async with open_engine(config, ()):

        def ours() -> dict[int, int]:
            """Our descendants with their parents, in one pass over all processes, as there may be hundreds."""
            children = psutil.Process().children(recursive=True)
            return {process.pid: process.ppid() for process in children if process.pid not in known}

        def workers() -> list[int]:
            found = ours()
            return [pid for pid in found if pid not in found.values()]

        await _until(lambda: len(workers()) >= count, f"{count} idle workers")
        each = [pss_bytes(pid) for pid in workers()]
        return sum(each) / len(each), sum(map(pss_bytes, ours()))


async def plain_fleet(count: int) -> float:
    """Mean PSS in bytes of so many floor workers, after one run each: Python, lupa and one Lua state, nothing else."""
    known = {process.pid for process in psutil.Process().children()}
    async with AsyncExitStack() as stack:
        for _ in range(count):
            run = await stack.enter_async_context(open_floor("warm"))
            await run()
        fleet = [process.pid for process in psutil.Process().children() if process.pid not in known]
        return sum(map(pss_bytes, fleet)) / len(fleet)


async def _until(true: Callable[[], bool], what: str) -> None:
    """Poll for processes that do not signal when they are ready. Raises RuntimeError."""
    for _ in range(_LOOKS):
        if true():
            await trio.sleep(0.5)  # the last process is still loading
            return
        await trio.sleep(_LOOK_EVERY_S)
    raise RuntimeError(f"{what} were not there within {_LOOKS * _LOOK_EVERY_S:g} s")


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

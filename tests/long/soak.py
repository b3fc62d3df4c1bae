"""`make soak`: thousands of mixed runs, a fifth of them hostile, many tenants; then nothing may be left over.

Watches what a long life wears out: processes, descriptors, cgroups, memory of the supervisor, and how late a task of
the supervisor is woken while all workers are hostile.
"""

import argparse
import os
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import trio
from support import corpus, quiet, request

from engine.config import Config
from engine.engine import open_engine
from engine.tenant import Tenant

HOSTILE_SHARE = 0.2
PING_EVERY_S = 0.01
# Nothing may be awake later than this (99 of 100 pings): the promise of SECURITY.md.
PING_P99_S = 0.1


@dataclass(slots=True)
class Figures:
    """What a soak measured. Memory in bytes, times in seconds."""

    outcomes: Counter[str] = field(default_factory=Counter)
    pings: list[float] = field(default_factory=list)
    descriptors: tuple[int, int] = (0, 0)
    processes_left: int = 0
    cgroups_left: int = 0
    memory: list[int] = field(default_factory=list)

    @property
    def ping_p99(self) -> float:
        ordered = sorted(self.pings)
        return ordered[int(len(ordered) * 0.99)] if ordered else 0.0


async def soak(runs: int, *, seed: int = 1, workers: int = 2, tenants: int = 5) -> Figures:
    """Run the mix; every figure is of this process and what it started."""
    figures = Figures()
    chance = random.Random(seed)
    benign, hostile = corpus("benign"), corpus("cpu", "memory", "output", "escape", "protocol")
    left = runs
    me = psutil.Process()
    config = Config.model_validate({"sandbox": {"workers": workers, "reserve": 2}})
    before, there = me.num_fds(), set(me.children(recursive=True))
    async with open_engine(config) as engine:

        async def ping(stop: trio.Event) -> None:
            while not stop.is_set():
                due = trio.current_time() + PING_EVERY_S
                await trio.sleep_until(due)
                figures.pings.append(trio.current_time() - due)

        async def client() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                script = chance.choice(hostile if chance.random() < HOSTILE_SHARE else benign)
                result = await engine.execute(request(engine, script, Tenant(f"tenant-{chance.randrange(tenants)}")))
                figures.outcomes[result.outcome.value] += 1
                if left % max(1, runs // 20) == 0:
                    figures.memory.append(me.memory_info().rss)

        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ping, stop)
            async with trio.open_nursery() as clients:
                for _ in range(2 * workers):
                    clients.start_soon(client)
            stop.set()
    figures.descriptors = (before, me.num_fds())
    figures.processes_left = len(set(me.children(recursive=True)) - there)
    figures.cgroups_left = _empty_cgroups()
    return figures


def _empty_cgroups() -> int:
    """Groups for workers, below the groups that this process is in, that are empty and were not removed."""
    count = 0
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for mount in (controllers.split(",")[0], "", "unified"):
            group = Path("/sys/fs/cgroup", mount, path.lstrip("/"))
            for left in group.glob("engine-workers-*"):
                count += not (left / "cgroup.procs").read_text()
    return count


def problems(figures: Figures) -> list[str]:
    """What a soak must not show."""
    found = []
    if figures.processes_left:
        found.append(f"{figures.processes_left} processes left")
    if figures.descriptors[1] > figures.descriptors[0]:
        found.append(f"descriptors grew from {figures.descriptors[0]} to {figures.descriptors[1]}")
    if figures.cgroups_left:
        found.append(f"{figures.cgroups_left} cgroups left")
    if figures.ping_p99 > PING_P99_S:
        found.append(f"a ping took {figures.ping_p99 * 1e3:.0f} ms at the 99th percentile")
    for outcome in ("worker_lost", "policy_violation"):
        if figures.outcomes[outcome]:
            found.append(f"{figures.outcomes[outcome]} runs ended as {outcome}")
    if len(figures.memory) > 4 and figures.memory[-1] > 1.25 * figures.memory[len(figures.memory) // 4]:
        found.append(f"memory grew from {figures.memory[len(figures.memory) // 4]} to {figures.memory[-1]} bytes")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    quiet()
    figures = trio.run(lambda: soak(options.runs, seed=options.seed))
    print(f"{options.runs} runs on {os.cpu_count()} cores:", dict(sorted(figures.outcomes.items())))
    median = sorted(figures.pings)[len(figures.pings) // 2]
    print(f"ping: median {median * 1e3:.2f} ms, p99 {figures.ping_p99 * 1e3:.1f} ms")
    print(f"descriptors {figures.descriptors[0]} -> {figures.descriptors[1]}, processes left {figures.processes_left}")
    print(f"supervisor memory, MiB: {' '.join(str(rss >> 20) for rss in figures.memory)}")
    found = problems(figures)
    print("findings:", "; ".join(found) or "none")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

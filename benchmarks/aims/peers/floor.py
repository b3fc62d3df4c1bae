"""The floor of `aims.floor` as a contestant: a trio parent, plain pipes, unconfined workers with a warm state."""

from contextlib import AsyncExitStack

import trio

from benchmarks.aims.floor import open_floor
from benchmarks.aims.job import Run
from benchmarks.aims.peers import turns
from benchmarks.report import machine


async def serve_floor() -> None:
    job = turns.read_job()
    async with AsyncExitStack() as stack:
        # Last in, first out: with one run at a time it is always the same worker, as in the engine.
        free: list[Run] = [await stack.enter_async_context(open_floor("warm")) for _ in range(job.workers)]
        places = trio.CapacityLimiter(job.workers)

        async def call() -> None:
            async with places:
                run = free.pop()
                answer = await run()
                free.append(run)
            job.check(answer["system"], answer["characters"])

        facts = machine.facts()
        await turns.serve_trio(f"lupa {facts['lupa']}, trio {facts['trio']}", call)


def serve() -> None:
    trio.run(serve_floor)


if __name__ == "__main__":
    turns.main(serve)

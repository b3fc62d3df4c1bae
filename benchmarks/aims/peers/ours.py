"""The engine as a contestant: `Engine.execute` with every layer and limit, `tenant` or `execution` isolation."""

import gc
import sys
from importlib.metadata import version
from typing import Literal

import trio

from benchmarks.aims.job import open_real_engine
from benchmarks.aims.peers import turns


async def serve_engine(isolation: Literal["tenant", "execution"]) -> None:
    job = turns.read_job()
    async with open_real_engine(isolation=isolation, workers=job.workers) as (run, _):

        async def call() -> None:
            answer = await run()
            job.check(answer["system"], answer["characters"])

        await call()
        gc.collect()
        gc.freeze()  # as the server does
        await turns.serve_trio(f"engine {version('engine')}", call)


def serve() -> None:
    trio.run(serve_engine, "execution" if sys.argv[1] == "execution" else "tenant")


if __name__ == "__main__":
    turns.main(serve)

"""pydantic-monty: its pool of interpreter processes, a fresh session per run, the document through a host call.

`threads` is its blocking interface, which is faster for one run at a time; `asyncio` is the other one.
"""

import asyncio
import sys
from typing import Any

import pydantic_monty

from benchmarks.aims.peers import turns

SOURCE = """
document = get(id)
{"system": "Read " + document["title"], "characters": len(document["body"])}
"""

# The engine's runs have limits too.
LIMITS: pydantic_monty.ResourceLimits = {"max_feed_duration_secs": 30, "max_memory": 64 << 20}


def _given(job: turns.Job) -> dict[str, Any]:
    def get(document_id: str) -> dict[str, Any] | None:
        return job.document if document_id == job.document_id else None

    return {"inputs": {"id": job.document_id}, "external_lookup": {"get": get}}


def serve_blocking() -> None:
    job = turns.read_job()
    given = _given(job)
    with pydantic_monty.Monty(min_processes=job.workers, max_processes=job.workers) as pool:

        def call() -> None:
            with pool.checkout(limits=LIMITS) as session:
                job.check(*session.feed_run(SOURCE, **given).values())

        turns.serve_threads(f"pydantic-monty {pydantic_monty.__version__}", call)


async def serve_tasks() -> None:
    job = turns.read_job()
    given = _given(job)
    async with pydantic_monty.AsyncMonty(min_processes=job.workers, max_processes=job.workers) as pool:

        async def call() -> None:
            async with pool.checkout(limits=LIMITS) as session:
                job.check(*(await session.feed_run(SOURCE, **given)).values())

        await turns.serve_asyncio(f"pydantic-monty {pydantic_monty.__version__}", call)


def serve() -> None:
    if sys.argv[1] == "asyncio":
        asyncio.run(serve_tasks())
    else:
        serve_blocking()


if __name__ == "__main__":
    turns.main(serve)

"""trio-parallel: a fresh Lua state (lupa) per call, in a process that is not confined but can be killed."""

from importlib.metadata import version

import trio
import trio_parallel

from benchmarks.aims.peers import turns


async def serve_pool() -> None:
    job = turns.read_job()
    title, body = job.document["title"], job.document["body"]
    limiter = trio.CapacityLimiter(job.workers)

    async def call() -> None:
        job.check(*await trio_parallel.run_sync(turns.run_lua, title, body, kill_on_cancel=True, limiter=limiter))

    await turns.serve_trio(f"trio-parallel {version('trio-parallel')}", call)


def serve() -> None:
    trio.run(serve_pool)


if __name__ == "__main__":
    turns.main(serve)

"""`concurrent.futures.ProcessPoolExecutor`: a fresh Lua state (lupa) per call, in a process that is not confined."""

import platform
from concurrent.futures import ProcessPoolExecutor

from benchmarks.aims.peers import turns


def serve() -> None:
    job = turns.read_job()
    title, body = job.document["title"], job.document["body"]
    with ProcessPoolExecutor(job.workers) as pool:
        turns.serve_threads(
            f"Python {platform.python_version()}",
            lambda: job.check(*pool.submit(turns.run_lua, title, body).result()),
        )


if __name__ == "__main__":
    turns.main(serve)

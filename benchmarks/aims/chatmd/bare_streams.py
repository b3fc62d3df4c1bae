"""Bare streams of httpx2, for `running.py`: `python -m benchmarks.aims.chatmd.bare_streams URL`.

It prints a line when it is ready; for a number on its standard input it opens so many streams of answers, prints a line
when all of them have begun, and keeps them open until the next line, or the end of its input.
"""

import json
import sys
from functools import partial

import httpx2
import trio

# What is asked of the stub: it answers with half of a stream, and no more.
ASKED = {
    "model": "scripted",
    "stream": True,
    "messages": [{"role": "user", "content": "please wait"}],
}


async def main(url: str) -> None:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    transport = httpx2.AsyncHTTPTransport(trust_env=False, limits=limits)
    async with httpx2.AsyncClient(transport=transport, timeout=None) as client:
        # What is imported and made with the first answer is no part of a stream.
        async with client.stream("POST", url, content=json.dumps(ASKED)) as response:
            await anext(response.aiter_bytes())
        print("ready", flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            async with trio.open_nursery() as nursery:
                for _ in range(int(line)):
                    await nursery.start(partial(_hold, client, url))
                print("open", flush=True)
                await trio.to_thread.run_sync(sys.stdin.readline)
                nursery.cancel_scope.cancel()


async def _hold(client: httpx2.AsyncClient, url: str, task_status: trio.TaskStatus[None]) -> None:
    async with client.stream("POST", url, content=json.dumps(ASKED)) as response:
        task_status.started()
        async for _ in response.aiter_bytes():
            pass


if __name__ == "__main__":
    trio.run(main, sys.argv[1])

"""The real server with an eye on itself, for `mcp_soak.py`: `python mcp_soak_server.py FOLDER`.

It is `run_server` of the configuration in the folder, and beside it a local socket that tells, when asked with a byte,
what no client can see: how many tasks, descriptors and processes there are, and how much memory.
"""

import gc
import json
import os
import sys
from functools import partial
from pathlib import Path

import psutil
import trio

from engine.config import load_config
from server.app import run_server

EYE = "eye.sock"


async def serve(folder: Path) -> int:
    """Serve until a signal; the exit status."""
    loaded = load_config(folder / "engine.toml", environ={}, cwd=folder)
    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM) as eye:
        await eye.bind(str(folder / EYE))
        eye.listen(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.serve_listeners, tell, [trio.SocketListener(eye)]))
            status = await run_server(loaded, bind="127.0.0.1:0")
            nursery.cancel_scope.cancel()
    return status


async def tell(stream: trio.SocketStream) -> None:
    """A line of JSON for every byte."""
    me = psutil.Process()
    async for _ in stream:
        gc.collect()  # what waits for the collector is not left over
        told = {
            "tasks": trio.lowlevel.current_statistics().tasks_living,
            "descriptors": me.num_fds(),
            "processes": len(me.children(recursive=True)),
            "memory": me.memory_info().rss,
        }
        await stream.send_all(json.dumps(told).encode() + b"\n")


if __name__ == "__main__":
    os.chdir(sys.argv[1])  # paths of the configuration are relative to it
    sys.exit(trio.run(serve, Path(sys.argv[1])))

"""The server that is attacked: `python target.py FOLDER`. It is `run_server` of the configuration in the folder.

Workers in it carry out `frames.FRAMES` for scripts that ask for one by their first line, as machine code in a worker
could. A local socket tells what the supervisor did: `b` begins a measurement, `e` ends it, `l` counts what is left,
and `s` tells the longest piece since it was last asked.
"""

import gc
import json
import os
import sys
import threading
import time
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import trio
from faults import hostile_boot
from machine import reference_s

from agents.service import open_service
from engine.config import load_config
from engine.host.lag import LoopWatch
from engine.workers import zygote
from engine.workers.pool import Pool
from engine.workers.ulimits import FILES_A_WORKER
from server.app import run_server
from supervisor.frames import FRAMES

EYE = "eye.sock"
PROBE_S = 0.002


class Probe(threading.Thread):
    """The longest time for which the interpreter lock was not to be had, by CPU time of this process.

    What a thread does in one call into C keeps the loop as well, and a watch inside the loop cannot see it.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.held_s = 0.0
        self.on = True
        self.start()

    def run(self) -> None:
        while self.on:
            began, cpu = time.perf_counter(), time.process_time()
            time.sleep(PROBE_S)
            late_s = time.perf_counter() - began - PROBE_S
            self.held_s = max(self.held_s, min(late_s, time.process_time() - cpu))


def memory(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")


def task_names() -> list[str]:
    """Of every task that lives, the function that it runs."""
    found: list[str] = []
    pending = [trio.lowlevel.current_root_task()]
    while pending:
        if (task := pending.pop()) is not None:
            found.append(task.name)
            pending += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return sorted(found)


class Eye:
    """What the socket tells. One measurement at a time."""

    def __init__(self) -> None:
        self.watch: LoopWatch | None = None
        self.pool: Pool | None = None
        self._probe: Probe | None = None
        self._cpu = self._all = self._resident = 0.0

    async def tell(self, stream: trio.SocketStream) -> None:
        """A line of JSON for every byte."""
        async for data in stream:
            for command in data.decode():
                told = {"b": self._begin, "e": self._end, "l": self._left, "s": self._since}[command]()
                await stream.send_all(json.dumps(told).encode() + b"\n")
            if command == "b":  # what this measurement itself cost is not part of it
                await trio.lowlevel.checkpoint()
                self._restart()

    def _begin(self) -> dict[str, Any]:
        gc.collect()
        return {"reference_s": reference_s()}

    def _restart(self) -> None:
        assert self.watch is not None
        with suppress(OSError):  # resets the high-water mark (proc(5)); without it the growth may seem less than it is
            Path("/proc/self/clear_refs").write_text("5")
        self._resident = memory("VmRSS")
        self.watch.forget()
        self._probe, self._cpu, self._all = Probe(), time.thread_time(), time.process_time()

    def _end(self) -> dict[str, Any]:
        assert self.watch is not None
        assert self._probe is not None
        cpu_s, all_s = time.thread_time() - self._cpu, time.process_time() - self._all
        self._probe.on = False
        lag = self.watch.lag()
        return {
            "kept_s": lag.cpu_s,
            "kept_wall_s": lag.wall_s,
            "held_s": self._probe.held_s,
            "cpu_s": cpu_s,
            "all_s": all_s,
            "growth": memory("VmHWM") - self._resident,
            "reference_s": reference_s(),
        }

    def _since(self) -> dict[str, float]:
        assert self.watch is not None
        if self._probe is None or not self._probe.on:
            self._probe = Probe()
        kept_s, held_s = self.watch.lag().cpu_s, self._probe.held_s
        self.watch.forget()
        self._probe.held_s = 0.0
        return {"kept_s": kept_s, "held_s": held_s}

    def _left(self) -> dict[str, Any]:
        gc.collect()  # what waits for the collector is not left over
        assert self.pool is not None
        me, workers = psutil.Process(), len(self.pool.live())
        # How many workers are idle depends on what came last, and has a bound. All else is counted without them.
        return {
            "tasks": trio.lowlevel.current_statistics().tasks_living,
            "names": task_names(),
            "descriptors": me.num_fds() - FILES_A_WORKER * workers,
            "processes": len(me.children(recursive=True)) - workers,
            "workers beyond their bound": max(0, workers - self.pool.settings.at_most),
            "memory": me.memory_info().rss,
        }


async def serve(folder: Path) -> int:
    """Serve until a signal; the exit status."""
    loaded = load_config(folder / "engine.toml", environ={}, cwd=folder)
    eye = Eye()

    @asynccontextmanager
    async def opener(loaded: Any) -> Any:
        async with open_service(loaded) as service:
            eye.watch, eye.pool = service.engine.loop, service.engine._pool
            yield service

    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM) as listening:
        await listening.bind(str(folder / EYE))
        listening.listen(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.serve_listeners, eye.tell, [trio.SocketListener(listening)]))
            status = await run_server(loaded, bind="127.0.0.1:0", opener=opener)
            nursery.cancel_scope.cancel()
    return status


if __name__ == "__main__":
    zygote._BOOT = hostile_boot(zygote._BOOT, FRAMES)
    os.chdir(sys.argv[1])  # paths of the configuration are relative to it
    sys.exit(trio.run(serve, Path(sys.argv[1])))

"""Memory of idle workers: proportional set size (PSS), which counts a page that N processes share as one Nth each."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import trio

from benchmarks.aims.floor import open_floor
from engine.config import Config, SandboxConfig
from engine.engine import open_engine

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

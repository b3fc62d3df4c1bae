"""A folder of many small files: the memory of their first synchronisation, and the time of one that finds no change.

    python -m benchmarks.aims.store.files FOLDER STORE

synchronises a folder, and prints the greatest memory of the process in MiB.
"""

import os
import re
import sys
import time
from pathlib import Path

import trio

from benchmarks.aims.harness import ROOT, Figures, take_turns
from benchmarks.aims.store.corpus import MAX_TOKENS, small_pages
from benchmarks.aims.store.library import write_files
from knowledge.connectors.filesystem import FilesystemConnector
from knowledge.sqlite.store import open_store
from knowledge.sync import SyncReport, sync

FEW = 100
LABEL = "filesystem:many"
# The version of a file that has changed less than three seconds before a sync is not trusted.
_SETTLED_S = 3.5


async def synchronised(folder: Path, path: Path) -> SyncReport:
    """One synchronisation of a folder with the store at `path`."""
    async with open_store(path, create=True) as store:
        return await sync(store, LABEL, FilesystemConnector(folder), max_tokens=MAX_TOKENS)


async def peak_mib(folder: Path, path: Path) -> float:
    """The greatest memory of a process that synchronises a folder."""
    command = [sys.executable, "-m", __spec__.name, str(folder), str(path)]
    return float((await trio.run_process(command, capture_stdout=True, cwd=ROOT)).stdout)


async def measure(folder: Path, count: int, rounds: int) -> Figures:
    """`few` and `many`: the memory of a sync of so many documents; `ours` and `bare`: CPU seconds of each round."""
    for name, files in (("few", FEW), ("many", count)):
        write_files(folder / name, list(small_pages(files)))
    await trio.sleep(_SETTLED_S)
    figures: Figures = {name: await peak_mib(folder / name, folder / f"{name}.sqlite") for name in ("few", "many")}

    async def ours() -> float:
        began_s = time.process_time()
        report = await synchronised(folder / "many", folder / "many.sqlite")
        assert report.unchanged == count
        return time.process_time() - began_s

    async def bare() -> float:
        await trio.lowlevel.checkpoint()
        began_s = time.process_time()
        assert walked(folder / "many") == count
        return time.process_time() - began_s

    return {**figures, **await take_turns({"ours": ours, "bare": bare}, rounds)}


def walked(folder: str | os.PathLike[str]) -> int:
    """The files below a folder, each with its size and times."""
    count = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                count += walked(entry.path)
            else:
                entry.stat(follow_symlinks=False)
                count += 1
    return count


if __name__ == "__main__":
    trio.run(synchronised, Path(sys.argv[1]), Path(sys.argv[2]))
    # Not `ru_maxrss`, which a child begins with its parent's of.
    print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024)  # type: ignore[index]

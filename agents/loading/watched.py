"""The files that agents and tools are loaded from, and signatures by which their changes are found."""

import os
from collections.abc import Iterable
from pathlib import Path

import trio

from agents import kinds, tools
from engine.config import LoadedConfig

# Modification time, size and inode number; None if the file does not exist.
Signature = tuple[int, int, int] | None
Files = dict[Path, Signature]


async def look(loaded: LoadedConfig) -> Files:
    """The state of the configuration file and of every script that it names. In a thread: a disk may hang."""
    return await trio.to_thread.run_sync(_signatures, _watched(loaded), abandon_on_cancel=True)


def _watched(loaded: LoadedConfig) -> list[Path]:
    config = loaded.config
    scripts = {
        path
        for section, found in ((config.agents, kinds.found()), (config.tools, tools.found()))
        for table, _, entry in section.in_order()
        if table in found
        for path in found[table].watched(entry)
    }
    return [*([loaded.path] if loaded.path is not None else []), *sorted(scripts)]


def _signatures(paths: Iterable[Path]) -> Files:
    found: Files = {}
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            found[path] = None
        else:
            found[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return found

"""The files that agents and tools are loaded from, and signatures by which their changes are found."""

from collections.abc import Iterable
from pathlib import Path

import trio

from agents import kinds, tools
from engine.config import LoadedConfig
from engine.config.signatures import Files, signature


async def look(loaded: LoadedConfig, required: Iterable[Path] = ()) -> Files:
    """The state of the configuration file, of every script that it names, and of the files that these require.

    In a thread: a disk may hang.
    """
    return await trio.to_thread.run_sync(_signatures, [*_watched(loaded), *required], abandon_on_cancel=True)


def _watched(loaded: LoadedConfig) -> list[Path]:
    config = loaded.config
    scripts = {
        path
        for section, found in ((config.agents, kinds.found()), (config.tools, tools.found()))
        for table, _, entry in section.in_order()
        if table in found
        for path in found[table].watched(entry)
    }
    return [*(path for path in (loaded.path, loaded.below) if path is not None), *sorted(scripts)]


def _signatures(paths: Iterable[Path]) -> Files:
    return {path: signature(path) for path in paths}

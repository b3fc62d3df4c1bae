"""Hot reload: scripts and entries that change on disk are described anew and swapped in, all at once.

A call that is under way goes on with the version that it began with, as it holds it. A script that does not load any
more stays as it was, and is reported as a failure that says so.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
import trio

from agents.changes import Change
from agents.registry import Registry
from agents.service import Service
from agents.watched import Files, look
from engine.config import Config, ConfigError, load_config

log = structlog.get_logger("agents.reload")

# How often the files are looked at, which takes 2 us each. Looking finds what notifications do not tell: files on other
# machines, and folders whose symbolic link is pointed elsewhere. What changed between two looks may be half written, so
# it is taken when two looks agree.
LOOK_EVERY_S = 0.2
# What can change while the engine runs. Everything else needs a restart, and the log says so.
_LIVE = {"agents", "tools"}


@asynccontextmanager
async def reloading(service: Service) -> AsyncIterator[None]:
    """Keep what can be called as the files are, while the block lasts. An error in it comes out of the block."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reload_on_change, service, os.environ, Path.cwd())
        nursery.start_soon(service.active.watch)
        yield
        nursery.cancel_scope.cancel()


async def reload_on_change(service: Service, environ: Mapping[str, str], cwd: Path) -> None:
    """Keep what can be called as the files are. Runs until cancelled."""
    seen = service.files
    while True:
        await trio.sleep(LOOK_EVERY_S)
        found = await look(service.loaded)
        if found == seen:
            continue
        while (again := await _after(LOOK_EVERY_S / 4, service)) != found:
            found = again
        # Of a configuration that cannot be used nothing was loaded: it is tried again when it has changed once more.
        seen = service.files if await reload(service, environ, cwd) else found


async def reload(service: Service, environ: Mapping[str, str], cwd: Path) -> bool:
    """Load everything again, and swap it in if anything differs. False: the configuration cannot be used."""
    loaded = service.loaded
    if loaded.path is not None:
        try:
            fresh = load_config(loaded.path, environ=environ, cwd=cwd)
        except ConfigError as error:
            log.error("the configuration cannot be used; the last good one stays in force", reason=str(error))
            service.trouble = f"the configuration cannot be used, the last good one stays in force: {error}"
            return False
        service.trouble = None
        for section in needs_restart(loaded.config, fresh.config):
            log.warning("a change of the configuration needs a restart", section=section)
        loaded = fresh
    before = lists(service.registry)
    await service.load_again(loaded)
    agents, tools = (was != now for was, now in zip(before, lists(service.registry), strict=True))
    if agents or tools:
        log.info("what can be called has changed", agents=agents, tools=tools, failures=len(service.failures))
        service.changes.tell(Change(agents=agents, tools=tools))
    return True


def needs_restart(before: Config, after: Config) -> list[str]:
    """The sections that differ and are read only at the start."""
    return [
        name for name in type(before).model_fields
        if name not in _LIVE and getattr(before, name) != getattr(after, name)
    ]  # fmt: skip


def lists(registry: Registry) -> tuple[object, object]:
    """What clients see of the agents and of the tools, to tell whether it changed."""
    return registry.agent_infos(), registry.tool_infos()


async def _after(seconds: float, service: Service) -> Files:
    await trio.sleep(seconds)
    return await look(service.loaded)

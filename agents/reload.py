"""Hot reload: scripts and entries that change on disk are loaded again and swapped in, all at once.

A call in progress keeps the version that it began with. If a changed script does not load, its previous version stays,
and the failure is reported.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
import trio

from agents.agent import Sourced
from agents.changes import Change
from agents.loading.watched import look
from agents.registry import Registry
from agents.service import Service
from engine.config import Config, ConfigError, reload_config
from engine.config.signatures import Files

log = structlog.get_logger("agents.reload")

# Interval for polling the files, which takes 2 us each. Polling finds changes that notifications miss: files on other
# machines, and folders behind a symbolic link that is repointed. A file that changed between two polls may be half
# written, so it is loaded once two polls agree.
LOOK_EVERY_S = 0.2
# The sections that may change while the engine runs. All others need a restart, and the log says so.
_LIVE = {"agents", "tools", "models", "mcp_servers"}


@asynccontextmanager
async def reloading(service: Service) -> AsyncIterator[None]:
    """Keep agents, tools and models in step with the files, for as long as the block lasts. Its errors propagate."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reload_on_change, service, os.environ, Path.cwd())
        nursery.start_soon(service.active.watch)
        yield
        nursery.cancel_scope.cancel()


async def reload_on_change(service: Service, environ: Mapping[str, str], cwd: Path) -> None:
    """Keep agents and tools in step with the files. Runs until cancelled."""
    seen = service.files
    while True:
        await trio.sleep(LOOK_EVERY_S)
        found = await look(service.loaded, service.required)
        if found == seen:
            continue
        while (again := await _after(LOOK_EVERY_S / 4, service)) != found:
            found = again
        # Nothing is loaded from an invalid configuration: the next attempt is after its next change.
        seen = service.files if await reload(service, environ, cwd) else found


async def reload(service: Service, environ: Mapping[str, str], cwd: Path) -> bool:
    """Load everything again, and swap it in if anything differs. Returns False if the configuration is invalid."""
    loaded = service.loaded
    if loaded.path is not None:
        try:
            fresh = reload_config(loaded, environ=environ, cwd=cwd)
        except ConfigError as error:
            log.error("the configuration cannot be used; the last good one stays in force", reason=str(error))
            service.trouble = f"the configuration cannot be used, the last good one stays in force: {error}"
            return False
        service.trouble = None
        for section in needs_restart(loaded.config, fresh.config):
            log.warning("a change of the configuration needs a restart", section=section)
        loaded = fresh
    before = lists(service.registry)
    await service.means.models.renew(loaded.config)  # first: a document without a model says so in the list of tools
    service.means.servers.use(loaded.config)
    await service.load_again(loaded)
    agents, tools = (was != now for was, now in zip(before, lists(service.registry), strict=True))
    if agents or tools:
        log.info("what can be called has changed", agents=agents, tools=tools, failures=len(service.failures))
        service.changes.tell(Change(agents=agents, tools=tools))
    return True


def needs_restart(before: Config, after: Config) -> list[str]:
    """The sections that differ and are read at the start only."""
    return [
        name for name in type(before).model_fields
        if name not in _LIVE and getattr(before, name) != getattr(after, name)
    ]  # fmt: skip


def lists(registry: Registry) -> tuple[object, object]:
    """The agents and the tools as clients see them, for comparison. Of a document that is an agent, the prompt too."""
    documents = [agent for agent in registry.every_agent() if isinstance(agent, Sourced)]
    return (registry.agent_infos(), documents), registry.tool_infos()


async def _after(seconds: float, service: Service) -> Files:
    await trio.sleep(seconds)
    return await look(service.loaded, service.required)

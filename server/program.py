"""The engine embedded in a program: `engine.serve`, and `engine.serve_async` inside a running trio loop.

Both serve REST and MCP as `engine serve` does, with agents and tools that the program defines in addition to those in
the configuration.
"""

import os
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from agents.code.authoring import Agent, Tool
from agents.service import CANNOT_OPEN, Service, open_service
from engine.config import LoadedConfig, check_tables, load_config
from server import logs
from server.app import Opener, open_server, run_server, serve_app

Configuration = str | Path | Mapping[str, Any] | LoadedConfig | None


@dataclass(frozen=True, slots=True)
class Serving:
    """A server at `url` (`http://HOST:PORT`, with the actual port), and its service."""

    url: str
    service: Service


def loaded_config(config: Configuration) -> LoadedConfig:
    """The configuration of a program. Raises ConfigError.

    A path names a TOML file; a mapping has the contents of such a file (`{"server": {"bind": ...}, "agents": {...}}`);
    None searches for a file as the `engine` command does. Relative paths in a mapping start at its `root`, by default
    the working directory.
    """
    if isinstance(config, LoadedConfig):
        return config
    if isinstance(config, Mapping):
        checked, warnings = check_tables(
            dict(config), environ=os.environ, cwd=Path.cwd(), shown_as="the program's configuration"
        )
        return LoadedConfig(checked, None, checked.root, warnings)
    return load_config(None if config is None else Path(config), environ=os.environ, cwd=Path.cwd())


def serve(
    config: Configuration = None,
    *,
    agents: Iterable[Agent | type[Agent]] = (),
    tools: Iterable[Tool | type[Tool]] = (),
    bind: str | None = None,
    strict: bool = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C, then drain and return. Meant as the last line of a program.

    `config` is a path, a mapping or None, see `loaded_config`. `agents` and `tools` are objects, or classes to
    instantiate, each with a `name`. `bind` is HOST:PORT and overrides `[server] bind`; with `strict` the server does
    not start if a script fails to load. Prints the loaded agents and tools and the address, and sets up the log on
    standard error, as the command does.

    If it cannot start, it prints one line on standard error and raises SystemExit(2); a later fault raises
    SystemExit(1). Raises RuntimeError inside a running trio loop: use `serve_async` there.
    """
    if trio.lowlevel.in_trio_run():
        raise RuntimeError("engine.serve starts a loop of its own; inside a running one use engine.serve_async")
    try:
        code: int = trio.run(
            partial(run_server, loaded_config(config), bind=bind, strict=strict, opener=_opener(agents, tools))
        )
    except CANNOT_OPEN as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    if code:
        raise SystemExit(code)


@asynccontextmanager
async def serve_async(
    config: Configuration = None,
    *,
    agents: Iterable[Agent | type[Agent]] = (),
    tools: Iterable[Tool | type[Tool]] = (),
    bind: str | None = None,
) -> AsyncIterator[Serving]:
    """Serve for as long as the block lasts: `async with engine.serve_async(...) as serving: ...`.

    When the block ends, requests in flight get `server.graceful_timeout_s`; when it is cancelled or raises, everything
    ends at once. Prints nothing and handles no signals; its log goes to the standard library's `logging`, unless the
    program has configured structlog itself.

    Raises ConfigError, StoreError, SandboxUnavailable, and `server.app.Refused` for an address that cannot be bound.
    """
    loaded = loaded_config(config)
    settings = loaded.config.server
    timeout = settings.graceful_timeout_s
    stop = trio.Event()
    with logs.handed_on():
        async with open_server(loaded, bind, _opener(agents, tools)) as ready:
            async with trio.open_nursery() as nursery:
                serve = partial(serve_app, graceful_timeout_s=timeout, settings=settings)
                await nursery.start(serve, ready.guard, ready.listener, stop)
                yield Serving(ready.url, ready.service)
                stop.set()
            with trio.move_on_after(timeout):
                await ready.service.engine.drain()


def _opener(agents: Iterable[Any], tools: Iterable[Any]) -> Opener:
    return partial(open_service, agents=tuple(agents), tools=tuple(tools))

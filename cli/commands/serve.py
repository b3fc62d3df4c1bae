"""`engine serve`."""

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from cli.options import ConfigPath, load
from cli.output import UNUSABLE, Exit
from cli.streams import any_closed
from engine.config import parse_bind
from server.app import Refused, run_server
from server.stdio import run_stdio, take_standard_streams


async def serve(
    what: Annotated[
        Literal["mcp"] | None, Parameter(help="REST and MCP are always served; `mcp` changes nothing.")
    ] = None,
    /,
    *,
    bind: Annotated[str | None, Parameter(help="Listen here (HOST:PORT) instead of [server] bind.")] = None,
    strict: Annotated[bool, Parameter(help="Refuse to start when a script fails to load.", negative=())] = False,
    demo: Annotated[
        bool, Parameter(help="Fill an empty store from the filesystem connectors first.", negative=())
    ] = False,
    stdio: Annotated[
        bool, Parameter(help="Speak MCP on standard input and output; listen only if --bind is given.", negative=())
    ] = False,
    agent: Annotated[str | None, Parameter(help="With --stdio: only this agent's prompt and tools.")] = None,
    directory: Annotated[Path | None, Parameter(help="Change to this directory first.", negative=())] = None,
    config: ConfigPath = None,
) -> int:
    """Serve agents, tools and knowledge over REST and MCP until SIGTERM or Ctrl-C."""
    if agent is not None and not stdio:
        raise Exit(UNUSABLE, "--agent needs --stdio; over HTTP a client asks for /mcp?agent=NAME")
    if bind is not None:
        try:
            parse_bind(bind)
        except ValueError as error:
            raise Exit(UNUSABLE, f"--bind: {error}") from None
    if directory is not None:
        os.chdir(directory)
    streams = None
    if stdio:
        # Before any other output.
        if any_closed():
            raise Exit(UNUSABLE, "--stdio needs standard input, output and error, and one of them is closed")
        try:
            streams = take_standard_streams()
        except Refused as error:
            raise Exit(UNUSABLE, str(error)) from None
    loaded = load(config, warnings=False)  # the banner prints them
    if demo:
        from cli.commands.sync import fill_if_empty  # another command: imported for --demo alone

        await fill_if_empty(loaded)
    code: int
    if streams is not None:
        code = await run_stdio(loaded, streams, agent=agent, bind=bind, strict=strict)
    else:
        code = await run_server(loaded, bind=bind, strict=strict, demo=demo)
    return code

"""`engine serve`."""

from typing import Annotated, Literal

from cyclopts import Parameter

from cli.options import ConfigPath, load
from cli.output import UNUSABLE, Exit


async def serve(
    what: Annotated[Literal["mcp"] | None, Parameter(help="REST and MCP are always served; `mcp` is allowed.")] = None,
    /,
    *,
    bind: Annotated[str | None, Parameter(help="Listen here (HOST:PORT) instead of [server] bind.")] = None,
    strict: Annotated[bool, Parameter(help="Refuse to start when a script fails to load.", negative=())] = False,
    demo: Annotated[
        bool, Parameter(help="Fill an empty store from the filesystem connectors first.", negative=())
    ] = False,
    config: ConfigPath = None,
) -> int:
    """Serve agents, tools and knowledge over REST and MCP until SIGTERM or Ctrl-C."""
    if bind is not None:
        from engine.config import parse_bind

        try:
            parse_bind(bind)
        except ValueError as error:
            raise Exit(UNUSABLE, f"--bind: {error}") from None
    loaded = load(config, warnings=False)  # the banner tells them
    if demo:
        from cli.sync import fill_if_empty

        await fill_if_empty(loaded)
    from server.app import run_server

    code: int = await run_server(loaded, bind=bind, strict=strict, demo=demo)
    return code

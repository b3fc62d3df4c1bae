"""The peers of the engine's MCP, as programs: `python mcp_peers.py quart-trio|fastmcp`.

Each does the job of `mcp_rate.py` in Python, in its own process, and prints the address that it will listen on. FastMCP
is installed in a separate environment, where our packages cannot be imported; so this file needs only the standard
library and the peer's own packages.
"""

import gc
import socket
import sys
from typing import Any

ANNOUNCED = "server listening on http://"
PATH = "/budget"  # the bare route

MINUTES = 30 * 24 * 60


def incident(service: str) -> str:
    """The prompt: some 1,100 characters, as INCIDENT in mcp_rate.py makes them."""
    lines = [f"You lead the response to an incident of {service}.", ""]
    lines += [
        f"{number}. Say what you see of {service}, what you take it for, "
        f"and what would prove you wrong (step {number})."
        for number in range(1, 13)
    ]
    return "\n".join(lines)


def budget(service: str, availability: float) -> dict[str, Any]:
    """The tool: the rest of a month's error budget, as BUDGET in mcp_rate.py computes it."""
    allowed = (100 - availability) / 100 * MINUTES
    return {
        "service": service,
        "availability": availability,
        "minutes": round(allowed, 2),
        "weeks": [{"week": week, "minutes": round(allowed / 4, 2)} for week in range(1, 5)],
        "advice": f"{service} may be down for {allowed:.1f} minutes in 30 days",
    }


def free_port() -> int:
    """A port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve_quart_trio(port: int) -> None:
    """A bare Quart-Trio route on Hypercorn with its defaults; garbage collection as in the engine's server."""
    import trio
    from hypercorn.config import Config
    from hypercorn.trio import serve
    from quart import request
    from quart_trio import QuartTrio

    app = QuartTrio("bare")

    @app.post(PATH)
    async def bare() -> Any:
        asked = await request.get_json()
        return budget(asked["service"], asked["availability"])

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    gc.collect()
    gc.freeze()
    trio.run(serve, app, config)


def serve_fastmcp(port: int) -> None:
    """FastMCP on uvicorn with its defaults, but without its log of every request, which would only slow it down."""
    from fastmcp import FastMCP

    server: Any = FastMCP("peer")
    server.tool(budget)
    server.prompt(incident)
    server.run(transport="http", host="127.0.0.1", port=port, show_banner=False, log_level="warning")


def main() -> None:
    port = free_port()
    print(f"{ANNOUNCED}127.0.0.1:{port}", flush=True)
    {"quart-trio": serve_quart_trio, "fastmcp": serve_fastmcp}[sys.argv[1]](port)


if __name__ == "__main__":
    main()

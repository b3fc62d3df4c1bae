"""The start-up banner: what was loaded, what failed to load, and the server's address."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from engine.tenant import DEFAULT_TENANT
from server.http.target import MCP_PATH

if TYPE_CHECKING:
    from agents.loading.loader import LoadFailure
    from agents.service import Service

_WIDTH = 100


@cache
def engine_version() -> str:
    """The version of this package, as installed."""
    try:
        return version("engine")
    except PackageNotFoundError:
        return "0"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..."


def _where(failure: "LoadFailure", root: Path) -> str:
    if failure.path is None:
        return "in the configuration"
    path = failure.path.relative_to(root) if failure.path.is_relative_to(root) else failure.path
    return f"{path}:{failure.line}" if failure.line else str(path)


def loaded_lines(service: "Service") -> list[str]:
    """What was loaded, what failed to load and why, and the state of each layer of the sandbox."""
    agents = service.list_agents(DEFAULT_TENANT)
    tools = service.list_tools(DEFAULT_TENANT)
    scripted = [tool for tool in tools if not tool.builtin]
    builtin = ", ".join(tool.name for tool in tools if tool.builtin)
    lines = [f"Loaded {len(agents)} agent(s):"]
    lines += [f"  POST /agents/{a.name}/prompt [{a.source}] — {_short(a.description)}" for a in agents]
    lines.append(f"Loaded {len(scripted)} tool(s), besides {builtin}" + (":" if scripted else ""))
    lines += [f"  POST /tools/{tool.name} — {_short(tool.description)}" for tool in scripted]
    if service.failures:
        lines.append(f"Failed to load {len(service.failures)} script(s):")
        for failure in service.failures:
            where = _where(failure, service.loaded.root)
            lines.append(f"  {failure.kind} {failure.name} ({where}): {failure.outcome}: {_short(failure.message)}")
    lines += [f"Warning: {warning}" for warning in service.warnings]
    layers = service.engine.layers
    if layers:
        lines.append("Sandbox: " + ", ".join(f"{layer.name} {layer.state}" for layer in layers))
        lines += [f"  {layer.name}: {layer.detail}" for layer in layers if layer.state != "active" and layer.detail]
    return lines


def listening(service: "Service", url: str, *, demo: bool = False) -> list[str]:
    """The server's address; in the demo also a command to try."""
    lines = [f"MCP server listening on {url}", f"  MCP endpoint: {url}{MCP_PATH}"]
    agents = service.list_agents(DEFAULT_TENANT)
    if demo and agents:
        lines += [
            "Try it:",
            f"  curl -s {url}/agents/{agents[0].name}/prompt -H 'Content-Type: application/json' -d '{{}}'",
        ]
    return lines

"""`engine mcp-config`: the configuration of an MCP client for this engine, ready to paste or to run.

Everything about a client is in `CLIENTS`. docs/clients.md lists what clients support, with sources.
"""

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

from cyclopts import Parameter

from cli.options import ConfigPath, load
from cli.output import UNUSABLE, Exit, note
from engine.config import LoadedConfig, parse_bind

ClientName = Literal["claude-code", "cursor", "vscode", "codex", "inspector"]

# The default name of the environment variable with the key.
KEY_VARIABLE = "ENGINE_KEY"

_MCP_PATH = "/mcp"
_AGENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Wildcard addresses to bind, and the addresses to connect to instead.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@dataclass(frozen=True, slots=True)
class Remote:
    """An engine that listens: its MCP address, and the environment variable with the key if it needs one."""

    name: str
    url: str
    key_variable: str | None = None


@dataclass(frozen=True, slots=True)
class Local:
    """An engine that the client starts itself and talks to over standard input and output."""

    name: str
    command: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Client:
    """The form of one client's configuration, and in words where it goes."""

    place: str
    remote: Callable[[Remote], str]
    local: Callable[[Local], str]
    # Where the client takes the key from, with a placeholder for the name of the variable.
    key: str


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _shell(*words: str) -> str:
    return " ".join(map(shlex.quote, words))


def _header_option(server: Remote) -> str:
    """The header as a shell word; the shell expands the key. The name of the variable needs no quoting."""
    return "" if server.key_variable is None else f' --header "Authorization: Bearer ${server.key_variable}"'


def _claude_remote(server: Remote) -> str:
    return _shell("claude", "mcp", "add", "--transport", "http", server.name, server.url) + _header_option(server)


def _claude_local(server: Local) -> str:
    add = ("claude", "mcp", "add", "--transport", "stdio", server.name, "--")
    return _shell(*add, server.command, *server.arguments)


def _cursor_remote(server: Remote) -> str:
    entry: dict[str, Any] = {"url": server.url}
    if server.key_variable is not None:
        entry["headers"] = {"Authorization": f"Bearer ${{env:{server.key_variable}}}"}
    return _json({"mcpServers": {server.name: entry}})


def _cursor_local(server: Local) -> str:
    return _json({"mcpServers": {server.name: _process(server)}})


def _vscode_remote(server: Remote) -> str:
    entry: dict[str, Any] = {"type": "http", "url": server.url}
    if server.key_variable is None:
        return _json({"servers": {server.name: entry}})
    # VS Code does not expand `${env:...}` in headers (microsoft/vscode issue 336232); it prompts once for an input, and
    # stores it.
    asked = f"{server.name}-key"
    entry["headers"] = {"Authorization": f"Bearer ${{input:{asked}}}"}
    description = f"Key of {server.name} (what {server.key_variable} holds elsewhere)"
    question = {"type": "promptString", "id": asked, "description": description, "password": True}
    return _json({"inputs": [question], "servers": {server.name: entry}})


def _vscode_local(server: Local) -> str:
    return _json({"servers": {server.name: _process(server)}})


def _process(server: Local) -> dict[str, Any]:
    return {"type": "stdio", "command": server.command, "args": list(server.arguments)}


def _toml(table: str, values: Mapping[str, str | list[str]]) -> str:
    # JSON strings and lists of strings are valid TOML, except for escaped surrogates.
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return "\n".join([f"[{table}]", *lines])


def _codex_remote(server: Remote) -> str:
    key = {} if server.key_variable is None else {"bearer_token_env_var": server.key_variable}
    return _toml(f"mcp_servers.{server.name}", {"url": server.url, **key})


def _codex_local(server: Local) -> str:
    return _toml(f"mcp_servers.{server.name}", {"command": server.command, "args": list(server.arguments)})


# The options are those of version 2; older versions have different ones.
_INSPECTOR = ("npx", "@modelcontextprotocol/inspector@2", "--protocol-era", "auto")


def _inspector_remote(server: Remote) -> str:
    return _shell(*_INSPECTOR, "--transport", "http", "--server-url", server.url) + _header_option(server)


def _inspector_local(server: Local) -> str:
    return _shell(*_INSPECTOR, "--", server.command, *server.arguments)


CLIENTS: Mapping[ClientName, Client] = {
    "claude-code": Client(
        "run this; Claude Code keeps it for this project (--scope user: for all of yours)",
        _claude_remote,
        _claude_local,
        "the shell puts the key in {} into the command, and Claude Code keeps it in its configuration",
    ),
    "cursor": Client(
        "put this into .cursor/mcp.json of the project, or into ~/.cursor/mcp.json",
        _cursor_remote,
        _cursor_local,
        "Cursor takes the key from the environment variable {}",
    ),
    "vscode": Client(
        "put this into .vscode/mcp.json of the project",
        _vscode_remote,
        _vscode_local,
        "VS Code asks for the key (that of {}) when it starts the server, and keeps it",
    ),
    "codex": Client(
        "put this into ~/.codex/config.toml",
        _codex_remote,
        _codex_local,
        "Codex takes the key from the environment variable {}",
    ),
    "inspector": Client(
        "run this; it needs Node 22.19 or newer",
        _inspector_remote,
        _inspector_local,
        "the shell puts the key in {} into the command",
    ),
}


def mcp_address(url: str, agent: str | None) -> str:
    """The address of MCP on the server at this URL. Raises ValueError."""
    try:
        parts = urlsplit(url)
        # Reading the property validates the port.
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.fragment
    except ValueError:
        sound = False
    if not sound:
        raise ValueError(f"{url!r} is not an address like http://127.0.0.1:7331")
    path = parts.path if parts.path.strip("/") else _MCP_PATH
    asked = f"agent={quote(agent, safe='')}" if agent is not None else ""
    query = "&".join(filter(None, (parts.query, asked)))
    return parts._replace(path=path, query=query).geturl()


def address_of(loaded: LoadedConfig) -> str:
    """The address of a server with this configuration, as seen from this machine. Raises ValueError."""
    host, port = parse_bind(loaded.config.server.bind)
    if port == 0:
        raise ValueError("server.bind takes any free port; give the server's URL with --url")
    host = _EVERYWHERE.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def this_program() -> tuple[str, ...]:
    """The words that start this program from anywhere."""
    script = Path(sys.executable).with_name("engine")
    return (str(script),) if script.exists() else (sys.executable, "-m", "cli.main")


def mcp_config(
    client: ClientName,
    /,
    *,
    url: Annotated[str | None, Parameter(help="The server's URL, instead of that of [server] bind.")] = None,
    agent: Annotated[str | None, Parameter(help="Show the client only this agent's prompt and tools.")] = None,
    stdio: Annotated[bool, Parameter(help="Have the client start the engine itself.", negative=())] = False,
    key_env: Annotated[
        str | None, Parameter(help="The environment variable with the key. Default with [tenants]: ENGINE_KEY.")
    ] = None,
    config: ConfigPath = None,
) -> None:
    """Print the configuration of an MCP client for this engine."""
    if agent is not None and not _AGENT.fullmatch(agent):
        raise Exit(UNUSABLE, f"--agent: {agent!r} is not a name of an agent (1 to 64 of A-Z a-z 0-9 _ . -)")
    if key_env is not None and not _VARIABLE.fullmatch(key_env):
        raise Exit(UNUSABLE, f"--key-env: {key_env!r} is not a name of an environment variable")
    if stdio and (url is not None or key_env is not None):
        raise Exit(UNUSABLE, "--stdio has the client start the engine: there is no address and no key")
    loaded = load(config)
    # Two agents of one engine are two servers for a client. Not every client accepts a dot in a server's name.
    name = "engine" if agent is None else f"engine-{agent.replace('.', '-')}"
    told = CLIENTS[client]
    if stdio:
        snippet = told.local(_local(name, agent, loaded))
        note(f"{told.place}:")
    else:
        tenants = loaded.config.tenants
        key = key_env or (KEY_VARIABLE if tenants.enabled and tenants.oauth is None else None)
        try:
            snippet = told.remote(Remote(name, mcp_address(url or address_of(loaded), agent), key))
        except ValueError as error:
            raise Exit(UNUSABLE, str(error) if url is None else f"--url: {error}") from None
        note(f"{told.place}:" if key is None else f"{told.place}; {told.key.format(key)}:")
    print(snippet)


def _local(name: str, agent: str | None, loaded: LoadedConfig) -> Local:
    program, *arguments = this_program()
    arguments += ["serve", "--stdio"]
    if agent is not None:
        arguments += ["--agent", agent]
    # A client may start it in any directory, and the paths of a configuration are relative to that directory.
    arguments += ["--directory", str(Path.cwd())]
    if loaded.path is not None:
        arguments += ["--config", str(loaded.path.absolute())]
    return Local(name, program, tuple(arguments))

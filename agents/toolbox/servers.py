"""The tools of MCP servers that documents declare, for one run: connected when it starts, closed when it ends.

A document names an address; only the servers of `[mcp_servers]` are connected to. What goes wrong with a server is told
of its tools, and never ends the run.
"""

import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial

import trio

from agents.chatmd.program import Declared, Unavailable
from agents.toolbox import McpTools, Names
from engine.config import Config, McpServerEntry, McpServers
from engine.config.language import SECRET
from engine.config.mcp_servers import of_tenant
from engine.egress.rules import parse_url
from engine.egress.secrets import SecretSource
from engine.errors import Code, Problem, ungrouped

# More servers than any document needs; each takes a connection for every run.
MAX_SERVERS = 8
_UNKNOWN = "its address is not the url of an [mcp_servers.NAME] that the tenant has"


class Servers:
    """The configured servers. Nothing is connected before a run."""

    def __init__(self, config: Config, secrets: SecretSource, tls: ssl.SSLContext | None = None) -> None:
        self._secrets = secrets
        self._tls = tls
        self._making = trio.Lock()
        self.use(config)

    def use(self, config: Config) -> None:
        """Switch to another configuration. Runs under way end as they began."""
        self._entries: McpServers = config.mcp_servers

    def named(self, url: str, tenant: str) -> tuple[str, McpServerEntry] | None:
        """The server of the tenant with this address, by its name."""
        try:
            wanted = parse_url(url).url
        except ValueError:
            return None
        mine = of_tenant(self._entries, tenant)
        return next(((name, entry) for name, entry in mine.items() if entry.url == wanted), None)

    def unknown(self, declared: Iterable[Declared], tenant: str) -> list[Unavailable]:
        """Of these declarations of the kind `mcp` those whose server the tenant does not have."""
        return [
            missing
            for each in declared
            if self.named(each.url, tenant) is None
            for missing in _missing(each.url, each.include or None, _UNKNOWN)
        ]

    async def sent(self, name: str, entry: McpServerEntry, tenant: str) -> dict[str, str]:
        """The headers that go along, with the tenant's secrets. Raises Problem `unavailable`."""
        found = {}
        for header, value in entry.sent().items():
            match = SECRET.fullmatch(value)
            plain = value if match is None else await self._secret(name, entry, match[1], tenant)
            found[header] = f"Bearer {plain}" if header == "authorization" and entry.key else plain
        return found

    async def _secret(self, name: str, entry: McpServerEntry, secret_name: str, tenant: str) -> str:
        vault = await self._secrets.vault(tenant)
        secret = vault.secrets.get(secret_name)
        where = f"mcp_servers.{name}"
        if secret is None:
            why = vault.trouble or f"{where} names the secret {secret_name!r}, which the tenant does not have"
            raise Problem(Code.UNAVAILABLE, why)
        if (refused := secret.refusal(parse_url(entry.url))) is not None:
            raise Problem(Code.UNAVAILABLE, f"{refused} ({where})")
        value = secret.value.strip()
        if not value or not all(32 <= ord(character) <= 126 for character in value):
            raise Problem(Code.UNAVAILABLE, f"the secret {secret_name!r} cannot be sent in a header ({where})")
        return value

    async def tls(self) -> ssl.SSLContext:
        """The trusted certificates, read once: that takes some 20 ms."""
        import httpcore2  # with the first connection: most engines make none

        async with self._making:
            if self._tls is None:
                self._tls = await trio.to_thread.run_sync(httpcore2.default_ssl_context)
            return self._tls


def mcp_tools(
    declared: Iterable[Declared], servers: Servers, tenant: str
) -> AbstractAsyncContextManager[McpTools]:  # fmt: skip
    """The tools of these declarations of the kind `mcp`, until the end of the block. All servers connect at once."""
    wanted = _wanted(declared)
    return _connected(wanted, servers, tenant) if wanted else nullcontext(McpTools([], []))


@asynccontextmanager
async def _connected(wanted: Mapping[str, Names], servers: Servers, tenant: str) -> AsyncIterator[McpTools]:
    found: dict[str, McpTools] = {}
    with ungrouped():
        async with trio.open_nursery() as nursery:
            over = trio.Event()

            async def connect(url: str, names: Names) -> None:
                found[url] = await nursery.start(partial(_serve, url, names, servers, tenant, over))

            async with trio.open_nursery() as connecting:
                for url, names in list(wanted.items())[:MAX_SERVERS]:
                    connecting.start_soon(connect, url, names)
            late = [
                Unavailable(url, f"a document uses {MAX_SERVERS} MCP servers at most")
                for url in [*wanted][MAX_SERVERS:]
            ]
            mine = [found[url] for url in wanted if url in found]
            yield McpTools(
                [tool for each in mine for tool in each.offered],
                [missing for each in mine for missing in each.unavailable] + late,
            )
            over.set()


def _wanted(declared: Iterable[Declared]) -> dict[str, Names]:
    """What is wanted of each address."""
    wanted: dict[str, Names] = {}
    for each in declared:
        before = wanted.get(each.url, ())
        wanted[each.url] = None if before is None or not each.include else (*before, *each.include)
    return wanted


async def _serve(
    url: str, names: Names, servers: Servers, tenant: str, over: trio.Event,
    task_status: trio.TaskStatus[McpTools],
) -> None:  # fmt: skip
    """Hold the connection to one server, in a task of its own: an error inside of the client ends only that."""
    from agents.toolbox.connection import hold  # with the client of MCP: half a second

    known = servers.named(url, tenant)
    if known is None:
        task_status.started(McpTools([], _missing(url, names, _UNKNOWN)))
        return
    name, entry = known
    try:
        sent, tls = await servers.sent(name, entry, tenant), await servers.tls()
    except Problem as problem:
        task_status.started(McpTools([], _missing(url, names, f"MCP server {name!r}: {problem.message}")))
        return
    failed = await hold(name, entry, sent, tls, names, over, task_status)
    if failed is not None:  # before it had told its tools
        task_status.started(McpTools([], _missing(url, names, f"MCP server {name!r}: {failed}")))


def _missing(url: str, names: Names, reason: str) -> list[Unavailable]:
    return [Unavailable(name, reason) for name in names or (url,)]

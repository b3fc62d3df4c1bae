"""One MCP server, connected for one run by the official client, on whichever revision both speak."""

import ssl
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from math import inf
from typing import Any

import mcp_types as t
import structlog
import trio
from mcp.client import Client
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

from agents.agent import Call
from agents.chatmd.program import Unavailable
from agents.toolbox import McpTools, Names
from agents.toolbox.answers import Listed, chosen, text_of
from agents.toolbox.transport import ANSWER_BYTES, BoundedTransport, client, connecting
from engine.config import McpServerEntry
from engine.egress.redaction import Redactor
from engine.errors import Code, Problem, leaf

log = structlog.get_logger("agents.toolbox")

MAX_PAGES = 16
_ANSWER: TypeAdapter[t.CallToolResult | t.InputRequiredResult] = TypeAdapter(t.CallToolResult | t.InputRequiredResult)
_WHO = t.Implementation(name="engine", version="1")


@dataclass(eq=False, slots=True)
class _Line:
    """The connection, as its tools see it. Invariant: `session` is None once the connection has ended."""

    name: str
    entry: McpServerEntry
    session: ClientSession | None = None
    calls: set[trio.CancelScope] = field(default_factory=set)

    def end(self) -> None:
        self.session = None
        for scope in self.calls:
            scope.cancel()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool. Raises Problem."""
        if self.session is None:
            raise self._problem(Code.UNAVAILABLE, "its connection was lost")
        params = t.CallToolRequestParams(name=name, arguments=dict(arguments))
        answer = None
        with trio.CancelScope() as scope:
            self.calls.add(scope)
            try:
                # Not `call_tool`: it holds answers against the server's schema, in a time that has no bound.
                answer = await self.session.send_request(t.CallToolRequest(params=params), _ANSWER)
            except MCPError as error:
                raise self._problem(Code.TOOL_ERROR, error.message) from None
            except Exception as error:  # of the client, for answers that it does not expect
                log.warning(
                    "an answer of an MCP server is not understood", server=self.name, error=type(error).__name__
                )
                raise self._problem(Code.TOOL_ERROR, "its answer is not one of MCP") from None
            finally:
                self.calls.discard(scope)
        if answer is None:
            raise self._problem(Code.UNAVAILABLE, "its connection was lost")
        if isinstance(answer, t.InputRequiredResult):
            raise self._problem(Code.TOOL_ERROR, "it asks the user a question, which cannot be answered here")
        text = text_of(answer)
        if answer.is_error:
            raise Problem(Code.TOOL_ERROR, text or f"the tool {name!r} failed")
        return text

    def _problem(self, code: Code, reason: str) -> Problem:
        return Problem(code, f"MCP server {self.name!r}: {reason}")


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of a server, offered to a model."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(repr=False)
    read_only: bool
    destructive: bool | None
    _line: _Line = field(repr=False)

    @classmethod
    def from_listed(cls, tool: Listed, line: _Line) -> "McpTool":
        return cls(*tool, line)

    async def call(self, arguments: Mapping[str, Any], call: Call) -> str:
        """Call it. The server checks the arguments. Raises Problem."""
        return await self._line.call(self.name, arguments)


async def hold(
    name: str, entry: McpServerEntry, sent: Mapping[str, str], tls: ssl.SSLContext, names: Names, over: trio.Event,
    task_status: trio.TaskStatus[McpTools],
) -> str | None:  # fmt: skip
    """Connect, tell the tools, and keep the connection until `over`. Returns why if it ends before it has told them."""
    transport = BoundedTransport(connecting(tls), entry.timeout_s, Redactor(_secret(sent.values())))
    line = _Line(name, entry)
    told = False
    with trio.CancelScope(deadline=trio.current_time() + entry.timeout_s) as scope:
        try:
            async with AsyncExitStack() as stack:
                http = await stack.enter_async_context(client(sent, transport))
                wire = streamable_http_client(entry.url, http_client=http, max_sse_event_size=ANSWER_BYTES)
                mcp = await stack.enter_async_context(Client(wire, cache=None, client_info=_WHO))
                tools = await _listed(mcp.session, line, names)
                line.session, scope.deadline, told = mcp.session, inf, True
                task_status.started(tools)
                await over.wait()
        except Exception as error:  # of the client, and of nurseries around it
            reason = _reason(leaf(error))
            log.warning("an MCP server cannot be used", server=name, reason=reason)
            return None if told else reason
        finally:
            line.end()
    if scope.cancelled_caught:
        return f"it gave no list of its tools within {entry.timeout_s:g} s (timeout_s)"
    return None


def _secret(values: Iterable[str]) -> list[str]:
    """What must not come back: the values of headers, and what follows a scheme in them."""
    return [part for value in values for part in dict.fromkeys((value, value.partition(" ")[2])) if part]


def _reason(error: BaseException) -> str:
    if isinstance(error, MCPError):
        return error.message[:1_000]
    return "it does not speak MCP as this client does"


async def _listed(session: ClientSession, line: _Line, names: Names) -> McpTools:
    found: list[t.Tool] = []
    cursor: str | None = None
    more: list[Unavailable] = []
    for _ in range(MAX_PAGES):
        page = await session.list_tools(params=t.PaginatedRequestParams(cursor=cursor))
        found += page.tools
        cursor = page.next_cursor
        if cursor is None or (names is not None and set(names) <= {tool.name for tool in found}):
            break
    else:
        more = [Unavailable(line.name, f"MCP server {line.name!r}: its list of tools has more than {MAX_PAGES} pages")]
    tools, missing = chosen(found, names, line.name)
    return McpTools([McpTool.from_listed(tool, line) for tool in tools], missing + more)

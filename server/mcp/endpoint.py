"""MCP over Streamable HTTP at `/mcp`: the ASGI application, for 2026-07-28 and the handshake revisions before it."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import trio
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import check_accept_headers
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import HEADER_MISMATCH, LOG_LEVEL_META_KEY, PROTOCOL_VERSION_META_KEY, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request as StarletteRequest

from agents.calls import Calls
from engine.errors import Problem
from engine.tenant import DEFAULT_TENANT, Tenant
from server.http.asgi import Exchange, Receive, Scope, Send, exchange_of, send_answer
from server.http.body import check_content_type
from server.http.large_values import filling
from server.http.routes import not_taken, options
from server.http.target import MCP_PATH
from server.mcp.handlers import Handlers
from server.mcp.listen import Listeners
from server.mcp.message import id_of, read_message
from server.mcp.slow_answers import SlowAnswers
from server.problems import INVALID_REQUEST, Answer, problem_answer, rpc_answer

_VERSION = b"mcp-protocol-version"
_HANDSHAKE = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)
_KNOWN = _HANDSHAKE | _MODERN

# Keys of a request's `_meta` that ask for messages besides the answer.
_STREAMED = frozenset({"progressToken", LOG_LEVEL_META_KEY})

# The tenant of the current request, and the agent that it is limited to. The SDK asks for a tool's schema before it has
# made a context.
_asking: ContextVar[tuple[Tenant, str | None]] = ContextVar("_asking", default=(DEFAULT_TENANT, None))


class Mcp:
    """The ASGI application of `/mcp`. `run` must be open while it is called."""

    def __init__(
        self,
        calls: Calls,
        *,
        max_body_bytes: int,
        handlers: Callable[[Calls, Listeners], Handlers] = Handlers,
    ) -> None:
        self._calls = calls
        self.listeners = Listeners()
        handling = handlers(calls, self.listeners)
        self.runs = handling.runs
        self.server: Server[Any] = handling.server(self._input_schema)
        # The guard checks Host and Origin.
        streaming, plain = (
            StreamableHTTPSessionManager(
                self.server, stateless=True, json_response=json, max_request_body_size=max_body_bytes
            )
            for json in (False, True)
        )
        self._streaming, self._plain = streaming, plain
        self._slow = SlowAnswers()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Open what requests need. An error in any of its tasks cancels the block and propagates."""
        async with self._streaming.run(), self._plain.run(), self.runs.opened(), trio.open_nursery() as nursery:
            with self._calls.changes.heard_by(self.listeners.hear):
                nursery.start_soon(self.listeners.watch)
                nursery.start_soon(self._slow.watch)
                yield
            nursery.cancel_scope.cancel()

    def _input_schema(self, name: str) -> Mapping[str, Any] | None:
        tenant, agent = _asking.get()
        info = self._calls.tool_info(tenant, name)
        if info is None or (agent not in (None, name) and info not in self._calls.list_tools(tenant, agent)):
            return None
        return info.parameters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        if b"accept" not in exchange.headers:  # RFC 9110 section 12.5.1: without Accept, any type is acceptable
            scope["headers"] = [*scope["headers"], (b"accept", b"*/*")]
        try:
            answer = await self._judge(scope, exchange)
        except Problem as problem:
            answer = problem_answer(problem)
        if isinstance(answer, Answer):
            await send_answer(answer, send)
            return
        if scope["method"] == "GET":  # a stream that never carries an event
            exchange.when_draining(exchange.end)
        asking = _asking.set((exchange.tenant, exchange.params.get("agent")))
        send = filling(send, exchange)
        try:
            if _only_answered(exchange, answer):
                with self._slow.watched(send) as say:
                    await self._plain.handle_request(scope, receive, say)
            else:
                await self._streaming.handle_request(scope, receive, send)
        finally:
            _asking.reset(asking)

    async def _judge(self, scope: Scope, exchange: Exchange) -> Answer | dict[str, Any]:
        """The message of a request, empty for GET; or the error found before JSON-RPC begins.

        The error texts are ours: the SDK's are bare or expose Python's.
        """
        method = scope["method"]
        agent = exchange.params.get("agent")
        if agent is not None:
            self._calls.list_tools(exchange.tenant, agent)  # raises Problem for an unknown agent
        version = exchange.headers.get(_VERSION)
        # There are no sessions to delete; the silent stream of GET ended with the handshake revisions.
        methods = ("GET", "POST") if version is None or version in _HANDSHAKE else ("POST",)
        if method == "OPTIONS":
            return options((*methods, "OPTIONS"))
        if method not in methods:
            return not_taken(MCP_PATH, (*methods, "OPTIONS"))
        if method == "GET":
            return {}
        check_content_type(exchange.headers.get(b"content-type"))
        message = await read_message(exchange)
        return message if isinstance(message, Answer) else _refuse_headers(scope, message) or message


def _only_answered(exchange: Exchange, message: Mapping[str, Any]) -> bool:
    """Whether the answer is the only message: a request of 2026-07-28 that asks for no progress, log lines or changes.

    Only event streams carry these. Without a stream the SDK needs no tasks besides the handler, which saves a fifth of
    what a call costs the front end; the guard still cancels the call when its client disconnects.
    """
    if exchange.headers.get(_VERSION) not in _MODERN or message.get("method") == "subscriptions/listen":
        return False
    meta = message.get("params", {}).get("_meta")
    return not (isinstance(meta, dict) and not _STREAMED.isdisjoint(meta))


def _refuse_headers(scope: Scope, message: Mapping[str, Any]) -> Answer | None:
    """The error for headers that contradict the body in a way that makes the SDK assume an older revision.

    The SDK does the rest of this check; it looks at the first version header only, and at no version in the body.
    """
    json, stream = check_accept_headers(StarletteRequest(scope))
    if not json or not stream:
        names = "Accept must name application/json and text/event-stream"
        return rpc_answer(406, INVALID_REQUEST, names, id_of(message))
    if (wrong := _refuse_task(exchange_of(scope), message)) is not None:
        return wrong
    versions = [value for name, value in scope["headers"] if name == _VERSION]
    if len(versions) > 1:
        return rpc_answer(400, HEADER_MISMATCH, "MCP-Protocol-Version is given more than once", id_of(message))
    meta = message.get("params", {}).get("_meta")
    said = meta.get(PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None
    if said is not None and (not versions or versions[0] in _HANDSHAKE):
        seen = "is missing" if not versions else f"is {versions[0].decode('latin-1')}"
        text = f"the MCP-Protocol-Version header {seen}, and the message says {str(said)[:32]!r}"
        return rpc_answer(400, HEADER_MISMATCH, text, id_of(message))
    if said is None and versions and versions[0] not in _KNOWN:
        seen = versions[0].decode("latin-1")[:32]
        data = {"supported": [*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS], "requested": seen}
        return rpc_answer(400, UNSUPPORTED_PROTOCOL_VERSION, f"no such protocol version: {seen}", id_of(message), data)
    return None


def _refuse_task(exchange: Exchange, message: Mapping[str, Any]) -> Answer | None:
    """The error for a method about a task whose `Mcp-Name` is another one: the SDK checks those of the core alone."""
    if not str(message.get("method")).startswith("tasks/"):
        return None
    named, id = exchange.headers.get(b"mcp-name"), message.get("params", {}).get("taskId")
    if named is None or not isinstance(id, str) or named.decode("latin-1") == id:
        return None
    return rpc_answer(400, HEADER_MISMATCH, "the Mcp-Name header is not params.taskId", id_of(message))

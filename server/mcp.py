"""The MCP front end: `/mcp` over Streamable HTTP, for the 2026-07-28 revision and the handshake revisions before it.

The SDK's low-level server knows the wire: versions, headers, envelopes, event streams. What is ours is below: what the
lists hold, what a call does, and how failures are told. Another method joins as a method of `Handlers`, one line in
`Mcp.__init__` and, when it answers a list, one in `_CACHED`.
"""

import base64
import binascii
import math
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import mcp_types as t
import trio
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from agents.agent import AgentInfo, AgentPrompt, Call
from agents.tool import ToolInfo
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT
from server.asgi import MCP_PATH, Exchange, Receive, Scope, Send, agent_of, exchange_of
from server.body import check_content_type, parse_json
from server.logs import report
from server.problems import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    Answer,
    details,
    encode,
    internal,
    leaf,
    problem_answer,
    rpc_answer,
    rpc_error,
    tool_error_text,
)
from server.rest import engine_version

if TYPE_CHECKING:
    from agents.service import Service

# Many clients never ask for a second page, so the first one is long.
PAGE = 250
# Lists are a tenant's own, and change when scripts are edited or published.
_HINT = CacheHint(ttl_ms=5_000, scope="private")
_CACHED: tuple[CacheableMethod, ...] = ("server/discover", "tools/list", "prompts/list")
# How many reports of progress may wait for a slow reader; more are dropped, as only the newest matters.
_PROGRESS_BACKLOG = 32

_VERSION = b"mcp-protocol-version"
_HANDSHAKE = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
_INSTRUCTIONS = (
    "Prompts are agents: each gives a system text, messages to start with and the tools it may use. "
    "Tools search and read the knowledge base, or do what their description says."
)

Context = ServerRequestContext[Any, Any]
P = TypeVar("P")
R = TypeVar("R")


class Named(Protocol):
    """What can be listed in pages."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


def guarded(handler: Callable[[Context, P], Awaitable[R]]) -> Callable[[Context, P], Awaitable[R]]:
    """Let nothing but an MCPError leave a handler.

    In the handshake era the text of any other exception would be sent to the client, and in both an MCPError that a
    nursery wrapped would lose its code.
    """

    @wraps(handler)
    async def run(ctx: Context, params: P) -> R:
        try:
            return await handler(ctx, params)
        except Exception as error:
            cause = leaf(error)
        if isinstance(cause, MCPError):
            raise cause
        problem = cause if isinstance(cause, Problem) else internal(report(cause, handler.__name__))
        code, message, data = rpc_error(problem)
        raise MCPError(code, message, data)

    return run


# ---- pages -------------------------------------------------------------------------------------------------------


def page(items: Sequence[N], kind: str, params: t.PaginatedRequestParams | None) -> tuple[list[N], str | None]:
    """One page of items in the order of their names, and the cursor of the next one.

    A cursor holds the last name that was shown, so a list that changes between two pages neither repeats nor skips
    what stays in it. Raises MCPError (-32602) for a cursor that we did not make.
    """
    ordered = sorted(items, key=lambda item: item.name)
    start = 0
    if params is not None and params.cursor is not None:
        start = bisect_right(ordered, _after(params.cursor, kind), key=lambda item: item.name)
    shown = ordered[start : start + PAGE]
    more = start + PAGE < len(ordered)
    return shown, _cursor(shown[-1].name, kind) if more else None


def _cursor(name: str, kind: str) -> str:
    return base64.urlsafe_b64encode(f"{kind}:{name}".encode()).decode()


def _after(cursor: str, kind: str) -> str:
    try:
        made_for, colon, name = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode().partition(":")
    except (binascii.Error, UnicodeError):
        made_for, colon, name = "", "", ""
    if not colon or made_for != kind:
        raise MCPError(INVALID_PARAMS, "this cursor is not one of this list")
    return name


# ---- what things look like on the wire ---------------------------------------------------------------------------


def title_of(name: str) -> str:
    """A name for people: `create_jira_ticket` is `Create jira ticket`."""
    words = name.replace("_", " ").replace("-", " ").strip()
    return words[:1].upper() + words[1:] or name


def tool_of(info: ToolInfo, handshake: bool) -> t.Tool:
    """A tool as MCP lists it. The annotations claim only what is known: a script may do whatever it was granted."""
    returns = info.returns
    if returns is not None and handshake and not _is_object_schema(returns):
        # Before 2026-07-28 structured content had to be an object; calls wrap the value in the same way.
        returns = {"type": "object", "properties": {"result": returns}, "required": ["result"]}
    return t.Tool(
        name=info.name,
        title=title_of(info.name),
        description=info.description,
        input_schema={"type": "object", **info.parameters},
        output_schema=None if returns is None else dict(returns),
        annotations=t.ToolAnnotations(
            read_only_hint=info.read_only,
            idempotent_hint=True if info.read_only else None,
            open_world_hint=False if info.builtin else None,
        ),
    )


def _is_object_schema(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object"


def result_of(value: Any, returns: Mapping[str, Any] | None, handshake: bool) -> t.CallToolResult:
    """A tool's answer: the value itself, and a text of it for clients that read only text."""
    text = value if isinstance(value, str) else encode(value).decode()
    wrapped = handshake and not (isinstance(value, dict) and (returns is None or _is_object_schema(returns)))
    return t.CallToolResult(
        content=[t.TextContent(type="text", text=text)],
        structured_content={"result": value} if wrapped else value,
    )


def failure_of(problem: Problem) -> t.CallToolResult:
    """A failed call as a result, so that the model can read it and try something else; `_meta` has it as data."""
    return t.CallToolResult(
        content=[t.TextContent(type="text", text=tool_error_text(problem))],
        is_error=True,
        _meta={"engine/error": details(problem)},
    )


def prompt_of(info: AgentInfo) -> t.Prompt:
    return t.Prompt(
        name=info.name,
        title=title_of(info.name),
        description=info.description,
        arguments=[
            t.PromptArgument(name=each.name, description=each.description, required=each.required)
            for each in info.arguments
        ],
    )


def messages_of(prompt: AgentPrompt) -> list[t.PromptMessage]:
    """A prompt as messages. MCP has only `user` and `assistant`: the system text comes first, as the user's."""
    texts = [("user", prompt.system), *((message.role, message.content) for message in prompt.messages)]
    return [
        t.PromptMessage(
            role="assistant" if role == "assistant" else "user", content=t.TextContent(type="text", text=text)
        )
        for role, text in texts
    ]


# ---- the handlers ------------------------------------------------------------------------------------------------


def _exchange(ctx: Context) -> Exchange:
    return exchange_of(ctx.request.scope)  # type: ignore[union-attr]


def _handshake(ctx: Context) -> bool:
    return ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS


class Handlers:
    """The answers of one service. The tenant and the agent that a request is limited to come with the request."""

    def __init__(self, service: "Service") -> None:
        self._service = service

    async def list_tools(self, ctx: Context, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
        exchange = _exchange(ctx)
        tools, cursor = page(self._service.list_tools(exchange.tenant, agent_of(exchange.query)), "tools", params)
        handshake = _handshake(ctx)
        return t.ListToolsResult(tools=[tool_of(info, handshake) for info in tools], next_cursor=cursor)

    async def call_tool(self, ctx: Context, params: t.CallToolRequestParams) -> t.CallToolResult:
        exchange = _exchange(ctx)
        agent = agent_of(exchange.query)
        try:
            async with self._call(ctx, exchange) as call:
                called = await self._service.call_tool(params.name, params.arguments or {}, call, agent=agent)
        except Exception as error:
            problem = leaf(error)
            if not isinstance(problem, Problem):
                raise
            if problem.code in (Code.NOT_FOUND, Code.TOOL_NOT_ALLOWED) and not self._knows(exchange, params.name):
                raise MCPError(INVALID_PARAMS, problem.message, details(problem)) from None
            return failure_of(problem)
        return result_of(called.value, self._returns(exchange, params.name), _handshake(ctx))

    async def list_prompts(self, ctx: Context, params: t.PaginatedRequestParams | None) -> t.ListPromptsResult:
        prompts, cursor = page(self._agents(_exchange(ctx)), "prompts", params)
        return t.ListPromptsResult(prompts=[prompt_of(info) for info in prompts], next_cursor=cursor)

    async def get_prompt(self, ctx: Context, params: t.GetPromptRequestParams) -> t.GetPromptResult:
        exchange = _exchange(ctx)
        only = agent_of(exchange.query)
        if only is not None and params.name != only:
            raise MCPError(INVALID_PARAMS, f"unknown prompt {params.name[:80]!r}")
        async with self._call(ctx, exchange) as call:
            resolved = await self._service.resolve(params.name, params.arguments or {}, call)
        prompt = resolved.prompt
        description = next((info.description for info in self._agents(exchange) if info.name == params.name), None)
        return t.GetPromptResult(
            description=description,
            messages=messages_of(prompt),
            _meta={"engine/prompt": prompt.model_dump(mode="json")},
        )

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """What `Mcp-Param-*` headers are checked against; without it the SDK runs the whole listing for every call."""
        return next((info.parameters for info in self._service.list_tools(DEFAULT_TENANT) if info.name == name), None)

    def _agents(self, exchange: Exchange) -> list[AgentInfo]:
        only = agent_of(exchange.query)
        agents = self._service.list_agents(exchange.tenant)
        return agents if only is None else [info for info in agents if info.name == only]

    def _knows(self, exchange: Exchange, name: str) -> bool:
        """Whether a refused call named a tool that this client was shown: then what it asked *of* the tool is wrong."""
        tools = self._service.list_tools(exchange.tenant, agent_of(exchange.query))
        return any(info.name == name for info in tools)

    def _returns(self, exchange: Exchange, name: str) -> Mapping[str, Any] | None:
        return next((info.returns for info in self._service.list_tools(exchange.tenant) if info.name == name), None)

    @asynccontextmanager
    async def _call(self, ctx: Context, exchange: Exchange) -> AsyncIterator[Call]:
        """The call that a request makes; its progress goes to the client if that gave a token.

        Progress comes from the run as it happens, and a client may read slowly: a task of its own sends it on, always
        upwards (MCP, progress: the value MUST increase), and has sent the last one before the result follows.
        """
        if ctx.meta is None or ctx.meta.get("progress_token") is None:
            yield Call(exchange.tenant)
            return
        reports, source = trio.open_memory_channel[tuple[float, str | None]](_PROGRESS_BACKLOG)

        def on_progress(fraction: float, message: str | None) -> None:
            with suppress(trio.WouldBlock, trio.ClosedResourceError):
                reports.send_nowait((fraction, message))

        async def send() -> None:
            last = -math.inf
            async for fraction, message in source:
                if last < fraction < math.inf:
                    last = fraction
                    await ctx.session.report_progress(fraction, 1.0, message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            with reports:
                yield Call(exchange.tenant, on_progress)


# ---- the ASGI side -----------------------------------------------------------------------------------------------


class Mcp:
    """The ASGI application of `/mcp`. `run` must be open while it is called."""

    def __init__(self, service: "Service", *, max_body_bytes: int) -> None:
        self._service = service
        handlers = Handlers(service)
        self.server: Server[Any] = Server(
            "engine",
            version=engine_version(),
            title="Engine",
            instructions=_INSTRUCTIONS,
            cache_hints=dict.fromkeys(_CACHED, _HINT),
            get_tool_input_schema=handlers.input_schema,
            on_list_tools=guarded(handlers.list_tools),
            on_call_tool=guarded(handlers.call_tool),
            on_list_prompts=guarded(handlers.list_prompts),
            on_get_prompt=guarded(handlers.get_prompt),
        )
        # Host and Origin are the guard's business. Event streams, not plain JSON: only they carry progress.
        self._manager = StreamableHTTPSessionManager(
            self.server, stateless=True, json_response=False, max_request_body_size=max_body_bytes
        )

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Open what requests need. An error in any of its tasks cancels the block and comes out of it."""
        async with self._manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        try:
            answer = self._refuse(scope["method"], exchange)
        except Problem as problem:
            answer = problem_answer(problem)
        if answer is not None:
            await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
            await send({"type": "http.response.body", "body": answer.body})
            return
        exchange.held = scope["method"] == "GET"
        if b"accept" not in exchange.headers:  # RFC 9110 section 12.5.1: no Accept means anything will do
            scope["headers"] = [*scope["headers"], (b"accept", b"*/*")]
        await self._manager.handle_request(scope, receive, send)

    def _refuse(self, method: str, exchange: Exchange) -> Answer | None:
        """What is wrong before any JSON-RPC is spoken, in our words: the SDK's would be bare or show Python's."""
        agent = agent_of(exchange.query)
        if agent is not None:
            self._service.list_tools(exchange.tenant, agent)  # raises for an unknown one
        version = exchange.headers.get(_VERSION)
        # There are no sessions to delete; the silent stream of GET ended with the handshake revisions.
        methods = ("GET", "POST") if version is None or version in _HANDSHAKE else ("POST",)
        if method == "OPTIONS":
            return Answer(204, [(b"allow", ", ".join((*methods, "OPTIONS")).encode())], b"")
        if method not in methods:
            names = ", ".join(methods)
            answer = problem_answer(Problem(Code.METHOD_NOT_ALLOWED, f"{MCP_PATH} takes {names}"))
            answer.headers.append((b"allow", f"{names}, OPTIONS".encode()))
            return answer
        if method == "GET":
            return None
        check_content_type(exchange.headers.get(b"content-type"))
        return _refuse_message(exchange.body)


def _refuse_message(raw: bytes) -> Answer | None:
    """The answer to a body that is not one JSON-RPC message, or None when it is one (JSON-RPC 2.0 section 5.1)."""
    try:
        message = parse_json(raw)
    except Problem as problem:
        return rpc_answer(400, PARSE_ERROR, problem.message)
    if isinstance(message, list):
        return rpc_answer(400, INVALID_REQUEST, "batches are not supported: send one message")
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return rpc_answer(400, INVALID_REQUEST, "the body is not a JSON-RPC 2.0 message")
    request_id = message.get("id")
    has_id = isinstance(request_id, str | int) and not isinstance(request_id, bool)
    if "method" in message:
        sound = (
            isinstance(message["method"], str)
            and isinstance(message.get("params", {}), dict)
            and (has_id or "id" not in message)
        )
    else:
        sound = has_id and (isinstance(message.get("result"), dict) or isinstance(message.get("error"), dict))
    if sound:
        return None
    return rpc_answer(400, INVALID_REQUEST, "the message is malformed", request_id if has_id else None)

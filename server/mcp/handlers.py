"""The MCP front end: the contents of lists, the calls, and the form of errors.

The SDK's low-level server implements the protocol, `server.mcp.endpoint` its HTTP endpoint. To add a method: a method
of `Handlers`, a line in `Handlers.server`, a row in `server.mcp.methods` and, if clients may cache the answer, one in
`_CACHED`.
"""

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property, partial, wraps
from typing import Any, TypeVar

import mcp_types as t
import trio
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from agents.agent import AgentInfo, Call, Resolved
from agents.calls import Calls
from agents.documents import Document, Documents
from agents.tool import Called, ToolInfo
from engine.errors import Code, Problem, leaf
from engine.run import LogLine
from server.about import engine_version
from server.http.asgi import Exchange
from server.http.large_values import HELD_BYTES, Held, Rendered, rendered
from server.logs import report
from server.mcp.asking import able
from server.mcp.caller import Caller, Context, http_caller, of_handshake
from server.mcp.listen import Listeners, Watching
from server.mcp.log import LEVELS, passes, wanted
from server.mcp.methods import METHODS, Method
from server.mcp.pages import PAGE, Cursors
from server.mcp.progress import reporting
from server.mcp.shapes import (
    DOCUMENT_TEMPLATE,
    MAX_VALUES,
    TEMPLATES,
    TITLE_TEMPLATE,
    TaskAnswers,
    TaskParams,
    blocks_of,
    completion_of,
    contents_of,
    document_id,
    failure_of,
    is_wrapped,
    matching,
    messages_of,
    meta_of,
    prompt_of,
    resource_of,
    result_of,
    size_of,
    source_and_title,
    task_ids,
    texts_of,
    tool_of,
    wrong_params,
    wrong_token,
)
from server.mcp.task_states import EXTENSION
from server.mcp.tasks import Runs, lacking_tasks
from server.problems import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    details,
    encode,
    internal,
    render_cpu_s,
    rpc_error,
)

# Lists differ by tenant, and change when scripts are edited or published.
_HINT = CacheHint(ttl_ms=5_000, scope="private")
_CACHED: tuple[CacheableMethod, ...] = (
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)
# The error for an unknown address repeats at most this many of its characters.
MAX_ECHO = 2048
# The SDK's CPU time for one message of a prompt, or one notification, about: charged to the caller's tenant.
MESSAGE_S = 0.0001
# Up to this many messages of a prompt cost less than charging for them.
FREE_MESSAGES = 16
# Bound on the documents of one source with the same title that a read by title returns.
_NAMESAKES = 8

_INSTRUCTIONS = (
    "Prompts are agents: each gives a system text, messages to start with and the tools it may use. "
    "Tools search and read the knowledge base, or do what their description says. "
    "Resources are the documents of the knowledge base; searching finds more than browsing."
)
# Small, because every answer of 2026-07-28 contains it.
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="#47a" stroke-width="2">'
    '<circle cx="12" cy="12" r="9"/><path d="m8 12 3 3 5-6"/></svg>'
)

# The blocks of a prompt's messages.
_BLOCKS = {"messages": {"__all__": {"blocks"}}}

P = TypeVar("P")
R = TypeVar("R")


def guarded(handler: Callable[[Context, P], Awaitable[R]]) -> Callable[[Context, P], Awaitable[R]]:
    """Let no exception but MCPError out of a handler.

    In handshake revisions the SDK sends the text of any other exception to the client, and in all revisions an MCPError
    wrapped by a nursery loses its code.
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


async def explained(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Name the param that is wrong, where the SDK only reports that one is.

    Checks progress tokens too: the SDK takes `true` for the number 1.
    """
    if (wrong := wrong_token(ctx.params)) is not None:
        raise MCPError(INVALID_PARAMS, wrong)
    try:
        return await call_next(ctx)
    except ValidationError as error:
        raise MCPError(INVALID_PARAMS, wrong_params(error, ctx.method, ctx.params)) from None


class _Server(Server[Any]):
    @cached_property
    def server_info_stamp(self) -> dict[str, Any]:
        """The server's info in every answer of 2026-07-28. One shared object: nothing here modifies answers."""
        return super().server_info_stamp


class Handlers:
    """The handlers of MCP. The caller, and the agent that it is limited to, come with each request."""

    # The access that each method needs; a subclass with more methods adds rows.
    methods: Mapping[str, Method] = METHODS

    def __init__(
        self,
        calls: Calls,
        listeners: Listeners,
        *,
        cursors: Cursors | None = None,
        caller: Callable[[Context], Caller] = http_caller,
    ) -> None:
        self._calls = calls
        self._listeners = listeners
        self._cursors = cursors or Cursors()
        self._caller = caller
        # The calls that may outlive their requests; to be opened while there are any.
        self.runs = Runs(calls, _shown, listeners.tell_task)

    def server(self, input_schema: Callable[[str], Mapping[str, Any] | None]) -> Server[Any]:
        """The SDK's server with these handlers. `input_schema` finds the schema to check `Mcp-Param-*` headers with."""
        server = _Server(
            "engine",
            version=engine_version(),
            title="Engine",
            description="Runs other people's Lua agents and tools safely",
            instructions=_INSTRUCTIONS,
            icons=[
                t.Icon(
                    src=f"data:image/svg+xml;base64,{b64encode(_ICON.encode()).decode()}",
                    mime_type="image/svg+xml",
                    sizes=["any"],
                )
            ],
            cache_hints=dict.fromkeys(_CACHED, _HINT),
            # Without it the SDK makes the whole list for every call.
            get_tool_input_schema=input_schema,
            on_list_tools=guarded(self.list_tools),
            on_list_prompts=guarded(self.list_prompts),
            on_get_prompt=guarded(self.get_prompt),
            on_list_resources=guarded(self.list_resources),
            on_list_resource_templates=guarded(self.list_resource_templates),
            on_read_resource=guarded(self.read_resource),
            on_completion=guarded(self.complete),
            on_subscriptions_listen=guarded(self.listen),
        )
        # Not `on_set_logging_level`: the SDK warns about it, because 2026-07-28 uses `_meta` of requests instead.
        server.add_request_handler("logging/setLevel", t.SetLevelRequestParams, guarded(self.set_level))
        # Not `on_call_tool`, whose type has no place for the result of an extension.
        server.add_request_handler("tools/call", t.CallToolRequestParams, guarded(self.call_tool))
        server.add_request_handler("tasks/get", TaskParams, guarded(self.get_task))
        server.add_request_handler("tasks/update", TaskAnswers, guarded(self.update_task))
        server.add_request_handler("tasks/cancel", TaskParams, guarded(self.cancel_task))
        server.extensions[EXTENSION] = {}
        # A state is sealed here; `Runs` sees that each is used once.
        security = RequestStateSecurity.ephemeral()
        security.bind_principal = lambda ctx: self._caller(ctx).tenant.id
        # Replaces the SDK's middleware, which records spans for OpenTelemetry: nothing here collects them, and they
        # take 4 % of what a call costs the front end.
        server.middleware = [self._permitted, RequestStateBoundary(security, default_audience="engine"), explained]
        return server

    async def _permitted(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Pass on methods of the table that the caller has access to. Notifications have no handlers."""
        if ctx.request_id is not None:
            method = self.methods.get(ctx.method)
            if method is None:
                raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method[:128])
            caller = self._caller(ctx)
            try:
                method.need.check(caller.identity, caller.keyed)
            except Problem as problem:
                raise MCPError(*rpc_error(problem)) from None
        return await call_next(ctx)

    # ---- tools ---------------------------------------------------------------------------------------------------

    async def list_tools(self, ctx: Context, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
        caller = self._caller(ctx)
        tools, cursor = self._cursors.page(self._tools(caller), _scope("tools", caller), _cursor(params), size_of)
        handshake = of_handshake(ctx)
        return t.ListToolsResult(tools=[tool_of(info, handshake) for info in tools], next_cursor=cursor)

    async def call_tool(
        self, ctx: Context, params: t.CallToolRequestParams
    ) -> t.CallToolResult | t.InputRequiredResult | dict[str, Any]:
        caller = self._caller(ctx)
        # An agent offered as a tool is not in the list of its own tools, but its own endpoint offers it.
        agent = None if self._is_own_tool(caller, params.name) else caller.agent

        async def step(call: Call) -> Called:
            seated = call if caller.seat is None else replace(call, seat=caller.seat)
            return await self._calls.call_tool(params.name, params.arguments or {}, seated, agent=agent)

        def failed(error: Exception) -> t.CallToolResult:
            problem = leaf(error)
            if not isinstance(problem, Problem):
                raise error
            if problem.code in (Code.NOT_FOUND, Code.TOOL_NOT_ALLOWED) and not self._knows(caller, params.name):
                raise MCPError(INVALID_PARAMS, problem.message, details(problem)) from None
            return failure_of(problem)

        attach = self._call(ctx, caller, params.name)
        can = able(None if of_handshake(ctx) else ctx.session.client_capabilities)
        try:
            if params.request_state is not None and not of_handshake(ctx):
                given = params.input_responses or {}
                called = await self.runs.resume(caller, can, params.request_state, given, attach)
            elif can:
                called = await self.runs.start(caller, can, step, failed, attach)
            else:
                async with attach as call:
                    called = await step(call)
        except MCPError:
            raise
        except Exception as error:
            return failed(error)
        if not isinstance(called, Called):
            return called
        info = self._calls.tool_info(caller.tenant, params.name)
        wrapped = is_wrapped(called.value, None if info is None else info.returns, of_handshake(ctx))
        result = _result(await rendered(called.value), wrapped, caller)
        result.meta = meta_of(called)
        return result

    async def get_task(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        return self.runs.detail(self._task_caller(ctx), params.task_id)

    async def update_task(self, ctx: Context, params: TaskAnswers) -> dict[str, Any]:
        self.runs.update(self._task_caller(ctx), params.task_id, params.input_responses)
        return {}

    async def cancel_task(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        self.runs.cancel(self._task_caller(ctx), params.task_id)
        return {}

    def _task_caller(self, ctx: Context) -> Caller:
        """The caller of a method about tasks. Raises MCPError for a client that has not declared the extension."""
        if of_handshake(ctx):
            raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        if not able(ctx.session.client_capabilities).tasks:
            raise lacking_tasks()
        return self._caller(ctx)

    def _tools(self, caller: Caller) -> list[ToolInfo]:
        tools = self._calls.list_tools(caller.tenant, caller.agent)
        if caller.agent is not None and self._is_own_tool(caller, caller.agent):
            own = self._calls.tool_info(caller.tenant, caller.agent)
            if own is not None and own not in tools:
                tools = [*tools, own]
        return tools

    def _is_own_tool(self, caller: Caller, name: str) -> bool:
        info = self._calls.agent_info(caller.tenant, name) if caller.agent == name else None
        return info is not None and "tool" in info.expose

    def _knows(self, caller: Caller, name: str) -> bool:
        """Whether a refused call named a tool that this client can list: then the call's arguments are at fault."""
        return any(info.name == name for info in self._tools(caller))

    # ---- prompts -------------------------------------------------------------------------------------------------

    async def list_prompts(self, ctx: Context, params: t.PaginatedRequestParams | None) -> t.ListPromptsResult:
        caller = self._caller(ctx)
        prompts, cursor = self._cursors.page(self._agents(caller), _scope("prompts", caller), _cursor(params), size_of)
        return t.ListPromptsResult(prompts=[prompt_of(info) for info in prompts], next_cursor=cursor)

    async def get_prompt(
        self, ctx: Context, params: t.GetPromptRequestParams
    ) -> t.GetPromptResult | t.InputRequiredResult:
        caller = self._caller(ctx)
        info = self._prompt(caller, params.name)
        async with self._call(ctx, caller, params.name) as call:
            resolved = await self._calls.resolve(params.name, params.arguments or {}, call)
        if (beyond := max(len(resolved.prompt.messages), len(resolved.blocks)) - FREE_MESSAGES) > 0:
            caller.charge(beyond * MESSAGE_S)
        messages, told = await (_of_blocks if resolved.blocks or resolved.about else _of_texts)(resolved, caller)
        return t.GetPromptResult(description=None if info is None else info.description, messages=messages, _meta=told)

    def _agents(self, caller: Caller) -> list[AgentInfo]:
        agents = self._calls.list_agents(caller.tenant)
        return [info for info in agents if caller.agent in (None, info.name) and "prompt" in info.expose]

    def _prompt(self, caller: Caller, name: str) -> AgentInfo | None:
        """The agent of a prompt; None for one that the service has a better error for. Raises MCPError (-32602)."""
        info = self._calls.agent_info(caller.tenant, name)
        if caller.agent not in (None, name) or (info is not None and "prompt" not in info.expose):
            raise MCPError(INVALID_PARAMS, f"no prompt with name: {name[:128]}")
        return info

    # ---- resources -----------------------------------------------------------------------------------------------

    async def list_resources(self, ctx: Context, params: t.PaginatedRequestParams | None) -> t.ListResourcesResult:
        caller = self._caller(ctx)
        scope, cursor = _scope("resources", caller), _cursor(params)
        documents = self._documents(caller)
        after = None if cursor is None else _pair(self._cursors.position(scope, cursor))
        found = () if documents is None else await documents.page(after, PAGE + 1)
        shown = found[:PAGE]
        more = len(found) > PAGE
        position = json.dumps([shown[-1].source, shown[-1].source_id]) if more else ""
        return t.ListResourcesResult(
            resources=[resource_of(each) for each in shown],
            next_cursor=self._cursors.after(scope, position) if more else None,
        )

    async def list_resource_templates(
        self, ctx: Context, params: t.PaginatedRequestParams | None
    ) -> t.ListResourceTemplatesResult:
        caller = self._caller(ctx)
        cursor = _cursor(params)
        if cursor is not None:
            self._cursors.position(_scope("templates", caller), cursor)  # there is one page: no cursor is valid
        return t.ListResourceTemplatesResult(
            resource_templates=[] if self._documents(caller) is None else list(TEMPLATES)
        )

    async def read_resource(
        self, ctx: Context, params: t.ReadResourceRequestParams
    ) -> t.ReadResourceResult | t.InputRequiredResult:
        found = await self._read(self._documents(self._caller(ctx)), params.uri)
        if not found:
            # Revisions after the handshake have no code of their own for this.
            code = RESOURCE_NOT_FOUND if of_handshake(ctx) else INVALID_PARAMS
            raise MCPError(code, "there is no such document", {"uri": params.uri[:MAX_ECHO]})
        return t.ReadResourceResult(contents=[contents_of(document, params.uri) for document in found])

    async def _read(self, documents: Documents | None, uri: str) -> tuple[Document, ...]:
        if documents is None:
            return ()
        identifier = document_id(uri)
        if identifier is not None:
            document = await documents.get(identifier)
            return () if document is None else (document,)
        named = source_and_title(uri)
        return () if named is None else await documents.titled(*named, limit=_NAMESAKES)

    def _documents(self, caller: Caller) -> Documents | None:
        """The caller's documents. A request limited to an agent reads them only if the agent may use `get`."""
        if caller.agent is not None:
            tools = self._calls.list_tools(caller.tenant, caller.agent)
            if not any(info.name == "get" and info.builtin for info in tools):
                return None
        return self._calls.documents(caller.tenant)

    # ---- completion and change -----------------------------------------------------------------------------------

    async def complete(self, ctx: Context, params: t.CompleteRequestParams) -> t.CompleteResult:
        caller = self._caller(ctx)
        name, typed = params.argument.name, params.argument.value
        given = dict((params.context and params.context.arguments) or {})
        if isinstance(params.ref, t.ResourceTemplateReference):
            return await self._complete_address(self._documents(caller), params.ref.uri, name, typed, given)
        info = self._prompt(caller, params.ref.name)
        async with self._call(ctx, caller, params.ref.name) as call:
            values = await self._calls.complete(params.ref.name, name, typed, given, call)
        if values is not None:
            return completion_of(values)
        argument = next((each for each in (info.arguments if info else ()) if each.name == name), None)
        if argument is None:
            raise MCPError(INVALID_PARAMS, f"the prompt {params.ref.name[:128]} has no argument {name[:128]!r}")
        return completion_of(matching(argument.enum or (), typed))

    async def _complete_address(
        self, documents: Documents | None, template: str, name: str, typed: str, given: Mapping[str, str]
    ) -> t.CompleteResult:
        if documents is None or (template, name) not in (
            (DOCUMENT_TEMPLATE, "id"),
            (TITLE_TEMPLATE, "source"),
            (TITLE_TEMPLATE, "title"),
        ):
            raise MCPError(INVALID_PARAMS, f"there is no {name[:128]!r} in a resource template {template[:128]!r}")
        if name == "source":
            return completion_of(matching(await documents.sources(), typed))
        if name == "title":
            titles = await documents.titles(typed, given.get("source") or None, MAX_VALUES + 1)
            return completion_of(titles, all_of_them=len(titles) <= MAX_VALUES)
        return completion_of(())  # ids come from searches, not from typing

    async def listen(self, ctx: Context, params: t.SubscriptionsListenRequestParams) -> t.SubscriptionsListenResult:
        caller = self._caller(ctx)
        ids = task_ids(params.notifications)
        if ids and not able(ctx.session.client_capabilities).tasks:
            raise lacking_tasks()
        watching = Watching(self.runs.known(caller, ids), partial(self.runs.detail, caller))
        return await self._listeners.serve(ctx, params, caller, self._documents(caller), watching)

    async def set_level(self, ctx: Context, params: t.SetLevelRequestParams) -> t.EmptyResult:
        """Set the least level of the log lines sent to the session (handshake revisions only)."""
        self._caller(ctx).log_level.least = params.level
        return t.EmptyResult()

    @asynccontextmanager
    async def _call(self, ctx: Context, caller: Caller, name: str) -> AsyncIterator[Call]:
        """The call of `name` for a request; progress and log lines go to the client if it requested them."""
        level = wanted(ctx.meta, caller.log_level if of_handshake(ctx) else None)
        token = ctx.meta is not None and ctx.meta.get("progress_token") is not None
        if level is None and not token:
            yield Call(caller.tenant)
            return

        async def send_progress(progress: float, total: float | None, text: str | None) -> None:
            caller.charge(MESSAGE_S)
            await ctx.session.report_progress(progress, total, text)

        async def send_line(line: LogLine) -> None:
            assert level is not None
            if passes(line, level):
                caller.charge(MESSAGE_S)
                data = t.LoggingMessageNotificationParams(level=LEVELS[line.level], logger=name, data=line.text)
                # The request's id puts the notification on the stream of that request, in all revisions.
                await ctx.session.send_notification(t.LoggingMessageNotification(params=data), ctx.request_id)

        async with reporting(
            caller.tenant, send_progress if token else None, None if level is None else send_line
        ) as call:
            yield call


def _result(answer: Rendered, wrapped: bool, caller: Caller) -> t.CallToolResult:
    """A tool's answer; a large value bypasses the SDK."""
    if not answer.large or caller.exchange is None:
        value = answer.whole()
        return result_of(value if isinstance(value, str) else answer.json.decode(), value, wrapped)
    held = _held(caller.exchange, len(answer.json))
    # Unwrapped, the SDK may require an object; inside an object it accepts any value.
    return result_of(held.text(*answer.text), held.object(answer.json), wrapped)


def _shown(answer: Rendered, caller: Caller) -> t.CallToolResult:
    """The kept answer of a task; no handshake revision has tasks."""
    return _result(answer, False, caller)


async def _of_texts(resolved: Resolved, caller: Caller) -> tuple[list[t.PromptMessage], dict[str, Any]]:
    """The messages of a prompt, and the whole prompt as data; a large one bypasses the SDK."""
    prompt = resolved.prompt
    texts = texts_of(prompt)
    if caller.exchange is None or sum(len(text) for _, text in texts) <= HELD_BYTES:
        return messages_of(texts), {"engine/prompt": prompt.model_dump(mode="json")}
    rendered = encode(prompt.model_dump())
    held = _held(caller.exchange, 2 * len(rendered))
    kept = []
    for role, text in texts:
        await trio.lowlevel.checkpoint()
        kept.append((role, held.text(encode(text))))
    return messages_of(kept), {"engine/prompt": held.object(rendered)}


async def _of_blocks(resolved: Resolved, caller: Caller) -> tuple[list[t.PromptMessage], dict[str, Any]]:
    """As `_of_texts`, of a prompt that has blocks. As data it is without them, as they are in the messages."""
    told = {"engine/prompt": resolved.prompt.model_dump(mode="json", exclude=_BLOCKS), **resolved.about}
    rendered = {name: encode(value) for name, value in told.items()}
    size = sum(map(len, rendered.values())) + resolved.size
    if caller.exchange is None or size <= HELD_BYTES:
        return blocks_of(resolved.blocks, lambda text: text), told
    held = _held(caller.exchange, size)
    messages = []
    for each in resolved.blocks:
        await trio.lowlevel.checkpoint()
        messages += blocks_of((each,), lambda text: held.text(encode(text)))
    return messages, {name: held.object(value) for name, value in rendered.items()}


def _held(exchange: Exchange, rendered_bytes: int) -> Held:
    exchange.charge(2 * render_cpu_s(rendered_bytes))  # twice: rendering, then escaping and sending
    exchange.held = exchange.held or Held()  # a stream holds several
    return exchange.held


def _cursor(params: t.PaginatedRequestParams | None) -> str | None:
    return None if params is None else params.cursor


def _scope(kind: str, caller: Caller) -> tuple[str, ...]:
    """The scope of a cursor: the list, and its caller."""
    return kind, caller.tenant.id, caller.agent or ""


def _pair(position: str) -> tuple[str, str]:
    source, source_id = json.loads(position)
    return source, source_id

"""MCP over Streamable HTTP at `/mcp`: the ASGI application, for 2026-07-28 and the handshake revisions before it."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeGuard

import trio
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import check_accept_headers
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import HEADER_MISMATCH, LOG_LEVEL_META_KEY, PROTOCOL_VERSION_META_KEY, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request as StarletteRequest

from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT, Tenant
from engine.work import WORK
from server.asgi import Exchange, Receive, Scope, Send, exchange_of, send_answer
from server.body import FREE_BYTES, check_content_type, parse_json, read_json
from server.mcp import Handlers
from server.mcp_held import filling
from server.mcp_late import Late
from server.mcp_listen import Listeners
from server.problems import INVALID_REQUEST, PARSE_ERROR, Answer, problem_answer, rpc_answer
from server.routes import not_taken, options
from server.target import MCP_PATH

if TYPE_CHECKING:
    from agents.service import Service

# The SDK compares every value of a message with its types, up to six times and each with an error of its own, but for
# the arguments of a tool: 2,000 wrong ones cost it 25 ms.
MAX_TYPED = 2_000
# A request's id and its progress token are repeated in what it is answered, the token up to a thousand times.
MAX_ID = 256
MAX_METHOD = 4096
# Addresses are unescaped, ids and progress tokens said again with every notification: none of them is long. In
# characters of texts and of keys together; not of what a tool or prompt is handed.
MAX_TYPED_TEXT = 64 * 1024

_VERSION = b"mcp-protocol-version"
_HANDSHAKE = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)
_KNOWN = _HANDSHAKE | _MODERN

# Keys of a request's `_meta` that ask for more than an answer.
_STREAMED = frozenset({"progressToken", LOG_LEVEL_META_KEY})

# Whose request is being served, and the agent that it is limited to. The SDK asks for a tool's schema before there is a
# context to ask.
_asking: ContextVar[tuple[Tenant, str | None]] = ContextVar("_asking", default=(DEFAULT_TENANT, None))


class Mcp:
    """The ASGI application of `/mcp`. `run` must be open while it is called."""

    def __init__(
        self,
        service: "Service",
        *,
        max_body_bytes: int,
        handlers: Callable[["Service", Listeners], Handlers] = Handlers,
    ) -> None:
        self._service = service
        self.listeners = Listeners()
        self.server: Server[Any] = handlers(service, self.listeners).server(self._input_schema)
        # Host and Origin are the guard's business.
        streaming, plain = (
            StreamableHTTPSessionManager(
                self.server, stateless=True, json_response=json, max_request_body_size=max_body_bytes
            )
            for json in (False, True)
        )
        self._streaming, self._plain = streaming, plain
        self._late = Late()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Open what requests need. An error in any of its tasks cancels the block and comes out of it."""
        async with self._streaming.run(), self._plain.run(), trio.open_nursery() as nursery:
            with self._service.changes.heard_by(self.listeners.hear):
                nursery.start_soon(self.listeners.watch)
                nursery.start_soon(self._late.watch)
                yield
            nursery.cancel_scope.cancel()

    def _input_schema(self, name: str) -> Mapping[str, Any] | None:
        tenant, agent = _asking.get()
        info = self._service.tool_info(tenant, name)
        if info is None or (agent not in (None, name) and info not in self._service.list_tools(tenant, agent)):
            return None
        return info.parameters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        if b"accept" not in exchange.headers:  # RFC 9110 section 12.5.1: no Accept means anything will do
            scope["headers"] = [*scope["headers"], (b"accept", b"*/*")]
        try:
            answer = await self._judge(scope, exchange)
        except Problem as problem:
            answer = problem_answer(problem)
        if isinstance(answer, Answer):
            await send_answer(answer, send)
            return
        if scope["method"] == "GET":  # a stream on which nothing will ever be said
            exchange.when_draining(exchange.end)
        asking = _asking.set((exchange.tenant, exchange.params.get("agent")))
        send = filling(send, exchange)
        try:
            if _only_answered(exchange, answer):
                with self._late.looked_after(send) as say:
                    await self._plain.handle_request(scope, receive, say)
            else:
                await self._streaming.handle_request(scope, receive, send)
        finally:
            _asking.reset(asking)

    async def _judge(self, scope: Scope, exchange: Exchange) -> Answer | dict[str, Any]:
        """The message of a request, which is empty for GET; or what is wrong before any JSON-RPC is spoken.

        In our words: the SDK's would be bare or show Python's.
        """
        method = scope["method"]
        agent = exchange.params.get("agent")
        if agent is not None:
            self._service.list_tools(exchange.tenant, agent)  # raises for an unknown one
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
        message = await _read_message(exchange)
        return message if isinstance(message, Answer) else _refuse_headers(scope, message) or message


def _only_answered(exchange: Exchange, message: Mapping[str, Any]) -> bool:
    """Whether nothing but the answer will be said: a request of 2026-07-28 that asks for no progress, log or changes.

    Only event streams carry either. Without one the SDK needs no tasks beside the handler, which is a fifth of what a
    call costs the front end; who leaves is cancelled by the guard all the same.
    """
    if exchange.headers.get(_VERSION) not in _MODERN or message.get("method") == "subscriptions/listen":
        return False
    meta = message.get("params", {}).get("_meta")
    return not (isinstance(meta, dict) and not _STREAMED.isdisjoint(meta))


def refuse_message(raw: bytes) -> Answer | None:
    """The answer to a body that is not one JSON-RPC message, or None when it is one."""
    try:
        message = _sound(parse_json(raw))
    except Problem as problem:
        message = rpc_answer(400, PARSE_ERROR, problem.message)
    return message if isinstance(message, Answer) else None


async def _read_message(exchange: Exchange) -> dict[str, Any] | Answer:
    """The JSON-RPC message in a request's body, or the answer to a body that is none. Raises Problem (429, 503)."""
    try:
        message = await read_json(exchange.body, exchange.working, WORK["message"])
    except Problem as problem:
        if problem.code is not Code.BAD_REQUEST:
            raise
        return rpc_answer(400, PARSE_ERROR, problem.message)
    sound = _sound(message)
    if isinstance(sound, Answer) or len(exchange.body) < FREE_BYTES or (excess := _excess(sound)) is None:
        return sound
    identifier = _id(sound)
    return rpc_answer(400, INVALID_REQUEST, excess, None if len(str(identifier)) > MAX_TYPED_TEXT else identifier)


def _excess(message: Mapping[str, Any]) -> str | None:
    """What a message has too much of, beside what it hands on to a tool (texts: or to a prompt); None: of nothing."""
    left, text, level = MAX_TYPED, MAX_TYPED_TEXT, [message]
    handed, method = None, message.get("method")
    if isinstance(params := message.get("params"), dict) and method in ("tools/call", "prompts/get"):
        handed = params.get("arguments")
        if method == "tools/call":
            level = [{**message, "params": {**params, "arguments": None}}]
    while level:
        inner: list[Any] = []
        for container in level:
            left -= len(container)
            if left < 0:
                return f"the message holds more than {MAX_TYPED} values beside a tool's arguments"
            items = container.values() if isinstance(container, Mapping) else container
            inner += [item for item in items if isinstance(item, dict | list)]
            if container is not handed:
                text -= sum(len(item) for item in items if isinstance(item, str))
                text -= sum(map(len, container)) if isinstance(container, Mapping) else 0
        level = inner
    return None if text >= 0 else f"the message holds more than {MAX_TYPED_TEXT} characters beside arguments"


def _sound(message: Any) -> dict[str, Any] | Answer:
    """A JSON-RPC message that can be one (JSON-RPC 2.0 section 5.1), or the answer to what cannot."""
    if isinstance(message, list):
        return rpc_answer(400, INVALID_REQUEST, "batches are not supported: send one message")
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return rpc_answer(400, INVALID_REQUEST, "the body is not a JSON-RPC 2.0 message")
    flaw = _flaw(message)
    # An answer's id is that of no request: what is wrong with one is told without it.
    asked = "method" in message or {"result", "error"}.isdisjoint(message)
    return message if flaw is None else rpc_answer(400, INVALID_REQUEST, flaw, _id(message) if asked else None)


def _flaw(message: Mapping[str, Any]) -> str | None:
    """What is wrong with a message's own members; None for a message that can be one."""
    known_id = _id(message) is not None
    if "method" not in message:
        answers = isinstance(message.get("result"), dict) or _is_error(message.get("error"))
        return None if known_id and answers else "the message is malformed"
    method = message["method"]
    if not isinstance(method, str) or len(method) > MAX_METHOD:
        return f"the message is malformed: method must be a string of at most {MAX_METHOD} characters"
    if not isinstance(message.get("params", {}), dict):
        return "the message is malformed: params must be an object"
    if not known_id and "id" in message:
        return f"the message is malformed: id must be a whole number or a string of at most {MAX_ID} characters"
    if _is_long(_progress_token(message)):
        return f"the message is malformed: params._meta.progressToken has more than {MAX_ID} characters"
    return None


def _is_error(error: Any) -> bool:
    """Whether it is an error object (JSON-RPC 2.0 section 5.1): with a whole number for a code, and a text."""
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return False
    code = error.get("code")
    return isinstance(code, int) and not isinstance(code, bool)


def _id(message: Mapping[str, Any]) -> str | int | None:
    found = message.get("id")
    return found if _is_id(found) else None


def _progress_token(message: Mapping[str, Any]) -> Any:
    meta = message.get("params", {}).get("_meta")
    return meta.get("progressToken") if isinstance(meta, dict) else None


def _is_long(token: Any) -> bool:
    return isinstance(token, str) and len(token) > MAX_ID


def _is_id(found: Any) -> TypeGuard[str | int]:
    return len(found) <= MAX_ID if isinstance(found, str) else isinstance(found, int) and not isinstance(found, bool)


def _refuse_headers(scope: Scope, message: Mapping[str, Any]) -> Answer | None:
    """The answer to headers that contradict the body, where the SDK would take the request for an older revision's.

    The rest of that check is the SDK's: it goes by the first version header, and by none of the body's.
    """
    json, stream = check_accept_headers(StarletteRequest(scope))
    if not json or not stream:
        names = "Accept must name application/json and text/event-stream"
        return rpc_answer(406, INVALID_REQUEST, names, _id(message))
    versions = [value for name, value in scope["headers"] if name == _VERSION]
    if len(versions) > 1:
        return rpc_answer(400, HEADER_MISMATCH, "MCP-Protocol-Version is given more than once", _id(message))
    meta = message.get("params", {}).get("_meta")
    said = meta.get(PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None
    if said is not None and (not versions or versions[0] in _HANDSHAKE):
        seen = "is missing" if not versions else f"is {versions[0].decode('latin-1')}"
        text = f"the MCP-Protocol-Version header {seen}, and the message says {str(said)[:32]!r}"
        return rpc_answer(400, HEADER_MISMATCH, text, _id(message))
    if said is None and versions and versions[0] not in _KNOWN:
        seen = versions[0].decode("latin-1")[:32]
        data = {"supported": [*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS], "requested": seen}
        return rpc_answer(400, UNSUPPORTED_PROTOCOL_VERSION, f"no such protocol version: {seen}", _id(message), data)
    return None

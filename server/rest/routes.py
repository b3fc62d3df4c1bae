"""The REST front end: every route, behind the guard. Calls of agents and tools bypass Quart."""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import trio
from prometheus_client import CONTENT_TYPE_LATEST
from quart import Response as QuartResponse
from quart import request
from quart.routing import QuartRule
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection

from agents.agent import Call
from agents.calls import Calls
from agents.seat import Seat
from engine.errors import Code, Problem, leaf
from engine.host.pieces import in_pieces
from engine.run import RunResult
from sandbox.wire.limits import MIB, SPECS
from server.about import engine_version
from server.http.asgi import Exchange, Receive, Scope, Send, exchange_of, send_answer
from server.http.body import read_object, unwrap
from server.http.routes import ANY, Found, Need, Route, Table, not_taken, options
from server.http.target import MCP_PATH
from server.logs import report
from server.problems import Answer, body_answer, encoding, internal, json_answer, problem_answer, render_cpu_s
from server.rest import audit, publish, sources, usage
from server.rest.admin import Admin
from server.rest.lists import listed
from server.rest.oauth import OAuth
from server.rest.openapi import OpenApi
from server.rest.teams import TeamRoutes

if TYPE_CHECKING:
    from agents.service import Service

# The builtin tools whose answer to a flat body is flat too (docs/http-api.md).
FLAT_TOOLS = frozenset({"search", "get", "sources"})

# The rules of calls, which bypass Quart: its contexts, request and response objects were a sixth of the cost of a
# prompt.
_CALLED = frozenset({"/tools/<name>", "/agents/<name>/prompt"})

# An answer from a worker that sent at least this many bytes is rendered in pieces.
RENDERED_AT_ONCE = MIB

_METRICS = CONTENT_TYPE_LATEST.encode()

# The path of MCP: another application answers it.
_MCP = Route(ANY, MCP_PATH, Need.USE)


class Routes:
    """The handlers of one service, and the one list of their routes. Handlers are independent of Quart."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self.openapi = OpenApi(service, FLAT_TOOLS)

    def all(self) -> tuple[Route, ...]:
        """Every route but MCP's."""
        rows = (
            Route("GET", "/health", Need.NOTHING, self.health),
            Route("GET", "/metrics", Need.METRICS, self.show_metrics),
            Route("GET", "/openapi.json", Need.KEY, self.openapi.show),
            Route("GET", "/limits", Need.KEY, self.show_limits),
            *Calling(self._service, lambda: self._service.loaded.config.server.envelope).routes(),
            *Admin(self._service, time.time).routes(),
            *publish.routes(self._service),
            *sources.routes(self._service),
            *usage.routes(self._service),
            *audit.routes(self._service, time.time),
            *OAuth(self._service).routes(),
            *TeamRoutes(self._service).routes(),
        )
        self.openapi.rows = (*rows, _MCP)
        return rows

    async def health(self, exchange: Exchange) -> Answer:
        service = self._service
        found = service.engine.health()
        if service.engine.draining:
            raise Problem(Code.UNAVAILABLE, "the server is shutting down")
        # The reason is logged, not returned: it may name files of this machine.
        if found.pop("trouble", None) and not any(found["workers"].values()):
            raise Problem(Code.UNAVAILABLE, "no worker can be started at the moment", retry_after_s=1)
        if exchange.keyed and not exchange.identity.operator:
            return json_answer({"status": "ok", "version": engine_version()})
        # After an edit with an error the last good configuration stays in force; the log has the reason.
        configuration = "ok" if service.trouble is None else "stale"
        about = {"scripts_failing": len(service.failures), "configuration": configuration}
        return json_answer({"status": "ok", "version": engine_version(), **found, **about})

    async def show_limits(self, exchange: Exchange) -> Answer:
        tenant, engine = exchange.tenant, self._service.engine
        bound = engine.limits_for({}, tenant)
        stored = await self._service.stored(tenant)
        shown = {
            name: {"value": bound[name], "unit": spec.unit, "source": bound.sources[name]}
            for name, spec in SPECS.items()
        }
        return json_answer({"limits": shown, "quotas": engine.show_quotas(tenant, stored)})

    async def show_metrics(self, exchange: Exchange) -> Answer:
        body = self._service.engine.render_metrics()
        return Answer(200, [(b"content-type", _METRICS), (b"content-length", b"%d" % len(body))], body)


class Calling:
    """The handlers of agents and tools, in whatever process their calls run.

    `envelope` returns `envelope` of `[server]`, which a new configuration may change.
    """

    def __init__(self, calls: Calls, envelope: Callable[[], str] = lambda: "flat") -> None:
        self._calls = calls
        self._envelope = envelope

    def routes(self) -> tuple[Route, ...]:
        """The rows of agents and tools."""
        return (
            Route("GET", "/tools/list", Need.KEY, self.list_tools),
            Route("GET", "/tools/sources", Need.USE, self.get_sources),
            Route("POST", "/tools/<name>", Need.USE, self.post_tool),
            Route("GET", "/agents/list", Need.KEY, self.list_agents),
            Route("POST", "/agents/<name>/prompt", Need.USE, self.prompt),
            Route("GET", "/agents/<name>/source", Need.USE, self.source),
        )

    async def list_tools(self, exchange: Exchange) -> Answer:
        tools = self._calls.list_tools(exchange.tenant, exchange.params.get("agent"))
        return await listed(exchange, "tools", (tool.model_dump() for tool in tools))

    async def list_agents(self, exchange: Exchange) -> Answer:
        agents = self._calls.list_agents(exchange.tenant)
        return await listed(exchange, "agents", (agent.model_dump() for agent in agents))

    async def post_tool(self, exchange: Exchange, name: str) -> Answer:
        if name == "list" and not any(tool.name == name for tool in self._calls.list_tools(exchange.tenant)):
            return not_taken("/tools/list", ("GET", "HEAD", "OPTIONS"))  # the list, unless a tool has that name
        arguments, wrapped = unwrap(await read_object(exchange))
        return await self._call_tool(exchange, name, arguments, wrapped)

    async def get_sources(self, exchange: Exchange) -> Answer:
        return await self._call_tool(exchange, "sources", {}, False)

    async def _call_tool(self, exchange: Exchange, name: str, arguments: dict[str, Any], wrapped: bool) -> Answer:
        agent = exchange.params.get("agent")
        info = self._calls.tool_info(exchange.tenant, name)
        flat = info is not None and info.builtin and not wrapped and not self._always_wrapped(exchange)
        call = Call(exchange.tenant, seat=Seat.of(exchange.params))
        called = await self._calls.call_tool(name, arguments, call, agent=agent)
        if called.model_run is not None:
            size = len(called.value) if isinstance(called.value, str) else RENDERED_AT_ONCE
            return await _charged(exchange, {"result": called.value, "run": called.model_run.as_json()}, size)
        return await _charged(exchange, called.value if flat else {"result": called.value}, _size(called.run))

    def _always_wrapped(self, exchange: Exchange) -> bool:
        """Whether the builtin tools answer as all others, for clients of ctx. Raises Problem."""
        envelope = exchange.params.get("envelope", self._envelope())
        if envelope not in ("flat", "wrapped"):
            raise Problem(Code.BAD_REQUEST, f"envelope must be 'flat' or 'wrapped', not {envelope[:64]!r}")
        return envelope == "wrapped"

    async def prompt(self, exchange: Exchange, name: str) -> Answer:
        arguments, wrapped = unwrap(await read_object(exchange))
        resolved = await self._calls.resolve(name, arguments, Call(exchange.tenant))
        value = resolved.prompt.model_dump()
        if gone := resolved.about.get("engine/chatmd", {}).get("unavailable"):
            value["unavailable"] = gone
        size = _size(resolved.run) + resolved.size
        return await _charged(exchange, {"result": value} if wrapped else value, size)

    async def source(self, exchange: Exchange, name: str) -> Answer:
        found = self._calls.source(exchange.tenant, name)
        return await _charged(exchange, found, len(found["source"]))


def _size(run: RunResult | None) -> int:
    return 0 if run is None else run.usage.bytes_out


async def _charged(exchange: Exchange, value: Any, size: int) -> Answer:
    """An answer of about this size. The rendering of a large one is charged, and done in pieces."""
    answer = json_answer(value) if size < RENDERED_AT_ONCE else body_answer(await in_pieces(encoding(value)))
    if cpu_s := render_cpu_s(len(answer.body)):
        exchange.charge(cpu_s)
        await trio.lowlevel.checkpoint()  # before it is copied after its head, and sent
    return answer


class Rest:
    """The ASGI application of REST: calls are dispatched directly, all other routes through Quart.

    `table` has every route of the server, including the path of MCP; `Auth` looks requests up in it.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self.mcp = _MCP
        self.table = Table((*routes, self.mcp))
        self.quart = _quart(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        found = exchange.found
        route = found.route
        if route is None:
            await send_answer(_nothing(scope["method"], scope["path"], found), send)
        elif route.rule in _CALLED:
            try:
                answer = await route.answer(exchange, found.names)
            except Exception as error:
                answer = _failed(error, scope["path"])
            await send_answer(answer, send)
        else:
            await self.quart(scope, receive, send)  # type: ignore[arg-type]


def _nothing(method: str, path: str, found: Found) -> Answer:
    """The answer without a route: OPTIONS, a method that the path does not allow, or an unknown path."""
    if not found.methods:
        return problem_answer(Problem(Code.NOT_FOUND, f"there is nothing at {path[:200]}"))
    return options(found.methods) if method == "OPTIONS" else not_taken(path, found.methods)


class _Answered(QuartResponse):
    """A complete answer, without the conveniences of Quart's response class."""

    timeout = None

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__(None, answer.status)


class _Connection(TrioASGIHTTPConnection):
    """One request through Quart. The guard has read the body and watches for disconnects, so no task is needed here."""

    async def __call__(self, receive: Receive, send: Send) -> None:  # type: ignore[override]
        response = await self.app.handle_request(self._create_request_from_scope(send))  # type: ignore[arg-type]
        assert isinstance(response, _Answered)
        await send_answer(response.answer, send)


class _Rule(QuartRule):
    """A rule for requests alone: two functions that build URLs would take 0.7 ms to compile, and nothing calls them."""

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        return _no_url


def _no_url(*_: object, **__: object) -> tuple[str, str]:
    raise RuntimeError("URLs are not made of rules")


class _Quart(QuartTrio):
    asgi_http_class = _Connection
    url_rule_class = _Rule  # type: ignore[assignment]  # as Quart does itself


def _view(route: Route) -> Callable[..., Awaitable[QuartResponse]]:
    """A route as a view. It serves the route that was authorized, never another one that Quart's router might find."""

    async def view(**names: str) -> QuartResponse:
        exchange = exchange_of(request.scope)  # type: ignore[arg-type]
        if exchange.found.route is not route or exchange.found.names != names:
            raise RuntimeError(f"the router found {route.method} {route.rule}, which is not what was authorized")
        return _Answered(await route.answer(exchange, names))

    return view


def _quart(routes: Iterable[Route]) -> QuartTrio:
    app = _Quart("server", static_folder=None, template_folder=None)
    app.url_map.merge_slashes = False  # a doubled slash is a different path, not a redirect
    for route in routes:
        app.add_url_rule(
            route.rule, f"{route.method} {route.rule}", _view(route),
            methods=[route.method], provide_automatic_options=False,
        )  # fmt: skip

    async def failed(error: Exception) -> QuartResponse:
        return _Answered(_failed(error, request.path))

    app.register_error_handler(Exception, failed)
    return app


def _failed(error: Exception, path: str) -> Answer:
    """The answer for an exception from a handler."""
    cause = leaf(error)
    return problem_answer(cause if isinstance(cause, Problem) else internal(report(cause, path)))

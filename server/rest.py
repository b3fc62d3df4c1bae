"""The REST front end: every route of CONTRACT section 3, behind the guard. Quart-Trio has all of them but calls."""

import time
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST
from quart import Response as QuartResponse
from quart import request
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from agents.agent import Call
from engine.errors import Code, Problem, leaf
from sandbox.limits import SPECS
from server import publish, usage
from server.admin import Admin, Handler
from server.asgi import Exchange, Receive, Scope, Send, agent_of, exchange_of, send_answer
from server.body import read_object, unwrap
from server.logs import report
from server.problems import Answer, internal, json_answer, problem_answer, render_cpu_s

if TYPE_CHECKING:
    from agents.service import Service

# The builtin tools whose answer to a flat body is flat too (seed "MCP Server API", the shapes of each).
FLAT_TOOLS = frozenset({"search", "get", "sources"})

# The routes that are answered without Quart: one name in the path, and nothing else to decide.
_CALLED = frozenset({("POST", "/tools/<name>"), ("POST", "/agents/<name>/prompt")})

_METRICS = CONTENT_TYPE_LATEST.encode()


@cache
def engine_version() -> str:
    """The version of this package, as installed."""
    try:
        return version("engine")
    except PackageNotFoundError:
        return "0"


class Routes:
    """The handlers of one service, and the one list of where each is. A handler knows nothing of Quart."""

    def __init__(self, service: "Service") -> None:
        self._service = service

    def all(self) -> tuple[tuple[str, str, Handler], ...]:
        """Every route as rule, method and handler."""
        return (
            ("/health", "GET", self.health),
            ("/metrics", "GET", self.show_metrics),
            ("/limits", "GET", self.show_limits),
            ("/tools/list", "GET", self.list_tools),
            ("/tools/sources", "GET", self.get_sources),
            ("/tools/<name>", "POST", self.post_tool),
            ("/agents/list", "GET", self.list_agents),
            ("/agents/<name>/prompt", "POST", self.prompt),
            *Admin(self._service, time.time).routes(),
            *publish.routes(self._service),
            *usage.routes(self._service),
        )

    async def health(self, exchange: Exchange) -> Answer:
        service = self._service
        found = service.engine.health()
        if service.engine.draining:
            raise Problem(Code.UNAVAILABLE, "the server is shutting down")
        # Why is in the log: the reason may name files of this machine.
        if found.pop("trouble", None) and not any(found["workers"].values()):
            raise Problem(Code.UNAVAILABLE, "no worker can be made at the moment", retry_after_s=1)
        if service.loaded.config.tenants.enabled and not exchange.identity.operator:
            return json_answer({"status": "ok", "version": engine_version()})
        # Of a configuration that was edited and cannot be used, the last good one is in force: why is in the log.
        configuration = "ok" if service.trouble is None else "stale"
        about = {"scripts_failing": len(service.failures), "configuration": configuration}
        return json_answer({"status": "ok", "version": engine_version(), **found, **about})

    async def list_tools(self, exchange: Exchange) -> Answer:
        tools = self._service.list_tools(exchange.tenant, agent_of(exchange.query))
        return json_answer({"tools": [tool.model_dump() for tool in tools]})

    async def list_agents(self, exchange: Exchange) -> Answer:
        return json_answer({"agents": [agent.model_dump() for agent in self._service.list_agents(exchange.tenant)]})

    async def post_tool(self, exchange: Exchange, name: str) -> Answer:
        if name == "list" and not any(tool.name == name for tool in self._service.list_tools(exchange.tenant)):
            raise MethodNotAllowed(["GET", "HEAD"])  # the path of a listing, unless a tool has that name
        arguments, wrapped = unwrap(await read_object(exchange))
        return await self._call_tool(exchange, name, arguments, wrapped)

    async def get_sources(self, exchange: Exchange) -> Answer:
        return await self._call_tool(exchange, "sources", {}, False)

    async def _call_tool(self, exchange: Exchange, name: str, arguments: dict[str, Any], wrapped: bool) -> Answer:
        agent = agent_of(exchange.query)
        called = await self._service.call_tool(name, arguments, Call(exchange.tenant), agent=agent)
        return _charged(
            exchange, json_answer(called.value if name in FLAT_TOOLS and not wrapped else {"result": called.value})
        )

    async def prompt(self, exchange: Exchange, name: str) -> Answer:
        arguments, wrapped = unwrap(await read_object(exchange))
        resolved = await self._service.resolve(name, arguments, Call(exchange.tenant))
        value = resolved.prompt.model_dump()
        return _charged(exchange, json_answer({"result": value} if wrapped else value))

    async def show_limits(self, exchange: Exchange) -> Answer:
        tenant, engine = exchange.tenant, self._service.engine
        bound = engine.limits_for({}, tenant)
        stored = await self._service.stored_bytes(tenant) if self._service.loaded.config.tenants.enabled else None
        shown = {
            name: {"value": bound[name], "unit": spec.unit, "source": bound.sources[name]}
            for name, spec in SPECS.items()
        }
        return json_answer({"limits": shown, "quotas": engine.show_quotas(tenant, stored)})

    async def show_metrics(self, exchange: Exchange) -> Answer:
        if not exchange.identity.operator:
            tenants = self._service.loaded.config.tenants.enabled
            whom = "the operator's key" if tenants else "clients on this machine"
            raise Problem(Code.FORBIDDEN, f"metrics are for {whom}")
        body = self._service.engine.render_metrics()
        return Answer(200, [(b"content-type", _METRICS), (b"content-length", b"%d" % len(body))], body)


def _charged(exchange: Exchange, answer: Answer) -> Answer:
    """The answer of a script, paid for if it is large."""
    if cpu_s := render_cpu_s(len(answer.body)):
        exchange.charge(cpu_s)
    return answer


class Rest:
    """The ASGI application of REST: what is called, at once; everything else through Quart, by the same routes."""

    def __init__(self, service: "Service") -> None:
        self.routes = Routes(service).all()
        # Rules of what is called, by the text around the one name in them. Such a POST needs no router: what Quart
        # makes of every request (its contexts, its request and response) was a sixth of what a prompt cost.
        self._called: list[tuple[str, str, Handler]] = []
        for rule, method, handler in self.routes:
            if (method, rule) in _CALLED:
                before, _, after = rule.partition("<name>")
                self._called.append((before, after, handler))
        self.quart = _quart(self.routes)

    def called(self, method: str, path: str) -> tuple[Handler, str] | None:
        """The handler of a call and the name in its path: those that Quart's router would find. None: ask that."""
        if method == "POST":
            for before, after, handler in self._called:
                name = path[len(before) : len(path) - len(after)]
                if name and "/" not in name and path == f"{before}{name}{after}":
                    return handler, name
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        called = self.called(scope["method"], path)
        if called is None:
            await self.quart(scope, receive, send)  # type: ignore[arg-type]
            return
        handler, name = called
        try:
            answer = await handler(exchange_of(scope), name=name)
        except Exception as error:
            answer = _failed(error, path)
        await send_answer(answer, send)


class _Answered(QuartResponse):
    """A complete answer, which needs none of the response class's conveniences."""

    timeout = None

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__(None, answer.status)


class _Connection(TrioASGIHTTPConnection):
    """One request through Quart. The guard has the body and watches the client, so neither needs a task here."""

    async def __call__(self, receive: Receive, send: Send) -> None:  # type: ignore[override]
        response = await self.app.handle_request(self._create_request_from_scope(send))  # type: ignore[arg-type]
        if isinstance(response, _Answered):
            answer = response.answer
        else:  # Quart's own: the answer to OPTIONS
            headers = [(name.lower().encode(), value.encode()) for name, value in response.headers.items()]
            answer = Answer(response.status_code, headers, b"")
        await send_answer(answer, send)


class _Quart(QuartTrio):
    asgi_http_class = _Connection


def _view(handler: Handler) -> Callable[..., Awaitable[QuartResponse]]:
    """A handler as a view."""

    async def view(**names: str) -> QuartResponse:
        return _Answered(await handler(exchange_of(request.scope), **names))  # type: ignore[arg-type]

    return view


def _quart(routes: Iterable[tuple[str, str, Handler]]) -> QuartTrio:
    app = _Quart("server", static_folder=None, template_folder=None)
    app.url_map.merge_slashes = False  # a doubled slash is another path, not a reason to redirect
    for rule, method, handler in routes:
        app.add_url_rule(rule, f"{method} {rule}", _view(handler), methods=[method])

    async def failed(error: Exception) -> QuartResponse:
        return _Answered(_failed(error, request.path))

    app.register_error_handler(Exception, failed)
    return app


def _failed(error: Exception, path: str) -> Answer:
    """The answer to what a handler, or Quart's router, raised."""
    cause = leaf(error)
    if isinstance(cause, HTTPException):
        return _routing(cause, path)
    return problem_answer(cause if isinstance(cause, Problem) else internal(report(cause, path)))


def _routing(error: HTTPException, path: str) -> Answer:
    """What Quart's router says, in the envelope."""
    if isinstance(error, MethodNotAllowed):
        methods = sorted({*(error.valid_methods or ()), "OPTIONS"})
        answer = problem_answer(
            Problem(Code.METHOD_NOT_ALLOWED, f"{path[:200]} does not take this method; it takes {', '.join(methods)}")
        )
        answer.headers.append((b"allow", ", ".join(methods).encode()))
        return answer
    if error.code == 404:
        return problem_answer(Problem(Code.NOT_FOUND, f"there is nothing at {path[:200]}"))
    return problem_answer(Problem(Code.BAD_REQUEST, "the request cannot be understood"), error.code or 400)

"""The REST front end: every route of CONTRACT section 3, as a Quart-Trio application behind the guard."""

import time
from collections.abc import Awaitable, Callable
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
from server.asgi import Exchange, Receive, Send, agent_of, exchange_of
from server.body import parse_object, unwrap
from server.logs import report
from server.problems import Answer, internal, json_answer, problem_answer

if TYPE_CHECKING:
    from agents.service import Service

# The builtin tools whose answer to a flat body is flat too (seed "MCP Server API", the shapes of each).
FLAT_TOOLS = frozenset({"search", "get", "sources"})

_METRICS = CONTENT_TYPE_LATEST.encode()


@cache
def engine_version() -> str:
    """The version of this package, as installed."""
    try:
        return version("engine")
    except PackageNotFoundError:
        return "0"


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
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body})


class _Quart(QuartTrio):
    asgi_http_class = _Connection


def _json(value: Any) -> QuartResponse:
    return _Answered(json_answer(value))


def _exchange() -> Exchange:
    return exchange_of(request.scope)  # type: ignore[arg-type]


def _view(handler: Handler) -> Callable[..., Awaitable[QuartResponse]]:
    """A handler that knows nothing of Quart, as a view."""

    async def view(**names: str) -> QuartResponse:
        return _Answered(await handler(_exchange(), **names))

    return view


def create(service: "Service") -> QuartTrio:
    """The application for one service."""
    app = _Quart("server", static_folder=None, template_folder=None)
    app.url_map.merge_slashes = False  # a doubled slash is another path, not a reason to redirect
    engine = service.engine

    async def health() -> QuartResponse:
        found = engine.health()
        if engine.draining:
            raise Problem(Code.UNAVAILABLE, "the server is shutting down")
        # Why is in the log: the reason may name files of this machine.
        if found.pop("trouble", None) and not any(found["workers"].values()):
            raise Problem(Code.UNAVAILABLE, "no worker can be made at the moment", retry_after_s=1)
        if service.loaded.config.tenants.enabled and not _exchange().identity.operator:
            return _json({"status": "ok", "version": engine_version()})
        # Of a configuration that was edited and cannot be used, the last good one is in force: why is in the log.
        configuration = "ok" if service.trouble is None else "stale"
        about = {"scripts_failing": len(service.failures), "configuration": configuration}
        return _json({"status": "ok", "version": engine_version(), **found, **about})

    async def list_tools() -> QuartResponse:
        exchange = _exchange()
        tools = service.list_tools(exchange.tenant, agent_of(exchange.query))
        return _json({"tools": [tool.model_dump() for tool in tools]})

    async def list_agents() -> QuartResponse:
        return _json({"agents": [agent.model_dump() for agent in service.list_agents(_exchange().tenant)]})

    async def post_tool(name: str) -> QuartResponse:
        exchange = _exchange()
        if name == "list" and not any(tool.name == name for tool in service.list_tools(exchange.tenant)):
            raise MethodNotAllowed(["GET", "HEAD"])  # the path of a listing, unless a tool has that name
        arguments, wrapped = unwrap(parse_object(exchange.body, exchange.headers.get(b"content-type")))
        return await call_tool(exchange, name, arguments, wrapped)

    async def get_sources() -> QuartResponse:
        return await call_tool(_exchange(), "sources", {}, False)

    async def call_tool(exchange: Exchange, name: str, arguments: dict[str, Any], wrapped: bool) -> QuartResponse:
        called = await service.call_tool(name, arguments, Call(exchange.tenant), agent=agent_of(exchange.query))
        return _json(called.value if name in FLAT_TOOLS and not wrapped else {"result": called.value})

    async def prompt(name: str) -> QuartResponse:
        exchange = _exchange()
        arguments, wrapped = unwrap(parse_object(exchange.body, exchange.headers.get(b"content-type")))
        resolved = await service.resolve(name, arguments, Call(exchange.tenant))
        value = resolved.prompt.model_dump()
        return _json({"result": value} if wrapped else value)

    async def show_limits() -> QuartResponse:
        tenant = _exchange().tenant
        bound = engine.limits_for({}, tenant)
        stored = await service.stored_bytes(tenant) if service.loaded.config.tenants.enabled else None
        shown = {
            name: {"value": bound[name], "unit": spec.unit, "source": bound.sources[name]}
            for name, spec in SPECS.items()
        }
        return _json({"limits": shown, "quotas": engine.show_quotas(tenant, stored)})

    async def show_metrics() -> QuartResponse:
        if not _exchange().identity.operator:
            tenants = service.loaded.config.tenants.enabled
            whom = "the operator's key" if tenants else "clients on this machine"
            raise Problem(Code.FORBIDDEN, f"metrics are for {whom}")
        body = engine.render_metrics()
        return _Answered(Answer(200, [(b"content-type", _METRICS), (b"content-length", b"%d" % len(body))], body))

    for rule, method, view in (
        ("/health", "GET", health),
        ("/metrics", "GET", show_metrics),
        ("/limits", "GET", show_limits),
        ("/tools/list", "GET", list_tools),
        ("/tools/sources", "GET", get_sources),
        ("/tools/<name>", "POST", post_tool),
        ("/agents/list", "GET", list_agents),
        ("/agents/<name>/prompt", "POST", prompt),
    ):
        app.add_url_rule(rule, view.__name__, view, methods=[method])

    admin = Admin(service, time.time)
    for rule, method, handler in (*admin.routes(), *publish.routes(service), *usage.routes(service)):
        app.add_url_rule(rule, f"{method} {rule}", _view(handler), methods=[method])

    async def failed(error: Exception) -> QuartResponse:
        cause = leaf(error)
        if isinstance(cause, HTTPException):
            return _Answered(_routing(cause, request.path))
        problem = cause if isinstance(cause, Problem) else internal(report(cause, request.path))
        return _Answered(problem_answer(problem))

    app.register_error_handler(Exception, failed)
    return app


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

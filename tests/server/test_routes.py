"""Who reaches what: each route, asked by each kind of caller in each spelling of its path, over a real socket.

What is expected is written down here, apart from the server's own table, so that a route cannot be added, nor what it
needs be changed, without a line in `ROUTES`.
"""

import gc
import re
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from effort import whole
from keys_support import keyed
from server_support import FakeEngine, FakeService, Running, assert_envelope, parse, request, serving

from engine.errors import Problem
from server.http.asgi import Exchange
from server.http.routes import Need, Route, Table
from server.problems import Answer, json_answer
from server.rest.routes import Rest, Routes

OPEN, KEY, USE, PUBLISH, VERSIONS, ADMIN, AUDIT, METRICS, OPERATOR = (
    "open", "any key", "use", "publish", "publish or admin", "admin", "audit", "metrics", "operator",
)  # fmt: skip

ROUTES = {
    "GET /health": OPEN,
    "GET /.well-known/oauth-protected-resource": OPEN,
    "GET /.well-known/oauth-protected-resource/mcp": OPEN,
    "GET /metrics": METRICS,
    "GET /openapi.json": KEY,
    "GET /limits": KEY,
    "GET /audit": AUDIT,
    "GET /usage": KEY,
    "GET /tools/list": KEY,
    "GET /tools/sources": USE,
    "POST /sources/<label>/sync": ADMIN,
    "POST /teams": USE,
    "GET /teams": USE,
    "GET /teams/<name>": USE,
    "DELETE /teams/<name>": USE,
    "GET /teams/<name>/events": USE,
    "POST /teams/<name>/stop": USE,
    "POST /tools/<name>": USE,
    "PUT /tools/<name>": PUBLISH,
    "GET /tools/<name>/versions": VERSIONS,
    "GET /tools/<name>/versions/<version>": VERSIONS,
    "GET /tools/<name>/versions/<version>/files": VERSIONS,
    "GET /tools/<name>/versions/<version>/files/<path:path>": VERSIONS,
    "POST /tools/<name>/versions/<version>/activate": PUBLISH,
    "POST /tools/<name>/versions/<version>/approve": ADMIN,
    "POST /tools/<name>/versions/<version>/deprecate": PUBLISH,
    "GET /agents/list": KEY,
    "POST /agents/<name>/prompt": USE,
    "GET /agents/<name>/source": USE,
    "PUT /agents/<name>": PUBLISH,
    "GET /agents/<name>/versions": VERSIONS,
    "GET /agents/<name>/versions/<version>": VERSIONS,
    "GET /agents/<name>/versions/<version>/files": VERSIONS,
    "GET /agents/<name>/versions/<version>/files/<path:path>": VERSIONS,
    "POST /agents/<name>/versions/<version>/activate": PUBLISH,
    "POST /agents/<name>/versions/<version>/approve": ADMIN,
    "POST /agents/<name>/versions/<version>/deprecate": PUBLISH,
    "* /mcp": USE,
    "GET /admin/tenants": OPERATOR,
    "POST /admin/tenants": OPERATOR,
    "GET /admin/tenants/<name>": OPERATOR,
    "PUT /admin/tenants/<name>": OPERATOR,
    "DELETE /admin/tenants/<name>": OPERATOR,
    "GET /admin/tenants/<name>/usage": OPERATOR,
    "POST /admin/tenants/<name>/suspend": OPERATOR,
    "POST /admin/tenants/<name>/resume": OPERATOR,
    "GET /admin/tenants/<name>/keys": OPERATOR,
    "POST /admin/tenants/<name>/keys": OPERATOR,
    "DELETE /admin/keys/<name>": OPERATOR,
    "GET /admin/tenants/<name>/secrets": OPERATOR,
    "PUT /admin/tenants/<name>/secrets/<secret>": OPERATOR,
    "DELETE /admin/tenants/<name>/secrets/<secret>": OPERATOR,
    "GET /admin/audit": OPERATOR,
}
# Who gets in with keys: none of these hear 403, or without a key 401.
WITH_KEYS = {
    OPEN: {"none", "wrong", "use", "publish", "admin", "operator"},
    KEY: {"use", "publish", "admin", "operator"},
    USE: {"use", "operator"},
    PUBLISH: {"publish", "operator"},
    VERSIONS: {"publish", "admin", "operator"},
    ADMIN: {"admin", "operator"},
    AUDIT: {"admin", "operator"},
    METRICS: {"operator"},
    OPERATOR: {"operator"},
}
# And without: clients on this machine, and those that come from elsewhere (`server.allow_anonymous`).
WITHOUT_KEYS: dict[str, dict[str, int]] = {
    OPEN: {"here": 200, "elsewhere": 200},
    KEY: {"here": 200, "elsewhere": 200},
    USE: {"here": 200, "elsewhere": 200},
    PUBLISH: {"here": 200, "elsewhere": 403},
    VERSIONS: {"here": 200, "elsewhere": 403},
    ADMIN: {"here": 200, "elsewhere": 403},
    METRICS: {"here": 200, "elsewhere": 403},
    AUDIT: {"here": 404, "elsewhere": 404},
    OPERATOR: {"here": 404, "elsewhere": 404},
}
CODES = {400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed"}


def expected(who: str, need: str) -> int:
    """The status that this caller gets where a handler answers 200."""
    if who in WITHOUT_KEYS[need]:
        return WITHOUT_KEYS[need][who]
    return 200 if who in WITH_KEYS[need] else 401 if who in ("none", "wrong") else 403


def spelled(path: str) -> Iterator[str]:
    """Targets that some program might take for this path, and that are not it."""
    parts = path.split("/")[1:]
    yield from (
        "/" + path,
        "//" + path,
        path + "/",
        path + "//",
        "/." + path,
        "/x/.." + path,
        path + "/.",
        path + "/x/..",
    )
    for place in range(1, len(parts)):
        head, tail = "/".join(parts[:place]), "/".join(parts[place:])
        yield from (f"/{head}//{tail}", f"/{head}/./{tail}", f"/{head}/x/../{tail}", f"/{head}%2F{tail}")
        yield from (f"/{head}%2f{tail}", f"/{head}\\{tail}", f"/{head}%5C{tail}", f"/{head};a=b/{tail}")
    first = path[1]
    yield from (f"/%{ord(first):02x}{path[2:]}", f"/%{ord(first):02X}{path[2:]}", f"/%25{ord(first):02x}{path[2:]}")
    yield from (
        path + ";",
        path + ";a=b",
        path + "%00",
        path + "%20",
        path + "%0a",
        path + "%",
        path + "%ff",
        path + "#x",
    )
    yield from (path.replace("/", "\\"), path.replace("/", "%2f"), "%2f" + path[1:], path[1:])
    yield from (f"http://localhost/{path}", f"http://u@localhost{path}", f"http://localhost{path}/", "http:" + path)


class Caller:
    """One caller's connection: kept for as long as the server keeps it."""

    def __init__(self, running: Running, header: str) -> None:
        self._running = running
        self._header = header
        self._stream: trio.SocketStream | None = None

    async def ask(self, method: str, target: str, *headers: str) -> httpx2.Response:
        self._stream = self._stream or await self._running.connect()
        await self._stream.send_all(request(method, target, b"", *filter(None, (self._header, *headers))))
        data = b""
        with trio.fail_after(20):
            while b"\r\n\r\n" not in data:
                data += await self._part()
            head, _, body = data.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            while method != "HEAD" and length is not None and len(body) < int(length[1]):
                body += await self._part()
        answer = parse(head + b"\r\n\r\n" + body)
        if answer.headers.get("connection") == "close":
            await self.close()
        return answer

    async def _part(self) -> bytes:
        assert self._stream is not None
        part = await self._stream.receive_some(65536)
        assert part, "the server closed the connection"
        return bytes(part)

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None


@dataclass
class Asked:
    """A server whose handlers only say that they were reached, and callers by name."""

    running: Running
    headers: dict[str, str]
    reached: list[str] = field(default_factory=list)

    @property
    def table(self) -> Table:
        return self.running.guard.auth.table

    @asynccontextmanager
    async def callers(self) -> AsyncIterator[dict[str, Caller]]:
        callers = {who: Caller(self.running, header) for who, header in self.headers.items()}
        yield callers
        for caller in callers.values():
            await caller.close()

    def replace_handlers(self) -> None:
        for route in self.table.routes:
            if route.handler is not None:
                object.__setattr__(route, "handler", self._handler(route))

    def _handler(self, route: Route) -> Any:
        async def handler(exchange: Exchange, **names: str) -> Answer:
            self.reached.append(f"{route.method} {route.rule}")
            return json_answer({"names": names})

        return handler


@asynccontextmanager
async def asked(folder: Path | None) -> AsyncIterator[Asked]:
    """With keys where there is a folder for them, else without."""
    if folder is None:
        async with serving() as running:
            found = Asked(running, {"here": "", "elsewhere": "X-Forwarded-For: 203.0.113.9"})
            found.replace_handlers()
            yield found
        return
    async with keyed(folder) as server:
        callers = {"none": "", "wrong": "X-API-Key: ek_000000000000_" + "0" * 64}
        for who in ("use", "publish", "admin", "operator"):
            callers[who] = f"X-API-Key: {server.keys[who]}"
        found = Asked(server.running, callers)
        found.replace_handlers()
        yield found


def concrete(row: str) -> tuple[str, str]:
    """The method and a path of a row."""
    method, rule = row.split(" ")
    return "POST" if method == "*" else method, re.sub("<[^>]+>", "acme", rule)


def test_every_route_has_its_line_here() -> None:
    rest = Rest(Routes(FakeService()).all())  # type: ignore[arg-type]
    assert {f"{route.method} {route.rule}" for route in rest.table.routes} == set(ROUTES)
    assert len({*ROUTES.values()}) == len(Need) == len(WITH_KEYS) == len(WITHOUT_KEYS)


@pytest.fixture(params=["keys", "no keys"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Asked]:
    async with asked(tmp_path if request.param == "keys" else None) as found:
        yield found


async def test_each_caller_reaches_exactly_what_its_row_says(server: Asked) -> None:
    async with server.callers() as callers:
        for who, caller in callers.items():
            for row, need in ROUTES.items():
                method, path = concrete(row)
                override = "X-HTTP-Method-Override: DELETE"
                for asking in (method, *(["HEAD"] if method == "GET" else [])):
                    for target in (path, f"http://localhost{path}", *(["/mcp/"] if path == "/mcp" else [])):
                        server.reached.clear()
                        answer = await caller.ask(asking, target, override)
                        status = expected(who, need)
                        reached = [row] if status == 200 else []
                        if reached and path == "/mcp":  # what it answers to an empty body
                            status, reached = 415, []
                        assert answer.status_code == status, (who, asking, target, answer.text)
                        assert server.reached == reached, (who, asking, target)


@pytest.mark.whole
async def test_no_other_spelling_of_a_path_reaches_anything(server: Asked) -> None:
    paths = {concrete(row): None for row in ROUTES}
    async with server.callers() as callers:
        # Each spelling by the caller who may reach everything, and by one of the others in turn: what a path is does
        # not depend on who asks.
        able = "operator" if "operator" in callers else "here"
        others = cycle(sorted(callers.keys() - {able}))
        for method, path in paths:
            for target in dict.fromkeys(spelled(path)):
                if target in ("/mcp/", "http://localhost/mcp/"):  # two that are documented
                    continue
                for who in callers if whole() else (able, next(others)):
                    answer = await callers[who].ask(method, target)
                    allowed = {401} if who in ("none", "wrong") else {400, 404}
                    assert answer.status_code in allowed, (who, method, target, answer.text)
                    assert_envelope(answer, answer.status_code, CODES[answer.status_code])
    assert server.reached == []


async def test_no_other_method_of_a_path_reaches_its_handlers(server: Asked) -> None:
    taken: dict[str, set[str]] = {}
    for row in ROUTES:
        if row != "* /mcp":
            method, path = concrete(row)
            taken.setdefault(path, set()).add(method)
    taken["/tools/list"] |= taken["/tools/acme"]
    taken["/tools/sources"] |= taken["/tools/acme"]
    taken["/agents/list"] |= taken["/agents/acme"]
    async with server.callers() as callers:
        for who, caller in callers.items():
            for path, methods in taken.items():
                for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"} - methods:
                    answer = await caller.ask(method, path)
                    refused = 204 if method == "OPTIONS" else 405
                    if path.startswith("/admin") and who != "operator":
                        refused = {"none": 401, "wrong": 401, "here": 404, "elsewhere": 404}.get(who, 403)
                    elif who in ("none", "wrong") and ROUTES.get(f"GET {path}") != OPEN:
                        refused = 401
                    assert answer.status_code == refused, (who, method, path, answer.text)
                    if refused in (204, 405):
                        allow = sorted({*methods, "OPTIONS", *(["HEAD"] if "GET" in methods else [])})
                        assert answer.headers["allow"] == ", ".join(allow)
    assert server.reached == []


async def test_where_nothing_is_the_answer_depends_on_the_area_alone(server: Asked) -> None:
    async with server.callers() as callers:
        for who, caller in callers.items():
            for path, need in (
                ("/admin", OPERATOR), ("/admin/nothing", OPERATOR), ("/admin/tenants/a/b/c", OPERATOR),
                ("/nothing", KEY), ("/ADMIN/tenants", KEY), ("/administrator", KEY), ("/Mcp", KEY), ("/", KEY),
                ("/.well-known/x", OPEN), ("/.well-known", KEY),
            ):  # fmt: skip
                answer = await caller.ask("GET", path)
                status = expected(who, need)
                assert_envelope(answer, 404 if status == 200 else status, CODES[404 if status == 200 else status])


# ---- the table itself -------------------------------------------------------------------------------------------


async def _handler(exchange: Exchange, **names: str) -> Answer:
    return json_answer(names)


async def test_a_handler_is_not_reached_by_an_exchange_without_a_check() -> None:
    for need in Need:
        exchange = Exchange({}, trio.CancelScope())
        route = Route("GET", "/x", need, _handler)
        if need is Need.NOTHING:
            assert (await route.answer(exchange, {})).status == 200
        else:
            with pytest.raises(Problem, match="a valid API key"):
                await route.answer(exchange, {})


@pytest.mark.parametrize("rules", [("/a", "/a"), ("/a/<name>", "/a/<name>"), ("/<name>",)])
def test_a_table_in_which_a_path_has_two_rows_is_refused(rules: Iterable[str]) -> None:
    with pytest.raises(ValueError, match=r"twice|first part"):
        Table(Route("GET", rule, Need.KEY, _handler) for rule in rules)


# ---- what refusals cost and leave behind ------------------------------------------------------------------------


async def test_a_refused_request_counts_against_its_tenants_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    monkeypatch.setattr(FakeEngine, "count_request", lambda _, tenant: counted.append(tenant.id))
    async with asked(tmp_path) as server, server.callers() as callers:
        targets = ("/admin/tenants", "//admin/tenants", "/metrics", "/nothing", "/limits?agent=a&agent=b", "/limits")
        for target in targets:
            for who in ("none", "wrong", "operator", "use"):
                await callers[who].ask("GET", target)
        assert counted == ["acme"] * len(targets)


async def test_refused_requests_leave_nothing_in_memory(tmp_path: Path) -> None:
    async with asked(tmp_path) as server:
        async with server.callers() as callers:
            for who, target in (("none", "/limits"), ("wrong", "/limits"), ("use", "/admin"), ("use", "//limits")):
                for _ in range(30):
                    await callers[who].ask("GET", target)
        gc.collect()
        held = sum(isinstance(each, Exchange) for each in gc.get_objects())
        assert held < 10, f"{held} requests of 120 are still held"


def test_no_module_keeps_an_exception_to_raise_again() -> None:
    """One that is raised again and again keeps the frames of every time, with the request that each had."""
    kept = [
        f"{module}.{name}"
        for module, found in list(sys.modules.items())
        if module.partition(".")[0] in ("server", "engine", "agents", "knowledge", "sandbox")
        for name, value in vars(found).items()
        if isinstance(value, BaseException)
    ]
    assert kept == []

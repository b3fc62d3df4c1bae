"""The publishing part of REST: `PUT /agents/NAME`, `PUT /tools/NAME`, and actions on their versions."""

import re
from functools import partial
from typing import TYPE_CHECKING

from agents.package import Root
from agents.publishing.publish import SCOPE, SHARED, Action
from control.versions.share import ALL
from engine.errors import Code, Problem
from server.http.asgi import Exchange
from server.http.body import read_object
from server.http.etags import ETag
from server.http.routes import Need, Route
from server.problems import Answer, json_answer
from server.rest.lists import listed

if TYPE_CHECKING:
    from agents.service import Service

_PATHS: tuple[tuple[str, Root], ...] = (("agents", "agent"), ("tools", "tool"))
# A number in a query; any other text is refused as it is.
_WHOLE = re.compile("[0-9]{1,3}", re.ASCII)
_NEED = {"publish": Need.PUBLISH, "admin": Need.ADMIN}


def routes(service: "Service") -> list[Route]:
    """Every route. `agents.publishing.publish` decides the scope that an action needs."""
    found: list[Route] = []
    for path, root in _PATHS:
        found.append(Route("PUT", f"/{path}/<name>", Need.PUBLISH, partial(_publish, service, root)))
        found.append(Route("GET", f"/{path}/<name>/versions", Need.VERSIONS, partial(_history, service, root)))
        one = f"/{path}/<name>/versions/<version>"
        found.append(Route("GET", one, Need.VERSIONS, partial(_show, service, root)))
        found.append(Route("GET", f"{one}/files", Need.VERSIONS, partial(_file, service, root)))
        found.append(Route("GET", f"{one}/files/<path:path>", Need.VERSIONS, partial(_file, service, root)))
        found += [
            Route(
                "POST", f"/{path}/<name>/versions/<version>/{action}", _NEED[scope],
                partial(_change, service, root, action),
            )
            for action, scope in SCOPE.items()
        ]  # fmt: skip
    return found


def _check_share(exchange: Exchange) -> None:
    """Raises Problem before the work if the tenant's share of CPU time is used up."""
    with exchange.working():
        pass


async def _publish(service: "Service", root: Root, exchange: Exchange, name: str) -> Answer:
    body = await read_object(exchange)
    given = exchange.params.get("percent")
    percent = int(given) if given is not None and _WHOLE.fullmatch(given) else given
    published = await service.publishing.publish(
        exchange.tenant, exchange.identity, root, name, body, ALL if percent is None else percent
    )
    # 200: the version exists already; 202: stored, pending approval; 201: stored and active.
    return json_answer(published.version, 200 if not published.created else 202 if published.waits else 201)


async def _history(service: "Service", root: Root, exchange: Exchange, name: str) -> Answer:
    _check_share(exchange)
    versions = await service.publishing.history(exchange.tenant, exchange.identity, root, name)
    return await listed(exchange, "versions", versions)


async def _show(service: "Service", root: Root, exchange: Exchange, name: str, version: str) -> Answer:
    _check_share(exchange)
    shown = await service.publishing.show(exchange.tenant, exchange.identity, root, name, version)
    with exchange.working():
        return json_answer(shown)


async def _file(
    service: "Service", root: Root, exchange: Exchange, name: str, version: str, path: str | None = None
) -> Answer:
    """A file by its path in the URL's path, or in the query, which may hold characters that the former may not."""
    path = exchange.params.get("path") if path is None else path
    if not path:
        raise Problem(Code.BAD_REQUEST, "path is missing: .../files/PATH or .../files?path=PATH")
    _check_share(exchange)
    digest, text = await service.publishing.file(exchange.tenant, exchange.identity, root, name, version, path)
    tag = ETag(digest.encode(), path.encode())
    if tag.is_known(exchange.headers):
        return tag.unchanged()
    # A tenant's text, which may look like HTML: `nosniff`, on every answer, keeps browsers from rendering it as a page.
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(text))]
    return tag.on(Answer(200, headers, text))


async def _change(
    service: "Service", root: Root, action: Action, exchange: Exchange, name: str, version: str
) -> Answer:
    if "percent" in exchange.params:  # ignored, it would have every caller get the version
        raise Problem(Code.BAD_REQUEST, 'percent is in the body of this request: {"percent": 10}')
    body = await read_object(exchange)
    percent = body.pop("percent", ALL) if action in SHARED else ALL
    if body:
        takes = "percent alone" if action in SHARED else "no body"
        raise Problem(Code.BAD_REQUEST, f"this takes {takes}: the URL names the version")
    changed = await service.publishing.change(exchange.tenant, exchange.identity, root, name, version, action, percent)
    return json_answer(changed)

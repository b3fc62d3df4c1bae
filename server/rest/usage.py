"""`GET /usage`, and for the operator the usage of any tenant."""

from typing import TYPE_CHECKING

from engine.errors import Code, Problem
from engine.usage import Sheet, as_csv, report
from server.http.asgi import Exchange
from server.http.routes import Need, Route
from server.problems import Answer, json_answer

if TYPE_CHECKING:
    from agents.service import Service


def routes(service: "Service") -> tuple[Route, ...]:
    """Both routes; the one for any tenant needs the operator's access."""

    async def own(exchange: Exchange) -> Answer:
        return answer(exchange, await service.usage.sums_of(exchange.tenant.id))

    async def of_any(exchange: Exchange, name: str) -> Answer:
        tenant = await service.control.tenants.get(name)
        return answer(exchange, await service.usage.sums_of(tenant.name))

    return (
        Route("GET", "/usage", Need.KEY, own),
        Route("GET", "/admin/tenants/<name>/usage", Need.OPERATOR, of_any),
    )


def answer(exchange: Exchange, sheet: Sheet) -> Answer:
    """The totals as JSON, or with `?format=csv` as a table. Raises Problem bad_request."""
    match exchange.params.get("format", "json"):
        case "json":
            return json_answer(report(sheet))
        case "csv":
            body = as_csv(sheet).encode()
            return Answer(
                200, [(b"content-type", b"text/csv; charset=utf-8"), (b"content-length", b"%d" % len(body))], body
            )
    raise Problem(Code.BAD_REQUEST, "format must be json or csv")

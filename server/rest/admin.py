"""The operator's routes under `/admin`: tenants, keys, secrets, the audit log."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from control.records import State, expiry, since
from engine.errors import Code, Problem
from server.http.asgi import Exchange
from server.http.body import read_object
from server.http.routes import Need, Route
from server.problems import Answer, json_answer

if TYPE_CHECKING:
    from agents.service import Service
    from control.store import ControlStore

MAX_ROWS = 10_000

_TEXT = (str, "a text")
_TABLE = (dict, "an object")
_TEXTS = (list, "a list of texts")
_NUMBER = ((int, float), "a number")
Kinds = Mapping[str, tuple[Any, str]]


class Admin:
    """The handlers of one service. Each takes the exchange and the names from its path, and raises Problem."""

    def __init__(self, service: "Service", now: Callable[[], float]) -> None:
        self._service = service
        self._now = now

    def routes(self) -> tuple[Route, ...]:
        """Every route; all of them need the operator's access."""
        rows = (
            ("/admin/tenants", "GET", self.list_tenants),
            ("/admin/tenants", "POST", self.create_tenant),
            ("/admin/tenants/<name>", "GET", self.show_tenant),
            ("/admin/tenants/<name>", "PUT", self.change_tenant),
            ("/admin/tenants/<name>", "DELETE", self.delete_tenant),
            ("/admin/tenants/<name>/suspend", "POST", self.suspend),
            ("/admin/tenants/<name>/resume", "POST", self.resume),
            ("/admin/tenants/<name>/keys", "GET", self.list_keys),
            ("/admin/tenants/<name>/keys", "POST", self.create_key),
            ("/admin/keys/<name>", "DELETE", self.revoke_key),
            ("/admin/tenants/<name>/secrets", "GET", self.list_secrets),
            ("/admin/tenants/<name>/secrets/<secret>", "PUT", self.set_secret),
            ("/admin/tenants/<name>/secrets/<secret>", "DELETE", self.delete_secret),
            ("/admin/audit", "GET", self.audit),
        )
        return tuple(Route(method, rule, Need.OPERATOR, handler) for rule, method, handler in rows)

    @property
    def _control(self) -> "ControlStore":
        return self._service.control

    # ---- tenants -------------------------------------------------------------------------------------------------

    async def list_tenants(self, exchange: Exchange) -> Answer:
        return json_answer({"tenants": [record.as_json() for record in await self._control.tenants.all()]})

    async def create_tenant(self, exchange: Exchange) -> Answer:
        body = await _body(exchange, {"name": _TEXT}, {"quotas": _TABLE, "ceilings": _TABLE, "weight": _NUMBER})
        name = body.pop("name")
        record = await self._control.tenants.create(name, actor=exchange.identity.actor, **body)
        return json_answer(record.as_json(), 201)

    async def show_tenant(self, exchange: Exchange, name: str) -> Answer:
        return json_answer((await self._control.tenants.get(name)).as_json())

    async def change_tenant(self, exchange: Exchange, name: str) -> Answer:
        body = await _body(exchange, {}, {"quotas": _TABLE, "ceilings": _TABLE, "weight": _NUMBER})
        return json_answer((await self._control.tenants.change(name, actor=exchange.identity.actor, **body)).as_json())

    async def delete_tenant(self, exchange: Exchange, name: str) -> Answer:
        proof = await self._control.tenants.delete(name, actor=exchange.identity.actor)
        # Usage that is not in the store yet must not be charged to a later tenant of the same name.
        self._service.engine.book.forget(name)
        return json_answer(proof)

    async def suspend(self, exchange: Exchange, name: str) -> Answer:
        return await self._set_state(exchange, name, "suspended")

    async def resume(self, exchange: Exchange, name: str) -> Answer:
        return await self._set_state(exchange, name, "active")

    async def _set_state(self, exchange: Exchange, name: str, state: State) -> Answer:
        await _body(exchange, {}, {})
        record = await self._control.tenants.set_state(name, state, actor=exchange.identity.actor)
        return json_answer(record.as_json())

    # ---- keys ----------------------------------------------------------------------------------------------------

    async def list_keys(self, exchange: Exchange, name: str) -> Answer:
        return json_answer({"keys": [record.as_json() for record in await self._control.keys.all(name)]})

    async def create_key(self, exchange: Exchange, name: str) -> Answer:
        body = await _body(exchange, {}, {"scopes": _TEXTS, "expires": _TEXT, "labels": _TEXTS})
        expires = body.get("expires")
        record, key = await self._control.keys.create(
            name,
            actor=exchange.identity.actor,
            scopes=body.get("scopes", ("use",)),
            expires_at=None if expires is None else expiry(expires, self._now()),
            labels=body.get("labels", ()),
        )
        return json_answer({"id": record.id, "key": key, **record.as_json()}, 201)

    async def revoke_key(self, exchange: Exchange, name: str) -> Answer:
        return json_answer((await self._control.keys.revoke(name, actor=exchange.identity.actor)).as_json())

    # ---- secrets -------------------------------------------------------------------------------------------------

    async def list_secrets(self, exchange: Exchange, name: str) -> Answer:
        return json_answer({"secrets": [record.as_json() for record in await self._control.secrets.all(name)]})

    async def set_secret(self, exchange: Exchange, name: str, secret: str) -> Answer:
        body = await _body(exchange, {"value": _TEXT, "hosts": _TEXTS}, {})
        record = await self._control.secrets.set(
            name, secret, body["value"], body["hosts"], actor=exchange.identity.actor
        )
        return json_answer(record.as_json())

    async def delete_secret(self, exchange: Exchange, name: str, secret: str) -> Answer:
        await self._control.secrets.delete(name, secret, actor=exchange.identity.actor)
        return json_answer({"deleted": secret})

    # ---- audit ---------------------------------------------------------------------------------------------------

    async def audit(self, exchange: Exchange) -> Answer:
        params = _query(exchange, ("tenant", "since", "limit"))
        limit = params.get("limit", "1000")
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_ROWS):
            raise Problem(Code.BAD_REQUEST, f"limit: expected a whole number from 1 to {MAX_ROWS}")
        start = None if "since" not in params else since(params["since"], self._now())
        found = await self._control.audit.last(tenant=params.get("tenant"), since=start, limit=int(limit))
        return json_answer({"audit": [row.as_json() for row in found]})


async def _body(exchange: Exchange, required: Kinds, optional: Kinds) -> dict[str, Any]:
    """The body, which may have these keys only. Raises Problem (400, 415)."""
    body = await read_object(exchange)
    kinds = {**required, **optional}
    for key in required:
        if key not in body:
            raise Problem(Code.BAD_REQUEST, f"missing required key: {key}")
    for key, value in body.items():
        if key not in kinds:
            known = f"known: {', '.join(kinds)}" if kinds else "this takes none"
            raise Problem(Code.BAD_REQUEST, f"unknown key {key[:64]!r}; {known}")
        kind, said = kinds[key]
        texts = not isinstance(value, list) or all(isinstance(item, str) for item in value)
        if not isinstance(value, kind) or isinstance(value, bool) or not texts:
            raise Problem(Code.BAD_REQUEST, f"{key}: expected {said}")
    return body


def _query(exchange: Exchange, known: tuple[str, ...]) -> Mapping[str, str]:
    """The query's parameters, all of them among `known`. Raises Problem (400)."""
    for name in exchange.params:
        if name not in known:
            raise Problem(Code.BAD_REQUEST, f"unknown parameter {name[:64]!r}; known: {', '.join(known)}")
    return exchange.params

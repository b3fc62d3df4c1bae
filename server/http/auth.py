"""Authentication and authorization, in front of REST and MCP, before any other part of the request is examined.

When tenants are off, every client is the tenant `default`, and clients on this machine are the operator.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import trio

from control.identity import ANONYMOUS, LOCAL, Identity
from engine.config.oauth import looks_like_token
from engine.errors import Code, Problem
from engine.tenant import Tenant
from server.http.access import is_loopback
from server.http.asgi import Exchange, Scope
from server.http.routes import Need, Table, no_key
from server.oauth.challenge import challenged, lacking
from server.problems import Answer, problem_answer

if TYPE_CHECKING:
    from control.store import ControlStore
    from server.oauth.tokens import Tokens

# Headers that proxies add: with any of them, the peer address of the connection is not the client's.
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")
# How often the keys of answers in progress are checked again: keys are revoked, and tenants suspended.
LOOK_EVERY_S = 0.5
# The same when the control store has not changed: keys also expire.
LOOK_ANYWAY_S = 5.0

_local = lru_cache(maxsize=256)(is_loopback)


def presented(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The one key that a request presents; None if there is none, or if its headers disagree.

    A credential of another scheme than Bearer counts as an empty key, so it disagrees with any (RFC 6750 section 2.1).
    """
    found: set[bytes] = set()
    for name, value in headers:
        if name == b"x-api-key":
            found.add(value.strip())
        elif name == b"authorization":
            scheme, _, key = value.strip().partition(b" ")
            found.add(key.strip() if scheme.lower() == b"bearer" else b"")
    if len(found) != 1:
        return None
    return found.pop().decode("latin-1") or None


class Auth:
    """The authentication of one server. `control` is None when tenants are off, `tokens` without `[tenants.oauth]`.

    `count` is called for every request with a tenant's valid key, and raises Problem above the tenant's request rate.
    `work_for` opens a block whose CPU time is charged to a tenant (`Engine.work_for`); `charge` charges CPU seconds.
    """

    def __init__(
        self,
        table: Table,
        control: "ControlStore | None",
        count: Callable[[Tenant], None],
        work_for: Callable[[Tenant], AbstractContextManager[None]] = lambda tenant: nullcontext(),
        charge: Callable[[Tenant, float], None] = lambda tenant, cpu_s: None,
        tokens: "Tokens | None" = None,
    ) -> None:
        self.table = table
        self._control = control
        self._count = count
        self._work_for = work_for
        self._charge = charge
        self._tokens = tokens

    async def refusal(self, scope: Scope, exchange: Exchange, path: str | None) -> Answer | None:
        """The error for a request that is not allowed, else None. Sets the exchange's route, identity, tenant and key.

        `path` is the path that the guard parsed, None if the target is ambiguous: such a request matches no route, and
        still needs a key.
        """
        if path is not None:
            exchange.found = self.table.find(scope["method"], path)
        try:
            if self._control is None:
                self._without_keys(scope, exchange)
            else:
                await self._with_keys(self._control, scope, exchange)
        except Problem as problem:
            return self._refused(problem, scope, exchange)
        return None

    def _refused(self, problem: Problem, scope: Scope, exchange: Exchange) -> Answer:
        """The error of a request; with `[tenants.oauth]` also the scopes that a client has to log in for, and where."""
        tokens, identity = self._tokens, exchange.identity
        if tokens is None or problem.code not in (Code.UNAUTHORIZED, Code.FORBIDDEN):
            return problem_answer(problem)
        scopes = exchange.found.need.value.scopes
        if problem.code is Code.FORBIDDEN:
            if identity.issuer is None or (lack := lacking(tokens.config, identity, scopes)) is None:
                return problem_answer(problem)
            problem = lack
        invalid = looks_like_token(presented(scope["headers"]) or "")
        return challenged(problem_answer(problem), tokens.config, scopes, identity, invalid=invalid)

    def _without_keys(self, scope: Scope, exchange: Exchange) -> None:
        client = scope["client"]
        local = client is not None and _local(client[0]) and not any(name in exchange.headers for name in _FORWARDED)
        exchange.identity, exchange.keyed = LOCAL if local else ANONYMOUS, False
        exchange.found.need.check(exchange.identity, False)

    async def _with_keys(self, control: "ControlStore", scope: Scope, exchange: Exchange) -> None:
        need = exchange.found.need
        key = presented(scope["headers"])
        identity: Identity | None
        if self._tokens is not None and key is not None and looks_like_token(key):
            if need is Need.NOTHING:  # a token gives no more access there, so it is not verified
                return
            sender = await self._tokens.authenticate(key, scope["client"][0] if scope["client"] else "")
            identity = sender.identity
            if sender.cpu_s:
                self._charge(identity.tenant, sender.cpu_s)
        else:
            # A missing key takes the same work as a wrong one.
            identity = await control.keys.authenticate(key or "")
        if identity is None:
            if need is not Need.NOTHING:
                raise no_key()
            return
        exchange.identity, exchange.tenant, exchange.key = identity, identity.tenant, key
        if identity.operator:
            # The operator may act for a tenant; for other keys the parameter has no effect. On the operator's own
            # routes the path, or a filter, names the tenant.
            named = exchange.params.get("tenant")
            if named is not None and need is not Need.OPERATOR:
                exchange.tenant = await control.tenants.for_runs(named)
            return
        exchange.working = partial(self._work_for, identity.tenant)
        exchange.charge = partial(self._charge, identity.tenant)
        self._count(identity.tenant)
        need.check(identity, True)

    async def expel(self, active: Callable[[], Iterable[Exchange]]) -> None:
        """End answers in progress, such as open streams, whose key is no longer valid. Runs until cancelled.

        A call that has not begun to answer runs to its end, which its limits bound.
        """
        control = self._control
        if control is None:
            return
        seen, looked_at = control.generation(), trio.current_time()
        while True:
            await trio.sleep(LOOK_EVERY_S)
            found, now = control.generation(), trio.current_time()
            if found == seen and now < looked_at + LOOK_ANYWAY_S:
                continue
            try:
                for exchange in list(active()):
                    key = exchange.key
                    if exchange.started and key is not None and not await self._valid(control, key):
                        exchange.end()
                seen, looked_at = found, now
            except Problem:  # the store is unavailable, and has logged it
                continue

    async def _valid(self, control: "ControlStore", key: str) -> bool:
        """Whether a key or token still gives access."""
        if self._tokens is not None and looks_like_token(key):
            return await self._tokens.valid(key)
        return await control.keys.authenticate(key) is not None

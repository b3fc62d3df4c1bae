"""Who is asking: the one layer in front of REST and MCP that knows keys. It decides before anything else is looked at.

Where tenants are off, everybody is the tenant `default`, and clients on this machine are the operator.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import trio

from engine.control.identity import ANONYMOUS, LOCAL
from engine.errors import Problem
from engine.tenant import Tenant
from server.access import is_loopback
from server.asgi import Exchange, Scope
from server.problems import Answer, problem_answer
from server.routes import Need, Table, no_key

if TYPE_CHECKING:
    from engine.control.store import ControlStore

# What proxies add: with one of them, the address of the connection is not the client's.
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")
# How often open answers are held against keys that were revoked and tenants that were suspended meanwhile.
LOOK_EVERY_S = 0.5
# And how often where nothing was changed: keys also expire.
LOOK_ANYWAY_S = 5.0

_local = lru_cache(maxsize=256)(is_loopback)


def presented(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The one key that a request presents; None when there is none, or when its headers disagree.

    A credential of another scheme than Bearer is no key, so it disagrees with every one (RFC 6750 section 2.1).
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
    """The layer of one server. `control` is None where tenants are off.

    `count` is told of every request of a tenant whose key is good, and raises Problem where they are too many.
    `work_for` opens a block whose time is charged to a tenant (`Engine.work_for`); `charge` charges what was spent.
    """

    def __init__(
        self,
        table: Table,
        control: "ControlStore | None",
        count: Callable[[Tenant], None],
        work_for: Callable[[Tenant], AbstractContextManager[None]] = lambda tenant: nullcontext(),
        charge: Callable[[Tenant, float], None] = lambda tenant, cpu_s: None,
    ) -> None:
        self.table = table
        self._control = control
        self._count = count
        self._work_for = work_for
        self._charge = charge

    async def refusal(self, scope: Scope, exchange: Exchange, path: str | None) -> Answer | None:
        """The answer to a request that may not go on. Sets the exchange's route, identity, tenant and key.

        `path` is what the guard read in the target, None where that has no one reading: it is nobody's then, and open
        to none without a key.
        """
        if path is not None:
            exchange.found = self.table.find(scope["method"], path)
        try:
            if self._control is None:
                self._without_keys(scope, exchange)
            else:
                await self._with_keys(self._control, scope, exchange)
        except Problem as problem:
            return problem_answer(problem)
        return None

    def _without_keys(self, scope: Scope, exchange: Exchange) -> None:
        client = scope["client"]
        local = client is not None and _local(client[0]) and not any(name in exchange.headers for name in _FORWARDED)
        exchange.identity, exchange.keyed = LOCAL if local else ANONYMOUS, False
        exchange.found.need.check(exchange.identity, False)

    async def _with_keys(self, control: "ControlStore", scope: Scope, exchange: Exchange) -> None:
        need = exchange.found.need
        key = presented(scope["headers"])
        # Without a key the same work is done as with a wrong one.
        identity = await control.authenticate(key or "")
        if identity is None:
            if need is not Need.NOTHING:
                raise no_key()
            return
        exchange.identity, exchange.tenant, exchange.key = identity, identity.tenant, key
        if identity.operator:
            # The operator may speak for a tenant. For all others the parameter means nothing; and where a route is the
            # operator's own, the path names the tenant, or a filter does.
            named = exchange.params.get("tenant")
            if named is not None and need is not Need.OPERATOR:
                exchange.tenant = await control.known_tenant(named)
            return
        exchange.working = partial(self._work_for, identity.tenant)
        exchange.charge = partial(self._charge, identity.tenant)
        self._count(identity.tenant)
        need.check(identity, True)

    async def expel(self, active: Callable[[], Iterable[Exchange]]) -> None:
        """End answers under way, such as open streams, whose key opens nothing any more. Runs until cancelled.

        A call that has not begun to answer goes on to its own end, which its limits bound.
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
                    if exchange.started and key is not None and await control.authenticate(key) is None:
                        exchange.end()
                seen, looked_at = found, now
            except Problem:  # the store cannot be asked now; it has said so in the log
                continue

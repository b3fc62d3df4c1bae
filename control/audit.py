"""The audit log: every control action with its outcome, the host calls that were denied to scripts, and of runs with a
model the refused tools and the decisions of persons: names, no values.

A control action is one transaction that also writes its row; a refused one leaves a row with the code of the refusal
and changes nothing else. Operators cause few actions, and their rows are permanent. A tenant's keys can cause any
number of refused actions, and its scripts and models of calls: of both, each tenant has a bound on rows in total;
repeated calls become one row, and there is a bound on their rows per flush.
"""

from collections.abc import Callable
from typing import TypeVar

import apsw
import structlog
import trio

from control import tables
from control.database import Database, Work
from control.records import AuditRow, storable
from engine.errors import Code, Problem
from storage.lanes import rows

T = TypeVar("T")

log = structlog.get_logger("engine.control")

FLUSH_EVERY_S = 0.5
# Bound on different rows of calls of one tenant between two flushes; the first ones are kept.
ROWS_A_FLUSH = 20
# Rows of calls per tenant and action; older ones are deleted.
ROWS_KEPT = 1000
# Rows of a tenant's own refused actions, such as uploads; older ones are deleted: a key may cause any number.
REFUSALS_KEPT = 1000
# No row has a higher number.
_MOST_ROWS = 2**63 - 1
# A script or a model asks for a call; a person decides about one.
ACTION, DECISION = "call", "confirm"
ALLOWED, OUTCOME = "ok", "denied"

_INSERT = "INSERT INTO audit(at, actor, action, target, outcome, tenant) VALUES (?, ?, ?, ?, ?, ?)"
_REFUSED = "tenant = ?1 AND actor GLOB 'key:*' AND outcome <> 'ok' AND action <> ?3 AND action <> ?4"
_FORGET_REFUSALS = (
    f"DELETE FROM audit WHERE {_REFUSED} AND "
    f"n <= (SELECT n FROM audit WHERE {_REFUSED} ORDER BY n DESC LIMIT 1 OFFSET ?2)"
)


class AuditLog:
    """Writes the rows, and finds them. Every async method may raise Problem `unavailable`.

    `actor` is `cli`, `operator` or `key:ID`.
    """

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._calls = NotedCalls(clock)

    async def act(self, actor: str, action: str, target: str, tenant: str | None, work: Work[T]) -> T:
        """One control action: `work` and its audit row in one transaction.

        A Problem that `work` raises rolls it back, leaves an audit row with its code, and propagates.
        """

        def both(db: apsw.Connection) -> T:
            answer = work(db)
            self._note(db, actor, action, target, "ok", tenant)
            tables.advance(db)
            return answer

        try:
            return await self._database.write(both)
        except Problem as problem:
            await self.note_refusal(actor, action, target, tenant, problem)
            raise

    async def note_refusal(self, actor: str, action: str, target: str, tenant: str | None, problem: Problem) -> None:
        """Write the row of a refused action. Not for `unavailable`: a store that failed takes no row."""
        if problem.code is not Code.UNAVAILABLE:
            code = problem.code.value

            def write(db: apsw.Connection) -> None:
                self._note(db, actor, action, target, code, tenant)
                if tenant is not None and actor.startswith("key:"):
                    db.execute(_FORGET_REFUSALS, (tenant, REFUSALS_KEPT, ACTION, DECISION))

            await self._database.write(write)

    def _note(
        self, db: apsw.Connection, actor: str, action: str, target: str, outcome: str, tenant: str | None
    ) -> None:
        db.execute(_INSERT, (self._clock(), actor, action, storable(target), outcome, tenant and storable(tenant)))

    async def last(self, *, tenant: str | None = None, since: float | None = None, limit: int = 1000) -> list[AuditRow]:
        """The last `limit` rows, oldest first; of a tenant (also one that is gone), since a time."""

        def find(db: apsw.Connection) -> list[AuditRow]:
            found = rows(
                db,
                "SELECT at, actor, action, target, outcome, tenant FROM audit "
                "WHERE (:tenant IS NULL OR tenant = :tenant) AND (:since IS NULL OR at >= :since) "
                "ORDER BY n DESC LIMIT :limit",
                {"tenant": tenant, "since": since, "limit": limit},
            )
            return [AuditRow(*row) for row in reversed(found)]

        return await self._database.read(find)

    async def page(
        self, tenant: str, *, limit: int, before: int | None = None, since: float | None = None
    ) -> tuple[list[AuditRow], int | None]:
        """At most `limit` of a tenant's own rows, oldest first, of those `before` a number; and the number of the page
        before it, None where there is none.

        Rows from before the tenant was created are of another one that had its name. However many rows there are, no
        more than one page is read: `since` ends the pages, and does not search.
        """

        def find(db: apsw.Connection) -> tuple[list[AuditRow], int | None]:
            created = rows(db, "SELECT created_at FROM tenants WHERE name = ?", (tenant,))
            least = max([since or 0.0, *(at for (at,) in created)])
            found = rows(
                db,
                "SELECT n, at, actor, action, target, outcome, tenant FROM audit "
                "WHERE tenant = ? AND n < ? ORDER BY n DESC LIMIT ?",
                (tenant, _MOST_ROWS if before is None else before, limit + 1),
            )
            shown = [row for row in found[:limit] if row[1] >= least]
            more = len(found) > limit and len(shown) == limit
            return [AuditRow(*row[1:]) for row in reversed(shown)], shown[-1][0] if more else None

        return await self._database.read(find)

    def note_denied(self, tenant: str, script: str, call: str) -> None:
        """Note that a host call was denied to a script. Does not block: `keep` writes the row, one for repeats."""
        self._calls.note(tenant, (storable(f"script:{script}"), ACTION, storable(call), OUTCOME))

    def note_tool_refused(self, tenant: str, agent: str, tool: str) -> None:
        """Note that a model asked for a tool that the run may not call. Does not block, as `note_denied`."""
        self._calls.note(tenant, (storable(f"agent:{agent}"), ACTION, storable(f"tool:{tool}"), OUTCOME))

    def note_decision(self, tenant: str, key: str | None, agent: str, tool: str, *, allowed: bool) -> None:
        """Note what a person decided about a call of a tool. Does not block, as `note_denied`.

        `key` is that of the run's caller, who was asked; without keys the row is the agent's.
        """
        # The sender of a token is named as control actions name it, without `key:`.
        who = f"agent:{agent}" if not key else key if key.startswith("oauth:") else f"key:{key}"
        target = f"agent:{agent} tool:{tool}"
        self._calls.note(tenant, (storable(who), DECISION, storable(target), ALLOWED if allowed else OUTCOME))

    def note_team(self, tenant: str, key: str | None, action: str, target: str) -> None:
        """Note what a person did with a team: `action` is create, stop, delete, allow or refuse. Does not block."""
        who = "operator" if not key else key if key.startswith("oauth:") else f"key:{key}"
        self._calls.note(tenant, (storable(who), f"team.{action}", storable(f"team:{target}"), "ok"))

    async def keep(self) -> None:
        """Write noted calls as they come, until cancelled; then write the rest."""
        await self._calls.keep(self._database)


# Actor, action, target and outcome of a row.
_Call = tuple[str, str, str, str]


class NotedCalls:
    """Collects rows of calls, and writes them every `FLUSH_EVERY_S`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Tenant -> row -> when it was first noted since the last flush.
        self._waiting: dict[str, dict[_Call, float]] = {}
        self._some = trio.Event()

    def note(self, tenant: str, call: _Call) -> None:
        """Note a call."""
        waiting = self._waiting.setdefault(tenant, {})
        if len(waiting) < ROWS_A_FLUSH:
            waiting.setdefault(call, self._clock())
        self._some.set()

    async def keep(self, database: Database) -> None:
        """Write noted calls, until cancelled; then write the rest."""
        try:
            while True:
                await self._some.wait()
                await trio.sleep(FLUSH_EVERY_S)
                await self._flush(database)
        finally:
            with trio.CancelScope(shield=True):  # bounded by the wait for the file's lock
                await self._flush(database)

    async def _flush(self, database: Database) -> None:
        noted, self._waiting, self._some = self._waiting, {}, trio.Event()
        if not noted:
            return

        def write(db: apsw.Connection) -> None:
            for tenant, calls in noted.items():
                db.executemany(_INSERT, [(at, *call, tenant) for call, at in calls.items()])
                for action in dict.fromkeys(action for _, action, _, _ in calls):
                    db.execute(
                        "DELETE FROM audit WHERE tenant = ?1 AND action = ?2 AND n <= (SELECT n FROM audit "
                        "WHERE tenant = ?1 AND action = ?2 ORDER BY n DESC LIMIT 1 OFFSET ?3)",
                        (tenant, action, ROWS_KEPT),
                    )

        try:
            await database.write(write)
        except Problem as problem:
            # The run's own log has them as well; keeping them until the store works again would have no bound.
            log.error(
                "calls are missing from the audit log",
                rows=sum(map(len, noted.values())),
                reason=problem.message,
            )

"""Denied host calls on their way into the audit log: repeats as one row, and a bound to what one tenant can write.

Control actions are the operator's and few; their rows are written with them and stay. What scripts are denied is theirs
to cause, as often as they like: so many rows a tenant and moment, so many kept.
"""

from collections.abc import Callable

import apsw
import structlog
import trio

from engine.control.database import Database
from engine.errors import Problem

log = structlog.get_logger("engine.control")

FLUSH_EVERY_S = 0.5
# Different scripts and calls of one tenant between two flushes; of more, the first ones are kept.
ROWS_A_FLUSH = 20
# Rows of denied calls that are kept of one tenant, the newest.
ROWS_KEPT = 1000
ACTION = "call"
OUTCOME = "denied"


class Refusals:
    """Collects what was denied, and writes it now and then."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Tenant -> (script, call) -> when it was first denied since the last flush.
        self._waiting: dict[str, dict[tuple[str, str], float]] = {}
        self._some = trio.Event()

    def note(self, tenant: str, script: str, call: str) -> None:
        """A host call was denied."""
        waiting = self._waiting.setdefault(tenant, {})
        if len(waiting) < ROWS_A_FLUSH:
            waiting.setdefault((script, call), self._clock())
        self._some.set()

    async def keep(self, database: Database) -> None:
        """Write what is noted, until cancelled; what was noted last is written then."""
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
                db.executemany(
                    "INSERT INTO audit(at, actor, action, target, outcome, tenant) VALUES (?, ?, ?, ?, ?, ?)",
                    [(at, f"script:{script}", ACTION, call, OUTCOME, tenant) for (script, call), at in calls.items()],
                )
                db.execute(
                    "DELETE FROM audit WHERE tenant = ?1 AND action = ?2 AND n <= (SELECT n FROM audit "
                    "WHERE tenant = ?1 AND action = ?2 ORDER BY n DESC LIMIT 1 OFFSET ?3)",
                    (tenant, ACTION, ROWS_KEPT),
                )

        try:
            await database.write(write)
        except Problem as problem:
            # They were in the run's own log as well; keeping them until the store is back would have no bound.
            log.error(
                "denied calls are missing from the audit log",
                rows=sum(map(len, noted.values())),
                reason=problem.message,
            )

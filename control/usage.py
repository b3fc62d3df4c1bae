"""The sums of `engine.usage` in the control store: one row for every tenant, agent, key and day, and each model."""

import json
from collections import Counter
from collections.abc import Callable, Mapping

import apsw
import structlog
import trio

from control.database import Database
from engine.errors import Problem
from engine.usage import AMOUNTS, Account, Book, ModelSums, Sheet, Sums, together
from storage.lanes import rows

log = structlog.get_logger("engine.usage")

# A power cut loses at most the usage since the last write. A write is one transaction, whatever its size.
FLUSH_S = 5.0

_COLUMNS = (*AMOUNTS, "peak_memory_bytes", "host_calls", "outcomes")
_SELECT = f"SELECT tenant, agent, key, day, {', '.join(_COLUMNS)} FROM usage"
_OF_MODELS = ("calls", "input", "cached", "output", "cost")


# A day (a date in UTC), and what calls of models count on it in micro-dollars.
Counted = tuple[str, int]


class UsageTable:
    """The sums on disk. Both methods may raise Problem `unavailable`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, sheet: Sheet, counted: Mapping[str, Counted]) -> None:
        """Add these sums, and what counts by tenant, in one transaction, without those of deleted tenants."""
        await self._database.write(lambda db: _add(db, sheet, counted))

    async def read(self, tenant: str | None = None) -> dict[Account, Sums]:
        """The sums of one tenant, or of all."""
        return await self._database.read(lambda db: _read(db, tenant))

    async def cost_of(self, tenant: str, day: str) -> int:
        """What a tenant's calls of models count on one day, in micro-dollars: more than the sums, or those."""
        select = (
            "SELECT max((SELECT coalesce(sum(cost), 0) FROM model_usage WHERE tenant = ?1 AND day = ?2), "
            "coalesce((SELECT cost FROM model_counted WHERE tenant = ?1 AND day = ?2), 0))"
        )
        return int(await self._database.read(lambda db: rows(db, select, (tenant, day))[0][0]))


class UsageLog:
    """The usage of runs: the sums in memory (`book`) and those on disk.

    `table` is None without tenants: then nothing is stored, and the sums begin with the process.
    """

    def __init__(self, book: Book, table: UsageTable | None) -> None:
        self._book = book
        self._table = table
        # What counts in the quota of money now, by tenant: calls under way with all that they have reserved, so that a
        # restart forgets none of them. May be replaced once the engine is open.
        self.counted: Callable[[], Mapping[str, Counted]] = dict
        self._written: Mapping[str, Counted] = {}
        self._flushing = trio.Lock()

    async def flush(self) -> None:
        """Write the sums in memory to disk. If that fails, they are kept for the next attempt. Raises Problem."""
        if self._table is None:
            return
        async with self._flushing:
            counted = self.counted()
            changed = {name: each for name, each in counted.items() if self._written.get(name, (each[0], 0)) != each}
            taken = self._book.take()
            if not taken and not changed:
                return
            try:
                await self._table.add(taken, changed)
            except BaseException:
                self._book.give_back(taken)
                raise
            self._written = counted

    async def sums_of(self, tenant: str) -> dict[Account, Sums]:
        """The sums of one tenant, up to now. Raises Problem."""
        if self._table is None:
            return together(self._book.sums_of(tenant))
        await self.flush()
        return await self._table.read(tenant)

    async def cost_of(self, tenant: str, day: str) -> int:
        """What a tenant's calls of models count on one day (a date in UTC), in micro-dollars. Raises Problem."""
        if self._table is None:
            mine = self._book.sums_of(tenant).items()
            return sum(each.cost for account, sums in mine if account.day == day for each in sums.models.values())
        await self.flush()
        return await self._table.cost_of(tenant, day)

    async def keep(self) -> None:
        """Flush every `FLUSH_S`, and at the end. Runs until cancelled."""
        try:
            while True:
                await trio.sleep(FLUSH_S)
                await self._try()
        finally:
            with trio.move_on_after(FLUSH_S, shield=True):  # bounded: a locked store must not delay the shutdown
                await self._try()

    async def _try(self) -> None:
        try:
            await self.flush()
        except Problem as problem:
            log.error("usage could not be written down; it is tried again", reason=problem.message)


def _add(db: apsw.Connection, sheet: Sheet, counted: Mapping[str, Counted]) -> None:
    there = {name for (name,) in rows(db, "SELECT name FROM tenants")}
    for account, sums in sheet.items():
        if account.tenant not in there:
            continue
        found = rows(db, f"{_SELECT} WHERE tenant = ? AND agent = ? AND key = ? AND day = ?", account)
        total = together({account: sums}, dict(map(_from_row, found)))[account]
        amounts = (*(getattr(total, name) for name in (*AMOUNTS, "peak_memory_bytes")),)
        places = ", ".join("?" * (len(account) + len(_COLUMNS)))
        db.execute(
            f"INSERT OR REPLACE INTO usage(tenant, agent, key, day, {', '.join(_COLUMNS)}) VALUES ({places})",
            (*account, *amounts, json.dumps(total.host_calls), json.dumps(total.outcomes)),
        )
        for model, spent in sums.models.items():
            _spend(db, account, model, spent)
    for tenant, (day, cost) in counted.items():
        if tenant in there:
            db.execute("INSERT OR REPLACE INTO model_counted VALUES (?, ?, ?)", (tenant, day, cost))


def _spend(db: apsw.Connection, account: Account, model: str, spent: ModelSums) -> None:
    names, added = ", ".join(_OF_MODELS), ", ".join(f"{name} = {name} + excluded.{name}" for name in _OF_MODELS)
    db.execute(
        f"INSERT INTO model_usage(tenant, agent, key, day, model, {names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
        f"ON CONFLICT DO UPDATE SET {added}",
        (*account, model, *(getattr(spent, name) for name in _OF_MODELS)),
    )


def _read(db: apsw.Connection, tenant: str | None) -> dict[Account, Sums]:
    where, bindings = ("", ()) if tenant is None else (" WHERE tenant = ?", (tenant,))
    found = dict(map(_from_row, rows(db, _SELECT + where, bindings)))
    of_models = f"SELECT tenant, agent, key, day, model, {', '.join(_OF_MODELS)} FROM model_usage"
    for tenant_, agent, key, day, model, *amounts in rows(db, of_models + where, bindings):
        sums = found.setdefault(Account(tenant_, agent, key, day), Sums())
        sums.spend(model, ModelSums(*map(int, amounts)))
    return found


def _from_row(row: tuple[str | int, ...]) -> tuple[Account, Sums]:
    account = Account(*map(str, row[:4]))
    *amounts, peak, host_calls, outcomes = row[4:]
    runs, queue_us, wall_us, cpu_us, bytes_in, bytes_out = map(int, amounts)
    sums = Sums(
        runs, queue_us, wall_us, cpu_us, bytes_in, bytes_out, int(peak), _counter(host_calls), _counter(outcomes)
    )
    return account, sums


def _counter(text: str | int) -> Counter[str]:
    found: Mapping[str, int] = json.loads(str(text))
    return Counter(found)

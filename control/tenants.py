"""Tenants: created, changed, suspended, deleted with all their data; and a check for files whose tenant is unknown."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import trio

from control import tables
from control.audit import AuditLog
from control.database import Database
from control.files import kv_path, owners_of_files, remove_tenant_files, tenant_files
from control.identity import tenant_of
from control.records import (
    State,
    TenantRecord,
    check_ceilings,
    check_quotas,
    check_tenant_name,
    check_weight,
    storable,
)
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT, Tenant
from storage.kv import count_keys, remove_keys
from storage.kv_rows import KvError
from storage.lanes import rows

COLUMNS = ("name", "state", "created_at", "quotas", "ceilings", "weight")

_COLUMNS = ", ".join(COLUMNS)


class Tenants:
    """The tenants of a control store. Every method may raise Problem `unavailable`.

    Methods that change something take the `actor` that the audit log names: `cli`, `operator` or `key:ID`. `db_path`
    is the knowledge store of `default`; those of tenants are files beside it.
    """

    def __init__(self, database: Database, audit: AuditLog, clock: Callable[[], float], db_path: Path) -> None:
        self._database = database
        self._audit = audit
        self._clock = clock
        self._db_path = db_path

    async def create(
        self,
        name: str,
        *,
        actor: str,
        quotas: Mapping[str, Any] | None = None,
        ceilings: Mapping[str, Any] | None = None,
        weight: float = 1.0,
    ) -> TenantRecord:
        """A new tenant, active. Raises Problem: bad_request, conflict (also for a name that differs only in case)."""

        def create(db: apsw.Connection) -> TenantRecord:
            record = TenantRecord(
                check_tenant_name(name), "active", self._clock(), check_quotas(quotas or {}),
                check_ceilings(ceilings or {}), check_weight(weight),
            )  # fmt: skip
            there = _records(db, "WHERE name = ?", (name,))
            if there:
                suspended = " and is suspended; resume it" if there[0].state == "suspended" else ""
                raise Problem(Code.CONFLICT, f"tenant {there[0].name!r} exists{suspended}")
            db.execute(
                f"INSERT INTO tenants({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
                (name, record.state, record.created_at, json.dumps(record.quotas), json.dumps(record.ceilings), weight),
            )
            return record

        return await self._audit.act(actor, "tenant.create", name, name, create)

    async def change(
        self,
        name: str,
        *,
        actor: str,
        quotas: Mapping[str, Any] | None = None,
        ceilings: Mapping[str, Any] | None = None,
        weight: float | None = None,
    ) -> TenantRecord:
        """Replace a tenant's quotas, ceilings or weight; None keeps them.

        Raises Problem: bad_request, not_found.
        """

        def change(db: apsw.Connection) -> TenantRecord:
            was = existing(db, name)
            record = TenantRecord(
                was.name, was.state, was.created_at,
                was.quotas if quotas is None else check_quotas(quotas),
                was.ceilings if ceilings is None else check_ceilings(ceilings),
                was.weight if weight is None else check_weight(weight),
            )  # fmt: skip
            db.execute(
                "UPDATE tenants SET quotas = ?, ceilings = ?, weight = ? WHERE name = ?",
                (json.dumps(record.quotas), json.dumps(record.ceilings), record.weight, name),
            )
            return record

        return await self._audit.act(actor, "tenant.change", name, name, change)

    async def all(self) -> list[TenantRecord]:
        """Every tenant, by name."""
        return await self._database.read(lambda db: _records(db, "ORDER BY name"))

    async def get(self, name: str) -> TenantRecord:
        """One tenant. Raises Problem not_found."""
        return await self._database.read(lambda db: existing(db, name))

    async def for_runs(self, name: str) -> Tenant:
        """One tenant, as runs know it. Raises Problem not_found."""
        return tenant_of(await self.get(name))

    async def set_state(self, name: str, state: State, *, actor: str) -> TenantRecord:
        """Suspend a tenant, so that none of its keys works, or resume it. Raises Problem not_found."""

        def change(db: apsw.Connection) -> TenantRecord:
            existing(db, name)
            db.execute("UPDATE tenants SET state = ? WHERE name = ?", (state, name))
            return existing(db, name)

        action = "tenant.suspend" if state == "suspended" else "tenant.resume"
        return await self._audit.act(actor, action, name, name, change)

    async def delete(self, name: str, *, actor: str) -> dict[str, Any]:
        """Delete a tenant with all its data, and verify it: `{tenant, removed, left}`, both counts by kind.

        It is suspended first; a deletion that stops midway leaves a suspended tenant, and deleting again finishes.
        `left` is counted after the deletion. The audit log keeps its rows.
        Raises Problem: not_found, conflict (the tenant `default`), unavailable (a file cannot be removed).
        """

        def suspend(db: apsw.Connection) -> None:
            existing(db, name)
            if name == DEFAULT_TENANT.id:
                raise Problem(Code.CONFLICT, "the tenant 'default' owns what the configuration names; it stays")
            db.execute("UPDATE tenants SET state = 'suspended' WHERE name = ?", (name,))

        await self._audit.act(actor, "tenant.delete.begin", name, name, suspend)
        keys_file = kv_path(self._db_path)
        try:
            keys = await trio.to_thread.run_sync(remove_keys, keys_file, name, self._clock())
            files = await trio.to_thread.run_sync(remove_tenant_files, self._db_path, name)
        except KvError as error:
            raise Problem(
                Code.UNAVAILABLE, f"the keys of tenant {name!r} cannot be deleted ({error}); the tenant is suspended"
            ) from None
        except OSError as error:
            raise Problem(
                Code.UNAVAILABLE,
                f"the files of tenant {name!r} cannot be removed ({error.strerror}); the tenant is suspended, and "
                "nothing else of it was deleted",
            ) from None

        def delete(db: apsw.Connection) -> dict[str, int]:
            removed = tables.counts(db, name)
            for table in removed:
                db.execute(f'DELETE FROM "{table}" WHERE tenant = ?', (name,))
            db.execute("DELETE FROM tenants WHERE name = ?", (name,))
            return removed

        removed = await self._audit.act(actor, "tenant.delete", name, name, delete)
        # The write-ahead log still has copies of what was deleted.
        await self._database.outside(lambda db: db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE))
        left = await self._remaining(name)
        if any(left.values()):
            raise Problem(Code.UNAVAILABLE, f"tenant {name!r} was written to while it was deleted; delete it again")
        return {"tenant": name, "removed": {**removed, "tenant": 1, "files": files, "kv": keys}, "left": left}

    async def _remaining(self, name: str) -> dict[str, int]:
        left = await self._database.read(partial(tables.counts, tenant=name))
        left["tenant"] = len(await self._database.read(lambda db: _records(db, "WHERE name = ?", (name,))))
        left["files"] = len(await trio.to_thread.run_sync(tenant_files, self._db_path, name))
        left["kv"] = await trio.to_thread.run_sync(count_keys, kv_path(self._db_path), name)
        return left

    async def lost(self) -> str | None:
        """A warning for the operator if there are files of tenants that are not in this store, else None.

        SQLite takes an empty file for a new store, and a missing store is created: then no key works, and the files of
        tenants beside it are the only sign of the loss.
        """
        try:
            there = await trio.to_thread.run_sync(owners_of_files, self._db_path)
        except OSError as error:
            return f"the folder of tenants' files cannot be read: {error.strerror}"
        names = sorted(there - await self._database.read(_known)) if there else []
        if not names:
            return None
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        return (
            f"there are files of tenants that are not in the control store ({shown}): if it was lost or emptied, no "
            "key works; restore it from a back-up, or remove these files"
        )


def existing(db: apsw.Connection, name: str) -> TenantRecord:
    """One tenant. Raises Problem not_found."""
    # New names are compared without case, existing ones exactly: a tenant has one name.
    found = [record for record in _records(db, "WHERE name = ?", (storable(name),)) if record.name == name]
    if not found:
        raise Problem(Code.NOT_FOUND, f"there is no tenant {name[:64]!r}")
    return found[0]


def record_of(row: Sequence[Any]) -> TenantRecord:
    """The record of a row with `COLUMNS`."""
    name, state, created_at, quotas, ceilings, weight = row
    return TenantRecord(name, state, created_at, json.loads(quotas), json.loads(ceilings), weight)


def _records(db: apsw.Connection, where: str, bindings: Sequence[Any] = ()) -> list[TenantRecord]:
    return [record_of(row) for row in rows(db, f"SELECT {_COLUMNS} FROM tenants {where}", bindings)]


def _known(db: apsw.Connection) -> set[str]:
    """The tenants that have a row; `default` only if it has packages."""
    named = {name for (name,) in rows(db, "SELECT name FROM tenants WHERE name <> ?", (DEFAULT_TENANT.id,))}
    return named | {tenant for (tenant,) in rows(db, "SELECT DISTINCT tenant FROM packages")}

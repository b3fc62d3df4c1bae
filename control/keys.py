"""API keys in the control store: created, listed, revoked; and what a presented key stands for."""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import apsw

from control import key_text
from control.audit import AuditLog
from control.database import Database
from control.identity import Identity, tenant_of
from control.records import SCOPES, KeyRecord, check_scopes, labels_of_key
from control.tenants import COLUMNS, existing, record_of
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT
from knowledge.access import Reader
from storage.lanes import rows

# The caches of presented keys, so that the next request with one needs no query. Invalid keys have a cache of their
# own, so that a flood of them evicts no valid one.
_REMEMBERED = 16_384
_REMEMBERED_WRONG = 4_096

_KEY = "k.id, k.tenant, k.prefix, k.scopes, k.created_at, k.expires_at, k.revoked_at, k.labels"
# The tenant's row beside the key's: one query returns everything that decides.
_LOOKUP = f"""
SELECT {_KEY}, k.digest, {", ".join(f"t.{column}" for column in COLUMNS)}
FROM keys k JOIN tenants t ON t.name = k.tenant WHERE k.prefix = ?
"""


@dataclass(frozen=True, slots=True)
class _Known:
    """The cache entry of a presented key: its identity, and its expiry.

    Invariant: it follows from the key's row and its tenant's alone, never from the time at which they were read. The
    clock is read with every request, so one that was wrong for a moment has no lasting effect.
    """

    identity: Identity | None
    expires_at: float | None


class Keys:
    """The keys of every tenant. Every method may raise Problem `unavailable`.

    Methods that change something take the `actor` that the audit log names.
    """

    def __init__(
        self, database: Database, audit: AuditLog, clock: Callable[[], float], operator_key: str | None
    ) -> None:
        self._database = database
        self._audit = audit
        self._clock = clock
        self._operator = None if operator_key is None else key_text.digest(operator_key)
        self._operator_identity = Identity(DEFAULT_TENANT, None, frozenset(SCOPES), operator=True)
        # Invariant: both caches follow from the rows as they were at this generation.
        self._generation = -1
        self._right: OrderedDict[bytes, _Known] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()

    async def create(
        self,
        tenant: str,
        *,
        actor: str,
        scopes: Iterable[str] = ("use",),
        expires_at: float | None = None,
        labels: Iterable[str] = (),
    ) -> tuple[KeyRecord, str]:
        """A new key of a tenant, and its text, which is not stored. Raises Problem: bad_request, not_found."""
        key, prefix = key_text.new_key()
        identifier = key_text.new_id()

        def create(db: apsw.Connection) -> KeyRecord:
            owner = existing(db, tenant)
            record = KeyRecord(
                identifier, owner.name, prefix, check_scopes(scopes), self._clock(), expires_at,
                labels=labels_of_key(labels),
            )  # fmt: skip
            db.execute(
                "INSERT INTO keys(id, tenant, prefix, digest, scopes, created_at, expires_at, labels) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    record.id, record.tenant, prefix, key_text.digest(key), json.dumps(sorted(record.scopes)),
                    record.created_at, expires_at, json.dumps(sorted(record.labels)),
                ),
            )  # fmt: skip
            return record

        return await self._audit.act(actor, "key.create", identifier, tenant, create), key

    async def all(self, tenant: str) -> list[KeyRecord]:
        """Every key of a tenant, revoked and expired ones too, oldest first. Raises Problem not_found."""

        def find(db: apsw.Connection) -> list[KeyRecord]:
            existing(db, tenant)
            return _records(db, "WHERE k.tenant = ? ORDER BY k.created_at, k.id", (tenant,))

        return await self._database.read(find)

    async def revoke(self, identifier: str, *, actor: str) -> KeyRecord:
        """Revoke a key. Doing it again changes nothing. Raises Problem not_found."""
        found = await self._database.read(lambda db: _records(db, "WHERE k.id = ?", (identifier,)))
        tenant = found[0].tenant if found else None

        def revoke(db: apsw.Connection) -> KeyRecord:
            now = self._clock()
            db.execute("UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (now, identifier))
            there = _records(db, "WHERE k.id = ?", (identifier,))
            if not there:
                raise Problem(Code.NOT_FOUND, f"there is no key with the id {identifier[:64]!r}")
            return there[0]

        return await self._audit.act(actor, "key.revoke", identifier, tenant, revoke)

    async def authenticate(self, presented: str) -> Identity | None:
        """The identity of a presented key; None for an unknown, wrong, expired or revoked one, or a suspended tenant.

        All of these take the same work: one hash, and one query unless the key is cached. Every control action, of any
        process, empties the caches. Whether a key has expired depends on its row and the current time alone.
        """
        digest = key_text.digest(presented)
        generation = self._database.generation()
        if generation != self._generation:
            self._generation = generation
            self._right.clear()
            self._wrong.clear()
        # Always compared, so that every request costs the same with an operator's key as without one.
        if key_text.same(self._operator or key_text.NO_DIGEST, digest):
            return self._operator_identity
        known = self._right.get(digest)
        if known is not None:
            self._right.move_to_end(digest)
            return self._at_present(known)
        if digest in self._wrong:
            self._wrong.move_to_end(digest)
            return None
        found = await self._database.read(lambda db: rows(db, _LOOKUP, (key_text.prefix_of(presented),)))
        known = self._judge(found, digest)
        if generation == self._database.generation() == self._generation:  # nothing changed during the query
            self._remember(digest, known)
        return self._at_present(known)

    def _at_present(self, known: _Known) -> Identity | None:
        expires_at = known.expires_at
        return None if expires_at is not None and key_text.ended(expires_at, self._clock()) else known.identity

    def _judge(self, found: Sequence[tuple[Any, ...]], digest: bytes) -> _Known:
        """The cache entry of a key with this digest, from its row, if there is one."""
        row = found[0] if found else None
        right = key_text.same(key_text.NO_DIGEST if row is None else row[8], digest)
        if row is None or not right:
            return _Known(None, None)
        record, owner = _record(row[:8]), record_of(row[9:])
        if not key_text.usable(record, owner.state):
            return _Known(None, None)
        tenant = replace(tenant_of(owner), key=record.id, reader=Reader.of(record.labels))
        return _Known(Identity(tenant, record.id, record.scopes, operator=False), record.expires_at)

    def _remember(self, digest: bytes, known: _Known) -> None:
        if known.identity is None:
            self._wrong[digest] = None
            if len(self._wrong) > _REMEMBERED_WRONG:
                self._wrong.popitem(last=False)
        else:
            self._right[digest] = known
            if len(self._right) > _REMEMBERED:
                self._right.popitem(last=False)


def _record(row: Sequence[Any]) -> KeyRecord:
    identifier, tenant, prefix, scopes, created_at, expires_at, revoked_at, labels = row
    return KeyRecord(
        identifier, tenant, prefix, frozenset(json.loads(scopes)), created_at, expires_at, revoked_at,
        frozenset(json.loads(labels)),
    )  # fmt: skip


def _records(db: apsw.Connection, where: str, bindings: Sequence[Any]) -> list[KeyRecord]:
    return [_record(row) for row in rows(db, f"SELECT {_KEY} FROM keys k {where}", bindings)]

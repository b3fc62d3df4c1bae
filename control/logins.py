"""Senders with a token of an OAuth issuer instead of a key: the tenant that its claims name, if it is active."""

from collections import OrderedDict
from dataclasses import replace

from control.database import Database
from control.identity import Identity, tenant_of
from control.tenants import COLUMNS, record_of
from engine.tenant import Tenant
from knowledge.access import Reader
from storage.lanes import rows

_LOOKUP = f"SELECT {', '.join(COLUMNS)} FROM tenants WHERE name = ?"
# Tenants, and names that are none: claims of a token that an issuer has signed name them.
_CACHED = 4096


class Logins:
    """The identities of such senders. Every method may raise Problem `unavailable`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Invariant: the cache follows from the rows as they were at this generation.
        self._generation = -1
        self._tenants: OrderedDict[str, Tenant | None] = OrderedDict()

    async def identity(
        self, issuer: str, tenant: str, key: str, scopes: frozenset[str], labels: frozenset[str]
    ) -> Identity | None:
        """The sender that a verified token names; None if its tenant does not exist or is suspended.

        Control actions of any process count from the next request on, as with keys.
        """
        generation = self._database.generation()
        if generation != self._generation:
            self._generation = generation
            self._tenants.clear()
        if tenant in self._tenants:
            self._tenants.move_to_end(tenant)
            found = self._tenants[tenant]
        else:
            found = await self._active(tenant)
            if generation == self._database.generation() == self._generation:
                self._tenants[tenant] = found
                if len(self._tenants) > _CACHED:
                    self._tenants.popitem(last=False)
        if found is None:
            return None
        sender = replace(found, key=key, reader=Reader.of(labels))
        return Identity(sender, key, scopes, operator=False, issuer=issuer)

    async def _active(self, tenant: str) -> Tenant | None:
        found = await self._database.read(lambda db: rows(db, _LOOKUP, (tenant,)))
        # Names are compared without case by the store, exactly here: a tenant has one name.
        records = [record for record in map(record_of, found) if record.name == tenant and record.state == "active"]
        return tenant_of(records[0]) if records else None

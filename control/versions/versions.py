"""Versions in the control store. A change is one transaction with its audit row; a moment's reads are one, too."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import apsw

from control.audit import AuditLog
from control.database import Database, Work
from control.identity import Identity
from control.versions import contents, rows
from control.versions.grants import Grants
from control.versions.records import ActiveVersion, Added, Kept, NewVersion, Version, VersionId
from engine.errors import Problem

T = TypeVar("T")

Charge = Callable[[float], None]


class Versions:
    """The published versions of every tenant. Every method may raise Problem `unavailable`.

    `free` is what needs no approval; `who` decides, and is the actor of the audit row. Changes return the version as
    lists show it then. A method that takes `charge` calls it with the CPU seconds that its work took in the store's
    thread, also where that work raised.
    """

    def __init__(self, database: Database, audit: AuditLog) -> None:
        self._database = database
        self._audit = audit

    async def active(self, tenant: str, known: str | None = None) -> tuple[str, list[ActiveVersion]]:
        """The mark of what is active, and every active version: tools before agents, in the order of their names.

        The mark is a text that differs when another version is active; "" where none is. The list is empty where the
        mark is `known`.
        """

        def find(db: apsw.Connection) -> tuple[str, list[ActiveVersion]]:
            mark = rows.mark(db, tenant)
            return mark, rows.active(db, tenant) if mark not in ("", known) else []

        return await self._database.read(find)

    async def kept(self, tenant: str, numbers: Sequence[int], whole: Collection[str]) -> dict[int, Kept]:
        """What is kept of these versions of the tenant's, by number, as far as they are there.

        Of the digests in `whole`, with the files beside the script.
        """
        return await self._database.read(partial(rows.kept, tenant=tenant, numbers=numbers, whole=whole))

    async def find(self, which: VersionId) -> Version | None:
        """One version, or None."""
        return await self._database.read(lambda db: rows.find(db, which))

    async def history(self, tenant: str, root: str, name: str, free: Grants, *, charge: Charge) -> list[dict[str, Any]]:
        """Every version of a name as lists show it, the newest first. Raises Problem not_found where there is none."""

        def find(db: apsw.Connection) -> list[dict[str, Any]]:
            found = rows.history(db, tenant, root, name)
            # Here, in the store's thread: of a thousand versions it takes milliseconds.
            return [each.as_json() for each in rows.standings(db, tenant, found, free)]

        with _timed(find, charge) as timed:
            return await self._database.read(timed)

    async def show(self, which: VersionId, free: Grants, *, charge: Charge) -> dict[str, Any]:
        """One version as lists show it, with its manifest, its files, and what it changes. Raises Problem not_found."""

        def find(db: apsw.Connection) -> dict[str, Any]:
            standing = rows.standing(db, which.tenant, rows.existing(db, which), free)
            against = contents.compared_with(db, which)
            return {
                **standing.as_json(),
                **contents.manifest(db, which),
                "files": contents.files(db, which),
                "changes": None if against is None else contents.changes(db, which, against),
            }

        with _timed(find, charge) as timed:
            return await self._database.read(timed)

    async def changes(self, which: VersionId, against: str, *, charge: Charge) -> dict[str, Any]:
        """What a version changes, beside another one of its name. Raises Problem not_found."""
        with _timed(lambda db: contents.changes(db, which, against), charge) as timed:
            return await self._database.read(timed)

    async def file(self, which: VersionId, path: str, *, charge: Charge) -> tuple[str, bytes]:
        """The digest of a version, and one of its files. Raises Problem not_found."""
        with _timed(lambda db: contents.file(db, which, path), charge) as timed:
            return await self._database.read(timed)

    async def has_content(self, tenant: str, digest: str) -> bool:
        """Whether some version of the tenant's has this content."""
        return await self._database.read(lambda db: rows.has_content(db, tenant, digest))

    async def stored_bytes(self, tenant: str) -> int:
        """How much the tenant's packages take, with what their scripts declare, which each version keeps."""
        return await self._database.read(lambda db: rows.stored_bytes(db, tenant))

    async def add(
        self,
        tenant: str,
        new: NewVersion,
        free: Grants,
        *,
        who: Identity,
        charge: Charge,
        max_bytes: float | None,
        besides: int = 0,
    ) -> Added:
        """Keep a version, and activate it if it asks for nothing new. The same content again changes nothing.

        `max_bytes` is what all packages of the tenant may take, with the `besides` that it has stored elsewhere.
        Raises Problem: conflict (another content, or a name that differs in case alone), quota_exceeded, not_found (the
        tenant is gone).
        """

        def add(db: apsw.Connection) -> Added:
            return rows.add(db, tenant, new, free, max_bytes=max_bytes, besides=besides)

        which = VersionId(tenant, new.root, new.name, new.version)
        return await self._act("publish", which, who, add, charge)

    async def refuse(self, which: VersionId, problem: Problem, *, who: Identity) -> None:
        """Leave an audit row about an upload that was refused before it came to `add`."""
        await self._audit.note_refusal(who.actor, f"{which.root}.publish", str(which), which.tenant, problem)

    async def activate(self, which: VersionId, free: Grants, *, who: Identity, charge: Charge) -> dict[str, Any]:
        """Let this version be the one that is called.

        Raises Problem: not_found, conflict (it is deprecated, or asks for more than was approved), quota_exceeded.
        """
        return await self._change("activate", which, free, lambda db: rows.activate(db, which, free), who, charge)

    async def approve(self, which: VersionId, free: Grants, *, who: Identity, charge: Charge) -> dict[str, Any]:
        """Grant everything that the version asks for, and activate it.

        Raises Problem: not_found, forbidden (what the operator alone grants), conflict (deprecated), quota_exceeded.
        """
        return await self._change("approve", which, free, lambda db: rows.approve(db, which, free, who), who, charge)

    async def deprecate(self, which: VersionId, free: Grants, *, who: Identity, charge: Charge) -> dict[str, Any]:
        """Take the version out of service for good, with what was approved for its sake. Raises Problem not_found."""
        return await self._change("deprecate", which, free, lambda db: rows.deprecate(db, which), who, charge)

    async def _change(
        self, verb: str, which: VersionId, free: Grants, change: Work[None], who: Identity, charge: Charge
    ) -> dict[str, Any]:
        def work(db: apsw.Connection) -> dict[str, Any]:
            change(db)
            return rows.standing(db, which.tenant, rows.existing(db, which), free).as_json()

        return await self._act(verb, which, who, work, charge)

    async def _act(self, verb: str, which: VersionId, who: Identity, work: Work[T], charge: Charge) -> T:
        with _timed(work, charge) as timed:
            return await self._audit.act(who.actor, f"{which.root}.{verb}", str(which), which.tenant, timed)


@contextmanager
def _timed(work: Work[T], charge: Charge) -> Iterator[Work[T]]:
    """The same work. At the end of the block, `charge` is called with the CPU time that it took in its thread."""
    spent: list[float] = []

    def timed(db: apsw.Connection) -> T:
        began_s = time.thread_time()
        try:
            return work(db)
        finally:
            spent.append(time.thread_time() - began_s)

    try:
        yield timed
    finally:
        charge(sum(spent))

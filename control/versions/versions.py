"""Versions in the control store. A change is one transaction with its audit row; each read is one transaction too."""

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
from control.versions.records import ActiveVersion, Added, NewVersion, StoredVersion, Version, VersionId
from control.versions.share import ALL
from engine.errors import Problem

T = TypeVar("T")

Charge = Callable[[float], None]


class Versions:
    """The published versions of every tenant. Every method may raise Problem `unavailable`.

    `free` are the grants that need no approval; `who` is the sender, and the actor of the audit row. Changes return the
    version's new entry in lists. `percent` is the share of the callers that get the version: below 100 it becomes the
    canary of its name, beside the version that is active. A method that takes `charge` calls it with the CPU seconds
    that its work took in the store's thread, also if that work raised.
    """

    def __init__(self, database: Database, audit: AuditLog) -> None:
        self._database = database
        self._audit = audit

    async def active(self, tenant: str, known: str | None = None) -> tuple[str, list[ActiveVersion]]:
        """The mark of what is called, and every active version and canary: tools before agents, ordered by name.

        The mark is a text that changes with these and their shares; "" if none is active. The list is empty if the
        mark is `known`.
        """

        def find(db: apsw.Connection) -> tuple[str, list[ActiveVersion]]:
            mark = rows.mark(db, tenant)
            return mark, rows.active(db, tenant) if mark not in ("", known) else []

        return await self._database.read(find)

    async def stored(self, tenant: str, numbers: Sequence[int], whole: Collection[str]) -> dict[int, StoredVersion]:
        """What is stored of those of these versions of the tenant that exist, by number.

        For the digests in `whole`, with the files beside the script.
        """
        return await self._database.read(partial(rows.stored, tenant=tenant, numbers=numbers, whole=whole))

    async def find(self, which: VersionId) -> Version | None:
        """One version, or None."""
        return await self._database.read(lambda db: rows.find(db, which))

    async def history(self, tenant: str, root: str, name: str, free: Grants, *, charge: Charge) -> list[dict[str, Any]]:
        """The list entry of every version of a name, the newest first. Raises Problem not_found if there is none."""

        def find(db: apsw.Connection) -> list[dict[str, Any]]:
            found = rows.history(db, tenant, root, name)
            # Here, in the store's thread: for a thousand versions it takes milliseconds.
            return [each.as_json() for each in rows.standings(db, tenant, found, free)]

        with _timed(find, charge) as timed:
            return await self._database.read_long(timed)

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
            return await self._database.read_long(timed)

    async def changes(self, which: VersionId, against: str, *, charge: Charge) -> dict[str, Any]:
        """What a version changes, beside another one of its name. Raises Problem not_found."""
        with _timed(lambda db: contents.changes(db, which, against), charge) as timed:
            return await self._database.read_long(timed)

    async def file(self, which: VersionId, path: str, *, charge: Charge) -> tuple[str, bytes]:
        """The digest of a version, and one of its files. Raises Problem not_found."""
        with _timed(lambda db: contents.file(db, which, path), charge) as timed:
            return await self._database.read_long(timed)

    async def has_content(self, tenant: str, digest: str) -> bool:
        """Whether a version of the tenant has this content."""
        return await self._database.read(lambda db: rows.has_content(db, tenant, digest))

    async def stored_bytes(self, tenant: str) -> int:
        """The bytes of the tenant's packages, with the declarations of their scripts, which each version stores."""
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
        percent: int = ALL,
    ) -> Added:
        """Store a version, and activate it if it requests no new grants. The same content again changes nothing.

        `max_bytes` bounds the tenant's packages together with `besides`, the bytes that it has stored elsewhere.
        Raises Problem: conflict (other content, a name that differs only in case, or a canary without an active version
        beside it), quota_exceeded, not_found (the tenant no longer exists).
        """

        def add(db: apsw.Connection) -> Added:
            return rows.add(db, tenant, new, free, max_bytes=max_bytes, besides=besides, percent=percent)

        which = VersionId(tenant, new.root, new.name, new.version)
        return await self._act("publish", which, who, add, charge, percent)

    async def refuse(self, which: VersionId, problem: Problem, *, who: Identity) -> None:
        """Write the audit row of an upload that was refused before `add` was called."""
        await self._audit.note_refusal(who.actor, f"{which.root}.publish", str(which), which.tenant, problem)

    async def activate(
        self, which: VersionId, free: Grants, *, who: Identity, charge: Charge, percent: int = ALL
    ) -> dict[str, Any]:
        """Make this version the one that is called, or the canary.

        Raises Problem: not_found, conflict (it is deprecated, requests more than was approved, or has no other active
        version beside it), quota_exceeded.
        """

        def change(db: apsw.Connection) -> None:
            rows.activate(db, which, free, percent)

        return await self._change("activate", which, free, change, who, charge, percent)

    async def approve(
        self, which: VersionId, free: Grants, *, who: Identity, charge: Charge, percent: int = ALL
    ) -> dict[str, Any]:
        """Grant everything that the version requests, and activate it.

        Raises Problem: not_found, forbidden (what only the operator may grant), conflict (as `activate`),
        quota_exceeded.
        """

        def change(db: apsw.Connection) -> None:
            rows.approve(db, which, free, who, percent)

        return await self._change("approve", which, free, change, who, charge, percent)

    async def deprecate(self, which: VersionId, free: Grants, *, who: Identity, charge: Charge) -> dict[str, Any]:
        """Take the version out of service permanently, with the grants approved for it. Raises Problem not_found."""
        return await self._change("deprecate", which, free, lambda db: rows.deprecate(db, which), who, charge)

    async def _change(
        self,
        verb: str,
        which: VersionId,
        free: Grants,
        change: Work[None],
        who: Identity,
        charge: Charge,
        percent: int = ALL,
    ) -> dict[str, Any]:
        def work(db: apsw.Connection) -> dict[str, Any]:
            change(db)
            return rows.standing(db, which.tenant, rows.existing(db, which), free).as_json()

        return await self._act(verb, which, who, work, charge, percent)

    async def _act(self, verb: str, which: VersionId, who: Identity, work: Work[T], charge: Charge, percent: int) -> T:
        target = str(which) if percent == ALL else f"{which} {percent}%"
        with _timed(work, charge) as timed:
            return await self._audit.act(who.actor, f"{which.root}.{verb}", target, which.tenant, timed)


@contextmanager
def _timed(work: Work[T], charge: Charge) -> Iterator[Work[T]]:
    """`work`, timed: at the end of the block, `charge` is called with the CPU time that it took in its thread."""
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

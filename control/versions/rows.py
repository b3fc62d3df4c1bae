"""The tables of versions, inside a connection.

Content is addressed by its digest and stored once for each tenant. A version never changes; only its state does:
approved, active, deprecated. At most one version of a name is active, which an index ensures; at most one other is its
canary (`canaries`).
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import apsw

from control.identity import Identity
from control.versions import canaries
from control.versions.grants import Grants, beyond, beyond_of, joined, parse_grants, require_power
from control.versions.records import ActiveVersion, Added, NewVersion, Standing, StoredVersion, Version, VersionId
from control.versions.share import ALL
from engine.errors import Code, LimitUse, Problem
from sandbox.wire.limits import MIB
from storage.lanes import rows

# Bounds for one tenant, and for one name: a flood of uploads ends here at the latest.
MAX_NAMES = 1_000
MAX_VERSIONS = 1_000
# Bound on the versions of one tenant that are called, active ones and canaries, in bytes: they are read, parsed and
# kept in memory together.
MAX_ACTIVE_BYTES = 32 * MIB

_VERSION = (
    "v.root, v.name, v.version, v.digest, p.size, v.grants, v.published_at, v.published_by, v.approved_by, v.active, "
    "v.deprecated, CASE WHEN v.active THEN 100 - coalesce(c.percent, 0) WHEN v.version = c.version THEN c.percent "
    "ELSE 0 END"
)
_WHICH = "WHERE tenant = ? AND root = ? AND name = ? AND version = ?"
# Not length(): that reads and counts the characters of every text, this reads only the header of the row.
_SAID_BYTES = "octet_length(said) + octet_length(grants)"
_JOINED = "versions v JOIN packages p ON p.tenant = v.tenant AND p.digest = v.digest"
_WITH_CANARIES = (
    f"{_JOINED} LEFT JOIN canaries c ON c.tenant = v.tenant AND c.root = v.root AND c.name = v.name "
    f"AND {canaries.HOLDS}"
)
_WITH_HEADS = f"{_JOINED} LEFT JOIN heads h ON h.tenant = v.tenant AND h.digest = v.digest"
# What is read and cached of a version to call it. A package from before heads were stored counts whole.
_ACTIVE_BYTES = f"coalesce(octet_length(h.head), p.size) + {_SAID_BYTES}"


def find(db: apsw.Connection, which: VersionId) -> Version | None:
    """One version, or None."""
    return next(iter(_versions(db, "AND v.root = ? AND v.name = ? AND v.version = ?", which)), None)


def existing(db: apsw.Connection, which: VersionId) -> Version:
    """One version. Raises Problem not_found."""
    found = find(db, which)
    if found is None:
        raise Problem(
            Code.NOT_FOUND, f"there is no version {which.version[:64]!r} of the {which.root} '{which.name[:64]}'"
        )
    return found


def history(db: apsw.Connection, tenant: str, root: str, name: str) -> list[Version]:
    """Every version of a name, the newest first. Raises Problem not_found where there is none."""
    found = _versions(db, "AND v.root = ? AND v.name = ? ORDER BY v.n DESC", (tenant, root, name))
    if not found:
        raise Problem(
            Code.NOT_FOUND, f"no version of {'an agent' if root == 'agent' else 'a tool'} '{name[:64]}' was published"
        )
    return found


def approved(db: apsw.Connection, tenant: str, root: str, name: str) -> Grants:
    """The grants approved for a name: the union over its approved versions that are not deprecated."""
    found = rows(
        db,
        "SELECT DISTINCT grants FROM versions WHERE tenant = ? AND root = ? AND name = ? AND approved_by IS NOT NULL "
        "AND NOT deprecated",
        (tenant, root, name),
    )
    return joined(_grants(text) for (text,) in found)


def standing(db: apsw.Connection, tenant: str, version: Version, free: Grants) -> Standing:
    """The version with the grants that it requests beyond those approved for its name and those that are free."""
    return standings(db, tenant, [version], free)[0]


def standings(db: apsw.Connection, tenant: str, found: Sequence[Version], free: Grants) -> list[Standing]:
    """The same for several versions of one name: the approved grants are read once."""
    if all(each.approved_by is not None for each in found):
        return [Standing(each, Grants()) for each in found]
    known = joined((free, approved(db, tenant, found[0].root, found[0].name)))
    less = beyond_of(known)
    return [Standing(each, Grants() if each.approved_by is not None else less(each.grants)) for each in found]


def add(
    db: apsw.Connection,
    tenant: str,
    new: NewVersion,
    free: Grants,
    *,
    max_bytes: float | None,
    besides: int = 0,
    percent: int = ALL,
) -> Added:
    """As `Versions.add`."""
    which = VersionId(tenant, new.root, new.name, new.version)
    there = find(db, which)
    if there is not None:
        if there.digest != new.digest:
            raise Problem(
                Code.CONFLICT,
                f"version {new.version} of the {new.root} '{new.name}' exists with other content "
                f"({there.digest[:12]}, this one is {new.digest[:12]}); versions never change: publish another one",
            )
        return Added(standing(db, tenant, there, free), False)
    grants, said = json.dumps(new.grants.as_json()), json.dumps(new.said)
    _require_room(db, tenant, new, (grants, said), max_bytes, besides)
    db.execute(
        "INSERT INTO packages(tenant, digest, size, content) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (tenant, new.digest, len(new.content), new.content),
    )
    if new.head is not None:
        db.execute(
            "INSERT INTO heads(tenant, digest, head) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (tenant, new.digest, new.head),
        )
    asked = beyond(new.grants, joined((free, approved(db, tenant, new.root, new.name))))
    db.execute(
        "INSERT INTO versions(tenant, root, name, version, digest, grants, said, published_at, published_by, "
        "approved_by, active, deprecated) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0)",
        (*which, new.digest, grants, said, new.at, new.by, None if asked else new.by),
    )
    if not asked:
        _serve(db, which, percent)
    return Added(Standing(existing(db, which), asked), True)


def activate(db: apsw.Connection, which: VersionId, free: Grants, percent: int) -> None:
    """As `Versions.activate`."""
    version = existing(db, which)
    _require_alive(version)
    if asks := standing(db, which.tenant, version, free).asks:
        raise Problem(
            Code.CONFLICT,
            f"version {version.version} of the {version.root} '{version.name}' asks for more than was approved "
            f"({asks}); approve it",
        )
    _serve(db, which, percent)


def approve(db: apsw.Connection, which: VersionId, free: Grants, who: Identity, percent: int) -> None:
    """As `Versions.approve`."""
    version = existing(db, which)
    require_power(standing(db, which.tenant, version, free).asks, operator=who.operator)
    _require_alive(version)
    db.execute(f"UPDATE versions SET approved_by = ? {_WHICH}", (who.actor, *which))
    _serve(db, which, percent)


def deprecate(db: apsw.Connection, which: VersionId) -> None:
    """As `Versions.deprecate`."""
    existing(db, which)
    db.execute(f"UPDATE versions SET deprecated = 1, active = 0 {_WHICH}", which)
    canaries.end_of_deprecated(db, which)


def active(db: apsw.Connection, tenant: str) -> list[ActiveVersion]:
    """Every version of a tenant that is called: tools before agents, by name, an active one before its canary."""
    found = rows(
        db,
        f"SELECT v.n, v.root, v.name, v.version, v.digest, {_ACTIVE_BYTES}, p.size, called.percent "
        f"FROM ({canaries.CALLED}) called JOIN {_WITH_HEADS} WHERE v.n = called.n "
        "ORDER BY v.root DESC, v.name, called.percent",
        (tenant,),
    )
    return [ActiveVersion(*row) for row in found]


def stored(
    db: apsw.Connection, tenant: str, numbers: Sequence[int], whole: Collection[str]
) -> dict[int, StoredVersion]:
    """What is stored of those of these versions of the tenant that exist.

    For the digests in `whole`, with the files beside the script.
    """
    wanted, digests = (", ".join("?" * len(each)) for each in (numbers, whole))
    found = rows(
        db,
        f"SELECT v.n, CASE WHEN v.digest IN ({digests}) THEN NULL ELSE h.head END AS first, "
        f"CASE WHEN h.head IS NULL OR v.digest IN ({digests}) THEN p.content END, v.said "
        f"FROM {_WITH_HEADS} WHERE v.tenant = ? AND v.n IN ({wanted})",
        (*whole, *whole, tenant, *numbers),
    )
    return {n: StoredVersion(head or content, head is not None, json.loads(said)) for n, head, content, said in found}


def mark(db: apsw.Connection, tenant: str) -> str:
    """A text that changes with the tenant's active versions and canaries; "" if none is active."""
    found = rows(
        db,
        f"SELECT v.root, v.name, v.version, v.digest, called.percent FROM ({canaries.CALLED}) called "
        "JOIN versions v ON v.n = called.n ORDER BY v.root, v.name, called.percent",
        (tenant,),
    )
    return json.dumps(found) if found else ""


def has_content(db: apsw.Connection, tenant: str, digest: str) -> bool:
    """Whether a version of the tenant has this content."""
    return bool(rows(db, "SELECT 1 FROM packages WHERE tenant = ? AND digest = ?", (tenant, digest)))


def _has_head(db: apsw.Connection, tenant: str, digest: str) -> bool:
    return bool(rows(db, "SELECT 1 FROM heads WHERE tenant = ? AND digest = ?", (tenant, digest)))


def stored_bytes(db: apsw.Connection, tenant: str) -> int:
    """The bytes of the tenant's packages, with the declarations of their scripts, which each version stores."""
    packages = "SELECT coalesce(sum(size), 0) FROM packages WHERE tenant = ?"
    heads = "SELECT coalesce(sum(octet_length(head)), 0) FROM heads WHERE tenant = ?"
    said = f"SELECT coalesce(sum({_SAID_BYTES}), 0) FROM versions WHERE tenant = ?"
    return sum(_count(db, each, (tenant,)) for each in (packages, heads, said))


def _active_bytes(db: apsw.Connection, tenant: str) -> int:
    sql = f"SELECT coalesce(sum({_ACTIVE_BYTES}), 0) FROM ({canaries.CALLED}) called JOIN {_WITH_HEADS} "
    return _count(db, f"{sql} WHERE v.n = called.n", (tenant,))


def _serve(db: apsw.Connection, which: VersionId, percent: int) -> None:
    """Have so many percent of the callers get this version: all of them, or as a canary beside the active version.

    Raises Problem: conflict (`canaries.begin`), and quota_exceeded if what is called would take more than the bound,
    and more than before: a tenant that exceeded the bound when it was introduced may only shrink.
    """
    tenant, root, name, version = which
    before = _active_bytes(db, tenant)
    if percent < ALL:
        canaries.begin(db, which, percent)
    else:
        canaries.end(db, which)
        db.execute(
            "UPDATE versions SET active = 0 WHERE tenant = ? AND root = ? AND name = ? AND active", (tenant, root, name)
        )
        db.execute(f"UPDATE versions SET active = 1 {_WHICH}", which)
    if (used := _active_bytes(db, tenant)) > max(MAX_ACTIVE_BYTES, before):
        raise Problem(
            Code.QUOTA_EXCEEDED,
            f"with version {version} of the {root} '{name}', the scripts that are active take {used} bytes; the most "
            f"is {MAX_ACTIVE_BYTES}; deprecate others",
            limit=LimitUse("published", MAX_ACTIVE_BYTES, used, "bytes", "engine"),
        )


def _require_alive(version: Version) -> None:
    if version.deprecated:
        raise Problem(
            Code.CONFLICT,
            f"version {version.version} of the {version.root} '{version.name}' is deprecated, which is permanent; "
            "publish its content as another version",
        )


def _require_room(
    db: apsw.Connection,
    tenant: str,
    new: NewVersion,
    texts: tuple[str, str],
    max_bytes: float | None,
    besides: int,
) -> None:
    if not rows(db, "SELECT 1 FROM tenants WHERE name = ? AND name = ? COLLATE BINARY", (tenant, tenant)):
        raise Problem(Code.NOT_FOUND, "the tenant no longer exists")
    alike = rows(
        db,
        "SELECT name FROM versions WHERE tenant = ? AND root = ? AND name = ? COLLATE NOCASE AND name <> ? LIMIT 1",
        (tenant, new.root, new.name, new.name),
    )
    if alike:
        raise Problem(
            Code.CONFLICT, f"the {new.root} '{alike[0][0]}' exists already; its name differs only in letter case"
        )
    if rows(
        db, "SELECT 1 FROM versions WHERE tenant = ? AND root = ? AND name = ? LIMIT 1", (tenant, new.root, new.name)
    ):
        count = "SELECT count(*) FROM versions WHERE tenant = ? AND root = ? AND name = ?"
        used, bound, what = _count(db, count, (tenant, new.root, new.name)), MAX_VERSIONS, f"versions of '{new.name}'"
    else:
        count = "SELECT count(DISTINCT root || ':' || name) FROM versions WHERE tenant = ?"
        used, bound, what = _count(db, count, (tenant,)), MAX_NAMES, "published agents and tools"
    if used >= bound:
        raise Problem(
            Code.QUOTA_EXCEEDED,
            f"the tenant has {used} {what}; the limit is {bound}",
            limit=LimitUse("published", bound, used, "count", "engine"),
        )
    content = 0 if has_content(db, tenant, new.digest) else len(new.content)
    # Content from before heads were stored gets its head now.
    head = 0 if _has_head(db, tenant, new.digest) else len(new.head or b"")
    size = stored_bytes(db, tenant) + besides + content + head + sum(map(len, texts))
    if max_bytes is not None and size > max_bytes:
        raise Problem(
            Code.QUOTA_EXCEEDED,
            f"with this package the tenant would have stored {size} bytes; the limit is {max_bytes:.0f} "
            "(quota.stored_bytes)",
            limit=LimitUse("stored_bytes", max_bytes, size, "bytes", "tenant"),
        )


def _count(db: apsw.Connection, sql: str, bindings: Sequence[Any]) -> int:
    return int(rows(db, sql, bindings)[0][0])


def _versions(db: apsw.Connection, where: str, bindings: Sequence[Any]) -> list[Version]:
    return [
        _version(row)
        for row in rows(db, f"SELECT {_VERSION} FROM {_WITH_CANARIES} WHERE v.tenant = ? {where}", bindings)
    ]


def _version(row: Sequence[Any]) -> Version:
    root, name, version, digest, size, grants, at, by, approved_by, is_active, deprecated, percent = row
    return Version(
        root, name, version, digest, size, _grants(grants), at, by, approved_by, bool(is_active), bool(deprecated),
        percent,
    )  # fmt: skip


def _grants(text: str) -> Grants:
    said: Mapping[str, Any] = json.loads(text)
    return parse_grants(said)

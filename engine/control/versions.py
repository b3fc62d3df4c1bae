"""Published versions: kept as they came, one of each name active. Functions on the connection of the control store.

Content is addressed by its digest and kept once a tenant. A version never changes; what changes is whether it is
approved, active or deprecated. At most one version of a name is active: the index sees to that.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import apsw

from engine.control.grants import Grants, beyond, beyond_of, joined, parse_grants
from engine.control.records import shown_time
from engine.control.tables import rows
from engine.errors import Code, LimitUse, Problem
from sandbox.limits import MIB

# Of one tenant, and of one name: a flood of uploads ends here, whatever else bounds it.
MAX_NAMES = 1_000
MAX_VERSIONS = 1_000
# What of one tenant is active together, in bytes: it is read, parsed and kept in memory together.
MAX_ACTIVE_BYTES = 32 * MIB

_VERSION = (
    "v.root, v.name, v.version, v.digest, p.size, v.grants, v.published_at, v.published_by, v.approved_by, v.active, "
    "v.deprecated"
)
# Not length(): that reads and counts the characters of every text, and this the header of its row.
_SAID_BYTES = "octet_length(said) + octet_length(grants)"
_JOINED = "versions v JOIN packages p ON p.tenant = v.tenant AND p.digest = v.digest"
_WITH_HEADS = f"{_JOINED} LEFT JOIN heads h ON h.tenant = v.tenant AND h.digest = v.digest"
# What is read and kept of a version to call it. A package that was published before heads were kept counts whole.
_ACTIVE_BYTES = f"coalesce(octet_length(h.head), p.size) + {_SAID_BYTES}"


@dataclass(frozen=True, slots=True)
class Version:
    """One published version. `root` is `agent` or `tool`; `grants` is what it asks for; `size` is in bytes."""

    root: str
    name: str
    version: str
    digest: str
    size: int
    grants: Grants
    published_at: float
    published_by: str
    approved_by: str | None
    active: bool
    deprecated: bool

    def as_json(self, asks: Grants) -> dict[str, Any]:
        """What lists show; `asks` is what stands between the version and its activation."""
        return {
            "name": self.name,
            "version": self.version,
            "digest": self.digest,
            "size": self.size,
            "active": self.active,
            "approved": self.approved_by is not None,
            "deprecated": self.deprecated,
            "published_at": shown_time(self.published_at),
            "published_by": self.published_by,
            "approved_by": self.approved_by,
            "grants": self.grants.as_json(),
            "asks": asks.told(),
        }


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version to be kept. `said` is what the script says of itself, as JSON, so that it need not be asked again.

    `head` is the content without the files beside the script, None where there are none.
    """

    root: str
    name: str
    version: str
    digest: str
    content: bytes
    head: bytes | None
    grants: Grants
    said: Any
    at: float
    by: str


@dataclass(frozen=True, slots=True)
class Added:
    """What came of publishing: the version as it is kept, whether it was not there before, and what it still asks."""

    version: Version
    created: bool
    asks: Grants


@dataclass(frozen=True, slots=True)
class ActiveVersion:
    """An active version. No other one ever has its number `n`.

    `size` is what it takes to call it, `whole` its content with the files beside the script, both in bytes.
    """

    n: int
    root: str
    name: str
    version: str
    digest: str
    size: int
    whole: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a version: everything that it takes to call it. `partial` says that its `content` is the head."""

    content: bytes
    partial: bool
    said: Any


def head_of(content: bytes) -> bytes | None:
    """The content of a package without the files beside its script; None where there are none.

    Raises ValueError, TypeError or KeyError for what is no content.
    """
    said = json.loads(content)
    if len(said["files"]) < 2:
        return None
    said["files"] = {said["main"]: said["files"][said["main"]]}
    return spelled(said)


def spelled(said: Mapping[str, Any]) -> bytes:
    """The one spelling of a package's content, which its digest is of."""
    return json.dumps(said, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def find(db: apsw.Connection, tenant: str, root: str, name: str, version: str) -> Version | None:
    """One version of the tenant's."""
    return next(
        iter(_versions(db, "AND v.root = ? AND v.name = ? AND v.version = ?", (tenant, root, name, version))), None
    )


def existing(db: apsw.Connection, tenant: str, root: str, name: str, version: str) -> Version:
    """One version of the tenant's. Raises Problem not_found."""
    found = find(db, tenant, root, name, version)
    if found is None:
        raise Problem(Code.NOT_FOUND, f"there is no version {version[:64]!r} of the {root} '{name[:64]}'")
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
    """What was approved for a name: with its versions, but for those that were deprecated since."""
    found = rows(
        db,
        "SELECT DISTINCT grants FROM versions WHERE tenant = ? AND root = ? AND name = ? AND approved_by IS NOT NULL "
        "AND NOT deprecated",
        (tenant, root, name),
    )
    return joined(_grants(text) for (text,) in found)


def asks(db: apsw.Connection, tenant: str, version: Version, free: Grants) -> Grants:
    """What the version asks for beyond what was approved for its name and what everybody has."""
    return asks_of(db, tenant, [version], free)[0]


def asks_of(db: apsw.Connection, tenant: str, found: Sequence[Version], free: Grants) -> list[Grants]:
    """The same of several versions of one name: what was approved is read once."""
    if all(each.approved_by is not None for each in found):
        return [Grants()] * len(found)
    known = joined((free, approved(db, tenant, found[0].root, found[0].name)))
    less = beyond_of(known)
    return [Grants() if each.approved_by is not None else less(each.grants) for each in found]


def add(
    db: apsw.Connection, tenant: str, new: NewVersion, free: Grants, *, max_bytes: float | None, besides: int = 0
) -> Added:
    """Keep a version, and activate it if it asks for nothing new. One that is there with this content stays as it is.

    `free` is what needs no approval, `max_bytes` what all packages of the tenant may take, with the `besides` that it
    has stored elsewhere.
    Raises Problem: conflict (another content, or a name that differs in case alone), quota_exceeded, not_found (the
    tenant is gone).
    """
    there = find(db, tenant, new.root, new.name, new.version)
    if there is not None:
        if there.digest != new.digest:
            raise Problem(
                Code.CONFLICT,
                f"version {new.version} of the {new.root} '{new.name}' is there with another content "
                f"({there.digest[:12]}, this one is {new.digest[:12]}); versions never change: publish another one",
            )
        return Added(there, False, asks(db, tenant, there, free))
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
        (
            tenant, new.root, new.name, new.version, new.digest, grants, said,
            new.at, new.by, None if asked else new.by,
        ),
    )  # fmt: skip
    if not asked:
        _switch(db, tenant, new.root, new.name, new.version)
    return Added(existing(db, tenant, new.root, new.name, new.version), True, asked)


def activate(db: apsw.Connection, tenant: str, version: Version, free: Grants) -> None:
    """Let this version be the one that is called. Raises Problem conflict: deprecated, or it asks for too much."""
    _require_alive(version)
    if asked := asks(db, tenant, version, free):
        raise Problem(
            Code.CONFLICT,
            f"version {version.version} of the {version.root} '{version.name}' asks for more than was approved "
            f"({asked}); approve it",
        )
    _switch(db, tenant, version.root, version.name, version.version)


def approve(db: apsw.Connection, tenant: str, version: Version, by: str) -> None:
    """Say yes to everything that the version asks for, and activate it. Raises Problem conflict when deprecated."""
    _require_alive(version)
    db.execute(
        "UPDATE versions SET approved_by = ? WHERE tenant = ? AND root = ? AND name = ? AND version = ?",
        (by, tenant, version.root, version.name, version.version),
    )
    _switch(db, tenant, version.root, version.name, version.version)


def deprecate(db: apsw.Connection, tenant: str, version: Version) -> None:
    """Take the version out of service for good, with what was approved for its sake."""
    db.execute(
        "UPDATE versions SET deprecated = 1, active = 0 WHERE tenant = ? AND root = ? AND name = ? AND version = ?",
        (tenant, version.root, version.name, version.version),
    )


def active(db: apsw.Connection, tenant: str) -> list[ActiveVersion]:
    """Every active version of a tenant, tools before agents, in the order of their names."""
    found = rows(
        db,
        f"SELECT v.n, v.root, v.name, v.version, v.digest, {_ACTIVE_BYTES}, p.size FROM {_WITH_HEADS} "
        "WHERE v.tenant = ? AND v.active ORDER BY v.root DESC, v.name",
        (tenant,),
    )
    return [ActiveVersion(*row) for row in found]


def kept(db: apsw.Connection, tenant: str, numbers: Sequence[int], whole: Collection[str]) -> dict[int, Kept]:
    """What is kept of these versions of the tenant's, as far as they are there.

    Of the digests in `whole`, with the files beside the script.
    """
    wanted, digests = (", ".join("?" * len(each)) for each in (numbers, whole))
    found = rows(
        db,
        f"SELECT v.n, CASE WHEN v.digest IN ({digests}) THEN NULL ELSE h.head END AS first, "
        f"CASE WHEN h.head IS NULL OR v.digest IN ({digests}) THEN p.content END, v.said "
        f"FROM {_WITH_HEADS} WHERE v.tenant = ? AND v.n IN ({wanted})",
        (*whole, *whole, tenant, *numbers),
    )
    return {n: Kept(head or content, head is not None, json.loads(said)) for n, head, content, said in found}


def mark(db: apsw.Connection, tenant: str) -> str:
    """A text that differs when something else of the tenant's is active; "" where nothing is."""
    found = rows(
        db,
        "SELECT root, name, version, digest FROM versions WHERE tenant = ? AND active ORDER BY root, name",
        (tenant,),
    )
    return json.dumps(found) if found else ""


def has_content(db: apsw.Connection, tenant: str, digest: str) -> bool:
    """Whether some version of the tenant's has this content."""
    return bool(rows(db, "SELECT 1 FROM packages WHERE tenant = ? AND digest = ?", (tenant, digest)))


def _has_head(db: apsw.Connection, tenant: str, digest: str) -> bool:
    return bool(rows(db, "SELECT 1 FROM heads WHERE tenant = ? AND digest = ?", (tenant, digest)))


def stored_bytes(db: apsw.Connection, tenant: str) -> int:
    """How much the tenant's packages take, with what their scripts say of themselves, which each version keeps."""
    packages = "SELECT coalesce(sum(size), 0) FROM packages WHERE tenant = ?"
    heads = "SELECT coalesce(sum(octet_length(head)), 0) FROM heads WHERE tenant = ?"
    said = f"SELECT coalesce(sum({_SAID_BYTES}), 0) FROM versions WHERE tenant = ?"
    return sum(_count(db, each, (tenant,)) for each in (packages, heads, said))


def _active_bytes(db: apsw.Connection, tenant: str) -> int:
    sql = f"SELECT coalesce(sum({_ACTIVE_BYTES}), 0) FROM {_WITH_HEADS} WHERE v.tenant = ? AND v.active"
    return _count(db, sql, (tenant,))


def _switch(db: apsw.Connection, tenant: str, root: str, name: str, version: str) -> None:
    """Activate this version. Raises Problem quota_exceeded where more than may be would be active, and more than was:
    a tenant from before the bound may have more, and can make it less.
    """
    before = _active_bytes(db, tenant)
    db.execute(
        "UPDATE versions SET active = 0 WHERE tenant = ? AND root = ? AND name = ? AND active", (tenant, root, name)
    )
    db.execute(
        "UPDATE versions SET active = 1 WHERE tenant = ? AND root = ? AND name = ? AND version = ?",
        (tenant, root, name, version),
    )
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
            f"version {version.version} of the {version.root} '{version.name}' is deprecated, which is for good; "
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
        raise Problem(Code.NOT_FOUND, "the tenant is not there any more")
    alike = rows(
        db,
        "SELECT name FROM versions WHERE tenant = ? AND root = ? AND name = ? COLLATE NOCASE AND name <> ? LIMIT 1",
        (tenant, new.root, new.name, new.name),
    )
    if alike:
        raise Problem(
            Code.CONFLICT, f"the {new.root} '{alike[0][0]}' is there already; its name differs in letter case alone"
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
    # A content that was kept before heads were gets its head now.
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
    return [_version(row) for row in rows(db, f"SELECT {_VERSION} FROM {_JOINED} WHERE v.tenant = ? {where}", bindings)]


def _version(row: Sequence[Any]) -> Version:
    root, name, version, digest, size, grants, at, by, approved_by, is_active, deprecated = row
    return Version(
        root, name, version, digest, size, _grants(grants), at, by, approved_by, bool(is_active), bool(deprecated)
    )


def _grants(text: str) -> Grants:
    said: Mapping[str, Any] = json.loads(text)
    return parse_grants(said)

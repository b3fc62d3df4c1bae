"""What a published version holds: its manifest, its files, and how it differs from another one.

SQLite takes the content apart in the store's thread, without the interpreter's lock: parsed in Python, 16 MiB of files
would stop the event loop as well.
"""

import json
from typing import Any

import apsw

from control.versions import rows
from control.versions.records import VersionId
from engine.errors import Code, Problem
from storage.lanes import rows as rows_of

# The files of a version, by path. Content is text that is kept as a blob, which SQLite would take for binary JSON.
_FILES = (
    "SELECT f.key AS path, f.value AS text FROM versions v "
    "JOIN packages p ON p.tenant = v.tenant AND p.digest = v.digest, json_each(CAST(p.content AS TEXT), '$.files') f "
    "WHERE v.tenant = ? AND v.root = ? AND v.name = ? AND v.version = ?"
)
_MANIFEST = (
    "SELECT json_remove(CAST(p.content AS TEXT), '$.files', '$.root', '$.grants') FROM versions v "
    "JOIN packages p ON p.tenant = v.tenant AND p.digest = v.digest "
    "WHERE v.tenant = ? AND v.root = ? AND v.name = ? AND v.version = ?"
)


def manifest(db: apsw.Connection, which: VersionId) -> dict[str, Any]:
    """The manifest without files and grants, which lists show. Raises Problem not_found."""
    rows.existing(db, which)
    found: dict[str, Any] = json.loads(rows_of(db, _MANIFEST, which)[0][0])
    return found


def files(db: apsw.Connection, which: VersionId) -> list[dict[str, Any]]:
    """Every file with its size in bytes, in the order of the paths."""
    found = rows_of(db, f"SELECT path, octet_length(text) FROM ({_FILES}) ORDER BY path", which)
    return [{"path": path, "size": size} for path, size in found]


def file(db: apsw.Connection, which: VersionId, path: str) -> tuple[str, bytes]:
    """The digest of the version, and the bytes of one file. Raises Problem not_found."""
    version = rows.existing(db, which)
    found = rows_of(db, f"SELECT CAST(text AS BLOB) FROM ({_FILES}) WHERE path = ?", (*which, path))
    if not found:
        raise Problem(
            Code.NOT_FOUND,
            f"version {version.version} of the {version.root} '{version.name}' has no file {path[:120]!r}",
        )
    return version.digest, bytes(found[0][0])


def compared_with(db: apsw.Connection, which: VersionId) -> str | None:
    """The version that is called now; for that one itself, the one that was published before it. None without any."""
    found = rows_of(
        db,
        "SELECT other.version FROM versions v JOIN versions other ON other.tenant = v.tenant AND other.root = v.root "
        "AND other.name = v.name WHERE v.tenant = ? AND v.root = ? AND v.name = ? AND v.version = ? AND other.n <> v.n "
        "AND CASE WHEN v.active THEN other.n < v.n ELSE other.active END ORDER BY other.n DESC LIMIT 1",
        which,
    )
    return found[0][0] if found else None


def changes(db: apsw.Connection, which: VersionId, against: str) -> dict[str, Any]:
    """The paths that were added, removed and changed since another version of the name. Raises Problem not_found."""
    other = which._replace(version=against)
    rows.existing(db, other)
    found = rows_of(
        db,
        f"SELECT coalesce(now.path, was.path) AS path, was.path IS NULL, now.path IS NULL FROM ({_FILES}) now "
        f"FULL JOIN ({_FILES}) was ON now.path = was.path WHERE now.text IS NOT was.text ORDER BY path",
        (*which, *other),
    )
    return {
        "against": against,
        "added": [path for path, added, _ in found if added],
        "removed": [path for path, _, removed in found if removed],
        "changed": [path for path, added, removed in found if not added and not removed],
    }

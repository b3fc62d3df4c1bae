"""The tables of the key-value store, and its changes inside one transaction.

A namespace is a tenant and a space. Keys are bytes, so that their order is that of bytes and a NUL is a byte as others.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from storage.lanes import at_once, configure, rows

SCHEMA_VERSION = 1
APPLICATION_ID = 0x6B767672  # "kvvr": tells our files from other programs' SQLite files

# What a key counts as, in addition to its own bytes and those of its value: its namespace, and its place in the tables.
ENTRY_BYTES = 128
# Rows of one step of what may be long, and bytes of values in a step that removes, all of which are overwritten: a step
# holds the write lock for some tens of milliseconds.
STEP_ROWS = 500
STEP_BYTES = 2 * 1024 * 1024
# How long a deleted tenant's runs are refused: longer than any run that began before.
CLOSED_S = 900.0
INT64: Final = 2**63
# The longest integer as msgpack.
_INTEGER_BYTES = 9

# `meta` has the version that was given last: one counter for all namespaces, so that a key which is deleted and set
# again never has a version that it had before. `tenants` has the sums that quotas bound. Of `entries`, the value is the
# last column: SQLite reads all pages of a large one to reach what follows it (a list of 1,000: 25 ms instead of 2).
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tenants(
    tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL, closed_until REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries(
    tenant TEXT NOT NULL, space TEXT NOT NULL, key BLOB NOT NULL, version INTEGER NOT NULL, expires_at REAL,
    value BLOB NOT NULL, PRIMARY KEY(tenant, space, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_by_expiry ON entries(expires_at) WHERE expires_at IS NOT NULL;
"""


class KvError(Exception):
    """An operation was refused, or failed. The text is for scripts: without paths, SQL, or text of SQLite's."""


class KvFull(KvError):
    """The tenant would store more than it may. `used` is what it stores now, `bound` the most, in bytes."""

    def __init__(self, used: int, bound: int) -> None:
        super().__init__(f"{used} bytes are stored; the limit is {bound}")
        self.used, self.bound = used, bound


class Place(NamedTuple):
    """A key in its namespace."""

    tenant: str
    space: str
    key: bytes


class Entry(NamedTuple):
    """What a key has. `value` is opaque; `expires_at` is in seconds since the epoch."""

    value: bytes
    version: int
    expires_at: float | None

    def is_alive(self, now: float) -> bool:
        return self.expires_at is None or self.expires_at > now


class Listed(NamedTuple):
    """A key in a list; `size` is that of its value in bytes."""

    key: bytes
    version: int
    size: int
    expires_at: float | None


class Changed(NamedTuple):
    """The answer to a change. `done` is false where the key did not have the expected version.

    `version` is the key's after the change, 0 for a key that is not there.
    """

    done: bool
    version: int


class NotThisStore(Exception):
    """The file is not a key-value store of this version. The text says what it is instead, without its name."""


def prepare(db: apsw.Connection) -> None:
    """Make an empty file a key-value store, and check any other. Raises NotThisStore."""
    is_empty = not rows(db, "SELECT 1 FROM sqlite_schema LIMIT 1")
    if not is_empty:
        check(db)
    if db.pragma("journal_mode") != "wal":
        db.pragma("journal_mode", "wal")
    # A change that was answered is there after a power cut.
    db.pragma("synchronous", "FULL")
    # Deleted rows are overwritten: nothing of a deleted tenant stays in a free page.
    db.pragma("secure_delete", 1)
    db.pragma("journal_size_limit", 16 * 1024 * 1024)
    if is_empty:
        at_once(_fill, db)


def _fill(db: apsw.Connection) -> None:
    rows(db, _SCHEMA)  # another process may have been faster: none of these fails then
    db.execute("INSERT INTO meta VALUES ('version', 0) ON CONFLICT DO NOTHING")
    db.pragma("application_id", APPLICATION_ID)
    db.pragma("user_version", SCHEMA_VERSION)


def check(db: apsw.Connection) -> None:
    """Raises NotThisStore unless the file is a key-value store of a schema that this version reads."""
    if db.pragma("application_id") != APPLICATION_ID:
        raise NotThisStore("is another program's SQLite database, not a key-value store")
    version = db.pragma("user_version")
    if version != SCHEMA_VERSION:
        raise NotThisStore(f"was written by another version (schema {version}, this one knows {SCHEMA_VERSION})")


@contextmanager
def connected(file: Path, busy_timeout_s: float) -> Iterator[apsw.Connection]:
    """A connection of its own to an existing file, for threads: the engine may serve it meanwhile. Raises apsw.Error,
    NotThisStore.
    """
    db = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        configure(db, busy_timeout_s=busy_timeout_s)
        prepare(db)
        yield db
    finally:
        db.close()


# ---- reading ----------------------------------------------------------------------------------------------------

_GET = "SELECT value, version, expires_at FROM entries WHERE tenant = ? AND space = ? AND key = ?"
# Without an end: to compare a row with that, SQLite would read its whole value.
_LIST = (
    "SELECT tenant, space, key, version, length(value), expires_at FROM entries "
    "WHERE (tenant, space, key) {} (?, ?, ?) ORDER BY tenant, space, key LIMIT ?"
)
# Follows every key: UTF-8 has no byte 0xFF.
_END = b"\xff"


def get(db: apsw.Connection, place: Place) -> Entry | None:
    """What a key has, also if it has expired."""
    found = rows(db, _GET, place)
    return Entry(*found[0]) if found else None


def listed(
    db: apsw.Connection, tenant: str, space: str, prefix: bytes, after: bytes, limit: int, now: float
) -> tuple[list[Listed], bytes | None]:
    """Keys with this prefix in the order of their bytes, from the first one after `after`: at most `limit`.

    The second value is the key to go on after, None at the end. At most `limit` and `STEP_ROWS` rows are read, so that
    there may be fewer keys than `limit`, or none, and more to come: expired ones are left out.
    """
    end = prefix + _END  # no key with this prefix goes on with the byte 0xFF, and none is greater than that
    most = limit + STEP_ROWS
    # One lower bound: of two, SQLite would seek the first and read every row up to the second.
    seek = _LIST.format(">=" if prefix > after else ">")
    found: list[Listed] = []
    read, last = 0, b""
    with closing(db.execute(seek, (tenant, space, max(prefix, after), most))) as cursor:
        for its_tenant, its_space, *row in cursor:
            each = Listed(*row)
            if (its_tenant, its_space) != (tenant, space) or each.key >= end:
                return found, None
            if len(found) == limit:
                return found, last
            read, last = read + 1, each.key
            if each.expires_at is None or each.expires_at > now:
                found.append(each)
    return found, last if read == most else None


def _step(db: apsw.Connection, sql: str, bindings: tuple[object, ...]) -> list[tuple[Any, ...]]:
    """The first of the rows that one step may remove. Each ends with the size of its value."""
    found, size = [], 0
    with closing(db.execute(sql, bindings)) as cursor:
        for row in cursor:
            found.append(row)
            size += row[-1]
            if size > STEP_BYTES:
                break
    return found


def used_bytes(db: apsw.Connection, tenant: str) -> int:
    """What the tenant's keys count as, expired ones included until they are removed."""
    found = rows(db, "SELECT bytes FROM tenants WHERE tenant = ?", (tenant,))
    return int(found[0][0]) if found else 0


# ---- changes ----------------------------------------------------------------------------------------------------

_SET = (
    "INSERT INTO entries(tenant, space, key, value, version, expires_at) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET value = excluded.value, "
    "version = excluded.version, expires_at = excluded.expires_at"
)


class Changes:
    """The changes of one transaction. Each is made whole, or refused by KvError; `finish` writes counter and sums."""

    def __init__(self, db: apsw.Connection, now: float) -> None:
        self._db = db
        self._now = now
        self._before = self._version = int(rows(db, "SELECT value FROM meta WHERE name = 'version'")[0][0])
        # Of the tenants seen so far: the bytes stored before, and now.
        self._sums: dict[str, list[int]] = {}

    def set(
        self, place: Place, value: bytes, expires_at: float | None, if_version: int | None, max_bytes: int
    ) -> Changed:
        """Set a key. With `if_version`, only if that is its version; 0: if it is not there."""
        before, is_there = self._before_of(place)
        current = before.version if before is not None and is_there else 0
        if if_version is not None and if_version != current:
            return Changed(False, current)
        self._write(place, value, expires_at, before, max_bytes)
        return Changed(True, self._version)

    def increment(self, place: Place, by: int, max_bytes: int) -> tuple[int, int]:
        """Add to an integer, from 0 if the key is not there; its expiry is kept. Its new value and version."""
        before, is_there = self._before_of(place)
        number, expires_at = 0, None
        if before is not None and is_there:
            number, expires_at = _integer(before.value), before.expires_at
        number += by
        if not -INT64 <= number < INT64:
            raise KvError("the sum would be beyond 64 bits; the value stays as it was")
        self._write(place, msgspec.msgpack.encode(number), expires_at, before, max_bytes)
        return number, self._version

    def delete(self, place: Place, if_version: int | None) -> Changed:
        """Delete a key. `done` is whether it was there; with `if_version`, whether that was its version as well."""
        before, is_there = self._before_of(place)
        current = before.version if before is not None and is_there else 0
        if before is None or (if_version is not None and if_version != current):
            return Changed(False, current)
        self._db.execute("DELETE FROM entries WHERE tenant = ? AND space = ? AND key = ?", place)
        self._sums[place.tenant][1] -= _size(place, before.value)
        return Changed(is_there, 0)

    def finish(self) -> None:
        """Write what the changes amount to, at the end of the transaction."""
        if self._version != self._before:
            self._db.execute("UPDATE meta SET value = ? WHERE name = 'version'", (self._version,))
        for tenant, (before, now) in self._sums.items():
            if now != before:
                _sum_is(self._db, tenant, now)

    def _before_of(self, place: Place) -> tuple[Entry | None, bool]:
        """The key's row, and whether it counts: an expired one does not."""
        self._require_open(place.tenant)
        before = get(self._db, place)
        return before, before is not None and before.is_alive(self._now)

    def _require_open(self, tenant: str) -> None:
        if tenant in self._sums:
            return
        found = rows(self._db, "SELECT bytes, closed_until FROM tenants WHERE tenant = ?", (tenant,))
        used, closed_until = found[0] if found else (0, 0.0)
        if self._now < closed_until:
            raise KvError("the keys of this tenant were deleted with it; a new tenant of its name has to wait")
        self._sums[tenant] = [used, used]

    def _write(
        self, place: Place, value: bytes, expires_at: float | None, before: Entry | None, max_bytes: int
    ) -> None:
        sums = self._sums[place.tenant]
        more = _size(place, value) - (0 if before is None else _size(place, before.value))
        if more > 0 and sums[1] + more > max_bytes:
            raise KvFull(sums[1], max_bytes)
        self._version += 1
        self._db.execute(_SET, (*place, value, self._version, expires_at))
        sums[1] += more


def _integer(value: bytes) -> int:
    # Any other value stays as it is: one of 64 KiB may be 64,000 objects, which an error would hold.
    number = None
    if len(value) <= _INTEGER_BYTES:
        with suppress(msgspec.MsgspecError):  # a damaged value: an error of this change, not of its batch
            number = msgspec.msgpack.decode(value)
    if type(number) is not int:
        raise KvError("the value is not an integer; it stays as it was")
    return number


def _size(place: Place, value: bytes) -> int:
    return len(place.key) + len(value) + ENTRY_BYTES


def _sum_is(db: apsw.Connection, tenant: str, size: int) -> None:
    db.execute(
        "INSERT INTO tenants(tenant, bytes) VALUES (?, ?) ON CONFLICT DO UPDATE SET bytes = excluded.bytes",
        (tenant, size),
    )


def prune(db: apsw.Connection, now: float) -> int:
    """Remove the keys that expired first: at most `STEP_ROWS` and `STEP_BYTES`, in the caller's transaction.

    Returns how many.
    """
    found = _step(
        db,
        "SELECT tenant, space, key, length(value) FROM entries WHERE expires_at <= ? ORDER BY expires_at LIMIT ?",
        (now, STEP_ROWS),
    )
    freed: dict[str, int] = {}
    for tenant, space, key, size in found:
        db.execute("DELETE FROM entries WHERE tenant = ? AND space = ? AND key = ?", (tenant, space, key))
        freed[tenant] = freed.get(tenant, 0) + len(key) + size + ENTRY_BYTES
    for tenant, size in freed.items():
        _sum_is(db, tenant, used_bytes(db, tenant) - size)
    return len(found)


# ---- whole tenants, for operators --------------------------------------------------------------------------------


def count_of(db: apsw.Connection, tenant: str) -> int:
    """How many keys a tenant has, expired ones included."""
    return int(rows(db, "SELECT count(*) FROM entries WHERE tenant = ?", (tenant,))[0][0])


def remove_tenant(db: apsw.Connection, tenant: str, now: float) -> int:
    """Delete all keys of a tenant, step by step, and refuse its runs for `CLOSED_S`. Returns how many there were."""

    def close(db: apsw.Connection) -> None:
        db.execute(
            "INSERT INTO tenants VALUES (?, 0, ?) ON CONFLICT DO UPDATE SET closed_until = excluded.closed_until",
            (tenant, now + CLOSED_S),
        )
        db.execute("DELETE FROM tenants WHERE closed_until BETWEEN 1 AND ? AND bytes = 0", (now,))

    def step(db: apsw.Connection) -> int:
        sql = "SELECT space, key, length(value) FROM entries WHERE tenant = ? LIMIT ?"
        found = _step(db, sql, (tenant, STEP_ROWS))
        for space, key, _ in found:
            db.execute("DELETE FROM entries WHERE tenant = ? AND space = ? AND key = ?", (tenant, space, key))
        return len(found)

    at_once(close, db)
    removed = 0
    while taken := at_once(step, db):
        removed += taken
    at_once(lambda db: _sum_is(db, tenant, 0), db)
    # The write-ahead log still has copies of what was deleted.
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    return removed


def all_of(db: apsw.Connection, tenant: str) -> Iterator[tuple[str, bytes, Entry]]:
    """All keys of a tenant, each with its space, from one snapshot."""
    found = db.execute(
        "SELECT space, key, value, version, expires_at FROM entries WHERE tenant = ? ORDER BY space, key", (tenant,)
    )
    for space, key, value, version, expires_at in found:
        yield space, key, Entry(value, version, expires_at)


def put_all(db: apsw.Connection, tenant: str, given: Iterator[tuple[str, bytes, Entry]], now: float) -> int:
    """Set keys of a tenant that has none, step by step; their versions are new. Returns how many."""

    def step(db: apsw.Connection) -> int:
        changes = Changes(db, now)
        taken = 0
        for space, key, entry in given:
            changes.set(Place(tenant, space, key), entry.value, entry.expires_at, None, INT64)
            taken += 1
            if taken == STEP_ROWS:
                break
        changes.finish()
        return taken

    at_once(partial(_open_again, tenant=tenant), db)
    total = 0
    while taken := at_once(step, db):
        total += taken
    return total


def _open_again(db: apsw.Connection, tenant: str) -> None:
    db.execute("UPDATE tenants SET closed_until = 0 WHERE tenant = ?", (tenant,))

"""The tables of the control store; creating and checking them. Pure SQL, inside a connection.

The rows of a table with a column `tenant` belong to that tenant: deleting the tenant deletes them, and an export
includes them. Only `audit` is exempt: its rows are the operator's.
"""

from functools import partial
from pathlib import Path

import apsw

from engine.tenant import DEFAULT_TENANT
from knowledge.store import StoreError
from storage.lanes import at_once, rows

SCHEMA_VERSION = 2
APPLICATION_ID = 0x6374726C  # "ctrl": tells our files from other programs' SQLite files

# Names that differ only in case would be one file on some filesystems, and easy to confuse on all.
_CORE = """
CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tenants(
    name TEXT PRIMARY KEY COLLATE NOCASE, state TEXT NOT NULL, created_at REAL NOT NULL,
    quotas TEXT NOT NULL, ceilings TEXT NOT NULL, weight REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keys(
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, prefix TEXT NOT NULL UNIQUE, digest BLOB NOT NULL, scopes TEXT NOT NULL,
    created_at REAL NOT NULL, expires_at REAL, revoked_at REAL, labels TEXT NOT NULL DEFAULT '[]'
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keys_by_tenant ON keys(tenant);
CREATE TABLE IF NOT EXISTS secrets(
    tenant TEXT NOT NULL, name TEXT NOT NULL, hosts TEXT NOT NULL, sealed BLOB NOT NULL,
    created_at REAL NOT NULL, updated_at REAL NOT NULL, PRIMARY KEY(tenant, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS audit(
    n INTEGER PRIMARY KEY, at REAL NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL, target TEXT NOT NULL,
    outcome TEXT NOT NULL, tenant TEXT
);
CREATE INDEX IF NOT EXISTS audit_by_tenant ON audit(tenant, n);
"""

# `n` is the order of publication; a package's content is stored once, however many versions have it. If it has files
# beside its script, its head is the content without them: what is read to call it, however large they are.
_VERSIONS = """
CREATE TABLE IF NOT EXISTS packages(
    tenant TEXT NOT NULL, digest TEXT NOT NULL, size INTEGER NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY(tenant, digest)
);
CREATE TABLE IF NOT EXISTS heads(
    tenant TEXT NOT NULL, digest TEXT NOT NULL, head BLOB NOT NULL, PRIMARY KEY(tenant, digest)
);
CREATE TABLE IF NOT EXISTS versions(
    n INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, root TEXT NOT NULL, name TEXT NOT NULL,
    version TEXT NOT NULL, digest TEXT NOT NULL, grants TEXT NOT NULL, said TEXT NOT NULL, published_at REAL NOT NULL,
    published_by TEXT NOT NULL, approved_by TEXT, active INTEGER NOT NULL, deprecated INTEGER NOT NULL,
    UNIQUE(tenant, root, name, version)
);
CREATE UNIQUE INDEX IF NOT EXISTS versions_active ON versions(tenant, root, name) WHERE active;
CREATE TABLE IF NOT EXISTS canaries(
    tenant TEXT NOT NULL, root TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL,
    percent INTEGER NOT NULL CHECK(typeof(percent) = 'integer' AND percent BETWEEN 1 AND 99),
    PRIMARY KEY(tenant, root, name)
) WITHOUT ROWID;
"""

# One row for each account (`engine.usage`); the two counters are JSON.
_USAGE = """
CREATE TABLE IF NOT EXISTS usage(
    tenant TEXT NOT NULL, agent TEXT NOT NULL, key TEXT NOT NULL, day TEXT NOT NULL, runs INTEGER NOT NULL,
    queue_us INTEGER NOT NULL, wall_us INTEGER NOT NULL, cpu_us INTEGER NOT NULL, bytes_in INTEGER NOT NULL,
    bytes_out INTEGER NOT NULL, peak_memory_bytes INTEGER NOT NULL, host_calls TEXT NOT NULL, outcomes TEXT NOT NULL,
    PRIMARY KEY(tenant, agent, key, day)
) WITHOUT ROWID;
"""

# What calls of models cost, by account and model; `calls` are those that were answered, `cost` in micro-dollars.
_MODEL_USAGE = """
CREATE TABLE IF NOT EXISTS model_usage(
    tenant TEXT NOT NULL, agent TEXT NOT NULL, key TEXT NOT NULL, day TEXT NOT NULL, model TEXT NOT NULL,
    calls INTEGER NOT NULL, input INTEGER NOT NULL, cached INTEGER NOT NULL, output INTEGER NOT NULL,
    cost INTEGER NOT NULL, PRIMARY KEY(tenant, day, agent, key, model)
) WITHOUT ROWID;
"""

# What the calls of models of one day count in the tenant's quota, in micro-dollars, reservations included.
_MODEL_COUNTED = """
CREATE TABLE IF NOT EXISTS model_counted(
    tenant TEXT PRIMARY KEY, day TEXT NOT NULL, cost INTEGER NOT NULL
) WITHOUT ROWID;
"""

# Columns that tables have since a version of the schema, by that version. A store of an older one gets them.
_ADDED = {2: ("keys", "labels TEXT NOT NULL DEFAULT '[]'")}

# Every table of the control store; all of them say IF NOT EXISTS.
SCHEMAS: tuple[str, ...] = (_CORE, _VERSIONS, _USAGE, _MODEL_USAGE, _MODEL_COUNTED)

_NOT_THEIRS = ("audit", "tenants")


def prepare(db: apsw.Connection, file: Path | None, now: float) -> None:
    """Make an empty file a control store; check any other, and upgrade it in place. Raises StoreError naming `file`.

    The tenant `default` always exists: it owns what the configuration names.
    """
    empty = not rows(db, "SELECT 1 FROM sqlite_schema LIMIT 1")
    if not empty:
        check(db, file)
    if file is not None and db.pragma("journal_mode") != "wal":
        db.pragma("journal_mode", "wal")
    # A key that was created must work after a power cut, and one that was revoked must not.
    db.pragma("synchronous", "FULL")
    # Deleted rows are overwritten: the last copy of a secret must not stay in a free page.
    db.pragma("secure_delete", 1)
    db.pragma("journal_size_limit", 16 * 1024 * 1024)
    at_once(partial(_fill, now=now), db)


def _fill(db: apsw.Connection, now: float) -> None:
    # 0: a new file. Another process may have been faster, so this is read under the lock.
    version = db.pragma("user_version") or SCHEMA_VERSION
    for table, column in (_ADDED[each] for each in range(version + 1, SCHEMA_VERSION + 1)):
        db.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
    for schema in SCHEMAS:  # another process may have been faster: none of these fails then
        rows(db, schema)
    db.execute("INSERT INTO meta VALUES ('generation', 0) ON CONFLICT DO NOTHING")
    db.execute(
        "INSERT INTO tenants VALUES (?, 'active', ?, '{}', '{}', 1.0) ON CONFLICT DO NOTHING", (DEFAULT_TENANT.id, now)
    )
    db.pragma("application_id", APPLICATION_ID)
    db.pragma("user_version", SCHEMA_VERSION)


def check(db: apsw.Connection, file: Path | None) -> None:
    """Raises StoreError unless the file is a control store of a schema that this version reads."""
    if db.pragma("application_id") != APPLICATION_ID:
        raise StoreError(f"{file} is another program's SQLite database, not a control store; correct [tenants] store")
    version = db.pragma("user_version")
    if not 1 <= version <= SCHEMA_VERSION:
        raise StoreError(
            f"the control store at {file} was written by another version (schema {version}, this one knows "
            f"{SCHEMA_VERSION}); use that version"
        )


def generation(db: apsw.Connection) -> int:
    """A number that grows with every control action."""
    return int(rows(db, "SELECT value FROM meta WHERE name = 'generation'")[0][0])


def advance(db: apsw.Connection) -> None:
    """Count a control action."""
    db.execute("UPDATE meta SET value = value + 1 WHERE name = 'generation'")


def tenant_tables(db: apsw.Connection) -> list[str]:
    """The tables with rows of tenants, besides the list of tenants itself and the audit log."""
    found = rows(
        db,
        "SELECT m.name FROM sqlite_schema m JOIN pragma_table_info(m.name) c ON c.name = 'tenant' "
        "WHERE m.type = 'table' ORDER BY m.name",
    )
    return [name for (name,) in found if name not in _NOT_THEIRS]


def counts(db: apsw.Connection, tenant: str) -> dict[str, int]:
    """How many rows a tenant has, by table."""
    return {
        table: int(rows(db, f'SELECT count(*) FROM "{table}" WHERE tenant = ?', (tenant,))[0][0])
        for table in tenant_tables(db)
    }

"""The table of canaries, inside a connection: of a name, the version that a share of its callers gets.

Invariant: a name with a canary has an active version, which is another one and serves the other callers. `HOLDS` is the
invariant of a row `c`: a row that an import or an older engine has left behind counts for nothing.
"""

import apsw

from control.versions.records import VersionId
from engine.errors import Code, Problem
from storage.lanes import rows

_OF_NAME = "SELECT 1 FROM versions o WHERE o.tenant = c.tenant AND o.root = c.root AND o.name = c.name"
HOLDS = (
    f"EXISTS ({_OF_NAME} AND o.active) AND "
    f"EXISTS ({_OF_NAME} AND o.version = c.version AND NOT o.active AND NOT o.deprecated)"
)
# The versions of the tenant ?1 that are called, by number, with the percent of a canary; 0 for an active version.
CALLED = (
    "SELECT n, 0 AS percent FROM versions WHERE tenant = ?1 AND active UNION ALL "
    "SELECT v.n, c.percent FROM canaries c JOIN versions v "
    "ON v.tenant = c.tenant AND v.root = c.root AND v.name = c.name AND v.version = c.version "
    f"WHERE c.tenant = ?1 AND {HOLDS}"
)
_NAME = "tenant = ? AND root = ? AND name = ?"
_IS_ACTIVE = f"SELECT version FROM versions WHERE {_NAME} AND active"


def begin(db: apsw.Connection, which: VersionId, percent: int) -> None:
    """Make this version the canary of its name, in the place of any other. Raises Problem conflict."""
    name = which[:3]
    active = rows(db, _IS_ACTIVE, name)
    if not active:
        raise Problem(
            Code.CONFLICT,
            f"no version of the {which.root} '{which.name}' is active, and a canary leaves the other callers to that; "
            "activate one without percent",
        )
    if active[0][0] == which.version:
        raise Problem(
            Code.CONFLICT,
            f"version {which.version} of the {which.root} '{which.name}' is the active one, and a canary is another "
            "version; to end one, activate without percent",
        )
    db.execute(
        "INSERT OR REPLACE INTO canaries(tenant, root, name, version, percent) VALUES (?, ?, ?, ?, ?)",
        (*which, percent),
    )


def end(db: apsw.Connection, which: VersionId) -> None:
    """End the canary of this version's name, if there is one."""
    db.execute(f"DELETE FROM canaries WHERE {_NAME}", which[:3])


def end_of_deprecated(db: apsw.Connection, which: VersionId) -> None:
    """End the canary of a name if this version, which was deprecated, was the canary or the active version."""
    if not rows(db, _IS_ACTIVE, which[:3]):
        end(db, which)
    db.execute(f"DELETE FROM canaries WHERE {_NAME} AND version = ?", which)

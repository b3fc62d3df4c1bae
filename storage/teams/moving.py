"""Whole files of teams, for operators: in a thread, also while engines serve them."""

from pathlib import Path

import apsw
import msgspec

from storage.lanes import at_once, configure, rows
from storage.teams import events
from storage.teams.tables import BESIDE, NotTeams, check_file, prepare, project

_BUSY_TIMEOUT_S = 5.0
# Rows that an import reads at once.
_STEP = 1_000


def make_anew(source: Path, to: Path) -> None:
    """Make the new file `to` from the events of `source`, which may be a stranger's: every table is projected anew, and
    nothing else of its schema is taken.

    Raises NotTeams for what is no file of teams, or not consistent; apsw.Error.
    """
    to.touch(mode=0o600)
    reading = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
    writing = apsw.Connection(str(to))
    try:
        for db in (reading, writing):
            configure(db, busy_timeout_s=_BUSY_TIMEOUT_S)
        # What the file itself would run: triggers and views of its own.
        reading.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        reading.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
        reading.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        check_file(reading)
        prepare(writing)
        at_once(lambda db: _fill(reading, db), writing)
        writing.pragma("journal_mode", "delete")  # one file, without a log beside it
    except (apsw.SQLError, apsw.CorruptError, apsw.NotADBError, apsw.ConstraintError) as error:
        raise NotTeams("is no file of teams, or is damaged") from error
    except (msgspec.MsgspecError, ValueError, TypeError, IndexError) as error:
        raise NotTeams("has an event that this version does not know") from error
    finally:
        writing.close()
        reading.close()


def _fill(reading: apsw.Connection, writing: apsw.Connection) -> None:
    for team, seq, at, event in reading.execute("SELECT team, seq, at, event FROM events ORDER BY team, seq"):
        if not (isinstance(team, int) and isinstance(seq, int) and isinstance(at, float) and isinstance(event, bytes)):
            raise NotTeams("has an event of another form")
        found = events.decoded(event)
        writing.execute("INSERT INTO events VALUES(?, ?, ?, ?)", (team, seq, at, event))
        project(writing, team, seq, at, found)
    for table, columns in ((BESIDE[0], 8), (BESIDE[1], 5), ("definitions", 3)):
        insert = f"INSERT INTO {table} VALUES({', '.join('?' * columns)})"
        writing.executemany(insert, rows(reading, f"SELECT * FROM {table}"))

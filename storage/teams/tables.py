"""The tables of a tenant's teams: the events, what is made from them, and what stands beside them.

`project` writes what one event changes; `storage.teams.check` makes all tables anew with it and compares. Every change
goes through `Rows.append`, in the transaction that writes the event.
"""

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from storage.lanes import at_once, rows
from storage.teams.events import (
    USER,
    AgentCreated,
    AgentTerminated,
    AnyEvent,
    BudgetReached,
    ExpectationClosed,
    ExpectationOpened,
    FileWritten,
    Imported,
    MessageAcknowledged,
    MessageEnqueued,
    ModelCalled,
    ReminderCancelled,
    ReminderFired,
    ReminderSet,
    TeamCreated,
    TeamStopped,
    TurnCommitted,
    TurnFailed,
    TurnLeased,
    TurnParked,
    TurnReleased,
    TurnResumed,
)

SCHEMA_VERSION = 1
APPLICATION_ID = 0x7465616D  # "team": tells our files from other programs' SQLite files

# Texts stand in `events` alone; `seq` leads to them. Of `agents`, `state` is that of the next or current turn
# (`agents.teams.turns`), `upto` the last message that its lease shows, `memory` the event with the state that its last
# turn left. `journal`, `staged` and `definitions` are not made from events: what a turn did outside, what the turn of
# a client did so far, and personas by the digest of their content.
_EVENTS = """
CREATE TABLE IF NOT EXISTS events(
    team INTEGER NOT NULL, seq INTEGER NOT NULL, at REAL NOT NULL, event BLOB NOT NULL, PRIMARY KEY(team, seq)
) WITHOUT ROWID;
"""
PROJECTIONS = """
CREATE TABLE IF NOT EXISTS teams(
    team INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, uid TEXT NOT NULL, budget BLOB NOT NULL,
    created_at REAL NOT NULL, stopped_at REAL, seq INTEGER NOT NULL, at REAL NOT NULL, agents INTEGER NOT NULL,
    turns INTEGER NOT NULL, messages INTEGER NOT NULL, counted INTEGER NOT NULL, tokens INTEGER NOT NULL,
    micro INTEGER NOT NULL, workspace_bytes INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS agents(
    team INTEGER NOT NULL, agent INTEGER NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL, parent INTEGER NOT NULL,
    depth INTEGER NOT NULL, path TEXT NOT NULL, role TEXT NOT NULL, runner TEXT NOT NULL, workspace TEXT NOT NULL,
    persona TEXT NOT NULL, definition TEXT NOT NULL, seq INTEGER NOT NULL, bounded INTEGER NOT NULL,
    ended_at REAL, state TEXT NOT NULL, turn INTEGER NOT NULL, attempt INTEGER NOT NULL, failures INTEGER NOT NULL,
    ready_at REAL NOT NULL, lease TEXT, owner TEXT, deadline REAL, upto INTEGER NOT NULL, why TEXT, parked INTEGER,
    inbox INTEGER NOT NULL, inbox_bytes INTEGER NOT NULL, children INTEGER NOT NULL, memory INTEGER,
    PRIMARY KEY(team, agent)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS agents_by_parent ON agents(team, parent, name);
CREATE INDEX IF NOT EXISTS agents_ready ON agents(ready_at) WHERE state = 'ready';
CREATE INDEX IF NOT EXISTS agents_leased ON agents(deadline) WHERE state = 'leased';
CREATE INDEX IF NOT EXISTS agents_by_lease ON agents(lease) WHERE lease IS NOT NULL;
CREATE TABLE IF NOT EXISTS messages(
    team INTEGER NOT NULL, message INTEGER NOT NULL, seq INTEGER NOT NULL, id TEXT NOT NULL, sender INTEGER NOT NULL,
    recipient INTEGER NOT NULL, kind TEXT NOT NULL, size INTEGER NOT NULL, hops INTEGER NOT NULL, reply_to INTEGER,
    counted INTEGER, delivery TEXT NOT NULL, at REAL NOT NULL, acknowledged REAL, PRIMARY KEY(team, message)
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS messages_by_id ON messages(id);
CREATE INDEX IF NOT EXISTS messages_waiting ON messages(team, recipient, message) WHERE acknowledged IS NULL;
CREATE TABLE IF NOT EXISTS counted(
    team INTEGER NOT NULL, number INTEGER NOT NULL, at REAL NOT NULL, sender INTEGER NOT NULL,
    PRIMARY KEY(team, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keys(
    team INTEGER NOT NULL, sender INTEGER NOT NULL, key TEXT NOT NULL, message INTEGER NOT NULL,
    PRIMARY KEY(team, sender, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS expectations(
    team INTEGER NOT NULL, message INTEGER NOT NULL, asker INTEGER NOT NULL, of INTEGER NOT NULL,
    deadline REAL NOT NULL, PRIMARY KEY(team, message)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS expectations_by_asker ON expectations(team, asker);
CREATE INDEX IF NOT EXISTS expectations_due ON expectations(deadline);
CREATE TABLE IF NOT EXISTS turns(
    team INTEGER NOT NULL, agent INTEGER NOT NULL, turn INTEGER NOT NULL, started REAL NOT NULL, ended REAL,
    attempts INTEGER NOT NULL, outcome TEXT NOT NULL, seq INTEGER, tokens INTEGER NOT NULL, micro INTEGER NOT NULL,
    PRIMARY KEY(team, agent, turn)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reminders(
    team INTEGER NOT NULL, id TEXT NOT NULL, agent INTEGER NOT NULL, reason TEXT NOT NULL, due REAL NOT NULL,
    every REAL, PRIMARY KEY(team, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS reminders_due ON reminders(due);
CREATE TABLE IF NOT EXISTS files(
    team INTEGER NOT NULL, path TEXT NOT NULL, version INTEGER NOT NULL, seq INTEGER NOT NULL, size INTEGER NOT NULL,
    PRIMARY KEY(team, path)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS budgets(
    team INTEGER NOT NULL, agent INTEGER NOT NULL, budget BLOB NOT NULL, agents INTEGER NOT NULL,
    turns INTEGER NOT NULL, messages INTEGER NOT NULL, tokens INTEGER NOT NULL, micro INTEGER NOT NULL,
    PRIMARY KEY(team, agent)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reached(
    team INTEGER NOT NULL, agent INTEGER NOT NULL, budget TEXT NOT NULL, PRIMARY KEY(team, agent, budget)
) WITHOUT ROWID;
"""
_BESIDE = """
CREATE TABLE IF NOT EXISTS journal(
    team INTEGER NOT NULL, agent INTEGER NOT NULL, turn INTEGER NOT NULL, place TEXT NOT NULL, name TEXT NOT NULL,
    asked BLOB NOT NULL, began REAL NOT NULL, answer BLOB, PRIMARY KEY(team, agent, turn, place)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS staged(
    team INTEGER NOT NULL, agent INTEGER NOT NULL, turn INTEGER NOT NULL, position INTEGER NOT NULL, step BLOB NOT NULL,
    PRIMARY KEY(team, agent, turn, position)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS definitions(digest TEXT PRIMARY KEY, kind TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
"""
# Every table that is made from events, with what orders its rows: what `check` compares.
PROJECTED = (
    "teams", "agents", "messages", "counted", "keys", "expectations", "turns", "reminders", "files", "budgets",
    "reached",
)  # fmt: skip
# Those with rows of a team that no event makes.
BESIDE = ("journal", "staged")


class NotTeams(Exception):
    """The file is none of teams of this version. The text says what it is instead, without its name."""


def prepare(db: apsw.Connection) -> None:
    """Make an empty file one of teams, and check any other. Raises NotTeams."""
    is_empty = not rows(db, "SELECT 1 FROM sqlite_schema LIMIT 1")
    if not is_empty:
        check_file(db)
    if db.pragma("journal_mode") != "wal":
        db.pragma("journal_mode", "wal")
    # A change that was answered is there after a power cut.
    db.pragma("synchronous", "FULL")
    # Deleted rows are overwritten: nothing of a deleted team stays in a free page.
    db.pragma("secure_delete", 1)
    db.pragma("journal_size_limit", 16 * 1024 * 1024)
    if is_empty:
        at_once(_fill, db)


def _fill(db: apsw.Connection) -> None:
    rows(db, _EVENTS + PROJECTIONS + _BESIDE)  # another process may have been faster: none of these fails then
    db.pragma("application_id", APPLICATION_ID)
    db.pragma("user_version", SCHEMA_VERSION)


def check_file(db: apsw.Connection) -> None:
    """Raises NotTeams unless the file is one of teams of a schema that this version reads."""
    if db.pragma("application_id") != APPLICATION_ID:
        raise NotTeams("is another program's SQLite database, not one of teams")
    version = db.pragma("user_version")
    if version != SCHEMA_VERSION:
        raise NotTeams(f"was written by another version (schema {version}, this one knows {SCHEMA_VERSION})")


# ---- what each event changes --------------------------------------------------------------------------------------

_AGENT = "UPDATE agents SET {} WHERE team = ? AND agent = ?"
# An agent that is idle becomes ready as soon as a message waits for it.
_WAKE = (
    "UPDATE agents SET inbox = inbox + 1, inbox_bytes = inbox_bytes + ?, "
    "ready_at = CASE state WHEN 'idle' THEN ? ELSE ready_at END, "
    "state = CASE state WHEN 'idle' THEN 'ready' ELSE state END WHERE team = ? AND agent = ?"
)
# After a turn: idle, or ready if messages wait.
_REST = (
    "UPDATE agents SET state = CASE WHEN inbox > 0 THEN 'ready' ELSE 'idle' END, ready_at = ?, attempt = 0, "
    "failures = 0, lease = NULL, owner = NULL, deadline = NULL, why = NULL, parked = NULL, memory = ? "
    "WHERE team = ? AND agent = ?"
)
_FREE = (
    "UPDATE agents SET state = ?, ready_at = ?, failures = failures + ?, why = ?, lease = NULL, owner = NULL, "
    "deadline = NULL WHERE team = ? AND agent = ?"
)


def project(db: apsw.Connection, team: int, seq: int, at: float, event: AnyEvent) -> None:
    """Write what the event changes. Sums are added up the tree, to every agent that has a budget of its own."""
    run = db.execute
    match event:
        case MessageEnqueued():
            size = len(event.text.encode())
            run(
                "INSERT INTO messages VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
                (team, event.message, seq, event.id, event.sender, event.recipient, event.kind, size, event.hops,
                 event.reply_to, int(event.counted), event.delivery, at),
            )  # fmt: skip
            if event.recipient != USER:
                run(_WAKE, (size, at, team, event.recipient))
            if event.counted:
                more = (
                    "UPDATE teams SET messages = messages + 1, counted = counted + 1 WHERE team = ? RETURNING counted"
                )
                number = rows(db, more, (team,))[0][0]
                run("INSERT INTO counted VALUES(?, ?, ?, ?)", (team, number, at, event.sender))
                _add(db, team, event.sender, "messages", 1)
            else:
                run("UPDATE teams SET messages = messages + 1 WHERE team = ?", (team,))
            if event.key is not None:
                run("INSERT INTO keys VALUES(?, ?, ?, ?)", (team, event.sender, event.key, event.message))
        case MessageAcknowledged():
            run(
                "UPDATE messages SET acknowledged = ?, delivery = ? WHERE team = ? AND message = ?",
                (at, event.delivery, team, event.message),
            )
            if event.agent != USER:
                run(
                    "UPDATE agents SET inbox = inbox - 1, inbox_bytes = inbox_bytes - (SELECT size FROM messages "
                    "WHERE team = ?1 AND message = ?3) WHERE team = ?1 AND agent = ?2",
                    (team, event.agent, event.message),
                )
        case TurnLeased():
            run(
                _AGENT.format(
                    "state = 'leased', turn = ?, attempt = ?, lease = ?, owner = ?, deadline = ?, upto = ?, why = NULL"
                ),
                (event.turn, event.attempt, event.lease, event.owner, event.deadline, event.upto, team, event.agent),
            )
            run(
                "INSERT INTO turns VALUES(?, ?, ?, ?, NULL, 1, 'leased', NULL, 0, 0) "
                "ON CONFLICT DO UPDATE SET attempts = attempts + 1, outcome = 'leased'",
                (team, event.agent, event.turn, at),
            )
            run("UPDATE teams SET turns = turns + 1 WHERE team = ?", (team,))
            _add(db, team, event.agent, "turns", 1)
        case TurnCommitted():
            run(_REST, (at, seq, team, event.agent))
            _end_turn(db, team, event.agent, event.turn, at, "committed", seq)
        case TurnFailed():
            state = "failed" if event.retry_at is None else "ready"
            run(_FREE, (state, event.retry_at or 0.0, 1, event.why, team, event.agent))
            _end_turn(db, team, event.agent, event.turn, at, "failed", seq)
        case TurnReleased():
            run(_FREE, ("ready", event.retry_at, 0, event.why, team, event.agent))
            if event.leased:
                run("UPDATE teams SET turns = turns - 1 WHERE team = ?", (team,))
                _add(db, team, event.agent, "turns", -1)
                _end_turn(db, team, event.agent, event.turn, None, "released", None)
        case TurnParked():
            run(
                _AGENT.format("state = 'parked', parked = ?, why = 'approval', lease = NULL, owner = NULL, "
                              "deadline = NULL"),
                (event.message, team, event.agent),
            )  # fmt: skip
            _end_turn(db, team, event.agent, event.turn, None, "parked", None)
        case TurnResumed():
            run(
                _AGENT.format("state = 'ready', ready_at = ?, failures = 0, why = NULL, parked = NULL"),
                (at, team, event.agent),
            )
        case ExpectationOpened():
            run(
                "INSERT INTO expectations SELECT team, message, sender, recipient, ? FROM messages "
                "WHERE team = ? AND message = ?",
                (event.deadline, team, event.message),
            )
        case ExpectationClosed():
            run("DELETE FROM expectations WHERE team = ? AND message = ?", (team, event.message))
        case ModelCalled():
            spent = (event.tokens, event.micro)
            run("UPDATE teams SET tokens = tokens + ?, micro = micro + ? WHERE team = ?", (*spent, team))
            run(
                "UPDATE turns SET tokens = tokens + ?, micro = micro + ? WHERE team = ? AND agent = ? AND turn = ?",
                (*spent, team, event.agent, event.turn),
            )
            _add(db, team, event.agent, "tokens", event.tokens)
            _add(db, team, event.agent, "micro", event.micro)
        case AgentCreated():
            _create(db, team, seq, at, event)
        case AgentTerminated():
            run(
                _AGENT.format(
                    "ended_at = ?, state = 'ended', lease = NULL, owner = NULL, deadline = NULL, why = ?"
                ),
                (at, event.why, team, event.agent),
            )  # fmt: skip
            run(
                "UPDATE agents SET children = children - 1 WHERE team = ?1 AND agent = "
                "(SELECT parent FROM agents WHERE team = ?1 AND agent = ?2)",
                (team, event.agent),
            )
            run("UPDATE turns SET ended = ?, outcome = 'ended' WHERE team = ? AND agent = ? AND ended IS NULL",
                (at, team, event.agent))  # fmt: skip
            run("DELETE FROM reminders WHERE team = ? AND agent = ?", (team, event.agent))
        case ReminderSet():
            run(
                "INSERT INTO reminders VALUES(?, ?, ?, ?, ?, ?)",
                (team, event.id, event.agent, event.reason, event.due, event.every),
            )
        case ReminderFired(due=None) | ReminderCancelled():
            run("DELETE FROM reminders WHERE team = ? AND id = ?", (team, event.id))
        case ReminderFired():
            run("UPDATE reminders SET due = ? WHERE team = ? AND id = ?", (event.due, team, event.id))
        case FileWritten():
            size = len(event.text.encode())
            before = rows(db, "SELECT size FROM files WHERE team = ? AND path = ?", (team, event.path))
            run(
                "INSERT INTO files VALUES(?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET version = excluded.version, "
                "seq = excluded.seq, size = excluded.size",
                (team, event.path, event.version, seq, size),
            )
            grown = size - (before[0][0] if before else 0)
            run("UPDATE teams SET workspace_bytes = workspace_bytes + ? WHERE team = ?", (grown, team))
        case BudgetReached():
            run("INSERT INTO reached VALUES(?, ?, ?) ON CONFLICT DO NOTHING", (team, event.agent, event.limit))
        case TeamCreated():
            budget = _json(event.budget)
            run(
                "INSERT INTO teams VALUES(?, ?, ?, ?, ?, NULL, ?, ?, 0, 0, 0, 0, 0, 0, 0)",
                (team, event.name, event.uid, budget, at, seq, at),
            )
        case TeamStopped():
            run("UPDATE teams SET stopped_at = ? WHERE team = ?", (at, team))
        case Imported():
            pass
    run("UPDATE teams SET seq = ?, at = ? WHERE team = ?", (seq, at, team))


def _create(db: apsw.Connection, team: int, seq: int, at: float, event: AgentCreated) -> None:
    above: Sequence[Any] = (0, "", 0)
    if event.parent != USER:
        above = rows(db, "SELECT depth, path, bounded FROM agents WHERE team = ? AND agent = ?", (team, event.parent))[
            0
        ]
    path = f"{above[1]}/{event.name}" if above[1] else event.name
    bounded = int(bool(above[2]) or event.budget is not None)
    db.execute(
        "INSERT INTO agents VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, 'ready', 0, 0, 0, ?, NULL, NULL, "
        "NULL, 0, NULL, NULL, 0, 0, 0, NULL)",
        (team, event.agent, event.id, event.name, event.parent, above[0] + 1, path, event.role, event.runner,
         event.workspace, event.persona, event.definition, seq, bounded, at),
    )  # fmt: skip
    db.execute("UPDATE agents SET children = children + 1 WHERE team = ? AND agent = ?", (team, event.parent))
    db.execute("UPDATE teams SET agents = agents + 1 WHERE team = ?", (team,))
    _add(db, team, event.parent, "agents", 1)
    if event.budget is not None:
        db.execute("INSERT INTO budgets VALUES(?, ?, ?, 0, 0, 0, 0, 0)", (team, event.agent, _json(event.budget)))


def _end_turn(
    db: apsw.Connection, team: int, agent: int, turn: int, at: float | None, outcome: str, seq: int | None
) -> None:
    db.execute(
        "UPDATE turns SET ended = ?, outcome = ?, seq = coalesce(?, seq) WHERE team = ? AND agent = ? AND turn = ?",
        (at, outcome, seq, team, agent, turn),
    )


def _add(db: apsw.Connection, team: int, agent: int, column: str, count: int) -> None:
    """Add to the sums of the agent and of all above it that have a budget of their own."""
    while agent > USER:
        above = rows(db, "SELECT parent, bounded FROM agents WHERE team = ? AND agent = ?", (team, agent))
        if not above or not above[0][1]:
            return
        db.execute(f"UPDATE budgets SET {column} = {column} + ? WHERE team = ? AND agent = ?", (count, team, agent))
        agent = above[0][0]


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")

"""The rows of one team inside one transaction: reads, and the one way to change them, `append`."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import apsw
import msgspec

from storage.lanes import rows
from storage.teams import events
from storage.teams.events import USER, AnyEvent, Kind
from storage.teams.tables import BESIDE, PROJECTED, project


class Team(NamedTuple):
    """A team. Times in seconds since the epoch; `micro` in millionths of a dollar."""

    team: int
    name: str
    uid: str
    budget: dict[str, float]
    created_at: float
    stopped_at: float | None
    seq: int
    at: float
    agents: int
    turns: int
    messages: int
    counted: int
    tokens: int
    micro: int
    workspace_bytes: int


class Agent(NamedTuple):
    """An agent, with the state of its next or current turn."""

    agent: int
    id: str
    name: str
    parent: int
    depth: int
    path: str
    role: events.Role
    runner: events.Runner
    workspace: str
    persona: str
    definition: str
    seq: int
    bounded: bool
    ended_at: float | None
    state: str
    turn: int
    attempt: int
    failures: int
    ready_at: float
    lease: str | None
    owner: str | None
    deadline: float | None
    upto: int
    why: str | None
    parked: int | None
    inbox: int
    inbox_bytes: int
    children: int
    memory: int | None


class Message(NamedTuple):
    """A message without its text, which the event `seq` has."""

    message: int
    seq: int
    id: str
    sender: int
    recipient: int
    kind: Kind
    size: int
    hops: int
    reply_to: int | None
    delivery: events.Delivery
    at: float
    acknowledged: float | None


class Expectation(NamedTuple):
    message: int
    asker: int
    of: int
    deadline: float


class Turn(NamedTuple):
    agent: int
    turn: int
    started: float
    ended: float | None
    attempts: int
    outcome: str
    seq: int | None
    tokens: int
    micro: int


class Reminder(NamedTuple):
    id: str
    agent: int
    reason: str
    due: float
    every: float | None


class File(NamedTuple):
    path: str
    version: int
    seq: int
    size: int


class Budget(NamedTuple):
    """The budget of an agent with all below it, and what they used of it."""

    agent: int
    budget: dict[str, float]
    agents: int
    turns: int
    messages: int
    tokens: int
    micro: int


class Entry(NamedTuple):
    """One row of the journal; `answer` None: it began, and nothing is known of its end."""

    place: str
    name: str
    asked: bytes
    began: float
    answer: bytes | None


class Stored(NamedTuple):
    """One event as it stands in the file."""

    seq: int
    at: float
    event: AnyEvent


_INSERT = "INSERT INTO events VALUES(?, ?, ?, ?)"
_TEAM = "SELECT * FROM teams WHERE "
_AGENT = f"SELECT {', '.join(Agent._fields)} FROM agents WHERE team = ? AND "
_MESSAGE = f"SELECT {', '.join(Message._fields)} FROM messages WHERE "
_REMINDER = "SELECT id, agent, reason, due, every FROM reminders WHERE team = ? "
_FILE = "SELECT path, version, seq, size FROM files WHERE team = ? "
_TURN = f"SELECT {', '.join(Turn._fields)} FROM turns WHERE team = ? "


def _team_of(row: tuple[Any, ...]) -> Team:
    return Team._make((*row[:3], msgspec.json.decode(row[3]), *row[4:]))


def teams(db: apsw.Connection) -> list[Team]:
    """Every team of the file, in the order of their creation."""
    return [_team_of(row) for row in rows(db, _TEAM + "1 ORDER BY team")]


def stopped_before(db: apsw.Connection, time: float) -> list[Team]:
    """The teams that were stopped before this time."""
    return [_team_of(row) for row in rows(db, _TEAM + "stopped_at < ?", (time,))]


def waiting_turns(db: apsw.Connection, now: float) -> dict[str, int]:
    """How many turns wait that have something to do, by the reason."""
    found = rows(
        db,
        "SELECT CASE state WHEN 'failed' THEN 'quarantined' WHEN 'parked' THEN 'approval' ELSE "
        "CASE WHEN ready_at <= ? THEN 'place' ELSE coalesce(why, 'backoff') END END AS reason, count(*) FROM agents "
        "WHERE state IN ('failed', 'parked', 'ready') GROUP BY reason",
        (now,),
    )
    return dict(found)


def team_named(db: apsw.Connection, name: str) -> Team | None:
    found = rows(db, _TEAM + "name = ?", (name,))
    return _team_of(found[0]) if found else None


class Rows:
    """One team, in the caller's transaction. `now` is its time, in seconds since the epoch: never before the last
    event's, so that a clock that was set back changes no order.
    """

    def __init__(self, db: apsw.Connection, team: Team, now: float) -> None:
        self.db = db
        self.number = team.team
        self.uid = team.uid
        self.name = team.name
        self.budget = team.budget
        self.now = max(now, team.at)
        self._seq = team.seq

    @classmethod
    def created(cls, db: apsw.Connection, event: events.TeamCreated, now: float) -> "Rows":
        """A team that is there from this event on."""
        number = 1 + (rows(db, "SELECT max(team) FROM teams")[0][0] or 0)
        team = Team(number, event.name, event.uid, event.budget, now, None, 0, now, 0, 0, 0, 0, 0, 0, 0)
        found = cls(db, team, now)
        found.append(event)
        return found

    def created_as(self) -> events.TeamCreated:
        """The event of the team's beginning."""
        found = self.event(1)
        assert isinstance(found, events.TeamCreated)
        return found

    # ---- changes -----------------------------------------------------------------------------------------------

    def append(self, event: AnyEvent) -> int:
        """Write an event and what it changes; returns its number."""
        self._seq += 1
        self.db.execute(
            "INSERT INTO events VALUES(?, ?, ?, ?)", (self.number, self._seq, self.now, events.encoded(event))
        )
        project(self.db, self.number, self._seq, self.now, event)
        return self._seq

    def copy(self, stored: Stored) -> None:
        """Write an event of another team with its time, as the next one of this."""
        self._seq += 1
        self.db.execute(
            "INSERT INTO events VALUES(?, ?, ?, ?)", (self.number, self._seq, stored.at, events.encoded(stored.event))
        )
        project(self.db, self.number, self._seq, stored.at, stored.event)

    def remove(self) -> None:
        """Delete the team with all its rows."""
        for table in ("events", *PROJECTED, *BESIDE):
            self.db.execute(f"DELETE FROM {table} WHERE team = ?", (self.number,))
        self.db.execute("DELETE FROM definitions WHERE digest NOT IN (SELECT definition FROM agents)")

    # ---- the team ----------------------------------------------------------------------------------------------

    def team(self) -> Team:
        return _team_of(rows(self.db, _TEAM + "team = ?", (self.number,))[0])

    def events_after(self, after: int, limit: int, upto: int | None = None) -> Iterator[Stored]:
        """Events in order, from the first one after `after`."""
        found = self.db.execute(
            "SELECT seq, at, event FROM events WHERE team = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
            (self.number, after, self._seq if upto is None else upto, limit),
        )
        for seq, at, event in found:
            yield Stored(seq, at, events.decoded(event))

    def event(self, seq: int) -> AnyEvent:
        """The event of a row that has its number."""
        found = rows(self.db, "SELECT event FROM events WHERE team = ? AND seq = ?", (self.number, seq))
        return events.decoded(found[0][0])

    # ---- agents ------------------------------------------------------------------------------------------------

    def agent(self, agent: int) -> Agent:
        return Agent(*rows(self.db, _AGENT + "agent = ?", (self.number, agent))[0])

    def agents(self, *, living: bool = True) -> list[Agent]:
        """Those of the team, in the order of their creation."""
        where = "ended_at IS NULL" if living else "1"
        return [Agent(*row) for row in rows(self.db, _AGENT + where + " ORDER BY agent", (self.number,))]

    def children(self, parent: int) -> list[Agent]:
        """The living children of an agent, in the order of their creation; those of USER are the roots."""
        found = rows(self.db, _AGENT + "parent = ? AND ended_at IS NULL ORDER BY agent", (self.number, parent))
        return [Agent(*row) for row in found]

    def named(self, parent: int, name: str, *, living: bool = True) -> Agent | None:
        """The child of this name; of several that have ended, the last one."""
        where = "parent = ? AND name = ?" + (" AND ended_at IS NULL" if living else "") + " ORDER BY agent DESC LIMIT 1"
        found = rows(self.db, _AGENT + where, (self.number, parent, name))
        return Agent(*found[0]) if found else None

    def names_below(self, parent: int) -> list[str]:
        """The names of its living children."""
        found = rows(
            self.db, "SELECT name FROM agents WHERE team = ? AND parent = ? AND ended_at IS NULL", (self.number, parent)
        )
        return [row[0] for row in found]

    def below(self, path: str) -> list[Agent]:
        """The living agents below this path, deepest first."""
        found = rows(
            self.db,
            _AGENT + "ended_at IS NULL AND substr(path, 1, ?) = ? ORDER BY depth DESC, agent",
            (self.number, len(path) + 1, path + "/"),
        )
        return [Agent(*row) for row in found]

    def next_agent(self) -> int:
        return 1 + (rows(self.db, "SELECT max(agent) FROM agents WHERE team = ?", (self.number,))[0][0] or 0)

    def holder(self, lease: str) -> Agent | None:
        """The agent whose turn has this lease, by its digest."""
        found = rows(self.db, _AGENT + "lease = ?", (self.number, lease))
        return Agent(*found[0]) if found else None

    def budgets(self, agent: Agent | None) -> list[Budget]:
        """Those of the agent and of all above it, if they have any: the nearest first."""
        found: list[Budget] = []
        while agent is not None and agent.bounded:
            its = rows(self.db, "SELECT * FROM budgets WHERE team = ? AND agent = ?", (self.number, agent.agent))
            found += [Budget(row[1], msgspec.json.decode(row[2]), *row[3:]) for row in its]
            agent = None if agent.parent == USER else self.agent(agent.parent)
        return found

    def was_reached(self, agent: int, budget: str) -> bool:
        return bool(
            rows(
                self.db,
                "SELECT 1 FROM reached WHERE team = ? AND agent = ? AND budget = ?",
                (self.number, agent, budget),
            )
        )

    def sent_at(self, number: int) -> float:
        """When the counted message of this number was enqueued."""
        found = rows(self.db, "SELECT at FROM counted WHERE team = ? AND number = ?", (self.number, number))
        return float(found[0][0]) if found else 0.0

    def sent_below(self, path: str, since: float) -> list[float]:
        """When the agent at this path and those below it sent their messages since then."""
        found = rows(
            self.db,
            "SELECT counted.at FROM counted JOIN agents "
            "ON agents.team = counted.team AND agents.agent = counted.sender "
            "WHERE counted.team = ? AND counted.at > ? AND (agents.path = ? OR substr(agents.path, 1, ?) = ?) "
            "ORDER BY counted.at",
            (self.number, since, path, len(path) + 1, path + "/"),
        )
        return [row[0] for row in found]

    def renew(self, agent: int, deadline: float) -> None:
        """Put off the end of a lease. No event: nothing but the end itself is worth one."""
        self.db.execute("UPDATE agents SET deadline = ? WHERE team = ? AND agent = ?", (deadline, self.number, agent))

    # ---- messages ----------------------------------------------------------------------------------------------

    def message(self, message: int) -> Message:
        return Message(*rows(self.db, _MESSAGE + "team = ? AND message = ?", (self.number, message))[0])

    def message_of(self, id: str) -> Message | None:
        """The team's message of this id."""
        found = rows(self.db, _MESSAGE + "id = ? AND team = ?", (id, self.number))
        return Message(*found[0]) if found else None

    def next_message(self) -> int:
        return 1 + int(rows(self.db, "SELECT messages FROM teams WHERE team = ?", (self.number,))[0][0])

    def waiting(self, recipient: int, after: int = 0, upto: int | None = None, limit: int = 1000) -> list[Message]:
        """Messages that were not acknowledged, in their order."""
        found = rows(
            self.db,
            _MESSAGE + "team = ? AND recipient = ? AND acknowledged IS NULL AND message > ? AND message <= ? "
            "ORDER BY message LIMIT ?",
            (self.number, recipient, after, (1 << 62) if upto is None else upto, limit),
        )
        return [Message(*row) for row in found]

    def recent(self, agent: int, limit: int) -> list[Message]:
        """The newest messages that an agent sent or got, newest first."""
        found = rows(
            self.db,
            _MESSAGE + "team = ?1 AND (recipient = ?2 OR sender = ?2) ORDER BY message DESC LIMIT ?3",
            (self.number, agent, limit),
        )
        return [Message(*row) for row in found]

    def enqueued(self, message: Message) -> events.MessageEnqueued:
        """The event of a message, with its text."""
        found = self.event(message.seq)
        assert isinstance(found, events.MessageEnqueued)
        return found

    def by_key(self, sender: int, key: str) -> Message | None:
        """The message that was sent with this idempotency key."""
        found = rows(
            self.db, "SELECT message FROM keys WHERE team = ? AND sender = ? AND key = ?", (self.number, sender, key)
        )
        return self.message(found[0][0]) if found else None

    # ---- expectations, turns, reminders --------------------------------------------------------------------------

    def expectation(self, message: int) -> Expectation | None:
        """The open expectation of the answer to a message."""
        found = rows(
            self.db, "SELECT message, asker, of, deadline FROM expectations WHERE team = ? AND message = ?",
            (self.number, message),
        )  # fmt: skip
        return Expectation(*found[0]) if found else None

    def expectations(self, *, asker: int | None = None, of: int | None = None) -> list[Expectation]:
        """The open ones of an asker, or those that wait for an agent."""
        where, given = ("asker = ?", asker) if asker is not None else ("of = ?", of) if of is not None else ("?", 1)
        found = rows(
            self.db,
            f"SELECT message, asker, of, deadline FROM expectations WHERE team = ? AND {where} ORDER BY message",
            (self.number, given),
        )  # fmt: skip
        return [Expectation(*row) for row in found]

    def due_expectations(self, limit: int) -> list[Expectation]:
        found = rows(
            self.db,
            "SELECT message, asker, of, deadline FROM expectations WHERE team = ? AND deadline <= ? LIMIT ?",
            (self.number, self.now, limit),
        )
        return [Expectation(*row) for row in found]

    def turn(self, agent: int, turn: int) -> Turn | None:
        found = rows(self.db, _TURN + "AND agent = ? AND turn = ?", (self.number, agent, turn))
        return Turn(*found[0]) if found else None

    def turns(self, agent: int | None = None, limit: int = -1) -> list[Turn]:
        """The turns of one agent, newest first, or of all, by their beginning."""
        if agent is not None:
            found = rows(self.db, _TURN + "AND agent = ? ORDER BY turn DESC LIMIT ?", (self.number, agent, limit))
        else:
            found = rows(self.db, _TURN + "ORDER BY started, agent, turn LIMIT ?", (self.number, limit))
        return [Turn(*row) for row in found]

    def reminder(self, id: str) -> Reminder | None:
        found = rows(
            self.db, "SELECT id, agent, reason, due, every FROM reminders WHERE team = ? AND id = ?", (self.number, id)
        )
        return Reminder(*found[0]) if found else None

    def reminders(self, agent: int) -> list[Reminder]:
        found = rows(self.db, _REMINDER + "AND agent = ? ORDER BY due, id", (self.number, agent))
        return [Reminder(*row) for row in found]

    def due_reminders(self, limit: int) -> list[Reminder]:
        found = rows(
            self.db,
            _REMINDER + "AND due <= ? ORDER BY due, id LIMIT ?",
            (self.number, self.now, limit),
        )
        return [Reminder(*row) for row in found]

    # ---- files -------------------------------------------------------------------------------------------------

    def file(self, path: str) -> File | None:
        found = rows(
            self.db, "SELECT path, version, seq, size FROM files WHERE team = ? AND path = ?", (self.number, path)
        )
        return File(*found[0]) if found else None

    def files(self, below: str, limit: int) -> list[File]:
        """Those below a folder, by path."""
        found = rows(
            self.db,
            _FILE + "AND substr(path, 1, ?) = ? ORDER BY path LIMIT ?",
            (self.number, len(below), below, limit),
        )
        return [File(*row) for row in found]

    def text(self, file: File) -> str:
        found = self.event(file.seq)
        assert isinstance(found, events.FileWritten)
        return found.text

    # ---- beside the events -------------------------------------------------------------------------------------

    def stage(self, agent: int, turn: int, position: int, step: bytes) -> None:
        """Keep a step of the turn of a client, which its commit will carry out."""
        self.db.execute("INSERT INTO staged VALUES(?, ?, ?, ?, ?)", (self.number, agent, turn, position, step))

    def staged(self, agent: int, turn: int) -> list[bytes]:
        found = rows(
            self.db, "SELECT step FROM staged WHERE team = ? AND agent = ? AND turn = ? ORDER BY position",
            (self.number, agent, turn),
        )  # fmt: skip
        return [row[0] for row in found]

    def drop_staged(self, agent: int, turn: int) -> None:
        self.db.execute("DELETE FROM staged WHERE team = ? AND agent = ? AND turn = ?", (self.number, agent, turn))

    def journal(self, agent: int, turn: int) -> list[Entry]:
        found = rows(
            self.db, "SELECT place, name, asked, began, answer FROM journal WHERE team = ? AND agent = ? AND turn = ? "
            "ORDER BY began, place",
            (self.number, agent, turn),
        )  # fmt: skip
        return [Entry(*row) for row in found]

    def note_began(self, agent: int, turn: int, place: str, name: str, asked: bytes) -> None:
        """A call outside begins. One that began before and has no answer begins again."""
        self.db.execute(
            "INSERT INTO journal VALUES(?, ?, ?, ?, ?, ?, ?, NULL) ON CONFLICT DO UPDATE SET name = excluded.name, "
            "asked = excluded.asked, began = excluded.began, answer = NULL",
            (self.number, agent, turn, place, name, asked, self.now),
        )

    def note_answer(self, agent: int, turn: int, place: str, answer: bytes) -> None:
        self.db.execute(
            "UPDATE journal SET answer = ? WHERE team = ? AND agent = ? AND turn = ? AND place = ?",
            (answer, self.number, agent, turn, place),
        )

    def define(self, digest: str, kind: str, body: bytes) -> None:
        """Keep the content of a persona."""
        self.db.execute("INSERT INTO definitions VALUES(?, ?, ?) ON CONFLICT DO NOTHING", (digest, kind, body))

    def definition(self, digest: str) -> tuple[str, bytes]:
        """A persona as it was when an agent was created: its kind and its content."""
        kind, body = rows(self.db, "SELECT kind, body FROM definitions WHERE digest = ?", (digest,))[0]
        return kind, body


# ---- of all teams of the file -------------------------------------------------------------------------------------


class Ready(NamedTuple):
    """An agent whose turn may be leased now."""

    team: int
    agent: int
    runner: events.Runner
    ready_at: float


def ready(db: apsw.Connection, now: float, limit: int, team: int | None = None, clients: bool = False) -> list[Ready]:
    """Turns that may be leased now, in turns among the teams, the longest ready first.

    With `clients` those that clients run, else those that servers run.
    """
    where = "= 'client'" if clients else "!= 'client'"
    found = rows(
        db,
        "SELECT team, agent, runner, ready_at FROM (SELECT agents.team, agent, runner, ready_at, "
        "row_number() OVER (PARTITION BY agents.team ORDER BY ready_at, agent) AS place FROM agents "
        "JOIN teams ON teams.team = agents.team WHERE state = 'ready' AND ready_at <= ? AND stopped_at IS NULL "
        f"AND runner {where} AND (agents.team = ? OR ? IS NULL)) ORDER BY place, ready_at LIMIT ?",
        (now, team, team, limit),
    )
    return [Ready(*row) for row in found]


def next_due(db: apsw.Connection) -> float | None:
    """When something is due next: a turn that servers run, the end of a lease, an expectation, a reminder."""
    found = rows(
        db,
        "SELECT min(ready_at) FROM agents WHERE state = 'ready' AND runner != 'client' "
        "UNION ALL SELECT min(deadline) FROM agents WHERE state = 'leased' "
        "UNION ALL SELECT min(deadline) FROM expectations UNION ALL SELECT min(due) FROM reminders",
    )
    return min((row[0] for row in found if row[0] is not None), default=None)


def with_work(db: apsw.Connection, now: float) -> list[int]:
    """The teams with something that is due: the end of a lease, an expectation, a reminder, a day without a stop."""
    found = rows(
        db,
        "SELECT team FROM agents WHERE state = 'leased' AND deadline <= ?1 UNION "
        "SELECT team FROM expectations WHERE deadline <= ?1 UNION SELECT team FROM reminders WHERE due <= ?1",
        (now,),
    )
    return [row[0] for row in found]


def team_with_lease(db: apsw.Connection, lease: str) -> int | None:
    """The team of the turn that has this lease, by its digest."""
    found = rows(db, "SELECT team FROM agents WHERE lease = ?", (lease,))
    return found[0][0] if found else None


def team_of(db: apsw.Connection, number: int) -> Team:
    return _team_of(rows(db, _TEAM + "team = ?", (number,))[0])

"""The one list of events of a team: all that its tables are made from, in order. Pure.

Agents are numbered in the order of their creation, from 1; `USER` stands for the people who own the team. Messages are
numbered in the order in which they were enqueued, from 1. A turn is an agent and a number, from 1.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

USER = 0
# The sender of what the engine itself says: errors, notices, reminders.
ENGINE = -1

Kind = Literal["request", "response", "notification", "error", "approval"]
# How a message reached its turn: it began it, it was put into it, or it waited for the turn before.
Delivery = Literal["started", "steered", "queued"]
# How an expectation ended.
Ending = Literal["reply", "output", "error", "deadline"]
Role = Literal["worker", "reviewer"]
Runner = Literal["lua", "model", "client"]


class Event(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """One event; its tag is the `type` that clients see."""


class TeamCreated(Event, frozen=True, tag="team.created"):
    """`uid` is random: the ids of the team's agents and messages are derived from it.

    `labels` and `sources` are the conditions of its creator's reader (`knowledge.access.Reader`): which documents its
    turns may read, and who may use it.
    """

    name: str
    uid: str
    budget: dict[str, float]
    labels: tuple[tuple[str, ...], ...] = ()
    sources: tuple[tuple[str, ...], ...] = ()


class TeamStopped(Event, frozen=True, tag="team.stopped"):
    pass


class AgentCreated(Event, frozen=True, tag="agent.created"):
    """`definition` is the digest of the persona as it was then; `budget` bounds the agent and all below it."""

    agent: int
    id: str
    name: str
    parent: int
    role: Role
    runner: Runner
    instructions: str
    workspace: str = ""
    persona: str = ""
    definition: str = ""
    budget: dict[str, float] | None = None
    # The tools of the tenant that its turns may call, None: all that its persona names.
    tools: tuple[str, ...] | None = None


class AgentTerminated(Event, frozen=True, tag="agent.terminated"):
    agent: int
    why: str


class MessageEnqueued(Event, frozen=True, tag="message.enqueued"):
    """`reply_to` is the number of the message that it answers. `counted`: it counts as one of the team's messages.

    `turn` is that of the sender; `delivery` is how it will reach a turn as far as that is known now.
    """

    message: int
    id: str
    sender: int
    recipient: int
    kind: Kind
    text: str
    hops: int = 0
    reply_to: int | None = None
    broadcast: str | None = None
    turn: int | None = None
    counted: bool = True
    key: str | None = None
    delivery: Delivery = "started"
    # What the message is about, for programs: the calls that a person is asked to allow.
    about: dict[str, Any] | None = None


class MessageAcknowledged(Event, frozen=True, tag="message.acknowledged"):
    message: int
    agent: int
    turn: int | None
    delivery: Delivery = "started"


class ExpectationOpened(Event, frozen=True, tag="expectation.opened"):
    message: int
    agent: int
    deadline: float


class ExpectationClosed(Event, frozen=True, tag="expectation.closed"):
    message: int
    agent: int
    how: Ending


class TurnLeased(Event, frozen=True, tag="turn.leased"):
    """`lease` is the digest of the token; `upto` the last message that is shown: all that wait up to it are."""

    agent: int
    turn: int
    attempt: int
    lease: str
    owner: str
    deadline: float
    upto: int


class TurnCommitted(Event, frozen=True, tag="turn.committed"):
    """`state` is what the agent keeps for its next turn; `tools` are the calls: name, whether it went well, seconds."""

    agent: int
    turn: int
    output: str | None = None
    state: Any = None
    tools: tuple[tuple[str, bool, float], ...] = ()
    hops: int = 0


class TurnFailed(Event, frozen=True, tag="turn.failed"):
    """`retry_at` None: the turn is quarantined."""

    agent: int
    turn: int
    attempt: int
    why: str
    retry_at: float | None = None


class TurnReleased(Event, frozen=True, tag="turn.released"):
    """The turn is ready again, and this was no attempt: a quota refused it, or the server drained."""

    agent: int
    turn: int
    why: str
    retry_at: float
    # Whether it had begun.
    leased: bool = True


class TurnParked(Event, frozen=True, tag="turn.parked"):
    """The turn waits for the answer to this message, by which a person allows calls or refuses them."""

    agent: int
    turn: int
    message: int


class TurnResumed(Event, frozen=True, tag="turn.resumed"):
    """A parked turn got its answer, or a quarantined one is tried again."""

    agent: int
    turn: int
    allowed: bool | None = None


class ModelCalled(Event, frozen=True, tag="model.called"):
    """Tokens and millionths of a dollar of one call of a model."""

    agent: int
    turn: int
    model: str
    tokens: int
    micro: int


class BudgetReached(Event, frozen=True, tag="budget.reached"):
    """A budget refused something for the first time; the parent was sent a notice."""

    agent: int
    limit: str


class ReminderSet(Event, frozen=True, tag="reminder.set"):
    id: str
    agent: int
    reason: str
    due: float
    every: float | None = None


class ReminderFired(Event, frozen=True, tag="reminder.fired"):
    id: str
    agent: int
    due: float | None = None


class ReminderCancelled(Event, frozen=True, tag="reminder.cancelled"):
    id: str
    agent: int


class FileWritten(Event, frozen=True, tag="file.written"):
    path: str
    version: int
    text: str
    agent: int


class Imported(Event, frozen=True, tag="team.forked"):
    """The team began as a copy of another one's events up to this one."""

    source: str
    seq: int


AnyEvent = (
    TeamCreated | TeamStopped | AgentCreated | AgentTerminated | MessageEnqueued | MessageAcknowledged
    | ExpectationOpened | ExpectationClosed | TurnLeased | TurnCommitted | TurnFailed | TurnReleased | TurnParked
    | TurnResumed | ModelCalled | BudgetReached | ReminderSet | ReminderFired | ReminderCancelled | FileWritten
    | Imported
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyEvent)


def encoded(event: AnyEvent) -> bytes:
    return _encoder.encode(event)


def decoded(data: bytes) -> AnyEvent:
    """Raises msgspec.MsgspecError for what is no event."""
    found: AnyEvent = _decoder.decode(data)
    return found


def as_json(event: AnyEvent) -> Mapping[str, Any]:
    """The fields of an event as plain data, its type included."""
    found: Mapping[str, Any] = msgspec.to_builtins(event)
    return found

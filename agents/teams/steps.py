"""What a turn has asked for and its commit will do, in order; and what that already means for its later calls. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.errors import Code, Problem
from storage.teams.events import Role, Runner

# Steps of one turn: more would be a loop, and each is checked again by the commit.
MAX_STEPS = 1_000
# A turn that looks into an empty inbox so often waits for a reply, which will not come before it has ended.
EMPTY_LOOKS = 3
# How long a reply is awaited that nobody set a deadline for, in seconds.
DEADLINE_S = 3_600.0


class Step(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """One step. Its place among the steps of its turn gives its ids, so that a repeated turn makes the same ones."""


class Send(Step, frozen=True):
    """`answers` is the message that it replies to, `asks` whether its own reply is awaited, for `deadline_s` at most.

    `leaves` are requests that a question back leaves open: the answer of this turn is not the reply to them.
    """

    recipient: str
    text: str
    answers: int | None = None
    asks: bool = False
    leaves: tuple[int, ...] = ()
    key: str | None = None
    deadline_s: float = DEADLINE_S


class Broadcast(Step, frozen=True):
    text: str
    recipients: int
    key: str | None = None
    deadline_s: float = DEADLINE_S


class Spawn(Step, frozen=True):
    name: str
    instructions: str
    role: Role
    runner: Runner
    workspace: str
    persona: str = ""
    definition: str = ""
    budget: dict[str, float] | None = None
    tools: tuple[str, ...] | None = None


class Complete(Step, frozen=True):
    result: str


class Terminate(Step, frozen=True):
    name: str


class Poke(Step, frozen=True):
    name: str


class Remind(Step, frozen=True):
    id: str
    reason: str
    timeout: float
    every: float | None = None


class CancelReminder(Step, frozen=True):
    id: str


class Write(Step, frozen=True):
    """A file, by its path in the team; `before` is the version that the turn saw, 0 if there was none."""

    path: str
    text: str
    before: int
    # Whether another version at the commit is a conflict: the turn gave `if_version`, or read the file.
    strict: bool = False


class Bring(Step, frozen=True):
    """Messages that came since the turn began, which its commit acknowledges. None: a look into an empty inbox.

    `steered`: the engine put them before a call of the model; else the turn asked for them.
    """

    messages: tuple[int, ...] = ()
    steered: bool = False


AnyStep = (
    Send | Broadcast | Spawn | Complete | Terminate | Poke | Remind | CancelReminder | Write | Bring
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyStep)


def packed(step: AnyStep) -> bytes:
    return _encoder.encode(step)


def unpacked(data: bytes) -> AnyStep:
    found: AnyStep = _decoder.decode(data)
    return found


@dataclass(slots=True)
class Staged:
    """The steps of one turn so far, and what they add up to. Names of agents are those that the turn uses."""

    steps: list[AnyStep] = field(default_factory=list)
    # Agents that do not exist before the commit, with what their children's and messages' checks need.
    spawned: dict[str, Spawn] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    messages: int = 0
    to: Counter[str] = field(default_factory=Counter)
    bytes_to: Counter[str] = field(default_factory=Counter)
    files: dict[str, Write] = field(default_factory=dict)
    brought: set[int] = field(default_factory=set)
    reminders: dict[str, Remind] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    keys: dict[str, tuple[int, AnyStep]] = field(default_factory=dict)
    # Messages to which this turn has replied, and those that a question back left open.
    answered: set[int] = field(default_factory=set)
    left_open: set[int] = field(default_factory=set)
    empty_looks: int = 0
    completes: bool = False

    @classmethod
    def of(cls, steps: Iterable[AnyStep]) -> "Staged":
        """What these steps add up to."""
        found = cls()
        for step in steps:
            found._count(step)
        return found

    def stage(self, step: AnyStep) -> int:
        """Add a step; returns its place. Raises Problem for one too many, or after `complete`."""
        if len(self.steps) >= MAX_STEPS:
            raise Problem(Code.QUOTA_EXCEEDED, f"a turn has at most {MAX_STEPS} steps")
        if self.completes:
            raise Problem(Code.CONFLICT, "this turn has called complete, which ends the agent: end the turn")
        return self._count(step)

    @property
    def place(self) -> int:
        """That of the next step."""
        return len(self.steps)

    def _count(self, step: AnyStep) -> int:
        place = len(self.steps)
        self.steps.append(step)
        match step:
            case Send():
                self.messages += 1
                self.to[step.recipient] += 1
                self.bytes_to[step.recipient] += len(step.text.encode())
                self.left_open.update(step.leaves)
                if step.answers is not None:
                    self.answered.add(step.answers)
            case Broadcast():
                self.messages += step.recipients
            case Spawn():
                self.spawned[step.name] = step
            case Terminate():
                self.ended.add(step.name)
                self.spawned.pop(step.name, None)
            case Write():
                self.files[step.path] = step
            case Bring(messages=()):
                self.empty_looks += 1
            case Bring():
                self.brought.update(step.messages)
            case Remind():
                self.reminders[step.id] = step
            case CancelReminder():
                self.cancelled.add(step.id)
                self.reminders.pop(step.id, None)
            case Complete():
                self.completes = True
        if isinstance(step, Send | Broadcast) and step.key is not None:
            self.keys[step.key] = (place, step)
        return place


def as_json(step: AnyStep) -> dict[str, Any]:
    """A step for people: what a replay would have done."""
    found: dict[str, Any] = msgspec.to_builtins(step)
    return {"step": found.pop("type"), **found}

"""What happens in a team, written as events: leases, commits, failures, deadlines, endings.

Each runs in the caller's transaction, and checks every rule on what is true at that moment. A step of a turn that has
become impossible since it was staged is reported to its agent by a message; it takes nothing of the turn back.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agents.teams import rules
from agents.teams.steps import (
    AnyStep,
    Bring,
    Broadcast,
    CancelReminder,
    Complete,
    Poke,
    Remind,
    Send,
    Spawn,
    Terminate,
    Write,
)
from agents.teams.turns import RETRY_S, State, Step, after, retry_s
from engine.errors import Code, Problem
from storage.teams.events import (
    ENGINE,
    USER,
    AgentCreated,
    AgentTerminated,
    BudgetReached,
    Delivery,
    Ending,
    ExpectationClosed,
    ExpectationOpened,
    FileWritten,
    Kind,
    MessageAcknowledged,
    MessageEnqueued,
    ReminderCancelled,
    ReminderFired,
    ReminderSet,
    TurnCommitted,
    TurnFailed,
    TurnLeased,
    TurnParked,
    TurnReleased,
    TurnResumed,
)
from storage.teams.rows import Agent, Expectation, Message, Rows

# The bound on a turn's messages, in number and in bytes of text: what is more waits for the next turn.
SHOWN_MESSAGES = 100
SHOWN_BYTES = 1 << 20
# The deadline of turns that a server runs itself: they end with it, and the next server releases them.
NEVER = 1e15
# When a turn is tried again that a budget refuses, which does not refill.
LATER_S = 3_600.0
# Bound on an error text in a message.
_REASON_BYTES = 2_048


class LeaseLost(Exception):
    """The lease is not valid: forged, used, expired or taken back. One error for all of them."""


# ---- ids ---------------------------------------------------------------------------------------------------------


def id_in(rows: Rows, agent: Agent | None, turn: int, *place: object) -> str:
    """The id of something that a turn makes: the same one each time that the turn is run."""
    whose = "USER" if agent is None else agent.id
    return str(uuid.uuid5(uuid.UUID(rows.uid), "/".join(map(str, (whose, turn, *place)))))


# ---- messages ----------------------------------------------------------------------------------------------------


def enqueue(
    rows: Rows, *, id: str, sender: int, recipient: Agent | None, kind: Kind, text: str, hops: int = 0,
    reply_to: int | None = None, broadcast: str | None = None, turn: int | None = None, counted: bool = False,
    key: str | None = None, about: dict[str, Any] | None = None,
) -> int:  # fmt: skip
    """Put a message into an inbox; returns its number. `recipient` None is USER."""
    waits = recipient is not None and recipient.state not in (State.IDLE, State.READY)
    delivery: Delivery = "queued" if waits else "started"
    message = rows.next_message()
    rows.append(
        MessageEnqueued(
            message=message, id=id, sender=sender, recipient=USER if recipient is None else recipient.agent, kind=kind,
            text=text, hops=hops, reply_to=reply_to, broadcast=broadcast, turn=turn, counted=counted, key=key,
            delivery=delivery, about=about,
        )
    )  # fmt: skip
    return message


def notify(
    rows: Rows, recipient: Agent | None, kind: Kind, text: str, *, hops: int = 0, reply_to: int | None = None,
    sender: int = ENGINE,
) -> int:  # fmt: skip
    """A message of the engine, or of an agent that cannot send any more: it counts for nothing, and has always room."""
    while recipient is not None and recipient.ended_at is not None:
        recipient = None if recipient.parent == USER else rows.agent(recipient.parent)
    id = str(uuid.uuid5(uuid.UUID(rows.uid), f"engine/{rows.next_message()}"))
    return enqueue(
        rows, id=id, sender=sender, recipient=recipient, kind=kind, text=_cut(text), hops=hops, reply_to=reply_to
    )


def parent_of(rows: Rows, agent: Agent) -> Agent | None:
    """The parent; None is USER."""
    return None if agent.parent == USER else rows.agent(agent.parent)


def check_room(rows: Rows, sender: Agent | None, recipients: Sequence[Agent | None], sizes: int, more: int = 0) -> None:
    """Whether so many messages may be sent now, each of `sizes` bytes; `more` were staged before. Raises Problem.

    Messages of USER count for `messages` and not for `messages_per_minute`.
    """
    team = rows.team()
    budgets = rows.budgets(sender)
    require_alive(rows)
    rules.require(team, budgets, "messages", len(recipients) + more)
    if sender is not None:
        _check_rate(rows, sender, len(recipients) + more)
    for each in recipients:
        if each is None:
            continue
        if each.inbox + 1 > team.budget["inbox_messages"]:
            raise rules.exceeded(
                "inbox_messages", team.budget["inbox_messages"], each.inbox + 1, whose=each.name, retry_after_s=1.0
            )
        if each.inbox_bytes + sizes > team.budget["inbox_bytes"]:
            raise rules.exceeded(
                "inbox_bytes", team.budget["inbox_bytes"], each.inbox_bytes + sizes, whose=each.name, retry_after_s=1.0
            )


def require_alive(rows: Rows) -> None:
    """Raise Problem for a team that was stopped, or is older than it may become."""
    team = rows.team()
    if team.stopped_at is not None:
        raise Problem(Code.CONFLICT, "this team was stopped")
    if rows.now - team.created_at > team.budget["wall_s"]:
        raise rules.exceeded("wall_s", team.budget["wall_s"], rows.now - team.created_at)


def _check_rate(rows: Rows, sender: Agent, more: int) -> None:
    team = rows.team()
    bound = int(team.budget["messages_per_minute"])
    if more > bound:
        raise rules.exceeded("messages_per_minute", bound, more, retry_after_s=60.0)
    # The message that must be older than a minute for `more` to fit into the bound.
    oldest = team.counted + more - bound
    if oldest >= 1 and (wait := rows.sent_at(oldest) + 60 - rows.now) > 0:
        raise rules.exceeded("messages_per_minute", bound, bound + more, retry_after_s=wait)
    for each in rows.budgets(sender):
        if (own := each.budget.get("messages_per_minute")) is None:
            continue
        sent = rows.sent_below(rows.agent(each.agent).path, rows.now - 60)
        if len(sent) + more > own:
            wait = sent[min(len(sent), len(sent) + more - int(own)) - 1] + 60 - rows.now if sent else 60.0
            raise rules.exceeded(
                "messages_per_minute", own, len(sent) + more, whose="this agent and those below it", retry_after_s=wait
            )


# ---- expectations ------------------------------------------------------------------------------------------------


def close(rows: Rows, expectation: Expectation, how: Ending) -> None:
    rows.append(ExpectationClosed(message=expectation.message, agent=expectation.asker, how=how))


def fail_expectation(rows: Rows, expectation: Expectation, why: str) -> None:
    """End an expectation with an error for its asker."""
    close(rows, expectation, "error")
    asker = None if expectation.asker == USER else rows.agent(expectation.asker)
    if asker is None or asker.ended_at is None:
        message = rows.message(expectation.message)
        notify(rows, asker, "error", why, hops=message.hops, reply_to=expectation.message, sender=expectation.of)


def meet_deadlines(rows: Rows, limit: int = 100) -> int:
    """Tell askers whose replies are late; returns how many."""
    due = rows.due_expectations(limit)
    for each in due:
        close(rows, each, "deadline")
        asker = None if each.asker == USER else rows.agent(each.asker)
        if asker is None or asker.ended_at is None:
            name = rows.agent(each.of).name if each.of > USER else rules.USER_NAME
            hops = rows.message(each.message).hops
            notify(
                rows, asker, "notification",
                f"{name} has not replied in time; a later answer arrives as a message of its own.",
                hops=hops, reply_to=each.message,
            )  # fmt: skip
    return len(due)


# ---- the life of a turn ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lease:
    """A turn that began: its agent as it is now, and the messages that it shows."""

    agent: Agent
    messages: tuple[Message, ...]


def lease(rows: Rows, agent: Agent, digest: str, owner: str, deadline: float) -> Lease | None:
    """Begin the agent's next turn; None if a budget refuses it, which the parent is told once."""
    assert after(State(agent.state), Step.LEASE) is not None
    team = rows.team()
    try:
        require_alive(rows)
        rules.require(team, rows.budgets(agent), "turns", 1)
    except Problem as refused:
        name = refused.limit.name if refused.limit is not None else "stopped"
        release(rows, agent, "budget", LATER_S, leased=False)
        reach(rows, agent, name, refused.message)
        return None
    messages = shown(rows, agent)
    again = agent.attempt > 0
    turn = agent.turn if again else agent.turn + 1
    upto = messages[-1].message if messages else agent.upto
    rows.append(
        TurnLeased(
            agent=agent.agent,
            turn=turn,
            attempt=agent.attempt + 1,
            lease=digest,
            owner=owner,
            deadline=deadline,
            upto=upto,
        )
    )
    return Lease(rows.agent(agent.agent), tuple(messages))


def shown(rows: Rows, agent: Agent) -> list[Message]:
    """The messages that wait for the agent, from the first, as many as one turn takes."""
    found: list[Message] = []
    size = 0
    for each in rows.waiting(agent.agent, limit=SHOWN_MESSAGES):
        size += each.size
        if found and size > SHOWN_BYTES:
            break
        found.append(each)
    return found


def held(rows: Rows, digest: str) -> Agent:
    """The agent whose turn has this lease now. Raises LeaseLost."""
    agent = rows.holder(digest)
    if agent is None or agent.state != State.LEASED or (agent.deadline or 0) <= rows.now:
        raise LeaseLost
    return agent


def release(rows: Rows, agent: Agent, why: str, wait_s: float, *, leased: bool = True) -> None:
    """Make a turn ready again, later; this was no attempt."""
    rows.append(TurnReleased(agent=agent.agent, turn=agent.turn, why=why, retry_at=rows.now + wait_s, leased=leased))
    rows.drop_staged(agent.agent, agent.turn)


def fail(rows: Rows, agent: Agent, why: str, *, at_once: bool = False) -> None:
    """An attempt failed: again later, or quarantined, which ends what others expect of the agent.

    `at_once`: it waited long enough already.
    """
    failures = agent.failures + 1
    wait_s = retry_s(failures)
    retry_at = None if wait_s is None else rows.now + (0.0 if at_once else wait_s)
    why = _cut(why)
    rows.append(TurnFailed(agent=agent.agent, turn=agent.turn, attempt=agent.attempt, why=why, retry_at=retry_at))
    rows.drop_staged(agent.agent, agent.turn)
    if retry_at is not None:
        return
    hops = max((each.hops for each in shown(rows, agent)), default=0)
    text = f"A turn of {agent.path} failed {len(RETRY_S) + 1} times and is not tried again: {why}"
    for each in rows.expectations(of=agent.agent):
        fail_expectation(rows, each, text)
    notify(rows, parent_of(rows, agent), "error", text, hops=hops)


def expire(rows: Rows) -> int:
    """Take back the leases whose clients did not come back in time; returns how many."""
    late = [each for each in rows.agents() if each.state == State.LEASED and (each.deadline or 0) <= rows.now]
    for each in late:
        fail(rows, each, "the lease expired: the client neither ended the turn nor called a tool in time", at_once=True)
    return len(late)


def park(rows: Rows, agent: Agent, text: str, about: dict[str, Any]) -> str:
    """Stop the turn until USER has answered this question; returns the id of the message."""
    hops = max((each.hops for each in shown(rows, agent)), default=0)
    id = id_in(rows, agent, agent.turn, "approval", agent.attempt)
    message = enqueue(
        rows, id=id, sender=agent.agent, recipient=None, kind="approval", text=text, hops=hops, turn=agent.turn,
        about=about,
    )  # fmt: skip
    rows.append(TurnParked(agent=agent.agent, turn=agent.turn, message=message))
    return id


def resume(rows: Rows, agent: Agent, allowed: bool | None) -> None:
    """Let a parked turn go on, or a quarantined one try again."""
    rows.append(TurnResumed(agent=agent.agent, turn=agent.turn, allowed=allowed))


def reach(rows: Rows, agent: Agent, name: str, text: str) -> None:
    """Tell the parent once that a budget refused something."""
    if not rows.was_reached(agent.agent, name):
        rows.append(BudgetReached(agent=agent.agent, limit=name))
        notify(rows, parent_of(rows, agent), "notification", f"{agent.path}: {text}")


# ---- the commit --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Commit:
    """A turn that is being committed."""

    rows: Rows
    agent: Agent
    hops: int
    # Requests that this turn consumed, with an open expectation each: by message.
    requests: dict[int, Expectation]
    left_open: set[int] = field(default_factory=set)
    ends: str | None = None


def requests_of(rows: Rows, agent: Agent, messages: Iterable[Message]) -> dict[int, Expectation]:
    """The requests that a turn answers which shows these messages: those among them that await a reply, and those
    that were left open by a question to their sender, who has replied now.
    """
    messages = list(messages)
    numbers = {each.message for each in messages}
    replied = {each.sender for each in messages if each.reply_to is not None}
    return {
        each.message: each
        for each in rows.expectations(of=agent.agent)
        if each.message in numbers or (each.asker in replied and rows.message(each.message).acknowledged is not None)
    }


def commit(
    rows: Rows, agent: Agent, steps: Sequence[AnyStep], *, output: str | None, state: Any = None,
    tools: Sequence[tuple[str, bool, float]] = (),
) -> None:  # fmt: skip
    """End the turn well: acknowledge what it showed, and carry out its steps. Raises Problem conflict for a file that
    another turn has written since.
    """
    brought = {number: step.steered for step in steps if isinstance(step, Bring) for number in step.messages}
    waiting = rows.waiting(agent.agent, upto=agent.upto)
    waiting += [rows.message(number) for number in sorted(brought) if number > agent.upto]
    for each in waiting:
        delivery = "steered" if brought.get(each.message) else each.delivery
        rows.append(MessageAcknowledged(message=each.message, agent=agent.agent, turn=agent.turn, delivery=delivery))
    hops = 1 + max((each.hops for each in waiting), default=-1)
    made = _Commit(rows, agent, hops, requests_of(rows, agent, waiting))
    for place, step in enumerate(steps):
        try:
            _carry_out(made, place, step)
        except Problem as refused:
            if isinstance(step, Write):
                raise
            notify(rows, agent, "error", f"{type(step).__name__.lower()} had no effect: {refused.message}", hops=hops)
    if output is not None:
        _answer(made, output)
    rows.append(TurnCommitted(agent=agent.agent, turn=agent.turn, output=output, state=state, tools=tuple(tools)))
    rows.drop_staged(agent.agent, agent.turn)
    if made.ends is not None:
        end(rows, rows.agent(agent.agent), "completed")


def _carry_out(made: _Commit, place: int, step: AnyStep) -> None:
    rows, agent = made.rows, made.agent
    match step:
        case Send():
            _send(made, place, step)
        case Broadcast():
            siblings = [each for each in rows.children(agent.parent) if each.agent != agent.agent]
            broadcast(rows, agent, siblings, step, id_in(rows, agent, agent.turn, place), made.hops)
        case Spawn():
            spawn(rows, agent, step, id_in(rows, agent, agent.turn, place))
        case Write():
            write(rows, agent, step)
        case Terminate():
            child = rows.named(agent.agent, step.name)
            if child is not None:  # else it ended meanwhile by itself
                end_all(rows, child, f"terminated by {agent.name}")
        case Poke():
            child = rows.named(agent.agent, step.name)
            if child is not None and after(State(child.state), Step.POKE) is not None:
                resume(rows, child, None)
        case Remind():
            rows.append(
                ReminderSet(id=step.id, agent=agent.agent, reason=step.reason, due=rows.now + step.timeout,
                            every=step.every)
            )  # fmt: skip
        case CancelReminder():
            if rows.reminder(step.id) is not None:
                rows.append(ReminderCancelled(id=step.id, agent=agent.agent))
        case Complete():
            _complete(made, step)
        case Bring():
            pass


def _send(made: _Commit, place: int, step: Send) -> None:
    rows, agent = made.rows, made.agent
    made.left_open.update(step.leaves)
    id = id_in(rows, agent, agent.turn, place)
    expectation = None if step.answers is None else rows.expectation(step.answers)
    recipient = reachable(rows, agent, step.recipient, answers=expectation)
    if isinstance(recipient, str):
        raise Problem(Code.NOT_FOUND, f"the message {id} to {step.recipient} was not delivered: {recipient}")
    send(rows, agent, recipient, step, id, made.hops)


def reachable(rows: Rows, agent: Agent, name: str, *, answers: Expectation | None = None) -> Agent | str | None:
    """Whom an agent means by a name: an agent, or USER (None). A text is the reason why nobody is meant.

    An asker is reached by the reply, wherever it is in the team.
    """
    if answers is not None:
        asker = None if answers.asker == USER else rows.agent(answers.asker)
        if (rules.USER_NAME if asker is None else asker.name) == name:
            return "it has ended" if asker is not None and asker.ended_at is not None else asker
    if name == rules.USER_NAME:
        return None if agent.parent == USER else "only roots write to USER, and who answers it"
    parent = parent_of(rows, agent)
    if parent is not None and parent.name == name:
        return parent
    found = rows.named(agent.agent, name) or rows.named(agent.parent, name)
    if found is not None and found.agent != agent.agent:
        return found
    return "it has ended" if rows.named(agent.agent, name, living=False) else "it is no parent, child or sibling"


def send(rows: Rows, sender: Agent | None, recipient: Agent | None, step: Send, id: str, hops: int) -> int:
    """Send one message; returns its number. Raises Problem."""
    size = rules.check_text("text", step.text, rows.budget["message_bytes"])
    _check_hops(rows, hops)
    check_room(rows, sender, (recipient,), size)
    expectation = None if step.answers is None else rows.expectation(step.answers)
    kind: Kind = "request" if step.asks else "response" if step.answers is not None else "notification"
    message = enqueue(
        rows, id=id, sender=USER if sender is None else sender.agent, recipient=recipient, kind=kind, text=step.text,
        hops=hops, reply_to=step.answers, turn=None if sender is None else sender.turn, counted=True, key=step.key,
    )  # fmt: skip
    if expectation is not None:
        close(rows, expectation, "reply")
    if step.asks:
        rows.append(ExpectationOpened(message=message, agent=_number(sender), deadline=rows.now + step.deadline_s))
    return message


def broadcast(
    rows: Rows, sender: Agent | None, recipients: Sequence[Agent], step: Broadcast, id: str, hops: int
) -> None:
    """Send a message to each of them, with an expectation each. Raises Problem: then to none."""
    size = rules.check_text("text", step.text, rows.budget["message_bytes"])
    _check_hops(rows, hops)
    check_room(rows, sender, recipients, size)
    for place, each in enumerate(recipients):
        message = enqueue(
            rows, id=str(uuid.uuid5(uuid.UUID(id), str(place))), sender=_number(sender), recipient=each, kind="request",
            text=step.text, hops=hops, broadcast=id, turn=None if sender is None else sender.turn, counted=True,
            key=step.key if place == 0 else None,
        )  # fmt: skip
        rows.append(ExpectationOpened(message=message, agent=_number(sender), deadline=rows.now + step.deadline_s))


def _check_hops(rows: Rows, hops: int) -> None:
    if hops > rows.budget["hops"]:
        raise rules.exceeded("hops", rows.budget["hops"], hops)


def _number(agent: Agent | None) -> int:
    return USER if agent is None else agent.agent


def _answer(made: _Commit, output: str) -> None:
    """The output of a turn: the reply to each request that it consumed and did not answer, else a message for the
    parent.
    """
    rows, agent = made.rows, made.agent
    left = [each for each in made.requests.values() if each.message not in made.left_open]
    answered = len(left) < len(made.requests)
    for place, each in enumerate(left):
        expectation = rows.expectation(each.message)
        if expectation is None:  # a message of this turn was the reply
            answered = True
            continue
        answered = True
        asker = None if expectation.asker == USER else rows.agent(expectation.asker)
        if asker is not None and asker.ended_at is not None:
            close(rows, expectation, "output")
            continue
        _say(made, asker, output, ("output", place), expectation)
    if not answered and output.strip():
        _say(made, parent_of(rows, agent), output, ("output",), None)


def _say(made: _Commit, recipient: Agent | None, text: str, place: tuple[object, ...], to: Expectation | None) -> None:
    """A message that a turn's output makes. What refuses it is told to the agent's parent, and to the asker."""
    rows, agent = made.rows, made.agent
    text = _cut(text, int(rows.budget["message_bytes"]))
    size = len(text.encode())
    try:
        _check_hops(rows, made.hops)
        check_room(rows, agent, (recipient,), size)
    except Problem as refused:
        if to is not None:
            fail_expectation(rows, to, f"the answer of {agent.path} cannot be delivered: {refused.message}")
        if refused.limit is not None:
            reach(rows, agent, refused.limit.name, refused.message)
        return
    enqueue(
        rows, id=id_in(rows, agent, agent.turn, *place), sender=agent.agent, recipient=recipient,
        kind="notification" if to is None else "response", text=text, hops=made.hops,
        reply_to=None if to is None else to.message, turn=agent.turn, counted=True,
    )  # fmt: skip
    if to is not None:
        close(rows, to, "output")


def _complete(made: _Commit, step: Complete) -> None:
    rows, agent = made.rows, made.agent
    if rows.children(agent.agent):
        raise Problem(Code.CONFLICT, "complete: there are children; terminate them first")
    made.ends = step.result
    _answer(made, step.result)


# ---- agents ------------------------------------------------------------------------------------------------------


def check_spawn(rows: Rows, parent: Agent | None, name: str, more: int = 0, names: Iterable[str] = ()) -> None:
    """Whether the parent (None: USER) may create an agent of this name; `more` of these `names` were staged before.

    Raises Problem.
    """
    team, budgets = rows.team(), rows.budgets(parent)
    require_alive(rows)
    rules.check_name(name, [*rows.names_below(_number(parent)), *names], None if parent is None else parent.name)
    if parent is not None and parent.parent != USER and rows.agent(parent.parent).name == name:
        raise Problem(Code.CONFLICT, f"name: {name!r} is the name of an agent above it")
    rules.require(team, budgets, "agents", 1 + more)
    depth = 1 if parent is None else parent.depth + 1
    if depth > (bound := team.budget["depth"]):
        raise rules.exceeded("depth", bound, depth)
    for each in budgets:
        below = depth - rows.agent(each.agent).depth + 1
        if (own := each.budget.get("depth")) is not None and below > own:
            raise rules.exceeded("depth", own, below, whose="this agent and those below it")
    children = len(rows.children(_number(parent))) + 1 + more
    if parent is not None and children > (bound := team.budget["children"]):
        raise rules.exceeded("children", bound, children, whose="this agent")


def spawn(rows: Rows, parent: Agent | None, step: Spawn, id: str) -> int:
    """Create an agent; returns its number. Raises Problem."""
    check_spawn(rows, parent, step.name)
    number = rows.next_agent()
    rows.append(
        AgentCreated(
            agent=number,
            id=id,
            name=step.name,
            parent=_number(parent),
            role=step.role,
            runner=step.runner,
            instructions=step.instructions,
            workspace=step.workspace,
            persona=step.persona,
            definition=step.definition,
            budget=step.budget,
            tools=step.tools,
        )
    )
    return number


def end_all(rows: Rows, agent: Agent, why: str) -> None:
    """End an agent and all below it, the lowest first."""
    for each in (*rows.below(agent.path), agent):
        end(rows, rows.agent(each.agent), why)


def end(rows: Rows, agent: Agent, why: str) -> None:
    """End one agent: who waits for it gets an error, and so does each whose message it has not read."""
    rows.append(AgentTerminated(agent=agent.agent, why=why))
    rows.drop_staged(agent.agent, agent.turn)
    told = set()
    for expectation in rows.expectations(of=agent.agent):
        told.add(expectation.message)
        fail_expectation(rows, expectation, f"{agent.path} has ended ({why})")
    for expectation in rows.expectations(asker=agent.agent):
        close(rows, expectation, "error")
    for each in rows.waiting(agent.agent):
        rows.append(MessageAcknowledged(message=each.message, agent=agent.agent, turn=None))
        if each.sender != ENGINE and each.message not in told and each.kind in ("request", "notification"):
            sender = None if each.sender == USER else rows.agent(each.sender)
            if sender is None or sender.ended_at is None:
                text = f"{agent.path} has ended ({why}) before it read the message {each.id}"
                notify(rows, sender, "error", text, hops=each.hops)


# ---- files, reminders --------------------------------------------------------------------------------------------


def write(rows: Rows, agent: Agent | None, step: Write) -> int:
    """Write a file; returns its version. Raises Problem: conflict if it has changed since, quota_exceeded."""
    file = rows.file(step.path)
    version = 0 if file is None else file.version
    if step.strict and version != step.before:
        raise Problem(Code.CONFLICT, f"if_version: {step.path} has the version {version}, not {step.before}")
    team = rows.team()
    more = len(step.text.encode()) - (0 if file is None else file.size)
    if more > 0 and team.workspace_bytes + more > (bound := team.budget["workspace_bytes"]):
        raise rules.exceeded("workspace_bytes", bound, team.workspace_bytes + more)
    rows.append(FileWritten(path=step.path, version=version + 1, text=step.text, agent=_number(agent)))
    return version + 1


def fire_reminders(rows: Rows, limit: int = 100) -> int:
    """Deliver the reminders that are due: each once, however late. Returns how many."""
    due = rows.due_reminders(limit)
    for each in due:
        following = None if each.every is None else max(each.due + each.every, rows.now + each.every)
        rows.append(ReminderFired(id=each.id, agent=each.agent, due=following))
        notify(rows, rows.agent(each.agent), "notification", f"Reminder: {each.reason}")
    return len(due)


def _cut(text: str, bound: int = _REASON_BYTES) -> str:
    """The text, cut to this many bytes."""
    data = text.encode("utf-8", "replace")
    return data.decode() if len(data) <= bound else data[: bound - 3].decode("utf-8", "ignore") + "…"

"""The tools of USER, the people who own a team: each takes effect at once, in the caller's transaction."""

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from agents.teams import effects, rules, views
from agents.teams.steps import DEADLINE_S, Broadcast, Send
from agents.teams.turn_tools import MAX_LISTED, _seconds, listed, read_file, spawn_step
from agents.teams.turns import State, Step, after
from engine.errors import Code, Problem
from engine.names import nearest
from storage.teams.events import USER, MessageAcknowledged, TeamStopped
from storage.teams.rows import Agent, Rows

Given = Mapping[str, Any]

# The answers that allow the calls of a parked turn; every other text refuses them, and is the reason.
_YES = frozenset({"yes", "y", "ok", "allow", "allowed", "approve", "approved", "true"})


def answer(rows: Rows, name: str, given: Given, decided: list[tuple[str, str]] | None = None) -> dict[str, Any]:
    """The answer of one tool; `decided` gets what USER allowed or refused, and of which agent. Raises Problem."""
    if (tool := TOOLS.get(name)) is None:
        raise Problem(Code.BAD_REQUEST, f"{name} is a tool of a turn: it needs a lease (?lease=TOKEN)")
    found = tool(rows, given)
    if decided is not None and (last := found.pop("decided", None)) is not None:
        decided.append(last)
    return found


def agent_at(rows: Rows, path: str, what: str = "name", *, living: bool = True) -> Agent:
    """The agent at a path of names from a root. Raises Problem not_found."""
    parent, found = USER, None
    for name in path.split("/")[:64]:
        found = rows.named(parent, name, living=living)
        if found is None:
            break
        parent = found.agent
    else:
        assert found is not None
        return found
    gone = living and _has_ended(rows, path)
    near = None if gone else nearest(path, [each.path for each in rows.agents()])
    hint = "; it has ended" if gone else f"; did you mean {near!r}?" if near else ""
    raise Problem(Code.NOT_FOUND, f"{what}: there is no agent {path[:128]!r} in this team{hint}")


def _has_ended(rows: Rows, path: str) -> bool:
    try:
        agent_at(rows, path, living=False)
    except Problem:
        return False
    return True


def _send_message(rows: Rows, given: Given) -> dict[str, Any]:
    key, text = given.get("idempotency_key"), given["text"]
    recipient = agent_at(rows, given["recipient"], "recipient")
    if key is not None and (before := rows.by_key(USER, key)) is not None:
        if before.recipient != recipient.agent or rows.enqueued(before).text != text:
            raise Problem(Code.CONFLICT, "idempotency_key: another message was sent with it")
        return _sent(before.id, asks=before.kind == "request")
    answers = None
    if (id := given.get("reply_to")) is not None:
        found = rows.message_of(id)
        if found is None or found.recipient != USER or found.sender != recipient.agent:
            raise Problem(Code.NOT_FOUND, "reply_to: the recipient sent no message of this id to USER")
        answers = found.message
    if recipient.state == State.PARKED and answers in (None, recipient.parked):
        return _decide(rows, recipient, text, key)
    if answers is None and given.get("sync") is not True:
        asked = [each.message for each in rows.expectations(asker=recipient.agent) if each.of == USER]
        answers = asked[0] if asked else None
    elif answers is not None and rows.expectation(answers) is None:
        answers = None
    asks = bool(given["sync"]) if given.get("sync") is not None else answers is None
    deadline_s = _seconds("deadline_s", given.get("deadline_s", DEADLINE_S))
    new = str(uuid.uuid4()) if key is None else effects.id_in(rows, None, 0, "key", key)
    hops = 0 if answers is None else rows.message(answers).hops + 1
    step = Send(given["recipient"], text, answers, asks, (), key, deadline_s)
    effects.send(rows, None, recipient, step, new, hops)
    return _sent(new, asks=asks)


def _sent(id: str, *, asks: bool) -> dict[str, Any]:
    return {"status": "sent", "message_id": id, "waiting_for_reply": asks}


def _decide(rows: Rows, agent: Agent, text: str, key: str | None) -> dict[str, Any]:
    """USER allows the calls of a parked turn, or refuses them."""
    assert agent.parked is not None
    rules.check_text("text", text, rows.budget["message_bytes"])
    asked = rows.message(agent.parked)
    id = str(uuid.uuid4()) if key is None else effects.id_in(rows, None, 0, "key", key)
    message = effects.enqueue(
        rows, id=id, sender=USER, recipient=agent, kind="approval", text=text, hops=asked.hops,
        reply_to=agent.parked, key=key,
    )  # fmt: skip
    rows.append(MessageAcknowledged(message=message, agent=agent.agent, turn=agent.turn))
    if asked.acknowledged is None:
        rows.append(MessageAcknowledged(message=asked.message, agent=USER, turn=None))
    allowed = text.strip().casefold() in _YES
    effects.resume(rows, agent, allowed)
    return {**_sent(id, asks=False), "decided": ("allow" if allowed else "refuse", agent.path)}


def _check_inbox(rows: Rows, given: Given) -> dict[str, Any]:
    limit = min(int(given.get("limit", effects.SHOWN_MESSAGES)), effects.SHOWN_MESSAGES)
    sender = None if "sender" not in given else agent_at(rows, given["sender"], "sender", living=False).agent
    found = [
        each
        for each in rows.waiting(USER)
        if (sender is None or each.sender == sender) and ("kind" not in given or each.kind == given["kind"])
    ][:limit]
    for each in found:
        rows.append(MessageAcknowledged(message=each.message, agent=USER, turn=None))
    return {"messages": [views.shown(rows, each, path=True).as_json() for each in found]}


def _spawn_agent(rows: Rows, given: Given) -> dict[str, Any]:
    step = spawn_step(rows, None, given)
    number = rows.next_agent()
    id = effects.id_in(rows, None, number, "spawn")
    effects.spawn(rows, None, step, id)
    return {"status": "created", "agent_id": id, "name": step.name}


def _inspect_agent(rows: Rows, given: Given) -> dict[str, Any]:
    return views.inspected(rows, agent_at(rows, given["name"], living=False))


def _list_children(rows: Rows, given: Given) -> dict[str, Any]:
    return {
        "children": [
            {"name": each.name, "agent_id": each.id, "state": views.state_of(rows, each), "pending": each.inbox}
            for each in rows.children(USER)
        ]
    }


def _poke(rows: Rows, given: Given) -> dict[str, Any]:
    agent = agent_at(rows, given["agent_name"], "agent_name")
    if after(State(agent.state), Step.POKE) is not None:
        effects.resume(rows, agent, None)
    return {"status": "poked", "agent_id": agent.id}


def _terminate_agent(rows: Rows, given: Given) -> dict[str, Any]:
    agent = agent_at(rows, given["name"])
    parent = effects.parent_of(rows, agent)
    effects.end_all(rows, agent, "terminated by USER")
    if parent is not None:
        effects.notify(rows, parent, "notification", f"{agent.path} was terminated by USER")
    return {"status": "terminated", "name": given["name"]}


def _broadcast(rows: Rows, given: Given) -> dict[str, Any]:
    id = str(uuid.uuid4())
    roots = rows.children(USER)
    deadline_s = _seconds("deadline_s", given.get("deadline_s", DEADLINE_S))
    effects.broadcast(rows, None, roots, Broadcast(given["text"], len(roots), None, deadline_s), id, 0)
    return {"status": "sent", "message_id": id, "recipient_count": len(roots)}


def _read_file(rows: Rows, given: Given) -> dict[str, Any]:
    return read_file(rows, rules.inner_path("path", given["path"]), given["path"])


def _list_files(rows: Rows, given: Given) -> dict[str, Any]:
    found = {each.path: (each.version, each.size) for each in rows.files("", MAX_LISTED)}
    return {"files": listed(found, "", given.get("glob"))}


def stop(rows: Rows) -> dict[str, Any]:
    """Stop a team: every agent ends, and nothing begins any more. A second time changes nothing."""
    if rows.team().stopped_at is None:
        for each in rows.children(USER):
            effects.end_all(rows, each, "the team was stopped")
        rows.append(TeamStopped())
    return {"name": rows.name, "state": "stopped"}


TOOLS: Mapping[str, Callable[[Rows, Given], dict[str, Any]]] = {
    "send_message": _send_message,
    "broadcast": _broadcast,
    "check_inbox": _check_inbox,
    "spawn_agent": _spawn_agent,
    "inspect_agent": _inspect_agent,
    "list_children": _list_children,
    "poke": _poke,
    "terminate_agent": _terminate_agent,
    "read_file": _read_file,
    "list_files": _list_files,
}

"""What clients and agents see of a team: messages, states, events, as plain data."""

from collections.abc import Iterator, Mapping
from typing import Any

from agents.teams import rules
from agents.teams.turns import State
from agents.teams.wording import Shown
from storage.teams import events
from storage.teams.events import ENGINE, USER
from storage.teams.rows import Agent, Message, Rows, Stored

# Of `inspect_agent`: so many messages, each cut to so many characters.
RECENT = 20
RECENT_CHARS = 500
# Events of one answer.
MAX_EVENTS = 1_000
EVENTS = 100


def name_of(rows: Rows, agent: int) -> str:
    """The name of a sender or recipient in messages."""
    if agent in (USER, ENGINE):
        return rules.USER_NAME if agent == USER else rules.ENGINE_NAME
    return rows.agent(agent).name


def path_of(rows: Rows, agent: int) -> str:
    """The same for people, who see the whole tree."""
    return name_of(rows, agent) if agent <= USER else rows.agent(agent).path


def shown(rows: Rows, message: Message, *, path: bool = False) -> Shown:
    """A message as its recipient sees it; with `path` its sender as USER names it."""
    to = None if message.reply_to is None else rows.message(message.reply_to).id
    name = (path_of if path else name_of)(rows, message.sender)
    return Shown(name, rows.enqueued(message).text, message.id, message.kind, to)


def state_of(rows: Rows, agent: Agent) -> str:
    """`busy` with a lease, `waiting` for a reply or a person, else `idle`."""
    if agent.state == State.ENDED:
        return "ended"
    if agent.state == State.LEASED:
        return "busy"
    return "waiting" if agent.state == State.PARKED or rows.expectations(asker=agent.agent) else "idle"


def waiting_on(rows: Rows, agent: Agent) -> list[str]:
    """Who has to reply to the agent."""
    found = [name_of(rows, each.of) for each in rows.expectations(asker=agent.agent)]
    return list(dict.fromkeys([*found, *([rules.USER_NAME] if agent.state == State.PARKED else [])]))


def inspected(rows: Rows, agent: Agent) -> dict[str, Any]:
    """The recent activity of an agent, for its parent and for USER. Bounded."""
    recent = [_recent(rows, agent, each) for each in reversed(rows.recent(agent.agent, RECENT))]
    last = next(iter(rows.turns(agent.agent, 1)), None)
    budgets = [each for each in rows.budgets(agent) if each.agent == agent.agent]
    return {
        "state": state_of(rows, agent),
        "recent_messages": recent,
        "agent_id": agent.id,
        "name": agent.name,
        "role": agent.role,
        "runner": agent.runner,
        "pending": agent.inbox,
        "waiting_on": waiting_on(rows, agent),
        "last_turn": None if last is None else _turn(rows, last),
        "budget": None if not budgets else used_of(budgets[0].budget, budgets[0]),
        **({} if agent.why is None else {"why": agent.why}),
    }


def _recent(rows: Rows, agent: Agent, message: Message) -> dict[str, Any]:
    out = message.sender == agent.agent
    text = rows.enqueued(message).text
    return {
        "direction": "out" if out else "in",
        "with": name_of(rows, message.recipient if out else message.sender),
        "kind": message.kind,
        "text": text if len(text) <= RECENT_CHARS else text[: RECENT_CHARS - 1] + "…",
        "message_id": message.id,
        "at": message.at,
        "status": "read" if message.acknowledged is not None else "waiting",
    }


def _turn(rows: Rows, turn: Any) -> dict[str, Any]:
    tools: list[dict[str, Any]] = []
    if turn.seq is not None and isinstance(found := rows.event(turn.seq), events.TurnCommitted):
        tools = [{"name": name, "ok": ok, "s": round(s, 3)} for name, ok, s in found.tools]
    return {
        "turn": turn.turn, "started": turn.started, "ended": turn.ended, "outcome": turn.outcome,
        "attempts": turn.attempts, "tokens": turn.tokens, "cost_usd": turn.micro / rules.MICRO, "tools": tools,
    }  # fmt: skip


def used_of(budget: Mapping[str, float], used: Any) -> dict[str, Any]:
    """A budget beside what was used of it."""
    columns = {"model_tokens": "tokens", "cost_usd": "micro"}
    found = {}
    for name, bound in budget.items():
        value = getattr(used, columns.get(name, name), None)
        found[name] = {"limit": bound} if value is None else {
            "limit": bound, "used": value / rules.MICRO if name == "cost_usd" else value
        }  # fmt: skip
    return found


def status(rows: Rows, draining: bool = False) -> dict[str, Any]:
    """`team_status` and `GET /teams/NAME`."""
    team = rows.team()
    agents = rows.agents()
    return {
        "name": team.name,
        "state": "stopped" if team.stopped_at is not None else "running",
        "created_at": team.created_at,
        "agents": [
            {
                "name": each.name, "path": each.path, "state": state_of(rows, each), "role": each.role,
                "runner": each.runner, "pending": each.inbox, "waiting_on": waiting_on(rows, each),
            }
            for each in agents
        ],
        "waiting": [{"agent": each.path, "why": why} for each in agents if (why := _why(rows, each, draining))],
        "inbox": len(rows.waiting(USER)),
        "budget": used_of(team.budget, team),
    }  # fmt: skip


def _why(rows: Rows, agent: Agent, draining: bool) -> str | None:
    """Why a turn does not begin that could."""
    if agent.state == State.FAILED:
        return "quarantined"
    if agent.state == State.PARKED:
        return "approval"
    if agent.state != State.READY:
        return None
    if agent.ready_at > rows.now:
        return agent.why if agent.why in ("budget", "quota", "draining") else "backoff"
    return "draining" if draining else None


# ---- events ------------------------------------------------------------------------------------------------------


def listed(rows: Rows, after: int, limit: int) -> dict[str, Any]:
    """`team_events`: those after a `seq`. Agents are named by their paths."""
    names: dict[int, str] = {}
    return {"events": list(_events(rows, rows.events_after(after, limit), names))}


def _events(rows: Rows, found: Iterator[Stored], names: dict[int, str]) -> Iterator[dict[str, Any]]:
    def name(agent: int) -> str:
        if agent not in names:
            names[agent] = path_of(rows, agent)
        return names[agent]

    ids: dict[int, str] = {}

    def id_of(message: int) -> str:
        if message not in ids:
            ids[message] = rows.message(message).id
        return ids[message]

    for each in found:
        yield _event(each, name, id_of)


def _event(stored: Stored, name: Any, id_of: Any) -> dict[str, Any]:
    """One event for clients: numbers are replaced by paths and ids, what is the engine's own is left out."""
    said = dict(events.as_json(stored.event))
    shown: dict[str, Any] = {"seq": stored.seq, "at": stored.at, "type": said.pop("type")}
    event = stored.event
    match event:
        case events.MessageEnqueued():
            shown |= {"agent": name(event.recipient), "message": event.id, "from": name(event.sender)}
            shown |= {"kind": event.kind, "text": event.text, "hops": event.hops, "delivery": event.delivery}
            if event.reply_to is not None:
                shown["reply_to"] = id_of(event.reply_to)
            return shown | ({"turn": event.turn} if event.turn is not None else {})
        case events.MessageAcknowledged():
            shown |= {"agent": name(event.agent), "message": id_of(event.message), "delivery": event.delivery}
            return shown | ({"turn": event.turn} if event.turn is not None else {})
        case events.ExpectationOpened() | events.ExpectationClosed():
            shown |= {"agent": name(event.agent), "message": id_of(event.message)}
            return shown | {key: said[key] for key in ("how", "deadline") if key in said}
        case events.TurnParked():
            return shown | {"agent": name(event.agent), "turn": event.turn, "message": id_of(event.message)}
        case events.TeamCreated():
            return shown | {"name": event.name, "budget": event.budget}
        case events.TurnLeased():
            return shown | {"agent": name(event.agent), "turn": event.turn, "attempt": event.attempt}
        case events.AgentCreated():
            keys = ("id", "role", "runner", "persona", "workspace", "budget")
            shown |= {"agent": name(event.agent), "from": name(event.parent), "instructions": event.instructions}
            return shown | {key: said[key] for key in keys if said.get(key)}
        case events.FileWritten():
            shown |= {"agent": name(event.agent), "path": event.path, "version": event.version}
            return shown | {"bytes": len(event.text.encode())}
    if "agent" in said:
        said["agent"] = name(said["agent"])
    said.pop("state", None)
    return shown | said

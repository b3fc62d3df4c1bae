"""The tools of a turn: each returns at once, and what it does takes effect with the turn's commit.

`answer` reads what is true now and what the turn has staged. It runs in a transaction of the team's file, which for the
turn of a client also keeps the new steps.
"""

from collections.abc import Callable, Mapping
from typing import Any

from agents.teams import effects, rules, views
from agents.teams.steps import (
    DEADLINE_S,
    EMPTY_LOOKS,
    Bring,
    Broadcast,
    CancelReminder,
    Complete,
    Poke,
    Remind,
    Send,
    Spawn,
    Staged,
    Terminate,
    Write,
)
from engine.errors import Code, Problem
from engine.names import nearest
from knowledge.globs import compile_glob
from storage.teams.events import USER
from storage.teams.rows import Agent, Rows

# The longest that a reminder or a reply may take: ten years.
MAX_WAIT_S = 315_360_000
MAX_LISTED = 1_000

Given = Mapping[str, Any]


def answer(rows: Rows, agent: Agent, staged: Staged, name: str, given: Given) -> dict[str, Any]:
    """The answer of one tool. Raises Problem."""
    if agent.role == "reviewer" and name in rules.NOT_FOR_REVIEWERS:
        raise Problem(Code.TOOL_NOT_ALLOWED, f"{name}: a reviewer may neither spawn, write nor terminate")
    return TOOLS[name](rows, agent, staged, given)


# ---- messages ----------------------------------------------------------------------------------------------------


def _send_message(rows: Rows, agent: Agent, staged: Staged, given: Given) -> dict[str, Any]:
    name, text, sync = given["recipient"], given["text"], given.get("sync")
    size = rules.check_text("text", text, rows.budget["message_bytes"])
    deadline_s = _seconds("deadline_s", given.get("deadline_s", DEADLINE_S))
    if (key := given.get("idempotency_key")) is not None and (before := staged.keys.get(key)) is not None:
        place, step = before
        if not isinstance(step, Send) or (step.recipient, step.text) != (name, text):
            raise Problem(Code.CONFLICT, "idempotency_key: this turn has sent another message with it")
        return _sent(rows, agent, place, asks=step.asks)
    if name == agent.name:
        raise Problem(Code.BAD_REQUEST, "recipient: an agent cannot write to itself")
    answers, leaves = _replies(rows, agent, staged, given)
    expectation = None if answers is None else rows.expectation(answers)
    if name not in staged.spawned:
        found = effects.reachable(rows, agent, name, answers=expectation)
        if isinstance(found, str) or name in staged.ended:
            raise Problem(Code.NOT_FOUND, f"recipient: {name[:64]!r}: {found}{_meant(rows, agent, name)}")
        _check_inbox_room(rows, found, staged, name, size)
    effects.check_room(rows, agent, (None,), size, more=staged.messages)
    asks = bool(sync) if (sync is not None or answers is not None) else True
    step = Send(name, text, answers, asks, leaves if asks else (), key, deadline_s)
    return _sent(rows, agent, staged.stage(step), asks=asks)


def _sent(rows: Rows, agent: Agent, place: int, *, asks: bool) -> dict[str, Any]:
    return {
        "status": "sent", "message_id": effects.id_in(rows, agent, agent.turn, place), "waiting_for_reply": asks,
    }  # fmt: skip


def _replies(rows: Rows, agent: Agent, staged: Staged, given: Given) -> tuple[int | None, tuple[int, ...]]:
    """The message that this one replies to, if it does, and else the requests that a question to their asker leaves
    open.
    """
    asker = _asker(rows, agent, given["recipient"])
    if (id := given.get("reply_to")) is not None:
        found = rows.message_of(id)
        if found is None or found.recipient != agent.agent or found.sender != asker:
            raise Problem(Code.NOT_FOUND, "reply_to: the recipient sent no message of this id to this agent")
        if rows.expectation(found.message) is None or found.message in staged.answered:
            return None, ()  # nobody waits for it any more: a message as others
        return found.message, ()
    seen = rows.waiting(agent.agent, upto=agent.upto) + [rows.message(each) for each in sorted(staged.brought)]
    wanted = [
        number
        for number, each in effects.requests_of(rows, agent, seen).items()
        if each.asker == asker and number not in staged.answered
    ]
    if given.get("sync") is True:
        return None, tuple(wanted)
    return (wanted[0] if wanted else None), ()


def _asker(rows: Rows, agent: Agent, name: str) -> int | None:
    """The number of the agent that is called so by this one."""
    if name == rules.USER_NAME:
        return USER
    for each in rows.expectations(of=agent.agent):
        if each.asker != USER and rows.agent(each.asker).name == name:
            return each.asker
    found = effects.reachable(rows, agent, name)
    return found.agent if isinstance(found, Agent) else None


def _meant(rows: Rows, agent: Agent, name: str) -> str:
    known = [each.name for each in (*rows.children(agent.agent), *rows.children(agent.parent))]
    parent = effects.parent_of(rows, agent)
    known += [rules.USER_NAME if parent is None else parent.name]
    near = nearest(name, [each for each in known if each != agent.name])
    return f"; did you mean {near!r}?" if near else ""


def _check_inbox_room(rows: Rows, recipient: Agent | None, staged: Staged, name: str, size: int) -> None:
    if recipient is None:
        return
    bounds = rows.budget
    if recipient.inbox + staged.to[name] + 1 > bounds["inbox_messages"]:
        used = recipient.inbox + staged.to[name] + 1
        raise rules.exceeded("inbox_messages", bounds["inbox_messages"], used, whose=name, retry_after_s=1.0)
    if (used := recipient.inbox_bytes + staged.bytes_to[name] + size) > bounds["inbox_bytes"]:
        raise rules.exceeded("inbox_bytes", bounds["inbox_bytes"], used, whose=name, retry_after_s=1.0)


def _broadcast(rows: Rows, agent: Agent, staged: Staged, given: Given) -> dict[str, Any]:
    text = given["text"]
    rules.check_text("text", text, rows.budget["message_bytes"])
    if (key := given.get("idempotency_key")) is not None and (before := staged.keys.get(key)) is not None:
        place, step = before
        if not isinstance(step, Broadcast) or step.text != text:
            raise Problem(Code.CONFLICT, "idempotency_key: this turn has sent another message with it")
    else:
        siblings = [each for each in rows.children(agent.parent) if each.agent != agent.agent]
        effects.check_room(rows, agent, siblings, len(text.encode()), more=staged.messages)
        step = Broadcast(text, len(siblings), key, _seconds("deadline_s", given.get("deadline_s", DEADLINE_S)))
        place = staged.stage(step)
    id = effects.id_in(rows, agent, agent.turn, place)
    return {"status": "sent", "message_id": id, "recipient_count": step.recipients}


def _check_inbox(rows: Rows, agent: Agent, staged: Staged, given: Given) -> dict[str, Any]:
    limit = min(int(given.get("limit", effects.SHOWN_MESSAGES)), effects.SHOWN_MESSAGES)
    found = [
        each
        for each in rows.waiting(agent.agent, after=agent.upto)
        if each.message not in staged.brought
        and ("kind" not in given or each.kind == given["kind"])
        and ("sender" not in given or views.name_of(rows, each.sender) == given["sender"])
    ][:limit]
    if not found and staged.empty_looks + 1 >= EMPTY_LOOKS:
        raise Problem(
            Code.CONFLICT, "the inbox is still empty: end this turn now. Replies arrive as your next message; "
            "check_inbox does not wait for them",
        )  # fmt: skip
    staged.stage(Bring(tuple(each.message for each in found)))
    return {"messages": [views.shown(rows, each).as_json() for each in found]}


# ---- agents ------------------------------------------------------------------------------------------------------


def _spawn_agent(rows: Rows, agent: Agent, staged: Staged, given: Given) -> dict[str, Any]:
    step = spawn_step(rows, agent, given)
    taken = [name for name in staged.spawned if name != agent.name]
    effects.check_spawn(rows, agent, step.name, more=len(staged.spawned), names=taken)
    id = effects.id_in(rows, agent, agent.turn, staged.stage(step))
    return {"status": "created", "agent_id": id, "name": step.name}


def spawn_step(rows: Rows, parent: Agent | None, given: Given) -> Spawn:
    """The step of `spawn_agent`. The persona was looked up before: its content is in `given`. Raises Problem."""
    bound = rows.budget["message_bytes"]
    rules.check_text("instructions", given["instructions"], bound)
    role = given.get("role") or "worker"
    if role not in rules.ROLES:
        raise Problem(Code.BAD_REQUEST, f"role: expected one of {', '.join(rules.ROLES)}, got {str(role)[:64]!r}")
    workspace = "" if parent is None else parent.workspace
    if (below := given.get("workspace_subdir")) is not None:
        workspace = rules.joined(workspace, rules.inner_path("workspace_subdir", below))
    budget = given.get("budget")
    return Spawn(
        name=given["name"], instructions=given["instructions"], role=role, runner=given["runner"], workspace=workspace,
        persona=given.get("persona") or "", definition=given.get("definition", ""), tools=given.get("tools"),
        budget=None if budget is None else rules.checked_budget(budget, None),
    )  # fmt: skip


def _inspect_agent(rows: Rows, agent: Agent, staged: Staged, given: Given) -> dict[str, Any]:
    return views.inspected(rows, _child(rows, agent, staged, given["name"]))


def _child(rows: Rows, agent: Agent, staged: Staged, name: str, what: str = "name") -> Agent:
    if name in staged.spawned:
        raise Problem(Code.CONFLICT, f"{what}: {name!r} was spawned by this turn, and begins when it ends")
    found = rows.named(agent.agent, name)
    if found is None or name in staged.ended:
        gone = " any more" if name in staged.ended or rows.named(agent.agent, name, living=False) else ""
        raise Problem(Code.NOT_FOUND, f"{what}: {name[:64]!r} is no child of this agent{gone}")
    return found


def _list_children(rows: Rows, agent: Agent, staged: Staged, given: Given) -> dict[str, Any]:
    return {
        "children": [
            {"name": each.name, "agent_id": each.id, "state": views.state_of(rows, each), "pending": each.inbox}
            for each in rows.children(agent.agent)
            if each.name not in staged.ended
        ]
        + [{"name": name, "state": "idle", "pending": staged.to[name]} for name in staged.spawned]
    }


def _complete(rows: Rows, agent: Agent, staged: Staged, given: Given) -> dict[str, Any]:
    rules.check_text("result", given["result"], rows.budget["message_bytes"])
    if staged.spawned or any(each.name not in staged.ended for each in rows.children(agent.agent)):
        raise Problem(Code.CONFLICT, "complete: there are children; terminate them first")
    staged.stage(Complete(given["result"]))
    return {"status": "completing"}


def _poke(rows: Rows, agent: Agent, staged: Staged, given: Given) -> dict[str, Any]:
    child = _child(rows, agent, staged, given["agent_name"], "agent_name")
    staged.stage(Poke(child.name))
    return {"status": "poked", "agent_id": child.id}


def _terminate_agent(rows: Rows, agent: Agent, staged: Staged, given: Given) -> dict[str, Any]:
    name = given["name"]
    if name not in staged.spawned:
        _child(rows, agent, staged, name)
    staged.stage(Terminate(name))
    return {"status": "terminating", "name": name}


# ---- reminders ---------------------------------------------------------------------------------------------------


def _remind_me(rows: Rows, agent: Agent, staged: Staged, given: Given) -> dict[str, Any]:
    rules.check_text("reason", given["reason"], rows.budget["message_bytes"])
    timeout = _seconds("timeout", given["timeout"])
    every = None if given.get("every") is None else _seconds("every", given["every"], least=1.0)
    if len(rows.reminders(agent.agent)) + len(staged.reminders) >= MAX_REMINDERS:
        raise Problem(Code.QUOTA_EXCEEDED, f"an agent has at most {MAX_REMINDERS} reminders; cancel one")
    id = effects.id_in(rows, agent, agent.turn, staged.place)
    staged.stage(Remind(id, given["reason"], timeout, every))
    return {"status": "scheduled", "reminder_id": id}


MAX_REMINDERS = 64


def _cancel_reminder(rows: Rows, agent: Agent, staged: Staged, given: Given) -> dict[str, Any]:
    id = given["reminder_id"]
    found = rows.reminder(id)
    if id not in staged.reminders and (found is None or found.agent != agent.agent or id in staged.cancelled):
        raise Problem(Code.NOT_FOUND, "reminder_id: this agent has no such reminder; it may have fired")
    staged.stage(CancelReminder(id))
    return {"status": "cancelled", "reminder_id": id}


def _seconds(what: str, value: float, least: float = 0.001) -> float:
    if not least <= value <= MAX_WAIT_S:  # NaN fails it too
        raise Problem(Code.BAD_REQUEST, f"{what}: expected seconds from {least:g} to {MAX_WAIT_S}, got {value:g}")
    return float(value)


# ---- files -------------------------------------------------------------------------------------------------------


def _read_file(rows: Rows, agent: Agent, staged: Staged, given: Given) -> dict[str, Any]:
    path = rules.joined(agent.workspace, rules.inner_path("path", given["path"]))
    if (written := staged.files.get(path)) is not None:
        return {"path": given["path"], "text": written.text, "version": written.before + 1}
    return read_file(rows, path, given["path"])


def read_file(rows: Rows, path: str, shown: str) -> dict[str, Any]:
    """A file by its path in the team."""
    file = rows.file(path)
    if file is None:
        raise Problem(Code.NOT_FOUND, f"path: there is no file {shown!r}")
    return {"path": shown, "text": rows.text(file), "version": file.version}


def _write_file(rows: Rows, agent: Agent, staged: Staged, given: Given) -> dict[str, Any]:
    shown, text = rules.inner_path("path", given["path"]), given["text"]
    path = rules.joined(agent.workspace, shown)
    size = rules.check_text("text", text, rows.budget["workspace_bytes"])
    file, earlier, wanted = rows.file(path), staged.files.get(path), given.get("if_version")
    before = 0 if file is None else file.version
    current = before + 1 if earlier is not None else before
    if wanted is not None and wanted != current:
        raise Problem(Code.CONFLICT, f"if_version: {shown} has the version {current}, not {wanted:g}")
    used = rows.team().workspace_bytes + sum(len(each.text.encode()) for each in staged.files.values())
    if used + size > (bound := rows.budget["workspace_bytes"]):
        raise rules.exceeded("workspace_bytes", bound, used + size)
    strict = wanted is not None or (earlier is not None and earlier.strict)
    # A second write of the turn takes the place of the first: one version a turn.
    staged.stage(Write(path, text, before, strict))
    return {"status": "written", "path": shown, "version": before + 1}


def _list_files(rows: Rows, agent: Agent, staged: Staged, given: Given) -> dict[str, Any]:
    root = f"{agent.workspace}/" if agent.workspace else ""
    found = {each.path: (each.version, each.size) for each in rows.files(root, MAX_LISTED)}
    for path, each in staged.files.items():
        found[path] = (each.before + 1, len(each.text.encode()))
    return {"files": listed(found, root, given.get("glob"))}


def listed(found: Mapping[str, tuple[int, int]], root: str, glob: str | None) -> list[dict[str, Any]]:
    """Files below a root by path, with version and size; with `glob` only those that match."""
    try:
        fits = None if glob is None else compile_glob(glob)
    except ValueError as error:
        raise Problem(Code.BAD_REQUEST, f"glob: {error}") from None
    return [
        {"path": path[len(root) :], "version": version, "bytes": size}
        for path, (version, size) in sorted(found.items())
        if fits is None or fits.fullmatch(path[len(root) :])
    ]


TOOLS: Mapping[str, Callable[[Rows, Agent, Staged, Given], dict[str, Any]]] = {
    "send_message": _send_message,
    "broadcast": _broadcast,
    "check_inbox": _check_inbox,
    "spawn_agent": _spawn_agent,
    "inspect_agent": _inspect_agent,
    "complete": _complete,
    "list_children": _list_children,
    "poke": _poke,
    "terminate_agent": _terminate_agent,
    "remind_me": _remind_me,
    "cancel_reminder": _cancel_reminder,
    "read_file": _read_file,
    "write_file": _write_file,
    "list_files": _list_files,
}

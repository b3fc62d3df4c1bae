"""The one list of the tools of teams: parameters, descriptions, and from where each may be called. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agents.teams.rules import RUNNERS
from agents.tool import ToolInfo

Schema = Mapping[str, Any]

_TEXT: Schema = {"type": "string"}
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 256}
_FLAG: Schema = {"type": "boolean"}
_NUMBER: Schema = {"type": "number"}
_COUNT: Schema = {"type": "integer", "minimum": 1}
_KEY: Schema = {"type": "string", "minLength": 1, "maxLength": 256}
_LEASE: Schema = {
    "type": "string",
    "maxLength": 256,
    "description": "The lease of the turn, for clients with one connection",
}
_BUDGET: Schema = {"type": ["object", "null"], "description": "Limits by name; docs/teams.md has them"}
_TOOLS: Schema = {
    "type": ["array", "null"], "items": _NAME, "maxItems": 256, "description": "Those of your tools that it has",
}  # fmt: skip
_LASTS: Schema = {"type": "number", "description": "Seconds that it lasts without a call, at most lease_s of [teams]"}
_AFTER: Schema = {"type": "integer", "minimum": 0, "default": 0}
_KIND: Schema = {"enum": ["request", "response", "notification", "error", "approval"]}

# Who may call a tool: a turn, USER, anybody with a key.
Caller = Literal["turn", "user", "tenant"]


@dataclass(frozen=True, slots=True)
class TeamTool:
    """One tool."""

    name: str
    description: str
    properties: Mapping[str, Schema]
    required: tuple[str, ...] = ()
    callers: tuple[Caller, ...] = ("turn",)
    read_only: bool = False

    @property
    def info(self) -> ToolInfo:
        """The tool in lists."""
        properties = dict(self.properties)
        if "turn" in self.callers:
            properties["lease"] = _LEASE
        return ToolInfo(
            name=self.name, description=self.description, builtin=True, read_only=self.read_only, open_world=False,
            parameters={"type": "object", "properties": properties, "required": list(self.required)},
        )  # fmt: skip

    @property
    def own_parameters(self) -> Schema:
        """Those that a script or a model of a turn gives: without the lease, which it does not have."""
        return {"type": "object", "properties": dict(self.properties), "required": list(self.required)}


_AT_ONCE = "Returns at once; it never waits for an agent."
_REPLY = "A reply arrives as your next message, after this turn has ended: do not poll for it."

TOOLS: tuple[TeamTool, ...] = (
    TeamTool(
        "send_message",
        f"Send a message to another agent of the team: parent, child or sibling. {_AT_ONCE} {_REPLY}",
        {
            "recipient": {**_NAME, "description": "The agent's name; USER for the people who own the team"},
            "text": _TEXT,
            "sync": {**_FLAG, "default": True, "description": "Whether the reply is delivered as your next message"},
            "reply_to": {**_NAME, "description": "The id of the message that this one answers"},
            "idempotency_key": {**_KEY, "description": "A second call with the same key sends nothing"},
            "deadline_s": {**_NUMBER, "default": 3600, "description": "When you are told that no reply has come"},
        },
        ("recipient", "text"),
        ("turn", "user"),
    ),
    TeamTool(
        "broadcast",
        f"Send a message to all your siblings. {_AT_ONCE} Replies arrive as separate messages, one per sibling.",
        {"text": _TEXT, "idempotency_key": _KEY, "deadline_s": _NUMBER},
        ("text",),
        ("turn", "user"),
    ),
    TeamTool(
        "check_inbox",
        "Messages that came since this turn began, each once. Not for waiting: replies arrive as your next message.",
        {
            "sender": {**_NAME, "description": "Only messages of this agent"},
            "kind": _KIND,
            "limit": {**_COUNT, "maximum": 100},
        },
        (),
        ("turn", "user"),
    ),
    TeamTool(
        "spawn_agent",
        f"Create an agent below you. {_AT_ONCE} It begins when your turn ends; write to it by its name.",
        {
            "name": {**_NAME, "description": "Unique among your agents"},
            "instructions": {**_TEXT, "description": "What it is to do: its system text"},
            "role": {"enum": ["worker", "reviewer"], "default": "worker", "description": "A reviewer only reads"},
            "workspace_subdir": {"type": ["string", "null"], "default": None, "description": "A folder below yours"},
            "persona": {"type": ["string", "null"], "description": "An agent whose definition it runs"},
            "runner": {"enum": [*RUNNERS, None], "description": "Who runs its turns"},
            "budget": _BUDGET,
            "tools": _TOOLS,
        },
        ("name", "instructions"),
        ("turn", "user"),
    ),
    TeamTool(
        "inspect_agent",
        f"The state and the recent activity of an agent below you. {_AT_ONCE}",
        {"name": _NAME}, ("name",), ("turn", "user"), read_only=True,
    ),
    TeamTool("list_children", "Your agents, with their states.", {}, (), ("turn", "user"), read_only=True),
    TeamTool(
        "complete",
        "End your work for good: the result goes to your parent, and no turn of yours follows. Not with children.",
        {"result": _TEXT}, ("result",),
    ),
    TeamTool(
        "poke", "Let an agent of yours try again whose turn failed too often.", {"agent_name": _NAME}, ("agent_name",),
        ("turn", "user"),
    ),
    TeamTool(
        "terminate_agent", "End an agent of yours and all below it.", {"name": _NAME}, ("name",), ("turn", "user"),
    ),
    TeamTool(
        "remind_me",
        f"Get a message with this reason later: after `timeout` seconds, and then every `every` seconds. {_AT_ONCE}",
        {"reason": _TEXT, "timeout": _NUMBER, "every": {"type": ["number", "null"]}}, ("reason", "timeout"),
    ),
    TeamTool("cancel_reminder", "Cancel a reminder of yours.", {"reminder_id": _NAME}, ("reminder_id",)),
    TeamTool(
        "read_file", "A text file of the team's workspace.", {"path": {**_NAME, "maxLength": 512}}, ("path",),
        ("turn", "user"), read_only=True,
    ),
    TeamTool(
        "write_file",
        "Write a text file of the workspace, when the turn ends. With if_version only if it still has that version.",
        {
            "path": {**_NAME, "maxLength": 512},
            "text": _TEXT,
            "if_version": {"type": ["integer", "null"], "minimum": 0, "description": "0: only if there is none"},
        },
        ("path", "text"),
    ),
    TeamTool(
        "list_files", "The files of the workspace.", {"glob": {"type": ["string", "null"], "maxLength": 512}}, (),
        ("turn", "user"), read_only=True,
    ),
    TeamTool(
        "team_status", "The agents of the team, their states, and what waits and why.", {}, (), ("user",),
        read_only=True,
    ),
    TeamTool(
        "team_events", "What happened in the team, in order, after the event `after`.",
        {"after": _AFTER, "limit": {**_COUNT, "maximum": 1000, "default": 100}},
        (), ("user",), read_only=True,
    ),
    TeamTool(
        "team_next_turn",
        "Take a turn that a client has to run: its lease, what it reads, its tools; or a null lease. Returns at once.",
        {"lease_s": _LASTS},
        (), ("user",),
    ),
    TeamTool(
        "team_finish_turn",
        "End a turn that this client has leased: what it did takes effect, or, with failed, is taken back.",
        {"lease": _LEASE, "output": {"type": ["string", "null"]}, "failed": {"type": ["string", "boolean", "null"]}},
        (), ("user", "turn"),
    ),
    TeamTool("team_stop", "Stop the team: its agents end, and nothing begins any more.", {}, (), ("user",)),
    TeamTool(
        "team_create", "Create a team; its address is ?team=NAME.", {"name": _NAME, "budget": _BUDGET}, ("name",),
        ("tenant",),
    ),
    TeamTool("team_list", "Your teams.", {}, (), ("tenant",), read_only=True),
)  # fmt: skip

BY_NAME: Mapping[str, TeamTool] = {tool.name: tool for tool in TOOLS}
# What a script or a model may call in its turn.
IN_A_TURN: tuple[TeamTool, ...] = tuple(
    tool for tool in TOOLS if "turn" in tool.callers and not tool.name.startswith("team_")
)

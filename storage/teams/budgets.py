"""The one list of what bounds a team. Pure."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    """One bound of a team, or of an agent with all below it. `of` says what it bounds: sums, one agent, one message.

    `retry`: waiting helps.
    """

    name: str
    default: float
    unit: Literal["count", "bytes", "s", "USD"]
    of: Literal["team", "agent", "message"]
    reason: str
    retry: bool = False


BUDGETS: dict[str, BudgetSpec] = {
    spec.name: spec
    for spec in (
        BudgetSpec("agents", 50, "count", "team", "agents that were created, those that ended included"),
        BudgetSpec("depth", 4, "count", "agent", "a root has depth 1"),
        BudgetSpec("children", 16, "count", "agent", "living children of one agent"),
        BudgetSpec("turns", 1_000, "count", "team", "turns that began, every attempt"),
        BudgetSpec("messages", 5_000, "count", "team", "messages that were sent"),
        BudgetSpec("messages_per_minute", 120, "count", "team", "messages of agents within any 60 seconds", retry=True),
        BudgetSpec("inbox_messages", 1_000, "count", "agent", "messages that wait for one agent", retry=True),
        BudgetSpec("inbox_bytes", 4 << 20, "bytes", "agent", "texts that wait for one agent", retry=True),
        BudgetSpec("message_bytes", 65_536, "bytes", "message", "the text of one message, file path or reason"),
        BudgetSpec("workspace_bytes", 16 << 20, "bytes", "team", "the texts of all files"),
        BudgetSpec("hops", 32, "count", "message", "messages of which each caused the next: ping-pong ends"),
        BudgetSpec("wall_s", 86_400, "s", "team", "the age of the team"),
        BudgetSpec("model_tokens", 2_000_000, "count", "team", "tokens of models, reserved before each call"),
        BudgetSpec("cost_usd", 10, "USD", "team", "what models cost, reserved before each call"),
    )
}

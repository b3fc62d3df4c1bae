"""Turns of agents in Lua: `agent.on_messages(messages, state, context)`, in a worker under the usual limits."""

from dataclasses import dataclass
from typing import Any

from agents.agent import Call
from agents.kinds.lua import LuaAgent
from agents.registry import Registry
from agents.teams import rules
from agents.teams.turn import STATE_BYTES, RunningTurn
from engine.errors import Code, Problem
from engine.run import Hearers
from engine.values import encode_value


@dataclass(frozen=True, slots=True)
class LuaRunner:
    """Runs the script that was captured, with the grants that its entry has now."""

    registry: Registry

    async def run(self, turn: RunningTurn) -> tuple[str | None, Any]:
        """The output and the state. Raises Problem, as `LuaAgent.take_turn` does."""
        begun = turn.taken
        agent = self.registry.agent(begun.tenant.id, begun.agent.persona, begun.tenant.key)
        if not isinstance(agent, LuaAgent) or begun.captured is None:
            raise Problem(
                Code.NOT_FOUND, f"the persona {begun.agent.persona!r} is no agent in Lua any more, so that nothing "
                "says what its script is granted; restore it and poke this agent",
            )  # fmt: skip
        messages = [each.as_json() for each in begun.messages]
        call = Call(begun.tenant)
        state, output, _ = await agent.take_turn(
            begun.captured.text, messages, begun.state, call, Hearers(team=turn), begun.created.tools
        )
        if output is not None:
            rules.check_text("output", output, begun.message_bytes)
        if state is not None and (size := len(encode_value(state))) > STATE_BYTES:
            raise Problem(
                Code.OUTPUT_LIMIT, f"state: {size} bytes; an agent keeps at most {STATE_BYTES} from turn to turn"
            )
        return output, state

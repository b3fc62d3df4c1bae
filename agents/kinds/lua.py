"""Lua agents: `agent.resolve(args, config, context)`, run in a worker for every prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.agent import AgentInfo, Call, Resolved
from agents.script import LuaScript
from agents.shape import AgentDeclaration, WrongShape, agent_prompt, completions, narrowed
from engine.run import Authority

# Somebody is typing: an answer that takes longer comes too late.
COMPLETE_S = 3.0


@dataclass(frozen=True, slots=True)
class LuaAgent:
    """An agent that a script describes and resolves."""

    info: AgentInfo
    script: LuaScript
    authority: Authority
    completes: bool

    @classmethod
    def of(cls, script: LuaScript, said: AgentDeclaration) -> "LuaAgent":
        """An agent as it described itself, narrowed by its configuration. Raises WrongShape without `resolve`."""
        if "resolve" not in said.functions:
            raise WrongShape("agent.resolve is missing or not a function")
        info = AgentInfo(
            name=script.name,
            description=said.description if said.description is not None else f"Lua agent: {script.name}",
            tools=narrowed(said.tools, script.entry.tools),
            source="lua",
            arguments=tuple(said.arguments),
            title=said.title,
            expose=script.entry.expose,
        )
        return cls(info, script, script.authority(info.tools), "complete" in said.functions)

    async def complete(self, argument: str, value: str, given: Mapping[str, str], call: Call) -> tuple[str, ...] | None:
        """Run `agent.complete`, if there is one. Raises Problem as `resolve` does."""
        if not self.completes:
            return None
        own = self.script.entry.limits
        limits = {**own, "timeout_s": min(COMPLETE_S, own.get("timeout_s", COMPLETE_S))}
        result = await self.script.run("complete", (argument, value, dict(given)), call, self.authority, limits)
        try:
            return completions(result.value)
        except WrongShape as wrong:
            raise self.script.wrong_shape(result, str(wrong)) from None

    async def resolve(self, arguments: Mapping[str, Any], call: Call) -> Resolved:
        """Run `agent.resolve`. Raises Problem `agent_error` and those of limits, or what admission refuses."""
        result = await self.script.run("resolve", (dict(arguments),), call, self.authority, with_config=True)
        try:
            return Resolved(agent_prompt(result.value, self.info.tools), result)
        except WrongShape as wrong:
            raise self.script.wrong_shape(result, str(wrong)) from None

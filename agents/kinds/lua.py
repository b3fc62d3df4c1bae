"""Lua agents: `agent.resolve(args, config, context)`, run in a worker for every prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.agent import AgentInfo, Call, Resolved
from agents.script import LuaScript
from agents.shape import AgentDeclaration, WrongShape, agent_prompt


@dataclass(frozen=True, slots=True)
class LuaAgent:
    """An agent that a script describes and resolves."""

    info: AgentInfo
    script: LuaScript

    @classmethod
    def of(cls, script: LuaScript, said: AgentDeclaration) -> "LuaAgent":
        """An agent as it described itself, narrowed by its configuration. Raises WrongShape without `resolve`."""
        if "resolve" not in said.functions:
            raise WrongShape("agent.resolve is missing or not a function")
        tools, allowed = tuple(said.tools), script.entry.tools
        info = AgentInfo(
            name=script.name,
            description=said.description if said.description is not None else f"Lua agent: {script.name}",
            tools=tools if allowed is None else tuple(tool for tool in tools if tool in allowed),
            source="lua",
            arguments=tuple(said.arguments),
        )
        return cls(info, script)

    async def resolve(self, arguments: Mapping[str, Any], call: Call) -> Resolved:
        """Run `agent.resolve`. Raises Problem `agent_error` and those of limits, or what admission refuses."""
        result = await self.script.run("resolve", (dict(arguments), self.script.entry.extra), call)
        try:
            return Resolved(agent_prompt(result.value, self.info.tools), result)
        except WrongShape as wrong:
            raise self.script.wrong_shape(result, str(wrong)) from None

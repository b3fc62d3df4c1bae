"""An agent exposed as a tool (`expose = ["prompt", "tool"]`), for clients that support only tools."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agents.agent import Agent, Call
from agents.code.calls import around
from agents.tool import Called, ToolInfo

_RETURNS = {
    "type": "object",
    "properties": {
        "system": {"type": "string", "description": "The system text"},
        "tools": {"type": "array", "items": {"type": "string"}, "description": "The tools that it may use"},
        "messages": {
            "type": "array",
            "description": "The messages that the conversation starts with",
            "items": {
                "type": "object",
                "properties": {
                    "role": {"type": "string", "enum": ["user", "assistant", "system"]},
                    "content": {"type": "string"},
                },
                "required": ["role", "content"],
            },
        },
    },
    "required": ["system", "tools", "messages"],
}


@dataclass(frozen=True, slots=True)
class AgentTool:
    """Answers with the agent's resolved prompt, as `POST /agents/NAME/prompt` does."""

    info: ToolInfo
    agent: Agent

    @classmethod
    def from_agent(cls, agent: Agent, *, harmless: bool) -> "AgentTool":
        """The tool of an agent; `harmless` is true if making its prompt has no side effects."""
        about = agent.info
        properties: dict[str, Any] = {}
        for argument in about.arguments:
            properties[argument.name] = {"type": "string", "description": argument.description}
            if argument.enum is not None:
                properties[argument.name]["enum"] = list(argument.enum)
        parameters: dict[str, Any] = {"type": "object", "properties": properties}
        if required := [argument.name for argument in about.arguments if argument.required]:
            parameters["required"] = required
        info = ToolInfo(
            name=about.name,
            title=about.title,
            description=f"{about.description}\n\nAnswers with an agent's prompt: follow it from then on.",
            builtin=False,
            parameters=parameters,
            returns=_RETURNS,
            read_only=harmless,
            open_world=False if harmless else None,
        )
        return cls(info, agent)

    async def execute(self, params: Mapping[str, Any], call: Call) -> Called:
        """Resolve the agent. Raises Problem as `resolve` does."""
        # An agent may list itself among its tools: this call is in the chain of callers like that of any other tool.
        resolved = await self.agent.resolve(params, replace(call, callers=(*around(call), self.info.name)))
        return Called(resolved.prompt.model_dump(mode="json"), resolved.run)

"""Inline agents: a fixed text in the configuration (`[agents.NAME]`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.agent import AgentInfo, AgentPrompt, Call, Resolved
from engine.config import InlineAgent


@dataclass(frozen=True, slots=True)
class TomlAgent:
    """Resolves to its text, whatever the arguments."""

    info: AgentInfo
    _prompt: AgentPrompt

    @classmethod
    def of(cls, name: str, entry: InlineAgent) -> "TomlAgent":
        info = AgentInfo(
            name=name, description=entry.description, tools=entry.tools, source="toml", expose=entry.expose
        )
        return cls(info, AgentPrompt(system=entry.system_prompt, tools=entry.tools))

    async def resolve(self, arguments: Mapping[str, Any], call: Call) -> Resolved:
        return Resolved(self._prompt)

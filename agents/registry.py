"""(tenant, name) -> agent or tool. Pure: who may see what, and nothing of how it came here."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from agents.agent import Agent
from agents.parameters import Parameters
from agents.tool import Tool


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool with the compiled schema that its parameters are checked against before it is executed."""

    tool: Tool
    parameters: Parameters


@dataclass(slots=True)
class Registry:
    """What every tenant may call. Later entries of one name do not replace earlier ones: the first wins."""

    _agents: dict[str, dict[str, Agent]] = field(default_factory=dict)
    _tools: dict[str, dict[str, OfferedTool]] = field(default_factory=dict)

    def add_agent(self, agent: Agent, tenants: Iterable[str]) -> None:
        """Offer an agent to these tenants; `*` is every tenant."""
        for tenant in tenants:
            self._agents.setdefault(tenant, {}).setdefault(agent.info.name, agent)

    def add_tool(self, tool: Tool, tenants: Iterable[str]) -> None:
        """Offer a tool to these tenants; `*` is every tenant."""
        offered = OfferedTool(tool, Parameters(tool.info.parameters))
        for tenant in tenants:
            self._tools.setdefault(tenant, {}).setdefault(tool.info.name, offered)

    def agents(self, tenant: str) -> list[Agent]:
        """The tenant's agents: its own first, then those of everybody, each in the order they were added."""
        return list((self._agents.get("*", {}) | self._agents.get(tenant, {})).values())

    def tools(self, tenant: str) -> list[Tool]:
        """The tenant's tools, in the order they were added."""
        return [offered.tool for offered in (self._tools.get("*", {}) | self._tools.get(tenant, {})).values()]

    def agent(self, tenant: str, name: str) -> Agent | None:
        return self._agents.get(tenant, {}).get(name) or self._agents.get("*", {}).get(name)

    def tool(self, tenant: str, name: str) -> OfferedTool | None:
        return self._tools.get(tenant, {}).get(name) or self._tools.get("*", {}).get(name)

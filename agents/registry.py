"""(tenant, name) -> agent or tool: what each tenant may see, independent of how it was loaded."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from agents.agent import Agent, AgentInfo, Call
from agents.shapes.parameters import Parameters
from agents.tool import Called, Tool, ToolInfo
from engine.host.pieces import in_pieces
from engine.tenant import Tenant

WorkFor = Callable[[Tenant], AbstractContextManager[None]]


def _unscoped(tenant: Tenant) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool with the schema for its parameters, which are checked before it is executed.

    `work_for` opens a block whose time is charged to a tenant (`Engine.work_for`).
    """

    tool: Tool
    parameters: Parameters
    work_for: WorkFor = _unscoped

    async def call(self, params: Mapping[str, Any], call: Call) -> Called:
        """Check the parameters and execute the tool: the one path for all callers.

        Raises Problem: bad_request, and what the tool raises.
        """
        await in_pieces(self.parameters.checking(params, partial(self.work_for, call.tenant)))
        return await self.tool.execute(params, call)


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """The active published agents and tools of one tenant, by name."""

    agents: Mapping[str, Agent] = field(default_factory=dict)
    tools: Mapping[str, OfferedTool] = field(default_factory=dict)


EMPTY = PublishedSet()


@dataclass(slots=True)
class Registry:
    """The agents and tools of every tenant. Of several entries with one name, the first wins.

    Those from the configuration and the program take precedence over those that the tenant has published.
    """

    work_for: WorkFor = _unscoped
    _agents: dict[str, dict[str, Agent]] = field(default_factory=dict)
    _tools: dict[str, dict[str, OfferedTool]] = field(default_factory=dict)
    _published: dict[str, PublishedSet] = field(default_factory=dict)

    def replace(self, other: "Registry") -> None:
        """Switch to the contents of the other registry in one step. A call in progress keeps the objects that it has.

        Published agents and tools stay: they do not come from files.
        """
        self._agents, self._tools = other._agents, other._tools

    def publish(self, tenant: str, published: PublishedSet) -> PublishedSet:
        """Replace the tenant's published agents and tools; returns the previous ones."""
        before = self._published.pop(tenant, EMPTY)
        if published is not EMPTY:
            self._published[tenant] = published
        return before

    def configured(self, tenant: str) -> tuple[list[str], list[str]]:
        """The names of the tenant's agents and tools that are not published ones."""
        agents, tools = self._agents, self._tools
        return (
            [*agents.get("*", {}), *agents.get(tenant, {})],
            [*tools.get("*", {}), *tools.get(tenant, {})],
        )

    def agent_infos(self) -> dict[str, list[AgentInfo]]:
        """The list entries of all agents, by tenant."""
        return {tenant: [agent.info for agent in agents.values()] for tenant, agents in self._agents.items()}

    def tool_infos(self) -> dict[str, list[ToolInfo]]:
        """The list entries of all tools, by tenant."""
        return {tenant: [offered.tool.info for offered in tools.values()] for tenant, tools in self._tools.items()}

    def add_agent(self, agent: Agent, tenants: Iterable[str]) -> None:
        """Add an agent for these tenants; `*` is every tenant."""
        for tenant in tenants:
            self._agents.setdefault(tenant, {}).setdefault(agent.info.name, agent)

    def add_tool(self, tool: Tool, tenants: Iterable[str]) -> None:
        """Add a tool for these tenants; `*` is every tenant."""
        offered = OfferedTool(tool, Parameters(tool.info.parameters), self.work_for)
        for tenant in tenants:
            self._tools.setdefault(tenant, {}).setdefault(tool.info.name, offered)

    def agents(self, tenant: str) -> list[Agent]:
        """The tenant's agents: first those for all tenants, then its own, each in the order of addition."""
        configured = self._agents.get("*", {}) | self._agents.get(tenant, {})
        return _with(configured, self._published.get(tenant, EMPTY).agents)

    def tools(self, tenant: str) -> list[Tool]:
        """The tenant's tools, in the same order."""
        configured = self._tools.get("*", {}) | self._tools.get(tenant, {})
        return [offered.tool for offered in _with(configured, self._published.get(tenant, EMPTY).tools)]

    def agent(self, tenant: str, name: str) -> Agent | None:
        found = self._agents.get(tenant, {}).get(name) or self._agents.get("*", {}).get(name)
        return found or self._published.get(tenant, EMPTY).agents.get(name)

    def tool(self, tenant: str, name: str) -> OfferedTool | None:
        found = self._tools.get(tenant, {}).get(name) or self._tools.get("*", {}).get(name)
        return found or self._published.get(tenant, EMPTY).tools.get(name)


T = TypeVar("T")


def _with(first: Mapping[str, T], then: Mapping[str, T]) -> list[T]:
    return [*first.values(), *(thing for name, thing in then.items() if name not in first)]

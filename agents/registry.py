"""(tenant, name) -> agent or tool: what each tenant may see, independent of how it was loaded."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeGuard, TypeVar

from agents.agent import Agent, AgentInfo, Call
from agents.shapes.parameters import Parameters
from agents.tool import Called, Tool, ToolInfo
from control.versions.share import is_served
from engine.host.pieces import in_pieces
from engine.tenant import Tenant

WorkFor = Callable[[Tenant], AbstractContextManager[None]]
T = TypeVar("T")


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
class Canary(Generic[T]):
    """The version that so many percent of the callers get in the place of the active one."""

    thing: T
    version: str
    percent: int


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """The active published agents and tools of one tenant, by name, and the canaries beside some of them.

    Invariant: a name with a canary has an active version.
    """

    agents: Mapping[str, Agent] = field(default_factory=dict)
    tools: Mapping[str, OfferedTool] = field(default_factory=dict)
    agent_canaries: Mapping[str, Canary[Agent]] = field(default_factory=dict)
    tool_canaries: Mapping[str, Canary[OfferedTool]] = field(default_factory=dict)


EMPTY = PublishedSet()


@dataclass(slots=True)
class Registry:
    """The agents and tools of every tenant. Of several entries with one name, the first wins.

    Those from the configuration and the program take precedence over those that the tenant has published. A `key` is
    the id of the caller's key: of a name with a canary, it decides which version the caller gets, in lists and calls.
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

    def every_agent(self) -> Iterator[Agent]:
        """All agents that are not published ones, each as often as tenants have it."""
        return (agent for agents in self._agents.values() for agent in agents.values())

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

    def agents(self, tenant: str, key: str | None = None) -> list[Agent]:
        """The tenant's agents: first those for all tenants, then its own, each in the order of addition."""
        configured = self._agents.get("*", {}) | self._agents.get(tenant, {})
        published = self._published.get(tenant, EMPTY)
        return _with(configured, _all_for(tenant, key, published.agents, published.agent_canaries))

    def tools(self, tenant: str, key: str | None = None) -> list[Tool]:
        """The tenant's tools, in the same order."""
        configured = self._tools.get("*", {}) | self._tools.get(tenant, {})
        published = self._published.get(tenant, EMPTY)
        offered = _with(configured, _all_for(tenant, key, published.tools, published.tool_canaries))
        return [each.tool for each in offered]

    def agent(self, tenant: str, name: str, key: str | None = None) -> Agent | None:
        found = self._agents.get(tenant, {}).get(name) or self._agents.get("*", {}).get(name)
        if found is not None:
            return found
        published = self._published.get(tenant, EMPTY)
        canary = published.agent_canaries.get(name)
        return canary.thing if _is_for(canary, tenant, name, key) else published.agents.get(name)

    def tool(self, tenant: str, name: str, key: str | None = None) -> OfferedTool | None:
        found = self._tools.get(tenant, {}).get(name) or self._tools.get("*", {}).get(name)
        if found is not None:
            return found
        published = self._published.get(tenant, EMPTY)
        canary = published.tool_canaries.get(name)
        return canary.thing if _is_for(canary, tenant, name, key) else published.tools.get(name)


def _is_for(canary: Canary[T] | None, tenant: str, name: str, key: str | None) -> TypeGuard[Canary[T]]:
    """Whether the caller gets the canary. Callers without a key, the operator among them, are one caller."""
    return canary is not None and is_served(tenant, name, canary.version, key or "", canary.percent)


def _all_for(
    tenant: str, key: str | None, active: Mapping[str, T], canaries: Mapping[str, Canary[T]]
) -> Mapping[str, T]:
    """What the caller gets, by name."""
    if not canaries:
        return active
    served = {name: each.thing for name, each in canaries.items() if _is_for(each, tenant, name, key)}
    return {name: served.get(name, thing) for name, thing in active.items()}


def _with(first: Mapping[str, T], then: Mapping[str, T]) -> list[T]:
    return [*first.values(), *(thing for name, thing in then.items() if name not in first)]

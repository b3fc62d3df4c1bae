"""What front ends call: the agents, tools and documents of a tenant, by name. `Service` runs them in this process.

A front end that knows this protocol alone can also stand before another implementation, for instance one that sends
calls to the node where they run.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from agents.agent import AgentInfo, Call, Resolved
from agents.changes import Changes
from agents.documents import Documents
from agents.tool import Called, ToolInfo
from engine.tenant import Tenant


class Calls(Protocol):
    """The agents, tools and documents of all tenants. Whatever a client should see is raised as Problem."""

    @property
    def changes(self) -> Changes:
        """Notifies of changes in the lists, those that other processes made included."""
        ...

    def published(self, tenant: Tenant) -> AbstractAsyncContextManager[None]:
        """Inside this block, everything that the tenant had published on entry can be called.

        Every other call for a tenant must be inside one. Raises Problem `unavailable`.
        """
        ...

    def list_agents(self, tenant: Tenant) -> list[AgentInfo]:
        """The tenant's agents, in the order of the configuration."""
        ...

    def list_tools(self, tenant: Tenant, agent: str | None = None) -> list[ToolInfo]:
        """The tenant's tools; with `agent` only those it may use. Raises Problem not_found for an unknown agent."""
        ...

    def agent_info(self, tenant: Tenant, name: str) -> AgentInfo | None:
        """The list entry of one agent of the tenant."""
        ...

    def tool_info(self, tenant: Tenant, name: str) -> ToolInfo | None:
        """The list entry of one tool of the tenant."""
        ...

    def documents(self, tenant: Tenant) -> Documents:
        """The tenant's documents that it may read."""
        ...

    async def complete(
        self, name: str, argument: str, value: str, given: Mapping[str, str], call: Call
    ) -> tuple[str, ...] | None:
        """An agent's values for a partly typed argument; None if it offers none. Raises Problem as `resolve` does."""
        ...

    async def resolve(self, name: str, arguments: Mapping[str, Any], call: Call) -> Resolved:
        """An agent's prompt. Raises Problem: not_found, bad_request (a missing argument), and what the agent raises."""
        ...

    def source(self, tenant: Tenant, name: str) -> Mapping[str, Any]:
        """The source of an agent that shows it, with facts about it. Raises Problem not_found."""
        ...

    async def call_tool(self, name: str, params: Mapping[str, Any], call: Call, agent: str | None = None) -> Called:
        """A tool's answer. Checks, in this order: the agent exists, its list has the tool, the tool exists, parameters.

        Raises Problem: not_found, tool_not_allowed, bad_request, and what the tool raises.
        """
        ...

"""What every front end calls: agents and tools of a tenant, by name, with one path of checks for all of them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agents.agent import Agent, AgentInfo, Call, Resolved
from agents.loader import LoadFailure, load
from agents.registry import OfferedTool, Registry
from agents.tool import Called, ToolInfo
from agents.tools.builtin import builtin_tools
from engine.bridge import knowledge
from engine.config import ConfigError, LoadedConfig
from engine.engine import Engine, open_engine
from engine.errors import Code, Problem
from engine.tenant import Tenant
from knowledge.sqlite import open_store
from knowledge.store import Store


@dataclass(frozen=True, slots=True)
class Service:
    """One engine with everything that can be called on it. Made by `open_service`."""

    loaded: LoadedConfig
    engine: Engine
    store: Store
    registry: Registry
    failures: tuple[LoadFailure, ...]
    warnings: tuple[str, ...]

    def list_agents(self, tenant: Tenant) -> list[AgentInfo]:
        """The tenant's agents, in the order of the configuration."""
        return [agent.info for agent in self.registry.agents(tenant.id)]

    def list_tools(self, tenant: Tenant, agent: str | None = None) -> list[ToolInfo]:
        """The tenant's tools; with `agent` only those it may use. Raises Problem not_found for an unknown agent."""
        infos = [tool.info for tool in self.registry.tools(tenant.id)]
        if agent is None:
            return infos
        allowed = self._agent(tenant, agent).info.tools
        return [info for info in infos if info.name in allowed]

    async def resolve(self, name: str, arguments: Mapping[str, Any], call: Call) -> Resolved:
        """An agent's prompt. Raises Problem: not_found, bad_request (a required argument), what the agent raises."""
        agent = self._agent(call.tenant, name)
        for argument in agent.info.arguments:
            if argument.required and arguments.get(argument.name) is None:
                raise Problem(Code.BAD_REQUEST, f"missing required argument: {argument.name}")
        return await agent.resolve(arguments, call)

    async def call_tool(self, name: str, params: Mapping[str, Any], call: Call, agent: str | None = None) -> Called:
        """A tool's answer. Checked in this order: the agent, whether the tool is in its list, the tool, parameters.

        Raises Problem: not_found, tool_not_allowed, bad_request, and what the tool raises.
        """
        if agent is not None and name not in self._agent(call.tenant, agent).info.tools:
            raise Problem(Code.TOOL_NOT_ALLOWED, f"agent '{agent}' may not use the tool '{name}'")
        offered = self._tool(call.tenant, name)
        offered.parameters.check(params)
        return await offered.tool.execute(params, call)

    def _agent(self, tenant: Tenant, name: str) -> Agent:
        agent = self.registry.agent(tenant.id, name)
        if agent is None:
            raise Problem(Code.NOT_FOUND, self._missing("agent", name))
        return agent

    def _tool(self, tenant: Tenant, name: str) -> OfferedTool:
        offered = self.registry.tool(tenant.id, name)
        if offered is None:
            raise Problem(Code.NOT_FOUND, self._missing("tool", name))
        return offered

    def _missing(self, kind: str, name: str) -> str:
        if any(failure.name == name and failure.kind.startswith(kind) for failure in self.failures):
            return f"{kind} '{name}' failed to load; the log and `engine doctor` say why"
        return f"no {kind} registered with name: {name[:128]}"


@asynccontextmanager
async def open_service(loaded: LoadedConfig) -> AsyncIterator[Service]:
    """Open store and engine, load every script.

    Raises StoreError (the store cannot be used), SandboxUnavailable (a required layer is missing) and ConfigError
    (what is configured is more than this version does).
    """
    config = loaded.config
    if config.tenants.enabled:  # serving without the keys that it asks for would be worse than not serving
        raise ConfigError("tenants.enabled is true, but this version knows one tenant and no keys; remove it")
    async with open_store(config.db.path, create=True, configured=config.connectors.problems()) as store:
        limit = config.retrieval.final_limit
        async with open_engine(config, knowledge.functions(store, default_limit=limit)) as engine:
            registry = Registry()
            for tool in builtin_tools(store, default_limit=limit):
                registry.add_tool(tool, ("*",))
            result = await load(config, engine, registry)
            yield Service(
                loaded=loaded,
                engine=engine,
                store=store,
                registry=registry,
                failures=tuple(result.failures),
                warnings=(*loaded.warnings, *result.warnings),
            )

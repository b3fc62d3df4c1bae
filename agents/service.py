"""What every front end calls: agents and tools of a tenant, by name, with one path of checks for all of them."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio

from agents import calls
from agents.active import ActiveVersions, AtHand
from agents.agent import Agent, AgentInfo, Call, Completes, Resolved
from agents.changes import Changes
from agents.documents import Documents
from agents.loader import LoadFailure, load
from agents.publishing import Publishing
from agents.registry import OfferedTool, Registry
from agents.tool import Called, Tool, ToolInfo
from agents.tools.builtin import builtin_tools
from agents.watched import Files, look
from engine.bridge import env, fs, http, knowledge, sleep
from engine.config import ConfigError, LoadedConfig
from engine.control import versions
from engine.control.files import control_path, packages_path
from engine.control.store import ControlStore, open_configured
from engine.control.usage import UsageLog
from engine.control.vaults import Vaults
from engine.engine import Engine, SandboxUnavailable, open_engine, require_room
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT, Tenant
from knowledge.sqlite import open_store
from knowledge.store import BrowsableStore, StoreError
from knowledge.stores import Stores, open_stores, store_path

log = structlog.get_logger("agents.service")


@dataclass(frozen=True, slots=True)
class Given:
    """What can be called beside what files name: builtin tools, and the objects of a program that embeds the engine."""

    builtins: Sequence[Tool]
    agents: Sequence[Any]
    tools: Sequence[Any]


@dataclass(slots=True)
class Service:
    """One engine with everything that can be called on it. Made by `open_service`.

    `store` has the documents of the tenant `default`, `stores` those of everybody.
    `failures` and `warnings` are of the last time that scripts were loaded; `trouble` is why the configuration file, as
    it is now, is not in force. `files` is the state of the files that was loaded.
    """

    loaded: LoadedConfig
    engine: Engine
    store: BrowsableStore
    stores: Stores
    registry: Registry
    given: Given
    control: ControlStore
    changes: Changes = field(default_factory=Changes)
    failures: tuple[LoadFailure, ...] = ()
    warnings: tuple[str, ...] = ()
    trouble: str | None = None
    files: Files = field(default_factory=dict)
    active: ActiveVersions = field(init=False)
    publishing: Publishing = field(init=False)
    usage: UsageLog = field(init=False)

    def __post_init__(self) -> None:
        self.usage = UsageLog(self.engine.book, self.control if self.loaded.config.tenants.enabled else None)
        folder = partial(packages_path, self.loaded.config.db.path)
        self.active = ActiveVersions(self.control, self.engine, self.registry, self.changes, folder)
        self.publishing = Publishing(self.control, self.engine, self.registry, self.active, self.stores.stored_bytes)

    def at_hand(self, tenant: Tenant) -> AtHand:
        """A block in which all that the tenant has published, as of its beginning, can be called.

        Whoever calls on a tenant's behalf is in one. Raises Problem `unavailable`.
        """
        return self.active.at_hand(tenant)

    async def stored_bytes(self, tenant: Tenant) -> int:
        """What the tenant's documents and published packages take. Raises Problem `unavailable`."""
        packages = await self.control.read(lambda db: versions.stored_bytes(db, tenant.id))
        return packages + await self.stores.stored_bytes(tenant.id)

    async def load_again(self, loaded: LoadedConfig) -> None:
        """Load what this configuration names, and let it be what can be called. Raises ConfigError as `load` does."""
        given = self.given
        files = await look(loaded)  # before they are read: what changes from now on is seen as changed
        result = await load(
            loaded.config, self.engine, self.registry, builtins=given.builtins, agents=given.agents, tools=given.tools
        )
        self.loaded, self.files = loaded, files
        self.failures, self.warnings = tuple(result.failures), (*loaded.warnings, *result.warnings)

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

    def agent_info(self, tenant: Tenant, name: str) -> AgentInfo | None:
        """What lists show of one agent of the tenant."""
        agent = self.registry.agent(tenant.id, name)
        return None if agent is None else agent.info

    def tool_info(self, tenant: Tenant, name: str) -> ToolInfo | None:
        """What lists show of one tool of the tenant."""
        offered = self.registry.tool(tenant.id, name)
        return None if offered is None else offered.tool.info

    def documents(self, tenant: Tenant) -> Documents:
        """The tenant's documents."""
        return Documents(self.stores.of(tenant.id))

    async def complete(
        self, name: str, argument: str, value: str, given: Mapping[str, str], call: Call
    ) -> tuple[str, ...] | None:
        """What an agent says that an argument may become; None when it says nothing. Raises Problem as resolve does."""
        agent = self._agent(call.tenant, name)
        return await agent.complete(argument, value, given, call) if isinstance(agent, Completes) else None

    async def resolve(self, name: str, arguments: Mapping[str, Any], call: Call) -> Resolved:
        """An agent's prompt. Raises Problem: not_found, bad_request (a required argument), what the agent raises."""
        agent = self._agent(call.tenant, name)
        for argument in agent.info.arguments:
            given = arguments.get(argument.name)
            if argument.required and given is None:
                raise Problem(Code.BAD_REQUEST, f"missing required argument: {argument.name}")
            if argument.enum is not None and given is not None and given not in argument.enum:
                raise Problem(Code.BAD_REQUEST, f"{argument.name} must be one of: {', '.join(argument.enum)}")
        return await agent.resolve(arguments, call)

    async def call_tool(self, name: str, params: Mapping[str, Any], call: Call, agent: str | None = None) -> Called:
        """A tool's answer. Checked in this order: the agent, whether the tool is in its list, the tool, parameters.

        Raises Problem: not_found, tool_not_allowed, bad_request, and what the tool raises.
        """
        if agent is not None and name not in self._agent(call.tenant, agent).info.tools:
            raise Problem(Code.TOOL_NOT_ALLOWED, f"agent '{agent}' may not use the tool '{name[:128]}'")
        return await self._tool(call.tenant, name).call(params, call)

    def _agent(self, tenant: Tenant, name: str) -> Agent:
        agent = self.registry.agent(tenant.id, name)
        if agent is None:
            raise Problem(Code.NOT_FOUND, self._missing(tenant, "agent", name))
        return agent

    def _tool(self, tenant: Tenant, name: str) -> OfferedTool:
        offered = self.registry.tool(tenant.id, name)
        if offered is None:
            raise Problem(Code.NOT_FOUND, self._missing(tenant, "tool", name))
        return offered

    def _missing(self, tenant: Tenant, kind: str, name: str) -> str:
        failed = [each for each in self.failures if each.name == name and each.kind.startswith(kind)]
        # To everybody else, a tenant's script that does not load is as unknown as one that does.
        if any({tenant.id, "*"} & set(each.tenants) for each in failed):
            return f"{kind} '{name}' failed to load; the log and `engine doctor` say why"
        return f"no {kind} registered with name: {name[:128]}"


def _private_files(loaded: LoadedConfig) -> list[Path]:
    """What of the engine's own no script may read: it holds secrets and everybody's documents. Files and folders."""
    config = loaded.config
    named = (config.db.path, control_path(config))
    # Of a link, the log and its index lie beside what it leads to.
    stores = {*named, *(Path(os.path.realpath(path)) for path in named)}
    beside = [Path(f"{path}{suffix}") for path in stores for suffix in ("", "-wal", "-shm", "-journal")]
    folders = [store_path(config.db.path, "any").parent, packages_path(config.db.path, DEFAULT_TENANT.id)]
    others = (loaded.path, config.tenants.secrets_key_file)
    return [*beside, *folders, *(path for path in others if path is not None)]


# What opening one raises, each with one line for the operator.
CANNOT_OPEN = (ConfigError, SandboxUnavailable, StoreError)


@asynccontextmanager
async def open_service(
    loaded: LoadedConfig, *, agents: Sequence[Any] = (), tools: Sequence[Any] = ()
) -> AsyncIterator[Service]:
    """Open store and engine, load every script.

    `agents` and `tools` are the objects of a program that embeds the engine (`agents.authoring`).
    Raises StoreError (the store cannot be used), SandboxUnavailable (a required layer is missing) and ConfigError
    (what is configured is more than this version does, or one of those objects cannot be used).
    """
    config = loaded.config
    configured = config.connectors.problems()
    require_room(config)  # ahead of the stores, which start threads and would fail in other words
    async with (
        open_configured(config) as control,
        open_store(config.db.path, create=True, configured=configured) as store,
        open_stores(
            {DEFAULT_TENANT.id: store}, partial(store_path, config.db.path), config.connectors.problems
        ) as stores,
        http.open_http() as outward,
    ):
        limit = config.retrieval.final_limit
        registry = Registry()
        functions = (
            *knowledge.functions(stores.of, default_limit=limit),
            *outward.functions,
            *env.functions(os.environ),
            *fs.functions(_private_files(loaded)),
            *sleep.functions(),
            *calls.functions(registry),
        )
        async with open_engine(config, functions) as engine, trio.open_nursery() as nursery:
            engine.secrets = Vaults(control)
            if config.tenants.enabled:  # without tenants no control store is made, least of all by a script
                engine.tell_denied(lambda run, call: control.note_refused_call(run.tenant.id, run.name, call))
            given = Given(builtin_tools(stores.of, default_limit=limit), agents, tools)
            service = Service(loaded, engine, store, stores, registry, given, control)
            await service.load_again(loaded)
            if config.tenants.enabled and (lost := await control.lost()) is not None:
                log.warning(lost)
                service.warnings += (lost,)
            nursery.start_soon(service.usage.keep)
            yield service
            nursery.cancel_scope.cancel()

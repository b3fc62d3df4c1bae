"""The service behind every front end: calls of a tenant's agents and tools by name, with one path of checks."""

import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import trio

from agents.agent import Agent, AgentInfo, Call, Completes, Resolved, Sourced
from agents.changes import Changes
from agents.code import calls, schema_call
from agents.code.entries import Means
from agents.documents import Documents
from agents.embedding import keep_embedded
from agents.loading.loader import LoadFailure, load
from agents.loading.watched import look
from agents.publishing.active import ActiveVersions, PublishedBlock
from agents.publishing.publish import Publishing
from agents.registry import OfferedTool, Registry
from agents.sources import Health
from agents.teams import family
from agents.teams.lua_runner import LuaRunner
from agents.teams.personas import Personas
from agents.teams.running import Running, TurnRunner
from agents.teams.service import Teams
from agents.teams.tool import team_tools
from agents.tool import Called, Tool, ToolInfo
from agents.toolbox.servers import Servers
from agents.tools.builtin import builtin_tools
from control.audit import AuditLog
from control.files import control_path, kv_path, packages_path
from control.identity import tenant_of as tenant_of_record
from control.store import ControlStore, open_configured
from control.usage import UsageLog
from control.vaults import Vaults
from engine.bridge.families import Host, open_families
from engine.bridge.kv import KvError, KvStore, open_kv
from engine.config import Config, ConfigError, LoadedConfig
from engine.config.signatures import Files
from engine.embedders import open_embedders, settings
from engine.engine import Engine, SandboxUnavailable, open_engine, require_room
from engine.errors import Code, Problem
from engine.models.calling import open_models
from engine.quota import Exceeded, bind_quotas
from engine.tenant import DEFAULT_TENANT, Tenant
from knowledge.access import SourceAccess
from knowledge.sqlite.store import open_store
from knowledge.store import BrowsableStore, StoreError
from knowledge.stores import Stores, cache_path, open_stores, store_path
from sandbox.wire.surface import granted
from storage.teams.events import Runner
from storage.teams.store import TeamFiles, open_team_files, teams_folder

if TYPE_CHECKING:
    from agents.syncing import Syncs

log = structlog.get_logger("agents.service")


@dataclass(frozen=True, slots=True)
class Given:
    """Agents and tools that do not come from files: builtin tools, and the objects of an embedding program."""

    builtins: Sequence[Tool]
    agents: Sequence[Any]
    tools: Sequence[Any]


@dataclass(slots=True)
class Service:
    """One engine with its agents and tools. Made by `open_service`.

    `store` has the documents of the tenant `default`, `stores` those of all tenants, `kv` the keys of scripts.
    `failures` and `warnings` are from the last load; `trouble` is the reason why the current configuration file is not
    in force. `files` is the state of the files at the last load; `required` are those that scripts require.
    """

    loaded: LoadedConfig
    engine: Engine
    store: BrowsableStore
    stores: Stores
    registry: Registry
    given: Given
    control: ControlStore
    kv: KvStore
    means: Means
    teams: Teams | None = None
    changes: Changes = field(default_factory=Changes)
    failures: tuple[LoadFailure, ...] = ()
    warnings: tuple[str, ...] = ()
    trouble: str | None = None
    files: Files = field(default_factory=dict)
    required: tuple[Path, ...] = ()
    active: ActiveVersions = field(init=False)
    publishing: Publishing = field(init=False)
    usage: UsageLog = field(init=False)
    # Runs the turns of teams, in servers.
    running: Running | None = None
    _syncs: "Syncs | None" = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.usage = UsageLog(self.engine.book, self.control.usage if self.loaded.config.tenants.enabled else None)
        self.engine.spending.spent = self.usage.cost_of
        self.usage.counted = self.engine.spending.counted
        folder = partial(packages_path, self.loaded.config.db.path)
        self.active = ActiveVersions(self.control, self.engine, self.means, self.registry, self.changes, folder)
        self.publishing = Publishing(self.control, self.engine, self.registry, self.active, self.stores.stored_bytes)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Synchronise sources and run the turns of teams, until the block ends."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.syncs.serving())
            if self.running is not None:
                await stack.enter_async_context(self.running.serving())
            yield

    @property
    def syncs(self) -> "Syncs":
        """The syncs of tenants. Made when it is first used: most commands need none."""
        if self._syncs is None:
            from agents.syncing import Syncs

            self._syncs = Syncs(self.loaded, self.engine, self.control, self.stores)
        return self._syncs

    def published(self, tenant: Tenant) -> PublishedBlock:
        """Inside this block, everything that the tenant had published on entry can be called.

        Every call for a tenant must be inside one. Raises Problem `unavailable`.
        """
        return self.active.published(tenant)

    async def stored(self, tenant: Tenant) -> dict[str, float]:
        """What the tenant has stored, by the quotas that bound it. Raises Problem `unavailable`."""
        used: dict[str, float] = {}
        with suppress(KvError):  # not known then; the log says why
            used["kv_bytes"] = await self.kv.used_bytes(tenant.id)
        if self.loaded.config.tenants.enabled:
            packages = await self.control.versions.stored_bytes(tenant.id)
            teams = 0 if self.teams is None else self.teams.files.stored_bytes(tenant.id)
            used["stored_bytes"] = packages + teams + await self.stores.stored_bytes(tenant.id)
        return used

    async def require_room(self, tenant: Tenant) -> None:
        """Raise Problem if the tenant has stored as much as it may."""
        quotas = bind_quotas(tenant, self.loaded.config.tenants.quota, workers=1)
        used, bound = (await self.stored(tenant)).get("stored_bytes", 0.0), quotas["stored_bytes"]
        if used >= bound:
            raise Exceeded("stored_bytes", bound, used, quotas.sources["stored_bytes"], 0).problem()

    async def load_again(self, loaded: LoadedConfig) -> None:
        """Load the scripts of this configuration, and switch to them. Raises ConfigError as `load` does."""
        given = self.given
        files = await look(loaded)  # before they are read, so that later changes are seen as changes
        result = await load(
            loaded.config,
            self.engine,
            self.means,
            self.registry,
            builtins=given.builtins,
            agents=given.agents,
            tools=given.tools,
        )
        # Those that are required are known by now, each as it was before it was read.
        self.loaded, self.required = loaded, tuple(result.required)
        self.files = result.required | files | loaded.files
        self.failures, self.warnings = tuple(result.failures), (*loaded.warnings, *result.warnings)

    def list_agents(self, tenant: Tenant) -> list[AgentInfo]:
        """The tenant's agents, in the order of the configuration."""
        return [agent.info for agent in self.registry.agents(tenant.id, tenant.key)]

    def list_tools(self, tenant: Tenant, agent: str | None = None) -> list[ToolInfo]:
        """The tenant's tools; with `agent` only those it may use. Raises Problem not_found for an unknown agent."""
        infos = [tool.info for tool in self.registry.tools(tenant.id, tenant.key)]
        if agent is None:
            return infos
        allowed = self._agent(tenant, agent).info.tools
        return [info for info in infos if info.name in allowed]

    def agent_info(self, tenant: Tenant, name: str) -> AgentInfo | None:
        """The list entry of one agent of the tenant."""
        agent = self.registry.agent(tenant.id, name, tenant.key)
        return None if agent is None else agent.info

    def tool_info(self, tenant: Tenant, name: str) -> ToolInfo | None:
        """The list entry of one tool of the tenant."""
        offered = self.registry.tool(tenant.id, name, tenant.key)
        return None if offered is None else offered.tool.info

    def documents(self, tenant: Tenant) -> Documents:
        """The tenant's documents that it may read."""
        return Documents(self.stores.store_of(tenant.id), tenant.reader)

    async def complete(
        self, name: str, argument: str, value: str, given: Mapping[str, str], call: Call
    ) -> tuple[str, ...] | None:
        """An agent's values for a partly typed argument; None if it offers none. Raises Problem as `resolve` does."""
        agent = self._agent(call.tenant, name)
        return await agent.complete(argument, value, given, call) if isinstance(agent, Completes) else None

    async def resolve(self, name: str, arguments: Mapping[str, Any], call: Call) -> Resolved:
        """An agent's prompt. Raises Problem: not_found, bad_request (a missing argument), and what the agent raises."""
        agent = self._agent(call.tenant, name)
        for argument in agent.info.arguments:
            given = arguments.get(argument.name)
            if argument.required and given is None:
                raise Problem(Code.BAD_REQUEST, f"missing required argument: {argument.name}")
            if argument.enum is not None and given is not None and given not in argument.enum:
                raise Problem(Code.BAD_REQUEST, f"{argument.name} must be one of: {', '.join(argument.enum)}")
        return await agent.resolve(arguments, call)

    async def call_tool(self, name: str, params: Mapping[str, Any], call: Call, agent: str | None = None) -> Called:
        """A tool's answer. Checks, in this order: the agent exists, its list has the tool, the tool exists, parameters.

        Raises Problem: not_found, tool_not_allowed, bad_request, and what the tool raises.
        """
        if agent is not None and name not in self._agent(call.tenant, agent).info.tools:
            raise Problem(Code.TOOL_NOT_ALLOWED, f"agent '{agent}' may not use the tool '{name[:128]}'")
        return await self._tool(call.tenant, name).call(params, call)

    def source(self, tenant: Tenant, name: str) -> Mapping[str, Any]:
        """The source of an agent that shows it. Raises Problem not_found."""
        agent = self._agent(tenant, name)
        if not isinstance(agent, Sourced):
            raise Problem(Code.NOT_FOUND, f"agent '{name}' is of kind {agent.info.source}, which shows no source")
        return agent.source(tenant)

    def _agent(self, tenant: Tenant, name: str) -> Agent:
        agent = self.registry.agent(tenant.id, name, tenant.key)
        if agent is None:
            raise Problem(Code.NOT_FOUND, self._missing(tenant, "agent", name))
        return agent

    def _tool(self, tenant: Tenant, name: str) -> OfferedTool:
        offered = self.registry.tool(tenant.id, name, tenant.key)
        if offered is None:
            raise Problem(Code.NOT_FOUND, self._missing(tenant, "tool", name))
        return offered

    def _missing(self, tenant: Tenant, kind: str, name: str) -> str:
        failed = [each for each in self.failures if each.name == name and each.kind.startswith(kind)]
        # For other tenants, a tenant's script that does not load is as unknown as one that does.
        if any({tenant.id, "*"} & set(each.tenants) for each in failed):
            return f"{kind} '{name}' failed to load; the log and `engine doctor` say why"
        return f"no {kind} registered with name: {name[:128]}"


def _turns_of(service: Service, teams: Teams) -> Running:
    """What runs the turns of teams, for a server to start."""
    config = service.loaded.config

    async def tenant_of(name: str) -> Tenant:
        """Raises Problem `conflict` for a tenant that is suspended: its turns wait."""
        if not config.tenants.enabled:
            return DEFAULT_TENANT
        record = await service.control.tenants.get(name)
        if record.state != "active":
            raise Problem(Code.CONFLICT, "the tenant is suspended")
        return tenant_of_record(record)

    runners: dict[Runner, TurnRunner] = {"lua": LuaRunner(service.registry)}
    metrics = service.engine.metrics
    running = Running(
        teams, teams_folder(config.db.path), runners, tenant_of, service.published, metrics.team_turned,
        metrics.teams_wait,
    )  # fmt: skip
    teams.changed = running.wake
    return running


def _private_files(loaded: LoadedConfig) -> list[Path]:
    """The engine's own files and folders, which no script may read: they hold secrets and all tenants' documents."""
    config = loaded.config
    named = (config.db.path, control_path(config), kv_path(config.db.path))
    # For a symbolic link, the WAL and its index are beside the target.
    stores = {*named, *(Path(os.path.realpath(path)) for path in named)}
    beside = [Path(f"{path}{suffix}") for path in stores for suffix in ("", "-wal", "-shm", "-journal")]
    folders = [store_path(config.db.path, "any").parent, packages_path(config.db.path, DEFAULT_TENANT.id)]
    others = (loaded.path, config.tenants.secrets_key_file)
    return [
        *beside,
        *folders,
        cache_path(config.db.path),
        teams_folder(config.db.path),
        *config.connectors.caches(),
        *(path for path in others if path is not None),
    ]


@asynccontextmanager
async def open_scripts(loaded: LoadedConfig) -> AsyncIterator[Engine]:
    """An engine for the scripts of connectors: without agents and tools, and with no store to search.

    Raises SandboxUnavailable when a required layer is missing.
    """
    config = loaded.config

    def no_store(tenant: str) -> BrowsableStore:
        raise StoreError("a connector cannot search")

    host = Host(no_store, config.retrieval.final_limit, os.environ, tuple(_private_files(loaded)))
    async with open_configured(config) as control, open_families(host) as functions:
        having = granted("connector", frozenset(each.name for each in functions))
        kept = (each for each in functions if each.name in having)
        async with open_engine(config, (*kept, *schema_call.functions())) as engine:
            engine.secrets = Vaults(control)
            if config.tenants.enabled:
                engine.tell_denied(lambda run, call: control.audit.note_denied(run.tenant.id, run.name, call))
            yield engine


@dataclass(frozen=True, slots=True)
class _Audited:
    """Calls of runs with a model, for the audit log (`engine.engine.ToolWitness`)."""

    log: AuditLog

    def refused(self, tenant: Tenant, agent: str, tool: str) -> None:
        self.log.note_tool_refused(tenant.id, agent, tool)

    def decided(self, tenant: Tenant, agent: str, tool: str, *, allowed: bool) -> None:
        self.log.note_decision(tenant.id, tenant.key, agent, tool, allowed=allowed)


@asynccontextmanager
async def _team_files(config: Config) -> AsyncIterator[TeamFiles | None]:
    """The files of teams, if there are any."""
    if not config.teams.enabled:
        yield None
        return
    async with open_team_files(config.db.path) as files:
        yield files


# The errors of `open_service`, each with one line for the operator.
CANNOT_OPEN = (ConfigError, SandboxUnavailable, StoreError)


@asynccontextmanager
async def open_service(
    loaded: LoadedConfig, *, agents: Sequence[Any] = (), tools: Sequence[Any] = ()
) -> AsyncIterator[Service]:
    """Open store and engine, load every script.

    `agents` and `tools` are the objects of a program that embeds the engine (`agents.code.authoring`).
    Raises StoreError (the store is unusable), SandboxUnavailable (a required layer is missing) and ConfigError (the
    configuration needs more than this version can do, or one of those objects is unusable).
    """
    config = loaded.config
    configured, language = Health(config), config.retrieval.language
    began_at = time.time()

    def access(tenant: str) -> SourceAccess:  # also when a store is opened again: connectors are read at the start
        return SourceAccess(config.connectors.access(tenant), began_at)

    require_room(config)  # before the stores, which start threads and would fail with a less clear error
    async with (
        open_configured(config) as control,
        open_embedders(config) as made,
        open_store(
            config.db.path, create=True, configured=configured, access=access(DEFAULT_TENANT.id), language=language,
            every=config.connectors.every(), embedders=made, settings=settings(config),
        ) as store,
        open_stores(
            {DEFAULT_TENANT.id: store}, partial(store_path, config.db.path), partial(Health, config), access,
            language, config.connectors.every, made, settings(config),
        ) as stores,
        open_kv(kv_path(config.db.path)) as kv,
        _team_files(config) as files,
        open_families(
            Host(
                stores.store_of, config.retrieval.final_limit, os.environ, tuple(_private_files(loaded)), kv,
                partial(bind_quotas, defaults=config.tenants.quota, workers=1), config.retrieval.default_mode,
            )
        ) as functions,
    ):  # fmt: skip
        registry = Registry()
        async with (
            open_engine(
                config, (*functions, *calls.functions(registry), *schema_call.functions(), *family.functions())
            ) as engine,
            open_models(config, Vaults(control)) as models,
            trio.open_nursery() as nursery,
        ):
            engine.secrets = Vaults(control)
            if config.tenants.enabled:  # without tenants no control store is created, least of all by a script
                engine.tell_denied(lambda run, call: control.audit.note_denied(run.tenant.id, run.label, call))
                engine.tell_tools(_Audited(control.audit))
            retrieval = config.retrieval
            builtin = builtin_tools(
                stores.store_of, charge=engine.charge, answering=engine.answering,
                default_limit=retrieval.final_limit, default_mode=retrieval.default_mode,
            )  # fmt: skip
            teams = None
            if files is not None:
                personas = Personas(registry, lambda tenant: bool(models.of(tenant)))
                teams = Teams(files, config.teams, personas, engine.charge)
            given = Given(builtin if teams is None else (*builtin, *team_tools(teams)), agents, tools)
            means = Means(models, Servers(config, engine.secrets), tuple(_private_files(loaded)))
            service = Service(loaded, engine, store, stores, registry, given, control, kv, means, teams)
            if teams is not None:
                teams.room = service.require_room
                teams.draining = lambda: engine.draining
                if config.tenants.enabled:
                    teams.audit = lambda who, action, team: control.audit.note_team(who.id, who.key, action, team)
                service.running = _turns_of(service, teams)
            await service.load_again(loaded)
            if config.tenants.enabled and (lost := await control.tenants.lost()) is not None:
                log.warning(lost)
                service.warnings += (lost,)
            nursery.start_soon(service.usage.keep)
            if made is not None:
                nursery.start_soon(keep_embedded, config, control, made, engine)
            yield service
            nursery.cancel_scope.cancel()

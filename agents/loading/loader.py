"""From files to the registry: loads every entry by its kind, and reports each that does not load.

Python code has three origins; of two objects with one name the first in this order wins: objects of the program that
embeds the engine, entries of the configuration, entry points of installed packages.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog
import trio

from agents import kinds
from agents import tools as tool_kinds
from agents.agent import Agent
from agents.code import python
from agents.code.entries import Loading, Means, NotLoaded, Place, tenants_of
from agents.code.kind import Kind
from agents.kinds.chatmd import ChatmdAgent
from agents.kinds.python import PythonAgent
from agents.loading.folder import documents_of
from agents.package import Root
from agents.registry import Registry
from agents.shapes.shape import WrongShape
from agents.tool import Tool
from agents.tools.agent import AgentTool
from agents.tools.builtin import NAMES as BUILTIN_NAMES
from agents.tools.python import PythonTool
from engine.config import ChatmdEntry, Config, ConfigError, Entry, PythonEntry
from engine.config.signatures import Files
from engine.engine import Engine
from engine.names import valid_name
from engine.tenant import DEFAULT_TENANT
from sandbox.wire.outcome import Outcome

log = structlog.get_logger("agents.loader")


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """An entry that did not load because of `outcome`. `path` is as configured, for the operator; `line` if known.

    `kept` is true if the last good version stays in use. `tenants` are those that the entry is for.
    """

    kind: str
    name: str
    path: Path | None
    line: int | None
    outcome: Outcome
    message: str
    kept: bool = False
    tenants: tuple[str, ...] = (DEFAULT_TENANT.id,)


@dataclass(slots=True)
class Loaded:
    """The result of loading: failures, warnings for the operator, and the files that scripts require."""

    failures: list[LoadFailure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    required: Files = field(default_factory=dict)


async def load(
    config: Config,
    engine: Engine,
    means: Means,
    registry: Registry,
    *,
    builtins: Iterable[Tool] = (),
    agents: Sequence[Any] = (),
    tools: Sequence[Any] = (),
) -> Loaded:
    """Load all entries of the configuration and of installed packages, in parallel, into the registry.

    An unchanged entry keeps its object; one that no longer loads keeps its last good version. `builtins` are tools for
    every tenant; `agents` and `tools` are objects of the embedding program (`agents.code.authoring`), for the default
    tenant. Raises ConfigError if one of these objects cannot be used; a bad script raises nothing.
    """
    fresh = Registry(engine.work_for)
    for builtin in builtins:
        fresh.add_tool(builtin, ("*",))
    result = Loaded()
    loading = Loading(
        engine,
        means,
        registry,
        fresh,
        folder=config.root,
        describing=trio.CapacityLimiter(max(2, config.sandbox.workers or 2)),
        importing=trio.CapacityLimiter(1),
        reading=trio.CapacityLimiter(2),
        warnings=result.warnings,
        required=result.required,
    )
    one_pass = _Pass(loading, fresh, result)
    one_pass.given("agent", agents)
    one_pass.given("tool", tools)
    entries = [*config.agents.in_order(), *await one_pass.in_folder(config.agents.chatmd.dir)]
    configured_agents = _Section("agent", entries, kinds.found(), loading.agent_before)
    configured_tools = _Section(
        "tool", config.tools.in_order(), tool_kinds.found(), loading.tool_before, BUILTIN_NAMES, loading.note_envelope
    )
    async with trio.open_nursery() as nursery:
        one_pass.load_all(configured_agents, nursery)
        one_pass.load_all(configured_tools, nursery)
    for _, entry, tool in configured_tools.made():
        fresh.add_tool(tool, tenants_of(entry))
    for place, entry, agent in configured_agents.made():
        one_pass.register_agent(place, entry, agent)
    await one_pass.installed("agent", configured_agents.by_name())
    await one_pass.installed("tool", configured_tools.by_name())
    result.failures.sort(key=lambda failure: (failure.kind, failure.name))
    for failure in result.failures:
        log.error("script did not load", kind=failure.kind, name=failure.name, outcome=failure.outcome.value,
                  path=str(failure.path), line=failure.line, reason=failure.message, kept=failure.kept)  # fmt: skip
    registry.replace(fresh)
    for place, entry, agent in configured_agents.made():
        if isinstance(agent, ChatmdAgent):  # now that all tools are there
            result.warnings += [
                f"{place.key}: tool-unavailable: {each.name[:128]}, for the tenant '{tenant}': {each.reason}"
                for tenant in tenants_of(entry)
                for each in agent.missing(tenant)[:_MISSING_SHOWN]
            ]
    return result


T = TypeVar("T", Agent, Tool)
# How many tools that are not there are told of one document and tenant.
_MISSING_SHOWN = 16


@dataclass(slots=True)
class _Section(Generic[T]):
    """`[agents]` or `[tools]`: its entries in the order of the file, and the object made from each, by position.

    `before` returns the object of an entry's last load. No entry may have a name in `reserved`; `note` adds warnings.
    """

    root: Root
    entries: Sequence[tuple[str, str, Entry]]
    kinds: Mapping[str, Kind[Any, T]]
    before: Callable[[Place, Entry], T | None]
    reserved: frozenset[str] = frozenset()
    note: Callable[[Place, T], None] | None = None
    loaded: dict[int, T] = field(default_factory=dict)

    def at(self, position: int) -> tuple[Place, Entry]:
        table, name, entry = self.entries[position]
        return Place(self.root, table, name), entry

    def by_name(self) -> dict[str, Entry]:
        return {name: entry for _, name, entry in self.entries}

    def made(self) -> Iterator[tuple[Place, Entry, T]]:
        """The objects that were made, in the order of the file."""
        for position in sorted(self.loaded):
            place, entry = self.at(position)
            yield place, entry, self.loaded[position]


@dataclass(slots=True)
class _Pass:
    """One pass: `fresh` is the registry that will replace the live one.

    `of_the_program` are the names of the embedding program's objects.
    """

    loading: Loading
    fresh: Registry
    loaded: Loaded
    of_the_program: set[tuple[str, str]] = field(default_factory=set)

    def firsts(self, section: _Section[T]) -> Iterator[int]:
        """The positions of the entries; of two with one name only the first in the file."""
        seen: set[str] = set()
        for position in range(len(section.entries)):
            place, entry = section.at(position)
            if place.name in seen or (place.root, place.name) in self.of_the_program:
                where = "in the configuration" if place.name in seen else "in the program that runs the engine"
                with self.reported(place.label, place.name, entry):
                    raise NotLoaded(f"another {place.root} named '{place.name}' comes first {where}")
            else:
                seen.add(place.name)
                yield position

    def load_all(self, section: _Section[T], nursery: trio.Nursery) -> None:
        """Start loading every entry of a section that is the first of its name."""
        for position in self.firsts(section):
            nursery.start_soon(self.load, section, position)

    async def load(self, section: _Section[T], position: int) -> None:
        """Make the object of one entry; if that fails, keep the object of its last load."""
        place, entry = section.at(position)
        with self.reported(place.label, place.name, entry):
            if place.name in section.reserved:
                raise NotLoaded(f"'{place.name}' is the name of a builtin tool")
            kind = section.kinds.get(place.table)
            if kind is None:
                raise NotLoaded(f"{place.root}s of kind '{place.table}' are not supported by this version")
            section.loaded[position] = await kind.load(place, entry, self.loading)
            if section.note is not None:
                section.note(place, section.loaded[position])
        if position not in section.loaded and (good := section.before(place, entry)) is not None:
            section.loaded[position] = good
            self.keep()

    def register_agent(self, place: Place, entry: Entry, agent: Agent) -> None:
        """Add the agent for the entry's tenants; as a tool too, with `expose`. Called after all tools are added."""
        tenants = tenants_of(entry)
        with self.reported(place.label, place.name, entry):
            if "tool" in entry.expose:
                if any(self.fresh.tool(tenant, place.name) for tenant in tenants):
                    raise NotLoaded(f"expose makes a tool of the agent, and there is another tool named '{place.name}'")
                kind = kinds.found().get(place.table)  # None: a kind of another version, whose last agent is kept
                tool = self.tool_of(kind, place, entry, agent)
                self.loading.note_envelope(place, tool)
                self.fresh.add_tool(tool, tenants)
            self.fresh.add_agent(agent, tenants)

    def tool_of(self, kind: Kind[Any, Agent] | None, place: Place, entry: Entry, agent: Agent) -> Tool:
        """The tool of an agent that is offered as one. Raises NotLoaded."""
        if kind is not None and kind.tool is not None:
            return kind.tool(place, entry, agent, self.loading)
        return AgentTool.from_agent(agent, harmless=kind is not None and kind.harmless(entry, agent))

    def keep(self) -> None:
        """Mark the failure just reported as one whose last good version stays in use."""
        self.loaded.failures[-1] = replace(self.loaded.failures[-1], kept=True)

    def given(self, root: Root, objects: Sequence[Any]) -> None:
        """Add the embedding program's objects. Raises ConfigError for one that cannot be used, naming it."""
        for position, thing in enumerate(objects):
            kind = thing if isinstance(thing, type) else type(thing)
            entry = PythonEntry(path=f"{kind.__module__}:{kind.__qualname__}")
            try:
                target = self.loading.made_before(root, None, thing, entry) or python.make(thing, root, entry)
                name = python.attribute(target, entry.path, "name")
                if not isinstance(name, str) or not valid_name(name):
                    raise NotLoaded("its `name` must be 1 to 64 letters, digits, '_', '.' or '-'")
                if (root, name) in self.of_the_program:
                    raise NotLoaded(f"another {root} before it is named '{name}'")
                self.of_the_program.add((root, name))
                self.offer(name, root, target, entry)
            except (python.Unusable, WrongShape, NotLoaded) as error:
                raise ConfigError(f"{root}s[{position}] ({entry.path}): {error}") from None

    async def in_folder(self, folder: Path | None) -> list[tuple[str, str, Entry]]:
        """The entries of the documents in `[agents.chatmd] dir`."""
        if folder is None:
            return []
        found = await trio.to_thread.run_sync(documents_of, folder, os.environ)
        self.loading.required |= found.read
        self.loading.warnings += found.warnings
        entries = list(found.entries)
        live = {agent.entry.path: agent for agent in self.loading.live.every_agent() if isinstance(agent, ChatmdAgent)}
        for failure in found.failures:
            good = live.get(failure.document)
            entry = ChatmdEntry(path=failure.path, tenants=None if good is None else good.entry.tenants)
            with self.reported("agent.chatmd", failure.name, entry):
                raise NotLoaded(failure.message)
            if good is not None and failure.keys_only:
                entries.append((failure.name, good.entry))
                self.keep()
        return [("chatmd", name, entry) for name, entry in entries]

    async def installed(self, root: Root, configured: Mapping[str, Entry]) -> None:
        """Add objects of installed packages whose names are free in the program and the configuration."""
        seen: set[str] = set()
        for point in python.installed(root):
            name, package = point.name, point.dist.name if point.dist is not None else "unknown"
            entry = PythonEntry(path=point.value.partition("[")[0].strip())  # extras are in brackets
            chosen = configured.get(name)
            if chosen is not None or (root, name) in self.of_the_program:
                if not isinstance(chosen, PythonEntry) or chosen.path != entry.path:
                    self.loaded.warnings.append(
                        f"the {root} '{name}' of the installed package {package} ({entry.path}) is not used: "
                        f"{'the program' if chosen is None else 'the configuration'} has one of that name"
                    )
                continue
            with self.reported(f"{root}.python", name, entry, f"the installed package {package}: "):
                if not valid_name(name):
                    raise NotLoaded("names are 1 to 64 letters, digits, '_', '.' or '-'")
                if name in seen:
                    raise NotLoaded(f"another installed package offers the {root} '{name}', too")
                seen.add(name)
                async with self.loading.importing:
                    found = await python.find(entry.path)
                target = self.loading.made_before(root, name, found, entry) or python.make(found, root, entry)
                self.offer(name, root, target, entry)

    def offer(self, name: str, root: Root, target: Any, entry: PythonEntry) -> None:
        """Add an author's object to the registry, for the default tenant. Raises NotLoaded, Unusable and WrongShape."""
        code = self.loading.code_of(name, root, target, entry)
        if root == "agent":
            self.fresh.add_agent(PythonAgent.from_code(code), (DEFAULT_TENANT.id,))
            return
        if name in BUILTIN_NAMES:
            raise NotLoaded(f"'{name}' is the name of a builtin tool")
        tool = PythonTool.from_code(code)
        self.loading.note_envelope(Place("tool", "python", name), tool)
        self.fresh.add_tool(tool, (DEFAULT_TENANT.id,))

    @contextmanager
    def reported(self, label: str, name: str, entry: Entry, whose: str = "") -> Iterator[None]:
        """Turn an exception from one entry into its LoadFailure."""
        try:
            yield
        except (WrongShape, python.Unusable) as wrong:
            self._fail(label, name, entry, NotLoaded(f"{whose}{wrong}"))
        except NotLoaded as failed:
            self._fail(label, name, entry, NotLoaded(f"{whose}{failed.message}", failed.outcome, failed.line))

    def _fail(self, label: str, name: str, entry: Entry, failed: NotLoaded) -> None:
        path = None if entry.path is None else Path(entry.path)
        self.loaded.failures.append(
            LoadFailure(
                label, name, path, failed.line, failed.outcome, failed.message,
                tenants=tenants_of(entry),
            )
        )  # fmt: skip

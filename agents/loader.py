"""Files to registry: reads every script, has it described in a worker, and reports every one that does not load.

Python code comes here from three sides, and of two with one name the first wins: objects of the program that embeds the
engine, entries of the configuration, entry points of installed packages.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import structlog
import trio

from agents import python
from agents.agent import Agent
from agents.describing import Undescribed, describe
from agents.kinds.lua import LuaAgent
from agents.kinds.python import PythonAgent
from agents.kinds.toml import TomlAgent
from agents.registry import Registry
from agents.script import LuaScript
from agents.shape import WrongShape, agent_declaration, tool_declaration
from agents.tool import Tool
from agents.tools.agent import AgentTool
from agents.tools.builtin import NAMES as BUILTIN_NAMES
from agents.tools.lua import LuaTool
from agents.tools.python import PythonTool
from engine.config import AgentKind, Config, ConfigError, InlineAgent, PythonEntry, ScriptEntry, ToolKind, valid_name
from engine.engine import Engine
from engine.redaction import Redactor
from engine.run import Script
from engine.tenant import DEFAULT_TENANT
from sandbox.outcome import Outcome

log = structlog.get_logger("agents.loader")


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """A script that is absent because of `outcome`. `path` is as configured, for the operator; `line` if known.

    `kept` says that it loaded before: the last good version is still what is called. `tenants` would have it.
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
    """What came of loading: what failed, and what an operator should know."""

    failures: list[LoadFailure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class _Failed(Exception):
    def __init__(self, message: str, outcome: Outcome = Outcome.SCRIPT_ERROR, line: int | None = None) -> None:
        super().__init__(message)
        self.message, self.outcome, self.line = message, outcome, line


async def load(
    config: Config,
    engine: Engine,
    registry: Registry,
    *,
    builtins: Iterable[Tool] = (),
    agents: Sequence[Any] = (),
    tools: Sequence[Any] = (),
) -> Loaded:
    """Load what the configuration and installed packages name, in parallel, and make it what the registry holds.

    What the registry held before, unchanged, is taken over as it is; what does not load any more stays as it was.
    `builtins` are tools that everybody has; `agents` and `tools` are objects of the program's own (`agents.authoring`),
    offered to the default tenant. Raises ConfigError for one of those that cannot be used; a bad script raises nothing.
    """
    fresh = Registry(engine.work_for)
    for builtin in builtins:
        fresh.add_tool(builtin, ("*",))
    loading = _Loading(
        engine,
        registry,
        fresh,
        Loaded(),
        folder=config.root,
        describing=trio.CapacityLimiter(max(2, config.sandbox.workers or 2)),
        importing=trio.CapacityLimiter(1),
    )
    loading.given("agent", agents)
    loading.given("tool", tools)
    loaded_agents: dict[int, Agent] = {}
    loaded_tools: dict[int, Tool] = {}
    async with trio.open_nursery() as nursery:
        for position, (kind, name, entry) in _firsts(config.agents.in_order(), "agent", loading):
            nursery.start_soon(loading.agent, position, kind, name, entry, loaded_agents)
        for position, (tool_kind, name, script) in _firsts(config.tools.in_order(), "tool", loading):
            nursery.start_soon(loading.tool, position, tool_kind, name, script, loaded_tools)
    for position, (_, _, script) in enumerate(config.tools.in_order()):
        if position in loaded_tools:
            fresh.add_tool(loaded_tools[position], script.tenants or (DEFAULT_TENANT.id,))
    for position, (kind, name, entry) in enumerate(config.agents.in_order()):
        if position in loaded_agents:
            loading.register_agent(kind, name, entry, loaded_agents[position])
    await loading.installed("agent", {name: entry for _, name, entry in config.agents.in_order()})
    await loading.installed("tool", {name: entry for _, name, entry in config.tools.in_order()})
    loading.loaded.failures.sort(key=lambda failure: (failure.kind, failure.name))
    for failure in loading.loaded.failures:
        log.error("script did not load", kind=failure.kind, name=failure.name, outcome=failure.outcome.value,
                  path=str(failure.path), line=failure.line, reason=failure.message, kept=failure.kept)  # fmt: skip
    registry.replace(fresh)
    return loading.loaded


Entry = InlineAgent | ScriptEntry | PythonEntry
E = TypeVar("E", bound=Entry)
K = TypeVar("K", bound=str)


def _firsts(
    entries: Sequence[tuple[K, str, E]], what: str, loading: "_Loading"
) -> Iterator[tuple[int, tuple[K, str, E]]]:
    """The entries with their positions, but of two with one name only the first in the file."""
    seen: set[str] = set()
    for position, (kind, name, entry) in enumerate(entries):
        if name in seen or (what, name) in loading.of_the_program:
            where = "in the configuration" if name in seen else "in the program that runs the engine"
            with loading.reported(f"{what}.{kind}", name, entry):
                raise _Failed(f"another {what} named '{name}' comes first {where}")
        else:
            seen.add(name)
            yield position, (kind, name, entry)


def _label(kind: AgentKind) -> str:
    return "agent" if kind == "inline" else f"agent.{kind}"


def _harmless(entry: Entry, agent: Agent) -> bool:
    """Whether making the agent's prompt can change nothing: its script reaches no host, and no tool that might."""
    if isinstance(entry, InlineAgent):
        return True
    return isinstance(entry, ScriptEntry) and not entry.allow_hosts and BUILTIN_NAMES.issuperset(agent.info.tools)


@dataclass(slots=True)
class _Loading:
    """One pass over the configuration: at most `describing` scripts and `importing` modules at once.

    `live` is the registry that is called meanwhile, `fresh` the one that will take its place. `folder` is where modules
    are looked for that are not installed; `of_the_program` the names that its objects have.
    """

    engine: Engine
    live: Registry
    fresh: Registry
    loaded: Loaded
    folder: Path
    describing: trio.CapacityLimiter
    importing: trio.CapacityLimiter
    of_the_program: set[tuple[str, str]] = field(default_factory=set)

    async def agent(self, position: int, kind: AgentKind, name: str, entry: Entry, into: dict[int, Agent]) -> None:
        with self.reported(_label(kind), name, entry):
            if isinstance(entry, InlineAgent):
                into[position] = TomlAgent.of(name, entry)
            elif isinstance(entry, PythonEntry):
                into[position] = PythonAgent.of(await self.found(f"agents.python.{name}", name, entry, "agent"))
            elif kind == "script":
                script = await self.read(f"agents.script.{name}", name, entry, "agent")
                before = self.agent_before(name, entry)
                if isinstance(before, LuaAgent) and before.script.same(script):
                    into[position] = before
                else:
                    said = agent_declaration(await self.described(script))
                    into[position] = LuaAgent.of(script, said)
                    self.note_name(f"agents.script.{name}", name, said.name)
            else:
                raise _Failed(f"agents of kind '{kind}' are not supported by this version")
        if position not in into and (good := self.agent_before(name, entry)) is not None:
            into[position] = good
            self.keep()

    def register_agent(self, kind: AgentKind, name: str, entry: Entry, agent: Agent) -> None:
        """Let the entry's tenants have the agent; also as a tool, if its key `expose` says so. Tools come before."""
        tenants = entry.tenants or (DEFAULT_TENANT.id,)
        with self.reported(_label(kind), name, entry):
            if "tool" in entry.expose:
                if any(self.fresh.tool(tenant, name) for tenant in tenants):
                    raise _Failed(f"expose makes a tool of the agent, and there is another tool named '{name}'")
                tool = AgentTool.of(agent, harmless=_harmless(entry, agent))
                self.note_envelope(f"agents.{kind}.{name}", tool)
                self.fresh.add_tool(tool, tenants)
            self.fresh.add_agent(agent, tenants)

    async def tool(
        self, position: int, kind: ToolKind, name: str, entry: ScriptEntry | PythonEntry, into: dict[int, Tool]
    ) -> None:
        key = f"tools.{kind}.{name}"
        with self.reported(f"tool.{kind}", name, entry):
            if name in BUILTIN_NAMES:
                raise _Failed(f"'{name}' is the name of a builtin tool")
            if isinstance(entry, PythonEntry):
                into[position] = PythonTool.of(await self.found(key, name, entry, "tool"))
            else:
                read = await self.read(key, name, entry, "tool")
                before = self.tool_before(name, entry)
                if isinstance(before, LuaTool) and before.script.same(read):
                    into[position] = before
                else:
                    said = tool_declaration(await self.described(read))
                    into[position] = LuaTool.of(read, said)
                    self.note_name(key, name, said.name)
            self.note_envelope(key, into[position])
        if position not in into and (good := self.tool_before(name, entry)) is not None:
            into[position] = good
            self.keep()

    def agent_before(self, name: str, entry: Entry) -> Agent | None:
        """The agent of that name as it is called now, by the entry's first tenant."""
        return self.live.agent((entry.tenants or (DEFAULT_TENANT.id,))[0], name)

    def tool_before(self, name: str, entry: ScriptEntry | PythonEntry) -> Tool | None:
        """The tool of that name as it is called now, by the entry's first tenant."""
        offered = self.live.tool((entry.tenants or (DEFAULT_TENANT.id,))[0], name)
        return None if offered is None or offered.tool.info.builtin else offered.tool

    def keep(self) -> None:
        """The failure that was just reported has not taken anything away."""
        self.loaded.failures[-1] = replace(self.loaded.failures[-1], kept=True)

    def given(self, root: python.Root, objects: Sequence[Any]) -> None:
        """Offer the program's own objects. Raises ConfigError for one that cannot be used, saying which."""
        for position, thing in enumerate(objects):
            kind = thing if isinstance(thing, type) else type(thing)
            entry = PythonEntry(path=f"{kind.__module__}:{kind.__qualname__}")
            try:
                target = self.made_before(root, None, thing, entry) or python.make(thing, root, entry)
                name = python.attribute(target, entry.path, "name")
                if not isinstance(name, str) or not valid_name(name):
                    raise _Failed("its `name` must be 1 to 64 letters, digits, '_', '.' or '-'")
                if (root, name) in self.of_the_program:
                    raise _Failed(f"another {root} before it is named '{name}'")
                self.of_the_program.add((root, name))
                self.offer(name, root, target, entry)
            except (python.Unusable, WrongShape, _Failed) as error:
                raise ConfigError(f"{root}s[{position}] ({entry.path}): {error}") from None

    def made_before(self, root: python.Root, name: str | None, thing: Any, entry: PythonEntry) -> Any:
        """The object that was made of this one when it was loaded before: what it holds must outlast a reload.

        `name` is what it is called; None is for objects that say so themselves, when they are made.
        """
        tenants = entry.tenants or (DEFAULT_TENANT.id,)
        offered = self.live.agents(tenants[0]) if root == "agent" else self.live.tools(tenants[0])
        for each in offered:
            if name not in (None, each.info.name):
                continue
            if isinstance(each, PythonAgent | PythonTool) and each.code.entry == entry:
                target = each.code.target
                if target is thing or type(target) is thing:
                    return target
        return None

    async def installed(self, root: python.Root, configured: Mapping[str, Entry]) -> None:
        """Offer what installed packages have, where neither program nor configuration has something of that name."""
        seen: set[str] = set()
        for point in python.installed(root):
            name, package = point.name, point.dist.name if point.dist is not None else "unknown"
            entry = PythonEntry(path=point.value.partition("[")[0].strip())  # extras are said in brackets
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
                    raise _Failed("names are 1 to 64 letters, digits, '_', '.' or '-'")
                if name in seen:
                    raise _Failed(f"another installed package offers the {root} '{name}', too")
                seen.add(name)
                async with self.importing:
                    found = await python.find(entry.path)
                target = self.made_before(root, name, found, entry) or python.make(found, root, entry)
                self.offer(name, root, target, entry)

    def offer(self, name: str, root: python.Root, target: Any, entry: PythonEntry) -> None:
        """Add an author's object to the registry, for the default tenant. Raises _Failed, Unusable and WrongShape."""
        code = python.PythonCode.of(name, root, target, entry, self.engine, self.live)
        if root == "agent":
            self.fresh.add_agent(PythonAgent.of(code), (DEFAULT_TENANT.id,))
            return
        if name in BUILTIN_NAMES:
            raise _Failed(f"'{name}' is the name of a builtin tool")
        tool = PythonTool.of(code)
        self.note_envelope(f"tools.python.{name}", tool)
        self.fresh.add_tool(tool, (DEFAULT_TENANT.id,))

    @contextmanager
    def reported(self, label: str, name: str, entry: Entry, whose: str = "") -> Iterator[None]:
        """Turn what goes wrong with one entry into its LoadFailure."""
        try:
            yield
        except (WrongShape, python.Unusable) as wrong:
            self._fail(label, name, entry, _Failed(f"{whose}{wrong}"))
        except _Failed as failed:
            self._fail(label, name, entry, _Failed(f"{whose}{failed.message}", failed.outcome, failed.line))

    def _fail(self, label: str, name: str, entry: Entry, failed: _Failed) -> None:
        path = None if isinstance(entry, InlineAgent) else Path(entry.path)
        self.loaded.failures.append(
            LoadFailure(
                label, name, path, failed.line, failed.outcome, failed.message,
                tenants=entry.tenants or (DEFAULT_TENANT.id,),
            )
        )  # fmt: skip

    async def found(self, key: str, name: str, entry: PythonEntry, root: python.Root) -> python.PythonCode:
        """The object that an entry's `path` names. Importing it runs its code, here. Raises _Failed and Unusable."""
        if entry.unset is not None:
            raise _Failed(entry.unset)
        self.note_lowered(key, entry)
        async with self.importing:
            found = await python.find(entry.path, self.folder)
        target = self.made_before(root, name, found, entry) or python.make(found, root, entry)
        said = python.attribute(target, entry.path, "name")
        self.note_name(key, name, said if isinstance(said, str) else None)
        return python.PythonCode.of(name, root, target, entry, self.engine, self.live)

    async def read(self, key: str, name: str, entry: ScriptEntry, root: Literal["agent", "tool"]) -> LuaScript:
        """The script as its file is now. Raises _Failed."""
        if entry.unset is not None:
            raise _Failed(entry.unset)
        self.note_lowered(key, entry)
        script = await _read(entry, self.engine)
        # What the operator put here may use every secret of whom it runs for: each goes to its own host alone.
        return LuaScript(name, root, script, entry, self.engine, Redactor(entry.from_environment), secrets=None)

    async def described(self, script: LuaScript) -> object:
        """What a script says of itself, as a worker finds it: it is never executed here. Raises _Failed."""
        async with self.describing:
            try:
                return await describe(script.name, script.script, script.root, self.engine, DEFAULT_TENANT)
            except Undescribed as undescribed:
                raise _Failed(undescribed.message, undescribed.outcome, undescribed.line) from None

    def note_name(self, key: str, name: str, said: str | None) -> None:
        if said is not None and said != name:
            self.loaded.warnings.append(
                f"{key}: the script calls itself {said!r}; the key in the configuration is its name"
            )

    def note_envelope(self, key: str, tool: Tool) -> None:
        if "arguments" in tool.info.parameters["properties"]:
            self.loaded.warnings.append(
                f"{key}: a parameter is called 'arguments'; a request that gives it alone is taken for the envelope"
            )

    def note_lowered(self, key: str, entry: ScriptEntry | PythonEntry) -> None:
        bound = self.engine.limits_for(entry.limits, DEFAULT_TENANT)
        for limit, asked in entry.limits.items():
            if bound[limit] < asked:
                self.loaded.warnings.append(
                    f"{key}: {limit} = {asked:g} is above the ceiling and was lowered to {bound[limit]:g} "
                    "([limits.max])"
                )


async def _read(entry: ScriptEntry, engine: Engine) -> Script:
    bound = int(engine.limits_for(entry.limits, DEFAULT_TENANT)["source_bytes"])
    try:
        source = await trio.to_thread.run_sync(_read_bounded, entry.path, bound + 1)
    except OSError as error:
        raise _Failed(f"cannot read the script: {error.strerror}") from None
    if len(source) > bound:
        raise _Failed(f"the script is larger than {bound} bytes (limits.source_bytes)")
    if source.startswith(b"\x1bLua"):
        raise _Failed("the file is Lua bytecode; only source is accepted")
    return Script.of(entry.path.name, source)


def _read_bounded(path: Path, size: int) -> bytes:
    if not path.is_file():  # a FIFO would block for ever
        raise FileNotFoundError(2, "no such file" if not path.exists() else "not a regular file")
    with path.open("rb") as file:
        return file.read(size)

"""Files to registry: reads every script, has it described in a worker, and reports every one that does not load."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import structlog
import trio

from agents.agent import Agent
from agents.kinds.lua import LuaAgent
from agents.kinds.toml import TomlAgent
from agents.registry import Registry
from agents.script import LuaScript
from agents.shape import WrongShape, agent_declaration, tool_declaration
from agents.tool import Tool
from agents.tools.builtin import NAMES as BUILTIN_NAMES
from agents.tools.lua import LuaTool
from engine.config import AgentKind, Config, InlineAgent, ScriptEntry, ToolKind
from engine.engine import Engine
from engine.errors import Problem
from engine.run import RunRequest, Script
from engine.tenant import DEFAULT_TENANT
from sandbox.outcome import Outcome

log = structlog.get_logger("agents.loader")

# A script's top level declares; one that takes longer computes. (CONTRACT section 2.)
DESCRIBE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """A script that is absent because of `outcome`. `path` is as configured, for the operator; `line` if known."""

    kind: str
    name: str
    path: Path | None
    line: int | None
    outcome: Outcome
    message: str


@dataclass(slots=True)
class Loaded:
    """What came of loading: what can be called, what failed, and what an operator should know."""

    registry: Registry
    failures: list[LoadFailure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class _Failed(Exception):
    def __init__(self, message: str, outcome: Outcome = Outcome.SCRIPT_ERROR, line: int | None = None) -> None:
        super().__init__(message)
        self.message, self.outcome, self.line = message, outcome, line


async def load(config: Config, engine: Engine, registry: Registry) -> Loaded:
    """Load everything the configuration names into the registry, in parallel. Never raises for a bad script."""
    loading = _Loading(engine, Loaded(registry), trio.CapacityLimiter(max(2, config.sandbox.workers or 2)))
    agents: dict[int, Agent] = {}
    tools: dict[int, Tool] = {}
    async with trio.open_nursery() as nursery:
        for position, (kind, name, entry) in _firsts(config.agents.in_order(), "agent", loading):
            nursery.start_soon(loading.agent, position, kind, name, entry, agents)
        for position, (tool_kind, name, script) in _firsts(config.tools.in_order(), "tool", loading):
            nursery.start_soon(loading.tool, position, tool_kind, name, script, tools)
    for position, (_, _, entry) in enumerate(config.agents.in_order()):
        if position in agents:
            registry.add_agent(agents[position], entry.tenants or (DEFAULT_TENANT.id,))
    for position, (_, _, script) in enumerate(config.tools.in_order()):
        if position in tools:
            registry.add_tool(tools[position], script.tenants or (DEFAULT_TENANT.id,))
    loading.loaded.failures.sort(key=lambda failure: (failure.kind, failure.name))
    for failure in loading.loaded.failures:
        log.error("script did not load", kind=failure.kind, name=failure.name, outcome=failure.outcome.value,
                  path=str(failure.path), line=failure.line, reason=failure.message)  # fmt: skip
    return loading.loaded


E = TypeVar("E", bound=InlineAgent | ScriptEntry)
K = TypeVar("K", bound=str)


def _firsts(
    entries: Sequence[tuple[K, str, E]], what: str, loading: "_Loading"
) -> Iterator[tuple[int, tuple[K, str, E]]]:
    """The entries with their positions, but of two with one name only the first in the file."""
    seen: set[str] = set()
    for position, (kind, name, entry) in enumerate(entries):
        if name in seen:
            with loading.reported(f"{what}.{kind}", name, entry):
                raise _Failed(f"another {what} named '{name}' comes first in the configuration")
        else:
            seen.add(name)
            yield position, (kind, name, entry)


@dataclass(slots=True)
class _Loading:
    """One pass over the configuration. At most `describing` scripts are described at once."""

    engine: Engine
    loaded: Loaded
    describing: trio.CapacityLimiter

    async def agent(
        self, position: int, kind: AgentKind, name: str, entry: InlineAgent | ScriptEntry, into: dict[int, Agent]
    ) -> None:
        with self.reported("agent" if kind == "inline" else f"agent.{kind}", name, entry):
            if isinstance(entry, InlineAgent):
                into[position] = TomlAgent.of(name, entry)
            elif kind == "script":
                script, value = await self.described(f"agents.script.{name}", name, entry, "agent")
                said = agent_declaration(value)
                into[position] = LuaAgent.of(script, said)
                self.note_name(f"agents.script.{name}", name, said.name)
            else:
                raise _Failed(f"agents of kind '{kind}' are not supported by this version")

    async def tool(self, position: int, kind: ToolKind, name: str, entry: ScriptEntry, into: dict[int, Tool]) -> None:
        with self.reported(f"tool.{kind}", name, entry):
            if name in BUILTIN_NAMES:
                raise _Failed(f"'{name}' is the name of a builtin tool")
            if kind != "script":
                raise _Failed(f"tools of kind '{kind}' are not supported by this version")
            script, value = await self.described(f"tools.script.{name}", name, entry, "tool")
            said = tool_declaration(value)
            into[position] = LuaTool.of(script, said)
            self.note_name(f"tools.script.{name}", name, said.name)
            if "arguments" in into[position].info.parameters["properties"]:
                self.loaded.warnings.append(
                    f"tools.script.{name}: a parameter is called 'arguments'; a request that gives it alone is taken "
                    "for the envelope"
                )

    @contextmanager
    def reported(self, label: str, name: str, entry: InlineAgent | ScriptEntry) -> Iterator[None]:
        """Turn what goes wrong with one entry into its LoadFailure."""
        try:
            yield
        except WrongShape as wrong:
            self._fail(label, name, entry, _Failed(str(wrong)))
        except _Failed as failed:
            self._fail(label, name, entry, failed)

    def _fail(self, label: str, name: str, entry: InlineAgent | ScriptEntry, failed: _Failed) -> None:
        path = entry.path if isinstance(entry, ScriptEntry) else None
        self.loaded.failures.append(LoadFailure(label, name, path, failed.line, failed.outcome, failed.message))

    async def described(
        self, key: str, name: str, entry: ScriptEntry, root: Literal["agent", "tool"]
    ) -> tuple[LuaScript, object]:
        """The script and what it says of itself, read in a worker: it is never executed here. Raises _Failed."""
        if entry.unset is not None:
            raise _Failed(entry.unset)
        self.note_lowered(key, entry)
        script = await _read(entry, self.engine)
        async with self.describing:
            said = await _describe(name, script, root, self.engine)
        return LuaScript(name, root, script, entry, self.engine), said

    def note_name(self, key: str, name: str, said: str | None) -> None:
        if said is not None and said != name:
            self.loaded.warnings.append(
                f"{key}: the script calls itself {said!r}; the key in the configuration is its name"
            )

    def note_lowered(self, key: str, entry: ScriptEntry) -> None:
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


async def _describe(name: str, script: Script, root: Literal["agent", "tool"], engine: Engine) -> object:
    asked = {"timeout_s": DESCRIBE_TIMEOUT_S}
    try:
        result = await engine.execute(
            RunRequest(
                tenant=DEFAULT_TENANT, name=name, script=script, root=root, method=None,
                limits=engine.limits_for(asked, DEFAULT_TENANT),
            )
        )  # fmt: skip
    except Problem as problem:  # admission refused: the engine is too small or too busy to start
        raise _Failed(problem.message, Outcome.REJECTED) from None
    if result.outcome is Outcome.OK:
        return result.value
    assert result.failure is not None
    found = re.match(rf"{re.escape(script.name)}:(\d+):", result.failure.message)
    raise _Failed(result.failure.message, result.outcome, int(found[1]) if found else None)

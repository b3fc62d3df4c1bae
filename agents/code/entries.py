"""Shared by kinds: loading the script or the Python code of a configured entry.

A script is described in a worker and never executed in this process; a module is imported here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from agents.agent import Agent
from agents.code import python
from agents.code.describing import Undescribed, describe
from agents.code.files import read_script
from agents.code.script import LuaScript
from agents.package import Root
from agents.registry import Registry
from agents.tool import Tool, envelope_warnings
from agents.toolbox.servers import Servers
from engine.config import ChatmdEntry, Entry, PythonEntry, ScriptEntry
from engine.config.signatures import Files, signature
from engine.egress.redaction import Redactor
from engine.engine import Engine
from engine.models.calling import Models
from engine.tenant import DEFAULT_TENANT
from sandbox.wire.outcome import Outcome


class NotLoaded(Exception):
    """An entry that could not be loaded. One line for the operator, and the line of the script, if known."""

    def __init__(self, message: str, outcome: Outcome = Outcome.SCRIPT_ERROR, line: int | None = None) -> None:
        super().__init__(message)
        self.message, self.outcome, self.line = message, outcome, line


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an entry in the configuration: `[agents.TABLE.NAME]` or `[tools.TABLE.NAME]`."""

    root: Root
    table: str
    name: str

    @property
    def key(self) -> str:
        """The entry's name in warnings."""
        return f"{self.root}s.{self.table}.{self.name}"

    @property
    def label(self) -> str:
        """The entry's kind in failures."""
        return "agent" if (self.root, self.table) == ("agent", "inline") else f"{self.root}.{self.table}"


def tenants_of(entry: Entry) -> tuple[str, ...]:
    """The tenants that have an entry."""
    return entry.tenants or (DEFAULT_TENANT.id,)


@dataclass(frozen=True, slots=True)
class Means:
    """What documents run with: models, MCP servers, and the engine's own files, which none of their tools reads."""

    models: Models
    servers: Servers
    private: tuple[Path, ...] = ()


@dataclass(slots=True)
class Loading:
    """One pass over all entries: at most `describing` scripts, `importing` modules and `reading`
    documents at once.

    `live` is the registry in use meanwhile, `fresh` the one that will replace it: it has all tools once agents are
    registered. `folder` is searched for modules that are not installed. `required` gets the files that scripts require.
    """

    engine: Engine
    means: Means
    live: Registry
    fresh: Registry
    folder: Path
    describing: trio.CapacityLimiter
    importing: trio.CapacityLimiter
    reading: trio.CapacityLimiter
    warnings: list[str]
    required: Files

    def agent_before(self, place: Place, entry: Entry) -> Agent | None:
        """The agent of that name in the live registry, as the entry's first tenant sees it."""
        return self.live.agent(tenants_of(entry)[0], place.name)

    def tool_before(self, place: Place, entry: Entry) -> Tool | None:
        """The tool of that name in the live registry, as the entry's first tenant sees it."""
        offered = self.live.tool(tenants_of(entry)[0], place.name)
        return None if offered is None or offered.tool.info.builtin else offered.tool

    async def unchanged(self, read: Files) -> bool:
        """Whether these files are what they were."""
        return await trio.to_thread.run_sync(lambda: all(signature(path) == was for path, was in read.items()))

    async def script(self, place: Place, entry: ScriptEntry) -> LuaScript:
        """The script, read from its file. Raises NotLoaded."""
        if entry.unset is not None:
            raise NotLoaded(entry.unset)
        self.note_lowered(place, entry)
        bound = int(self.engine.limits_for(entry.limits, DEFAULT_TENANT)["source_bytes"])
        read = await trio.to_thread.run_sync(read_script, entry.path, bound)
        self.required |= read.required
        if read.script is None:
            assert read.failure is not None
            raise NotLoaded(read.failure.message, line=read.failure.line)
        # A script of the operator's may use every secret of its tenant: each is sent only to its own hosts.
        return LuaScript(
            place.name, place.root, read.script, entry, self.engine, Redactor(entry.from_environment), secrets=None
        )

    async def described(self, script: LuaScript) -> object:
        """The declaration of a script, read in a worker. Raises NotLoaded."""
        async with self.describing:
            try:
                return await describe(script.name, script.script, script.root, self.engine, DEFAULT_TENANT)
            except Undescribed as undescribed:
                raise NotLoaded(undescribed.message, undescribed.outcome, undescribed.line) from None

    async def code(self, place: Place, entry: PythonEntry) -> python.PythonCode:
        """The object that an entry's `path` names. Its import runs code in this process. Raises NotLoaded, Unusable."""
        if entry.unset is not None:
            raise NotLoaded(entry.unset)
        self.note_lowered(place, entry)
        async with self.importing:
            found = await python.find(entry.path, self.folder)
        target = self.made_before(place.root, place.name, found, entry) or python.make(found, place.root, entry)
        said = python.attribute(target, entry.path, "name")
        self.note_name(place, said if isinstance(said, str) else None)
        return self.code_of(place.name, place.root, target, entry)

    def code_of(self, name: str, root: Root, target: Any, entry: PythonEntry) -> python.PythonCode:
        """An author's object under a name. Raises Unusable."""
        return python.PythonCode.from_target(name, root, target, entry, self.engine, self.live)

    def made_before(self, root: Root, name: str | None, thing: Any, entry: PythonEntry) -> Any:
        """The object made from this one by an earlier load, or None: its state must outlast a reload.

        `name` is its name; None for objects that have a name only once they are made.
        """
        tenant = tenants_of(entry)[0]
        live: list[Agent] | list[Tool] = self.live.agents(tenant) if root == "agent" else self.live.tools(tenant)
        for each in live:
            if name not in (None, each.info.name):
                continue
            code = getattr(each, "code", None)
            if isinstance(code, python.PythonCode) and code.entry == entry:
                target = code.target
                if target is thing or type(target) is thing:
                    return target
        return None

    def note_name(self, place: Place, said: str | None) -> None:
        if said is not None and said != place.name:
            self.warnings.append(
                f"{place.key}: the script calls itself {said!r}; the key in the configuration is its name"
            )

    def note_beyond(self, place: Place, declared: Sequence[str], allowed: Sequence[str] | None) -> None:
        """Warn of names in an entry's `tools` that the script does not declare: there is nothing that they allow."""
        self.warnings += [
            f"{place.key}.tools: {name!r} has no effect, as {place.root}.tools in the script does not list it"
            for name in dict.fromkeys(allowed or ())
            if name not in declared
        ]

    def note_envelope(self, place: Place, tool: Tool) -> None:
        self.warnings += [f"{place.key}: {warning}" for warning in envelope_warnings(tool.info)]

    def note_lowered(self, place: Place, entry: ScriptEntry | PythonEntry | ChatmdEntry) -> None:
        bound = self.engine.limits_for(entry.limits, DEFAULT_TENANT)
        for limit, asked in entry.limits.items():
            if bound[limit] < asked:
                self.warnings.append(
                    f"{place.key}: {limit} = {asked:g} is above the ceiling and was lowered to {bound[limit]:g} "
                    "([limits.max])"
                )

"""Shared by kinds: the script of a published package, and the tools that are granted to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from agents.code.entries import Means
from agents.code.script import LuaScript
from agents.package import Package
from agents.registry import Registry
from agents.shapes.shape import narrowed
from agents.tool import Tool
from engine.config import ScriptEntry
from engine.egress.redaction import NOTHING_SECRET
from engine.engine import Engine
from engine.run import Script

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Made(Generic[T]):
    """The agent or tool of a package, and warnings for its publisher. `folder` has the files that it reads.

    `tool` is the tool that an agent is offered as beside its prompt, if it is.
    """

    thing: T
    warnings: tuple[str, ...] = ()
    folder: Path | None = None
    tool: Tool | None = None


@dataclass(frozen=True, slots=True)
class Making:
    """The context in which a package of a tenant is made.

    `folder` has the files beside its script; None if there are none. `free` are the tools that need no grant.
    `compiles` is true if its schemas have been compiled before.
    """

    engine: Engine
    tenant: str
    means: Means
    registry: Registry
    folder: Path | None
    free: frozenset[str]
    compiles: bool = False

    def allowed(self, package: Package, declared: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The declared tools that may be used, and a warning for each that is left out for lack of a grant.

        The manifest's `tools` narrows the list. Every tool needs a grant except the builtin ones, which reach only the
        tenant's own documents.
        """
        wanted = narrowed(tuple(dict.fromkeys(declared)), package.tools)
        granted = self.free.union(package.grants.tools)
        left_out = (
            f"the tool '{name[:64]}' is declared, but not among grants.tools, so it is left out"
            for name in wanted
            if name not in granted
        )
        allowed = tuple(name for name in wanted if name in granted)
        return allowed, tuple(left_out)

    def script(self, package: Package, allowed: tuple[str, ...]) -> LuaScript:
        """The package's script with its grants."""
        grants = package.grants
        entry = ScriptEntry(
            path=Path(package.main),
            limits=dict(grants.limits),
            allow_hosts=grants.hosts,
            env=grants.env,
            kv=grants.kv,
            sources=grants.sources,
            labels=grants.labels,
            tools=allowed,
            extra=dict(package.config),
        )
        script = Script.from_source(Path(package.main).name, package.source, package.modules)
        secrets = frozenset(grants.secrets)
        return LuaScript(
            package.name, package.root, script, entry, self.engine, NOTHING_SECRET, secrets, package.version
        )

"""From a published package to what can be called: its script, and the tools that were granted to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from agents.code.script import LuaScript
from agents.package import Package
from agents.shapes.shape import narrowed
from engine.config import ScriptEntry
from engine.egress.redaction import NOTHING_SECRET
from engine.engine import Engine
from engine.run import Script

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Made(Generic[T]):
    """What can be called of a package, and what its publisher should know. `folder` has the files that it reads."""

    thing: T
    warnings: tuple[str, ...] = ()
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Making:
    """What a package is made with. `folder` is where its files are, for a script that has any beside itself.

    `free` are the tools that need no grant. `compiles` says that its schemas were compiled before.
    """

    engine: Engine
    folder: Path | None
    free: frozenset[str]
    compiles: bool = False

    def allowed(self, package: Package, declared: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The tools that may be used of those that were declared, and a warning of each that is left out unasked.

        The manifest's `tools` narrows the list; beyond the builtin ones, which reach the tenant's own documents alone,
        it takes a grant.
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
        """The package's script under what was granted to it."""
        grants = package.grants
        entry = ScriptEntry(
            path=Path(package.main),
            limits=dict(grants.limits),
            allow_hosts=grants.hosts,
            env=grants.env,
            tools=allowed,
            extra=dict(package.config),
        )
        script = Script.from_source(Path(package.main).name, package.source)
        secrets = frozenset(grants.secrets)
        return LuaScript(package.name, package.root, script, entry, self.engine, NOTHING_SECRET, secrets=secrets)

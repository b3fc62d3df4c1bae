"""The interface of a kind of agent or tool: one file with a `KIND` in `agents/kinds/` or `agents/tools/`."""

import pkgutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from agents.agent import AgentInfo
from agents.code.entries import Loading, Place
from agents.code.making import Made, Making
from agents.package import Package
from agents.shapes.shape import AgentDeclaration, ToolDeclaration, narrowed
from agents.tool import Tool
from engine.config import Entry, PythonEntry, ScriptEntry

E = TypeVar("E", bound=Entry)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Packages(Generic[T]):
    """How packages of a kind are published. `name` is the manifest's `kind`.

    `declaration` checks what the script declares; packages of a kind without one are not described in a worker. `make`
    makes the agent or tool from a package and that declaration. Both raise WrongShape and Problem (400). `slow` if it
    takes time in proportion to the package's files: then it is made in a thread.
    """

    name: str
    declaration: Callable[[object], AgentDeclaration | ToolDeclaration] | None
    make: Callable[[Package, object, Making], Made[T]]
    slow: bool = False


def _nothing(entry: object) -> Iterable[Path]:
    return ()


def _unknown(entry: object, thing: object) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Kind(Generic[E, T]):
    """One kind of agent or tool.

    `table` is its table of the configuration, `[agents.TABLE.NAME]`; the model is in `engine/config/entries.py`. `load`
    makes the agent or tool of an entry, and raises NotLoaded, Unusable and WrongShape. `watched` returns the files
    whose change causes the entry to be loaded again. `harmless` is true if an agent's prompt can be made without side
    effects. `packages` is None if tenants cannot publish this kind. `tool` makes the tool of an agent that `expose`
    offers as one; None: the tool answers with the agent's prompt (`agents.tools.agent`).
    """

    table: str
    load: Callable[[Place, E, Loading], Awaitable[T]]
    watched: Callable[[E], Iterable[Path]] = _nothing
    harmless: Callable[[E, T], bool] = _unknown
    packages: Packages[T] | None = None
    tool: Callable[[Place, E, T, Loading], Tool] | None = None


def declared_info(name: str, source: str, said: AgentDeclaration, entry: ScriptEntry | PythonEntry) -> AgentInfo:
    """The list entry of an agent that code of the kind `source` declares, narrowed by its configuration."""
    return AgentInfo(
        name=name,
        description=said.description if said.description is not None else f"{source.capitalize()} agent: {name}",
        tools=narrowed(said.tools, entry.tools),
        source=source,
        arguments=tuple(said.arguments),
        title=said.title,
        expose=entry.expose,
    )


def discover(package: str, folders: Iterable[str]) -> "Mapping[str, Kind[Any, Any]]":
    """The kinds in a package's folders, by table. A module without `KIND` is ignored."""
    return _discover(package, tuple(folders))


@cache  # listing the folder and importing each module takes 60 us, for every package that is published
def _discover(package: str, folders: tuple[str, ...]) -> Mapping[str, Kind[Any, Any]]:
    modules = (import_module(f"{package}.{module.name}") for module in pkgutil.iter_modules(folders))
    kinds = (getattr(module, "KIND", None) for module in modules)
    return {kind.table: kind for kind in kinds if isinstance(kind, Kind)}


def packages(kinds: Mapping[str, Kind[Any, T]]) -> Mapping[str, Packages[T]]:
    """How packages of these kinds are published, by the manifest's `kind`."""
    return {kind.packages.name: kind.packages for kind in kinds.values() if kind.packages is not None}

"""The interface of connectors, which read sources of documents, and the kinds of them.

A kind is one file here, found by its name. Its `CONNECTOR` makes one source: it is called with the keys of the table
`[connectors.KIND.NAME]` of the configuration as keyword arguments, and with the parts of the engine that it names, such
as `extractor`. The model of that table is in
`engine/config/entries.py`.
"""

import pkgutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any, Protocol, runtime_checkable

from knowledge.extraction import Unreadable as Unreadable


class ConnectorError(Exception):
    """The source as a whole cannot be read. The text holds no host paths: clients see it with the source."""


class Unfinished(Unreadable):
    """An item that the next synchronisation may be able to read. No checkpoint passes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An item that exists. `source_id` names it within its source, the same at every scan.

    `version` is a cheap mark that changes whenever the item does; without a reliable one it is empty, and the item is
    read and compared. `updated_at` is in the store's form (`times.canonical_time`).
    """

    source_id: str
    version: str = ""
    updated_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An item that exists and cannot be read; with `below`, every item whose source_id begins with this one.

    What the store already holds of it is kept.
    """

    source_id: str
    reason: str
    below: bool = False


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Items that exist, with the versions that `Compares.compare` was called with."""

    source_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Partial:
    """The list is of a part of the source: what it does not name may still exist, and is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """The content of an item. Times are in the store's form; `metadata` must be JSON-able.

    `pages` are the places in `body` where the item's pages begin, in order; empty without pages.
    `access` are its own labels; without any, it has those that the configuration gives it (`knowledge.access`).
    """

    body: str
    title: str | None = None
    author: str | None = None
    source_url: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    content_type: str = "text/plain"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    pages: tuple[int, ...] = ()
    access: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Emitted:
    """An item with its content. With `checkpoint`, a later scan may begin after it; see `Reached`."""

    found: Found
    item: Item
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """An item that exists no more."""

    source_id: str


@dataclass(frozen=True, slots=True)
class Reached:
    """A later scan may begin here: it is kept once all that came before it is stored, and only then."""

    checkpoint: str


@dataclass(frozen=True, slots=True)
class Complete:
    """The end of a scan of the whole source: what it did not name exists no more."""


Event = Emitted | Gone | Skipped | Partial | Reached | Complete


class Connector(Protocol):
    """One configured source."""

    def scan(self) -> AsyncIterator[Found | Unchanged | Skipped | Partial]:
        """Every item of the source, in any order; with `Partial`, some of them. `Unchanged` is of `Compares` alone.

        Raises ConnectorError when the list would not be what it says.
        """
        ...

    async def read(self, found: Found) -> Item:
        """The content of one item. Raises Unreadable when it cannot be read."""
        ...


@runtime_checkable
class Streams(Protocol):
    """A source whose scan gives contents, from a checkpoint on, and is stored while it runs."""

    def stream(self, checkpoint: str | None) -> AsyncGenerator[Event]:
        """What there is since `checkpoint`, which is None for the first scan and for a full one.

        Without `Complete`, what it does not name is kept. Raises ConnectorError; what came before is stored.
        """
        ...


@runtime_checkable
class Opens(Protocol):
    """A source that holds something while it is read: a process, a lock."""

    def opened(self) -> AbstractAsyncContextManager[Connector | Streams]:
        """The source, for one synchronisation. Raises ConnectorError when it cannot be read."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """A connector that can ask its source for what changed, if it knows what the store has."""

    def remember(self, versions: Mapping[str, str]) -> None:
        """Called before `scan` with the versions that the store has, by source_id; never for a full one."""
        ...


@runtime_checkable
class Compares(Protocol):
    """A connector that compares versions by itself: an item that did not change then costs a fraction."""

    def compare(self, versions: Mapping[str, str]) -> None:
        """Called before a `scan` that may leave out what is known of an item of the same version (`Unchanged`).

        `versions` are those that the store has, by source_id. Never for a full sync, nor for one by times.
        """
        ...


@runtime_checkable
class Looks(Protocol):
    """A source of which this machine can tell whether it can be read, without reading it."""

    def trouble(self) -> str | None:
        """What keeps it from being read now, or None: no promise. Without host paths; blocks for some system calls."""
        ...


Source = Connector | Streams | Opens


@asynccontextmanager
async def opened(source: Source) -> AsyncIterator[Connector | Streams]:
    """A source of either form for one synchronisation."""
    if isinstance(source, Opens):
        async with source.opened() as connector:
            yield connector
    else:
        yield source


# Kinds that need a library which is not always installed: an extra of the kind's name has it.
_LIBRARIES: Mapping[str, str] = {"s3": "botocore"}


def kinds() -> frozenset[str]:
    """The kinds that have a file here. No kind is imported."""
    return _kinds(tuple(__path__))


@cache  # called for each configured source whenever the store of a tenant is opened
def _kinds(folders: Iterable[str]) -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(folders))


@cache
def missing(kind: str) -> str | None:
    """The library that this kind needs, if it is not installed."""
    library = _LIBRARIES.get(kind)
    return library if library is not None and find_spec(library) is None else None


def make(kind: str, keys: Mapping[str, object], parts: Mapping[str, object] | None = None) -> Source:
    """A source of this kind, with those of the engine's parts that it takes. Raises ValueError for unusable keys."""
    connector: Callable[..., Source] = import_module(f"{__name__}.{kind}").CONNECTOR
    takes = signature(connector).parameters
    return connector(**keys, **{name: part for name, part in (parts or {}).items() if name in takes})

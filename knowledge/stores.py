"""The stores of many tenants, a file each: opened on first use, closed when idle, a bounded number open at once.

A tenant without a file has an empty store. Reading never creates the file; only a synchronisation does.
"""

import itertools
import os
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import trio

from knowledge.access import NOTHING_KNOWN, Reader, SourceAccess
from knowledge.embedding import Embedders
from knowledge.embedding.fusion import DEFAULT, Settings
from knowledge.sqlite.reading import size_on_disk
from knowledge.sqlite.store import SqliteStore, open_empty_store, open_store
from knowledge.store import BrowsableStore, Document, Listed, SearchAnswer, SearchQuery, SourceInfo

T = TypeVar("T")

# Open stores besides that of `default`. Each is a thread, some 400 KB, five descriptors and up to
# `sqlite.store.MAX_KEPT_BYTES` of answers; opening one takes about a millisecond.
MAX_OPEN = 64
# How long an idle store stays open.
IDLE_S = 60.0

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# Files that SQLite creates beside a store's file. Syncs create `NAME.DIGEST.lock` there, one for each source.
_BESIDE = ("-wal", "-shm", "-journal", ".vectors", ".words", ".words.new")

Configured = Callable[[str], Mapping[str, str | None]]
AccessOf = Callable[[str], SourceAccess]
Every = Callable[[str], Mapping[str, float]]


def _never(tenant: str) -> Mapping[str, float]:
    return {}


def cache_path(path: Path) -> Path:
    """The folder of what connectors can fetch again, `path` being that of `[db] path`. It is of all tenants."""
    return path.parent / ".git-cache"


def store_path(path: Path, tenant: str) -> Path:
    """The file of a tenant's store, `path` being that of `[db] path`: itself for `default`, one beside it for others.

    Raises ValueError for a text that cannot be a tenant's name.
    """
    if tenant == "default":
        return path
    if _NAME.fullmatch(tenant) is None:
        raise ValueError(f"{tenant[:64]!r} cannot name a tenant's store")
    return path.parent / "tenants" / f"{tenant}.sqlite"


def store_files(path: Path) -> list[Path]:
    """The existing files of the store at `path`, locks of syncs included.

    For a symbolic link: the link, and the store that it leads to, with the files beside that store.
    """
    links, path = ([path] if path.is_symlink() else []), Path(os.path.realpath(path))
    beside = [path, *(path.with_name(path.name + suffix) for suffix in _BESIDE)]
    # Whole names: a tenant "acme.sqlite" has locks that begin like those of "acme".
    lock = re.compile(re.escape(path.name) + r"\.([0-9a-f]+\.lock|vectors\.\w+|\w+\.new)")
    locks = sorted(
        each for each in (path.parent.iterdir() if path.parent.is_dir() else ()) if lock.fullmatch(each.name)
    )
    return [*links, *(each for each in (*beside, *locks) if each.exists())]


def remove_store(path: Path) -> list[Path]:
    """Remove a store with its files beside it, and return their paths. Open connections keep the unlinked files."""
    removed = store_files(path)
    for each in removed:
        each.unlink(missing_ok=True)
    # A search under way may have written its vectors meanwhile. From now on it finds no store, and removes them.
    late = [each for each in store_files(path) if each not in removed]
    for each in late:
        each.unlink(missing_ok=True)
    return removed + late


def stored_bytes(path: Path) -> int:
    """The bytes on disk of the store at `path`; 0 where there is none. Blocks for two calls of stat."""
    return size_on_disk(Path(os.path.realpath(path)))


@dataclass(slots=True)
class _Held:
    """One open store. `identity` is its file's, so that a file that replaces it is noticed."""

    identity: tuple[int, int] | None
    opening: trio.Lock = field(default_factory=trio.Lock)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    store: SqliteStore | None = None
    generation: int = 0
    users: int = 0
    left_at: float = 0.0
    retired: bool = False


class Stores:
    """The store of every tenant. Made by `open_stores`, whose block it does not outlive."""

    def __init__(
        self, always: Mapping[str, BrowsableStore], path_of: Callable[[str], Path], empty: SqliteStore,
        configured: Configured, access: AccessOf, language: str | None, every: Every, embedders: Embedders | None,
        settings: Settings,
    ) -> None:  # fmt: skip
        self._always = always
        self._path_of = path_of
        self._empty = empty
        self._configured, self._access, self._every = configured, access, every
        self._language = language
        self._embedders = embedders
        self._settings = settings
        # Invariant: at most MAX_OPEN entries, the most recently used at the end. A retired store is not among them; its
        # last user closes it.
        self._stores: OrderedDict[str, _Held] = OrderedDict()
        self._generations = itertools.count(1)
        self._freed = trio.Event()
        self._work = trio.Event()

    def store_of(self, tenant: str) -> BrowsableStore:
        """The tenant's store. Its file is opened by the first query."""
        return self._always.get(tenant) or _TenantStore(self, tenant)

    def access(self, tenant: str) -> SourceAccess:
        """The labels that the tenant's sources give their documents."""
        return self._access(tenant)

    async def stored_bytes(self, tenant: str) -> int:
        """The bytes on disk of the tenant's documents."""
        return await trio.to_thread.run_sync(stored_bytes, self._path_of(tenant))

    @property
    def open(self) -> int:
        """How many stores of tenants are open."""
        return len(self._stores)

    @asynccontextmanager
    async def borrowed(self, tenant: str) -> AsyncIterator[tuple[SqliteStore, int]]:
        """The tenant's store, open until the block ends, and the number of this opening.

        Raises StoreError when it cannot be opened.
        """
        path = self._path_of(tenant)
        identity = _identity(path)
        if identity is None:
            await self._retire(tenant)
            yield self._empty.with_sources(self._configured(tenant), self._access(tenant)), 0
            return
        held = await self._held(tenant, identity)
        held.users += 1
        try:
            async with held.opening:
                if held.store is None:
                    opening = open_store(
                        path, readonly=True, readers=1, configured=self._configured(tenant),
                        access=self._access(tenant), language=self._language, every=self._every(tenant),
                        embedders=self._embedders, settings=self._settings,
                    )  # fmt: skip
                    held.store = await held.stack.enter_async_context(opening)
                    held.generation = next(self._generations)
            yield held.store, held.generation
        finally:
            held.users -= 1
            held.left_at = trio.current_time()
            self._work.set()
            if held.store is None and not held.users and not held.retired:
                del self._stores[tenant]  # it could not be opened: the next user tries again
            if held.retired and not held.users:
                await _close(held)
            self._freed.set()
            self._freed = trio.Event()

    async def _held(self, tenant: str, identity: tuple[int, int]) -> _Held:
        """The tenant's entry, whose store may not be open yet. Waits while MAX_OPEN others are in use."""
        while True:
            held = self._stores.get(tenant)
            if held is not None and held.identity == identity:
                self._stores.move_to_end(tenant)
                return held
            if held is not None:
                await self._retire(tenant)
            elif len(self._stores) < MAX_OPEN:
                held = self._stores[tenant] = _Held(identity)
                return held
            elif (idle := next((name for name, each in self._stores.items() if not each.users), None)) is not None:
                await self._retire(idle)
            else:
                await self._freed.wait()

    async def _retire(self, tenant: str) -> None:
        """Take the store out of the table, and close it as soon as it has no users."""
        held = self._stores.pop(tenant, None)
        if held is None:
            return
        held.retired = True
        if not held.users:
            await _close(held)

    async def close_idle(self) -> None:
        """Close stores that have been idle for `IDLE_S`. Runs until cancelled."""
        while True:
            await self._work.wait()
            await trio.sleep(IDLE_S / 2)
            for tenant, held in list(self._stores.items()):
                # Lists of vectors, which a thread of the store is making, would be begun anew by the next search.
                busy = held.users or (held.store is not None and held.store.near.is_listing())
                if not busy and held.left_at <= trio.current_time() - IDLE_S:
                    await self._retire(tenant)
            if not self._stores:
                self._work = trio.Event()

    async def aclose(self) -> None:
        """Close every store. None may be in use."""
        for tenant in list(self._stores):
            await self._retire(tenant)


async def _close(held: _Held) -> None:
    with trio.CancelScope(shield=True):  # safe to shield: a close is bounded by the store's own busy timeout
        await held.stack.aclose()


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file is at a path: 2 us here, where a thread would take 100."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@dataclass(frozen=True, slots=True)
class _TenantStore:
    """One tenant's store as callers see it: each query opens it, or uses it where it is open."""

    _stores: Stores
    _tenant: str

    async def _ask(self, question: Callable[[SqliteStore], Awaitable[T]]) -> T:
        async with self._stores.borrowed(self._tenant) as (store, _):
            return await question(store)

    async def search(self, query: SearchQuery, reader: Reader) -> SearchAnswer:
        return await self._ask(lambda store: store.search(query, reader))

    async def get(self, document_id: str, reader: Reader) -> Document | None:
        return await self._ask(lambda store: store.get(document_id, reader))

    async def sources(self, reader: Reader) -> tuple[SourceInfo, ...]:
        return await self._ask(lambda store: store.sources(reader))

    async def documents(
        self, reader: Reader, *, after: tuple[str, str] | None = None, limit: int
    ) -> tuple[Listed, ...]:
        return await self._ask(lambda store: store.documents(reader, after=after, limit=limit))

    async def titled(self, source: str, title: str, reader: Reader, *, limit: int) -> tuple[str, ...]:
        return await self._ask(lambda store: store.titled(source, title, reader, limit=limit))

    async def titles(self, text: str, source: str | None, reader: Reader, *, limit: int) -> tuple[str, ...]:
        return await self._ask(lambda store: store.titles(text, source, reader, limit=limit))

    async def digests(self, ids: Sequence[str], reader: Reader) -> dict[str, str]:
        return await self._ask(lambda store: store.digests(ids, reader))

    async def revision(self, reader: Reader) -> int:
        """As the store's. A file may have been replaced by another one, so each opening has numbers of its own."""
        async with self._stores.borrowed(self._tenant) as (store, generation):
            return generation << 48 | await store.revision(reader)


@asynccontextmanager
async def open_stores(
    always: Mapping[str, BrowsableStore],
    path_of: Callable[[str], Path],
    configured: Configured,
    access: AccessOf = lambda tenant: NOTHING_KNOWN,
    language: str | None = None,
    every: Every = _never,
    embedders: Embedders | None = None,
    settings: Settings = DEFAULT,
) -> AsyncIterator[Stores]:
    """The stores of all tenants. `always` holds stores that are open already; `path_of` returns the file of any other.

    `configured`, `access` and `every` return, for a tenant, the arguments of these names of `open_store`; `language`,
    `embedders` and `settings` are those of all.
    """
    async with open_empty_store(embedders) as empty:
        try:
            async with trio.open_nursery() as nursery:
                stores = Stores(always, path_of, empty, configured, access, language, every, embedders, settings)
                nursery.start_soon(stores.close_idle)
                try:
                    yield stores
                finally:
                    nursery.cancel_scope.cancel()
                    with trio.CancelScope(shield=True):  # safe to shield, as in `_close`
                        await stores.aclose()
        except BaseExceptionGroup as group:
            # The nursery wraps what the block raised; its own task raises nothing.
            if len(group.exceptions) != 1:
                raise
            raise group.exceptions[0] from group.exceptions[0].__cause__

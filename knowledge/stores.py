"""The stores of many tenants, a file each: opened when somebody asks, closed when nobody does, a few at once.

A tenant without a file has an empty store, and none is made by looking: only a synchronisation makes one.
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

from knowledge.sqlite.store import SqliteStore, open_empty_store, open_store
from knowledge.store import BrowsableStore, Document, Listed, SearchAnswer, SearchQuery, SourceInfo

T = TypeVar("T")

# Open stores besides that one. Each is a thread, some 400 KB, five descriptors and up to `sqlite.MAX_KEPT_BYTES` of
# answers; opening one takes about a millisecond.
MAX_OPEN = 64
# How long a store stays open after the last question.
IDLE_S = 60.0

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# What SQLite puts beside a store's file; syncs put `NAME.DIGEST.lock` there, one for each source.
_BESIDE = ("-wal", "-shm", "-journal")

Configured = Callable[[str], Mapping[str, str | None]]


def store_path(path: Path, tenant: str) -> Path:
    """The file of a tenant's store, `path` being that of `[db] path`: itself for `default`, one beside it for others.

    Raises ValueError for what names no tenant.
    """
    if tenant == "default":
        return path
    if _NAME.fullmatch(tenant) is None:
        raise ValueError(f"{tenant[:64]!r} cannot name a tenant's store")
    return path.parent / "tenants" / f"{tenant}.sqlite"


def store_files(path: Path) -> list[Path]:
    """The files that a store at `path` consists of, those that are there, locks of syncs included.

    Of a symbolic link that is the link, and the store that it leads to: everything else lies beside that one.
    """
    links, path = ([path] if path.is_symlink() else []), Path(os.path.realpath(path))
    beside = [path, *(path.with_name(path.name + suffix) for suffix in _BESIDE)]
    # Whole names: a tenant "acme.sqlite" has locks that begin like those of "acme".
    lock = re.compile(re.escape(path.name) + r"\.[0-9a-f]+\.lock")
    locks = sorted(
        each for each in (path.parent.iterdir() if path.parent.is_dir() else ()) if lock.fullmatch(each.name)
    )
    return [*links, *(each for each in (*beside, *locks) if each.exists())]


def remove_store(path: Path) -> list[Path]:
    """Remove a store with everything beside it; what was removed. Who has it open goes on with what is gone."""
    removed = store_files(path)
    for each in removed:
        each.unlink(missing_ok=True)
    return removed


def stored_bytes(path: Path) -> int:
    """What a store at `path` takes on disk; 0 where there is none. Blocks for as long as a look at a file does."""
    total, path = 0, Path(os.path.realpath(path))
    for each in (path, path.with_name(path.name + "-wal")):
        try:
            total += each.stat().st_size
        except FileNotFoundError:
            continue
    return total


@dataclass(slots=True)
class _Held:
    """One open store. `identity` is the file's, to notice that another one took its place."""

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
        configured: Configured,
    ) -> None:  # fmt: skip
        self._always = always
        self._path_of = path_of
        self._empty = empty
        self._configured = configured
        # Invariant: at most MAX_OPEN entries, the one asked last at the end; a retired one is not in it any more, and
        # is closed by its last user.
        self._stores: OrderedDict[str, _Held] = OrderedDict()
        self._generations = itertools.count(1)
        self._freed = trio.Event()
        self._work = trio.Event()

    def store_of(self, tenant: str) -> BrowsableStore:
        """The tenant's store. Costs nothing until it is asked something."""
        return self._always.get(tenant) or _TenantStore(self, tenant)

    async def stored_bytes(self, tenant: str) -> int:
        """What the tenant's documents take on disk."""
        return await trio.to_thread.run_sync(stored_bytes, self._path_of(tenant))

    @property
    def open(self) -> int:
        """How many stores of tenants are open."""
        return len(self._stores)

    @asynccontextmanager
    async def borrowed(self, tenant: str) -> AsyncIterator[tuple[SqliteStore, int]]:
        """The tenant's store, open until the block ends, and which opening of it that is.

        Raises StoreError when it cannot be opened.
        """
        path = self._path_of(tenant)
        identity = _identity(path)
        if identity is None:
            await self._retire(tenant)
            yield self._empty.with_sources(self._configured(tenant)), 0
            return
        held = await self._held(tenant, identity)
        held.users += 1
        try:
            async with held.opening:
                if held.store is None:
                    held.store = await held.stack.enter_async_context(
                        open_store(path, readonly=True, readers=1, configured=self._configured(tenant))
                    )
                    held.generation = next(self._generations)
            yield held.store, held.generation
        finally:
            held.users -= 1
            held.left_at = trio.current_time()
            self._work.set()
            if held.store is None and not held.users and not held.retired:
                del self._stores[tenant]  # it could not be opened: the next one tries anew
            if held.retired and not held.users:
                await _close(held)
            self._freed.set()
            self._freed = trio.Event()

    async def _held(self, tenant: str, identity: tuple[int, int]) -> _Held:
        """What there is for the tenant, maybe not open yet. Waits while all others are in use."""
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
        """Nobody gets this store any more; who has it keeps it until done."""
        held = self._stores.pop(tenant, None)
        if held is None:
            return
        held.retired = True
        if not held.users:
            await _close(held)

    async def close_idle(self) -> None:
        """Close stores that nobody asked for a while. Runs until cancelled."""
        while True:
            await self._work.wait()
            await trio.sleep(IDLE_S / 2)
            for tenant, held in list(self._stores.items()):
                if not held.users and held.left_at <= trio.current_time() - IDLE_S:
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
    """One tenant's store as everybody sees it: open for as long as an answer takes."""

    _stores: Stores
    _tenant: str

    async def _ask(self, question: Callable[[SqliteStore], Awaitable[T]]) -> T:
        async with self._stores.borrowed(self._tenant) as (store, _):
            return await question(store)

    async def search(self, query: SearchQuery) -> SearchAnswer:
        return await self._ask(lambda store: store.search(query))

    async def get(self, document_id: str) -> Document | None:
        return await self._ask(lambda store: store.get(document_id))

    async def sources(self) -> tuple[SourceInfo, ...]:
        return await self._ask(lambda store: store.sources())

    async def documents(self, *, after: tuple[str, str] | None = None, limit: int) -> tuple[Listed, ...]:
        return await self._ask(lambda store: store.documents(after=after, limit=limit))

    async def titled(self, source: str, title: str, *, limit: int) -> tuple[str, ...]:
        return await self._ask(lambda store: store.titled(source, title, limit=limit))

    async def titles(self, text: str, source: str | None = None, *, limit: int) -> tuple[str, ...]:
        return await self._ask(lambda store: store.titles(text, source, limit=limit))

    async def digests(self, ids: Sequence[str]) -> dict[str, str]:
        return await self._ask(lambda store: store.digests(ids))

    async def revision(self) -> int:
        """As the store's. Numbers of two connections cannot be compared, so each opening has numbers of its own."""
        async with self._stores.borrowed(self._tenant) as (store, generation):
            return generation << 32 | await store.revision()


@asynccontextmanager
async def open_stores(
    always: Mapping[str, BrowsableStore], path_of: Callable[[str], Path], configured: Configured
) -> AsyncIterator[Stores]:
    """The stores of all tenants. `always` are some that are open already; `path_of` has the file of each other one.

    `configured` says of a tenant what `open_store` wants to know: its source labels and what is wrong with each.
    """
    async with open_empty_store() as empty:
        try:
            async with trio.open_nursery() as nursery:
                stores = Stores(always, path_of, empty, configured)
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

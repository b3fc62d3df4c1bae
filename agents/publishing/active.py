"""Published agents and tools, loaded from the control store into the registry on first use, and kept current: of each
name the active version, and its canary.

A tenant without requests costs nothing here. Scripts were described when they were published, and their declarations
are stored with them, so no worker is needed. A call in progress keeps the version that it began with.
"""

import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar
from uuid import uuid4

import structlog
import trio

from agents import kinds, tools
from agents.agent import Agent
from agents.changes import Change, Changes
from agents.code.entries import Means
from agents.code.kind import packages
from agents.code.making import Making
from agents.package import Package
from agents.publishing.manifest import restored
from agents.registry import EMPTY, Canary, OfferedTool, PublishedSet, Registry
from agents.shapes.parameters import Parameters
from agents.shapes.shape import WrongShape
from agents.tool import Tool
from agents.tools.builtin import NAMES as BUILTIN_NAMES
from control.store import ControlStore
from control.versions.records import ActiveVersion, StoredVersion
from engine.engine import Engine
from engine.errors import Code, Problem
from engine.tenant import Tenant
from sandbox.wire.limits import MIB

T = TypeVar("T")

log = structlog.get_logger("agents.active")

# Interval for notifying subscribers of what other processes published; a call sees it at once.
LOOK_EVERY_S = 0.2
# Bounds of the cache of tenants without requests in progress: bytes of scripts, number of tenants. Tenants with more
# than a share of the bytes are evicted first, so that a few large ones do not evict every small one.
KEPT_BYTES = 32 * MIB
SHARE_BYTES = KEPT_BYTES // 16
KEPT_TENANTS = 2_000
# Bounds on the versions that are read from the store at a time.
_BATCH_BYTES = 8 * 1024 * 1024
_BATCH_VERSIONS = 64
# An unfinished folder of this age was left behind by a process that has ended.
_ABANDONED_S = 3600.0


@dataclass(slots=True, eq=False)
class _TenantCache:
    """One tenant's entry: from which state of the control store (None: not read), and how many requests hold it.

    `tenant` is that of the last request. `made` has the tenant's part of the registry, by number of the version: a
    version never changes, so it is made once.
    """

    tenant: Tenant
    holders: int = 0
    generation: int | None = None
    mark: str | None = None
    loaded: bool = False  # whether the registry has had its part: subscribers are notified of what changes later
    size: int = 0
    made: dict[int, "Made"] = field(default_factory=dict)
    renewing: trio.Lock = field(default_factory=trio.Lock)


@dataclass(frozen=True, slots=True)
class Made:
    """The agent or tool of a version, and warnings for its publisher. An agent may be offered as a tool, too."""

    agent: Agent | None
    tool: OfferedTool | None
    warnings: tuple[str, ...]
    folder: Path | None


class ActiveVersions:
    """The published agents and tools of tenants, loaded on demand.

    `folder` returns the folder with the files of a tenant's packages, for scripts to read. They are copies: the folder
    may be removed while nothing runs.
    """

    def __init__(
        self,
        control: ControlStore,
        engine: Engine,
        means: Means,
        registry: Registry,
        changes: Changes,
        folder: Callable[[str], Path],
    ) -> None:
        self._control = control
        self._means = means
        self._engine = engine
        self._registry = registry
        self._changes = changes
        self._folder = folder
        # By tenant, the least recently used first.
        self._held: OrderedDict[str, _TenantCache] = OrderedDict()
        # Invariant: the sum of the sizes of entries without holders. The others cannot be evicted: if they counted, a
        # few large tenants with long requests would leave no room for others.
        self._idle_size = 0

    def published(self, tenant: Tenant) -> "PublishedBlock":
        """A block in which everything that the tenant has published, as of its beginning, can be called.

        Raises Problem `unavailable` when the control store cannot be read.
        """
        return PublishedBlock(self, tenant)

    async def renew(self, tenant: str) -> None:
        """Replace the tenant's part of the registry by what is active now, if that part is loaded."""
        held = self._held.get(tenant)
        if held is not None:
            await self._renew(tenant, held)

    async def watch(self) -> None:
        """Notify subscribers of changes by other processes. Runs until cancelled."""
        seen, there = self._control.generation(), self._control.path.exists()
        while True:
            await trio.sleep(LOOK_EVERY_S)
            # A store that another process has created is opened by the first query.
            made = not there and self._control.path.exists()
            if not made and self._control.generation() == seen:
                continue
            there, seen = there or made, self._control.generation()
            for tenant, held in list(self._held.items()):
                if made:
                    held.generation = None
                if held.holders:
                    try:
                        await self._renew(tenant, held)
                    except Problem as problem:
                        log.error("what a tenant published cannot be read", tenant=tenant, reason=problem.message)

    async def prepare(self, tenant: str, package: Package) -> bool:
        """Write a package's files for its script, before the version is stored. Returns False if they exist already.

        Raises Problem `unavailable` when they cannot be written; then nothing was changed.
        """
        try:
            return await trio.to_thread.run_sync(_put_files, self._folder(tenant), package)
        except OSError as error:
            log.error("the files of a package cannot be written", tenant=tenant, reason=str(error))
            raise Problem(
                Code.UNAVAILABLE,
                f"the files of the package cannot be written ({error.strerror}); nothing was changed",
                retry_after_s=1,
            ) from None

    async def withdraw(self, tenant: str, package: Package) -> None:
        """Remove the copy that `prepare` made, unless a version has this content: the upload was refused."""
        try:
            kept = await self._control.versions.has_content(tenant, package.digest)
        except Problem as problem:  # the copy is removed when the tenant's versions are next read
            log.error("the files of a refused upload stay for now", tenant=tenant, reason=problem.message)
            return
        if not kept:
            await trio.to_thread.run_sync(_remove_files, self._folder(tenant), package)

    def made(self, tenant: str, package: Package, said: object) -> Made:
        """The agent or tool of a package with this declaration. Raises WrongShape and Problem (400)."""
        return self._makings(tenant).made(package, said)

    def _makings(self, tenant: str) -> "_Makings":
        return _Makings(self._engine, self._means, self._registry, tenant, self._folder(tenant))

    async def _hold(self, tenant: Tenant) -> _TenantCache:
        held = self._held.get(tenant.id)
        if held is None:
            held = self._held[tenant.id] = _TenantCache(tenant)
        else:
            self._held.move_to_end(tenant.id)
            held.tenant = tenant
            if not held.holders:
                self._idle_size -= held.size
        held.holders += 1
        try:
            if held.generation != self._control.generation() or held.mark is None:
                await self._renew(tenant.id, held, asked=True)
        except BaseException:
            self._release(held)
            raise
        return held

    def _release(self, held: _TenantCache) -> None:
        held.holders -= 1
        if not held.holders:
            self._idle_size += held.size
        if self._idle_size > KEPT_BYTES:
            for least in (SHARE_BYTES, 0):
                self._evict(least, lambda: self._idle_size <= KEPT_BYTES)
        if len(self._held) > KEPT_TENANTS:
            self._evict(-1, lambda: len(self._held) <= KEPT_TENANTS)

    def _evict(self, least: int, enough: Callable[[], bool]) -> None:
        """Evict tenants without holders and with more than `least` bytes, least recently used first, until `enough`."""
        for tenant, other in list(self._held.items()):
            if enough():
                return
            if not other.holders and other.size > least:
                del self._held[tenant]
                self._idle_size -= other.size
                self._registry.publish(tenant, EMPTY)

    async def _renew(self, tenant: str, held: _TenantCache, *, asked: bool = False) -> None:
        """Load what is active. With `asked`, raises Problem quota_exceeded if the tenant has no CPU time left."""
        async with held.renewing:
            generation = self._control.generation()
            if held.mark is not None and held.generation == generation:
                return
            mark, active = await self._control.versions.active(tenant, held.mark)
            if mark != held.mark:
                made, complete = await self._made_of(tenant, held, active, asked)
                published = _published_set(active, made)
                if self._held.get(tenant) is not held:
                    return  # evicted meanwhile; the next request reads it again
                before = self._registry.publish(tenant, published)
                first, held.loaded = not held.loaded, True
                held.mark, held.made = mark if complete else None, made
                size = sum(each.size for each in active)
                if not held.holders:
                    self._idle_size += size - held.size
                held.size = size
                if not first:
                    self._tell(tenant, before, published)
            held.generation = generation

    async def _made_of(
        self, tenant: str, held: _TenantCache, active: Sequence[ActiveVersion], asked: bool
    ) -> tuple[dict[int, Made], bool]:
        """The agents and tools of these versions, and whether none is left to retry. Only new versions are made."""
        folder = self._folder(tenant)
        # Copies of inactive versions are removed. Without active ones all stay, as evidence of a lost control store.
        if active and held.mark is None:
            await trio.to_thread.run_sync(_remove_others, folder, {each.digest for each in active})
        found = {each.n: held.made[each.n] for each in active if each.n in held.made and _has_files(held.made[each.n])}
        complete = True
        missing = [each for each in active if each.n not in found]
        if asked and missing:
            with self._engine.work_for(held.tenant):  # refused before the work if the tenant has used up its share
                pass
        unwritten = await trio.to_thread.run_sync(_without_files, folder, missing)
        for batch in _batches(missing, unwritten):
            numbers = [each.n for each in batch]
            whole = {each.digest for each in batch} & unwritten
            kept = await self._control.versions.stored(tenant, numbers, whole)
            making = partial(_make_all, self._makings(tenant), batch, kept)
            made, all_made, cpu_s = await trio.to_thread.run_sync(making)
            self._engine.charge(held.tenant, cpu_s)
            found |= made
            complete = complete and all_made
        return found, complete

    def _tell(self, tenant: str, before: PublishedSet, now: PublishedSet) -> None:
        agents, tools = _agents_shown(before) != _agents_shown(now), _tools_shown(before) != _tools_shown(now)
        if agents or tools:
            self._changes.tell(Change(agents=agents, tools=tools, tenant=tenant))


class PublishedBlock:
    """The block that `ActiveVersions.published` makes. A class, not a generator: one is entered for every request."""

    __slots__ = ("_active", "_held", "_tenant")

    def __init__(self, active: ActiveVersions, tenant: Tenant) -> None:
        self._active, self._tenant = active, tenant

    async def __aenter__(self) -> None:
        self._held = await self._active._hold(self._tenant)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._active._release(self._held)


# ---- from versions to agents and tools; no trio, as this runs in a thread ----------------------------------------


def _batches(versions: Sequence[ActiveVersion], unwritten: Collection[str]) -> Iterator[list[ActiveVersion]]:
    """The versions in batches of bounded size, or of one larger version. Where files are missing, `whole` counts."""
    batch: list[ActiveVersion] = []
    size = 0
    for each in versions:
        more = each.whole if each.digest in unwritten else each.size
        if batch and (len(batch) == _BATCH_VERSIONS or size + more > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += more
    if batch:
        yield batch


def _make_all(
    makings: "_Makings", active: Sequence[ActiveVersion], kept: Mapping[int, StoredVersion]
) -> tuple[dict[int, Made], bool, float]:
    """The agents and tools of these versions, whether none is left to retry, and the CPU seconds that it took."""
    began_s = time.thread_time()
    found: dict[int, Made] = {}
    complete = True
    for each in active:
        if each.n not in kept:
            continue  # deleted since it was listed
        try:
            package = restored(each.name, each.version, each.digest, kept[each.n].content, partial=kept[each.n].partial)
            _put_files(makings.folder, package)
            found[each.n] = makings.made(package, kept[each.n].said, compiles=True)
        except OSError as error:
            complete = False  # a full disk: worth a retry
            reason = f"its files cannot be written: {error}"
        except (Problem, WrongShape) as wrong:  # stored by a version of the engine with other rules
            reason = str(wrong)
        else:
            continue
        log.error("a published version cannot be used", tenant=makings.tenant, root=each.root, name=each.name,
                  version=each.version, reason=reason)  # fmt: skip
    return found, complete, time.thread_time() - began_s


def _published_set(active: Sequence[ActiveVersion], made: Mapping[int, Made]) -> PublishedSet:
    agents: dict[str, Agent] = {}
    tools: dict[str, OfferedTool] = {}
    agent_canaries: dict[str, Canary[Agent]] = {}
    tool_canaries: dict[str, Canary[OfferedTool]] = {}
    for each in active:
        if (thing := made.get(each.n)) is None:
            continue
        if thing.agent is not None:
            _put(each, thing.agent, agents, agent_canaries)
        if thing.tool is not None and each.root == "tool":
            _put(each, thing.tool, tools, tool_canaries)
    taken = set(tools)  # a published tool goes before an agent of its name
    for each in active:
        thing = made.get(each.n)
        if thing is not None and thing.tool is not None and each.root == "agent" and each.name not in taken:
            _put(each, thing.tool, tools, tool_canaries)
    return PublishedSet(agents, tools, agent_canaries, tool_canaries) if active else EMPTY


def _put(each: ActiveVersion, thing: T, active: dict[str, T], canaries: dict[str, Canary[T]]) -> None:
    """Put a version to its name. A canary comes after its active version, and is called beside that alone."""
    if not each.percent:
        active[each.name] = thing
    elif each.name in active:
        canaries[each.name] = Canary(thing, each.version, each.percent)


def _agents_shown(published: PublishedSet) -> list[object]:
    """What lists of agents show. A canary that looks like the active version changes no list."""
    active, canaries = published.agents, published.agent_canaries.items()
    others = [(each.percent, each.thing.info) for name, each in canaries if each.thing.info != active[name].info]
    return [*(agent.info for agent in active.values()), *others]


def _tools_shown(published: PublishedSet) -> list[object]:
    active = {name: offered.tool.info for name, offered in published.tools.items()}
    canaries = {name: (each.percent, each.thing.tool.info) for name, each in published.tool_canaries.items()}
    return [*active.values(), *(shown for name, shown in canaries.items() if shown[1] != active[name])]


def _has_files(made: Made) -> bool:
    return made.folder is None or made.folder.is_dir()


@dataclass(frozen=True, slots=True)
class _Makings:
    """What the packages of a tenant are made with. `folder` has the files of all of them."""

    engine: Engine
    means: Means
    registry: Registry
    tenant: str
    folder: Path

    def made(self, package: Package, said: object, *, compiles: bool = False) -> Made:
        """The agent or tool of a package. `compiles` is true if its schemas have been compiled before."""
        files = _files_of(self.folder, package)
        making = Making(self.engine, self.tenant, self.means, self.registry, files, BUILTIN_NAMES, compiles)
        if package.root == "agent":
            agent = packages(kinds.found())[package.kind].make(package, said, making)
            return Made(agent.thing, self._offered(agent.tool), agent.warnings, agent.folder)
        tool = packages(tools.found())[package.kind].make(package, said, making)
        return Made(None, self._offered(tool.thing), tool.warnings, tool.folder)

    def _offered(self, tool: Tool | None) -> OfferedTool | None:
        return None if tool is None else OfferedTool(tool, Parameters(tool.info.parameters), self.engine.work_for)


# ---- the files that a script may read ----------------------------------------------------------------------------


def _files_of(folder: Path, package: Package) -> Path | None:
    """The folder with the files beside the script; None if there are none."""
    return folder / package.digest if package.has_data else None


def _without_files(folder: Path, active: Sequence[ActiveVersion]) -> set[str]:
    """The digests of the versions whose files are missing."""
    return {each.digest for each in active if not (folder / each.digest).is_dir()}


def _put_files(folder: Path, package: Package) -> bool:
    """Write the files of a package; False if they exist already. The folder appears complete, by a rename.

    Raises OSError.
    """
    target = folder / package.digest
    if not package.has_data or target.is_dir():
        return False
    if package.partial:
        raise FileNotFoundError(f"{target} was removed meanwhile")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    begun = folder / f".{package.digest}.{uuid4().hex}"
    try:
        # A power cut must not leave empty or missing files under a name that means complete.
        for path, text in package.files.items():
            file = begun / path
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with file.open("wb") as opened:
                opened.write(text.encode())
                opened.flush()
                os.fsync(opened.fileno())
        for folders, _, _ in os.walk(begun):
            _sync_folder(Path(folders))
        try:
            begun.rename(target)
            _sync_folder(folder)
        except OSError:
            if not target.is_dir():  # else another process was faster, with the same files
                raise
        return True
    finally:
        shutil.rmtree(begun, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk (fsync(2): a file's own fsync does not)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_files(folder: Path, package: Package) -> None:
    with suppress(OSError):
        _remove_whole(folder / package.digest)
    with suppress(OSError):  # not empty: it has the files of other packages
        folder.rmdir()


def _remove_whole(path: Path) -> None:
    """Rename a folder of files, then remove it: a folder under its own name is complete at every moment.

    Raises OSError. A removal that stops midway is finished later, as for unfinished folders.
    """
    gone = path if path.name.startswith(".") else path.rename(path.with_name(f".{path.name}.{uuid4().hex}"))
    shutil.rmtree(gone)


def _remove_others(folder: Path, digests: set[str]) -> None:
    """Remove copies that no active version needs, and unfinished folders that were left behind."""
    try:
        found = list(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("the folder of published files cannot be read", reason=str(error))
        return
    for path in found:
        begun = path.name.startswith(".")
        try:
            if path.name not in digests and (not begun or time.time() - path.stat().st_mtime > _ABANDONED_S):
                _remove_whole(path)
        except OSError as error:
            log.warning("a folder of published files cannot be removed", reason=str(error))

"""Publishing: an uploaded package becomes a version, and a version becomes active.

All checks of a package come before anything is stored. The stored and the active versions change in one transaction of
the control store, together with a row of the audit log.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from weakref import WeakValueDictionary

import structlog
import trio

from agents.code.describing import Undescribed, describe
from agents.package import Package, Root
from agents.publishing.active import ActiveVersions, Made
from agents.publishing.manifest import MAX_PACKAGE_BYTES, brief, folded, packages_of, parse_package
from agents.registry import Registry
from agents.shapes.shape import WrongShape, declared_again
from agents.tools.builtin import NAMES as BUILTIN_NAMES
from control.identity import Identity
from control.records import Scope
from control.store import ControlStore
from control.versions.grants import Grants
from control.versions.records import Added, NewVersion, VersionId
from control.versions.share import ALL, check_percent
from engine.engine import Engine
from engine.errors import Code, Problem
from engine.run import Script
from engine.tenant import BoundLimits, Tenant

log = structlog.get_logger("agents.publishing")

Action = Literal["activate", "approve", "deprecate"]

# The scope that each action requires. Approving grants what a version requests, so the uploader's scope is not enough.
SCOPE: dict[Action, Scope] = {"activate": "publish", "approve": "admin", "deprecate": "publish"}

# The actions that may serve a version to a share of the callers.
SHARED: tuple[Action, ...] = ("activate", "approve")

# The scopes that may read versions: that of keys that upload, and that of keys that approve.
READ: tuple[Scope, ...] = ("publish", "admin")


@dataclass(frozen=True, slots=True)
class Published:
    """The result of an upload: the version's entry in lists, and whether it is new."""

    version: dict[str, Any]
    created: bool

    @property
    def waits(self) -> bool:
        """Whether it waits for the approval of grants that it requests."""
        return bool(self.version["asks"])


class Deciding:
    """Activates, approves, deprecates and reads versions. Every method may raise Problem `unavailable`.

    `limits_for` binds the limits that a tenant's run requests; `renew` is awaited with the name of a tenant whose
    active versions have changed; `charge` is called with the CPU seconds that work on its versions took; `work_for`
    opens a block whose CPU time is charged to the tenant, and raises Problem if the tenant has used up its share.
    """

    def __init__(
        self,
        control: ControlStore,
        limits_for: Callable[[dict[str, float], Tenant], BoundLimits],
        renew: Callable[[str], Awaitable[None]],
        charge: Callable[[Tenant, float], None] = lambda tenant, cpu_s: None,
        work_for: Callable[[Tenant], AbstractContextManager[None]] = lambda tenant: nullcontext(),
    ) -> None:
        self._versions = control.versions
        self._limits_for = limits_for
        self._renew = renew
        self._charge = charge
        self._work_for = work_for

    async def change(
        self, tenant: Tenant, who: Identity, root: Root, name: str, version: str, action: Action, percent: object = ALL
    ) -> dict[str, Any]:
        """Activate, approve (which also activates) or deprecate a version; returns its entry in lists.

        `percent` below 100 makes it a canary: so many of the callers get it, and the others the version that is active.
        Raises Problem: bad_request (`percent`), forbidden (the key's scopes, or grants that only the operator may
        give), not_found, conflict, quota_exceeded (the tenant has no CPU seconds left, or what is called would take too
        many bytes).
        """
        require(who, SCOPE[action])
        share = check_percent(percent)
        if action != "deprecate" and not who.operator:
            with self._work_for(tenant):  # raises before the work if the tenant has used up its share
                pass
        versions = self._versions
        which, free = VersionId(tenant.id, root, name, version), self._free(tenant)
        charge = partial(self._charge, tenant)
        if action == "deprecate":
            shown = await versions.deprecate(which, free, who=who, charge=charge)
        else:
            act = versions.activate if action == "activate" else versions.approve
            shown = await act(which, free, who=who, charge=charge, percent=share)
        await self._changed(tenant)
        return shown

    async def history(self, tenant: Tenant, who: Identity, root: Root, name: str) -> list[dict[str, Any]]:
        """Every version of a name, the newest first. Raises Problem: forbidden, not_found."""
        require(who, *READ)
        return await self._versions.history(
            tenant.id, root, name, self._free(tenant), charge=partial(self._charge, tenant)
        )

    async def show(self, tenant: Tenant, who: Identity, root: Root, name: str, version: str) -> dict[str, Any]:
        """A version with its manifest, its files and what it changes. Raises Problem: forbidden, not_found."""
        require(who, *READ)
        return await self._versions.show(
            VersionId(tenant.id, root, name, version), self._free(tenant), charge=partial(self._charge, tenant)
        )

    async def changes(
        self, tenant: Tenant, who: Identity, root: Root, name: str, version: str, against: str
    ) -> dict[str, Any]:
        """What a version changes, compared with another one of its name. Raises Problem: forbidden, not_found."""
        require(who, *READ)
        which = VersionId(tenant.id, root, name, version)
        return await self._versions.changes(which, against, charge=partial(self._charge, tenant))

    async def file(
        self, tenant: Tenant, who: Identity, root: Root, name: str, version: str, path: str
    ) -> tuple[str, bytes]:
        """The digest of a version, and one of its files. Raises Problem: forbidden, not_found."""
        require(who, *READ)
        which = VersionId(tenant.id, root, name, version)
        return await self._versions.file(which, path, charge=partial(self._charge, tenant))

    async def _changed(self, tenant: Tenant) -> None:
        """Update the registry after a change of the tenant's versions."""
        # The change is committed, so this must happen even if the client has disconnected.
        with trio.CancelScope(shield=True):
            await self._renew(tenant.id)

    def _free(self, tenant: Tenant) -> Grants:
        """The grants that need no approval: the builtin tools, and the limits that every tenant has."""
        bound = self._limits_for({}, tenant)
        return Grants(tools=tuple(BUILTIN_NAMES), limits={name: bound[name] for name in bound.sources})


class Publishing(Deciding):
    """Also publishes versions of agents and tools."""

    def __init__(
        self,
        control: ControlStore,
        engine: Engine,
        registry: Registry,
        active: ActiveVersions,
        documents: Callable[[str], Awaitable[int]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`documents` returns the bytes of a tenant's documents."""
        super().__init__(control, engine.limits_for, active.renew, engine.charge, engine.work_for)
        self._engine = engine
        self._registry = registry
        self._active = active
        self._documents = documents
        self._clock = clock
        # Invariant: an entry for every tenant with an upload that is being stored, or waits to be.
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    async def publish(
        self, tenant: Tenant, who: Identity, root: Root, name: str, body: Mapping[str, Any], percent: object = ALL
    ) -> Published:
        """Store an uploaded package as a version of this name; activate it unless it requests more than was approved.

        The same content again under its version changes nothing. `percent` as in `change`. Raises Problem: forbidden
        (the key's scopes), bad_request and too_large (the package), conflict (the name, other content under this
        version, or a canary without an active version), quota_exceeded, and those of admission, for the run that
        describes the script.
        """
        require(who, "publish")
        share = check_percent(percent)
        target = VersionId(tenant.id, root, name, brief(body.get("version")))
        try:
            with self._engine.work_for(tenant):  # raises before the work if the tenant has used up its share
                pass
            most = int(self._limits_for({"source_bytes": MAX_PACKAGE_BYTES}, tenant)["source_bytes"])
            package, cpu_s = await trio.to_thread.run_sync(_parsed, root, name, body, most)
            self._engine.charge(tenant, cpu_s)
            if isinstance(package, Problem):
                raise package
            self._check_clash(tenant, package)
            existing = await self._versions.find(VersionId(tenant.id, root, name, package.version))
            declaration: object = None
            warnings: tuple[str, ...] = ()
            if existing is None:
                self._check_source(tenant, package)
                declaration = await self._declaration(tenant, package)
                made = await self._made(tenant, package, declaration)
                warnings = (*made.warnings, *self._lowered(tenant, package))
        except WrongShape as wrong:
            bad = Problem(Code.BAD_REQUEST, str(wrong))
            await self._versions.refuse(target, bad, who=who)
            raise bad from wrong
        except Problem as problem:
            await self._versions.refuse(target, problem, who=who)
            raise
        new = NewVersion(
            root=root, name=name, version=package.version, digest=package.digest, content=package.content,
            head=package.head, grants=package.grants, said=declaration, at=self._clock(), by=who.actor,
        )  # fmt: skip
        added = await self._keep(tenant, who, package, new, share)
        shown = {**added.standing.as_json(), "warnings": list(warnings)}
        return Published(shown, added.created)

    async def _keep(self, tenant: Tenant, who: Identity, package: Package, new: NewVersion, percent: int) -> Added:
        free, room = self._free(tenant), self._engine.room_for(tenant)
        documents = await self._documents(tenant.id) if room is not None else 0
        async with self._lock_of(tenant.id):
            begun = await self._active.prepare(tenant.id, package)
            try:
                added = await self._versions.add(
                    tenant.id, new, free, who=who, charge=partial(self._charge, tenant), max_bytes=room,
                    besides=documents, percent=percent,
                )  # fmt: skip
                await self._changed(tenant)
            except BaseException:
                if begun:
                    with trio.CancelScope(shield=True):  # reads once, and removes a folder
                        await self._active.withdraw(tenant.id, package)
                raise
        return added

    def _lock_of(self, tenant: str) -> trio.Lock:
        """The lock under which a tenant's uploads are stored one at a time.

        An upload that fails removes the files that it wrote. Without the lock, another upload of the same content could
        find them written, and lose them.
        """
        lock = self._locks.get(tenant)
        if lock is None:
            lock = self._locks[tenant] = trio.Lock()
        return lock

    def _check_clash(self, tenant: Tenant, package: Package) -> None:
        agents, tools = self._registry.configured(tenant.id)
        taken: list[tuple[Root, Iterable[str]]] = [("agent", agents)] if package.root == "agent" else [("tool", tools)]
        if package.root == "agent" and package.kind == "chatmd":  # it is a tool, too
            if folded(package.name) in BUILTIN_NAMES:
                raise Problem(Code.CONFLICT, f"'{package.name}' is the name of a builtin tool, and a document is one")
            taken.append(("tool", tools))
        for root, names in taken:
            if clash := next((name for name in names if folded(name) == folded(package.name)), None):
                alike = "of this name" if clash == package.name else f"'{clash}', whose name differs only in case"
                raise Problem(
                    Code.CONFLICT,
                    f"the operator's configuration has {_article(root)} {alike} for this tenant, which takes "
                    f"precedence; publish '{package.name}' under another name",
                )

    def _check_source(self, tenant: Tenant, package: Package) -> None:
        bound = int(self._limits_for(dict(package.grants.limits), tenant)["source_bytes"])
        if len(package.source) + sum(len(text) for _, text in package.modules) > bound:
            more = " with what it requires" if package.modules else ""
            raise Problem(Code.TOO_LARGE, f"{package.main}{more} is larger than {bound} bytes (limits.source_bytes)")

    async def _made(self, tenant: Tenant, package: Package, declaration: object) -> Made:
        """The agent or tool, at the tenant's expense. Raises Problem and WrongShape."""
        if not packages_of(package.root)[package.kind].slow:
            with self._engine.work_for(tenant):
                return self._active.made(tenant.id, package, declaration)

        def making() -> tuple[Made | Problem | WrongShape, float]:
            began_s = time.thread_time()
            try:
                made: Made | Problem | WrongShape = self._active.made(tenant.id, package, declaration)
            except (Problem, WrongShape) as wrong:
                made = wrong
            return made, time.thread_time() - began_s

        made, cpu_s = await trio.to_thread.run_sync(making)
        self._engine.charge(tenant, cpu_s)
        if isinstance(made, Exception):
            raise made
        return made

    async def _declaration(self, tenant: Tenant, package: Package) -> object:
        """The script's declaration, from a run in a worker at the tenant's expense. Raises Problem."""
        check = packages_of(package.root)[package.kind].declaration
        if check is None:
            return None
        script = Script.from_source(package.main.rpartition("/")[2], package.source, package.modules)
        try:
            fields = await describe(package.name, script, package.root, self._engine, tenant)
        except Undescribed as undescribed:
            if undescribed.refused is not None:
                raise undescribed.refused from None
            if undescribed.lost:
                log.warning("workers of an upload were lost", tenant=tenant.id, root=package.root, name=package.name)
                raise Problem(
                    Code.UNAVAILABLE,
                    "the worker that loaded the script was lost twice; nothing was changed, try again",
                    retry_after_s=1,
                ) from None
            what = "" if undescribed.outcome.value == "script_error" else f" ({undescribed.outcome.value})"
            raise Problem(Code.BAD_REQUEST, f"the script does not load{what}: {undescribed.message}") from None
        # Only known fields are stored: the rest of the script's table is bounded by output_bytes alone.
        with self._engine.work_for(tenant):
            return declared_again(check(fields))

    def _lowered(self, tenant: Tenant, package: Package) -> list[str]:
        bound = self._limits_for(dict(package.grants.limits), tenant)
        return [
            f"{name} = {limit:g} is above the ceiling and will be {bound[name]:g}, as set by the {bound.sources[name]}"
            for name, limit in package.grants.limits.items()
            if bound[name] < limit
        ]


def require(who: Identity, *scopes: Scope) -> None:
    """Raises Problem `forbidden` unless the key has one of these scopes, or the operator sends the request.

    Without keys, only clients on this machine may publish: an open port must not let its clients upload code.
    """
    if not who.operator and who.key_id is None:
        raise Problem(Code.FORBIDDEN, "without keys, publishing is for clients on this machine")
    if not who.operator and who.scopes.isdisjoint(scopes):
        raise Problem(Code.FORBIDDEN, f"this requires a key with the scope {' or '.join(map(repr, scopes))}")


def _parsed(root: Root, name: str, body: Mapping[str, Any], most: int) -> tuple[Package | Problem, float]:
    """The package or its error, and the CPU seconds that it took: a refused upload is charged, too.

    `most` is the most that the tenant may be granted of `source_bytes`.
    """
    began_s = time.thread_time()
    try:
        package: Package | Problem = parse_package(root, name, body, source_bytes=most)
    except Problem as problem:
        package = problem
    return package, time.thread_time() - began_s


def _article(root: Root) -> str:
    return "an agent" if root == "agent" else "a tool"

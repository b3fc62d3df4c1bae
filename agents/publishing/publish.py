"""Publishing: an uploaded package becomes a version, and a version becomes what is called.

Everything that can be wrong with a package is found before anything is kept. What is kept, and what is active, changes
in one transaction of the control store, together with its row in the audit log.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from weakref import WeakValueDictionary

import structlog
import trio

from agents.code.describing import Undescribed, describe
from agents.package import Package, Root
from agents.publishing.active import ActiveVersions
from agents.publishing.manifest import brief, folded, packages_of, parse_package
from agents.registry import Registry
from agents.shapes.shape import WrongShape, declared_again
from agents.tools.builtin import NAMES as BUILTIN_NAMES
from control.identity import Identity
from control.records import Scope
from control.store import ControlStore
from control.versions.grants import Grants
from control.versions.records import Added, NewVersion, VersionId
from engine.engine import Engine
from engine.errors import Code, Problem
from engine.run import Script
from engine.tenant import BoundLimits, Tenant

log = structlog.get_logger("agents.publishing")

Action = Literal["activate", "approve", "deprecate"]

# Which scope of a key an action takes. Approving lets a version do what it asks for, so it is not the uploader's to do.
SCOPE: dict[Action, Scope] = {"activate": "publish", "approve": "admin", "deprecate": "publish"}

# What is published may be read by those who upload it, and by those who approve it.
READ: tuple[Scope, ...] = ("publish", "admin")


@dataclass(frozen=True, slots=True)
class Published:
    """What came of an upload: the version as lists show it, and whether it is a new one."""

    version: dict[str, Any]
    created: bool

    @property
    def waits(self) -> bool:
        """Whether it waits for somebody to approve what it asks for."""
        return bool(self.version["asks"])


class Deciding:
    """Which version of a name is called, and what it may do. Every method may raise Problem `unavailable`.

    `limits_for` says which limits a tenant's run gets that asks for some; `renew` is awaited with the name of a tenant
    whose active versions have changed; `charge` is told of the CPU seconds that looking at its versions took;
    `work_for` opens a block of work on the tenant's account, and raises Problem where its share is used up.
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
        self, tenant: Tenant, who: Identity, root: Root, name: str, version: str, action: Action
    ) -> dict[str, Any]:
        """Activate, approve (which activates, too) or deprecate a version; returns it as lists show it.

        Raises Problem: forbidden (the key's scopes, or grants that only the operator may give), not_found, conflict,
        quota_exceeded (what becomes active is made on the tenant's account: no CPU seconds left, or too many bytes).
        """
        require(who, SCOPE[action])
        if action != "deprecate" and not who.operator:
            with self._work_for(tenant):
                pass
        versions = self._versions
        act = {"activate": versions.activate, "approve": versions.approve, "deprecate": versions.deprecate}[action]
        which = VersionId(tenant.id, root, name, version)
        shown = await act(which, self._free(tenant), who=who, charge=partial(self._charge, tenant))
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
        """What a version changes, beside another one of its name. Raises Problem: forbidden, not_found."""
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
        """After a change of its versions: the tenant's next call finds what is active now."""
        # It is done, whether the client is still there or not.
        with trio.CancelScope(shield=True):
            await self._renew(tenant.id)

    def _free(self, tenant: Tenant) -> Grants:
        """What needs no approval: the builtin tools, and the limits that every tenant has."""
        bound = self._limits_for({}, tenant)
        return Grants(tools=tuple(BUILTIN_NAMES), limits={name: bound[name] for name in bound.sources})


class Publishing(Deciding):
    """Publishes versions of agents and tools, too."""

    def __init__(
        self,
        control: ControlStore,
        engine: Engine,
        registry: Registry,
        active: ActiveVersions,
        documents: Callable[[str], Awaitable[int]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`documents` says how many bytes a tenant's documents take."""
        super().__init__(control, engine.limits_for, active.renew, engine.charge, engine.work_for)
        self._engine = engine
        self._registry = registry
        self._active = active
        self._documents = documents
        self._clock = clock
        # Invariant: an entry for every tenant with an upload that is being kept, or waits for that.
        self._turns: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    async def publish(self, tenant: Tenant, who: Identity, root: Root, name: str, body: Mapping[str, Any]) -> Published:
        """Keep an uploaded package as a version of this name; activate it unless it asks for more than was approved.

        The same content again under its version changes nothing. Raises Problem: forbidden (the key's scopes),
        bad_request and too_large (the package), conflict (the name, or another content of this version),
        quota_exceeded, and what admission of the run refuses that asks the script what it is.
        """
        require(who, "publish")
        asked = VersionId(tenant.id, root, name, brief(body.get("version")))
        try:
            with self._engine.work_for(tenant):  # refused before the work where the tenant's share is used up
                pass
            package, cpu_s = await trio.to_thread.run_sync(_parsed, root, name, body)
            self._engine.charge(tenant, cpu_s)
            if isinstance(package, Problem):
                raise package
            self._check_clash(tenant, package)
            there = await self._versions.find(VersionId(tenant.id, root, name, package.version))
            said: object = None
            warnings: tuple[str, ...] = ()
            if there is None:
                self._check_source(tenant, package)
                said = await self._said(tenant, package)
                with self._engine.work_for(tenant):
                    made = self._active.made(tenant.id, package, said)
                warnings = (*made.warnings, *self._lowered(tenant, package))
        except WrongShape as wrong:
            bad = Problem(Code.BAD_REQUEST, str(wrong))
            await self._versions.refuse(asked, bad, who=who)
            raise bad from wrong
        except Problem as problem:
            await self._versions.refuse(asked, problem, who=who)
            raise
        new = NewVersion(
            root=root, name=name, version=package.version, digest=package.digest, content=package.content,
            head=package.head, grants=package.grants, said=said, at=self._clock(), by=who.actor,
        )  # fmt: skip
        added = await self._keep(tenant, who, package, new)
        shown = {**added.standing.as_json(), "warnings": list(warnings)}
        return Published(shown, added.created)

    async def _keep(self, tenant: Tenant, who: Identity, package: Package, new: NewVersion) -> Added:
        free, room = self._free(tenant), self._engine.room_for(tenant)
        documents = await self._documents(tenant.id) if room is not None else 0
        async with self._turn(tenant.id):
            begun = await self._active.prepare(tenant.id, package)
            try:
                added = await self._versions.add(
                    tenant.id, new, free, who=who, charge=partial(self._charge, tenant), max_bytes=room,
                    besides=documents,
                )  # fmt: skip
                await self._changed(tenant)
            except BaseException:
                if begun:
                    with trio.CancelScope(shield=True):  # reads once, and removes a folder
                        await self._active.withdraw(tenant.id, package)
                raise
        return added

    def _turn(self, tenant: str) -> trio.Lock:
        """One upload of a tenant's is kept at a time: what one takes back, another one must not have counted on."""
        found = self._turns.get(tenant)
        if found is None:
            found = self._turns[tenant] = trio.Lock()
        return found

    def _check_clash(self, tenant: Tenant, package: Package) -> None:
        agents, tools = self._registry.configured(tenant.id)
        names = agents if package.root == "agent" else tools
        if clash := next((name for name in names if folded(name) == folded(package.name)), None):
            alike = "of this name" if clash == package.name else f"'{clash}', whose name differs in case alone"
            raise Problem(
                Code.CONFLICT,
                f"the operator's configuration offers {_article(package.root)} {alike} to this tenant, and that one "
                f"would be called; publish '{package.name}' under another name",
            )

    def _check_source(self, tenant: Tenant, package: Package) -> None:
        bound = int(self._limits_for(dict(package.grants.limits), tenant)["source_bytes"])
        if len(package.source) > bound:
            raise Problem(Code.TOO_LARGE, f"{package.main} is larger than {bound} bytes (limits.source_bytes)")

    async def _said(self, tenant: Tenant, package: Package) -> object:
        """What the script declares: it runs in a worker, on the tenant's account. Raises Problem."""
        declaration = packages_of(package.root)[package.kind].declaration
        if declaration is None:
            return None
        script = Script.of(package.main.rpartition("/")[2], package.source)
        try:
            said = await describe(package.name, script, package.root, self._engine, tenant)
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
        # What is kept is what is known: the rest of the script's table is bounded by nothing but output_bytes.
        with self._engine.work_for(tenant):
            return declared_again(declaration(said))

    def _lowered(self, tenant: Tenant, package: Package) -> list[str]:
        bound = self._limits_for(dict(package.grants.limits), tenant)
        return [
            f"{name} = {asked:g} is above the ceiling and will be {bound[name]:g}, as set by the {bound.sources[name]}"
            for name, asked in package.grants.limits.items()
            if bound[name] < asked
        ]


def require(who: Identity, *scopes: Scope) -> None:
    """Raises Problem `forbidden` unless the key has one of these scopes, or it is the operator who asks.

    Where no keys are asked for, only the machine's own people publish: an open port is no invitation to leave code.
    """
    if not who.operator and who.key_id is None:
        raise Problem(Code.FORBIDDEN, "without keys, publishing is for clients on this machine")
    if not who.operator and who.scopes.isdisjoint(scopes):
        raise Problem(Code.FORBIDDEN, f"this takes a key with the scope {' or '.join(map(repr, scopes))}")


def _parsed(root: Root, name: str, body: Mapping[str, Any]) -> tuple[Package | Problem, float]:
    """The package or why it is none, and the CPU seconds that it took: what is refused is charged, too."""
    began_s = time.thread_time()
    try:
        package: Package | Problem = parse_package(root, name, body)
    except Problem as problem:
        package = problem
    return package, time.thread_time() - began_s


def _article(root: Root) -> str:
    return "an agent" if root == "agent" else "a tool"

"""Publishing: an uploaded package becomes a version, and a version becomes what is called.

Everything that can be wrong with a package is found before anything is kept. What is kept, and what is active, changes
in one transaction of the control store, together with its row in the audit log.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NoReturn, TypeVar
from weakref import WeakValueDictionary

import apsw
import structlog
import trio

from agents.active import ActiveVersions
from agents.describing import Undescribed, describe
from agents.manifest import Package, Root, brief, folded, parse_package
from agents.registry import Registry
from agents.shape import WrongShape, agent_declaration, declared_again, tool_declaration
from agents.tools.builtin import NAMES as BUILTIN_NAMES
from engine.control import versions
from engine.control.grants import Grants, for_the_operator
from engine.control.identity import Identity
from engine.control.records import Scope
from engine.control.store import ControlStore
from engine.control.versions import Added, NewVersion, Version
from engine.engine import Engine
from engine.errors import Code, Problem
from engine.run import Script
from engine.tenant import BoundLimits, Tenant

log = structlog.get_logger("agents.publishing")

Action = Literal["activate", "approve", "deprecate"]

T = TypeVar("T")

# Which scope of a key an action takes. Approving lets a version do what it asks for, so it is not the uploader's to do.
SCOPE: dict[Action, Scope] = {"activate": "publish", "approve": "admin", "deprecate": "publish"}


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
        self._control = control
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
        free = self._free(tenant)

        def work(db: apsw.Connection) -> dict[str, Any]:
            there = versions.existing(db, tenant.id, root, name, version)
            match action:
                case "activate":
                    versions.activate(db, tenant.id, there, free)
                case "approve":
                    _require_power(who, versions.asks(db, tenant.id, there, free))
                    versions.approve(db, tenant.id, there, who.actor)
                case "deprecate":
                    versions.deprecate(db, tenant.id, there)
            now = versions.existing(db, tenant.id, root, name, version)
            return now.as_json(versions.asks(db, tenant.id, now, free))

        return await self._act(tenant, who, f"{root}.{action}", f"{name[:64]} {version[:64]}", work)

    async def history(self, tenant: Tenant, who: Identity, root: Root, name: str) -> list[dict[str, Any]]:
        """Every version of a name, the newest first. Raises Problem: forbidden, not_found."""
        require(who, "publish", "admin")
        free = self._free(tenant)

        def find(db: apsw.Connection) -> list[dict[str, Any]]:
            found = versions.history(db, tenant.id, root, name)
            asked = versions.asks_of(db, tenant.id, found, free)
            return [each.as_json(asks) for each, asks in zip(found, asked, strict=True)]

        with self._charged(tenant, find) as charged:
            return await self._control.read(charged)

    async def _act(
        self, tenant: Tenant, who: Identity, action: str, target: str, work: Callable[[apsw.Connection], T]
    ) -> T:
        """A control action, after which the tenant's next call finds what is active then."""
        with self._charged(tenant, work) as charged:
            answer = await self._control.act(who.actor, action, target, tenant.id, charged)
        # It is done, whether the client is still there or not.
        with trio.CancelScope(shield=True):
            await self._renew(tenant.id)
        return answer

    @contextmanager
    def _charged(
        self, tenant: Tenant, work: Callable[[apsw.Connection], T]
    ) -> Iterator[Callable[[apsw.Connection], T]]:
        """The same work, whose CPU time in the store's thread is the tenant's, whatever comes of it."""
        spent: list[float] = []

        def timed(db: apsw.Connection) -> T:
            began_s = time.thread_time()
            try:
                return work(db)
            finally:
                spent.append(time.thread_time() - began_s)

        try:
            yield timed
        finally:
            self._charge(tenant, sum(spent))

    def _free(self, tenant: Tenant) -> Grants:
        """What needs no approval: the builtin tools, and the limits that everybody has."""
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
        action = f"{root}.publish"
        target = f"{name[:64]} {brief(body.get('version'))}"
        try:
            with self._engine.work_for(tenant):  # refused before the work where the tenant's share is used up
                pass
            package, cpu_s = await trio.to_thread.run_sync(_parsed, root, name, body)
            self._engine.charge(tenant, cpu_s)
            if isinstance(package, Problem):
                raise package
            self._check_clash(tenant, package)
            there = await self._control.read(partial(_find, tenant.id, package))
            said: object = None
            warnings: tuple[str, ...] = ()
            if there is None:
                self._check_source(tenant, package)
                said = await self._said(tenant, package)
                with self._engine.work_for(tenant):
                    made = self._active.made(tenant.id, package, said)
                warnings = (*made.warnings, *self._lowered(tenant, package))
        except WrongShape as wrong:
            await self._refused(tenant, who, action, target, Problem(Code.BAD_REQUEST, str(wrong)))
        except Problem as problem:
            await self._refused(tenant, who, action, target, problem)
        new = NewVersion(
            root=root, name=name, version=package.version, digest=package.digest, content=package.content,
            head=package.head, grants=package.grants, said=said, at=self._clock(), by=who.actor,
        )  # fmt: skip
        free, room = self._free(tenant), self._engine.room_for(tenant)
        documents = await self._documents(tenant.id) if room is not None else 0

        def keep(db: apsw.Connection) -> Added:
            return versions.add(db, tenant.id, new, free, max_bytes=room, besides=documents)

        async with self._turn(tenant.id):
            begun = await self._active.prepare(tenant.id, package)
            try:
                added = await self._act(tenant, who, action, target, keep)
            except BaseException:
                if begun:
                    with trio.CancelScope(shield=True):  # reads once, and removes a folder
                        await self._active.withdraw(tenant.id, package)
                raise
        shown = {**added.version.as_json(added.asks), "warnings": list(warnings)}
        return Published(shown, added.created)

    def _turn(self, tenant: str) -> trio.Lock:
        """One upload of a tenant's is kept at a time: what one takes back, another one must not have counted on."""
        found = self._turns.get(tenant)
        if found is None:
            found = self._turns[tenant] = trio.Lock()
        return found

    async def _refused(self, tenant: Tenant, who: Identity, action: str, target: str, problem: Problem) -> NoReturn:
        """Leave a row in the audit log about an upload that was refused, and raise why."""

        def refuse(db: apsw.Connection) -> NoReturn:
            raise problem

        await self._control.act(who.actor, action, target, tenant.id, refuse)
        raise problem

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
        if package.kind == "toml":
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
            return declared_again(agent_declaration(said) if package.root == "agent" else tool_declaration(said))

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


def _require_power(who: Identity, asks: Grants) -> None:
    """Raises Problem `forbidden` for what a tenant may not grant itself."""
    beyond = for_the_operator(asks)
    if beyond and not who.operator:
        raise Problem(
            Code.FORBIDDEN,
            f"private addresses, '*' and env are the operator's to grant, and this version asks for {beyond}; "
            "the operator has to approve it",
        )


def _parsed(root: Root, name: str, body: Mapping[str, Any]) -> tuple[Package | Problem, float]:
    """The package or why it is none, and the CPU seconds that it took: what is refused is charged, too."""
    began_s = time.thread_time()
    try:
        package: Package | Problem = parse_package(root, name, body)
    except Problem as problem:
        package = problem
    return package, time.thread_time() - began_s


def _find(tenant: str, package: Package, db: apsw.Connection) -> Version | None:
    return versions.find(db, tenant, package.root, package.name, package.version)


def _article(root: Root) -> str:
    return "an agent" if root == "agent" else "a tool"

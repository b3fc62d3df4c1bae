"""The control store: who may ask, with what, and what was decided. `open_control` -> `ControlStore`.

Every control action is one transaction that also writes its audit row. Refused actions leave a row with the code of the
refusal and change nothing else.
"""

import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw
import trio

from engine.config import Config, ConfigError
from engine.control import keys, tables
from engine.control.audit import Refusals
from engine.control.database import Database, Work, open_database
from engine.control.files import control_path, owners_of_files, remove_tenant_files, tenant_files
from engine.control.identity import Identity, tenant_of
from engine.control.records import (
    SCOPES,
    AuditRow,
    KeyRecord,
    SecretRecord,
    State,
    TenantRecord,
    check_ceilings,
    check_quotas,
    check_scopes,
    check_secret_name,
    check_tenant_name,
    check_weight,
)
from engine.control.tables import rows
from engine.egress import parse_rule
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT, Tenant

T = TypeVar("T")

# Keys of which the answer is remembered; a key that is asked about again is not looked up. Those that open nothing have
# a place of their own, so that a flood of them drives out nobody.
_REMEMBERED = 16_384
_REMEMBERED_WRONG = 4_096
_MAX_SECRET_BYTES = 64 * 1024
_MAX_HOSTS = 32
# Every log line of the tenant's scripts, and every answer of a bound host, is searched for every one of them.
_MAX_SECRETS = 64

_TENANT = "name, state, created_at, quotas, ceilings, weight"
_KEY = "k.id, k.tenant, k.prefix, k.scopes, k.created_at, k.expires_at, k.revoked_at"
_SECRET = "tenant, name, hosts, created_at, updated_at"
# The tenant's row beside the key's: one look tells all that decides.
_LOOKUP = f"""
SELECT {_KEY}, k.digest, {", ".join("t." + column.strip() for column in _TENANT.split(","))}
FROM keys k JOIN tenants t ON t.name = k.tenant WHERE k.prefix = ?
"""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret with its value, and the hosts that it may be sent to (rules as in `allow_hosts`)."""

    name: str
    hosts: tuple[str, ...]
    value: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What the configuration says about tenants. `db_path` is where knowledge is; theirs is in files beside it."""

    db_path: Path
    operator_key: str | None = None
    secrets_key: str | None = None
    secrets_key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """What is remembered of a presented key: whom it stands for, and until when.

    Invariant: it follows from the key's row and its tenant's alone, never from the time at which they were read. The
    clock is asked with every request: one that was wrong for a moment leaves nothing behind.
    """

    identity: Identity | None
    expires_at: float | None


class ControlStore:
    """Tenants, keys, secrets, audit. Made by `open_control`; every method may raise Problem `unavailable`.

    Methods that change something take the `actor` that the audit log names: `cli`, `operator` or `key:ID`.
    """

    def __init__(self, database: Database, settings: Settings, clock: Callable[[], float]) -> None:
        self._database = database
        self._settings = settings
        self._clock = clock
        self._refusals = Refusals(clock)
        self._operator = None if settings.operator_key is None else keys.digest(settings.operator_key)
        self._operator_identity = Identity(DEFAULT_TENANT, None, frozenset(SCOPES), operator=True)
        self._generation = -1
        self._right: OrderedDict[bytes, _Known] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()

    # ---- for those that keep something of their own here ---------------------------------------------------------

    @property
    def path(self) -> Path:
        """The file, whether it is there yet or not."""
        return self._database.path

    def generation(self) -> int:
        """A number that changes with every control action, of this process or of another one, such as the command line.

        Asking takes some microseconds and no thread: for whoever remembers what was read here.
        """
        return self._database.generation()

    async def read(self, work: Work[T]) -> T:
        """What `work` finds in the connection, within one moment."""
        return await self._database.read(work)

    async def write(self, work: Work[T]) -> T:
        """Do `work` in one transaction, without an audit row: for figures. What it raises undoes it."""
        return await self._database.write(work)

    async def act(self, actor: str, action: str, target: str, tenant: str | None, work: Work[T]) -> T:
        """One control action: `work` and its audit row in one transaction.

        A Problem that `work` raises undoes it, leaves an audit row with its code, and comes out.
        """

        def both(db: apsw.Connection) -> T:
            answer = work(db)
            self._note(db, actor, action, target, "ok", tenant)
            tables.advance(db)
            return answer

        try:
            return await self._database.write(both)
        except Problem as problem:
            if problem.code is not Code.UNAVAILABLE:  # the store itself failed: it will take no row either
                code = problem.code.value
                await self._database.write(lambda db: self._note(db, actor, action, target, code, tenant))
            raise

    def _note(
        self, db: apsw.Connection, actor: str, action: str, target: str, outcome: str, tenant: str | None
    ) -> None:
        db.execute(
            "INSERT INTO audit(at, actor, action, target, outcome, tenant) VALUES (?, ?, ?, ?, ?, ?)",
            (self._clock(), actor, action, _plain(target), outcome, tenant and _plain(tenant)),
        )

    # ---- tenants -------------------------------------------------------------------------------------------------

    async def create_tenant(
        self,
        name: str,
        *,
        actor: str,
        quotas: Mapping[str, Any] | None = None,
        ceilings: Mapping[str, Any] | None = None,
        weight: float = 1.0,
    ) -> TenantRecord:
        """A new tenant, active. Raises Problem: bad_request, conflict (also for a name that differs in case alone)."""

        def create(db: apsw.Connection) -> TenantRecord:
            record = TenantRecord(
                check_tenant_name(name), "active", self._clock(), check_quotas(quotas or {}),
                check_ceilings(ceilings or {}), check_weight(weight),
            )  # fmt: skip
            there = _tenant_rows(db, "WHERE name = ?", (name,))
            if there:
                suspended = " and is suspended; resume it" if there[0].state == "suspended" else ""
                raise Problem(Code.CONFLICT, f"tenant {there[0].name!r} exists{suspended}")
            db.execute(
                f"INSERT INTO tenants({_TENANT}) VALUES (?, ?, ?, ?, ?, ?)",
                (name, record.state, record.created_at, json.dumps(record.quotas), json.dumps(record.ceilings), weight),
            )
            return record

        return await self.act(actor, "tenant.create", name, name, create)

    async def change_tenant(
        self,
        name: str,
        *,
        actor: str,
        quotas: Mapping[str, Any] | None = None,
        ceilings: Mapping[str, Any] | None = None,
        weight: float | None = None,
    ) -> TenantRecord:
        """Put other quotas, ceilings or another weight in place of those that a tenant has; None leaves them.

        Raises Problem: bad_request, not_found.
        """

        def change(db: apsw.Connection) -> TenantRecord:
            was = _existing(db, name)
            record = TenantRecord(
                was.name, was.state, was.created_at,
                was.quotas if quotas is None else check_quotas(quotas),
                was.ceilings if ceilings is None else check_ceilings(ceilings),
                was.weight if weight is None else check_weight(weight),
            )  # fmt: skip
            db.execute(
                "UPDATE tenants SET quotas = ?, ceilings = ?, weight = ? WHERE name = ?",
                (json.dumps(record.quotas), json.dumps(record.ceilings), record.weight, name),
            )
            return record

        return await self.act(actor, "tenant.change", name, name, change)

    async def tenants(self) -> list[TenantRecord]:
        """Every tenant, by name."""
        return await self.read(lambda db: _tenant_rows(db, "ORDER BY name"))

    async def tenant(self, name: str) -> TenantRecord:
        """One tenant. Raises Problem not_found."""
        return await self.read(lambda db: _existing(db, name))

    async def known_tenant(self, name: str) -> Tenant:
        """One tenant, as runs know it. Raises Problem not_found."""
        return tenant_of(await self.tenant(name))

    async def set_state(self, name: str, state: State, *, actor: str) -> TenantRecord:
        """Suspend a tenant, so that none of its keys opens anything, or resume it. Raises Problem not_found."""

        def change(db: apsw.Connection) -> TenantRecord:
            _existing(db, name)
            db.execute("UPDATE tenants SET state = ? WHERE name = ?", (state, name))
            return _existing(db, name)

        action = "tenant.suspend" if state == "suspended" else "tenant.resume"
        return await self.act(actor, action, name, name, change)

    async def delete_tenant(self, name: str, *, actor: str) -> dict[str, Any]:
        """Delete a tenant with everything it has, and prove it: `{tenant, removed, left}`, both counts by kind.

        It is suspended first; whatever stops this midway leaves a suspended tenant, and deleting again finishes.
        `left` is counted anew after the deletion. What the audit log says stays.
        Raises Problem: not_found, conflict (the tenant `default`), unavailable (a file cannot be removed).
        """

        def suspend(db: apsw.Connection) -> None:
            _existing(db, name)
            if name == DEFAULT_TENANT.id:
                raise Problem(Code.CONFLICT, "the tenant 'default' has what the configuration names; it stays")
            db.execute("UPDATE tenants SET state = 'suspended' WHERE name = ?", (name,))

        await self.act(actor, "tenant.delete.begin", name, name, suspend)
        db_path = self._settings.db_path
        try:
            files = await trio.to_thread.run_sync(remove_tenant_files, db_path, name)
        except OSError as error:
            raise Problem(
                Code.UNAVAILABLE,
                f"the files of tenant {name!r} cannot be removed ({error.strerror}); the tenant is suspended, and "
                "nothing else of it was deleted",
            ) from None

        def delete(db: apsw.Connection) -> dict[str, int]:
            removed = tables.counts(db, name)
            for table in removed:
                db.execute(f'DELETE FROM "{table}" WHERE tenant = ?', (name,))
            db.execute("DELETE FROM tenants WHERE name = ?", (name,))
            return removed

        removed = await self.act(actor, "tenant.delete", name, name, delete)
        # The log beside the database still has copies of what was deleted.
        await self._database.outside(lambda db: db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE))
        left = await self.read(partial(tables.counts, tenant=name))
        left["tenant"] = len(await self.read(lambda db: _tenant_rows(db, "WHERE name = ?", (name,))))
        left["files"] = len(await trio.to_thread.run_sync(tenant_files, db_path, name))
        if any(left.values()):
            raise Problem(Code.UNAVAILABLE, f"something of tenant {name!r} came while it was deleted; delete it again")
        return {"tenant": name, "removed": {**removed, "tenant": 1, "files": files}, "left": left}

    async def lost(self) -> str | None:
        """What to tell an operator where files are there of tenants that are not in this store; None where all is well.

        An empty file is a new store to SQLite, and a store that is missing is made: then no key opens anything, and
        nothing is wrong with either but what lies beside them.
        """
        try:
            there = await trio.to_thread.run_sync(owners_of_files, self._settings.db_path)
        except OSError as error:
            return f"the folder of tenants' files cannot be read: {error.strerror}"

        def known(db: apsw.Connection) -> set[str]:
            named = {name for (name,) in rows(db, "SELECT name FROM tenants WHERE name <> ?", (DEFAULT_TENANT.id,))}
            return named | {tenant for (tenant,) in rows(db, "SELECT DISTINCT tenant FROM packages")}

        names = sorted(there - await self.read(known)) if there else []
        if not names:
            return None
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        return (
            f"there are files of tenants of whom the control store knows nothing ({shown}): if it was lost or emptied, "
            "no key opens anything; restore it from a back-up, or remove these files"
        )

    # ---- keys ----------------------------------------------------------------------------------------------------

    async def create_key(
        self, tenant: str, *, actor: str, scopes: Iterable[str] = ("use",), expires_at: float | None = None
    ) -> tuple[KeyRecord, str]:
        """A new key of a tenant, and its text, which is kept nowhere. Raises Problem: bad_request, not_found."""
        key, prefix = keys.new_key()
        identifier = keys.new_id()

        def create(db: apsw.Connection) -> KeyRecord:
            owner = _existing(db, tenant)
            record = KeyRecord(identifier, owner.name, prefix, check_scopes(scopes), self._clock(), expires_at)
            db.execute(
                "INSERT INTO keys(id, tenant, prefix, digest, scopes, created_at, expires_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    record.id, record.tenant, prefix, keys.digest(key), json.dumps(sorted(record.scopes)),
                    record.created_at, expires_at,
                ),
            )  # fmt: skip
            return record

        return await self.act(actor, "key.create", identifier, tenant, create), key

    async def keys(self, tenant: str) -> list[KeyRecord]:
        """Every key of a tenant, also those that open nothing any more, oldest first. Raises Problem not_found."""

        def find(db: apsw.Connection) -> list[KeyRecord]:
            _existing(db, tenant)
            return _key_rows(db, "WHERE k.tenant = ? ORDER BY k.created_at, k.id", (tenant,))

        return await self.read(find)

    async def revoke_key(self, identifier: str, *, actor: str) -> KeyRecord:
        """Let a key open nothing from now on. Doing it again changes nothing. Raises Problem not_found."""
        found = await self.read(lambda db: _key_rows(db, "WHERE k.id = ?", (identifier,)))
        tenant = found[0].tenant if found else None

        def revoke(db: apsw.Connection) -> KeyRecord:
            now = self._clock()
            db.execute("UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (now, identifier))
            there = _key_rows(db, "WHERE k.id = ?", (identifier,))
            if not there:
                raise Problem(Code.NOT_FOUND, f"there is no key with the id {identifier[:64]!r}")
            return there[0]

        return await self.act(actor, "key.revoke", identifier, tenant, revoke)

    async def authenticate(self, presented: str) -> Identity | None:
        """Whom a presented key stands for; None for an unknown, wrong, expired or revoked one, or a suspended tenant.

        All of these take the same work: one hash, and one look for a row unless the same was asked just before. What is
        remembered is forgotten with every control action, whichever process it comes from. Whether a key has ended
        depends on its row and the clock's present time alone.
        """
        digest = keys.digest(presented)
        generation = self.generation()
        if generation != self._generation:
            self._generation = generation
            self._right.clear()
            self._wrong.clear()
        # Always compared, so that having an operator's key configured costs everybody the same.
        if keys.same(self._operator or keys.NO_DIGEST, digest):
            return self._operator_identity
        known = self._right.get(digest)
        if known is not None:
            self._right.move_to_end(digest)
            return self._at_present(known)
        if digest in self._wrong:
            self._wrong.move_to_end(digest)
            return None
        found = await self.read(lambda db: rows(db, _LOOKUP, (keys.prefix_of(presented),)))
        known = self._judge(found, digest)
        if generation == self.generation() == self._generation:  # nothing changed while we looked
            self._remember(digest, known)
        return self._at_present(known)

    def _at_present(self, known: _Known) -> Identity | None:
        expires_at = known.expires_at
        return None if expires_at is not None and keys.ended(expires_at, self._clock()) else known.identity

    def _judge(self, found: Sequence[tuple[Any, ...]], digest: bytes) -> _Known:
        """What the row that was found, if any, says of a key with this digest."""
        row = found[0] if found else None
        right = keys.same(keys.NO_DIGEST if row is None else row[7], digest)
        if row is None or not right:
            return _Known(None, None)
        record, owner = _key(row[:7]), _tenant(row[8:])
        if not keys.usable(record, owner.state):
            return _Known(None, None)
        tenant = replace(tenant_of(owner), key=record.id)
        return _Known(Identity(tenant, record.id, record.scopes, operator=False), record.expires_at)

    def _remember(self, digest: bytes, known: _Known) -> None:
        if known.identity is None:
            self._wrong[digest] = None
            if len(self._wrong) > _REMEMBERED_WRONG:
                self._wrong.popitem(last=False)
        else:
            self._right[digest] = known
            if len(self._right) > _REMEMBERED:
                self._right.popitem(last=False)

    # ---- secrets -------------------------------------------------------------------------------------------------

    async def set_secret(self, tenant: str, name: str, value: str, hosts: Sequence[str], *, actor: str) -> SecretRecord:
        """Keep a secret, in place of one of the same name. From here its value goes to these hosts alone.

        Raises Problem: bad_request (its name, value or hosts), not_found, conflict (too many), unavailable (no secrets
        key).
        """

        def store(db: apsw.Connection) -> SecretRecord:
            owner = _existing(db, tenant)
            check_secret_name(name)
            _check_value(value)
            rules = _check_hosts(hosts)
            others = rows(db, "SELECT count(*) FROM secrets WHERE tenant = ? AND name <> ?", (owner.name, name))[0][0]
            if others >= _MAX_SECRETS:
                raise Problem(Code.CONFLICT, f"tenant {owner.name!r} has {others} secrets; the most is {_MAX_SECRETS}")
            now = self._clock()
            db.execute(
                "INSERT INTO secrets(tenant, name, hosts, sealed, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET hosts = excluded.hosts, sealed = excluded.sealed, "
                "updated_at = excluded.updated_at",
                (owner.name, name, json.dumps(rules), sealer.seal(owner.name, name, rules, value), now, now),
            )
            return _secret_rows(db, "WHERE tenant = ? AND name = ?", (tenant, name))[0]

        sealer = await self._sealer()
        return await self.act(actor, "secret.set", name, tenant, store)

    async def secrets(self, tenant: str) -> list[SecretRecord]:
        """Every secret of a tenant, by name, without its value. Raises Problem not_found."""

        def find(db: apsw.Connection) -> list[SecretRecord]:
            _existing(db, tenant)
            return _secret_rows(db, "WHERE tenant = ? ORDER BY name", (tenant,))

        return await self.read(find)

    async def delete_secret(self, tenant: str, name: str, *, actor: str) -> None:
        """Forget a secret. Raises Problem not_found."""

        def delete(db: apsw.Connection) -> None:
            _existing(db, tenant)
            if not rows(db, "DELETE FROM secrets WHERE tenant = ? AND name = ? RETURNING 1", (tenant, name)):
                raise Problem(Code.NOT_FOUND, f"tenant {tenant!r} has no secret {name[:64]!r}")

        await self.act(actor, "secret.delete", name, tenant, delete)

    async def opened_secrets(self, tenant: str) -> dict[str, Secret]:
        """Every secret of a tenant with its value, by name: for the supervisor, which puts them into requests.

        Raises Problem `unavailable` when there are some and the secrets key is missing or another one.
        """
        found = await self.read(
            lambda db: rows(db, "SELECT name, hosts, sealed FROM secrets WHERE tenant = ? ORDER BY name", (tenant,))
        )
        if not found:
            return {}
        sealer = await self._sealer()
        opened = {}
        for name, hosts_text, sealed in found:
            hosts = tuple(json.loads(hosts_text))
            opened[name] = Secret(name, hosts, sealer.open(tenant, name, hosts, sealed))
        return opened

    async def _sealer(self) -> Any:
        # Imported late: most who open a control store have no secrets, and cryptography takes 40 ms.
        from engine.control.sealing import BadKey, Sealer, parse_key

        key, file = self._settings.secrets_key, self._settings.secrets_key_file
        source = "tenants.secrets_key"
        try:
            if key is None and file is not None:
                source = "tenants.secrets_key_file"
                key = await trio.to_thread.run_sync(partial(file.read_text, encoding="ascii"))
            if key is None:
                raise Problem(
                    Code.UNAVAILABLE,
                    "secrets need a key: set tenants.secrets_key or tenants.secrets_key_file to 32 random bytes in "
                    "base64 (`head -c 32 /dev/urandom | base64`)",
                )
            return Sealer(parse_key(key))
        except BadKey as bad:
            raise Problem(Code.UNAVAILABLE, f"{source}: {bad}") from None
        except OSError as error:
            raise Problem(Code.UNAVAILABLE, f"{source}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise Problem(Code.UNAVAILABLE, f"{source}: expected 32 bytes in base64") from None

    # ---- audit ---------------------------------------------------------------------------------------------------

    async def audit(
        self, *, tenant: str | None = None, since: float | None = None, limit: int = 1000
    ) -> list[AuditRow]:
        """The last `limit` rows of the audit log, oldest first; of a tenant (also one that is gone), since a time."""

        def find(db: apsw.Connection) -> list[AuditRow]:
            found = rows(
                db,
                "SELECT at, actor, action, target, outcome, tenant FROM audit "
                "WHERE (:tenant IS NULL OR tenant = :tenant) AND (:since IS NULL OR at >= :since) "
                "ORDER BY n DESC LIMIT :limit",
                {"tenant": tenant, "since": since, "limit": limit},
            )
            return [AuditRow(*row) for row in reversed(found)]

        return await self.read(find)

    def note_refused_call(self, tenant: str, script: str, call: str) -> None:
        """A host call was denied to a script. At once: the row is written by `keep_audit`, repeats as one."""
        self._refusals.note(tenant, _plain(script), _plain(call))

    async def keep_audit(self) -> None:
        """Write what `note_refused_call` was told, until cancelled; what came last is written then."""
        await self._refusals.keep(self._database)


# ---- opening ----------------------------------------------------------------------------------------------------


def settings_of(config: Config) -> Settings:
    """What a configuration says about tenants."""
    tenants = config.tenants
    return Settings(config.db.path, tenants.operator_key, tenants.secrets_key, tenants.secrets_key_file)


@asynccontextmanager
async def open_control(
    path: Path, settings: Settings, *, create: bool = False, clock: Callable[[], float] = time.time
) -> AsyncIterator[ControlStore]:
    """The control store in the file `path`, for as long as the block lasts.

    Made at once with `create`; else the file appears with the first thing that is written to it, and until then the
    store is empty but for the tenant `default`. Raises StoreError for a file that cannot be used.
    """
    async with open_database(path, create=create, clock=clock) as database:
        store = ControlStore(database, settings, clock)
        raised: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.keep_audit)
            try:
                yield store
            except Exception as error:
                raised = error  # out of the nursery as it is: one that leaves it would come out wrapped in a group
            nursery.cancel_scope.cancel()
        if raised is not None:
            raise raised


@asynccontextmanager
async def open_configured(config: Config) -> AsyncIterator[ControlStore]:
    """The control store of a configuration; where tenants are on, it is made at once.

    Raises StoreError, and ConfigError for a secrets key that is none.
    """
    if config.tenants.secrets_key is not None:
        from engine.control.sealing import BadKey, parse_key

        try:
            parse_key(config.tenants.secrets_key)
        except BadKey as bad:
            raise ConfigError(f"tenants.secrets_key: {bad}") from None
    async with open_control(control_path(config), settings_of(config), create=config.tenants.enabled) as store:
        yield store


# ---- rows and values --------------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    """A name as the audit log keeps it: bounded, and text that SQLite can hold."""
    return text[:128].encode("utf-8", "backslashreplace").decode()


def _tenant(row: Sequence[Any]) -> TenantRecord:
    name, state, created_at, quotas, ceilings, weight = row
    return TenantRecord(name, state, created_at, json.loads(quotas), json.loads(ceilings), weight)


def _tenant_rows(db: apsw.Connection, where: str, bindings: Sequence[Any] = ()) -> list[TenantRecord]:
    return [_tenant(row) for row in rows(db, f"SELECT {_TENANT} FROM tenants {where}", bindings)]


def _existing(db: apsw.Connection, name: str) -> TenantRecord:
    # New names are compared without case, existing ones exactly: a tenant has one name.
    found = [record for record in _tenant_rows(db, "WHERE name = ?", (_plain(name),)) if record.name == name]
    if not found:
        raise Problem(Code.NOT_FOUND, f"there is no tenant {name[:64]!r}")
    return found[0]


def _key(row: Sequence[Any]) -> KeyRecord:
    identifier, tenant, prefix, scopes, created_at, expires_at, revoked_at = row
    return KeyRecord(identifier, tenant, prefix, frozenset(json.loads(scopes)), created_at, expires_at, revoked_at)


def _key_rows(db: apsw.Connection, where: str, bindings: Sequence[Any]) -> list[KeyRecord]:
    return [_key(row) for row in rows(db, f"SELECT {_KEY} FROM keys k {where}", bindings)]


def _secret_rows(db: apsw.Connection, where: str, bindings: Sequence[Any]) -> list[SecretRecord]:
    return [
        SecretRecord(tenant, name, tuple(json.loads(hosts)), created_at, updated_at)
        for tenant, name, hosts, created_at, updated_at in rows(db, f"SELECT {_SECRET} FROM secrets {where}", bindings)
    ]


def _check_value(value: str) -> None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Problem(Code.BAD_REQUEST, "the value of a secret must be text in UTF-8") from None
    if not 1 <= size <= _MAX_SECRET_BYTES:
        raise Problem(
            Code.BAD_REQUEST, f"the value of a secret has 1 to {_MAX_SECRET_BYTES} bytes, this one has {size}"
        )


def _check_hosts(hosts: Sequence[str]) -> list[str]:
    """Where a secret may be sent: rules as in `allow_hosts`, at least one, and never everywhere."""
    if not 1 <= len(hosts) <= _MAX_HOSTS:
        raise Problem(Code.BAD_REQUEST, f"a secret is bound to 1 to {_MAX_HOSTS} hosts, this one to {len(hosts)}")
    for host in hosts:
        try:
            parse_rule(host)
        except ValueError as error:
            raise Problem(Code.BAD_REQUEST, f"host {host[:100]!r}: {error}") from None
        if host.strip().startswith("*") and not host.strip().startswith("*."):
            raise Problem(Code.BAD_REQUEST, "a secret is bound to hosts by name; '*' would send it to anybody")
    return list(dict.fromkeys(hosts))

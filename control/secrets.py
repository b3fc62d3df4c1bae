"""Secrets in the control store: sealed, bound to hosts, and opened for the supervisor only."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import trio

from control.audit import AuditLog
from control.database import Database
from control.records import SecretRecord, check_secret_name
from control.tenants import existing
from engine.egress.rules import parse_rule
from engine.errors import Code, Problem
from storage.lanes import rows

if TYPE_CHECKING:
    from control.sealing import Sealer

_MAX_SECRET_BYTES = 64 * 1024
_MAX_HOSTS = 32
# Every log line of the tenant's scripts, and every answer of a bound host, is searched for each secret.
_MAX_SECRETS = 64

_SECRET = "tenant, name, hosts, created_at, updated_at"


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret with its value, and the hosts that it may be sent to (rules as in `allow_hosts`)."""

    name: str
    hosts: tuple[str, ...]
    value: str


class Secrets:
    """The secrets of every tenant. Every method may raise Problem `unavailable`.

    Methods that change something take the `actor` that the audit log names. The sealing key is `key`, or else the
    content of `key_file`.
    """

    def __init__(
        self,
        database: Database,
        audit: AuditLog,
        clock: Callable[[], float],
        *,
        key: str | None,
        key_file: Path | None,
    ) -> None:
        self._database = database
        self._audit = audit
        self._clock = clock
        self._key = key
        self._key_file = key_file

    async def set(self, tenant: str, name: str, value: str, hosts: Sequence[str], *, actor: str) -> SecretRecord:
        """Store a secret, replacing one of the same name. Its value is sent to these hosts only.

        Raises Problem: bad_request (its name, value or hosts), not_found, conflict (too many), unavailable (no secrets
        key).
        """

        def store(db: apsw.Connection) -> SecretRecord:
            owner = existing(db, tenant)
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
            return _records(db, "WHERE tenant = ? AND name = ?", (tenant, name))[0]

        sealer = await self._sealer()
        return await self._audit.act(actor, "secret.set", name, tenant, store)

    async def all(self, tenant: str) -> list[SecretRecord]:
        """Every secret of a tenant, by name, without its value. Raises Problem not_found."""

        def find(db: apsw.Connection) -> list[SecretRecord]:
            existing(db, tenant)
            return _records(db, "WHERE tenant = ? ORDER BY name", (tenant,))

        return await self._database.read(find)

    async def delete(self, tenant: str, name: str, *, actor: str) -> None:
        """Delete a secret. Raises Problem not_found."""

        def delete(db: apsw.Connection) -> None:
            existing(db, tenant)
            if not rows(db, "DELETE FROM secrets WHERE tenant = ? AND name = ? RETURNING 1", (tenant, name)):
                raise Problem(Code.NOT_FOUND, f"tenant {tenant!r} has no secret {name[:64]!r}")

        await self._audit.act(actor, "secret.delete", name, tenant, delete)

    async def opened(self, tenant: str) -> dict[str, Secret]:
        """Every secret of a tenant with its value, by name: for the supervisor, which puts them into requests.

        Raises Problem `unavailable` if the tenant has secrets and the secrets key is missing or a different one.
        """
        found = await self._database.read(
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

    async def _sealer(self) -> "Sealer":
        # Imported late: most control stores have no secrets, and importing cryptography takes 40 ms.
        from control.sealing import BadKey, Sealer, parse_key

        key, file = self._key, self._key_file
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


def _records(db: apsw.Connection, where: str, bindings: Sequence[Any]) -> list[SecretRecord]:
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
    """The hosts that a secret may be sent to: rules as in `allow_hosts`, at least one, and never all hosts."""
    if not 1 <= len(hosts) <= _MAX_HOSTS:
        raise Problem(Code.BAD_REQUEST, f"a secret is bound to 1 to {_MAX_HOSTS} hosts, this one to {len(hosts)}")
    for host in hosts:
        try:
            parse_rule(host)
        except ValueError as error:
            raise Problem(Code.BAD_REQUEST, f"host {host[:100]!r}: {error}") from None
        if host.strip().startswith("*") and not host.strip().startswith("*."):
            raise Problem(Code.BAD_REQUEST, "a secret is bound to hosts by name; '*' would send it to any host")
    return list(dict.fromkeys(hosts))

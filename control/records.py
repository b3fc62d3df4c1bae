"""The records of the control store, and the checks of values that are put in. Pure: no file, no clock.

Times are seconds since the epoch; in JSON they are RFC 3339 texts in UTC, or null.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from pydantic import TypeAdapter, ValidationError

from engine.config import QuotaTable
from engine.errors import Code, Problem
from engine.names import nearest
from engine.quota import QUOTAS
from knowledge.access import check_labels
from sandbox.wire.limits import SPECS

State = Literal["active", "suspended"]
Scope = Literal["use", "publish", "admin"]

# What a key may do: call agents and tools; upload versions; approve and activate them, as far as a tenant itself may.
SCOPES: tuple[Scope, ...] = get_args(Scope)
QUOTA_NAMES = tuple(QUOTAS)
_QUOTA_TABLE: TypeAdapter[dict[str, float]] = TypeAdapter(QuotaTable)

# Names of tenants appear in names of files and in options of commands: no leading dot or dash.
_TENANT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
# A Lua field, so that scripts can write `secrets.NAME`.
_SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PERIOD = re.compile(r"([0-9]{1,9})([smhdw])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
# The last second that RFC 3339 can write.
_LAST_SECOND = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()


def shown_time(at: float | None) -> str | None:
    """A time as JSON shows it: `2026-01-31T12:00:00Z`, in UTC, in whole seconds."""
    if at is None:
        return None
    return datetime.fromtimestamp(int(at), UTC).replace(tzinfo=None).isoformat() + "Z"


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """One tenant. `quotas` and `ceilings` hold only its own; `weight` is its share of CPU time."""

    name: str
    state: State
    created_at: float
    quotas: Mapping[str, float] = field(default_factory=dict)
    ceilings: Mapping[str, float] = field(default_factory=dict)
    weight: float = 1.0

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "state": self.state, "created_at": shown_time(self.created_at),
            "quotas": dict(self.quotas), "ceilings": dict(self.ceilings), "weight": self.weight,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One API key, without its secret. `prefix` is its readable beginning, by which people recognise it.

    With it, documents can be read that have no labels, or one of `labels`.
    """

    id: str
    tenant: str
    prefix: str
    scopes: frozenset[str]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    labels: frozenset[str] = frozenset()

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id, "tenant": self.tenant, "prefix": self.prefix,
            "scopes": [scope for scope in SCOPES if scope in self.scopes], "created_at": shown_time(self.created_at),
            "expires_at": shown_time(self.expires_at), "revoked_at": shown_time(self.revoked_at),
            "labels": sorted(self.labels),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class SecretRecord:
    """One secret, without its value. It is sent to `hosts` only (rules as in `allow_hosts`)."""

    tenant: str
    name: str
    hosts: tuple[str, ...]
    created_at: float
    updated_at: float

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "tenant": self.tenant, "hosts": list(self.hosts),
            "created_at": shown_time(self.created_at), "updated_at": shown_time(self.updated_at),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One row of the audit log. `outcome` is `ok`, or the code of the refusal.

    `actor` is `operator`, `cli`, `key:ID`, `oauth:ISSUER:SUBJECT` or `script:NAME`. No field holds the value of an
    argument.
    """

    at: float
    actor: str
    action: str
    target: str
    outcome: str
    tenant: str | None

    def as_json(self) -> dict[str, Any]:
        return {
            "at": shown_time(self.at), "actor": self.actor, "action": self.action, "target": self.target,
            "outcome": self.outcome, "tenant": self.tenant,
        }  # fmt: skip


# ---- checks of values -------------------------------------------------------------------------------------------


def storable(text: str) -> str:
    """A name as the store keeps it: bounded, and text that SQLite can hold."""
    return text[:128].encode("utf-8", "backslashreplace").decode()


def _bad(message: str) -> Problem:
    return Problem(Code.BAD_REQUEST, message)


def hint(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the most similar known one, or else all of them."""
    known = list(known)
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"


def _unknown(what: str, name: str, known: Iterable[str]) -> Problem:
    return _bad(f"unknown {what} {name[:64]!r}; {hint(name, known)}")


def check_tenant_name(name: str) -> str:
    """Return the name if a new tenant may have it. Raises Problem (400)."""
    if _TENANT_NAME.fullmatch(name) is None:
        raise _bad(
            f"{name[:80]!r} cannot name a tenant; expected 1 to 64 ASCII letters, digits, '_', '.' or '-', "
            "not beginning with '.' or '-'"
        )
    return name


def check_secret_name(name: str) -> str:
    """Return the name if a secret may have it. Raises Problem (400)."""
    if _SECRET_NAME.fullmatch(name) is None:
        raise _bad(
            f"{name[:80]!r} cannot name a secret; expected 1 to 64 ASCII letters, digits or '_', not beginning with a "
            "digit: scripts write secrets.NAME"
        )
    return name


def check_scopes(scopes: Iterable[str]) -> frozenset[str]:
    """The scopes of a new key, at least one. Raises Problem (400)."""
    found = frozenset(scopes)
    for scope in sorted(found - set(SCOPES)):
        raise _unknown("scope", scope, SCOPES)
    if not found:
        raise _bad(f"a key needs at least one scope; known: {', '.join(SCOPES)}")
    return found


def labels_of_key(labels: Iterable[str]) -> frozenset[str]:
    """The labels of a new key. Raises Problem (400)."""
    try:
        return check_labels(labels)
    except ValueError as error:
        raise _bad(f"labels: {error}") from None


def check_quotas(given: Mapping[str, Any]) -> dict[str, float]:
    """Quotas of one tenant, by the names and bounds of `[tenants.quota]`. Raises Problem (400)."""
    for name in given:
        if name not in QUOTA_NAMES:
            raise _unknown("quota", name, QUOTA_NAMES)
    if any(value is None for value in given.values()):
        raise _bad("a quota is a number; leave out those that stay at their default")
    # JSON has one kind of number: 5.0 is a whole one.
    whole = {
        name: int(value) if isinstance(value, float) and _is_whole(value) else value for name, value in given.items()
    }
    try:
        return _QUOTA_TABLE.validate_python(whole)
    except ValidationError as invalid:
        error = invalid.errors()[0]
        name = str(error["loc"][0])
        raise _bad(f"quota {name}: {error['msg'][:1].lower()}{error['msg'][1:]}") from None


def _is_whole(value: float) -> bool:
    return value.is_integer() and abs(value) < 2**53


def check_ceilings(given: Mapping[str, Any]) -> dict[str, float]:
    """Ceilings of one tenant's runs, by the names and units of `[limits.max]`. Raises Problem (400)."""
    found: dict[str, float] = {}
    for name, value in given.items():
        if name not in SPECS:
            raise _unknown("limit", name, SPECS)
        spec = SPECS[name]
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value <= 0 or (spec.integral and value != int(value)):
            raise _bad(
                f"ceiling {name}: expected {'a whole number' if spec.integral else 'a number'} above 0 ({spec.unit})"
            )
        found[name] = spec.kind(value)
    return found


def check_weight(weight: Any) -> float:
    """A tenant's share of CPU time against the others'. Raises Problem (400)."""
    number = isinstance(weight, int | float) and not isinstance(weight, bool) and math.isfinite(weight)
    if not number or not 0.01 <= weight <= 100:
        raise _bad("weight: expected a number from 0.01 to 100")
    return float(weight)


def parse_time(text: str, name: str, or_else: str = "") -> float:
    """A date or RFC 3339 time; without an offset it is in UTC. Raises Problem (400) that calls it `name`."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        expected = f"{or_else}a date (2027-01-31) or a time (2027-01-31T12:00:00Z)"
        raise _bad(f"{name}: expected {expected}, got {text[:40]!r}") from None


def since(text: str, now: float) -> float:
    """The moment that `text` names: a period before now (`2h`, `7d`), a date or a time. Raises Problem (400)."""
    match = _PERIOD.fullmatch(text)
    if match is not None:
        return now - int(match[1]) * _SECONDS[match[2]]
    return parse_time(text, "since", "a period (90s, 30m, 12h, 30d, 8w), ")


def expiry(text: str, now: float) -> float:
    """When a key with the expiry `text` ends: a period (`90s`, `30m`, `12h`, `30d`, `8w`), a date or a time.

    Raises Problem (400), also for a moment that has passed.
    """
    match = _PERIOD.fullmatch(text)
    if match is not None:
        at = now + int(match[1]) * _SECONDS[match[2]]
    else:
        at = parse_time(text, "expires", "a period (90s, 30m, 12h, 30d, 8w), ")
    if not now < at <= _LAST_SECOND:
        raise _bad(f"expires: {text[:40]!r} is not in the future, or after the year 9999")
    return at

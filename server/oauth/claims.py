"""The rule from a token's claims to tenant, scopes and key. Pure.

The claims were signed by their issuer, so they are what it said; that is no reason to trust their types.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.config.oauth import IssuerConfig
from engine.tenant import DEFAULT_TENANT
from server.oauth.token import Reason, Refused

# Clocks of issuers and of this machine differ; RFC 7519 section 4.1.4 allows "no more than a few minutes".
LEEWAY_S = 60.0

# Keys of this form are themselves in audit rows and usage; others appear as a digest. `sha256-` begins the digests.
_PLAIN = re.compile(r"(?!sha256-)[A-Za-z0-9_.@|+-]{1,64}", re.ASCII)
_LAST_SECOND = 253_402_300_799.0


@dataclass(frozen=True, slots=True)
class Grant:
    """What a verified token grants, between two moments in seconds since the epoch. `key` names its sender."""

    issuer: str
    tenant: str
    key: str
    scopes: frozenset[str]
    not_before: float
    expires_at: float
    labels: frozenset[str] = frozenset()

    def check_time(self, now: float) -> None:
        """Raise Refused outside of its time."""
        if now >= self.expires_at + LEEWAY_S:
            raise Refused(Reason.EXPIRED)
        if now < self.not_before - LEEWAY_S:
            raise Refused(Reason.EARLY)


def read_claims(name: str, issuer: IssuerConfig, audience: tuple[str, ...], claims: Mapping[str, Any]) -> Grant:
    """What the claims of a token of the issuer with this name in the configuration grant. Raises Refused."""
    if "cnf" in claims:  # RFC 7800: its bearer has to prove the possession of a key
        raise Refused(Reason.BOUND)
    heard = claims.get("aud")
    if not any(isinstance(each, str) and each in audience for each in (heard if isinstance(heard, list) else (heard,))):
        raise Refused(Reason.AUDIENCE, "aud")
    expires_at = _moment(claims, "exp")
    if expires_at is None:
        raise Refused(Reason.CLAIMS, "exp")
    not_before = max(_moment(claims, "nbf") or 0.0, _moment(claims, "iat") or 0.0)
    key = _found(claims, issuer.key_claim)
    if not isinstance(key, str) or not key:
        raise Refused(Reason.CLAIMS, ".".join(issuer.key_claim))
    return Grant(
        name, _tenant(issuer, claims), key_name(name, key), _scopes(issuer, claims), not_before, expires_at,
        _labels(issuer, claims),
    )  # fmt: skip


def key_name(issuer: str, subject: str) -> str:
    """How usage and the audit log name the sender: no two subjects, and no two issuers, share a name."""
    if _PLAIN.fullmatch(subject) is None:
        subject = f"sha256-{hashlib.sha256(subject.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"
    return f"oauth:{issuer}:{subject}"


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    """A NumericDate (RFC 7519 section 2)."""
    value = claims.get(name)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= _LAST_SECOND or not math.isfinite(value):
        raise Refused(Reason.CLAIMS, name)
    return float(value)


def _found(claims: Any, path: tuple[str, ...]) -> Any:
    """The value at the end of a path of names; None where there is none."""
    for name in path:
        if not isinstance(claims, Mapping):
            return None
        claims = claims.get(name)
    return claims


def _texts(claims: Mapping[str, Any], path: tuple[str, ...], *, split: bool) -> list[str]:
    """The texts of a claim that is a text or a list of texts; with `split` a text holds several, between spaces."""
    value = _found(claims, path)
    if value is None:
        return []
    if isinstance(value, str):
        return value.split(" ") if split else [value]
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    raise Refused(Reason.CLAIMS, ".".join(path))


def _tenant(issuer: IssuerConfig, claims: Mapping[str, Any]) -> str:
    if issuer.tenant_claim is None:
        assert issuer.tenant is not None  # the configuration has one of both
        return issuer.tenant
    values = _texts(claims, issuer.tenant_claim, split=False)
    if issuer.tenants:
        named = {issuer.tenants.get(value) for value in values} - {None}
    else:
        # Names of tenants are ASCII; the store does not take half of a surrogate pair. The default tenant is there
        # before any other, and is the operator's: a user who names an organization must not get it by that name.
        named = {value for value in values if value.isascii() and value != DEFAULT_TENANT.id}
    if len(named) != 1:  # none, or a choice that no rule makes
        raise Refused(Reason.TENANT, f"{'.'.join(issuer.tenant_claim)} names {len(named)} tenants")
    (tenant,) = named
    assert tenant is not None
    return tenant


def _scopes(issuer: IssuerConfig, claims: Mapping[str, Any]) -> frozenset[str]:
    given = set(_texts(claims, issuer.scopes_claim, split=True))
    granted = {scope for scope in type(issuer.scopes).model_fields if not given.isdisjoint(issuer.scopes.names(scope))}
    return frozenset(granted | set(issuer.default_scopes))


def _labels(issuer: IssuerConfig, claims: Mapping[str, Any]) -> frozenset[str]:
    """The labels that a claim names, by the rule of the issuer's table."""
    if issuer.labels_claim is None:
        return frozenset()
    return issuer.labels_of(_texts(claims, issuer.labels_claim, split=False))

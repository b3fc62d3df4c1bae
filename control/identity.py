"""The sender of a request: the tenant, the key and what that key may do. Pure."""

from dataclasses import dataclass

from control.records import SCOPES, TenantRecord
from engine.tenant import DEFAULT_TENANT, Tenant


@dataclass(frozen=True, slots=True)
class Identity:
    """The sender of a request. `key_id` is None for the operator's key, and where no keys are required.

    `scopes` are what the key may do for its tenant; `operator` may do everything, for every tenant. With a token,
    `issuer` is the name of its issuer in the configuration, and `key_id` is `oauth:ISSUER:SUBJECT`.
    """

    tenant: Tenant
    key_id: str | None
    scopes: frozenset[str]
    operator: bool
    issuer: str | None = None

    @property
    def actor(self) -> str:
        """How the audit log names it."""
        if self.issuer is not None and self.key_id is not None:
            return self.key_id
        return f"key:{self.key_id}" if self.key_id is not None else "operator" if self.operator else "anonymous"


# Without tenants: any client may do everything but what only the machine's owner may do (`LOCAL`).
ANONYMOUS = Identity(DEFAULT_TENANT, None, frozenset(SCOPES), operator=False)
LOCAL = Identity(DEFAULT_TENANT, None, frozenset(SCOPES), operator=True)


def tenant_of(record: TenantRecord) -> Tenant:
    """The tenant as the engine knows it, with its own ceilings and quotas."""
    return Tenant(record.name, record.weight, record.ceilings, record.quotas)

"""Who a request is for, and how the limits of its run come about: the smallest of script, tenant and engine wins."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from sandbox.wire.limits import SPECS, Limits, limits_of

LimitSource = Literal["script", "tenant", "engine"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """An isolated user of the engine. `weight` is its share in the fair pick; `ceilings` bound its runs' limits.

    `quotas` are what all its runs together may use, by the names of `[tenants.quota]`, which holds where
    nothing was said for this one. `key` is the id of the API key by which it asks, if it asks by one.
    """

    id: str
    weight: float = 1.0
    ceilings: Mapping[str, float] = field(default_factory=dict)
    quotas: Mapping[str, float] = field(default_factory=dict)
    key: str | None = None


DEFAULT_TENANT = Tenant("default")


@dataclass(frozen=True, slots=True)
class BoundLimits:
    """The limits of one run and who set each: what an error names as `limit.source`."""

    values: Limits
    sources: Mapping[str, LimitSource]

    def __getitem__(self, name: str) -> float:
        value = getattr(self.values, name)
        assert isinstance(value, int | float)
        return value


def within(limits: BoundLimits, left: Mapping[str, float]) -> BoundLimits:
    """The limits of a run on behalf of another, which has this much left of some of its own: the smaller wins."""
    lowered = {name: SPECS[name].kind(amount) for name, amount in left.items() if amount < limits[name]}
    return BoundLimits(msgspec.structs.replace(limits.values, **lowered), limits.sources)


def bind_limits(
    asked: Mapping[str, float],
    tenant: Tenant,
    defaults: Mapping[str, float],
    ceilings: Mapping[str, float],
) -> BoundLimits:
    """Bind every limit of `SPECS`: what the script asks, else the default, lowered to both ceilings.

    `asked` is the script's own wish, `defaults` is `[limits]`, `ceilings` is `[limits.max]`; all in the unit of the
    spec. A limit that was lowered, or that nobody asked for, is the tenant's or engine's, and an error says so.
    """
    values: dict[str, float] = {}
    sources: dict[str, LimitSource] = {}
    for name, spec in SPECS.items():
        candidates: list[tuple[float, LimitSource]] = [
            (asked[name], "script") if name in asked else (defaults.get(name, spec.default), "engine")
        ]
        if name in tenant.ceilings:
            candidates.append((tenant.ceilings[name], "tenant"))
        candidates.append((ceilings.get(name, spec.ceiling), "engine"))
        # Of equal ones the first, which is the nearest.
        values[name], sources[name] = min(candidates, key=lambda candidate: candidate[0])
    return BoundLimits(limits_of(values), sources)

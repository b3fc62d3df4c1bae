"""The tenant of a request, and the limits of its run: the smallest of script, tenant and engine wins."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from knowledge.access import EVERYTHING, Reader
from sandbox.wire.limits import SPECS, Limits, limits_of

LimitSource = Literal["script", "tenant", "engine"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """An isolated user of the engine. `weight` is its share in the fair pick; `ceilings` bound its runs' limits.

    `quotas` bound all its runs together, by the names of `[tenants.quota]`, whose values are the defaults. `key` is the
    id of the API key that the request came with, if any. `reader` says which documents the request may read.
    """

    id: str
    weight: float = 1.0
    ceilings: Mapping[str, float] = field(default_factory=dict)
    quotas: Mapping[str, float] = field(default_factory=dict)
    key: str | None = None
    reader: Reader = EVERYTHING


DEFAULT_TENANT = Tenant("default")


@dataclass(frozen=True, slots=True)
class BoundLimits:
    """The limits of one run, and who set each: `limit.source` of an error."""

    values: Limits
    sources: Mapping[str, LimitSource]

    def __getitem__(self, name: str) -> float:
        value = getattr(self.values, name)
        assert isinstance(value, int | float)
        return value


def within(limits: BoundLimits, left: Mapping[str, float]) -> BoundLimits:
    """The limits of a run nested in one that has `left` of some of its own: the smaller wins."""
    lowered = {name: SPECS[name].kind(amount) for name, amount in left.items() if amount < limits[name]}
    return BoundLimits(msgspec.structs.replace(limits.values, **lowered), limits.sources)


def bind_limits(
    asked: Mapping[str, float],
    tenant: Tenant,
    defaults: Mapping[str, float],
    ceilings: Mapping[str, float],
) -> BoundLimits:
    """Bind every limit of `SPECS`: what the script asks, else the default, lowered to both ceilings.

    `asked` is what the script asks for, `defaults` is `[limits]`, `ceilings` is `[limits.max]`; all in the unit of the
    spec. The source of a lowered limit, or of a default, is the tenant or the engine, and an error says so.
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
        # Of equal candidates the first, which is nearest to the script.
        values[name], sources[name] = min(candidates, key=lambda candidate: candidate[0])
    return BoundLimits(limits_of(values), sources)

"""Finds the families of host calls: each file of this package that defines `FAMILY`."""

import pkgutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from engine import bridge
from engine.bridge import HostFunction
from engine.quota import BoundQuotas, bind_quotas
from engine.tenant import Tenant
from knowledge.store import Mode, Store
from storage.kv import KvStore


def usual_quotas(tenant: Tenant) -> BoundQuotas:
    """A tenant's own quotas, else those of the list."""
    return bind_quotas(tenant, {}, workers=1)


@dataclass(frozen=True, slots=True)
class Host:
    """What families work with.

    `store_of` returns the store of a tenant, by its id; `default_limit` is `retrieval.final_limit`, `default_mode` the
    key of that name beside it. `environ` has the variables that an operator may grant. No script may read the files and
    folders in `private`. `kv` has the keys of scripts, `quotas_of` the quotas of a tenant.
    """

    store_of: Callable[[str], Store]
    default_limit: int
    environ: Mapping[str, str]
    private: tuple[Path, ...] = ()
    kv: KvStore | None = None
    quotas_of: Callable[[Tenant], BoundQuotas] = usual_quotas
    default_mode: Mode = "keyword"


@dataclass(frozen=True, slots=True)
class Family:
    """A family: `open` makes its host calls, and keeps their resources open until its block ends."""

    open: Callable[[Host], AbstractAsyncContextManager[tuple[HostFunction, ...]]]

    @classmethod
    def plain(cls, functions: Callable[[Host], tuple[HostFunction, ...]]) -> "Family":
        """A family without resources."""

        @asynccontextmanager
        async def opened(host: Host) -> AsyncIterator[tuple[HostFunction, ...]]:
            yield functions(host)

        return cls(opened)


def families() -> tuple[Family, ...]:
    """Every family, in the order of file names."""
    names = (module.name for module in pkgutil.iter_modules(bridge.__path__))
    found = (getattr(import_module(f"{bridge.__name__}.{name}"), "FAMILY", None) for name in names)
    return tuple(family for family in found if isinstance(family, Family))


@asynccontextmanager
async def open_families(host: Host) -> AsyncIterator[tuple[HostFunction, ...]]:
    """The host calls of every family."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(family.open(host)) for family in families()]
        yield tuple(function for functions in opened for function in functions)

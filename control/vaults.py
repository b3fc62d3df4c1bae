"""The secrets of tenants for the engine, out of the control store: opened once, and again when something changed."""

import os
from collections import OrderedDict

import structlog

from control.store import ControlStore
from engine.egress.secrets import EMPTY_VAULT, BoundSecret, Vault
from engine.errors import Problem

log = structlog.get_logger("engine.control")

# Tenants whose opened secrets are kept in memory, those that ran last.
_KEPT = 1024


class Vaults:
    """An `engine.egress.secrets.SecretSource` over a control store. Raises nothing: the vault has its `trouble`."""

    def __init__(self, control: ControlStore) -> None:
        self._control = control
        self._path = str(control.path)
        self._generation: int | None = None
        # Invariant: all of them as they were at `_generation`.
        self._kept: OrderedDict[str, Vault] = OrderedDict()

    async def vault(self, tenant: str) -> Vault:
        """The tenant's secrets as they are now. Without a thread, while no control action came in between."""
        # There is no file before the first tenant, key or secret, and no run must wait to hear that.
        if not self._kept and not _is_there(self._path):
            return EMPTY_VAULT
        generation = self._control.generation()
        if generation != self._generation:
            self._generation = generation
            self._kept.clear()
        if (kept := self._kept.get(tenant)) is not None:
            self._kept.move_to_end(tenant)
            return kept
        found = await self._opened(tenant)
        if generation == self._control.generation() == self._generation:  # nothing changed while we looked
            self._kept[tenant] = found
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found

    async def _opened(self, tenant: str) -> Vault:
        try:
            opened = await self._control.secrets.opened(tenant)
        except Problem as problem:
            log.error("the secrets of a tenant cannot be used", tenant=tenant, reason=problem.message)
            return Vault(trouble=problem.message)
        if not opened:
            return EMPTY_VAULT
        return Vault(BoundSecret.from_rules(each.name, each.value, each.hosts) for each in opened.values())


def _is_there(path: str) -> bool:
    """2 us, where a `Path` would take four times that, and a thread 100."""
    return os.path.exists(path)

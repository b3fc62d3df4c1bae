"""While serving, the documents of all tenants get their vectors: in the background, one store at a time."""

import os
from pathlib import Path

import structlog
import trio

from control.store import ControlStore
from engine.config import Config
from engine.errors import Problem
from engine.tenant import DEFAULT_TENANT
from knowledge.embed import embed_pending
from knowledge.embedding import Embedders
from knowledge.sqlite.store import open_store
from knowledge.store import StoreError
from knowledge.stores import store_path

log = structlog.get_logger("agents.embedding")

# How often files are looked at, and how long a store that failed is left alone. A look is two calls of stat a tenant,
# so that a tenant whose documents do not change costs nothing else.
EVERY_S = 5.0
AGAIN_S = 60.0
# Texts embedded at once: 8 ms of the static model, of which a thread holds the interpreter.
BATCH = 16

# When a store's files were written to, as far as stat says.
Stamp = tuple[tuple[int, int, int], ...]


async def keep_embedded(config: Config, control: ControlStore, embedders: Embedders) -> None:
    """Embed what syncs write, in this process or another one. Runs until cancelled."""
    seen: dict[str, Stamp] = {}
    until: dict[str, float] = {}
    while True:
        await trio.sleep(EVERY_S)
        stamps = await trio.to_thread.run_sync(_stamps, config.db.path)
        for tenant, stamp in stamps.items():
            if seen.get(tenant) == stamp or until.get(tenant, 0) > trio.current_time():
                continue
            if await _embed(config, control, embedders, tenant):
                seen[tenant] = stamp  # as it was before: what is written from now on is another one
            else:
                until[tenant] = trio.current_time() + AGAIN_S
        for gone in seen.keys() - stamps.keys():
            del seen[gone]


async def _embed(config: Config, control: ControlStore, embedders: Embedders, tenant: str) -> bool:
    """Embed what is pending in the tenant's store; False where some could not be."""
    try:
        room = await _room(config, control, tenant)
        path = store_path(config.db.path, tenant)
        async with open_store(path, readers=1, max_bytes=room) as store:
            batch = min(BATCH, config.embedding.batch_size)
            report = await embed_pending(store, embedders.current, batch_size=batch, rest=_rest)
    except (StoreError, Problem) as error:
        log.warning("documents are not embedded", tenant=tenant, error=str(error))
        return False
    if report.error is not None:
        log.warning("documents are not embedded", tenant=tenant, error=report.error, pending=report.pending)
    return report.error is None


async def _rest(seconds: float) -> None:
    """Leave at least half of a core to runs and searches."""
    await trio.sleep(seconds)


async def _room(config: Config, control: ControlStore, tenant: str) -> int | None:
    """Bound on the size of the tenant's documents: its quota less the size of its published packages."""
    if not config.tenants.enabled:
        return None
    quotas = (await control.tenants.for_runs(tenant)).quotas
    bound = quotas.get("stored_bytes", config.tenants.quota["stored_bytes"])
    assert bound is not None
    return max(0, int(bound) - await control.versions.stored_bytes(tenant))


def _stamps(path: Path) -> dict[str, Stamp]:
    """The stores that exist, by tenant."""
    folder = path.parent / "tenants"
    tenants = sorted(each.stem for each in folder.glob("*.sqlite")) if folder.is_dir() else []
    found = {}
    for tenant in (DEFAULT_TENANT.id, *tenants):
        try:
            file = Path(os.path.realpath(store_path(path, tenant)))
        except ValueError:  # not a tenant's
            continue
        if stamp := tuple(_stamp(each) for each in (file, file.with_name(file.name + "-wal")) if each.exists()):
            found[tenant] = stamp
    return found


def _stamp(file: Path) -> tuple[int, int, int]:
    try:
        found = file.stat()
    except FileNotFoundError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns

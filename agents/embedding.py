"""While serving, the documents of all tenants get their vectors: in the background, one store at a time."""

import os
from pathlib import Path

import structlog
import trio

from control.identity import tenant_of
from control.store import ControlStore
from engine.config import Config
from engine.engine import Engine
from engine.errors import Problem
from engine.scheduling.background import Deferred, background
from engine.tenant import DEFAULT_TENANT, Tenant
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
# How long one store is embedded before the others are looked at.
TURN_S = 15.0
# Texts embedded at once: 8 ms of the static model, of which a thread holds the interpreter.
BATCH = 16

# When a store's files were written to, as far as stat says.
Stamp = tuple[tuple[int, int, int], ...]


async def keep_embedded(config: Config, control: ControlStore, embedders: Embedders, engine: Engine) -> None:
    """Embed what syncs write, in this process or another one. Runs until cancelled."""
    seen: dict[str, Stamp] = {}
    until: dict[str, float] = {}
    while True:
        await trio.sleep(EVERY_S)
        stamps = await trio.to_thread.run_sync(_stamps, config.db.path)
        for name, stamp in stamps.items():
            if seen.get(name) == stamp or until.get(name, 0) > trio.current_time():
                continue
            try:
                done = await _embed(config, control, embedders, engine, name)
            except Deferred:  # the next look goes on with it
                continue
            if done:
                seen[name] = stamp  # as it was before: what is written from now on is another one
            else:
                until[name] = trio.current_time() + AGAIN_S
        for gone in seen.keys() - stamps.keys():
            del seen[gone]


async def _embed(config: Config, control: ControlStore, embedders: Embedders, engine: Engine, name: str) -> bool:
    """Embed what is pending in the tenant's store; False where some could not be.

    Raises Deferred where the rest has to wait: its tenant is suspended or has used up its CPU time, or it is the turn
    of the next store.
    """
    try:
        tenant = await _active(config, control, name)
        if not engine.may_work(tenant):
            raise Deferred
        room = await _room(config, control, tenant)
        path = store_path(config.db.path, name)
        batch = min(BATCH, config.embedding.batch_size)
        async with (
            open_store(path, readers=1, max_bytes=room) as store,
            background(engine, tenant, "embedding") as work,
        ):
            looked = begun = trio.current_time()

            async def rest(seconds: float) -> None:
                nonlocal looked
                await trio.sleep(seconds)  # at least half of a core is for runs and searches
                await work.rest()
                if trio.current_time() > looked + EVERY_S:
                    await _active(config, control, name)
                    looked = trio.current_time()
                if looked > begun + TURN_S:
                    raise Deferred

            report = await work.run(embed_pending(store, embedders.current, batch_size=batch, rest=rest))
    except (StoreError, Problem) as error:
        log.warning("documents are not embedded", tenant=name, error=str(error))
        return False
    if report.error is not None:
        log.warning("documents are not embedded", tenant=name, error=report.error, pending=report.pending)
    return report.error is None


async def _active(config: Config, control: ControlStore, name: str) -> Tenant:
    """The tenant. Raises Deferred for one that is suspended, Problem."""
    if not config.tenants.enabled:
        return Tenant(name)
    record = await control.tenants.get(name)
    if record.state != "active":
        raise Deferred
    return tenant_of(record)


async def _room(config: Config, control: ControlStore, tenant: Tenant) -> int | None:
    """Bound on the size of the tenant's documents: its quota less the size of its published packages."""
    if not config.tenants.enabled:
        return None
    bound = tenant.quotas.get("stored_bytes", config.tenants.quota["stored_bytes"])
    assert bound is not None
    return max(0, int(bound) - await control.versions.stored_bytes(tenant.id))


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

"""`engine kv`: the keys that scripts keep."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from cli.control import tenant_of, when
from cli.options import AsJson, ConfigPath, TenantName, load
from cli.output import FAILED, UNUSABLE, Exit, quiet_logs, say, say_json, table
from control.files import kv_path
from control.records import shown_time
from engine.bridge.kv import MAX_KEY_BYTES, MAX_LISTED, MAX_VALUE_BYTES, KvError, KvStore, Listed, Place, open_kv
from engine.names import valid_name
from engine.values import encode_value, is_plain

app = App(name="kv", help="List, print, set and delete the keys that scripts keep.")

Script = Annotated[str, Parameter(help="Whose keys: agent:NAME or tool:NAME.", negative=())]
_MAX_DEPTH = 64


@asynccontextmanager
async def _open(config: Path | None, tenant: str, script: str) -> AsyncIterator[tuple[KvStore, str]]:
    """The store, which a server may have open too, and the tenant's id."""
    quiet_logs()
    root, _, name = script.partition(":")
    if root not in ("agent", "tool") or not valid_name(name):
        raise Exit(UNUSABLE, f"{script!r} names no script: expected agent:NAME or tool:NAME")
    loaded = load(config)
    who = await tenant_of(tenant, loaded)
    try:
        async with open_kv(kv_path(loaded.config.db.path)) as store:
            yield store, who.id
    except KvError as error:
        raise Exit(UNUSABLE, str(error)) from None


def _key(text: str) -> bytes:
    key = text.encode("utf-8", "surrogateescape")
    if not 1 <= len(key) <= MAX_KEY_BYTES:
        raise Exit(UNUSABLE, f"a key has 1 to {MAX_KEY_BYTES} bytes, this one {len(key)}")
    return key


@app.command(name="list")
async def list_keys(
    script: Script,
    /,
    *,
    prefix: Annotated[str, Parameter(help="Only keys that begin with this.")] = "",
    config: ConfigPath = None,
    as_json: AsJson = False,
    tenant: TenantName = "default",
) -> None:
    """List the keys of a script, with the sizes of their values."""
    rows = []
    async with _open(config, tenant, script) as (store, who):
        after: bytes | None = b""
        while after is not None:
            found, after = await store.listed(who, script, prefix.encode(), after=after, limit=MAX_LISTED)
            rows += found
    if as_json:
        say_json({"keys": [_as_json(row) for row in rows]})
        return
    table(
        ((row.key.decode(), row.size, row.version, when(row.expires_at, "never")) for row in rows),
        heading=("KEY", "BYTES", "VERSION", "EXPIRES"),
        indent="",
    )


def _as_json(row: Listed) -> dict[str, Any]:
    expires_at = shown_time(row.expires_at)
    return {"key": row.key.decode(), "version": row.version, "bytes": row.size, "expires_at": expires_at}


@app.command
async def get(script: Script, key: str, /, *, config: ConfigPath = None, tenant: TenantName = "default") -> None:
    """Print the value of a key as JSON."""
    async with _open(config, tenant, script) as (store, who):
        entry = await store.get(who, script, _key(key))
    if entry is None:
        raise Exit(FAILED, f"{script} has no key {key[:64]!r}")
    say_json(msgspec.msgpack.decode(entry.value))


@app.command(name="set")
async def set_key(
    script: Script,
    key: str,
    value: Annotated[str, Parameter(help="The value as JSON, but not null.")],
    /,
    *,
    ttl: Annotated[float | None, Parameter(help="The key expires after so many seconds.")] = None,
    config: ConfigPath = None,
    tenant: TenantName = "default",
) -> None:
    """Set a key. The tenant's quota does not hold here."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        raise Exit(UNUSABLE, "the value is not JSON; a text has quotes of its own: '\"text\"'") from None
    encoded = encode_value(found) if found is not None and is_plain(found, _MAX_DEPTH) else b""
    if not 0 < len(encoded) <= MAX_VALUE_BYTES:
        raise Exit(UNUSABLE, f"a value is JSON data but null, of at most {MAX_VALUE_BYTES} bytes as MessagePack")
    if ttl is not None and not 0 < ttl < 1e10:
        raise Exit(UNUSABLE, f"--ttl: expected seconds above 0, got {ttl:g}")
    async with _open(config, tenant, script) as (store, who):
        await store.set(Place(who, script, _key(key)), encoded, ttl_s=ttl, max_bytes=1 << 62)
    say(f"Set: {key} of {script}")


@app.command
async def delete(script: Script, key: str, /, *, config: ConfigPath = None, tenant: TenantName = "default") -> None:
    """Delete a key."""
    async with _open(config, tenant, script) as (store, who):
        changed = await store.delete(Place(who, script, _key(key)))
    if not changed.done:
        raise Exit(FAILED, f"{script} has no key {key[:64]!r}")
    say(f"Deleted: {key} of {script}")

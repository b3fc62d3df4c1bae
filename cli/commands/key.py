"""`engine key`: API keys of tenants."""

import time
from typing import Annotated

from cyclopts import App, Parameter

from cli.control import ACTOR, control_for, warn_if_off, when
from cli.options import AsJson, ConfigPath
from cli.output import note, say, say_json, table
from control.key_text import ended
from control.records import expiry

app = App(name="key", help="Create, list and revoke API keys.")


@app.command
async def create(
    tenant: str,
    /,
    *,
    scopes: Annotated[str, Parameter(help="Its scopes: use, publish, admin, separated by commas.")] = "use",
    expires: Annotated[
        str | None, Parameter(help="When it expires: a period (30d, 12h), a date or a time. Default: never.")
    ] = None,
    labels: Annotated[
        str, Parameter(help="Its labels, separated by commas: it reads documents that have one of them, or none.")
    ] = "",
    config: ConfigPath = None,
    as_json: AsJson = False,
) -> None:
    """Create a key for a tenant and print it. It is printed once, and not stored."""
    async with control_for(config) as (loaded, control):
        record, key = await control.keys.create(
            tenant,
            actor=ACTOR,
            scopes=_split(scopes),
            expires_at=None if expires is None else expiry(expires, time.time()),
            labels=_split(labels),
        )
    warn_if_off(loaded)
    if as_json:
        say_json({"id": record.id, "key": key, **record.as_json()})
        return
    say(key)
    note(f"id {record.id}, for tenant {tenant}, expires: {when(record.expires_at, 'never')}; it is not shown again")


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@app.command(name="list")
async def list_keys(tenant: str, /, *, config: ConfigPath = None, as_json: AsJson = False) -> None:
    """List the keys of a tenant, including revoked and expired ones."""
    async with control_for(config) as (_, control):
        found = await control.keys.all(tenant)
    if as_json:
        say_json({"keys": [record.as_json() for record in found]})
        return
    now = time.time()
    table(
        (
            (
                record.id,
                f"{record.prefix}…",
                ",".join(record.as_json()["scopes"]),
                ",".join(sorted(record.labels)),
                when(record.created_at),
                when(record.expires_at, "never"),
                "revoked" if record.revoked_at else "expired" if ended(record.expires_at, now) else "good",
            )
            for record in found
        ),
        heading=("ID", "KEY", "SCOPES", "LABELS", "CREATED", "EXPIRES", "STATE"),
        indent="",
    )


@app.command
async def revoke(
    identifier: Annotated[str, Parameter(name="ID", help="The id that `create` and `list` print.")],
    /,
    *,
    config: ConfigPath = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key. A running server refuses it from the next request on."""
    async with control_for(config) as (_, control):
        record = await control.keys.revoke(identifier, actor=ACTOR)
    say_json(record.as_json()) if as_json else say(f"Revoked: {record.id} of tenant {record.tenant}")

"""`engine secret`: values that scripts use without seeing them."""

import sys
from getpass import getpass
from typing import Annotated

from cyclopts import App, Parameter

from cli.control import ACTOR, control_for, when
from cli.options import AsJson, ConfigPath
from cli.output import UNUSABLE, Exit, say, say_json, table

app = App(name="secret", help="Set, list and delete secrets of tenants.")

# More than the store accepts, so that a value that is too long is refused and not truncated.
_READ_BYTES = 1024 * 1024


@app.command(name="set")
async def set_secret(
    tenant: str,
    name: str,
    /,
    *,
    host: Annotated[
        list[str] | None, Parameter(help="A host that it may be sent to, as in allow_hosts. Repeatable.", negative=())
    ] = None,
    config: ConfigPath = None,
    as_json: AsJson = False,
) -> None:
    """Set a secret. Its value is read from standard input; one line break at its end is removed."""
    if not host:
        raise Exit(UNUSABLE, "--host HOST is required: a secret is sent only to its hosts")
    value = _read()
    async with control_for(config) as (_, control):
        record = await control.secrets.set(tenant, name, value, host, actor=ACTOR)
    say_json(record.as_json()) if as_json else say(f"Set: {record.name} of tenant {tenant}")


def _read() -> str:
    if sys.stdin.isatty():
        return getpass("Value: ")
    raw = sys.stdin.buffer.read(_READ_BYTES)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise Exit(UNUSABLE, "the value on standard input is not text in UTF-8") from None
    return text.removesuffix("\n").removesuffix("\r")


@app.command(name="list")
async def list_secrets(tenant: str, /, *, config: ConfigPath = None, as_json: AsJson = False) -> None:
    """List the secrets of a tenant: names and hosts, never values."""
    async with control_for(config) as (_, control):
        found = await control.secrets.all(tenant)
    if as_json:
        say_json({"secrets": [record.as_json() for record in found]})
        return
    table(
        ((record.name, ", ".join(record.hosts), when(record.updated_at)) for record in found),
        heading=("SECRET", "HOSTS", "SET"),
        indent="",
    )


@app.command
async def delete(tenant: str, name: str, /, *, config: ConfigPath = None) -> None:
    """Delete a secret."""
    async with control_for(config) as (_, control):
        await control.secrets.delete(tenant, name, actor=ACTOR)
    say(f"Deleted: {name} of tenant {tenant}")

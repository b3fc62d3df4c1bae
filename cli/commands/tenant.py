"""`engine tenant`: the tenants besides `default`, their quotas and their usage."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from cli.control import ACTOR, control_for, numbers, warn_if_off, when
from cli.options import AsJson, ConfigPath
from cli.output import UNUSABLE, Exit, note, one_line, plural, say, say_json, table
from control.moving import back_up, export_tenant, import_tenant
from control.records import TenantRecord
from engine import usage as sums

app = App(name="tenant", help="Create, suspend, move and delete tenants; show their usage.")

Quotas = Annotated[
    list[str] | None, Parameter(name="--quota", help="A quota, as NAME=NUMBER. Repeatable.", negative=())
]
Ceilings = Annotated[
    list[str] | None,
    Parameter(name="--ceiling", help="A ceiling for a limit of its runs, as NAME=NUMBER. Repeatable.", negative=()),
]


def _show(record: TenantRecord) -> None:
    say(f"Tenant:   {record.name}")
    say(f"State:    {record.state}")
    say(f"Created:  {when(record.created_at)}")
    say(f"Weight:   {record.weight:g}")
    for title, values in (("Quotas:", record.quotas), ("Ceilings:", record.ceilings)):
        said = ", ".join(f"{name}={value:g}" for name, value in values.items())
        say(f"{title:<9} {said or 'as configured'}")


@app.command
async def create(
    name: str,
    /,
    *,
    quota: Quotas = None,
    ceiling: Ceilings = None,
    weight: Annotated[float, Parameter(help="Its share of CPU time, relative to other tenants.")] = 1.0,
    config: ConfigPath = None,
    as_json: AsJson = False,
) -> None:
    """Create a tenant. It has no key yet: `engine key create NAME` creates one."""
    quotas, ceilings = numbers(quota, "--quota"), numbers(ceiling, "--ceiling")
    async with control_for(config) as (loaded, control):
        record = await control.tenants.create(name, actor=ACTOR, quotas=quotas, ceilings=ceilings, weight=weight)
    warn_if_off(loaded)
    say_json(record.as_json()) if as_json else say(f"Created: {record.name}")


@app.command
async def change(
    name: str,
    /,
    *,
    quota: Quotas = None,
    ceiling: Ceilings = None,
    weight: Annotated[float | None, Parameter(help="Its share of CPU time, relative to other tenants.")] = None,
    config: ConfigPath = None,
    as_json: AsJson = False,
) -> None:
    """Change quotas, ceilings or the weight of a tenant; all others are kept."""
    quotas, ceilings = numbers(quota, "--quota"), numbers(ceiling, "--ceiling")
    async with control_for(config) as (_, control):
        was = await control.tenants.get(name)
        record = await control.tenants.change(
            name, actor=ACTOR, quotas={**was.quotas, **quotas}, ceilings={**was.ceilings, **ceilings}, weight=weight
        )
    say_json(record.as_json()) if as_json else _show(record)


@app.command(name="list")
async def list_tenants(*, config: ConfigPath = None, as_json: AsJson = False) -> None:
    """List the tenants."""
    async with control_for(config) as (_, control):
        found = await control.tenants.all()
    if as_json:
        say_json({"tenants": [record.as_json() for record in found]})
        return
    table(
        ((record.name, record.state, when(record.created_at)) for record in found),
        heading=("TENANT", "STATE", "CREATED"),
        indent="",
    )


@app.command
async def show(name: str, /, *, config: ConfigPath = None, as_json: AsJson = False) -> None:
    """Show one tenant."""
    async with control_for(config) as (_, control):
        record = await control.tenants.get(name)
    say_json(record.as_json()) if as_json else _show(record)


@app.command
async def suspend(name: str, /, *, config: ConfigPath = None, as_json: AsJson = False) -> None:
    """Suspend a tenant: none of its keys works until it is resumed. A running server sees it with the next request."""
    await _set_state(name, "suspended", config, as_json)


@app.command
async def resume(name: str, /, *, config: ConfigPath = None, as_json: AsJson = False) -> None:
    """Resume a suspended tenant."""
    await _set_state(name, "active", config, as_json)


async def _set_state(name: str, state: Literal["active", "suspended"], config: Path | None, as_json: bool) -> None:
    async with control_for(config) as (_, control):
        record = await control.tenants.set_state(name, state, actor=ACTOR)
    say_json(record.as_json()) if as_json else say(f"{record.name}: {record.state}")


@app.command
async def delete(
    name: str,
    /,
    *,
    yes: Annotated[bool, Parameter(help="Confirm: the deletion cannot be undone.", negative=())] = False,
    config: ConfigPath = None,
    as_json: AsJson = False,
) -> None:
    """Delete a tenant with its knowledge, agents, keys, secrets and usage, and show that nothing is left."""
    if not yes:
        raise Exit(UNUSABLE, f"this deletes everything that tenant {name!r} has; confirm with --yes")
    async with control_for(config) as (_, control):
        proof = await control.tenants.delete(name, actor=ACTOR)
    if as_json:
        say_json(proof)
        return
    say(f"Deleted: {name}")
    table(
        ((kind, count, proof["left"][kind]) for kind, count in proof["removed"].items()),
        heading=("WHAT", "REMOVED", "LEFT"),
        indent="  ",
    )


@app.command(name="export")
async def export_one(
    name: str,
    /,
    *,
    output: Annotated[
        Path | None, Parameter(name=("--output", "-o"), help="Write this file, by default NAME.tar.", negative=())
    ] = None,
    config: ConfigPath = None,
) -> None:
    """Export a tenant to a file for `engine tenant import`. A server may be running."""
    async with control_for(config) as (loaded, control):
        to = Path(f"{name}.tar") if output is None else output
        await export_tenant(control, loaded.config.db.path, name, to, actor=ACTOR)
    note(f"exported tenant {name} to {to}")


@app.command(name="import")
async def import_one(file: Path, /, *, config: ConfigPath = None) -> None:
    """Import a tenant from a file of `engine tenant export`. Its keys stay valid."""
    async with control_for(config) as (loaded, control):
        name = await import_tenant(control, loaded.config.db.path, file, actor=ACTOR)
    say(f"Imported: {one_line(name)}")


@app.command
async def backup(folder: Path, /, *, config: ConfigPath = None) -> None:
    """Copy the control store and every tenant's knowledge into a new folder. A server may be running."""
    async with control_for(config) as (loaded, control):
        written = await back_up(control, loaded.config.db.path, folder, actor=ACTOR)
    for name in written:
        say(name)
    note(f"copied {plural(len(written), 'file')} to {folder}")


@app.command
async def usage(
    name: Annotated[str | None, Parameter(help="Only this tenant.")] = None,
    /,
    *,
    csv: Annotated[
        bool, Parameter(help="Print CSV: a line for every tenant, agent, version, key and day.", negative=())
    ] = False,
    config: ConfigPath = None,
    as_json: AsJson = False,
) -> None:
    """Show the usage of tenants. A running server writes its sums every few seconds."""
    async with control_for(config) as (_, control):
        if name is not None:
            await control.tenants.get(name)
        sheet = await control.usage.read(name)
    if csv:
        print(sums.as_csv(sheet), end="")
    elif as_json:
        say_json({"usage": sums.rows(sheet.items())})
    else:
        table(
            (
                (a.tenant, a.day, a.agent, a.key or "-", s.runs, f"{s.cpu_us / 1e3:.0f}", f"{s.wall_us / 1e3:.0f}")
                for a, s in sorted(sheet.items(), key=lambda pair: pair[0])
            ),
            heading=("TENANT", "DAY", "AGENT", "KEY", "RUNS", "CPU ms", "WALL ms"),
            indent="",
        )

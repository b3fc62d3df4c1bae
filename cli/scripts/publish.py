"""`engine agent publish|versions|activate|approve|deprecate`, and the same for `engine tool`.

They write to the control store. A running server sees the change with the next request.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import trio
from cyclopts import App, Parameter

from agents.package import Root
from agents.publishing.publish import SHARED, Action, Deciding
from cli.control import tenant_of
from cli.options import AsJson, ConfigPath, TenantName, load
from cli.output import FAILED, Exit, say, say_json, table, warn
from cli.scripts.package import read_package
from cli.scripts.run import opened
from control.identity import Identity
from control.records import SCOPES
from control.store import open_configured
from control.versions.grants import parse_grants
from control.versions.share import ALL
from engine.tenant import BoundLimits, Tenant, bind_limits

Folder = Annotated[Path, Parameter(help="A folder with a manifest.toml or manifest.json, a script, and its files.")]
# A float: cyclopts rounds a text to a whole number.
Percent = Annotated[float, Parameter(help="Serve it to so many percent of the callers; below 100 it is a canary.")]
_DIGEST_SHOWN = 12


def add_to(app: App, root: Root) -> None:
    """Add the commands on published versions to the commands of agents or of tools."""

    async def publish(
        folder: Folder,
        /,
        *,
        percent: Percent = ALL,
        tenant: TenantName = "default",
        config: ConfigPath = None,
        as_json: AsJson = False,
    ) -> None:
        await _publish(root, folder, percent, tenant, config, as_json=as_json)

    async def versions(
        name: str, /, *, tenant: TenantName = "default", config: ConfigPath = None, as_json: AsJson = False
    ) -> None:
        await _versions(root, name, tenant, config, as_json=as_json)

    app.command(publish, help=f"Publish a folder as a version of {_a(root)}; print the grants that it requests.")
    app.command(versions, help=f"List the published versions of {_a(root)}.")
    for action, does in (
        ("activate", "Make a published version the active one."),
        ("approve", "Grant a version everything that it requests, and activate it."),
        ("deprecate", "Take a version out of service permanently."),
    ):
        app.command(_changing(root, action), name=action, help=does)  # type: ignore[arg-type]


def _changing(root: Root, action: Action) -> Callable[..., Awaitable[None]]:
    async def change(
        name: str,
        version: str,
        /,
        *,
        tenant: TenantName = "default",
        config: ConfigPath = None,
        as_json: AsJson = False,
    ) -> None:
        await _change(root, action, name, version, ALL, tenant, config, as_json=as_json)

    async def share(
        name: str,
        version: str,
        /,
        *,
        percent: Percent = ALL,
        tenant: TenantName = "default",
        config: ConfigPath = None,
        as_json: AsJson = False,
    ) -> None:
        await _change(root, action, name, version, percent, tenant, config, as_json=as_json)

    return share if action in SHARED else change


async def _change(
    root: Root,
    action: Action,
    name: str,
    version: str,
    percent: float,
    tenant: str,
    config: Path | None,
    *,
    as_json: bool,
) -> None:
    async with deciding(config, tenant) as (decisions, whose, who):
        changed = await decisions.change(whose, who, root, name, version, action, percent)
        _show(root, changed, as_json=as_json)
        if action == "approve" and changed["means"] and not as_json:
            say(changed["means"])


async def _publish(
    root: Root, folder: Path, percent: float, tenant: str, config: Path | None, *, as_json: bool
) -> None:
    body = read_package(folder)
    name = body.get("name")
    if not isinstance(name, str):
        raise Exit(FAILED, f"{folder}: the manifest has no name")
    loaded = load(config)
    whose = await tenant_of(tenant, loaded)
    async with opened(loaded) as service:
        published = await service.publishing.publish(whose, _console(whose), root, name, body, percent)
    for warning in published.version["warnings"]:
        warn(warning)
    _show(root, published.version, as_json=as_json)


async def _versions(root: Root, name: str, tenant: str, config: Path | None, *, as_json: bool) -> None:
    async with deciding(config, tenant) as (decisions, whose, who):
        found = await decisions.history(whose, who, root, name)
    if as_json:
        say_json({"versions": found})
        return
    table(
        (
            (each["version"], _state(each), each["published_at"], each["digest"][:_DIGEST_SHOWN], _asks(each))
            for each in found
        ),
        heading=("VERSION", "STATE", "PUBLISHED", "DIGEST", "ASKS FOR"),
        indent="",
    )


@asynccontextmanager
async def deciding(config: Path | None, tenant: str) -> AsyncIterator[tuple[Deciding, Tenant, Identity]]:
    """The decisions about versions, on the control store only: they need no worker."""
    loaded = load(config)
    limits = loaded.config.limits

    def bound(asked: dict[str, float], whose: Tenant) -> BoundLimits:
        return bind_limits(asked, whose, limits.defaults, limits.max)

    async def renew(name: str) -> None:
        await trio.lowlevel.checkpoint()  # a running server detects the change by itself

    whose = await tenant_of(tenant, loaded)
    async with open_configured(loaded.config) as control:
        yield Deciding(control, bound, renew), whose, _console(whose)


@dataclass(frozen=True, slots=True)
class _Console(Identity):
    """The identity of the console: write access to the engine's files allows everything."""

    @property
    def actor(self) -> str:
        return "cli"


def _console(whose: Tenant) -> Identity:
    return _Console(whose, None, frozenset(SCOPES), operator=True)


def _show(root: Root, version: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        say_json(version)
        return
    say(described(root, version))
    if version["asks"]:
        named = f"{version['name']} {version['version']}"
        say(f"It asks for more than was approved: {_asks(version)}")
        if version["means"]:
            say(version["means"])
        say(f"To see it, with what it changes: engine {root} show {named}")
        say(f"To approve that: engine {root} approve {named}")


def described(root: "Root", version: dict[str, Any]) -> str:
    """One version and its state, in a line."""
    named = f"{version['name']} {version['version']}"
    return f"{root.capitalize()} {named} ({version['digest'][:_DIGEST_SHOWN]}): {_state(version)}"


def _state(version: dict[str, Any]) -> str:
    if version["deprecated"]:
        return "deprecated"
    if 0 < version["percent"] < ALL:
        return f"{'active' if version['active'] else 'canary'} for {version['percent']} %"
    if version["active"]:
        return "active"
    return "waits for approval" if version["asks"] else "inactive"


def _asks(version: dict[str, Any]) -> str:
    return str(parse_grants(version["asks"])) if version["asks"] else ""


def _a(root: Root) -> str:
    return "an agent" if root == "agent" else "a tool"

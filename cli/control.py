"""Shared by the commands that need the control store: the open store, the tenant of `--tenant`, times."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cli.options import load, pairs
from cli.output import UNUSABLE, Exit, quiet_logs, warn
from control.records import shown_time
from control.store import ControlStore, open_configured
from engine.config import LoadedConfig
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT, Tenant

# The actor in the audit log for actions on the command line, which need write access to the control store's file.
ACTOR = "cli"


@asynccontextmanager
async def control_for(path: Path | None) -> AsyncIterator[tuple[LoadedConfig, ControlStore]]:
    """The configuration and its control store, which a server may have open too. A refused action is exit code 2."""
    quiet_logs()
    loaded = load(path)
    try:
        async with open_configured(loaded.config) as control:
            yield loaded, control
    except Problem as problem:
        raise Exit(UNUSABLE, problem.message) from None


async def tenant_of(name: str, loaded: LoadedConfig) -> Tenant:
    """The tenant that `--tenant` names, with its quotas. Raises Exit if it does not exist."""
    if name == DEFAULT_TENANT.id and not loaded.config.tenants.enabled:
        return DEFAULT_TENANT
    async with open_configured(loaded.config) as control:
        try:
            return await control.tenants.for_runs(name)
        except Problem as problem:
            if problem.code is not Code.NOT_FOUND:
                raise
            raise Exit(UNUSABLE, f"unknown tenant {name!r}") from None


def warn_if_off(loaded: LoadedConfig) -> None:
    """Warn that tenants and keys have no effect while tenants are off."""
    if not loaded.config.tenants.enabled:
        warn("tenants.enabled is false: the server requires no keys and serves only the tenant 'default'")


def when(at: float | None, otherwise: str = "") -> str:
    """A time in the form for tables."""
    return shown_time(at) or otherwise


def numbers(given: list[str] | None, option: str) -> dict[str, float]:
    """`NAME=VALUE` pairs with numbers. Raises Exit (misuse) for an invalid one."""
    found: dict[str, float] = {}
    try:
        named = pairs(given or [], option)
    except Exit as wrong:
        raise Exit(UNUSABLE, wrong.message) from None
    for name, text in named.items():
        try:
            found[name] = int(text) if text.lstrip("-").isdigit() else float(text)
        except ValueError:
            raise Exit(UNUSABLE, f"{option} {name}: expected a number, got {text[:40]!r}") from None
    return found

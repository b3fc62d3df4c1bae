"""Shared by the commands on tenants, keys, secrets and the audit log: the open control store, and times."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cli.options import load
from cli.output import UNUSABLE, Exit, quiet_logs, warn

if TYPE_CHECKING:
    from control.store import ControlStore
    from engine.config import LoadedConfig

# The actor in the audit log for actions on the command line, which need write access to the control store's file.
ACTOR = "cli"


@asynccontextmanager
async def control_for(path: Path | None) -> AsyncIterator[tuple["LoadedConfig", "ControlStore"]]:
    """The configuration and its control store, which a server may have open too. A refused action is exit code 2."""
    from control.store import open_configured
    from engine.errors import Problem

    quiet_logs()
    loaded = load(path)
    try:
        async with open_configured(loaded.config) as control:
            yield loaded, control
    except Problem as problem:
        raise Exit(UNUSABLE, problem.message) from None


def warn_if_off(loaded: "LoadedConfig") -> None:
    """Warn that tenants and keys have no effect while tenants are off."""
    if not loaded.config.tenants.enabled:
        warn("tenants.enabled is false: the server requires no keys and serves only the tenant 'default'")


def when(at: float | None, otherwise: str = "") -> str:
    """A time in the form for tables."""
    from control.records import shown_time

    return shown_time(at) or otherwise


def numbers(given: list[str] | None, option: str) -> dict[str, float]:
    """`NAME=VALUE` pairs with numbers. Raises Exit (misuse) for an invalid one."""
    from cli.options import pairs

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

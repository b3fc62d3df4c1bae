"""What the commands on tenants, keys, secrets and the audit log share: the open control store, and times."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cli.options import load
from cli.output import UNUSABLE, Exit, warn

if TYPE_CHECKING:
    from engine.config import LoadedConfig
    from engine.control.store import ControlStore

# How the audit log names what is done here: whoever may write the control store's file.
ACTOR = "cli"


@asynccontextmanager
async def control_for(path: Path | None) -> AsyncIterator[tuple["LoadedConfig", "ControlStore"]]:
    """The configuration and its control store, also while a server has it open. What is refused is exit code 2."""
    from cli.run import quiet_logs
    from engine.control.store import open_configured
    from engine.errors import Problem

    quiet_logs()
    loaded = load(path)
    try:
        async with open_configured(loaded.config) as control:
            yield loaded, control
    except Problem as problem:
        raise Exit(UNUSABLE, problem.message) from None


def warn_if_off(loaded: "LoadedConfig") -> None:
    """Tell somebody who makes tenants or keys that nothing asks for them."""
    if not loaded.config.tenants.enabled:
        warn("tenants.enabled is false: the server asks for no keys and serves the tenant 'default' alone")


def when(at: float | None, otherwise: str = "") -> str:
    """A time as tables show it."""
    from engine.control.records import shown_time

    return shown_time(at) or otherwise


def numbers(given: list[str] | None, option: str) -> dict[str, float]:
    """`NAME=VALUE` pairs with numbers. A wrong one is misuse."""
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

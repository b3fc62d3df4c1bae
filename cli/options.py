"""The options that commands share, and their first steps."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cli.output import FAILED, UNUSABLE, Exit, warn
from engine.config import LoadedConfig, load_config
from knowledge.access import EVERYTHING, Reader, parse_labels

ConfigPath = Annotated[
    Path | None,
    Parameter(name="--config", help="The configuration file, instead of the one found by default.", negative=()),
]
AsJson = Annotated[bool, Parameter(name="--json", help="Print JSON.", negative=())]
TenantName = Annotated[str, Parameter(name="--tenant", help="The tenant whose data is used.")]

AsLabels = Annotated[
    str | None,
    Parameter(
        name="--as-labels",
        help="As a reader with these labels would see it, separated by commas; an empty text: without labels.",
    ),
]


def reader_of(as_labels: str | None) -> Reader:
    """The reader that `--as-labels` names; without it, the operator. Raises Exit (misuse)."""
    try:
        return EVERYTHING if as_labels is None else Reader.of(parse_labels(as_labels))
    except ValueError as error:
        raise Exit(UNUSABLE, f"--as-labels: {error}") from None


def load(path: Path | None, *, warnings: bool = True) -> LoadedConfig:
    """The configuration for a command in this directory. Its warnings go to standard error, or with `warnings=False`
    nowhere, for a command that prints them itself.

    Raises ConfigError.
    """
    loaded = load_config(path, environ=os.environ, cwd=Path.cwd())
    for warning in loaded.warnings if warnings else ():
        warn(warning)
    return loaded


def shown(path: Path, base: Path | None = None) -> str:
    """A path as a user would type it: relative to `base` (or the working directory) if it is inside it."""
    base = base or Path.cwd()
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)


def pairs(given: list[str], option: str) -> dict[str, str]:
    """`k=v` pairs of a repeatable option. A wrong one is the caller's failed input (exit 1), as the contract says."""
    found: dict[str, str] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise Exit(FAILED, f"{option} {item!r}: expected NAME=VALUE")
        if key in found:
            raise Exit(FAILED, f"{option} {key}: given twice")
        found[key] = value
    return found

"""One kind of tool a file: its class, and for the kinds of `[tools]`, `KIND`, by which it is found."""

from collections.abc import Mapping
from typing import Any

from agents.code.kind import Kind, discover
from agents.tool import Tool


def found() -> Mapping[str, Kind[Any, Tool]]:
    """The kinds of tools that can be configured, by their tables of the configuration."""
    return discover(__name__, __path__)

"""One kind of agent a file: its class, and `KIND`, by which it is found."""

from collections.abc import Mapping
from typing import Any

from agents.agent import Agent
from agents.code.kind import Kind, discover


def found() -> Mapping[str, Kind[Any, Agent]]:
    """The kinds of agents, by their tables of the configuration."""
    return discover(__name__, __path__)

"""What the tests of agents share: a small project on disk, and one look at problems."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agents.agent import Call
from engine.errors import Code, Problem
from engine.tenant import DEFAULT_TENANT

CALL = Call(DEFAULT_TENANT)

# Small: two workers, none in reserve.
_HEAD = '[db]\npath = "data/store.sqlite"\n[sandbox]\nworkers = 2\nreserve = 0\n'


@dataclass
class Project:
    """A directory with a configuration and the scripts that it names."""

    folder: Path

    def configure(self, text: str = "") -> None:
        (self.folder / "engine.toml").write_text(_HEAD + text)

    def script(self, name: str, source: str | bytes, keys: str = "") -> str:
        """Write a script; returns its entry of the configuration."""
        path = self.folder / f"{name}.lua"
        path.write_bytes(source if isinstance(source, bytes) else source.encode())
        return f'[agents.script.{name}]\npath = "{name}.lua"\n{keys}\n'


def agent(resolve: str = "return {system = 'S'}", fields: str = "") -> str:
    """A script with this body of `agent.resolve(args, config, context)` and these further fields."""
    declared = f"agent = {{ tools = {{'search', 'get'}}, {fields} }}"
    return f"{declared}\nfunction agent.resolve(args, config, context) {resolve} end"


@asynccontextmanager
async def problem(code: Code, *parts: str) -> AsyncIterator[None]:
    """The block ends in this problem, whose message has these parts."""
    with pytest.raises(Problem) as raised:
        yield
    assert raised.value.code is code, raised.value.message
    for part in parts:
        assert part in raised.value.message

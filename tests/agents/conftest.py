"""Fixtures of the agents' tests: a project in a directory of its own, and the service that it makes."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from agents_support import Project
from python_support import Authored

from agents.service import Service, open_service
from engine.config import load_config

Open = Callable[..., AbstractAsyncContextManager[Service]]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def authored(project: Project) -> Iterator[Authored]:
    """Python modules in the project; what they leave in this interpreter is gone after the test."""
    path, modules = list(sys.path), set(sys.modules)
    yield Authored(project)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("authored_"):
            del sys.modules[name]


@pytest.fixture
def opened(project: Project) -> Open:
    """Open the service of the project, as its configuration stands."""

    @asynccontextmanager
    async def open_it(**environ: str) -> AsyncIterator[Service]:
        loaded = load_config(project.folder / "engine.toml", environ=environ, cwd=project.folder)
        async with open_service(loaded) as service:
            yield service

    return open_it

"""Fixtures of the engine's tests; what they are made of is in `engine_support.py`."""

import gc
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import warm_zygote

sys.path.insert(0, str(Path(__file__).parent))

from engine_support import FakeStore, small_config
from faults import descendants, hostile_boot

from engine.bridge import knowledge
from engine.engine import Engine, open_engine
from engine.workers import zygote


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Every engine that a test opened takes its processes and descriptors with it."""
    processes, descriptors = descendants(), len(os.listdir("/proc/self/fd"))
    yield
    assert descendants() <= processes
    if len(os.listdir("/proc/self/fd")) > descriptors:
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors


@pytest.fixture
def hostile_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of this test's engines carry out the faults of `faults.INSIDE`."""
    boot = hostile_boot(zygote._BOOT)
    monkeypatch.setattr(zygote, "_BOOT", boot)
    monkeypatch.setattr(warm_zygote, "boot", boot)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
async def engine(store: FakeStore) -> AsyncIterator[Engine]:
    async with open_engine(small_config(), knowledge.functions(lambda _: store, default_limit=12)) as engine:
        yield engine

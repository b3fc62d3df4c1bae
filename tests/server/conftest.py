"""Fixtures of the server's tests; what they are made of is in `server_support.py`."""

import sys
from collections.abc import AsyncIterator, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
import structlog.testing

sys.path.insert(0, str(Path(__file__).parent))

from server_support import Running, serving


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    """The events that were logged. Whatever clients do, none of them tells of a fault in the server's own layers."""
    capture = structlog.testing.LogCapture()
    structlog.configure(processors=[capture], cache_logger_on_first_use=False)
    yield capture.entries
    assert [entry for entry in capture.entries if entry.get("where") in ("connection", "application")] == []


@pytest.fixture
async def server() -> AsyncIterator[Running]:
    async with serving() as running:
        yield running

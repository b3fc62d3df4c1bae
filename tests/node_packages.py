"""Node and the packages of `tests/node`, where `make test` installed them; without them the tests that need them skip.

With ENGINE_NEED_NODE set they fail instead: CI must not leave any out.
"""

import os
import platform
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "tests/node"
INSTALLED = ROOT / ".venv/node"
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


def node() -> str:
    """The path of Node 22. Skips the test, or fails it, when the packages are not there."""
    machine = _MACHINES.get(platform.machine(), platform.machine())
    found = INSTALLED / f"node_modules/node-linux-{machine}/bin/node"
    if not (ROOT / ".venv/.node-ready").exists() or not found.exists():
        why = "the packages of tests/node are not installed; `make test` does that when npm is on the PATH"
        if os.environ.get("ENGINE_NEED_NODE"):
            pytest.fail(why)
        pytest.skip(why)
    return str(found)


def program(name: str) -> str:
    """The path of a program that one of the packages brings."""
    return str(INSTALLED / "node_modules/.bin" / name)

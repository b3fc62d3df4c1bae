"""What a figure was measured on, read when it is measured."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any


def facts() -> dict[str, Any]:
    """The machine and the versions that the figures depend on. `load` is the load average of the last minute."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "lupa": version("lupa"),
        "trio": version("trio"),
        "load": round(os.getloadavg()[0], 2),
    }


def line(facts: dict[str, Any]) -> str:
    """The facts in one line for people."""
    cores = f"{facts['cores']} core{'s' if facts['cores'] != 1 else ''} ({facts['processor']})"
    versions = ", ".join(f"{name} {facts[name]}" for name in ("python", "lupa", "trio"))
    return f"{cores}, kernel {facts['kernel']}, {versions}, load {facts['load']} at the start"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (text.partition(":")[2].strip() for text in lines if text.startswith("model name"))
    return next(names, platform.machine())

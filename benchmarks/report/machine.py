"""The machine and the versions behind a figure, read at the time of the measurement."""

import os
import platform
import subprocess
from functools import cache
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


def everything() -> dict[str, Any]:
    """The facts, the versions of the packages that make a load, and the commit if the source is a checkout."""
    versions = {name: version(name) for name in ("engine", "h11", "hdrhistogram")}
    return {**facts(), "versions": versions, "commit": _commit(Path(__file__).resolve().parents[2])}


@cache
def _commit(root: Path) -> str | None:
    """The commit, with `+changes` when files differ from it. None without git or a checkout."""
    if not (root / ".git").exists():
        return None
    said = []
    for words in (("rev-parse", "HEAD"), ("status", "--porcelain")):
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, encoding="utf-8", timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        said.append(done.stdout.strip())
    return said[0] + ("+changes" if said[1] else "")


def line(facts: dict[str, Any]) -> str:
    """The facts in one line of text."""
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

"""The cost of idle tenants: the start of a server, its memory, and the calls of an active tenant.

    .venv/bin/python -m benchmarks.aims.idle_tenants [--tenants 1000] [--agents 10]

Creates a control store with so many tenants, each with so many published agents, starts `engine serve` on it and calls
one agent of one tenant. Exit code 1 above 5 seconds to the start or 300 MB idle.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import trio

from benchmarks.report import machine
from control.identity import LOCAL
from control.store import open_configured
from control.versions.grants import Grants
from control.versions.records import NewVersion
from engine.config import load_config

MAX_START_S = 5.0
MAX_IDLE_MB = 300.0
CALLS = 300

_CONFIG = """
[db]
path = "engine.sqlite"
[server]
bind = "127.0.0.1:0"
[tenants]
enabled = true
[tenants.quota]
requests_per_second = 100000
burst = 100000
cpu_seconds_per_minute = 600
"""
_SCRIPT = """
agent = { description = "Answers", tools = {"search", "get"}, arguments = {{name = "topic", required = true}} }
-- A script of ordinary length.
%s
function agent.resolve(args, config, context) return { system = "About " .. args.topic } end
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--agents", type=int, default=10)
    arguments = parser.parse_args()
    print(machine.line(machine.facts()))
    with ExitStack() as stack:
        found = [measured(stack, tenants, arguments.agents) for tenants in (1, arguments.tenants)]
        # In turns, so that other load on the machine affects both alike.
        for _ in range(CALLS):
            for each in found:
                each.calls_ms.append(call(each.url, each.key))
    print(f"| tenants of {arguments.agents} agents | start | idle memory | first call | p50 of {CALLS} calls |")
    print("|---|---|---|---|---|")
    for each in found:
        print(
            f"| {each.tenants:,} | {each.start_s:.2f} s | {each.idle_mb:.0f} MB | {each.first_ms:.0f} ms "
            f"| {statistics.median(each.calls_ms):.1f} ms |"
        )
    return int(found[-1].start_s > MAX_START_S or found[-1].idle_mb > MAX_IDLE_MB)


@dataclass
class Measured:
    """A server with so many tenants. `idle_mb` is the memory of all its processes before the first request."""

    tenants: int
    url: str
    key: str
    start_s: float
    idle_mb: float
    first_ms: float
    calls_ms: list[float] = field(default_factory=list)


def measured(stack: ExitStack, tenants: int, agents: int) -> Measured:
    """A fresh server after one request; it ends with the stack."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    key = trio.run(fill, folder, tenants, agents)
    begun = time.perf_counter()
    process, url = stack.enter_context(server(folder))
    start_s = time.perf_counter() - begun
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    idle_mb = sum(each.memory_full_info().pss for each in family) / 1e6
    return Measured(tenants, url, key, start_s, idle_mb, call(url, key))


def call(url: str, key: str) -> float:
    """The time of one prompt of the first tenant's, in ms."""
    sent = time.perf_counter()
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    request = Request(f"{url}/agents/agent-3/prompt", b'{"topic": "x"}', headers)
    with urlopen(request, timeout=30) as answer:
        assert json.load(answer)["system"] == "About x"
    return (time.perf_counter() - sent) * 1000


async def fill(folder: Path, tenants: int, agents: int) -> str:
    """A control store with tenants and their agents; returns a key of the first one."""
    (folder / "engine.toml").write_text(_CONFIG)
    loaded = load_config(folder / "engine.toml", environ={}, cwd=folder)
    said = {
        "description": "Answers",
        "tools": ["search", "get"],
        "arguments": [{"name": "topic", "required": True}],
        "functions": ["resolve"],
    }
    async with open_configured(loaded.config) as control:
        for number in range(tenants):
            await control.tenants.create(f"t{number}", actor="bench")
            for agent in range(agents):
                package = _package(f"t{number} {agent}")
                digest = f"{number:032x}{agent:032x}"
                new = NewVersion(
                    "agent", f"agent-{agent}", "1", digest, package, None, Grants(), said, time.time(), "bench"
                )
                await control.versions.add(
                    f"t{number}", new, Grants(), who=LOCAL, charge=lambda cpu_s: None, max_bytes=None
                )
        _, key = await control.keys.create("t0", actor="cli")
        return key


def _package(note: str) -> bytes:
    source = _SCRIPT % f"-- {note} " + "-- a line of a comment, as scripts have them\n" * 40
    content = {
        "root": "agent", "kind": "lua", "main": "main.lua", "files": {"main.lua": source}, "tools": None,
        "arguments": None, "grants": Grants().as_json(), "config": {},
    }  # fmt: skip
    return json.dumps(content, sort_keys=True).encode()


@contextmanager
def server(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`engine serve` in a separate process, once it answers."""
    command = [sys.executable, "-m", "cli.main", "serve", "--config", str(folder / "engine.toml")]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [*command, "--directory", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=root, env={"PYTHONPATH": str(root)},
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if found := re.search(r"listening on (http://\S+)", line):
                    yield process, found[1]
                    break
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())

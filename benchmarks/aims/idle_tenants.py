"""The cost of idle tenants: the start of a server, its memory, and the calls of an active tenant.

    .venv/bin/python -m benchmarks.aims.idle_tenants [--tenants 1000] [--agents 10]

Creates a control store with so many tenants, each with so many published agents, starts `engine serve` on it and calls
one agent of one tenant. Exit code 1 above 5 seconds to the start or 300 MB idle.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import trio

from benchmarks.aims.harness import Column, Command, Figures, Server, report_of, serving, take_turns, tell, tree_mb
from benchmarks.report import machine
from benchmarks.targets.client import Client
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


@dataclass
class Measured:
    """A server with so many tenants. `idle_mb` is the memory of all its processes before the first request."""

    tenants: int
    server: Server
    key: str
    start_s: float
    idle_mb: float
    first_ms: float = 0.0
    calls_ms: list[float] = field(default_factory=list)

    async def call(self) -> float:
        """The time of one prompt of the first tenant's, on a connection of its own, in ms."""
        client = Client(self.server.address)
        sent = time.perf_counter()
        answer = await client.request("POST", "/agents/agent-3/prompt", b'{"topic": "x"}', [("x-api-key", self.key)])
        client.close()
        assert json.loads(answer.body)["system"] == "About x", answer
        return (time.perf_counter() - sent) * 1000

    def figures(self) -> Figures:
        return {
            "tenants": self.tenants, "start_s": self.start_s, "idle_mb": self.idle_mb, "first_ms": self.first_ms,
            "p50_ms": statistics.median(self.calls_ms),
        }  # fmt: skip


@asynccontextmanager
async def measured(tenants: int, agents: int) -> AsyncIterator[Measured]:
    """A fresh server after one request."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        key = await fill(folder, tenants, agents)
        begun = time.perf_counter()
        async with serving(folder / "engine.toml", subprocess.DEVNULL, folder) as server:
            start_s = time.perf_counter() - begun
            found = Measured(tenants, server, key, start_s, tree_mb(server.pid))
            found.first_ms = await found.call()
            yield found


async def measure(tenants: int, agents: int) -> list[Measured]:
    """One tenant, and many."""
    async with measured(1, agents) as one, measured(tenants, agents) as many:
        taken = await take_turns({"one": one.call, "many": many.call}, CALLS)
        one.calls_ms, many.calls_ms = taken["one"], taken["many"]
    return [one, many]


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
                digest = sha256(package).hexdigest()
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


def main() -> int:
    command = Command("idle_tenants", "The cost of idle tenants.")
    command.add_count("--tenants", 1000, "tenants beside one")
    command.add_count("--agents", 10, "agents of each tenant")
    options = command.parse_args()
    found = trio.run(measure, options.tenants, options.agents)
    result = {"machine": machine.facts(), "rows": [each.figures() for each in found]}
    columns: tuple[Column, ...] = (
        (f"tenants of {options.agents} agents", "{tenants:,}"), ("start", "{start_s:.2f} s"),
        ("idle memory", "{idle_mb:.0f} MB"), ("first call", "{first_ms:.0f} ms"),
        (f"p50 of {CALLS} calls", "{p50_ms:.1f} ms"),
    )  # fmt: skip
    tell(report_of(result, (), columns), result, options.json)
    return int(found[-1].start_s > MAX_START_S or found[-1].idle_mb > MAX_IDLE_MB)


if __name__ == "__main__":
    sys.exit(main())

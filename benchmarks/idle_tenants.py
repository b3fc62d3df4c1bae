"""What tenants cost that nobody asks for: the start of a server, its memory, and the calls of somebody else.

    .venv/bin/python -m benchmarks.idle_tenants [--tenants 1000] [--agents 10]

Makes a control store with so many tenants, each with so many published agents, starts `engine serve` on it and asks for
one agent of one tenant. Exit code 1 when a bound of the issue is passed: 5 seconds to the start, 300 MB idle.
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

import apsw
import psutil
import trio

from benchmarks import machine
from engine.config import load_config
from engine.control import versions
from engine.control.grants import Grants
from engine.control.store import open_configured
from engine.control.versions import NewVersion

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
        # In turns, so that whatever else the machine does meets both.
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
    """A server with so many tenants. `idle_mb` is of all its processes, before it was asked anything."""

    tenants: int
    url: str
    key: str
    start_s: float
    idle_mb: float
    first_ms: float
    calls_ms: list[float] = field(default_factory=list)


def measured(stack: ExitStack, tenants: int, agents: int) -> Measured:
    """A server that has just started, asked once; it ends with the stack."""
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
        now = time.time()

        def insert(db: apsw.Connection) -> None:
            for number in range(tenants):
                tenant = f"t{number}"
                db.execute("INSERT INTO tenants VALUES (?, 'active', ?, '{}', '{}', 1.0)", (tenant, now))
                for agent in range(agents):
                    package = _package(f"{tenant} {agent}")
                    digest = f"{number:032x}{agent:032x}"
                    new = NewVersion("agent", f"agent-{agent}", "1", digest, package, None, Grants(), said, now, "cli")
                    versions.add(db, tenant, new, Grants(), max_bytes=None, besides=0)

        await control.write(insert)
        _, key = await control.create_key("t0", actor="cli")
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
    """`engine serve` in a process of its own, as soon as it answers."""
    command = [sys.executable, "-m", "cli.main", "serve", "--config", str(folder / "engine.toml")]
    root = Path(__file__).resolve().parents[1]
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

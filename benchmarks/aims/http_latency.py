"""Latency as a client sees it: the real server over HTTP, one request at a time on a keep-alive connection.

    python -m benchmarks.aims.http_latency [--requests N] [--rounds N] [--json FILE]

Starts `engine serve` with the demo's configuration, a separate store that is synchronised first, and one more agent
(scenarios/incident.lua: three searches and two documents). The client is h11 on a trio stream, because its own CPU time
is part of the figures. Rows take turns; every turn starts with requests that are not counted.
"""

import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from benchmarks import scenario
from benchmarks.aims import harness
from benchmarks.aims.harness import ROOT, Command, Figures, Server
from benchmarks.targets.client import Client
from benchmarks.targets.mcp import call_of

CONFIG = ROOT / "examples" / "engine.toml"
AGENT = "incident"  # the scenario whose agent is added
STORE = 'path = "examples/.data/knowledge.sqlite"'

# p50 of an agent that searches three times and reads two documents.
AIM_MS = 5.0
SEED_MS = 142.0
WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of request. Every answer must contain `holds`; `aimed` rows are compared with the aim."""

    name: str
    method: str
    path: str
    holds: bytes
    body: bytes | None = None
    aimed: bool = False
    headers: Sequence[tuple[str, str]] = ()


def _asking(name: str, path: str, body: Any, holds: bytes, *, aimed: bool = False) -> Row:
    return Row(name, "POST", path, holds, json.dumps(body).encode(), aimed)


BUDGET = {"service": "payments-api", "availability": 99.99}  # healthy: it searches for nothing
INCIDENT = {"service": "payments-api"}
_MCP_BODY, _MCP_HEADERS = call_of("tools/call", "error-budget", BUDGET)
ROWS = (
    Row("GET /health", "GET", "/health", b'"ok"'),
    _asking("tool over REST", "/tools/error-budget", BUDGET, b'"result"'),
    Row("tool over MCP", "POST", "/mcp", b'"structuredContent"', _MCP_BODY, headers=_MCP_HEADERS),
    _asking("POST /tools/search", "/tools/search", {"query": "card declines", "limit": 5}, b'"results":[{'),
    _asking(
        "agent: 3 searches, 2 documents", "/agents/bench-incident/prompt",
        INCIDENT, b"An incident of payments-api", aimed=True,
    ),
    _asking(
        "agent: incident-responder", "/agents/incident-responder/prompt",
        INCIDENT, b"the payments-api service", aimed=True,
    ),
)  # fmt: skip


async def send(client: Client, row: Row) -> None:
    """Send one request. Anything but a 200 with the expected text is an error."""
    answer = await client.request(row.method, row.path, row.body, row.headers)
    if answer.status != 200 or row.holds not in answer.body:
        raise RuntimeError(f"{row.name}: status {answer.status}: {answer.body[:200]!r}")


@asynccontextmanager
async def open_server(folder: Path) -> AsyncIterator[Server]:
    """`engine serve` with a store below `folder`."""
    text = CONFIG.read_text(encoding="utf-8")
    if STORE not in text:
        raise RuntimeError(f"{CONFIG.name} no longer says {STORE}")
    config = folder / "engine.toml"
    store = f"path = {json.dumps(str(folder / 'knowledge.sqlite'))}"
    config.write_text(text.replace(STORE, store) + scenario.load(AGENT).server_config(), encoding="utf-8")
    sync = harness.engine_command("sync", "all", "--no-progress", "--config", str(config))
    await trio.run_process(sync, cwd=ROOT, env=harness.environ(), capture_stdout=True)
    async with harness.serving(config) as server:
        yield server


async def measure(requests: int, rounds: int) -> Figures:
    """All rows against one server."""
    with tempfile.TemporaryDirectory(prefix="engine-bench-") as folder:
        async with open_server(Path(folder)) as server:
            client = Client(server.address)

            async def turn(row: Row) -> list[float]:
                taken = await harness.timed(partial(send, client, row), -(-requests // rounds), WARM_UP)
                return [us / 1000 for us in taken]

            samples = await harness.take_turns({row: partial(turn, row) for row in ROWS}, rounds)
            client.close()
    rows = [
        {
            **harness.latencies(row.name, "requests", turns, 3, "_ms"),
            "aim_ms": AIM_MS if row.aimed else None,
            "seed_ms": SEED_MS if row.aimed else None,
        }
        for row, turns in samples.items()
    ]
    return {"rows": rows}


COLUMNS: tuple[harness.Column, ...] = (
    ("request", "{row}"), ("p50 ms", "{p50_ms:.2f}"), ("(rounds)", "{p50_min_ms:.2f}..{p50_max_ms:.2f}"),
    ("p99 ms", "{p99_ms:.2f}"), ("aim p50", lambda row: "" if row["aim_ms"] is None else f"< {row['aim_ms']:g}"),
    ("ctx p50", lambda row: "" if row["seed_ms"] is None else f"{row['seed_ms']:g}"),
)  # fmt: skip


def report(result: Figures) -> str:
    """The result as text."""
    about = (
        f"{result['requests']} requests a row in {result['rounds']} interleaved rounds, one at a time on a "
        f"kept-alive connection; {WARM_UP} requests before each turn are not counted",
    )
    return harness.report_of(result, about, COLUMNS)


def main() -> None:
    command = Command("http_latency", "Latency over HTTP.", requests=1000, rounds=10)
    harness.run_in_rounds(command, "requests", lambda _, *counts: trio.run(measure, *counts), report)


if __name__ == "__main__":
    main()

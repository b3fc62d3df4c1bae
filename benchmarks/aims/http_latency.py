"""Latency as a client sees it: the real server over HTTP, one request at a time on a keep-alive connection.

    python -m benchmarks.aims.http_latency [--requests N] [--rounds N] [--json FILE]

Starts `engine serve` with the demo's configuration, a separate store that is synchronised first, and one more agent
(scenarios/incident.lua: three searches and two documents). The client is h11 on a trio stream, because its own CPU time
is part of the figures. Rows take turns; every turn starts with requests that are not counted.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h11
import trio

from benchmarks import scenario
from benchmarks.aims.command import Command, tell
from benchmarks.report import machine
from benchmarks.report.figures import percentile, table

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "examples" / "engine.toml"
AGENT = "incident"  # the scenario whose agent is added
STORE = 'path = "examples/.data/knowledge.sqlite"'
ANNOUNCED = "server listening on http://"

# p50 of an agent that searches three times and reads two documents.
AIM_MS = 5.0
SEED_MS = 142.0
WARM_UP = 20
START_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of request. Every answer must contain `holds`; `aimed` rows are compared with the aim."""

    name: str
    method: str
    path: str
    body: Any = None
    holds: bytes = b""
    aimed: bool = False
    headers: tuple[tuple[str, str], ...] = ()


BUDGET = {"service": "payments-api", "availability": 99.99}  # healthy: it searches for nothing
_MCP_HEADERS = (
    ("accept", "application/json, text/event-stream"),
    ("mcp-protocol-version", "2026-07-28"),
    ("mcp-method", "tools/call"),
    ("mcp-name", "error-budget"),
)
_MCP_CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "error-budget",
        "arguments": BUDGET,
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "latency", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    },
}
ROWS = (
    Row("GET /health", "GET", "/health", holds=b'"ok"'),
    Row("tool over REST", "POST", "/tools/error-budget", BUDGET, b'"result"'),
    Row("tool over MCP", "POST", "/mcp", _MCP_CALL, b'"structuredContent"', headers=_MCP_HEADERS),
    Row("POST /tools/search", "POST", "/tools/search", {"query": "card declines", "limit": 5}, b'"results":[{'),
    Row(
        "agent: 3 searches, 2 documents", "POST", "/agents/bench-incident/prompt",
        {"service": "payments-api"}, b"An incident of payments-api", aimed=True,
    ),
    Row(
        "agent: incident-responder", "POST", "/agents/incident-responder/prompt",
        {"service": "payments-api"}, b"the payments-api service", aimed=True,
    ),
)  # fmt: skip


class Client:
    """HTTP/1.1 over one connection at a time."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stream: trio.SocketStream | None = None
        self._connection = h11.Connection(h11.CLIENT)

    async def connect(self) -> None:
        """Ensure a usable connection: the open one, or a new one if the server has closed that."""
        if self._stream is None or self._connection.our_state is not h11.IDLE:
            await self.close()
            host, _, port = self._address.rpartition(":")
            self._stream = await trio.open_tcp_stream(host, int(port))
            self._connection = h11.Connection(h11.CLIENT)

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None

    async def send(self, row: Row) -> bytes:
        """Send one request; returns the body of its answer. Anything but a 200 with the expected text is an error."""
        body = b"" if row.body is None else json.dumps(row.body).encode()
        headers = [("host", self._address), *row.headers]
        if body:
            headers += [("content-type", "application/json"), ("content-length", str(len(body)))]
        data = self._connection.send(h11.Request(method=row.method, target=row.path, headers=headers)) or b""
        if body:
            data += self._connection.send(h11.Data(data=body)) or b""
        data += self._connection.send(h11.EndOfMessage()) or b""
        assert self._stream is not None
        await self._stream.send_all(data)
        status, answer = await self._answer(self._stream)
        if status != 200 or row.holds not in answer:
            raise RuntimeError(f"{row.name}: status {status}: {answer[:200]!r}")
        return answer

    async def _answer(self, stream: trio.SocketStream) -> tuple[int, bytes]:
        status, parts = 0, []
        while True:
            event = self._connection.next_event()
            if event is h11.NEED_DATA:
                self._connection.receive_data(await stream.receive_some(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                if self._connection.our_state is h11.DONE:  # else the server closes the connection, as it may
                    self._connection.start_next_cycle()
                return status, b"".join(parts)
            else:
                raise RuntimeError(f"the server closed the connection ({event!r})")


@asynccontextmanager
async def open_server(folder: Path) -> AsyncIterator[str]:
    """`engine serve` with a store below `folder`; yields HOST:PORT."""
    text = CONFIG.read_text(encoding="utf-8")
    if STORE not in text:
        raise RuntimeError(f"{CONFIG.name} no longer says {STORE}")
    config = folder / "engine.toml"
    store = f"path = {json.dumps(str(folder / 'knowledge.sqlite'))}"
    config.write_text(text.replace(STORE, store) + scenario.load(AGENT).server_config(), encoding="utf-8")
    sync = [*_COMMAND, "sync", "all", "--no-progress", "--config", str(config)]
    await trio.run_process(sync, cwd=ROOT, env=_environ(), capture_stdout=True)
    async with serving(config) as address:
        yield address


_COMMAND = (sys.executable, "-m", "cli.main")


def _environ() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("ENGINE_", "CTX_"))}


@asynccontextmanager
async def serving(config: Path, stderr: int | None = None) -> AsyncIterator[str]:
    """`engine serve` with this configuration on a free port; yields HOST:PORT."""
    command = [*_COMMAND, "serve", "--config", str(config), "--bind", "127.0.0.1:0"]
    async with started(command, stderr) as (address, _):
        yield address


@asynccontextmanager
async def started(command: Sequence[str], stderr: int | None = None) -> AsyncIterator[tuple[str, trio.Process]]:
    """A server that prints its address on a line; yields HOST:PORT and its process, which ends with the block."""
    process = await trio.lowlevel.open_process(command, cwd=ROOT, env=_environ(), stdout=subprocess.PIPE, stderr=stderr)
    assert process.stdout is not None
    try:
        with trio.fail_after(START_TIMEOUT_S):
            said = b""
            while (start := said.find(ANNOUNCED.encode())) < 0 or b"\n" not in said[start:]:
                if not (data := await process.stdout.receive_some()):
                    raise RuntimeError("the server ended before it listened; its log says why")
                said += data
        yield said[start + len(ANNOUNCED) :].split(b"\n", 1)[0].decode().strip(), process
    finally:
        process.terminate()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(15):
                await process.wait()
            process.kill()  # does nothing to a process that has ended
            await process.wait()


async def measure(requests: int, rounds: int) -> list[dict[str, Any]]:
    """All rows against one server."""
    samples: dict[str, list[list[float]]] = {row.name: [] for row in ROWS}
    with tempfile.TemporaryDirectory(prefix="engine-bench-") as folder:
        async with open_server(Path(folder)) as address:
            client = Client(address)
            for number in range(rounds):
                for row in ROWS[:: -1 if number % 2 else 1]:
                    samples[row.name].append(await _turn(client, row, -(-requests // rounds)))
            await client.close()
    return [figures(row, samples[row.name]) for row in ROWS]


async def _turn(client: Client, row: Row, count: int) -> list[float]:
    taken = []
    for i in range(WARM_UP + count):
        await client.connect()
        start = time.perf_counter_ns()
        await client.send(row)
        if i >= WARM_UP:
            taken.append((time.perf_counter_ns() - start) / 1e6)
    return taken


def figures(row: Row, turns: list[list[float]]) -> dict[str, Any]:
    """p50: the median of the rounds' p50s; p99: of all requests together. Milliseconds."""
    p50s = [percentile(turn, 0.5) for turn in turns]
    return {
        "row": row.name,
        "requests": sum(map(len, turns)),
        "p50_ms": round(statistics.median(p50s), 3),
        "p50_min_ms": round(min(p50s), 3),
        "p50_max_ms": round(max(p50s), 3),
        "p99_ms": round(percentile([sample for turn in turns for sample in turn], 0.99), 3),
        "aim_ms": AIM_MS if row.aimed else None,
        "seed_ms": SEED_MS if row.aimed else None,
    }


def report(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = [
        (
            row["row"],
            f"{row['p50_ms']:.2f}",
            f"{row['p50_min_ms']:.2f}..{row['p50_max_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
            f"< {row['aim_ms']:g}" if row["aim_ms"] is not None else "",
            f"{row['seed_ms']:g}" if row["seed_ms"] is not None else "",
        )
        for row in result["rows"]
    ]
    return "\n".join(
        (
            machine.line(result["machine"]),
            f"{result['requests']} requests a row in {result['rounds']} interleaved rounds, one at a time on a "
            f"kept-alive connection; {WARM_UP} requests before each turn are not counted",
            "",
            table(("request", "p50 ms", "(rounds)", "p99 ms", "aim p50", "ctx p50"), lines),
        )
    )


def main() -> None:
    parser = Command("http_latency", "Latency over HTTP.")
    parser.add_count("--requests", 1000, "counted requests of each row")
    parser.add_count("--rounds", 10, "turns of each row")
    options = parser.parse_args()
    rounds = min(options.rounds, options.requests)
    result: dict[str, Any] = {"machine": machine.facts(), "requests": options.requests, "rounds": rounds}
    result["rows"] = trio.run(measure, options.requests, rounds)
    tell(report(result), result, options.json)


if __name__ == "__main__":
    main()

"""MCP's rate and latency beside a bare Quart-Trio route and beside FastMCP on uvicorn, with the same job, in one run.

    python -m benchmarks.aims.mcp_rate [--fastmcp-venv DIR] [--requests N] [--rounds N] [--at-once N] [--json FILE]

The job is a prompt of some 1,100 characters made by a function, and a tool whose arguments are checked and whose answer
is a small structured value: Lua in confined workers here (all layers, fresh state for every run), Python functions
inside the server process there. Requests are those of 2026-07-28, on kept-alive connections, from a light client that
always has as many in flight.

Every front end has the first core; the client has the second. The engine's workers are separate processes, so their
placement is a choice: on the client's core, which the aims refer to, or on the front end's, so that one core bears the
whole cost of the engine. Rows take turns, round by round, and every turn starts with requests that are not counted.

FastMCP is not a dependency of ours. `--fastmcp-venv DIR` names a folder for it, and installs it there if necessary;
without that option its rows are left out, and the aims have no figures.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import trio

from benchmarks.aims import mcp_peers
from benchmarks.aims.command import Command, tell
from benchmarks.aims.floor import pin
from benchmarks.aims.http_latency import started
from benchmarks.report import machine
from benchmarks.report.figures import percentile, table
from benchmarks.targets.address import Address, AddressError, parse_url, resolve
from benchmarks.targets.client import Client, Response
from benchmarks.targets.mcp import VERSIONS, message_in

# The newest version that the package index offers complete; its dependencies follow its own requirements.
FASTMCP = "fastmcp==4.1.2"
PEERS = str(Path(mcp_peers.__file__).resolve())
SERVICE = "payments-api"
WARM_UP = 100
START_TIMEOUT_S = 60.0
INSTALL_TIMEOUT_S = 600

# The aims: least multiple of FastMCP's rate, and greatest multiple of its p99.
AIM_RATE = {"prompts/get": 1.0, "tools/call": 1.5}
AIM_P99 = 0.2

INCIDENT = """
agent = { description = "Leads an incident", tools = {}, arguments = { { name = "service", required = true } } }
function agent.resolve(args)
    local service = args.service
    local lines = { "You lead the response to an incident of " .. service .. ".", "" }
    for number = 1, 12 do
        lines[#lines + 1] = ("%d. Say what you see of %s, what you take it for, "
            .. "and what would prove you wrong (step %d)."):format(number, service, number)
    end
    return { system = table.concat(lines, "\\n") }
end
"""
BUDGET = """
tool = {
    description = "What is left of a month's error budget",
    parameters = {
        type = "object",
        properties = { service = { type = "string" }, availability = { type = "number" } },
        required = { "service", "availability" },
    },
}
local function round(number) return math.floor(number * 100 + 0.5) / 100 end
function tool.execute(params)
    local allowed = (100 - params.availability) / 100 * 30 * 24 * 60
    local weeks = {}
    for week = 1, 4 do weeks[week] = { week = week, minutes = round(allowed / 4) } end
    return {
        service = params.service, availability = params.availability, minutes = round(allowed), weeks = weeks,
        advice = ("%s may be down for %.1f minutes in 30 days"):format(params.service, allowed),
    }
end
"""
CONFIG = """
[db]
path = "knowledge.sqlite"
[agents.script.incident]
path = "incident.lua"
[tools.script.budget]
path = "budget.lua"
"""
ASKED: dict[str, Any] = {"service": SERVICE, "availability": 99.99}
# Text that every answer must contain; the first and the last answer of a turn are compared completely.
MARK = {"": b"may be down for", "prompts/get": b"(step 12)", "tools/call": b"may be down for"}


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its address and its process."""

    address: Address
    pid: int


@dataclass(frozen=True, slots=True)
class Row:
    """A request and its server. `workers` is the place of the engine's: "apart" (the client's core) or "along"."""

    name: str
    server: str
    method: str = ""  # none: the bare route
    workers: str = ""

    @property
    def aimed(self) -> bool:
        return self.workers == "apart"


ROWS = (
    Row("bare Quart-Trio route", "quart-trio"),
    Row("FastMCP on uvicorn", "fastmcp", "prompts/get"),
    Row("engine", "engine", "prompts/get", "apart"),
    Row("engine, all on one core", "engine", "prompts/get", "along"),
    Row("FastMCP on uvicorn", "fastmcp", "tools/call"),
    Row("engine", "engine", "tools/call", "apart"),
    Row("engine, all on one core", "engine", "tools/call", "along"),
)


class WrongJob(Exception):
    """A server's answer is not that of the job, so its figures cannot be compared."""


def request_of(row: Row) -> tuple[str, bytes, list[tuple[str, str]]]:
    """Path, body and headers."""
    if not row.method:
        return mcp_peers.PATH, json.dumps(ASKED).encode(), []
    prompt = row.method == "prompts/get"
    name, arguments = ("incident", {"service": SERVICE}) if prompt else ("budget", ASKED)
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSIONS["2026"],
        "io.modelcontextprotocol/clientInfo": {"name": "engine-bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": name, "arguments": arguments, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": row.method, "params": params}).encode()
    headers = [
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", VERSIONS["2026"]),
        ("mcp-method", row.method),
        ("mcp-name", name),
    ]
    return "/mcp", body, headers


def check_job(row: Row, response: Response) -> None:
    """Check that the answer is the job's. Raises WrongJob."""
    try:
        value = json.loads(response.body) if not row.method else (message_in(response) or {})["result"]
        match row.method:
            case "prompts/get":
                done = value["messages"][0]["content"]["text"] == mcp_peers.incident(SERVICE)
            case "tools/call":
                done = value["structuredContent"] == mcp_peers.budget(**ASKED)
            case _:
                done = value == mcp_peers.budget(**ASKED)
    except (ValueError, KeyError, IndexError, TypeError):
        done = False
    if response.status != 200 or not done:
        raise WrongJob(f"{row.name}, {row.method or 'route'}: {response.status} {response.body[:300]!r}")


# ---- servers ----------------------------------------------------------------------------------------------------


def install(folder: Path) -> Path:
    """The Python of a folder with FastMCP, which is created and installed if necessary. Raises SystemExit."""
    python = folder / "bin" / "python"
    found = (
        python.exists()
        and not subprocess.run(
            [python, "-c", "import fastmcp"], capture_output=True, timeout=60, check=False
        ).returncode
    )
    if not found:
        print(f"installing {FASTMCP} into {folder}", file=sys.stderr)
        try:
            for command in (
                [sys.executable, "-m", "venv", str(folder)],
                [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", FASTMCP],
            ):
                subprocess.run(command, timeout=INSTALL_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise SystemExit(f"error: {FASTMCP} could not be installed into {folder}: {error}") from None
    return python


def version_of(python: Path) -> str:
    """The installed version."""
    code = "from importlib.metadata import version as v; print('fastmcp', v('fastmcp'), 'uvicorn', v('uvicorn'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@asynccontextmanager
async def running(command: Sequence[str]) -> AsyncIterator[Server]:
    """A server, once it accepts connections."""
    async with started(command) as (where, process):
        url = parse_url(f"http://{where}")
        with trio.fail_after(START_TIMEOUT_S):
            while True:  # a peer prints its port before it listens
                try:
                    address = await resolve(url, allow_remote=False)
                    break
                except AddressError:
                    if process.poll() is not None:
                        raise RuntimeError(f"{command[-1]}: ended before it listened; its log says why") from None
                    await trio.sleep(0.1)
        yield Server(address, process.pid)


def write_engine(folder: Path) -> Path:
    """The engine's configuration and scripts."""
    (folder / "incident.lua").write_text(INCIDENT, encoding="utf-8")
    (folder / "budget.lua").write_text(BUDGET, encoding="utf-8")
    (folder / "engine.toml").write_text(CONFIG, encoding="utf-8")
    return folder / "engine.toml"


def place(server: Server, front_end: int, workers: int) -> None:
    """Pin every thread of the server to one core, and its children to another (or the same)."""
    process = psutil.Process(server.pid)
    for pid, core in [(server.pid, front_end), *((each.pid, workers) for each in process.children(recursive=True))]:
        with suppress(FileNotFoundError, ProcessLookupError):  # a worker may end at any time
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), {core})


# ---- measuring --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a row: requests per second, each one's time in ms, and the front end's CPU time in us for each."""

    rate: float
    times: list[float]
    cpu_us: float


async def take_turn(row: Row, server: Server, count: int, at_once: int) -> Turn:
    """Send so many requests, with so many in flight. Raises WrongJob and what the client raises."""
    client = Client(server.address)
    path, body, headers = request_of(row)
    times: list[float] = []

    async def ask(left: list[None]) -> None:
        while left:
            left.pop()
            start = time.perf_counter_ns()
            response = await client.request("POST", path, body, headers)
            times.append((time.perf_counter_ns() - start) / 1e6)
            if response.status != 200 or MARK[row.method] not in response.body:
                raise WrongJob(f"{row.name}, {row.method}: {response.status} {response.body[:300]!r}")

    async def all_of(left: list[None]) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(ask, left)

    try:
        check_job(row, await client.request("POST", path, body, headers))
        await all_of([None] * WARM_UP)
        times.clear()
        process = psutil.Process(server.pid)
        cpu, start = _cpu(process), time.perf_counter()
        await all_of([None] * count)
        took, used = time.perf_counter() - start, _cpu(process) - cpu
        check_job(row, await client.request("POST", path, body, headers))
    finally:
        client.close()
    return Turn(count / took, times, used / count * 1e6)


def _cpu(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


async def measure(python: Path | None, requests: int, rounds: int, at_once: int) -> list[dict[str, Any]]:
    """All rows; those of FastMCP only if its Python is given."""
    everywhere = os.sched_getaffinity(0)
    front, other = sorted(everywhere)[:2]
    rows = [row for row in ROWS if row.server != "fastmcp" or python is not None]
    turns: dict[Row, list[Turn]] = {row: [] for row in rows}
    try:
        with tempfile.TemporaryDirectory(prefix="engine-bench-") as folder:
            async with AsyncExitStack() as stack:
                commands = {"quart-trio": [sys.executable, PEERS, "quart-trio"]}
                if python is not None:
                    commands["fastmcp"] = [str(python), PEERS, "fastmcp"]
                config = write_engine(Path(folder))
                serve = ["serve", "--bind", "127.0.0.1:0", "--config", str(config), "--directory", folder]
                commands["engine"] = [sys.executable, "-m", "cli.main", *serve]
                servers = {
                    name: await stack.enter_async_context(running(command)) for name, command in commands.items()
                }
                pin({other})
                for number in range(rounds):
                    for row in rows[:: -1 if number % 2 else 1]:
                        place(servers[row.server], front, front if row.workers == "along" else other)
                        turns[row].append(await take_turn(row, servers[row.server], -(-requests // rounds), at_once))
    finally:
        pin(everywhere)
    return figures(turns)


def figures(turns: dict[Row, list[Turn]]) -> list[dict[str, Any]]:
    """Rates: medians of the rounds; ratios: medians of the rounds' ratios to FastMCP's row of the same method.

    p99 is of all requests together, its ratio too. `cpu_ratio` is the ratio of the rates if front ends had their core
    to themselves and never waited: on a busy machine it varies less than the rates do. `aims` says for each aim whether
    it is met.
    """
    rows = []
    for row, taken in turns.items():
        peer = next((t for r, t in turns.items() if r.server == "fastmcp" and r.method == row.method), None)
        slowest = percentile([each for turn in taken for each in turn.times], 0.99)
        told: dict[str, Any] = {
            "row": row.name,
            "method": row.method or "POST",
            "requests": sum(len(turn.times) for turn in taken),
            "per_s": round(statistics.median(turn.rate for turn in taken), 1),
            "per_s_min": round(min(turn.rate for turn in taken), 1),
            "per_s_max": round(max(turn.rate for turn in taken), 1),
            "p50_ms": round(percentile([each for turn in taken for each in turn.times], 0.5), 3),
            "p99_ms": round(slowest, 3),
            "front_end_cpu_us": round(statistics.median(turn.cpu_us for turn in taken), 1),
            "cpu_ratio": None,
            "rate_ratio": None,
            "p99_ratio": None,
            "aims": {},
        }
        if peer is not None:
            told["cpu_ratio"] = round(
                statistics.median(b.cpu_us / max(a.cpu_us, 1) for a, b in zip(taken, peer, strict=True)), 2
            )
            told["rate_ratio"] = round(statistics.median(a.rate / b.rate for a, b in zip(taken, peer, strict=True)), 2)
            told["p99_ratio"] = round(slowest / percentile([each for turn in peer for each in turn.times], 0.99), 2)
            if row.aimed:
                told["aims"] = {
                    f"rate >= {AIM_RATE[row.method]:g}": told["rate_ratio"] >= AIM_RATE[row.method],
                    f"p99 <= {AIM_P99:g}": told["p99_ratio"] <= AIM_P99,
                }
        rows.append(told)
    return rows


def report(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = []
    for row in result["rows"]:
        keys = ("cpu_ratio", "rate_ratio", "p99_ratio")
        ratios = [f"{ratio:.2f}" if (ratio := row[key]) is not None else "" for key in keys]
        aims = ", ".join(f"{aim}: {'pass' if met else 'falls short'}" for aim, met in row["aims"].items())
        times = (f"{row['p50_ms']:.1f}", f"{row['p99_ms']:.1f}", f"{row['front_end_cpu_us']:.0f}")
        spread = f"{row['per_s_min']:.0f}..{row['per_s_max']:.0f}"
        lines.append((f"{row['method']}: {row['row']}", f"{row['per_s']:.0f}", spread, *times, *ratios, aims))
    head = (
        "row",
        "req/s",
        "(rounds)",
        "p50 ms",
        "p99 ms",
        "cpu us",
        "by cpu",
        "x rate",
        "x p99",
        "aims, against FastMCP",
    )
    beside = result["fastmcp"] or "FastMCP is left out (--fastmcp-venv DIR names a folder for it): no aim is read"
    return "\n".join(
        (
            machine.line(result["machine"]),
            beside,
            f"{result['requests']} requests a row in {result['rounds']} interleaved rounds, {result['at_once']} in "
            f"flight; {WARM_UP} requests before each turn are not counted",
            "front ends on one core, the client on another; the engine's workers on the client's, or all on one core",
            "",
            table(head, lines),
        )
    )


def main() -> None:
    parser = Command("mcp_rate", "MCP beside FastMCP.")
    parser.add_argument("--fastmcp-venv", type=Path, metavar="DIR", help="where FastMCP is, or is to be installed")
    parser.add_count("--requests", 4000, "counted requests of each row")
    parser.add_count("--rounds", 10, "turns of each row")
    parser.add_count("--at-once", 8, "requests in flight")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("two cores are needed: one for the front ends and one for the client")
    python = None if options.fastmcp_venv is None else install(options.fastmcp_venv.absolute())
    rounds = min(options.rounds, options.requests)
    result: dict[str, Any] = {
        "machine": machine.facts(),
        "fastmcp": None if python is None else version_of(python),
        "requests": options.requests,
        "rounds": rounds,
        "at_once": options.at_once,
    }
    result["rows"] = trio.run(measure, python, options.requests, rounds, options.at_once)
    tell(report(result), result, options.json)


if __name__ == "__main__":
    main()

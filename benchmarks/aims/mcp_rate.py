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

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from benchmarks.aims import harness, mcp_peers
from benchmarks.aims.contest import imports
from benchmarks.aims.harness import Command, Figures, Server
from benchmarks.targets.address import connect
from benchmarks.targets.client import Client, Response
from benchmarks.targets.mcp import call_of, message_in

# The newest version that the package index offers complete; its dependencies follow its own requirements.
FASTMCP = "fastmcp==4.1.2"
PEERS = str(Path(mcp_peers.__file__).resolve())
SERVICE = "payments-api"
WARM_UP = 100
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


def request_of(row: Row) -> tuple[str, bytes, Sequence[tuple[str, str]]]:
    """Path, body and headers."""
    if not row.method:
        return mcp_peers.PATH, json.dumps(ASKED).encode(), ()
    name, arguments = ("incident", {"service": SERVICE}) if row.method == "prompts/get" else ("budget", ASKED)
    return "/mcp", *call_of(row.method, name, arguments)


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
    if not imports(python, "fastmcp"):
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
async def open_peer(python: Path | str, kind: str) -> AsyncIterator[Server]:
    """A peer's server, once it accepts connections: it prints its port before it listens."""
    async with harness.started([str(python), PEERS, kind]) as server:
        with trio.fail_after(harness.START_TIMEOUT_S):
            while True:
                try:
                    await (await connect(server.address.host, server.address.port)).aclose()
                    break
                except OSError:
                    if server.process.poll() is not None:
                        raise RuntimeError(f"{kind}: ended before it listened; its log says why") from None
                    await trio.sleep(0.1)
        yield server


def write_engine(folder: Path) -> Path:
    """The engine's configuration and scripts."""
    (folder / "incident.lua").write_text(INCIDENT, encoding="utf-8")
    (folder / "budget.lua").write_text(BUDGET, encoding="utf-8")
    (folder / "engine.toml").write_text(CONFIG, encoding="utf-8")
    return folder / "engine.toml"


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
    left = 0

    def more() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    async def ask() -> None:
        start = time.perf_counter_ns()
        response = await client.request("POST", path, body, headers)
        times.append((time.perf_counter_ns() - start) / 1e6)
        if response.status != 200 or MARK[row.method] not in response.body:
            raise WrongJob(f"{row.name}, {row.method}: {response.status} {response.body[:300]!r}")

    try:
        check_job(row, await client.request("POST", path, body, headers))
        left = WARM_UP
        await harness.in_flight(ask, at_once, more)
        times.clear()
        left = count
        cpu, start = harness.cpu_s(server.pid), time.perf_counter()
        await harness.in_flight(ask, at_once, more)
        took, used = time.perf_counter() - start, harness.cpu_s(server.pid) - cpu
        check_job(row, await client.request("POST", path, body, headers))
    finally:
        client.close()
    return Turn(count / took, times, used / count * 1e6)


async def measure(python: Path | None, at_once: int, requests: int, rounds: int) -> list[Figures]:
    """All rows; those of FastMCP only if its Python is given."""
    front, other = sorted(os.sched_getaffinity(0))[:2]
    servers: dict[str, Server] = {}

    async def turn(row: Row) -> Turn:
        harness.place(servers[row.server].pid, front, front if row.workers == "along" else other)
        return await take_turn(row, servers[row.server], -(-requests // rounds), at_once)

    with tempfile.TemporaryDirectory(prefix="engine-bench-") as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            servers["quart-trio"] = await stack.enter_async_context(open_peer(sys.executable, "quart-trio"))
            if python is not None:
                servers["fastmcp"] = await stack.enter_async_context(open_peer(python, "fastmcp"))
            servers["engine"] = await stack.enter_async_context(harness.serving(write_engine(folder), directory=folder))
            with harness.on_cores({other}):
                turns = {row: partial(turn, row) for row in ROWS if row.server in servers}
                return figures(await harness.take_turns(turns, rounds))


def figures(turns: dict[Row, list[Turn]]) -> list[Figures]:
    """Rates: medians of the rounds; ratios: medians of the rounds' ratios to FastMCP's row of the same method.

    p99 is of all requests together, its ratio too. `cpu_ratio` is the ratio of the rates if front ends had their core
    to themselves and never waited: on a busy machine it varies less than the rates do. `aims` says for each aim whether
    it is met.
    """
    peers = {row.method: taken for row, taken in turns.items() if row.server == "fastmcp"}
    return [_figures(row, taken, peers.get(row.method)) for row, taken in turns.items()]


def _figures(row: Row, taken: list[Turn], peer: list[Turn] | None) -> Figures:
    times = [turn.times for turn in taken]
    slowest = harness.of_all(times, 0.99)
    told: Figures = {
        "row": row.name,
        "method": row.method or "POST",
        "requests": sum(map(len, times)),
        **harness.spread("per_s", [turn.rate for turn in taken], 1),
        "p50_ms": round(harness.of_all(times, 0.5), 3),
        "p99_ms": round(slowest, 3),
        "front_end_cpu_us": round(statistics.median(turn.cpu_us for turn in taken), 1),
        **dict.fromkeys(("cpu_ratio", "rate_ratio", "p99_ratio")),
        "aims": {},
    }
    if peer is not None:
        told["cpu_ratio"] = round(harness.ratio([b.cpu_us for b in peer], [max(a.cpu_us, 1) for a in taken]), 2)
        told["rate_ratio"] = round(harness.ratio([a.rate for a in taken], [b.rate for b in peer]), 2)
        told["p99_ratio"] = round(slowest / harness.of_all([turn.times for turn in peer], 0.99), 2)
        if row.aimed:
            told["aims"] = {
                f"rate >= {AIM_RATE[row.method]:g}": told["rate_ratio"] >= AIM_RATE[row.method],
                f"p99 <= {AIM_P99:g}": told["p99_ratio"] <= AIM_P99,
            }
    return told


def _ratio(key: str) -> Callable[[Figures], str]:
    return lambda row: "" if row[key] is None else f"{row[key]:.2f}"


def _aims(row: Figures) -> str:
    return ", ".join(f"{aim}: {'pass' if met else 'falls short'}" for aim, met in row["aims"].items())


COLUMNS: tuple[harness.Column, ...] = (
    ("row", "{method}: {row}"), ("req/s", "{per_s:.0f}"), ("(rounds)", "{per_s_min:.0f}..{per_s_max:.0f}"),
    ("p50 ms", "{p50_ms:.1f}"), ("p99 ms", "{p99_ms:.1f}"), ("cpu us", "{front_end_cpu_us:.0f}"),
    ("by cpu", _ratio("cpu_ratio")), ("x rate", _ratio("rate_ratio")), ("x p99", _ratio("p99_ratio")),
    ("aims, against FastMCP", _aims),
)  # fmt: skip


def report(result: Figures) -> str:
    """The result as text."""
    about = (
        result["fastmcp"] or "FastMCP is left out (--fastmcp-venv DIR names a folder for it): no aim is read",
        f"{result['requests']} requests a row in {result['rounds']} interleaved rounds, {result['at_once']} in "
        f"flight; {WARM_UP} requests before each turn are not counted",
        "front ends on one core, the client on another; the engine's workers on the client's, or all on one core",
    )
    return harness.report_of(result, about, COLUMNS)


def _measured(options: argparse.Namespace, requests: int, rounds: int) -> Figures:
    python = None if options.fastmcp_venv is None else install(options.fastmcp_venv.absolute())
    rows = trio.run(measure, python, options.at_once, requests, rounds)
    return {"fastmcp": None if python is None else version_of(python), "at_once": options.at_once, "rows": rows}


def main() -> None:
    command = Command("mcp_rate", "MCP beside FastMCP.", requests=4000, rounds=10)
    command.add_argument("--fastmcp-venv", type=Path, metavar="DIR", help="where FastMCP is, or is to be installed")
    command.add_count("--at-once", 8, "requests in flight")
    if len(os.sched_getaffinity(0)) < 2:
        command.error("two cores are needed: one for the front ends and one for the client")
    harness.run_in_rounds(command, "requests", _measured, report)


if __name__ == "__main__":
    main()

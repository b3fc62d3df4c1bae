"""The cost of one host call: from Lua through the pipe to the supervisor and back, beside a bare pipe round trip.

    python -m benchmarks.aims.host_calls [--runs N] [--rounds N] [--json FILE]

The rows, each as microseconds for one call:

- *pipe, floor*: a trio parent and a Python child echo 64 bytes through two pipes, and do nothing else on either side.
- *call, one after the other*: a run of the engine makes 100 calls; the time of a run without calls is subtracted, and
  the difference divided by 100.
- *call, side by side*: the same with all 100 in one `context.parallel`.

The call is the cheapest possible: its handler returns its argument. All layers and limits are on. Rows take turns,
round by round; every turn starts with runs that are not counted. The placement of parent and worker is the largest
single term, so each placement is measured separately.
"""

import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import trio

from benchmarks.aims.command import Command, tell
from benchmarks.aims.floor import Placement, Run, pin, placements
from benchmarks.report import machine
from benchmarks.report.figures import percentile, table
from engine.bridge import HostContext, HostFunction
from engine.config import Config, SandboxConfig
from engine.engine import open_engine
from engine.run import RunRequest, Script
from engine.tenant import DEFAULT_TENANT

AIM = 4.0
CALLS = 100
WARM_UP = 10
PAYLOAD = "x" * 48
ROWS = ("pipe, floor", "call, one after the other", "call, side by side")
ECHO = "import os\nwhile data := os.read(0, 65536): os.write(1, data)"

AGENT = b"""
agent = {}
function agent.resolve(how, payload, context)
    if how == "one" then
        for _ = 1, 100 do context.search(payload) end
    elseif how == "side" then
        local calls = {}
        for i = 1, 100 do calls[i] = function() return context.search(payload) end end
        context.parallel(calls)
    end
    return 1
end
"""


class Query(msgspec.Struct):
    query: str


async def echo(context: HostContext, arguments: Query) -> Any:
    """The cheapest host call."""
    return arguments.query


@asynccontextmanager
async def open_pipe() -> AsyncIterator[Run]:
    """A round trip through two pipes to a process that only echoes."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert isinstance(process.stdin, trio.lowlevel.FdStream)
    assert isinstance(process.stdout, trio.lowlevel.FdStream)
    to_child, from_child = process.stdin.fileno(), process.stdout.fileno()
    data = PAYLOAD.encode() + bytes(16)

    async def round_trips() -> None:
        for _ in range(CALLS):
            os.write(to_child, data)
            await trio.lowlevel.wait_readable(from_child)
            os.read(from_child, 65536)

    try:
        yield round_trips
    finally:
        process.kill()
        with trio.CancelScope(shield=True):  # safe to shield: SIGKILL cannot be refused
            await process.wait()
        await process.stdin.aclose()
        await process.stdout.aclose()


async def measure(placement: Placement, runs: int, rounds: int) -> dict[str, Any]:
    """All rows at one placement."""
    everywhere = os.sched_getaffinity(0)
    try:
        async with AsyncExitStack() as stack:
            pin(placement.workers or everywhere)
            trips = await stack.enter_async_context(open_pipe())
            config = Config(sandbox=SandboxConfig(workers=2))
            engine = await stack.enter_async_context(open_engine(config, [HostFunction("context.search", Query, echo)]))
            pin(placement.parent or everywhere)
            script, limits = Script.from_source("calls.lua", AGENT), engine.limits_for({}, DEFAULT_TENANT)

            async def run(how: str) -> None:
                result = await engine.execute(
                    RunRequest(
                        tenant=DEFAULT_TENANT, name="calls", script=script, root="agent", method="resolve",
                        args=(how, PAYLOAD), limits=limits, grants=frozenset({"context.search"}),
                    )
                )  # fmt: skip
                assert result.failure is None, result.failure

            gc.collect()
            gc.freeze()  # as the server does
            samples: dict[str, list[float]] = {name: [] for name in ROWS}
            for _ in range(rounds):
                count = -(-runs // rounds)
                idle = await _median(lambda: run("none"), count)
                samples[ROWS[0]].append(await _median(trips, count) / CALLS)
                samples[ROWS[1]].append((await _median(lambda: run("one"), count) - idle) / CALLS)
                samples[ROWS[2]].append((await _median(lambda: run("side"), count) - idle) / CALLS)
    finally:
        gc.unfreeze()
        pin(everywhere)
    return {"placement": placement.name, "rows": figures(samples)}


async def _median(run: Run, count: int) -> float:
    taken = []
    for i in range(WARM_UP + count):
        start = time.perf_counter_ns()
        await run()
        if i >= WARM_UP:
            taken.append((time.perf_counter_ns() - start) / 1000)
    return percentile(taken, 0.5)


def figures(samples: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Medians of the rounds' figures, and of the rounds' ratios to the floor. Microseconds a call."""
    floor = samples[ROWS[0]]
    rows = []
    for name, rounds in samples.items():
        ratios = [value / base for value, base in zip(rounds, floor, strict=True)]
        rows.append(
            {
                "row": name,
                "us": round(statistics.median(rounds), 1),
                "us_min": round(min(rounds), 1),
                "us_max": round(max(rounds), 1),
                "ratio": round(statistics.median(ratios), 2),
                "ratio_min": round(min(ratios), 2),
                "ratio_max": round(max(ratios), 2),
            }
        )
    return rows


def report(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = [
        (
            placement["placement"],
            row["row"],
            f"{row['us']:.1f}",
            f"{row['us_min']:.1f}..{row['us_max']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_min']:.2f}..{row['ratio_max']:.2f}",
            f"<= {AIM:g}" if row["row"] != ROWS[0] else "",
        )
        for placement in result["placements"]
        for row in placement["rows"]
    ]
    return "\n".join(
        (
            machine.line(result["machine"]),
            f"{result['runs']} runs a row in {result['rounds']} interleaved rounds, {CALLS} calls a run, one run at a "
            f"time; {WARM_UP} runs before each turn are not counted",
            "",
            table(("placement", "row", "us a call", "(rounds)", "x pipe", "(rounds)", "aim"), lines),
        )
    )


def main() -> None:
    parser = Command("host_calls", "What one host call costs.")
    parser.add_count("--runs", 200, "counted runs of each row")
    parser.add_count("--rounds", 10, "turns of each row")
    options = parser.parse_args()
    rounds = min(options.rounds, options.runs)
    result: dict[str, Any] = {"machine": machine.facts(), "aim": AIM, "runs": options.runs, "rounds": rounds}
    result["placements"] = [trio.run(measure, placement, options.runs, rounds) for placement in placements()]
    tell(report(result), result, options.json)


if __name__ == "__main__":
    main()

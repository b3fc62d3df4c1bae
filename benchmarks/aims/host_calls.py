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

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import trio

from benchmarks.aims import harness
from benchmarks.aims.harness import Command, Figures, Placement
from benchmarks.aims.job import Run
from benchmarks.report.figures import percentile
from engine.bridge import HostContext, HostFunction
from engine.config import Config, SandboxConfig
from engine.engine import Engine, open_engine
from engine.run import RunRequest, Script
from engine.tenant import DEFAULT_TENANT

AIM = 4.0
CALLS = 100
WARM_UP = 10
PAYLOAD = "x" * 48
ROWS = ("pipe, floor", "call, one after the other", "call, side by side")
ECHO = "import os\nwhile data := os.read(0, 65536): os.write(1, data)"

AGENT = """
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


def median_us(run: Run, runs: int, rounds: int) -> Callable[[], Awaitable[float]]:
    """A turn: the p50 of a round's share of the runs, in microseconds."""

    async def turn() -> float:
        return percentile(await harness.timed(run, -(-runs // rounds), WARM_UP), 0.5)

    return turn


def calling(engine: Engine, source: str, **given: Any) -> Callable[..., Awaitable[None]]:
    """What runs an agent with these arguments, until it has made its calls."""
    script, limits = Script.from_source("calls.lua", source.encode()), engine.limits_for({}, DEFAULT_TENANT)

    async def run(*args: object) -> None:
        result = await engine.execute(
            RunRequest(
                tenant=DEFAULT_TENANT, name="calls", script=script, root="agent", method="resolve", args=args,
                limits=limits, grants=engine.host_calls, **given,
            )
        )  # fmt: skip
        assert result.failure is None, result.failure

    return run


def branches(calls: Iterable[str]) -> str:
    """Lua that makes the calls of one row, by its number from 1."""
    each = (
        f"if row == {number} then for i = 1, {CALLS} do local _ = {call} end end"
        for number, call in enumerate(calls, 1)
    )
    return "\n".join(each)


def a_call(seen: Mapping[str, Sequence[float]], rows: Iterable[str]) -> dict[str, list[float]]:
    """Microseconds of one call of each row, by round: what a run takes more than one without calls (`idle`)."""
    return {row: [(one - idle) / CALLS for one, idle in zip(seen[row], seen["idle"], strict=True)] for row in rows}


def row_of(name: str, taken: Sequence[float], beside: Sequence[float], digits: int = 1) -> Figures:
    """A row: microseconds a call, and the ratio to those of another row, which stands beside all of them."""
    us = harness.spread("us", taken, digits)
    return {"row": name, **us, **harness.spread("ratio", harness.ratios(taken, beside), digits + 1)}


def about(result: Figures) -> str:
    """What was measured, in one line."""
    return (
        f"{result['runs']} runs a row in {result['rounds']} interleaved rounds, {CALLS} calls a run, one run at a "
        f"time; {WARM_UP} runs before each turn are not counted"
    )


@asynccontextmanager
async def open_pipe() -> AsyncIterator[Run]:
    """A round trip through two pipes to a process that only echoes."""
    async with harness.child(sys.executable, "-c", ECHO) as echoes:
        to_child, from_child = echoes.stdin.fileno(), echoes.stdout.fileno()
        data = PAYLOAD.encode() + bytes(16)

        async def round_trips() -> None:
            for _ in range(CALLS):
                os.write(to_child, data)
                await trio.lowlevel.wait_readable(from_child)
                os.read(from_child, 65536)

        yield round_trips


async def measure(placement: Placement, runs: int, rounds: int) -> Figures:
    """All rows at one placement."""
    with harness.placed(placement) as settle:
        async with AsyncExitStack() as stack:
            trips = await stack.enter_async_context(open_pipe())
            config = Config(sandbox=SandboxConfig(workers=2))
            engine = await stack.enter_async_context(open_engine(config, [HostFunction("context.search", Query, echo)]))
            run = calling(engine, AGENT)
            how = dict(zip(("idle", *ROWS[1:]), ("none", "one", "side"), strict=True))
            turns = {name: median_us(partial(run, each, PAYLOAD), runs, rounds) for name, each in how.items()}
            settle()
            seen = await harness.take_turns({ROWS[0]: median_us(trips, runs, rounds), **turns}, rounds)
    floor = [taken / CALLS for taken in seen[ROWS[0]]]
    us = {ROWS[0]: floor, **a_call(seen, ROWS[1:])}
    return {"placement": placement.name, "rows": [row_of(name, taken, floor) for name, taken in us.items()]}


COLUMNS: tuple[harness.Column, ...] = (
    ("placement", "{placement}"), ("row", "{row}"), ("us a call", "{us:.1f}"),
    ("(rounds)", "{us_min:.1f}..{us_max:.1f}"), ("x pipe", "{ratio:.2f}"),
    ("(rounds)", "{ratio_min:.2f}..{ratio_max:.2f}"),
    ("aim", lambda row: f"<= {AIM:g}" if row["row"] != ROWS[0] else ""),
)  # fmt: skip


def report(result: Figures) -> str:
    """The result as text."""
    return harness.report_of(result, [about(result)], COLUMNS)


def main() -> None:
    command = Command("host_calls", "What one host call costs.", runs=200, rounds=10)
    harness.run_in_rounds(command, "runs", harness.at_placements(measure), report, aim=AIM)


if __name__ == "__main__":
    main()

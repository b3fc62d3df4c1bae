"""The engine beside its floor: the cost of safety, as a ratio measured in one run of this program.

    python -m benchmarks.aims.floor [--runs N] [--rounds N] [--json FILE]

The job is the same in every row: an agent makes one host call (`context.get`), which the parent answers from memory,
and returns a small table. One run at a time. The rows:

- *floor, warm state*: a trio parent, plain pipes, an unconfined Python process with one Lua state for all runs. The
  function is compiled; a run only calls it. There are no limits or checks. No engine with Lua in another process can do
  much less.
- *floor, fresh state*: the same with a new Lua state for every run, made when the run arrives.
- *engine*: `Engine.execute` with every layer of confinement that the machine has, all limits, admission, metering and
  a fresh Lua state per run.

Rows take turns, round by round, so that other load on the machine affects all of them alike. Every turn starts with
warm-up runs that are not counted.
"""

import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from benchmarks.aims import harness
from benchmarks.aims.harness import Command, Figures, Placement
from benchmarks.aims.job import ANSWER, AS_JSON, DOCUMENT, Run, open_real_engine

# The engine's p50 may be this many times the floor's with a warm state.
AIM = 1.5
WARM_UP = 30
WORKER = Path(__file__).with_name("floor_worker.py")

# ---- the rows ---------------------------------------------------------------------------------------------------


class Floor:
    """The parent's side of a floor worker."""

    def __init__(self, to_worker: trio.lowlevel.FdStream, from_worker: trio.lowlevel.FdStream) -> None:
        self._out, self._in = to_worker, from_worker
        self._buffer = b""

    async def run(self) -> Any:
        """One run, its host call included."""
        await self._send(DOCUMENT.id)
        while isinstance(message := await self._receive(), list):
            _, document_id = message
            await self._send(AS_JSON if document_id == DOCUMENT.id else None)
        return message

    async def _send(self, value: Any) -> None:
        payload = msgspec.msgpack.encode(value)
        await self._out.send_all(len(payload).to_bytes(4, "big") + payload)

    async def _receive(self) -> Any:
        length = int.from_bytes(await self._take(4), "big")
        return msgspec.msgpack.decode(await self._take(length))

    async def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            data = await self._in.receive_some(65536)
            if not data:
                raise EOFError("the floor's worker ended")
            self._buffer += data
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken


@asynccontextmanager
async def open_floor(state: str) -> AsyncIterator[Run]:
    """A floor worker; `state` is warm or fresh."""
    async with harness.child(sys.executable, str(WORKER), state) as worker:
        yield Floor(worker.stdin, worker.stdout).run


ROWS = ("floor, warm state", "floor, fresh state", "engine")


# ---- measuring --------------------------------------------------------------------------------------------------


async def measure(placement: Placement, runs: int, rounds: int) -> Figures:
    """All rows at one placement."""
    with harness.placed(placement) as settle:
        async with AsyncExitStack() as stack:
            warm = await stack.enter_async_context(open_floor("warm"))
            fresh = await stack.enter_async_context(open_floor("fresh"))
            run_engine, engine = await stack.enter_async_context(open_real_engine())
            for run in (warm, fresh, run_engine):
                assert await run() == ANSWER
            settle()
            rows = zip(ROWS, (warm, fresh, run_engine), strict=True)
            count = -(-runs // rounds)
            samples = await harness.take_turns(
                {row: partial(harness.timed, run, count, WARM_UP) for row, run in rows}, rounds
            )
            layers = [layer.name for layer in engine.layers if layer.state == "active"]
    return {"placement": placement.name, "layers": layers, "rows": figures(samples)}


def figures(samples: dict[str, list[list[float]]]) -> list[Figures]:
    """`ratio` and `fresh_ratio` are medians of the rounds' ratios of p50s, to the floors with warm and fresh state."""
    p50s = {name: harness.p50s(turns) for name, turns in samples.items()}
    warm, fresh = (p50s[base] for base in ROWS[:2])
    return [
        {
            **harness.latencies(name, "runs", turns, 1, "_us"),
            **harness.spread("ratio", harness.ratios(p50s[name], warm), 2),
            "fresh_ratio": round(statistics.median(harness.ratios(p50s[name], fresh)), 2),
        }
        for name, turns in samples.items()
    ]


COLUMNS: tuple[harness.Column, ...] = (
    ("placement", "{placement}"), ("row", "{row}"), ("p50 us", "{p50_us:.0f}"),
    ("(rounds)", "{p50_min_us:.0f}..{p50_max_us:.0f}"), ("p99 us", "{p99_us:.0f}"), ("x warm", "{ratio:.2f}"),
    ("(rounds)", "{ratio_min:.2f}..{ratio_max:.2f}"),
    ("aim", lambda row: f"<= {AIM}" if row["row"] == "engine" else ""), ("x fresh", "{fresh_ratio:.2f}"),
)  # fmt: skip


def report(result: Figures) -> str:
    """The result as text."""
    about = (
        f"{result['runs']} runs a row in {result['rounds']} interleaved rounds, one at a time; "
        f"{WARM_UP} runs before each turn are not counted",
        f"layers in effect: {', '.join(result['placements'][0]['layers']) or 'none'}",
    )
    return harness.report_of(result, about, COLUMNS)


def main() -> None:
    command = Command("floor", "The engine beside its floor.", runs=3000, rounds=15)
    harness.run_in_rounds(command, "runs", harness.at_placements(measure), report, aim=AIM)


if __name__ == "__main__":
    main()

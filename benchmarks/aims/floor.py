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

import gc
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import trio

from benchmarks.aims.command import Command, tell
from benchmarks.report import machine
from benchmarks.report.figures import percentile, table
from engine.bridge import knowledge
from engine.config import Config, SandboxConfig
from engine.engine import Engine, open_engine
from engine.run import RunRequest, Script
from engine.tenant import DEFAULT_TENANT
from knowledge.store import Chunk, Document, SearchAnswer, SearchQuery, SourceInfo

# The engine's p50 may be this many times the floor's with a warm state.
AIM = 1.5
WARM_UP = 30
WORKER = Path(__file__).with_name("floor_worker.py")

BODY = "Look at the dashboard first. Then ask who deployed last, and roll back before you search for the cause.\n" * 4
DOCUMENT = Document(
    id="7d0f1c9e-0000-4000-8000-000000000001",
    source="filesystem:runbooks",
    source_id="deployments.md",
    source_url=None,
    title="Deployments",
    author=None,
    created_at=None,
    updated_at="2026-01-01T00:00:00Z",
    content_type="text/markdown",
    body=BODY,
    chunks=(Chunk(0, BODY),),
)
ANSWER = {"system": "Read Deployments", "characters": len(BODY)}

AGENT = b"""
agent = { name = "floor" }

function agent.resolve(args, config, context)
    local document = context.get(args.id)
    return { system = "Read " .. document.title, characters = #document.body }
end
"""

Run = Callable[[], Awaitable[Any]]


class OneDocument:
    """A store in memory."""

    async def search(self, query: SearchQuery) -> SearchAnswer:
        raise NotImplementedError

    async def get(self, document_id: str) -> Document | None:
        return DOCUMENT if document_id == DOCUMENT.id else None

    async def sources(self) -> tuple[SourceInfo, ...]:
        raise NotImplementedError


# ---- the rows ---------------------------------------------------------------------------------------------------


class Floor:
    """The parent's side of a floor worker."""

    def __init__(self, to_worker: int, from_worker: int) -> None:
        self._out = trio.lowlevel.FdStream(to_worker)
        self._in = trio.lowlevel.FdStream(from_worker)
        self._buffer = b""
        self._document = {
            name: value for name, value in knowledge.document_as_json(DOCUMENT).items() if value is not None
        }

    async def run(self) -> Any:
        """One run, its host call included."""
        await self._send(DOCUMENT.id)
        while isinstance(message := await self._receive(), list):
            _, document_id = message
            await self._send(self._document if document_id == DOCUMENT.id else None)
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
    down_read, down_write = os.pipe()
    up_read, up_write = os.pipe()
    process = await trio.lowlevel.open_process([sys.executable, str(WORKER), state], stdin=down_read, stdout=up_write)
    for fd in (down_read, up_write):
        os.close(fd)
    floor = Floor(down_write, up_read)
    try:
        yield floor.run
    finally:
        process.kill()
        with trio.CancelScope(shield=True):  # safe to shield: SIGKILL cannot be refused
            await process.wait()


@asynccontextmanager
async def open_real_engine(
    *, isolation: Literal["tenant", "execution"] = "tenant", workers: int = 2
) -> AsyncIterator[tuple[Run, Engine]]:
    """The engine with its defaults, and the store above. Two workers in every placement: one run keeps one busy."""
    config = Config(sandbox=SandboxConfig(workers=workers, isolation=isolation))
    async with open_engine(config, knowledge.functions(lambda _: OneDocument(), default_limit=12)) as engine:
        request = RunRequest(
            tenant=DEFAULT_TENANT,
            name="floor",
            script=Script.from_source("floor.lua", AGENT),
            root="agent",
            method="resolve",
            args=({"id": DOCUMENT.id}, {}),
            limits=engine.limits_for({}, DEFAULT_TENANT),
            grants=frozenset({knowledge.GET}),
        )

        async def run() -> Any:
            result = await engine.execute(request)
            assert result.failure is None, result.failure
            return result.value

        yield run, engine


ROWS = ("floor, warm state", "floor, fresh state", "engine")


# ---- placements -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Placement:
    """The cores for parent and workers. None: the kernel chooses."""

    name: str
    parent: set[int] | None = None
    workers: set[int] | None = None


def placements() -> list[Placement]:
    """The placements that this machine allows. A pipe round trip costs several times more between two cores."""
    found = [Placement("free")]
    try:
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, set(allowed))
    except OSError:
        return found
    found.append(Placement("one core", {allowed[0]}, {allowed[0]}))
    if len(allowed) > 1:
        found.append(Placement("two cores", {allowed[0]}, {allowed[1]}))
    return found


def pin(cores: set[int]) -> None:
    """Pin every thread of this process, as Trio starts processes from a cached one. Children inherit the affinity."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


# ---- measuring --------------------------------------------------------------------------------------------------


async def measure(placement: Placement, runs: int, rounds: int) -> dict[str, Any]:
    """All rows at one placement."""
    everywhere = os.sched_getaffinity(0)
    try:
        async with AsyncExitStack() as stack:
            pin(placement.workers or everywhere)
            warm = await stack.enter_async_context(open_floor("warm"))
            fresh = await stack.enter_async_context(open_floor("fresh"))
            run_engine, engine = await stack.enter_async_context(open_real_engine())
            pin(placement.parent or everywhere)
            for run in (warm, fresh, run_engine):
                assert await run() == ANSWER
            gc.collect()
            gc.freeze()  # as the server does
            samples = await _take_turns(dict(zip(ROWS, (warm, fresh, run_engine), strict=True)), runs, rounds)
            layers = [layer.name for layer in engine.layers if layer.state == "active"]
    finally:
        gc.unfreeze()
        pin(everywhere)
    return {"placement": placement.name, "layers": layers, "rows": figures(samples)}


async def _take_turns(rows: dict[str, Run], runs: int, rounds: int) -> dict[str, list[list[float]]]:
    """Microseconds of every counted run: row -> rounds -> runs."""
    samples: dict[str, list[list[float]]] = {name: [] for name in rows}
    for number in range(rounds):
        # Every second round in reverse order: no row always follows the same one.
        for name in list(rows)[:: -1 if number % 2 else 1]:
            samples[name].append(await _turn(rows[name], -(-runs // rounds)))
    return samples


async def _turn(run: Run, count: int) -> list[float]:
    taken = []
    for i in range(WARM_UP + count):
        start = time.perf_counter_ns()
        await run()
        if i >= WARM_UP:
            taken.append((time.perf_counter_ns() - start) / 1000)
    return taken


def figures(samples: dict[str, list[list[float]]]) -> list[dict[str, Any]]:
    """p50: the median of the rounds' p50s; p99: of all runs together.

    `ratio` and `fresh_ratio` are medians of the rounds' ratios of p50s, to the floors with a warm and a fresh state.
    """
    p50s = {name: [percentile(turn, 0.5) for turn in turns] for name, turns in samples.items()}
    rows = []
    for name, turns in samples.items():
        ratios, fresh_ratios = (
            [p50 / floor for p50, floor in zip(p50s[name], p50s[base], strict=True)] for base in ROWS[:2]
        )
        rows.append(
            {
                "row": name,
                "runs": sum(map(len, turns)),
                "p50_us": round(statistics.median(p50s[name]), 1),
                "p50_min_us": round(min(p50s[name]), 1),
                "p50_max_us": round(max(p50s[name]), 1),
                "p99_us": round(percentile([sample for turn in turns for sample in turn], 0.99), 1),
                "ratio": round(statistics.median(ratios), 2),
                "ratio_min": round(min(ratios), 2),
                "ratio_max": round(max(ratios), 2),
                "fresh_ratio": round(statistics.median(fresh_ratios), 2),
            }
        )
    return rows


def report(result: dict[str, Any]) -> str:
    """The result as text."""
    head = ("placement", "row", "p50 us", "(rounds)", "p99 us", "x warm", "(rounds)", "aim", "x fresh")
    lines = [
        (
            placement["placement"],
            row["row"],
            f"{row['p50_us']:.0f}",
            f"{row['p50_min_us']:.0f}..{row['p50_max_us']:.0f}",
            f"{row['p99_us']:.0f}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_min']:.2f}..{row['ratio_max']:.2f}",
            f"<= {AIM}" if row["row"] == "engine" else "",
            f"{row['fresh_ratio']:.2f}",
        )
        for placement in result["placements"]
        for row in placement["rows"]
    ]
    return "\n".join(
        (
            machine.line(result["machine"]),
            f"{result['runs']} runs a row in {result['rounds']} interleaved rounds, one at a time; "
            f"{WARM_UP} runs before each turn are not counted",
            f"layers in effect: {', '.join(result['placements'][0]['layers']) or 'none'}",
            "",
            table(head, lines),
        )
    )


def main() -> None:
    parser = Command("floor", "The engine beside its floor.")
    parser.add_count("--runs", 3000, "counted runs of each row")
    parser.add_count("--rounds", 15, "turns of each row")
    options = parser.parse_args()
    rounds = min(options.rounds, options.runs)
    result: dict[str, Any] = {"machine": machine.facts(), "aim": AIM, "runs": options.runs, "rounds": rounds}
    result["placements"] = [trio.run(measure, placement, options.runs, rounds) for placement in placements()]
    tell(report(result), result, options.json)


if __name__ == "__main__":
    main()

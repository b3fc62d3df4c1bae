"""What our own measurements share: a command line, interleaved rounds, figures, a report, cores, servers."""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil
import trio

from benchmarks.aims.mcp_peers import ANNOUNCED
from benchmarks.aims.rows import Aim, Found
from benchmarks.report import machine
from benchmarks.report.figures import percentile, table
from benchmarks.targets.address import Address

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60

K = TypeVar("K")
V = TypeVar("V")
Figures = dict[str, Any]
Opener = Callable[..., Awaitable[trio.Process]]
# A column of a report: its head, and what makes a row's cell: a template with the row's figures, or a function.
Column = tuple[str, str | Callable[[Figures], str]]


# ---- the command line -------------------------------------------------------------------------------------------


_COUNTS = {
    "runs": "counted runs of each row",
    "requests": "counted requests of each row",
    "rounds": "turns of each row",
}


class Command(argparse.ArgumentParser):
    """`python -m benchmarks.aims.NAME`: `--json FILE`, and the options of `_COUNTS` that have a default here."""

    def __init__(self, name: str, about: str, **defaults: int) -> None:
        super().__init__(prog=f"python -m benchmarks.aims.{name}", description=about)
        self.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
        for option, default in defaults.items():
            self.add_count(f"--{option}", default, _COUNTS[option])

    def add_count(self, option: str, default: int, what: str) -> None:
        """Add an option with a whole number from 1."""
        self.add_argument(option, type=_positive, default=default, help=f"{what} (default: {default})")


def _positive(text: str) -> int:
    """A whole number from 1, for argparse. Raises ValueError."""
    if (number := int(text)) < 1:
        raise ValueError
    return number


def tell(text: str, figures: Any, file: Path | None) -> None:
    """Print the text, and write the figures to the file, if there is one, as JSON."""
    print(text)
    if file is not None:
        file.write_text(json.dumps(figures, indent=2) + "\n")


def run_in_rounds(
    command: Command,
    of: Literal["runs", "requests"],
    measure: Callable[[argparse.Namespace, int, int], Figures],
    report: Callable[[Figures], str],
    **facts: Any,
) -> None:
    """The main of a measurement that takes a number of runs (or requests) of each row, in rounds."""
    options = command.parse_args()
    count = getattr(options, of)
    rounds = min(options.rounds, count)
    result = {"machine": machine.facts(), **facts, of: count, "rounds": rounds}
    result |= measure(options, count, rounds)
    tell(report(result), result, options.json)


def at_placements(
    measure: Callable[["Placement", int, int], Awaitable[Figures]],
) -> Callable[[argparse.Namespace, int, int], Figures]:
    """What `run_in_rounds` measures where each placement has rows of its own."""
    return lambda _, *counts: {"placements": [trio.run(measure, each, *counts) for each in placements()]}


# ---- rounds -----------------------------------------------------------------------------------------------------


def one_round(rows: Sequence[K], number: int) -> Sequence[K]:
    """The order of a round, which is reversed in every second one: no row always follows the same one."""
    return rows[:: -1 if number % 2 else 1]


def in_turns(rows: Sequence[K], rounds: int) -> Iterator[K]:
    """Each row once a round, so that other load on the machine affects all of them alike."""
    for number in range(rounds):
        yield from one_round(rows, number)


async def take_turns(rows: Mapping[K, Callable[[], Awaitable[V]]], rounds: int) -> dict[K, list[V]]:
    """The figure of every turn, by row and round."""
    seen: dict[K, list[V]] = {row: [] for row in rows}
    for row in in_turns(tuple(rows), rounds):
        seen[row].append(await rows[row]())
    return seen


async def timed(run: Callable[[], Awaitable[object]], count: int, warm_up: int) -> list[float]:
    """Microseconds of so many runs, one at a time, after some that are not counted."""
    taken = []
    for i in range(warm_up + count):
        start = time.perf_counter_ns()
        await run()
        if i >= warm_up:
            taken.append((time.perf_counter_ns() - start) / 1000)
    return taken


# ---- figures ----------------------------------------------------------------------------------------------------


def ratios(this: Sequence[float], beside: Sequence[float]) -> list[float]:
    """The ratio of each round: a round that was slow for both counts like any other."""
    return [one / other for one, other in zip(this, beside, strict=True)]


def ratio(this: Sequence[float], beside: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(ratios(this, beside))


def compared(aim: Aim, ours: Sequence[float], beside: Sequence[float], show: Callable[[float], str]) -> Found:
    """The row of two figures that have a value for each round."""
    measured, other = (show(statistics.median(each)) for each in (ours, beside))
    return Found(aim=aim, figure=ratio(ours, beside), measured=measured, beside=other)


def p50s(turns: Sequence[Sequence[float]]) -> list[float]:
    """The p50 of each turn."""
    return [percentile(turn, 0.5) for turn in turns]


def of_all(turns: Sequence[Sequence[float]], share: float) -> float:
    """A percentile of the samples of all turns together."""
    return percentile([sample for turn in turns for sample in turn], share)


def spread(name: str, values: Sequence[float], digits: int, unit: str = "") -> Figures:
    """`NAME`, `NAME_min` and `NAME_max`: the median, the least and the greatest of the rounds' figures."""
    found = ((name, statistics.median(values)), (f"{name}_min", min(values)), (f"{name}_max", max(values)))
    return {f"{key}{unit}": round(value, digits) for key, value in found}


def latencies(row: str, of: str, turns: Sequence[Sequence[float]], digits: int, unit: str) -> Figures:
    """p50: of the rounds' p50s, the median, the least and the greatest; p99: of all samples together."""
    p99 = round(of_all(turns, 0.99), digits)
    return {"row": row, of: sum(map(len, turns)), **spread("p50", p50s(turns), digits, unit), f"p99{unit}": p99}


def report_of(result: Figures, about: Sequence[str], columns: Sequence[Column]) -> str:
    """A result as text: the machine, what was measured, and a table with a line for each row."""
    lines = [
        [form.format(**row) if isinstance(form, str) else form(row) for _, form in columns] for row in rows_of(result)
    ]
    return "\n".join((machine.line(result["machine"]), *about, "", table([head for head, _ in columns], lines)))


def rows_of(result: Figures) -> list[Figures]:
    """The rows, with their placement if each placement has rows of its own."""
    if "placements" not in result:
        return list(result["rows"])
    return [{"placement": each["placement"], **row} for each in result["placements"] for row in each["rows"]]


# ---- cores ------------------------------------------------------------------------------------------------------


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


def pin(cores: set[int], pid: int | str = "self") -> None:
    """Pin every thread of a process, as Trio starts processes from a cached one. Children inherit the affinity."""
    with suppress(FileNotFoundError, ProcessLookupError):  # a worker may end at any time
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def placed(placement: Placement) -> Iterator[Callable[[], None]]:
    """Workers that the block starts get their cores. It calls what it is given once they are up: from then on the
    parent has its own cores, and its garbage collector ignores what is there so far, as in the server.
    """
    everywhere = os.sched_getaffinity(0)

    def settle() -> None:
        pin(placement.parent or everywhere)
        gc.collect()
        gc.freeze()

    with on_cores(placement.workers or everywhere):
        try:
            yield settle
        finally:
            gc.unfreeze()


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """Pin this process while the block lasts."""
    everywhere = os.sched_getaffinity(0)
    try:
        pin(cores)
        yield
    finally:
        pin(everywhere)


def place(pid: int, front_end: int, workers: int) -> None:
    """Pin every thread of a server to one core, and its children to another (or the same)."""
    pin({front_end}, pid)
    for each in family(pid)[1:]:
        pin({workers}, each.pid)


def family(pid: int) -> list[psutil.Process]:
    """A process and its descendants."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def tree_mb(pid: int) -> float:
    """The memory of a process and its descendants, in MB; what several share counts once."""
    return float(sum(each.memory_full_info().pss for each in family(pid)) / 1e6)


async def in_flight(ask: Callable[[], Awaitable[None]], at_once: int, more: Callable[[], bool]) -> None:
    """Call `ask` while there is more to do, so many at a time."""

    async def keep_asking() -> None:
        while more():
            await ask()

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(keep_asking)


def cpu_s(pid: int) -> float:
    """CPU seconds of one process."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process and its descendants, including those that have ended and were waited for."""
    total = 0.0
    for process in family(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # it has ended; its parent's figures include its CPU time
        total += times.user + times.system + times.children_user + times.children_system
    return total


# ---- servers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its address, and its process, which ends with the block."""

    address: Address
    process: trio.Process

    @property
    def pid(self) -> int:
        return self.process.pid


def environ() -> dict[str, str]:
    """The environment of a server: without what would configure it."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("ENGINE_", "CTX_"))}


async def in_folder(measure: Callable[[Path], Awaitable[V]]) -> V:
    """What is measured in a folder of its own, which is deleted after it."""
    with tempfile.TemporaryDirectory(prefix="engine-bench-") as folder:
        return await measure(Path(folder))


@dataclass(frozen=True, slots=True)
class Child:
    """A process that reads its standard input and answers on its standard output."""

    pid: int
    stdin: trio.lowlevel.FdStream
    stdout: trio.lowlevel.FdStream

    async def line(self, within_s: float) -> bytes:
        """Its next line; it says nothing more before it is asked. Raises RuntimeError if it ends."""
        said = b""
        with trio.fail_after(within_s):
            while not said.endswith(b"\n"):
                if not (data := await self.stdout.receive_some()):
                    raise RuntimeError("the program ended; its log says why")
                said += data
        return said


@asynccontextmanager
async def child(*command: str, env: Mapping[str, str] | None = None) -> AsyncIterator[Child]:
    """A process, which is killed at the end of the block."""
    process = await trio.lowlevel.open_process(
        command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert isinstance(process.stdin, trio.lowlevel.FdStream)
    assert isinstance(process.stdout, trio.lowlevel.FdStream)
    try:
        yield Child(process.pid, process.stdin, process.stdout)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):  # safe to shield: SIGKILL cannot be refused
            await process.wait()
        await process.stdin.aclose()
        await process.stdout.aclose()


@asynccontextmanager
async def started(
    command: Sequence[str], stderr: int | None = None, open_process: Opener = trio.lowlevel.open_process
) -> AsyncIterator[Server]:
    """A server that prints its address on a line."""
    process = await open_process(command, cwd=ROOT, env=environ(), stdout=subprocess.PIPE, stderr=stderr)
    assert process.stdout is not None
    try:
        with trio.fail_after(START_TIMEOUT_S):
            said = b""
            while (start := said.find(ANNOUNCED.encode())) < 0 or b"\n" not in said[start:]:
                if not (data := await process.stdout.receive_some()):
                    raise RuntimeError("the server ended before it listened; its log says why")
                said += data
        authority = said[start + len(ANNOUNCED) :].split(b"\n", 1)[0].decode().strip()
        host, _, port = authority.rpartition(":")
        yield Server(Address(host, int(port), authority), process)
    finally:
        process.terminate()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(15):
                await process.wait()
            process.kill()  # does nothing to a process that has ended
            await process.wait()


def engine_command(*words: str) -> list[str]:
    """The command line of `engine`."""
    return [sys.executable, "-m", "cli.main", *words]


@asynccontextmanager
async def serving(config: Path, stderr: int | None = None, directory: Path = ROOT) -> AsyncIterator[Server]:
    """`engine serve` with this configuration on a free port; `directory` is where its relative paths begin."""
    command = ["serve", "--config", str(config), "--bind", "127.0.0.1:0", "--directory", str(directory)]
    async with started(engine_command(*command), stderr) as server:
        yield server

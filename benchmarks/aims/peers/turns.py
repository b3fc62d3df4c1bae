"""The protocol of every contestant: read the job, report readiness, then run turns on request.

Imports only the standard library, as it is loaded in every peer's environment. One JSON value a line:
first `{"document": {...}, "workers": N}` comes in and `{"ready": VERSION}` goes out; then every
`{"concurrency": C, "warm_up_s": S, "seconds": S, "pause_s": S}` is answered by `{"latencies_us": [...], "runs": N}`.
Latencies are those of the runs that began in the measured time; `runs` counts those of the warm-up too. The end of
standard input ends the program.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """The document that the function requests, in the engine's form, and the number of processes that may serve."""

    document: dict[str, Any]
    workers: int

    @property
    def document_id(self) -> str:
        return str(self.document["id"])

    def check(self, system: Any, characters: Any) -> None:
        """Check the answer. Raises RuntimeError for a wrong one."""
        if (system, characters) != (f"Read {self.document['title']}", len(self.document["body"])):
            raise RuntimeError(f"a wrong answer: {system!r}, {characters!r}")


@dataclass(slots=True)
class Turn:
    """One turn: its times and its figures. Times are seconds of `time.perf_counter`."""

    concurrency: int
    warm_up_s: float
    seconds: float
    pause_s: float = 0.0
    latencies_us: list[float] = field(default_factory=list)
    runs: int = 0
    measured_from: float = field(init=False)
    until: float = field(init=False)

    def __post_init__(self) -> None:
        self.measured_from = time.perf_counter() + self.warm_up_s
        self.until = self.measured_from + self.seconds

    @property
    def on(self) -> bool:
        return time.perf_counter() < self.until

    def add(self, started: float) -> None:
        """Count a run that began at `started` and has just ended."""
        self.runs += 1
        if started >= self.measured_from:
            self.latencies_us.append((time.perf_counter() - started) * 1e6)

    def part(self) -> "Turn":
        """The same turn for one thread, with separate figures: adding them up is not atomic."""
        part = Turn(1, self.warm_up_s, self.seconds, self.pause_s)
        part.measured_from, part.until = self.measured_from, self.until
        return part

    def join(self, parts: "list[Turn]") -> None:
        for part in parts:
            self.runs += part.runs
            self.latencies_us += part.latencies_us


def read_job() -> Job:
    """Read the job from the first line."""
    given = json.loads(sys.stdin.readline())
    return Job(given["document"], given["workers"])


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


def turn_of(line: str) -> Turn:
    """The turn that a line requests."""
    return Turn(**json.loads(line))


def result_of(turn: Turn) -> dict[str, Any]:
    return {"latencies_us": [round(each, 1) for each in turn.latencies_us], "runs": turn.runs}


def serve_threads(version: str, call: Callable[[], None]) -> None:
    """Serve with a blocking call, in as many threads as the concurrency requires."""
    call()
    say({"ready": version})
    for line in sys.stdin:
        turn = turn_of(line)
        if turn.concurrency == 1:
            _loop(call, turn)
        else:
            parts = [turn.part() for _ in range(turn.concurrency)]
            with ThreadPoolExecutor(turn.concurrency) as threads:
                list(threads.map(partial(_loop, call), parts))  # raises what a thread raised
            turn.join(parts)
        say(result_of(turn))


def _loop(call: Callable[[], None], turn: Turn) -> None:
    while turn.on:
        started = time.perf_counter()
        call()
        turn.add(started)
        if turn.pause_s:
            time.sleep(turn.pause_s)


async def loop(call: Callable[[], Awaitable[None]], turn: Turn, sleep: Callable[[float], Awaitable[None]]) -> None:
    """One task's part of a turn."""
    while turn.on:
        started = time.perf_counter()
        await call()
        turn.add(started)
        if turn.pause_s:
            await sleep(turn.pause_s)


async def serve_asyncio(version: str, call: Callable[[], Awaitable[None]]) -> None:
    """Serve with a coroutine function, in tasks of asyncio."""
    await call()
    say({"ready": version})
    while line := await asyncio.to_thread(sys.stdin.readline):
        turn = turn_of(line)
        async with asyncio.TaskGroup() as group:
            for _ in range(turn.concurrency):
                group.create_task(loop(call, turn, asyncio.sleep))
        say(result_of(turn))


async def serve_trio(version: str, call: Callable[[], Awaitable[None]]) -> None:
    """Serve with an async function, in tasks of trio."""
    import trio

    await call()
    say({"ready": version})
    while line := await trio.to_thread.run_sync(sys.stdin.readline):
        turn = turn_of(line)
        async with trio.open_nursery() as nursery:
            for _ in range(turn.concurrency):
                nursery.start_soon(loop, call, turn, trio.sleep)
        say(result_of(turn))


# The job in Lua for peers without host calls, which get the document as an argument. Calling it returns both values.
LUA_WITHOUT_HOST = """
return function(title, body)
    return "Read " .. title, #body
end
"""


def run_lua(title: str, body: str) -> tuple[str, int]:
    """The job in a fresh Lua state of this process. A module-level function, as process pools require."""
    from lupa.lua54 import LuaRuntime

    system, characters = LuaRuntime().execute(LUA_WITHOUT_HOST)(title, body)
    return system, characters


def main(serve: Callable[[], None]) -> None:
    """Run a contestant's program; without a traceback when it is stopped."""
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        serve()

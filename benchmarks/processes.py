"""Several processes that make one load together, each a part of it: for more requests than one core can send.

    python -m benchmarks.processes        (started by `engine bench --processes N`; not a command for users)

Each child reads its job as one line of JSON, reports that it is ready, waits for the common start time, sends its
progress every second and its account at the end. At the end of its standard input, it stops and sends what it has.
"""

import gc
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import PIPE
from typing import Any, Literal

import msgspec
import trio

from benchmarks.load.account import Recorder
from benchmarks.load.making import Target, make_load
from benchmarks.load.progress import Progress
from benchmarks.load.schedule import WHOLE, Load, Share
from benchmarks.load.timer import precise_timer
from benchmarks.scenario import Ask
from benchmarks.targets.address import Address
from benchmarks.targets.mcp import Era, McpTarget
from benchmarks.targets.rest import HttpTarget

ROOT = Path(__file__).resolve().parents[1]

# The load starts this long after every process is ready: time for the start message to reach all of them.
_HEAD_START_S = 0.2
_READY_TIMEOUT_S = 60
_TICK_S = 1.0
# Bound on the length of a line from a child: an account of a thousand tenants.
_LINE_BYTES = 256 << 20

Tell = Callable[[Progress, float], None]


class ProcessFailed(Exception):
    """A process of the tester ended before it sent its account. One line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A load as every process needs it: the requests, the target and its options."""

    load: Load
    asks: tuple[Ask, ...]
    tenants: tuple[str, ...]
    zipf: float = 0.0
    tenant_zipf: float = 0.0
    target: Literal["run", "http", "mcp"] = "http"
    address: Address | None = None
    era: Era = "2026"
    keys: dict[str, str] = field(default_factory=dict)
    share: Share = WHOLE


@dataclass(slots=True)
class Made:
    """The result of one process, or of all together. `elapsed_s` is the part of the measured time that took place."""

    account: Recorder
    cpu_shares: tuple[float, ...]
    elapsed_s: float
    interrupted: bool


async def open_target(work: Work) -> HttpTarget | McpTarget:
    """The server as a target. A session that cannot begin shows in the outcomes of its requests."""
    assert work.address is not None
    if work.target == "http":
        return HttpTarget(work.address, work.keys)
    target = McpTarget(work.address, work.era, work.keys)
    for tenant in work.keys or [None]:
        with trio.move_on_after(work.load.timeout_s) as scope:
            await target.begin(tenant)
        if scope.cancelled_caught:  # wait for a server that hangs once only, not once for each tenant
            break
    return target


async def make(work: Work, target: Target, stop: trio.Event, tell: Tell | None, start_at: float | None = None) -> Made:
    """Make this process's part of the load. Ends early, with a partial result, when `stop` is set."""
    load, account = work.load, Recorder(work.load)
    _allow_descriptors(load.max_in_flight)
    gc.collect()
    gc.freeze()  # a full collection of existing objects would delay every request in flight
    begin = trio.current_time() if start_at is None else start_at
    ended = begin
    clock = _CpuShare(begin + load.warm_up_s, begin + load.total_s)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_at, stop, nursery.cancel_scope)
            nursery.start_soon(clock.read)
            if tell is not None:
                nursery.start_soon(_tell, account, begin, tell)
            await make_load(
                load, work.asks, work.tenants, target, account, zipf=work.zipf, tenant_zipf=work.tenant_zipf,
                share=work.share, start_at=begin, timer=precise_timer,
            )  # fmt: skip
            ended = trio.current_time()
            nursery.cancel_scope.cancel()
    finally:
        gc.unfreeze()
    if stop.is_set():
        ended = trio.current_time()
    elapsed_s = min(load.duration_s, max(0.0, ended - begin - load.warm_up_s))
    cut = stop.is_set() and (elapsed_s < load.duration_s or account.unfinished > 0)
    return Made(account, (clock.share(),), elapsed_s if cut else load.duration_s, cut)


async def _cancel_at(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


async def _tell(account: Recorder, begin: float, tell: Tell) -> None:
    while True:
        await trio.sleep(_TICK_S)
        tell(Progress.from_account(account), trio.current_time() - begin)


class _CpuShare:
    """The share of one core that this process used between two times."""

    def __init__(self, start: float, end: float) -> None:
        self._times = (start, end)
        self._read: list[tuple[float, float]] = []

    async def read(self) -> None:
        for at in self._times:
            await trio.sleep_until(at)
            self._read.append((trio.current_time(), time.process_time()))

    def share(self) -> float:
        if not self._read:
            return 0.0
        start, cpu_start = self._read[0]
        end, cpu_end = self._read[1] if len(self._read) > 1 else (trio.current_time(), time.process_time())
        return (cpu_end - cpu_start) / (end - start) if end > start else 0.0


def _allow_descriptors(connections: int) -> None:
    """Raise the limit of descriptors to what the connections need, as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 256
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == -1 else min(wanted, hard), hard))


# ---- the parent's side -------------------------------------------------------------------------------------------


class _Child:
    """One process of the load: messages as lines of JSON in both directions."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        assert process.stdout is not None
        self._lines = lines_of(process.stdout)

    async def hear(self, what: str) -> Any:
        """The next message, which must be (or hold) `what`. Raises ProcessFailed."""
        async for line in self._lines:
            message = msgspec.json.decode(line)
            if what in message:
                return message
            raise ProcessFailed("a process of the tester said something unexpected")
        raise ProcessFailed("a process of the tester ended before its time; its standard error says why")

    async def say(self, message: Any) -> None:
        assert self.process.stdin is not None
        try:
            await self.process.stdin.send_all(msgspec.json.encode(message) + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise ProcessFailed("a process of the tester ended before its time; its standard error says why") from None

    async def end(self) -> None:
        self.process.kill()
        with trio.CancelScope(shield=True):  # safe to shield: SIGKILL cannot be refused
            await self.process.wait()


async def lines_of(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes]:
    """The lines of a stream, without their ends."""
    buffer = bytearray()
    while data := await stream.receive_some(65536):
        seen = len(buffer)
        buffer += data
        while (end := buffer.find(b"\n", seen)) >= 0:
            yield bytes(buffer[:end])
            del buffer[: end + 1]
            seen = 0
        if len(buffer) > _LINE_BYTES:
            raise ProcessFailed("a process of the tester said too much at once")


async def make_together(work: Work, count: int, stop: trio.Event, tell: Tell | None) -> Made:
    """Make the load with so many processes. Raises ProcessFailed."""
    async with AsyncExitStack() as stack:
        children = []
        for index in range(count):
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "benchmarks.processes"], cwd=ROOT, stdin=PIPE, stdout=PIPE
            )
            child = _Child(process)
            stack.push_async_callback(child.end)
            children.append(child)
            await child.say(replace(work, share=Share(index, count)))
        with trio.move_on_after(_READY_TIMEOUT_S) as scope:
            for child in children:
                await child.hear("ready")
        if scope.cancelled_caught:
            raise ProcessFailed(f"a process of the tester was not ready within {_READY_TIMEOUT_S} s")
        start = time.perf_counter() + _HEAD_START_S
        for child in children:
            await child.say({"start": start})
        joined = _Joined(count, tell)
        finals: dict[int, Mapping[str, Any]] = {}
        async with trio.open_nursery() as nursery:

            async def follow(index: int, child: _Child) -> None:
                while "done" not in (message := await child.hear("at_s")):
                    joined.hear(index, message)
                finals[index] = message

            async def stop_all() -> None:
                await stop.wait()
                for child in children:
                    assert child.process.stdin is not None
                    await child.process.stdin.aclose()

            nursery.start_soon(stop_all)
            async with trio.open_nursery() as inner:
                for index, child in enumerate(children):
                    inner.start_soon(follow, index, child)
            nursery.cancel_scope.cancel()
    account = Recorder(work.load)
    for index in range(count):
        account.add(finals[index]["done"])
    return Made(
        account,
        tuple(final["cpu_share"] for final in finals.values()),
        min(final["elapsed_s"] for final in finals.values()),
        any(final["interrupted"] for final in finals.values()),
    )


class _Joined:
    """The progress of all children, reported once each has sent its own for this second."""

    def __init__(self, count: int, tell: Tell | None) -> None:
        self._count, self._tell = count, tell
        self._heard: dict[int, Progress] = {}

    def hear(self, index: int, message: Mapping[str, Any]) -> None:
        if self._tell is None:
            return
        self._heard[index] = Progress.from_wire(message["live"])
        if len(self._heard) == self._count:
            whole = Progress()
            for each in self._heard.values():
                whole.add(each)
            self._heard.clear()
            self._tell(whole, message["at_s"])


# ---- the child's side --------------------------------------------------------------------------------------------


async def serve_parent(stdin: trio.abc.ReceiveStream, say: Callable[[Any], Awaitable[None]]) -> None:
    """One job of a child, from its first line to its account."""
    lines = lines_of(stdin)
    work = msgspec.json.decode(await anext(lines), type=Work)
    target = await open_target(work)
    await say({"ready": True})
    start = msgspec.json.decode(await anext(lines))["start"]
    stop = trio.Event()
    progress, source = trio.open_memory_channel[tuple[Progress, float]](100)

    async def watch_parent() -> None:
        async for _ in lines:
            pass
        stop.set()

    async def tell() -> None:
        async for each, at_s in source:
            await say({"live": each.wire(), "at_s": at_s})

    def pass_on(each: Progress, at_s: float) -> None:
        with suppress(trio.WouldBlock):  # progress is dropped if the parent does not read it
            progress.send_nowait((each, at_s))

    start_at = trio.current_time() + (start - time.perf_counter())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_parent)
        async with trio.open_nursery() as telling:
            telling.start_soon(tell)
            with progress:
                made = await make(work, target, stop, pass_on, start_at)
        nursery.cancel_scope.cancel()
    target.close()
    await say(
        {
            "done": made.account.wire(),
            "at_s": work.load.total_s,
            "cpu_share": made.cpu_shares[0],
            "elapsed_s": made.elapsed_s,
            "interrupted": made.interrupted,
        }
    )


async def _child() -> None:
    async with trio.lowlevel.FdStream(0) as stdin, trio.lowlevel.FdStream(1) as stdout:

        async def say(message: Any) -> None:
            await stdout.send_all(msgspec.json.encode(message) + b"\n")

        await serve_parent(stdin, say)


if __name__ == "__main__":
    # Ctrl-C reaches the whole group; the parent decides what it means and closes our standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trio.run(_child)

"""`make soak`, its first half: half an hour of tenants over HTTP, a fifth of what they ask hostile.

Tenants that behave ask for prompts, tools and lists, over REST and MCP; two others send the attacks of
`tests/security/supervisor` and call the corpus' hostile scripts, within the usual quotas. From a process of its own,
`/health` is asked at an even rate on one connection. At the end nothing may be left over, memory is back at rest, and
a client that behaved may have noticed a little time at most.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import trio
from machine import slowness
from mcp_soak import LEFT_OVER
from supervisor import answers, declarations, frames, requests, uploads
from supervisor.attack import Ask, Attack, Place, Plan, message, post, upload
from supervisor.driver import OPERATOR, SECRET, Hung, Target, outcome, target
from support import corpus

from benchmarks.report.figures import percentile
from benchmarks.targets.client import Client, Failed
from engine.work import LOOP_S

LEFT = (*LEFT_OVER, "workers beyond their bound")
MINUTES = 30.0
WARM_UP_S = 10.0
HOSTILE_SHARE = 0.2
CLIENTS, HOSTILE_CLIENTS = 8, 2
PAUSE_S = 0.05
PING = Path(__file__).with_name("ping.py")
# What 99 of 100 answers of /health take at most, as on the reference machine (`machine`): the server, its workers and
# the load share the cores, so that a time on them grows with what each turn takes.
HEALTH_P99_S = 0.05
# How long what is left behind may take to go, and by how much memory at rest may differ from that before.
QUIET_S = 60.0
REST = 1.5
HOSTILE = ("hostile-1", "hostile-2")
STEADY = ("steady-1", "steady-2", "steady-3", "steady-4")
# Of each folder of the corpus, so many scripts.
FOLDERS, OF_EACH = ("cpu", "memory", "output", "escape", "protocol"), 3
OPENS = """
agent = {}
function agent.resolve(args, config, context)
    context.search("tides")
    pcall(http.get, "URL", { timeout = 0.1 })
    kv.set("tides", kv.get("tides") or 1)
    return { system = "opened" }
end"""
ATTACKS = [each for table in (requests, uploads, declarations, answers, frames) for each in table.ATTACKS]

BENIGN: tuple[Ask, ...] = (
    post("/agents/echo/prompt", b'{"topic":"tides"}'),
    post("/tools/lists", b'{"a":["x","y"]}'),
    post("/tools/search", b'{"query":"tides"}'),
    Ask("GET", "/tools/list"),
    Ask("GET", "/limits"),
    message("prompts/get", b'{"name":"echo","arguments":{}}'),
    message("tools/call", b'{"name":"lists","arguments":{"a":["x"]}}'),
    message("tools/list", b"{}"),
)


@dataclass(slots=True)
class Figures:
    """What a soak saw. Times in seconds, memory in bytes.

    Each of `lags` is the longest of one second, in CPU time as it would be on the reference machine; each of `slow` is
    how many times slower than that one this machine was in this second.
    """

    answers: Counter[str] = field(default_factory=Counter)
    attacks: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    pings: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    slow: list[float] = field(default_factory=list)
    longest: tuple[float, str] = (0.0, "")
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    status: int | None = None
    processes_left: int = 0

    @property
    def slowness(self) -> float:
        return percentile(self.slow, 0.5) if self.slow else 1.0

    @property
    def health_p99_s(self) -> float:
        return percentile(self.pings, 0.99) / self.slowness if self.pings else 0.0

    @property
    def lag_p99_s(self) -> float:
        return percentile(self.lags, 0.99) if self.lags else 0.0


class Soak:
    """One soak of a server."""

    def __init__(self, server: Target, seed: int, attacks: list[Attack]) -> None:
        self.figures = Figures()
        self._server = server
        self._chance = random.Random(seed)
        self._attacks = attacks
        self._plans: dict[tuple[str, int], Plan] = {}
        self._corpus = [script for folder in FOLDERS for script in self._chance.sample(corpus(folder), OF_EACH)]
        self._under_way: set[str] = set()

    async def move_in(self) -> None:
        """Tenants with keys, and the corpus published by each of the hostile ones."""
        for name in (*STEADY, *HOSTILE):
            quotas = {"requests_per_second": 1_000, "burst": 1_000} if name in STEADY else {}
            await self._server.move_in(name, ["use", "publish", "admin"], quotas)
            secret = {"value": SECRET, "hosts": ["api.example.com"]}
            await self._server.operator("PUT", f"/admin/tenants/{name}/secrets/TOKEN", secret)
        # What the engine opens when it is first used stays open, and is not left over.
        url = f"127.0.0.1:{self._server.silent_port}"
        opens = OPENS.replace("URL", f"http://{url}/")
        for ask in (*upload("opens", opens, grants={"hosts": [url], "kv": True}), post("/agents/opens/prompt", b"{}")):
            await self._send(ask, HOSTILE[0])
        for script in self._corpus:
            for name in HOSTILE:
                # Some of the corpus do not say what they are, and are refused: that is tried as well.
                limits = {"limits": {"cpu_s": 1, "timeout_s": 2}}
                source = script.source.decode("utf-8", "replace")
                for ask in upload(_published(script.name), source, grants=limits):
                    await self._send(ask, name)
                    await trio.sleep(0.1)  # within the quota of requests

    async def steady(self, until: float) -> None:
        """A client that behaves: each of its calls must succeed."""
        client = Client(self._server.address)
        try:
            while trio.current_time() < until:
                ask, name = self._chance.choice(BENIGN), self._chance.choice(STEADY)
                headers = (("x-api-key", self._server.keys[name]), *ask.headers)
                body = None if ask.method == "GET" else ask.body
                try:
                    with trio.fail_after(QUIET_S):
                        answer = await client.request(ask.method, ask.path, body, headers)
                    said = outcome(answer)
                except (Failed, trio.TooSlowError) as error:
                    said = f"no answer: {error or type(error).__name__}"
                self.figures.answers[f"{ask.method} {ask.path} {said}"] += 1
                if said != "200":
                    self.figures.failed.append(f"{name} {ask.method} {ask.path}: {said}")
                await trio.sleep(PAUSE_S)
        finally:
            client.close()

    async def hostile(self, until: float) -> None:
        """A client that attacks, as long as a fifth of all requests is hostile."""
        sent = self.figures
        while trio.current_time() < until:
            if sent.attacks.total() * (1 - HOSTILE_SHARE) > HOSTILE_SHARE * sent.answers.total():
                await trio.sleep(PAUSE_S)
                continue
            name = self._chance.choice(HOSTILE)
            if self._chance.random() < 0.3:
                script = _published(self._chance.choice(self._corpus).name)
                await self._attempt(f"corpus {script}", (post(f"/agents/{script}/prompt", b"{}"),), name)
                continue
            attack = self._chance.choice(self._attacks)
            number = self._chance.randrange(3)
            await self._attempt(attack.name, self._plan(attack, number).asks, name)

    def _plan(self, attack: Attack, number: int) -> Plan:
        """An attack's plan. The first time, what it needs is published along: few names, so that all of them fit."""
        key = attack.name, number
        if key in self._plans:
            return self._plans[key]
        place = Place(self._attacks.index(attack) * 3 + number, self._server.silent_port)
        plan = attack.plan(place)
        self._plans[key] = plan
        return Plan((*plan.before, *plan.asks), plan.size)

    async def _attempt(self, what: str, asks: tuple[Ask, ...], name: str) -> None:
        self._under_way.add(what)
        for ask in asks:
            self.figures.attacks[await self._send(ask, name)] += 1
        self._under_way.discard(what)

    async def _send(self, ask: Ask, name: str) -> str:
        if ask.operator:
            path = ask.path.replace("tenant=hostile", f"tenant={name}")
            ask = Ask(ask.method, path, ask.body, ask.headers, operator=True)
        try:
            return outcome(await self._server.ask(ask, name))
        except (Hung, Failed) as error:
            return f"no answer: {error}" if isinstance(error, Failed) else "no answer"

    async def clients(self, seconds: float, *, hostile: bool = True) -> None:
        """All of them, for so long."""
        until = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(self.steady, until)
            for _ in range(HOSTILE_CLIENTS if hostile else 0):
                nursery.start_soon(self.hostile, until)

    async def look_on(self, stop: trio.Event) -> None:
        """Once a second, for how long the loop was kept: the supervisor's own CPU time. Cancelled, it would leave an
        answer behind for the next check.
        """
        await self._server.look("s")  # forgets what was before
        while not stop.is_set():
            await trio.sleep(1)
            told = await self._server.look("s")
            slow = slowness()
            self.figures.slow.append(slow)
            kept = max(told["kept_s"], told["held_s"]) / slow
            self.figures.lags.append(kept)
            if kept > self.figures.longest[0]:
                self.figures.longest = kept, ", ".join(sorted(self._under_way))

    async def settled(self, before: Mapping[str, Any] | None) -> dict[str, Any]:
        """What the server says of itself once nothing is left over that was not there before, or it takes too long."""
        state: dict[str, Any] = {}
        with trio.move_on_after(QUIET_S):
            while True:
                last, state = state, await self._server.look("l")
                if not more(before or last or dict.fromkeys(LEFT, 0), state):
                    return state
                await trio.sleep(0.5)
        return state


def _published(script: str) -> str:
    return script.removesuffix(".lua").replace("_", "-")[:60]


@asynccontextmanager
async def pinged(port: int, pings: list[float]) -> AsyncIterator[None]:
    """`/health` asked from a process of its own, for as long as the block lasts."""
    command = [sys.executable, "-I", str(PING), str(port), OPERATOR]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    said = b""
    try:
        yield
        await process.stdin.aclose()
        with trio.fail_after(QUIET_S):
            async for data in process.stdout:
                said += data
        pings += json.loads(said)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):  # safe to shield: SIGKILL cannot be refused
            await process.wait()


async def soak(minutes: float, *, seed: int = 1, attacks: list[Attack] | None = None) -> Figures:
    """The whole of it."""
    async with target() as server:
        run = Soak(server, seed, ATTACKS if attacks is None else attacks)
        figures = run.figures
        warm_up_s = min(WARM_UP_S, minutes * 60 / 4)
        await run.move_in()
        # Memory from before anybody attacks; the rest from after everything was used for the first time.
        await run.clients(warm_up_s, hostile=False)
        memory = (await run.settled(None))["memory"]
        await run.clients(warm_up_s)
        figures.before = {**await run.settled(None), "memory": memory}
        async with pinged(server.address.port, figures.pings), trio.open_nursery() as watching:
            stop = trio.Event()
            watching.start_soon(run.look_on, stop)
            await run.clients(minutes * 60)
            stop.set()
        await run.clients(warm_up_s, hostile=False)
        figures.after = await run.settled(figures.before)
        figures.failed += await server.lives()
        started_by_it = psutil.Process(server.process.pid).children(recursive=True)
        server.process.terminate()
        with trio.move_on_after(QUIET_S):
            figures.status = await server.process.wait()
        figures.processes_left = sum(each.is_running() for each in started_by_it)
    return figures


def more(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Of what there is more than before."""
    return [key for key in LEFT if after[key] > before[key]]


def problems(figures: Figures) -> list[str]:
    """What a soak must not show."""
    found = [f"{len(figures.failed)} calls of bystanders failed, such as {figures.failed[0]}"] if figures.failed else []
    if figures.health_p99_s > HEALTH_P99_S and figures.lag_p99_s > LOOP_S:
        found.append(
            f"/health took {figures.health_p99_s * 1e3:.0f} ms at the 99th percentile, and the supervisor itself kept "
            f"the loop for {figures.lag_p99_s * 1e3:.0f} ms"
        )
    if left := more(figures.before, figures.after):
        found += [f"{key} left over: {figures.before[key]}, {figures.after[key]}" for key in left]
    if "tasks" in left:
        new = Counter(figures.after.get("names", ())) - Counter(figures.before.get("names", ()))
        found.append(f"tasks that were not there before: {', '.join(new.elements())}")
    if figures.after["memory"] > REST * figures.before["memory"]:
        found.append(f"memory at rest was {figures.before['memory']} and is {figures.after['memory']} bytes")
    if figures.status != 0:
        found.append(f"the server ended with {figures.status}")
    if figures.processes_left:
        found.append(f"{figures.processes_left} processes left")
    if unanswered := {said: count for said, count in figures.attacks.items() if said.startswith("no answer")}:
        found.append(f"attacks without an answer: {unanswered}")
    return found


def report(figures: Figures) -> str:
    """The figures for people."""
    by_status: Counter[str] = Counter()
    for said, count in figures.attacks.items():
        by_status[said] += count
    pings = figures.pings or [0.0]
    ms = partial("{:.1f}".format)
    rest: Any = [f"{state['memory'] / 2**20:.1f}" for state in (figures.before, figures.after)]
    return "\n".join(
        (
            f"{figures.answers.total()} calls of tenants that behave, {len(figures.failed)} failed",
            f"{figures.attacks.total()} attacks: {', '.join(f'{k} {v}' for k, v in sorted(by_status.items()))}",
            f"this machine was {figures.slowness:.2f} times slower than the reference machine",
            f"/health, {len(figures.pings)} times: median {ms(percentile(pings, 0.5) * 1e3)} ms, "
            f"p99 {ms(percentile(pings, 0.99) * 1e3)} ms, worst {ms(max(pings) * 1e3)} ms; on the reference machine "
            f"p99 would be {ms(figures.health_p99_s * 1e3)} ms",
            f"the supervisor kept the loop, of each second the longest: p99 {ms(figures.lag_p99_s * 1e3)} ms of CPU, "
            f"worst {ms(figures.longest[0] * 1e3)} ms ({figures.longest[1] or 'nothing'})",
            *(f"{key} at rest: {figures.before[key]}, {figures.after[key]}" for key in LEFT),
            f"memory at rest, MiB: {', '.join(rest)}",
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    figures = trio.run(lambda: soak(options.minutes, seed=options.seed))
    print(f"{options.minutes:g} minutes on {os.cpu_count()} cores")
    print(report(figures))
    found = problems(figures)
    print("findings:", "; ".join(found) or "none")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

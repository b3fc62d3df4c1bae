"""The noisy neighbour: the effect on a well-behaved tenant of other tenants that exceed their quota fifty times.

    python -m benchmarks.aims.noisy [--rounds N] [--seconds S] [--json FILE]

Starts `engine serve` with keys. One tenant, `steady`, requests a prompt at an even rate; the table has its figures.
Beside it, in turns:

- `alone`: no other tenant;
- `well-behaved`: four tenants whose runs keep the machine busy, each within its quota;
- `hostile`: four tenants that send fifty times the requests of their quota, for endless loops, memory bombs and floods
  of host calls, without waiting for answers.

The cost of the hostile turn is its p99 divided by that of the well-behaved turn. A separate process makes the load of
the other tenants; all processes share the machine's cores with the server. Latency counts from a request's due time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import trio

from benchmarks.aims.harness import Column, Command, Figures, child, in_turns, of_all, report_of, serving, tell
from benchmarks.report import machine
from benchmarks.report.figures import percentile
from benchmarks.targets.address import Address
from benchmarks.targets.client import Client, Failed

OPERATOR_KEY = "the-operator-key-of-a-benchmark-on-loopback"
STEADY_RATE = 20.0
OTHERS = 4
# The quota of hostile tenants (requests a second), and by how much they exceed it.
HOSTILE_RATE = 2.0
TIMES = 50
# A well-behaved neighbour's run computes for about 20 ms; at this rate it stays below half a core, its quota.
BUSY_RATE = 20.0
# The aim on two shared cores: the p99 may rise by this part at most, and no call may fail.
AIM_RISE = 0.5
SETTLE_S = 1.0

SCRIPTS = {
    # A typical agent: it looks something up, computes a little, and writes a prompt.
    "steady": """
local found = context.search("payments", {limit = 3})
local sum = 0
for i = 1, 20000 do sum = sum + i % 7 end
return {system = "You have " .. #found .. " documents and " .. sum .. ".", messages = {}}""",
    "busy": """
local found = context.search("payments", {limit = 3})
local sum = 0
for i = 1, 1500000 do sum = sum + i % 7 end
return {system = "You have " .. #found .. " documents and " .. sum .. ".", messages = {}}""",
    "loop": "while true do end",
    "bomb": "local t = {} while true do t[#t + 1] = string.rep('x', 65536) .. #t end",
    "flood": "while true do pcall(context.search, 'payments') end",
}
HOSTILE = ("loop", "bomb", "flood")


@dataclass(frozen=True, slots=True)
class Sender:
    """One tenant's load: its key, the agents that it calls in turn, and its rate (requests a second)."""

    key: str
    agents: tuple[str, ...]
    rate: float


def configuration(folder: Path) -> str:
    """The server's configuration, with every script written to `folder`."""
    lines = [
        "[db]", f"path = {json.dumps(str(folder / 'knowledge.sqlite'))}",
        "[tenants]", "enabled = true", f"operator_key = {json.dumps(OPERATOR_KEY)}",
    ]  # fmt: skip
    for name, body in SCRIPTS.items():
        path = folder / f"{name}.lua"
        path.write_text(f"agent = {{tools = {{}}}}\nfunction agent.resolve(args, config, context)\n{body}\nend\n")
        lines += [f"[agents.script.{name}]", f"path = {json.dumps(str(path))}", 'tenants = ["*"]']
    lines += ["[agents.script.flood.limits]", "host_calls = 10000"]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Used:
    """The usage of a tenant's runs, in milliseconds."""

    runs: int = 0
    queue_ms: float = 0.0
    wall_ms: float = 0.0
    cpu_ms: float = 0.0

    def since(self, before: "Used") -> "Used":
        return Used(*(now - was for now, was in zip(astuple(self), astuple(before), strict=True)))

    def plus(self, other: "Used") -> "Used":
        return Used(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))


# ---- sending ----------------------------------------------------------------------------------------------------


async def send(client: Client, sender: Sender, number: int, outcomes: Counter[str]) -> None:
    """Send one request, and count its status, or the reason for a missing answer."""
    path = f"/agents/{sender.agents[number % len(sender.agents)]}/prompt"
    try:
        answer = await client.request("POST", path, b"{}", (("x-api-key", sender.key),))
        outcomes[str(answer.status)] += 1
    except Failed as failed:
        outcomes[failed.outcome] += 1


async def keep_sending(address: Address, sender: Sender, outcomes: Counter[str], until: float) -> list[float]:
    """Send at the sender's rate until `until`, and wait for the answers. Returns the latencies in seconds."""
    client, taken = Client(address), []

    async def one(number: int, due: float) -> None:
        await send(client, sender, number, outcomes)
        taken.append(trio.current_time() - due)

    begin, number = trio.current_time(), 0
    async with trio.open_nursery() as nursery:
        while (due := begin + number / sender.rate) < until:
            await trio.sleep_until(due)
            nursery.start_soon(one, number, due)
            number += 1
    client.close()
    return taken


async def be_the_others() -> None:
    """The other process: reads its job as one line of JSON, sends until standard input ends, prints the outcomes."""
    job = json.loads(sys.stdin.readline())
    outcomes: Counter[str] = Counter()
    async with trio.open_nursery() as nursery:
        for given in job["senders"]:
            nursery.start_soon(keep_sending, Address(**job["address"]), Sender(**given), outcomes, float("inf"))
        await trio.lowlevel.wait_readable(sys.stdin)
        nursery.cancel_scope.cancel()
    print(json.dumps(outcomes))


@asynccontextmanager
async def others(address: Address, senders: list[Sender], outcomes: Counter[str]) -> AsyncIterator[None]:
    """The load of these senders, from a separate process, while the block lasts."""
    if not senders:
        yield
        return
    job = {"address": asdict(address), "senders": [asdict(sender) for sender in senders]}
    async with child(sys.executable, "-m", "benchmarks.aims.noisy", "--others") as them:
        await them.stdin.send_all(json.dumps(job).encode() + b"\n")
        yield
        await them.stdin.aclose()
        said = b""
        with trio.fail_after(30):
            async for data in them.stdout:
                said += data
        outcomes.update(json.loads(said))


# ---- measuring --------------------------------------------------------------------------------------------------


class Server:
    """The server under test, with the operator's access to it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._client = Client(address)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request as the operator. Any status but success is an error."""
        data = None if body is None else json.dumps(body).encode()
        answer = await self._client.request(method, path, data, (("authorization", f"Bearer {OPERATOR_KEY}"),))
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status}: {answer.body[:300]!r}")
        return json.loads(answer.body)

    async def tenant(self, name: str, **quotas: float) -> str:
        """Create a tenant. Returns a key for it."""
        await self.ask("POST", "/admin/tenants", {"name": name, "quotas": quotas})
        return str((await self.ask("POST", f"/admin/tenants/{name}/keys", {"scopes": ["use"]}))["key"])

    async def used(self, name: str) -> Used:
        """The usage of a tenant's runs so far."""
        total = (await self.ask("GET", f"/admin/tenants/{name}/usage"))["total"]
        return Used(total["runs"], total["queue_ms"], total["wall_ms"], total["cpu_ms"])

    def close(self) -> None:
        self._client.close()


@dataclass
class Turns:
    """What was found in the turns of one kind."""

    samples: list[list[float]] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    theirs: Counter[str] = field(default_factory=Counter)
    busy: list[float] = field(default_factory=list)
    own: Used = Used()
    # CPU seconds of each hostile tenant's runs, a second of a turn.
    shares: list[float] = field(default_factory=list)

    def p_ms(self, share: float) -> float:
        return round(of_all(self.samples, share) * 1e3, 2)

    def as_row(self, name: str) -> Figures:
        return {
            "turn": name, "requests": sum(map(len, self.samples)),
            "failed": self.statuses.total() - self.statuses["200"], "statuses": dict(self.statuses),
            "p50_ms": self.p_ms(0.5), "p99_ms": self.p_ms(0.99),
            "queue_ms": round(self.own.queue_ms / self.own.runs, 2),
            "run_ms": round(self.own.wall_ms / self.own.runs, 2),
            "p99_of_rounds_ms": [round(percentile(each, 0.99) * 1e3, 2) for each in self.samples],
            "machine_busy": round(sum(self.busy) / len(self.busy), 2), "others": dict(self.theirs),
        }  # fmt: skip


async def measure(rounds: int, seconds: float) -> Figures:
    """Run every turn, so many times, against one server."""
    seen: dict[str, Turns] = defaultdict(Turns)
    with tempfile.TemporaryDirectory(prefix="engine-noisy-") as temporary:
        folder = Path(temporary)
        config = folder / "engine.toml"
        config.write_text(configuration(folder))
        async with serving(config, stderr=subprocess.DEVNULL) as running:
            server = Server(running.address)
            # The steady tenant's rate is the default quota; a moment's jitter must not lead to refusals.
            steady = Sender(
                await server.tenant("steady", requests_per_second=STEADY_RATE * 2), ("steady",), STEADY_RATE
            )
            good = [Sender(await server.tenant(f"good-{i}"), ("busy",), BUSY_RATE) for i in range(OTHERS)]
            bad = [
                Sender(
                    await server.tenant(f"bad-{i}", requests_per_second=HOSTILE_RATE, burst=int(2 * HOSTILE_RATE)),
                    HOSTILE[i % 3 :] + HOSTILE[: i % 3],
                    HOSTILE_RATE * TIMES,
                )
                for i in range(OTHERS)
            ]
            load = {"alone": [], "well-behaved": good, "hostile": bad}
            for name in in_turns(tuple(load), rounds):
                await take_turn(server, steady, load[name], seconds, seen[name])
            server.close()
    cores = len(os.sched_getaffinity(0))
    return {
        "rows": [seen[name].as_row(name) for name in load],
        "rise": round(seen["hostile"].p_ms(0.99) / seen["well-behaved"].p_ms(0.99) - 1, 3),
        "hostile_cpu_share": {
            "most_cores": round(max(seen["hostile"].shares), 3), "fair_cores": round(cores / OTHERS, 3),
        },
    }  # fmt: skip


async def take_turn(server: Server, steady: Sender, load: list[Sender], seconds: float, seen: Turns) -> None:
    names = ("steady", *(f"bad-{i}" for i in range(OTHERS)))
    before = [await server.used(each) for each in names]
    psutil.cpu_percent()
    async with others(server.address, load, seen.theirs):
        await trio.sleep(SETTLE_S if load else 0)
        until = trio.current_time() + seconds
        seen.samples.append(await keep_sending(server.address, steady, seen.statuses, until))
    seen.busy.append(psutil.cpu_percent() / 100)
    # Wait for the last turn's runs to end: they are cancelled when their clients disconnect.
    await trio.sleep(SETTLE_S)
    own, *theirs = [(await server.used(each)).since(was) for each, was in zip(names, before, strict=True)]
    seen.own = seen.own.plus(own)
    seen.shares += [each.cpu_ms / 1e3 / (seconds + SETTLE_S) for each in theirs]


COLUMNS: tuple[Column, ...] = (
    ("others", "{turn}"), ("requests", "{requests}"), ("failed", "{failed}"), ("p50 ms", "{p50_ms:.2f}"),
    ("p99 ms", "{p99_ms:.2f}"), ("queued", "{queue_ms:.2f}"), ("run", "{run_ms:.2f}"),
    ("machine", "{machine_busy:.0%}"),
    ("what the others got", lambda row: " ".join(f"{n}x{status}" for status, n in sorted(row["others"].items()))),
)  # fmt: skip


def report(result: Figures) -> str:
    """The result as text."""
    about = (
        f"{result['rounds']} interleaved rounds of {result['seconds']:g} s a turn; `steady` sends "
        f"{STEADY_RATE:g} requests a second",
    )
    share = result["hostile_cpu_share"]
    return (
        f"{report_of(result, about, COLUMNS)}\n\n"
        f"p99 with hostile neighbours over well-behaved ones: {result['rise']:+.0%} (aim on 2 shared cores: at "
        f"most {AIM_RISE:+.0%})\n"
        f"CPU of a hostile tenant's runs: at most {share['most_cores']:.2f} cores; its part of what `steady` "
        f"leaves is {share['fair_cores']:.2f}"
    )


def main() -> None:
    command = Command("noisy", "What neighbours cost.")
    command.add_count("--rounds", 4, "turns of each kind")
    command.add_count("--seconds", 15, "how long a turn is")
    command.add_argument("--others", action="store_true", help=argparse.SUPPRESS)
    options = command.parse_args()
    if options.others:
        trio.run(be_the_others)
        return
    result: Figures = {"machine": machine.facts(), "rounds": options.rounds, "seconds": float(options.seconds)}
    result |= trio.run(measure, options.rounds, float(options.seconds))
    tell(report(result), result, options.json)


if __name__ == "__main__":
    main()

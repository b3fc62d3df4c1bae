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
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import psutil
import trio

from benchmarks.aims.command import Command, tell
from benchmarks.aims.http_latency import ROOT, serving
from benchmarks.report import machine
from benchmarks.report.figures import percentile, table
from benchmarks.targets.address import Address
from benchmarks.targets.client import Client, Failed

OPERATOR_KEY = "the-operator-of-a-benchmark-that-nobody-else-reaches"
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
    address = Address("127.0.0.1", job["port"], f"127.0.0.1:{job['port']}")
    outcomes: Counter[str] = Counter()
    async with trio.open_nursery() as nursery:
        for given in job["senders"]:
            sender = Sender(given["key"], tuple(given["agents"]), given["rate"])
            nursery.start_soon(keep_sending, address, sender, outcomes, float("inf"))
        await trio.lowlevel.wait_readable(sys.stdin)
        nursery.cancel_scope.cancel()
    print(json.dumps(outcomes))


@asynccontextmanager
async def others(port: int, senders: list[Sender], outcomes: Counter[str]) -> AsyncIterator[None]:
    """The load of these senders, from a separate process, while the block lasts."""
    if not senders:
        yield
        return
    job = {"port": port, "senders": [{"key": s.key, "agents": s.agents, "rate": s.rate} for s in senders]}
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "benchmarks.aims.noisy", "--others"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        await process.stdin.send_all(json.dumps(job).encode() + b"\n")
        yield
        await process.stdin.aclose()
        said = b""
        with trio.fail_after(30):
            async for data in process.stdout:
                said += data
        outcomes.update(json.loads(said))
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


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


async def measure(rounds: int, seconds: float) -> dict[str, Any]:
    """Run every turn, so many times, against one server."""
    samples: dict[str, list[list[float]]] = {name: [] for name in ("alone", "well-behaved", "hostile")}
    statuses: dict[str, Counter[str]] = {name: Counter() for name in samples}
    theirs: dict[str, Counter[str]] = {name: Counter() for name in samples}
    busy: dict[str, list[float]] = {name: [] for name in samples}
    own = dict.fromkeys(samples, Used())
    shares: list[float] = []
    with tempfile.TemporaryDirectory(prefix="engine-noisy-") as temporary:
        folder = Path(temporary)
        config = folder / "engine.toml"
        config.write_text(configuration(folder))
        async with serving(config, stderr=subprocess.DEVNULL) as where:
            port = int(where.rpartition(":")[2])
            server = Server(Address("127.0.0.1", port, where))
            # The steady tenant's rate is the default quota; a moment's jitter must not lead to refusals.
            steady = Sender(
                await server.tenant("steady", requests_per_second=STEADY_RATE * 2), ("steady",), STEADY_RATE
            )
            good = [Sender(await server.tenant(f"good-{i}"), ("busy",), BUSY_RATE) for i in range(OTHERS)]
            bad_names = [f"bad-{i}" for i in range(OTHERS)]
            bad = [
                Sender(
                    await server.tenant(name, requests_per_second=HOSTILE_RATE, burst=int(2 * HOSTILE_RATE)),
                    HOSTILE[i % 3 :] + HOSTILE[: i % 3],
                    HOSTILE_RATE * TIMES,
                )
                for i, name in enumerate(bad_names)
            ]
            load = {"alone": [], "well-behaved": good, "hostile": bad}
            for number in range(rounds):
                for name in list(load)[:: -1 if number % 2 else 1]:
                    before = [await server.used(each) for each in ("steady", *bad_names)]
                    psutil.cpu_percent()
                    async with others(port, load[name], theirs[name]):
                        await trio.sleep(SETTLE_S if load[name] else 0)
                        until = trio.current_time() + seconds
                        samples[name].append(await keep_sending(server.address, steady, statuses[name], until))
                    busy[name].append(psutil.cpu_percent() / 100)
                    # Wait for the last turn's runs to end: they are cancelled when their clients disconnect.
                    await trio.sleep(SETTLE_S)
                    used = [
                        (await server.used(each)).since(was)
                        for each, was in zip(("steady", *bad_names), before, strict=True)
                    ]
                    own[name] = own[name].plus(used[0])
                    if name == "hostile":
                        shares += [each.cpu_ms / 1e3 / (seconds + SETTLE_S) for each in used[1:]]
            server.close()
    rows = [
        {
            "turn": name, "requests": sum(map(len, samples[name])),
            "failed": _failed(statuses[name]), "statuses": dict(statuses[name]),
            "p50_ms": _ms(samples[name], 0.5), "p99_ms": _ms(samples[name], 0.99),
            "queue_ms": round(own[name].queue_ms / own[name].runs, 2),
            "run_ms": round(own[name].wall_ms / own[name].runs, 2),
            "p99_of_rounds_ms": [round(percentile(each, 0.99) * 1e3, 2) for each in samples[name]],
            "machine_busy": round(sum(busy[name]) / len(busy[name]), 2), "others": dict(theirs[name]),
        }
        for name in samples
    ]  # fmt: skip
    cores = len(os.sched_getaffinity(0))
    return {
        "rows": rows,
        "rise": round(_ms(samples["hostile"], 0.99) / _ms(samples["well-behaved"], 0.99) - 1, 3),
        "hostile_cpu_share": {"most_cores": round(max(shares), 3), "fair_cores": round(cores / OTHERS, 3)},
    }


def _ms(turns: list[list[float]], share: float) -> float:
    return round(percentile([sample for turn in turns for sample in turn], share) * 1e3, 2)


def _failed(statuses: Counter[str]) -> int:
    return sum(count for status, count in statuses.items() if status != "200")


def report(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = [
        (
            row["turn"],
            str(row["requests"]),
            str(row["failed"]),
            *(f"{row[name]:.2f}" for name in ("p50_ms", "p99_ms", "queue_ms", "run_ms")),
            f"{row['machine_busy']:.0%}",
            " ".join(f"{count}x{status}" for status, count in sorted(row["others"].items())),
        )
        for row in result["rows"]
    ]
    share = result["hostile_cpu_share"]
    return "\n".join(
        (
            machine.line(result["machine"]),
            f"{result['rounds']} interleaved rounds of {result['seconds']:g} s a turn; `steady` sends "
            f"{STEADY_RATE:g} requests a second",
            "",
            table(
                ("others", "requests", "failed", "p50 ms", "p99 ms", "queued", "run", "machine", "what the others got"),
                lines,
            ),
            "",
            f"p99 with hostile neighbours over well-behaved ones: {result['rise']:+.0%} (aim on 2 shared cores: at "
            f"most {AIM_RISE:+.0%})",
            f"CPU of a hostile tenant's runs: at most {share['most_cores']:.2f} cores; its part of what `steady` "
            f"leaves is {share['fair_cores']:.2f}",
        )
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
    result: dict[str, Any] = {
        "machine": machine.facts(), "rounds": options.rounds, "seconds": float(options.seconds),
    }  # fmt: skip
    result |= trio.run(measure, options.rounds, float(options.seconds))
    tell(report(result), result, options.json)


if __name__ == "__main__":
    main()

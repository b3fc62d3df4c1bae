"""What a tenant's runs cost while another tenant synchronises and embeds: p99 in pairs, quiet and busy by turns.

The issue's aim: p99 rises by at most 20 % while 10,000 documents are synchronised and embedded. `make soak` runs it;
alone: `python tests/long/sync_beside.py --documents 2000 --pairs 1`.
"""

import argparse
import sys
import tempfile
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path

import trio
from support import quiet

from agents import embedding
from agents.agent import Call
from agents.service import Service, open_service
from engine.config import load_config
from engine.host.process import prepare_process
from engine.tenant import Tenant
from knowledge.access import EVERYTHING

# Runs a second of the tenant that is measured.
RATE = 20.0
MOST_RISE = 0.2

_CONFIG = """
[db]
path = "data/store.sqlite"
[tenants]
enabled = true
operator_key = "the-operators-own-key"
[tenants.quota]
cpu_seconds_per_minute = 6000
[embedding]
provider = "static"
[agents.script.steady]
path = "steady.lua"
tenants = ["steady"]
[connectors.filesystem.docs]
root = "docs"
tenants = ["busy"]
"""
_SCRIPT = """
agent = { tools = {} }
function agent.resolve()
    local n = 0 for i = 1, 20000 do n = n + i % 7 end
    return { system = tostring(n), messages = {} }
end
"""


@dataclass
class Figures:
    """Seconds that runs took, in quiet and while the other tenant was busy; and how long that one was."""

    quiet: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    failed: int = 0

    @property
    def rise(self) -> float:
        """By how much p99 was higher, as a share."""
        return p99(self.busy) / p99(self.quiet) - 1


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(0.99 * len(seconds)))]


async def measure(documents: int, pairs: int, quiet_s: float) -> Figures:
    """Both states by turns, each pair with documents that are new."""
    figures = Figures()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "docs").mkdir()
        (folder / "engine.toml").write_text(_CONFIG)
        (folder / "steady.lua").write_text(_SCRIPT)
        loaded = load_config(folder / "engine.toml", environ={}, cwd=folder)
        embedding.EVERY_S = 0.5
        async with open_service(loaded) as service, service.syncs.serving():
            for tenant in ("steady", "busy"):
                await service.control.tenants.create(tenant, actor="cli")
            await _runs(service, [], _pause(2.0), figures)  # warm
            for pair in range(pairs):
                await _runs(service, figures.quiet, _pause(quiet_s), figures)
                await trio.to_thread.run_sync(_write, folder / "docs", documents, pair)
                began_s = trio.current_time()
                await _runs(service, figures.busy, _synced(service, documents), figures)
                figures.busy_s += trio.current_time() - began_s
    return figures


def _write(folder: Path, documents: int, pair: int) -> None:
    for n in range(documents):
        words = " ".join(f"word{(n * 31 + k * k + pair) % 9973}" for k in range(150))
        (folder / f"d{n}.md").write_text(f"# Document {n} of {pair}\n\n{words}\n")


async def _synced(service: Service, documents: int) -> None:
    """Begin a sync of the busy tenant, and wait until all it wrote has vectors."""
    await service.syncs.begin(Tenant("busy"), "filesystem:docs")
    while service.syncs._syncing:  # noqa: ASYNC110 - it ends by itself
        await trio.sleep(0.1)
    store = service.stores.store_of("busy")
    embedded = 0
    while embedded < documents:
        embedded = sum(source.embedded for source in await store.sources(EVERYTHING))
        await trio.sleep(1.0)  # each look computes 2 ms


async def _pause(seconds: float) -> None:
    await trio.sleep(seconds)


async def _runs(service: Service, into: list[float], until: Awaitable[None], figures: Figures) -> None:
    """Runs of the steady tenant, at a rate, until the other work ends."""

    async def one() -> None:
        began_s = trio.current_time()
        try:
            await service.resolve("steady", {}, Call(Tenant("steady")))
        except Exception:
            figures.failed += 1
        into.append(trio.current_time() - began_s)

    async def flow(nursery: trio.Nursery) -> None:
        while True:
            nursery.start_soon(one)
            await trio.sleep(1 / RATE)

    async with trio.open_nursery() as nursery:
        flowing = trio.CancelScope()

        async def flow_until_the_end() -> None:
            with flowing:
                await flow(nursery)

        nursery.start_soon(flow_until_the_end)
        await until
        flowing.cancel()


def problems(figures: Figures) -> list[str]:
    found = [f"{figures.failed} runs failed"] if figures.failed else []
    if figures.rise > MOST_RISE:
        found.append(f"p99 rose by {figures.rise:.0%}; at most {MOST_RISE:.0%} is aimed at")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--quiet-seconds", type=float, default=20.0)
    asked = parser.parse_args()
    quiet()
    prepare_process()  # as `engine serve` does
    figures = trio.run(measure, asked.documents, asked.pairs, asked.quiet_seconds)
    for name, seconds in (("quiet", figures.quiet), ("busy", figures.busy)):
        p50 = sorted(seconds)[len(seconds) // 2]
        mean = sum(seconds) / len(seconds)
        shown = ", ".join(f"{n} {s * 1e3:.1f} ms" for n, s in (("p50", p50), ("mean", mean), ("p99", p99(seconds))))
        print(f"{name}: {len(seconds)} runs, {shown}")
    print(
        f"busy for {figures.busy_s:.0f} s; p99 {figures.rise:+.0%}; {'; '.join(problems(figures)) or 'within the aim'}"
    )
    return 1 if problems(figures) else 0


if __name__ == "__main__":
    sys.exit(main())

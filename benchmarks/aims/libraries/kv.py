"""What keys of scripts cost: `kv.get` beside `context.get`, and `kv.set` beside bare apsw's durable writes.

    python -m benchmarks.aims.libraries.kv [--runs N] [--rounds N] [--json FILE]

Both stores are files. A run makes 100 calls; the time of a run without calls is subtracted, and the difference divided
by 100. Writes a second: 32 runs at once with 50 calls side by side each, beside a process that writes such rows to a
file of its own through apsw, a transaction each, with the same settings of SQLite. Rows take turns, round by round.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from benchmarks.aims import harness
from benchmarks.aims.harness import Figures
from benchmarks.aims.host_calls import a_call, about, branches, calling, median_us, row_of
from benchmarks.aims.job import BODY
from engine.bridge import knowledge, kv
from engine.bridge.families import Host
from engine.config import Config, SandboxConfig
from engine.engine import Engine, open_engine
from engine.run import Authority
from knowledge.access import EVERYTHING
from knowledge.sqlite.store import open_store
from knowledge.store import Batch, NewDocument

GET_AIM, SET_AIM = 1.3, 0.5
AT_ONCE, SIDE_BY_SIDE = 32, 50
# The first row is what the others stand beside.
ROWS = {
    "context.get": "context.get(id)",
    "kv.get": "kv.get('k')",
    "kv.get, no such key": "kv.get('none' .. i)",
    "kv.set": "kv.set('k' .. i, body)",
    "kv.incr": "kv.incr('n')",
}
# Writes rows of its own for so many seconds, and prints how many a second.
BARE = """
import sys, time, apsw
file, seconds, body = sys.argv[1], float(sys.argv[2]), sys.argv[3].encode()
db = apsw.Connection(file)
db.pragma("journal_mode", "wal")
db.pragma("synchronous", "FULL")
db.execute("CREATE TABLE IF NOT EXISTS entries(space TEXT, key BLOB, value BLOB, version INTEGER,"
           " PRIMARY KEY(space, key)) WITHOUT ROWID")
began, count = time.perf_counter(), 0
while time.perf_counter() - began < seconds:
    for _ in range(10):
        count += 1
        key = b"k%d" % (count % 1000)
        db.execute("INSERT INTO entries VALUES ('agent:kv', ?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value,"
                   " version = excluded.version", (key, body, count))
print(count / (time.perf_counter() - began))
"""
WRITE_S = 1.0


# An agent that makes the calls of one row, by its number; 0 makes none. Row -1 sets keys side by side.
AGENT = f"""
agent = {{}}
function agent.resolve(row, id, body, context)
{branches(ROWS.values())}
if row == -1 then
    local fs = {{}}
    for i = 1, {SIDE_BY_SIDE} do fs[i] = function() kv.set('k' .. i, body) end end
    context.parallel(fs)
end
return 1
end
"""


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Engine, str]]:
    """An engine on two files: a document, whose id this returns, and keys."""
    async with (
        open_store(folder / "knowledge.sqlite", create=True) as documents,
        kv.open_kv(folder / "kv.sqlite") as keys,
    ):
        document = NewDocument(source_id="a.md", title="A", body=BODY, chunks=(BODY,), digest="1")
        await documents.apply(Batch(source="filesystem:a", upserts=(document,)))
        (listed,) = await documents.documents(EVERYTHING, limit=1)
        functions = (
            *knowledge.functions(lambda _: documents, default_limit=12),
            *kv.functions(Host(lambda _: documents, 12, {}, kv=keys)),
        )
        async with open_engine(Config(sandbox=SandboxConfig(workers=2, reserve=1)), functions) as engine:
            yield engine, listed.id


async def measure(runs: int, rounds: int) -> Figures:
    """Medians of the rounds: microseconds a call, and writes a second."""
    with tempfile.TemporaryDirectory(prefix="kv-bench-") as name:
        folder = Path(name)
        async with opened(folder) as (engine, document):
            run = calling(engine, AGENT, authority=Authority(kv="agent:kv"))

            async def sets_a_second() -> float:
                began, count = time.perf_counter(), 0

                def more() -> bool:
                    return time.perf_counter() - began < WRITE_S

                async def one() -> None:
                    nonlocal count
                    await run(-1, document, BODY)
                    count += SIDE_BY_SIDE

                await harness.in_flight(one, AT_ONCE, more)
                return count / (time.perf_counter() - began)

            async def bare_a_second() -> float:
                command = [sys.executable, "-c", BARE, str(folder / "bare.sqlite"), str(WRITE_S), BODY]
                return float((await trio.run_process(command, capture_stdout=True)).stdout)

            await run(4, document, BODY)
            rows: dict[str, Callable[[], Awaitable[float]]] = {
                name: median_us(partial(run, number, document, BODY), runs, rounds)
                for number, name in enumerate(("idle", *ROWS))
            }
            seen = await harness.take_turns({**rows, "sets": sets_a_second, "bare": bare_a_second}, rounds)
    us = a_call(seen, ROWS)
    return {
        "rows": [row_of(name, taken, us["context.get"]) for name, taken in us.items()],
        "sets_per_s": round(statistics.median(seen["sets"])),
        "bare_per_s": round(statistics.median(seen["bare"])),
        **harness.spread("sets_ratio", harness.ratios(seen["sets"], seen["bare"]), 2),
    }


COLUMNS: tuple[harness.Column, ...] = (
    ("row", "{row}"), ("us a call", "{us:.1f}"), ("(rounds)", "{us_min:.1f}..{us_max:.1f}"),
    ("x context.get", "{ratio:.2f}"), ("aim", lambda row: f"<= {GET_AIM:g}" if row["row"] == "kv.get" else ""),
)  # fmt: skip


def report(result: Figures) -> str:
    """The result as text."""
    lines = (
        about(result),
        f"kv.set, {AT_ONCE} runs at once: {result['sets_per_s']:,} a second; bare apsw: {result['bare_per_s']:,}; "
        f"{result['sets_ratio']:.2f} of it ({result['sets_ratio_min']:.2f}..{result['sets_ratio_max']:.2f}), aim >= "
        f"{SET_AIM:g}",
    )
    return harness.report_of(result, lines, COLUMNS)


def main() -> None:
    def measured(_: argparse.Namespace, runs: int, rounds: int) -> Figures:
        return trio.run(measure, runs, rounds)

    command = harness.Command("libraries.kv", "What keys of scripts cost.", runs=100, rounds=10)
    harness.run_in_rounds(command, "runs", measured, report, aim=GET_AIM)


if __name__ == "__main__":
    main()

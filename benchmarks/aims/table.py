"""The table of aims: the engine beside its floor, its peers, unprotected servers and itself.

    python -m benchmarks.aims.table [--rounds N] [--seconds S] [--only PART]... [--peers DIR] [--json FILE] [--write]

Also `make bench`. Every figure is a ratio or an amount of this one run, with every layer and limit on; the row of a
peer that is not installed (`make peers`), or of a figure that cannot be measured here, says why. Took 3.2 minutes with
`--rounds 3 --seconds 0.8`; the defaults take longer in proportion. `--write` puts the tables between their markers into
`RESULTS.md`, `docs/bench.md` and the README.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import trio

from benchmarks.aims import bounds, contest, floor, front_end, peers
from benchmarks.aims.chatmd import rows as chatmd
from benchmarks.aims.contest import EIGHT, ONE, PACED, Contest
from benchmarks.aims.harness import ROOT, Command, compared, placements, tell
from benchmarks.aims.libraries import cost as libraries
from benchmarks.aims.libraries import kv
from benchmarks.aims.rows import Aim, Found, counted, replaced, shown
from benchmarks.aims.store import rows as store
from benchmarks.report import machine
from benchmarks.report.figures import table

RESULTS = ROOT / "benchmarks" / "RESULTS.md"
README = ROOT / "README.md"
STORE = ROOT / "docs" / "bench.md"
AIMS_TABLE, PEERS_TABLE, STORE_TABLE = "table of aims", "table of peers", "table of the store"
IDLE_MANY = 500
# The environment inside that of the peers where FastMCP has uvloop, which uvicorn uses if it is installed.
UVLOOP = "with-uvloop"
_PART_TIMEOUT_S = 240

WARM = tuple(
    Aim(what="warm run, p50, one at a time", beside=f"floor, {where}", least=1.45, aim=1.15)
    for where in ("free", "one core", "two cores")
)
MONTY_P50 = Aim(what="warm run, p50, one at a time", beside="pydantic-monty", least=1.0, aim=0.8)
MONTY_RATE = Aim(what="runs per second, 8 at once", beside="pydantic-monty", better="more", least=1.0, aim=1.3)
FLOOR_RATE = Aim(what="runs per second, 8 at once", beside="floor", better="more", least=0.7)
POOL_RATE = Aim(what="runs per second, 8 at once", beside="ProcessPoolExecutor(2)", better="more", aim=1.0)
MONTY_P99 = Aim(what="p99, 8 at once", beside="pydantic-monty", least=0.25)
FLOOR_P99 = Aim(what="p99, 8 at once", beside="floor", aim=1.2)
CPU = Aim(what="CPU per run, all processes", beside="floor", least=1.35, aim=1.1)
EXECUTION_P50 = Aim(what="a process per run, p50, reserve warm", beside="tenant isolation", least=1.5, aim=1.2)
EXECUTION_RATE = Aim(
    what="a process per run, runs per second", beside="bwrap lua5.4", better="more", least=1.0, aim=2.0
)
TENANT_P50 = Aim(what="tenant isolation, p50", beside="bwrap lua5.4", least=0.10)
TENANT_RATE = Aim(what="tenant isolation, runs per second", beside="bwrap lua5.4", better="more", least=10, aim=15)
MEMORY = Aim(what="PSS of an idle confined worker", beside="a plain lupa worker", least=1.05, aim=0.7)
MANY_IDLE = Aim(what=f"PSS of {IDLE_MANY} idle workers", beside="an amount", aim=2.0, unit="GB")
MCP_RATE = Aim(what="prompts/get, one front-end core, rate", beside="FastMCP", better="more", least=1.0)
MCP_P99 = Aim(what="prompts/get, one front-end core, p99", beside="FastMCP", least=0.2)
MCP_UVLOOP = Aim(what="prompts/get, one front-end core, rate", beside="FastMCP on uvloop", better="more", aim=1.0)
REST_RAW = Aim(
    what="REST prompts per second of front-end CPU", beside="unprotected raw ASGI", better="more", least=0.75
)
REST_QUART = Aim(what="REST prompts per second of front-end CPU", beside="unprotected Quart", better="more", aim=1.0)
NOISY = Aim(what="p99 while hostile tenants fill their quota", beside="its own in quiet", least=3.0, aim=1.6)
END = Aim(what="end of a hostile run, the latest", beside="its deadline", least=1.05)
START = Aim(what="start to first answer, store filled", beside="bare Quart-Trio", least=1.5, aim=1.0, unit="s more")
REGEX = tuple(
    Aim(what=f"{row}, p50", beside=next(iter(libraries.ROWS)), least=libraries.AIM)
    for row in libraries.ROWS
    if row.startswith("regex") and row != libraries.MANY
)
# A call with many matches costs more than a host call in any engine.
REGEX_MANY = Aim(what=f"{libraries.MANY}, p50", beside="bare RE2 from Python", least=libraries.BARE_AIM)
KV_GET = Aim(what="kv.get, p50", beside="context.get", least=kv.GET_AIM)
KV_SET = Aim(what="kv.set, writes a second", beside="bare apsw, durable", better="more", least=kv.SET_AIM)
COST = Aim(what="CPU per run, 1,000 tenants, 10,000 waiting", beside="1 tenant, none waiting", least=1.1)


# ---- the parts --------------------------------------------------------------------------------------------------


def warm(rounds: int) -> list[Found]:
    """The engine beside its floor, one run at a time, in every placement."""
    found = []
    results = {each.name: each for each in placements()}
    for aim in WARM:
        place = results.get(aim.beside.removeprefix("floor, "))
        if place is None:
            found.append(Found(aim=aim, why="needs more cores, or the right to choose among them"))
            continue
        rows = {row["row"]: row for row in trio.run(floor.measure, place, 100 * rounds, rounds)["rows"]}
        engine, beside = rows[floor.ROWS[2]], rows[floor.ROWS[0]]
        amounts = [_us(row["p50_us"]) for row in (engine, beside)]
        found.append(Found(aim=aim, figure=engine["ratio"], measured=amounts[0], beside=amounts[1]))
    return found


def judged(held: Contest) -> list[Found]:
    """The contest's figures for the aims. Of pydantic-monty's two interfaces, the better one in each figure."""
    monty = (peers.MONTY, peers.MONTY_ASYNC)

    def of(aim: Aim, kind: str, figure: str, beside: str, ours: str = peers.ENGINE) -> Found:
        found = held.ratio(kind, figure, ours, beside)
        if found is None:
            who = beside if beside in held.absent else ours
            return Found(aim=aim, why=held.absent.get(who, "it took no part"))
        show = _per_s if figure == "per_s" else _us
        amounts = [seen.median(figure) for name in (ours, beside) if (seen := held.of(name, kind))]
        return Found(aim=aim, figure=found, measured=show(amounts[0]), beside=show(amounts[1]))

    return [
        of(MONTY_P50, ONE, "p50_us", held.better(ONE, "p50_us", monty)),
        of(MONTY_RATE, EIGHT, "per_s", held.better(EIGHT, "per_s", monty)),
        of(FLOOR_RATE, EIGHT, "per_s", peers.FLOOR),
        of(POOL_RATE, EIGHT, "per_s", peers.PROCESS_POOL),
        of(MONTY_P99, EIGHT, "p99_us", held.better(EIGHT, "p99_us", monty)),
        of(FLOOR_P99, EIGHT, "p99_us", peers.FLOOR),
        of(CPU, EIGHT, "cpu_us", peers.FLOOR),
        # With pauses for both: they let the reserve fill up, but also cool the processor's caches.
        of(EXECUTION_P50, PACED, "p50_us", peers.ENGINE, peers.ENGINE_EXECUTION),
        of(EXECUTION_RATE, EIGHT, "per_s", peers.BUBBLEWRAP, peers.ENGINE_EXECUTION),
        of(TENANT_P50, ONE, "p50_us", peers.BUBBLEWRAP),
        of(TENANT_RATE, EIGHT, "per_s", peers.BUBBLEWRAP),
    ]


def memory() -> list[Found]:
    ours, _ = trio.run(bounds.idle_fleet, bounds.FLEET)
    plain = trio.run(bounds.plain_fleet, bounds.FLEET)
    return [Found(aim=MEMORY, figure=ours / plain, measured=_mib(ours), beside=_mib(plain))]


def memory_of_many() -> list[Found]:
    _, total = trio.run(bounds.idle_fleet, IDLE_MANY)
    return [Found(aim=MANY_IDLE, figure=total / 1e9, measured=f"{total / 1e9:.2f} GB")]


def mcp(folder: Path, rounds: int) -> list[Found]:
    """Beside FastMCP, by the benchmark that serves both (`aims.mcp_rate`): with its defaults, and with uvloop."""
    found = []
    for environment, aims in ((folder, (MCP_RATE, MCP_P99)), (folder / UVLOOP, (MCP_UVLOOP,))):
        if not (environment / "bin" / "python").exists():
            found += [Found(aim=aim, why="FastMCP is not installed: make peers") for aim in aims]
            continue
        given = ("--fastmcp-venv", str(environment), "--requests", str(400 * rounds), "--rounds", str(rounds))
        rows = [row for row in _part("mcp_rate", *given)["rows"] if row["method"] == "prompts/get"]
        (beside,) = (row for row in rows if not row["row"].startswith("engine"))
        ours = next(row for row in rows if row["aims"])
        for aim in aims:
            p99 = aim is MCP_P99
            amounts = [_us(row["p99_ms"] * 1e3) if p99 else _per_s(row["per_s"]) for row in (ours, beside)]
            figure = ours["p99_ratio" if p99 else "rate_ratio"]
            found.append(Found(aim=aim, figure=figure, measured=amounts[0], beside=amounts[1]))
    return found


def rest(rounds: int, seconds: float) -> list[Found]:
    seen = trio.run(front_end.rates, rounds, seconds)
    return [
        compared(aim, seen["engine"], seen[kind], _per_s) for aim, kind in ((REST_RAW, "raw"), (REST_QUART, "quart"))
    ]


def neighbours(rounds: int) -> list[Found]:
    """By a separate benchmark (`benchmarks.aims.noisy`)."""
    told = _part("noisy", "--rounds", str(rounds), "--seconds", "10")
    rows = {row["turn"]: row for row in told["rows"]}
    quiet, hostile = rows["alone"]["p99_ms"], rows["hostile"]["p99_ms"]
    return [Found(aim=NOISY, figure=hostile / quiet, measured=_us(hostile * 1e3), beside=_us(quiet * 1e3))]


def ends(rounds: int) -> list[Found]:
    worst = max(max(times) for times in trio.run(bounds.ends, rounds).values())
    deadline_us = bounds.DEADLINE_S * 1e6
    return [Found(aim=END, figure=worst, measured=_us(worst * deadline_us), beside=_us(deadline_us))]


def start(rounds: int) -> list[Found]:
    seen = trio.run(front_end.starts, rounds)
    ours, beside = (statistics.median(seen[name]) for name in ("engine", "quart"))
    return [Found(aim=START, figure=ours - beside, measured=f"{ours:.2f} s", beside=f"{beside:.2f} s")]


def cost(rounds: int, seconds: float) -> list[Found]:
    seen = trio.run(bounds.costs, rounds, seconds)
    return [compared(COST, seen["many"], seen["one"], _us)]


def called(rounds: int) -> list[Found]:
    """Libraries for scripts, beside a host call (`benchmarks.aims.libraries.cost`)."""
    rows = {f"{row['row']}, p50": row for row in trio.run(libraries.measure, 20 * rounds, rounds)["rows"]}
    beside = rows[f"{REGEX[0].beside}, p50"]
    found = [
        Found(aim=aim, figure=row["ratio"], measured=f"{row['us']:.1f} us", beside=f"{beside['us']:.1f} us")
        for aim in REGEX
        for row in (rows[aim.what],)
    ]
    many = rows[REGEX_MANY.what]
    amounts = [f"{many[name]:.1f} us" for name in ("us", "bare_us")]
    figure = many["us"] / many["bare_us"]
    return [*found, Found(aim=REGEX_MANY, figure=figure, measured=amounts[0], beside=amounts[1])]


def keys(rounds: int) -> list[Found]:
    """Keys of scripts, beside documents and bare SQLite (`benchmarks.aims.libraries.kv`)."""
    seen = trio.run(kv.measure, 10 * rounds, rounds)
    rows = {row["row"]: row for row in seen["rows"]}
    got, beside = (f"{rows[name]['us']:.1f} us" for name in ("kv.get", "context.get"))
    rates = [_per_s(seen[name]) for name in ("sets_per_s", "bare_per_s")]
    return [
        Found(aim=KV_GET, figure=rows["kv.get"]["ratio"], measured=got, beside=beside),
        Found(aim=KV_SET, figure=seen["sets_ratio"], measured=rates[0], beside=rates[1]),
    ]


def _part(module: str, *options: str) -> Any:
    """The figures of another benchmark, run as a separate program. Raises RuntimeError with its last output."""
    with tempfile.TemporaryDirectory(prefix="engine-bench-") as folder:
        written = Path(folder) / "figures.json"
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.aims.{module}", *options, "--json", str(written)],
            cwd=ROOT, capture_output=True, encoding="utf-8", timeout=_PART_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise RuntimeError(f"benchmarks.aims.{module}: {words[-1].strip(' |')}")
        return json.loads(written.read_text())


# ---- units ------------------------------------------------------------------------------------------------------


def _us(us: float) -> str:
    return f"{us:.0f} us" if us < 10_000 else f"{us / 1e3:.0f} ms"


def _per_s(rate: float) -> str:
    return f"{rate:,.0f}/s"


def _mib(size: float) -> str:
    return f"{size / (1 << 20):.2f} MiB"


# ---- all of it --------------------------------------------------------------------------------------------------


def peers_table(held: Contest) -> str:
    """Every contestant on the job, in Markdown: its figures, and the isolation that it provides."""
    lines = [
        "| | p50, one at a time | p99, 8 at once | runs/s, 8 at once | CPU a run | host call | isolation |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    for peer in peers.PEERS:
        cells = _cells(held, peer.name, "{:,.0f}".format)
        lines.append(f"| {' | '.join((peer.name, *cells, peer.host_call, peer.isolation))} |")
    versions = sorted(set(held.versions.values()))
    return "\n".join((*lines, "", f"Versions: {'; '.join(versions)}."))


def _cells(held: Contest, peer: str, rate: Callable[[float], str]) -> Sequence[str]:
    """A contestant's figures, or the reason why it has none."""
    one, eight = held.of(peer, ONE), held.of(peer, EIGHT)
    if one is None or eight is None:
        return held.absent[peer], "", "", ""
    p50, p99, cpu = (_us(each) for each in (one.median("p50_us"), eight.median("p99_us"), eight.median("cpu_us")))
    return p50, p99, rate(eight.median("per_s")), cpu


def parts(
    options: argparse.Namespace, hold: Callable[[], Contest]
) -> dict[str, tuple[Sequence[Aim], Callable[[], Sequence[Found]]]]:
    """Every part by name: its aims, and the function that measures them."""
    rounds, seconds = options.rounds, options.seconds
    judged_aims = (
        MONTY_P50, MONTY_RATE, FLOOR_RATE, POOL_RATE, MONTY_P99, FLOOR_P99, CPU, EXECUTION_P50, EXECUTION_RATE,
        TENANT_P50, TENANT_RATE,
    )  # fmt: skip
    return {
        "floor": (WARM, lambda: warm(rounds * 2)),
        "peers": (judged_aims, lambda: judged(hold())),
        "memory": ((MEMORY,), memory),
        "fleet": ((MANY_IDLE,), memory_of_many),
        "mcp": ((MCP_RATE, MCP_P99, MCP_UVLOOP), lambda: mcp(options.peers.absolute(), rounds)),
        "rest": ((REST_RAW, REST_QUART), lambda: rest(rounds, seconds)),
        "noisy": ((NOISY,), lambda: neighbours(max(1, rounds // 2))),
        "ends": ((END,), lambda: ends(max(1, rounds // 2))),
        "start": ((START,), lambda: start(rounds)),
        "libraries": ((*REGEX, REGEX_MANY), lambda: called(2 * rounds)),
        "keys": ((KV_GET, KV_SET), lambda: keys(2 * rounds)),
        "cost": ((COST,), lambda: cost(max(1, rounds // 2), 3 * seconds)),
        **store.parts(options.sizes, rounds),
        **chatmd.parts(chatmd.Sizes(), rounds, options.peers.absolute()),
    }


def attempt(aims: Sequence[Aim], measure: Callable[[], Sequence[Found]]) -> list[Found]:
    """The figures of a measurement for these aims; if it fails, the reason for each of them.

    A benchmark of many parts continues without one of them: a row without a figure gives the reason, and is no pass.
    """
    try:
        return list(measure())
    except Exception as error:  # any failure: the other rows are still useful
        traceback.print_exc()
        words = str(error).strip().splitlines() or [type(error).__name__]
        return [Found(aim=aim, why=f"{type(error).__name__}: {words[-1]}") for aim in aims]


def write(name: str, body: str, path: Path) -> None:
    """Put a table between its markers. Raises ValueError if there are none."""
    path.write_text(replaced(path.read_text(encoding="utf-8"), name, body), encoding="utf-8")


def main() -> None:
    parser = Command("table", "The table of aims.")
    parser.add_count("--rounds", 5, "interleaved rounds of most parts")
    parser.add_argument("--seconds", type=float, default=1.0, help="what is measured of a turn (default: 1)")
    parser.add_argument("--only", action="append", metavar="PART", help="only this part, or all of `store` or `chatmd`")
    sizes = parser.add_mutually_exclusive_group()
    for size, which in (("quick", store.QUICK), ("large", store.LARGE)):
        sizes.add_argument(
            f"--{size}", dest="sizes", action="store_const", const=which, default=store.Sizes(),
            help=f"{which.chunks:,} chunks, {which.files:,} files, {which.windows:,} windows in the store's parts",
        )  # fmt: skip
    parser.add_argument("--peers", type=Path, default=contest.PEERS_FOLDER, metavar="DIR", help="where peers are")
    parser.add_argument("--write", action="store_true", help="also put the tables into RESULTS.md and README.md")
    options = parser.parse_args()
    if options.seconds <= 0:
        parser.error("--seconds takes a number above 0")
    held: list[Contest] = []

    def hold() -> Contest:
        held.append(contest.hold(options.rounds, options.seconds, options.peers.absolute()))
        return held[0]

    todo = parts(options, hold)
    groups = {name.partition("-")[0] for name in todo}
    if unknown := set(options.only or ()) - todo.keys() - groups:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(todo)}")
    if options.write and options.only not in (None, ["store"]):
        parser.error("--write takes the whole table: leave out --only, or give --only store")
    facts, began = machine.facts(), time.monotonic()
    found: dict[str, list[Found]] = {AIMS_TABLE: [], STORE_TABLE: []}
    for name, (aims, measure) in todo.items():
        group = name.partition("-")[0]
        if not options.only or name in options.only or group in options.only:
            print(f"{name} ...", file=sys.stderr, flush=True)
            found[STORE_TABLE if group == "store" else AIMS_TABLE] += attempt(aims, measure)
    took_s = time.monotonic() - began
    head = (
        f"{machine.line(facts)}\n{options.rounds} rounds, {options.seconds:g} s measured of a turn; all of it took "
        f"{took_s / 60:.1f} minutes; ratios are medians of the rounds' ratios"
    )
    texts = {name: f"{shown(each)}\n\n{counted(each)}" for name, each in found.items() if each}
    figures = [{**asdict(each), "verdict": each.verdict} for each in chain.from_iterable(found.values())]
    told = {"machine": facts, "rounds": options.rounds, "took_s": round(took_s, 1), "found": figures}
    tell("\n\n".join((head, *texts.values(), *map(plain_peers, held))), told, options.json)
    if options.write:
        for name, text in texts.items():
            write(name, f"```\n{head}\n\n{text}\n```", STORE if name == STORE_TABLE else RESULTS)
        if held:
            write(PEERS_TABLE, peers_table(held[0]), README)


def plain_peers(held: Contest) -> str:
    """The contestants for a terminal."""
    rows = [(peer.name, *_cells(held, peer.name, _per_s)) for peer in peers.PEERS]
    return table(("the same job on", "p50, 1 at a time", "p99, 8 at once", "rate, 8 at once", "CPU a run"), rows)


if __name__ == "__main__":
    main()

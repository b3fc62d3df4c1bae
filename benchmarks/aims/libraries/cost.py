"""What a call of a library for scripts costs, beside one host call and beside the bare library called from Python.

    python -m benchmarks.aims.libraries.cost [--runs N] [--rounds N] [--json FILE]

A run makes 100 calls; the time of a run without calls is subtracted, and the difference divided by 100. Rows take
turns, round by round. The aim of `regex` is at most 1.3 times one host call.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import re2
import trio

from benchmarks.aims.command import Command, tell
from benchmarks.aims.host_calls import CALLS, WARM_UP, Query, echo
from benchmarks.report import machine
from benchmarks.report.figures import percentile, table
from engine.bridge import HostFunction
from engine.config import Config, SandboxConfig
from engine.engine import open_engine
from engine.run import RunRequest, Script
from engine.tenant import DEFAULT_TENANT

AIM = 1.3
LINE = "2024-05-01 ERROR payments-api: timeout after 30s (id=7f3a), and then some text up to a hundred bytes"
PATTERN = r"(\d{4})-(\d\d)-(\d\d) (\w+)"
# The first row is what the others stand beside.
ROWS = {
    "host call": "context.search(line)",
    "regex.match, 4 captures": f"regex.match(line, [[{PATTERN}]])",
    "regex.find, no match": "regex.find(line, 'zzz')",
    "regex.gsub, all vowels": "regex.gsub(line, '[aeiou]', '_')",
    "hash.sha1": "hash.sha1(line)",
    "url.parse": "url.parse('https://example.com/a?b=c')",
    "time.format": "time.format(1714557600)",
    "uuid.v4": "uuid.v4()",
    "text.upper": "text.upper(line)",
}
_LINE, _MATCH = LINE.encode(), re2.compile(PATTERN.encode())
_NONE, _VOWELS = re2.compile(b"zzz"), re2.compile(b"[aeiou]")
BARE: dict[str, Callable[[], object]] = {
    "regex.match, 4 captures": lambda: _MATCH.search(_LINE).groups(),
    "regex.find, no match": lambda: _NONE.search(_LINE),
    "regex.gsub, all vowels": lambda: _VOWELS.sub(b"_", _LINE),
}


def script() -> Script:
    """An agent that makes the calls of one row, by its number; 0 makes none."""
    branches = "".join(
        f"if row == {number} then for _ = 1, {CALLS} do {call} end end\n"
        for number, call in enumerate(ROWS.values(), 1)
    )
    source = f"agent = {{}}\nfunction agent.resolve(row, line, context)\n{branches}return 1\nend\n"
    return Script.from_source("libraries.lua", source.encode())


async def measure(runs: int, rounds: int) -> list[dict[str, Any]]:
    """Medians of the rounds, in microseconds a call."""
    config = Config(sandbox=SandboxConfig(workers=1, reserve=1))
    samples: dict[str, list[float]] = {name: [] for name in ROWS}
    bare: dict[str, list[float]] = {name: [] for name in BARE}
    async with open_engine(config, [HostFunction("context.search", Query, echo)]) as engine:
        made, limits = script(), engine.limits_for({}, DEFAULT_TENANT)

        async def run(row: int) -> None:
            result = await engine.execute(
                RunRequest(
                    tenant=DEFAULT_TENANT, name="libraries", script=made, root="agent", method="resolve",
                    args=(row, LINE), limits=limits, grants=frozenset({"context.search"}),
                )
            )  # fmt: skip
            assert result.failure is None, result.failure

        async def median_us(row: int, count: int) -> float:
            taken = []
            for i in range(WARM_UP + count):
                start = time.perf_counter_ns()
                await run(row)
                if i >= WARM_UP:
                    taken.append((time.perf_counter_ns() - start) / 1000)
            return percentile(taken, 0.5)

        for _ in range(rounds):
            count = -(-runs // rounds)
            idle = await median_us(0, count)
            for number, name in enumerate(ROWS, 1):
                samples[name].append((await median_us(number, count) - idle) / CALLS)
            for name, call in BARE.items():
                start = time.perf_counter_ns()
                for _ in range(CALLS):
                    call()
                bare[name].append((time.perf_counter_ns() - start) / 1000 / CALLS)
    beside = statistics.median(samples["host call"])
    return [
        {
            "row": name,
            "us": round(statistics.median(found), 2),
            "x_host_call": round(statistics.median(found) / beside, 3),
            "bare_us": round(statistics.median(bare[name]), 2) if name in bare else None,
        }
        for name, found in samples.items()
    ]


def report(result: dict[str, Any]) -> str:
    """The result as text."""
    rows = [
        (
            row["row"],
            f"{row['us']:.1f}",
            f"{row['x_host_call']:.2f}",
            f"<= {AIM:g}" if row["row"].startswith("regex") else "",
            "" if row["bare_us"] is None else f"{row['bare_us']:.1f}",
            "" if row["bare_us"] is None else f"{row['us'] / row['bare_us']:.1f}",
        )
        for row in result["rows"]
    ]
    head = ("row", "us a call", "x host call", "aim", "bare, us", "x bare")
    return "\n".join((machine.line(result["machine"]), "", table(head, rows)))


def main() -> None:
    parser = Command("aims.libraries.cost", "What a call of a library for scripts costs.")
    parser.add_count("--runs", 200, "counted runs of each row")
    parser.add_count("--rounds", 10, "turns of each row")
    options = parser.parse_args()
    rounds = min(options.rounds, options.runs)
    result: dict[str, Any] = {"machine": machine.facts(), "aim": AIM, "runs": options.runs, "rounds": rounds}
    result["rows"] = trio.run(measure, options.runs, rounds)
    tell(report(result), result, options.json)


if __name__ == "__main__":
    main()

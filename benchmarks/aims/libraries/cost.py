"""What a call of a library for scripts costs, beside one host call and beside the bare library called from Python.

    python -m benchmarks.aims.libraries.cost [--runs N] [--rounds N] [--json FILE]

A run makes 100 calls; the time of a run without calls is subtracted, and the difference divided by 100. Rows take
turns, round by round. The aim of `regex` is at most 1.3 times one host call, or 3 times the bare engine.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import re2
import trio

from benchmarks.aims import harness
from benchmarks.aims.harness import Figures
from benchmarks.aims.host_calls import CALLS, Query, a_call, about, branches, calling, echo, median_us, row_of
from benchmarks.aims.job import Run
from engine.bridge import HostFunction
from engine.config import Config, SandboxConfig
from engine.engine import open_engine

AIM, BARE_AIM = 1.3, 3.0
LINE = "2024-05-01 ERROR payments-api: timeout after 30s (id=7f3a), and then some text up to a hundred bytes"
PATTERN = r"(\d{4})-(\d\d)-(\d\d) (\w+)"
# One call with 23 matches.
MANY = "regex.gsub, all vowels"
# The first row is what the others stand beside.
ROWS = {
    "host call": "context.search(line)",
    "regex.match, 4 captures": f"regex.match(line, [[{PATTERN}]])",
    "regex.find, no match": "regex.find(line, 'zzz')",
    MANY: "regex.gsub(line, '[aeiou]', '_')",
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
    MANY: lambda: _VOWELS.sub(b"_", _LINE),
}


# An agent that makes the calls of one row, by its number; 0 makes none.
AGENT = f"agent = {{}}\nfunction agent.resolve(row, line, context)\n{branches(ROWS.values())}\nreturn 1\nend\n"


async def measure(runs: int, rounds: int) -> Figures:
    """Medians of the rounds, in microseconds a call."""
    config = Config(sandbox=SandboxConfig(workers=1, reserve=1))
    async with open_engine(config, [HostFunction("context.search", Query, echo)]) as engine:
        run = calling(engine, AGENT)
        rows = {name: partial(run, number, LINE) for number, name in enumerate(("idle", *ROWS))}
        bare = {f"bare {name}": partial(_calls, call) for name, call in BARE.items()}
        everything: dict[str, Run] = {**rows, **bare}
        turns = {name: median_us(each, runs, rounds) for name, each in everything.items()}
        seen = await harness.take_turns(turns, rounds)
    us = a_call(seen, ROWS)
    return {
        "rows": [
            {
                **row_of(name, taken, us["host call"], 2),
                "bare_us": round(statistics.median(seen[f"bare {name}"]) / CALLS, 2) if name in BARE else None,
            }
            for name, taken in us.items()
        ]
    }


async def _calls(call: Callable[[], object]) -> None:
    for _ in range(CALLS):
        call()


COLUMNS: tuple[harness.Column, ...] = (
    ("row", "{row}"), ("us a call", "{us:.1f}"), ("(rounds)", "{us_min:.1f}..{us_max:.1f}"),
    ("x host call", "{ratio:.2f}"), ("aim", lambda row: f"<= {AIM:g}" if row["row"].startswith("regex") else ""),
    ("bare, us", lambda row: "" if row["bare_us"] is None else f"{row['bare_us']:.1f}"),
    ("x bare", lambda row: "" if row["bare_us"] is None else f"{row['us'] / row['bare_us']:.1f}"),
)  # fmt: skip


def report(result: Figures) -> str:
    """The result as text."""
    return harness.report_of(result, [about(result)], COLUMNS)


def main() -> None:
    def measured(_: argparse.Namespace, runs: int, rounds: int) -> Figures:
        return trio.run(measure, runs, rounds)

    command = harness.Command("libraries.cost", "What a call of a library for scripts costs.", runs=200, rounds=10)
    harness.run_in_rounds(command, "runs", measured, report, aim=AIM)


if __name__ == "__main__":
    main()

"""`make fuzz`: random Lua and random bytes for as long as asked; any ending but the outcomes is a finding.

A worker that dies of SIGSEGV, SIGABRT or SIGSYS without a limit behind it is `worker_lost` or `policy_violation`: no
script may cause either by legal means.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import trio
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from lua_grammar import program
from lua_tangles import tangle
from support import LIMITS, engine_in_a_thread, quiet

from engine.bridge import CallRefused, HostContext, HostFunction
from engine.config import Config
from engine.run import Script
from sandbox.wire.outcome import Outcome

ALLOWED = {
    Outcome.OK,
    Outcome.SCRIPT_ERROR,
    Outcome.TIMEOUT,
    Outcome.CPU_LIMIT,
    Outcome.MEMORY_LIMIT,
    Outcome.OUTPUT_LIMIT,
    Outcome.CALL_LIMIT,
}


BATCH = 100


class _Asked(msgspec.Struct):
    query: str


async def _answer(_: HostContext, asked: _Asked) -> Any:
    """Some calls are answered at once, some in another order than they came in, one in a while is refused."""
    if asked.query == "hold":
        await trio.sleep(0.002)
    if len(asked.query) == 1:
        raise CallRefused("no")
    await trio.lowlevel.checkpoint()
    return asked.query[:100]


@dataclass(frozen=True, slots=True)
class Kind:
    """Programs, the host calls that they are granted, and the limits under which they run."""

    sources: SearchStrategy[str | bytes]
    functions: tuple[HostFunction, ...]
    limits: Mapping[str, float]


# The limits of the second are so small that what a message has beside its value is most of what it may have.
KINDS = {
    "anything": Kind(st.one_of(program, program, program, st.binary(max_size=200)), (), LIMITS),
    "tangles": Kind(
        tangle,
        (HostFunction("context.search", _Asked, _answer),),
        {**LIMITS, "memory_bytes": 4 << 20, "output_bytes": 65_536, "log_bytes": 1_000},
    ),
    "tangles with little to say": Kind(
        tangle,
        (HostFunction("context.search", _Asked, _answer),),
        {**LIMITS, "memory_bytes": 1 << 20, "output_bytes": 1_000, "log_bytes": 1},
    ),
}


def fuzz(
    kind: str = "anything", *, seconds: float = 600.0, batches: int | None = None, first_seed: int = 0
) -> dict[str, int]:
    """Batch after batch, each from a seed of its own, until time or batches are used up.

    Returns how often each outcome was seen. Raises AssertionError with the shrunk program on a finding.
    """
    seen: dict[str, int] = {}
    until = time.monotonic() + seconds
    config = Config.model_validate({"sandbox": {"workers": 2, "reserve": 2}})
    programs = KINDS[kind]
    with engine_in_a_thread(config, programs.functions, limits=programs.limits) as run:

        @settings(
            max_examples=BATCH,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(source=programs.sources)
        def one(source: str | bytes) -> None:
            raw = source.encode() if isinstance(source, str) else source
            result = run(Script.from_source("fuzz.lua", raw))
            seen[result.outcome.value] = seen.get(result.outcome.value, 0) + 1
            assert result.outcome in ALLOWED, (result.outcome, result.failure, raw)

        for number in itertools.count(first_seed):
            if time.monotonic() > until or number - first_seed == batches:
                return seen
            seed(number)(one)()
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0, help="the first batch's; every batch adds one")
    options = parser.parse_args()
    quiet()
    for kind in KINDS:
        seen = fuzz(kind, seconds=options.seconds / len(KINDS), first_seed=options.seed)
        counts = ", ".join(f"{outcome} {count}" for outcome, count in sorted(seen.items()))
        print(f"{kind}: {sum(seen.values())} programs, no finding: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

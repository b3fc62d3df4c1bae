"""`make fuzz`: random Lua and random bytes for as long as asked; any ending but the outcomes is a finding.

A worker that dies of SIGSEGV, SIGABRT or SIGSYS without a limit behind it is `worker_lost` or `policy_violation`: no
script may cause either by legal means.
"""

import argparse
import itertools
import sys
import time

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from lua_grammar import program
from support import engine_in_a_thread, quiet

from engine.config import Config
from engine.run import Script
from sandbox.outcome import Outcome

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


def fuzz(*, seconds: float = 600.0, batches: int | None = None, first_seed: int = 0) -> dict[str, int]:
    """Batch after batch, each from a seed of its own, until time or batches are used up.

    Returns how often each outcome was seen. Raises AssertionError with the shrunk program on a finding.
    """
    seen: dict[str, int] = {}
    until = time.monotonic() + seconds
    config = Config.model_validate({"sandbox": {"workers": 2, "reserve": 2}})
    with engine_in_a_thread(config) as run:

        @settings(
            max_examples=BATCH,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(source=st.one_of(program, program, program, st.binary(max_size=200)))
        def one(source: str | bytes) -> None:
            raw = source.encode() if isinstance(source, str) else source
            result = run(Script.of("fuzz.lua", raw))
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
    seen = fuzz(seconds=options.seconds, first_seed=options.seed)
    print(f"{sum(seen.values())} programs, no finding:", ", ".join(f"{k} {v}" for k, v in sorted(seen.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())

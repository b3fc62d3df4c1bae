"""`make fuzz`, its second half: a search for what costs the supervisor most CPU time a byte, kind by kind.

It climbs: of each kind of input (`supervisor.shapes`), the costliest few are mutated, and what costs more takes their
place. Small inputs tell what a byte costs; at the end the worst of each kind is sent at the largest permitted size,
and must keep the bounds of `engine.work`. Every worst one is written down, to be sent again with `--again FILE`.
"""

import argparse
import json
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
from supervisor.attack import ANSWER, BODY
from supervisor.driver import Cost, Driver
from supervisor.shapes import KINDS, Genome, attack, genome, mutated, of

from sandbox.wire.limits import MIB

# What one try sends, and the largest that its kind permits.
TRY_BYTES = 128 * 1024
FULL_BYTES = dict.fromkeys(KINDS, BODY) | {"declaration": MIB, "head": 12_000} | dict.fromkeys(
    ("answer", "call", "frame"), ANSWER - 64 * 1024
)  # fmt: skip
# Of each kind so many are kept, and one try in so many is a new one.
KEPT, NEW_IN = 4, 4


@dataclass(frozen=True, slots=True)
class Found:
    """One that was tried: what a byte of it costs, in nanoseconds of the supervisor's CPU."""

    genome: Genome
    ns_a_byte: float


def fitness(cost: Cost) -> float:
    """What a byte costs. One that hangs the server costs without end."""
    return cost.cpu_s / cost.slow / max(1, cost.size) * 1e9


async def climb(
    *, seconds: float, first_seed: int = 0, kinds: tuple[str, ...] = KINDS, tries: int | None = None
) -> tuple[dict[str, list[Found]], list[Cost]]:
    """Search until the time or the tries of each kind are used up, then send the worst of each kind in full size.

    Returns the costliest of each kind, the worst first, and what the worst cost in full.
    """
    best: dict[str, list[Found]] = {kind: [] for kind in kinds}
    chances = {kind: random.Random(f"{first_seed} {kind}") for kind in kinds}
    until, tried = trio.current_time() + seconds, 0
    async with Driver() as driver:
        while trio.current_time() < until and (tries is None or tried < tries):
            tried += 1
            for kind in kinds:
                chance, kept = chances[kind], best[kind]
                fresh = not kept or chance.randrange(NEW_IN) == 0
                one = genome(kind, chance) if fresh else mutated(chance.choice(kept).genome, chance)
                kept.append(Found(one, fitness(await driver.once(attack(one, TRY_BYTES)))))
                kept.sort(key=lambda found: -found.ns_a_byte)
                del kept[KEPT:]
        worst = [await driver.cost(attack(found[0].genome, FULL_BYTES[kind])) for kind, found in best.items() if found]
    return best, worst


async def again(told: list[dict[str, Any]]) -> list[Cost]:
    """Send what was written down, in full size."""
    async with Driver() as driver:
        genomes = [of(each) for each in told]
        return [await driver.cost(attack(each, FULL_BYTES[each.kind])) for each in genomes]


def report(worst: list[Cost]) -> int:
    """Print what the worst cost; the exit status."""
    found = [f"{cost.name}: {problem}" for cost in worst for problem in cost.problems()]
    for cost in worst:
        print(cost.line())
    print("findings:", "; ".join(found) or "none")
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind (may be repeated)")
    parser.add_argument("--again", type=Path, help="send what an earlier search has written to this file")
    options = parser.parse_args()
    if options.again is not None:
        return report(trio.run(again, json.loads(options.again.read_text())))
    kinds = tuple(options.kind or KINDS)
    best, worst = trio.run(lambda: climb(seconds=options.seconds, first_seed=options.seed, kinds=kinds))
    for kind, found in best.items():
        print(f"{kind}: at most {found[0].ns_a_byte:.0f} ns a byte" if found else f"{kind}: not tried")
    file = Path(tempfile.mkdtemp(prefix="engine-fuzz-"), "worst.json")
    file.write_text(json.dumps([found[0].genome.told() for found in best.values() if found], indent=1))
    print(f"the worst of each kind are in {file}; --again {file} sends them once more")
    return report(worst)


if __name__ == "__main__":
    sys.exit(main())

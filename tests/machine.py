"""What this machine is worth now, beside the one that figures are from: bounds of CPU time grow with it.

The same commit needed 2.5 times the CPU on another processor, and caches and the second half of a core are shared.
"""

import json
import time

from engine.work import LOOP_S

# `reference_s` on an idle core of the reference machine (2 cores, Linux 6.18, Python 3.11.7).
REFERENCE_S = 0.00185


def reference_s() -> float:
    """CPU time of a fixed piece of Python and C: what this machine is worth at the moment. The best of five."""
    best = float("inf")
    for _ in range(5):
        began = time.thread_time()
        made = [{"n": number, "s": str(number)} for number in range(2_000)]
        json.loads(json.dumps(made))
        best = min(best, time.thread_time() - began)
    return best


def slowness() -> float:
    """How many times slower than the reference machine this one is now; at least 1."""
    return max(1.0, reference_s() / REFERENCE_S)


def loop_s() -> float:
    """`LOOP_S` as it is on this machine now."""
    return LOOP_S * slowness()

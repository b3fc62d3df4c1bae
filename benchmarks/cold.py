"""The scenario `cold`: the cost of the first call, after the start of the engine and after an idle time.

Not a load: one call at a time, each time in a new engine. The latencies of the result are those of first calls; the
start itself, a second call and one after idling are reported beside them, under their own names.
"""

from dataclasses import replace

import trio

from benchmarks.load.account import Recorder
from benchmarks.load.schedule import Load, Request
from benchmarks.scenario import Scenario
from benchmarks.targets.pool import PoolTarget, open_pool_service
from engine.config import LoadedConfig

# Least number of engines, however short the time: one alone says little.
LEAST = 3


async def measure_cold(scenario: Scenario, own: LoadedConfig, load: Load, stop: trio.Event) -> tuple[Recorder, float]:
    """The account, and the seconds measured. Ends early when `stop` is set."""
    account = Recorder(load)
    begin = trio.current_time()
    made = 0

    async def one() -> None:
        ask = scenario.asks[0]
        opening = trio.current_time()
        async with open_pool_service(scenario, own) as service:
            started = trio.current_time()
            account.add_unrelated("start of the engine", started - opening, None)
            target = PoolTarget(service)

            async def call(name: str) -> None:
                request = Request(replace(ask, name=name), "default", made)
                due = trio.current_time()
                answer = await target.send(request)
                if name == "first call":
                    account.in_flight += 1
                    # Count it within the measured time, however long the last one took.
                    shift = min(due - begin, load.total_s * (1 - 1e-9)) - due
                    account.ended(request, due + shift, trio.current_time() + shift, answer)
                else:
                    account.add_unrelated(name, trio.current_time() - due, answer, ask.expect)

            await call("first call")
            await call("second call")
            await trio.sleep(scenario.idle_s)
            await call(f"after {scenario.idle_s:g} s idle")

    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            await stop.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        while made < LEAST or trio.current_time() - begin < load.duration_s:
            await one()
            made += 1
        nursery.cancel_scope.cancel()
    return account, trio.current_time() - begin

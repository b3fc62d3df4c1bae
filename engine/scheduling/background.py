"""Work for a tenant that can wait: synchronising a source, making vectors.

Its CPU time counts as the tenant's, in the quota and in its usage; between two pieces of it (a document, a batch) it
pauses for as long as runs of other tenants wait for a slot, and while its tenant has used up its CPU time. Beside runs
and searches it computes half of the time at most; while one computes, a quarter, and its threads give way to it.
"""

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import trio

from engine.tenant import Tenant
from storage.metering import WAIT_SHARE, Meter, metered

T = TypeVar("T")

# How long such work waits for runs of others at most, and how much of that a second of its own CPU time gives back: a
# tenant whose runs always wait takes no more from the work of others than 20 of 21 parts of a core.
YIELD_S, YIELD_SHARE = 5.0, 20
_LOOK_S = 0.005
# While runs compute or questions to stores are answered, it waits for their end, as its threads do (`give_way`).
_ANSWER_LOOK_S = 0.002
# While its tenant has used up its CPU time, it looks this often whether there is some again.
QUOTA_LOOK_S = 0.25


class Engine(Protocol):
    """What such work needs of an engine."""

    @property
    def computing(self) -> bool: ...

    @property
    def in_question(self) -> bool: ...

    @property
    def asked_lately(self) -> bool: ...

    def charge(self, tenant: Tenant, cpu_s: float, work: str | None = None) -> None: ...

    def others_wait(self, tenant: Tenant) -> bool: ...

    def may_work(self, tenant: Tenant) -> bool: ...


class Deferred(Exception):
    """The tenant has used up its CPU time: the work goes on when there is some again."""


@dataclass(slots=True)
class Background:
    """One piece of such work, which `GET /usage` shows as `name`. Made by `background`."""

    engine: Engine
    tenant: Tenant
    name: str
    meter: Meter
    patience_s: float = YIELD_S

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work, which awaits `rest` now and then."""
        return await self.meter.driving(work)

    def charge(self) -> float:
        """Charge the tenant for what was spent so far. Returns the seconds."""
        cpu_s = self.meter.take()
        self.engine.charge(self.tenant, cpu_s, self.name)
        return cpu_s

    def others(self) -> bool:
        """Whether a run or a question to a store computes. Threads may call it."""
        return self.engine.computing or self.engine.in_question

    async def rest(self) -> None:
        """Charge what was spent, and wait while others have the better claim to the processor.

        Raises Deferred where the tenant has used up its CPU time.
        """
        cpu_s, engine = self.charge(), self.engine
        if engine.computing or engine.asked_lately:  # at most every other moment is this work's
            await trio.sleep(cpu_s)
        # A search has a dozen turns of the interpreter, and waits for each of them beside a thread that computes.
        with trio.move_on_after(WAIT_SHARE * cpu_s):
            while self.others():  # noqa: ASYNC110 - most end within milliseconds
                await trio.sleep(_ANSWER_LOOK_S)
        self.patience_s = min(YIELD_S, self.patience_s + YIELD_SHARE * cpu_s)
        began_s = trio.current_time()
        with trio.move_on_after(self.patience_s):
            while engine.others_wait(self.tenant):  # noqa: ASYNC110 - the scheduler is pure, and tells no one
                await trio.sleep(_LOOK_S)
        self.patience_s = max(0.0, self.patience_s - (trio.current_time() - began_s))
        if not engine.may_work(self.tenant):
            raise Deferred


async def quota_left(engine: Engine, tenant: Tenant) -> None:
    """Wait until the tenant has CPU time left."""
    while not engine.may_work(tenant):  # noqa: ASYNC110 - a quota refills with time
        await trio.sleep(QUOTA_LOOK_S)


@asynccontextmanager
async def background(engine: Engine, tenant: Tenant, name: str) -> AsyncIterator[Background]:
    """Such work, charged to the end however it ends."""
    with metered() as meter:
        one = Background(engine, tenant, name, meter)
        meter.others = one.others
        try:
            yield one
        finally:
            one.charge()

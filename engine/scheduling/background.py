"""Work for a tenant that can wait: synchronising a source, making vectors.

Its CPU time counts as the tenant's, in the quota and in its usage; between two pieces of it (a document, a batch) it
pauses for as long as runs of other tenants wait for a slot, and while its tenant has used up its CPU time. Beside runs
and searches it computes half of the time at most.
"""

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import trio

from engine.tenant import Tenant
from storage.metering import Meter, metered

T = TypeVar("T")

# How long one piece of work waits for runs of others at most: under permanent load, the work still ends.
YIELD_S = 5.0
_LOOK_S = 0.005
# While questions to stores are answered, it waits for their end, but no longer than so many times what it computed.
ANSWER_SHARE = 3
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

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work, which awaits `rest` now and then."""
        return await self.meter.driving(work)

    def charge(self) -> float:
        """Charge the tenant for what was spent so far. Returns the seconds."""
        cpu_s = self.meter.take()
        self.engine.charge(self.tenant, cpu_s, self.name)
        return cpu_s

    async def rest(self) -> None:
        """Charge what was spent, and wait while others have the better claim to the processor.

        Raises Deferred where the tenant has used up its CPU time.
        """
        cpu_s, engine = self.charge(), self.engine
        if engine.computing or engine.asked_lately:  # at most every other moment is this work's
            await trio.sleep(cpu_s)
        # A search has a dozen turns of the interpreter, and waits for each of them beside a thread that computes.
        with trio.move_on_after(ANSWER_SHARE * cpu_s):
            while engine.in_question:  # noqa: ASYNC110 - questions end within milliseconds
                await trio.sleep(_ANSWER_LOOK_S)
        with trio.move_on_after(YIELD_S):
            while engine.others_wait(self.tenant):  # noqa: ASYNC110 - the scheduler is pure, and tells no one
                await trio.sleep(_LOOK_S)
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
        try:
            yield one
        finally:
            one.charge()

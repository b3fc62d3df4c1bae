"""Loads that publish, as `churn` does: under a new name, with a version before the first call, none active after it.

A name has a bounded number of versions, and a version never changes. So each load publishes under a new name, and the
versions of one load never conflict with those of another.
"""

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import quote

import orjson
import trio

from benchmarks.load.account import GARBAGE, NO_ANSWER, Answer
from benchmarks.load.making import Target
from benchmarks.load.schedule import Request
from benchmarks.processes import Work
from benchmarks.scenario import Ask
from benchmarks.targets.address import Address
from benchmarks.targets.client import Client, Failed, Response
from benchmarks.targets.rest import HttpTarget, outcome_of
from benchmarks.targets.target import Unfit
from sandbox.wire.outcome import Outcome

# The number of the requests before the load: those of the load count from 0.
_BEFORE = -1
# How long a server may take to list the active versions and to deprecate them.
_TIMEOUT_S = 5.0


def under_new_names(asks: Sequence[Ask]) -> tuple[Ask, ...]:
    """The requests, with every published agent under a name that no load has used before."""
    published = {ask.what for ask in asks if ask.kind == "publish"}
    suffix = secrets.token_hex(4)
    return tuple(
        replace(ask, what=f"{ask.what}-{suffix}") if ask.kind in ("agent", "publish") and ask.what in published else ask
        for ask in asks
    )


async def publish_first(work: Work, target: Target) -> None:
    """Publish a version of everything that the load calls, for each tenant. Raises Unfit if that is refused."""
    for ask, tenant in _published(work):
        answer = Answer(outcome=NO_ANSWER)
        with trio.move_on_after(work.load.timeout_s):
            answer = await target.send(Request(ask, tenant, _BEFORE))
        if answer.outcome != Outcome.OK.value:
            raise Unfit(
                f"the target does not publish the agent {ask.what!r} for {tenant!r}: {answer.outcome}; a server "
                "publishes for clients on its own machine, or with keys that have the scope 'publish'"
            )


@asynccontextmanager
async def published(work: Work, address: Address) -> AsyncIterator[list[str]]:
    """Inside this block, the server with REST at this address has the agents that the load calls; none is active after.

    Yields a list of messages, filled after the block with what could not be removed. Raises Unfit.
    """
    left: list[str] = []
    if not any(_published(work)):
        yield left
        return
    target = HttpTarget(address, work.keys)
    try:
        await publish_first(work, target)
        yield left
    finally:
        target.close()
        with trio.CancelScope(shield=True):  # safe to shield: it gives up at the first time-out
            left += await _take_out_of_service(work, address)


async def _take_out_of_service(work: Work, address: Address) -> list[str]:
    """Deprecate the active versions, so that no list shows them. Returns the first failure."""
    client = Client(address)
    try:
        for ask, tenant in _published(work):
            try:
                with trio.fail_after(_TIMEOUT_S):
                    await _deprecate_active(client, ask, work.keys.get(tenant))
            except (Failed, trio.TooSlowError) as error:
                why = error.outcome if isinstance(error, Failed) else NO_ANSWER
                return [f"what was published is left on the server, first the agent {ask.what!r} of {tenant!r}: {why}"]
    finally:
        client.close()
    return []


def _published(work: Work) -> Iterator[tuple[Ask, str]]:
    """The requests that publish, each with its tenant."""
    for ask in work.asks:
        if ask.kind == "publish":
            yield from ((ask, tenant) for tenant in (work.tenants if ask.tenant is None else (ask.tenant,)))


async def _deprecate_active(client: Client, ask: Ask, key: str | None) -> None:
    headers = [("authorization", f"Bearer {key}")] if key is not None else []
    path = f"/agents/{quote(ask.what, safe='')}/versions"
    response = await client.request("GET", path, headers=headers)
    for version in _active_in(response, ask):
        done = await client.request("POST", f"{path}/{quote(version, safe='')}/deprecate", b"{}", headers)
        if (outcome := outcome_of(done, ask)) != Outcome.OK.value:
            raise Failed(outcome)


def _active_in(response: Response, ask: Ask) -> list[str]:
    if (outcome := outcome_of(response, ask)) != Outcome.OK.value:
        raise Failed(outcome)
    match orjson.loads(response.body):
        case {"versions": [*listed]}:
            return [str(each.get("version")) for each in listed if isinstance(each, dict) and each.get("active")]
    raise Failed(GARBAGE)

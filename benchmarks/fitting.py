"""Checks before loading a server: whether it accepts the keys, its agents and tools, and which requests fit them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import trio

from benchmarks.processes import Work
from benchmarks.scenario import HOSTILE_TENANT, Ask, Scenario
from benchmarks.targets.client import Client, Failed
from benchmarks.targets.mcp import McpTarget
from benchmarks.targets.rest import outcome_of
from benchmarks.targets.target import Unfit
from engine.errors import Code

# How long a server may take to list the agents and tools of one tenant.
_TIMEOUT_S = 3.0

_REFUSED = (Code.UNAUTHORIZED.value, Code.FORBIDDEN.value)


@dataclass(frozen=True, slots=True)
class Has:
    """The names of a tenant's agents and tools."""

    agents: Sequence[str]
    tools: Sequence[str]


@dataclass(frozen=True, slots=True)
class Fitted:
    """The requests for a server, notes about them, and whether it answered like an engine."""

    asks: tuple[Ask, ...]
    notes: Sequence[str]
    known: bool


async def fit(work: Work, scenario: Scenario) -> Fitted:
    """The requests of the work, with replacements for those that this server cannot answer.

    Raises Unfit if the server refuses a key, or lacks what a request needs and there is no replacement.
    """
    has = await _look(work)
    if has is None:
        unseen = "the server did not say which agents and tools it has; the scenario's are asked for unseen"
        return Fitted(work.asks, [unseen], known=False)
    asks = tuple(_instead(ask, has, work, scenario) for ask in work.asks)
    notes = [
        f"the server has no {ask}: {instead} is asked instead"
        for ask, instead in zip(work.asks, asks, strict=True)
        if ask is not instead
    ]
    return Fitted(asks, notes, known=True)


def _instead(ask: Ask, has: Mapping[str | None, Has], work: Work, scenario: Scenario) -> Ask:
    lacking = [tenant for tenant in _askers(ask, has, work) if not _answers(has[tenant], ask, work.asks)]
    if not lacking:
        return ask
    if ask.otherwise is not None:
        return _instead(ask.otherwise, has, work, scenario)
    given = "hostile" if ask.tenant == HOSTILE_TENANT else scenario.given
    how = "" if scenario.own else f"; `engine bench scenarios {given}` prints what to add to its configuration"
    whose = "" if lacking[0] is None else f" for the tenant of {_key(work, lacking[0])}"
    raise Unfit(f"the server has no {ask.kind} {ask.what!r}{whose}, which the scenario asks for{how}")


def _askers(ask: Ask, has: Mapping[str | None, Has], work: Work) -> Sequence[str | None]:
    if not work.keys:
        return list(has)
    return work.tenants if ask.tenant is None else [ask.tenant]


def _answers(has: Has, ask: Ask, asks: Sequence[Ask]) -> bool:
    if ask.kind == "agent":
        # Agents that the load itself publishes exist when it begins.
        return ask.what in has.agents or any(each.kind == "publish" and each.what == ask.what for each in asks)
    return ask.kind != "tool" or ask.what in has.tools


def _key(work: Work, tenant: str) -> str:
    """A description of a key by which its owner finds it; never the key itself."""
    return f"key {list(work.keys).index(tenant) + 1} of --key-file ({tenant!r})"


# ---- the server's lists -------------------------------------------------------------------------------------------


async def _look(work: Work) -> dict[str | None, Has] | None:
    """The agents and tools of each tenant; None if the server does not answer like an engine. Raises Unfit."""
    found: dict[str | None, Has] = {}
    for tenant in work.keys or (None,):
        try:
            with trio.fail_after(_TIMEOUT_S):
                found[tenant] = await (_over_mcp if work.target == "mcp" else _over_rest)(work, tenant)
        except trio.TooSlowError:
            return None
        except Failed as failed:
            if failed.outcome not in _REFUSED:
                return None
            if tenant is None:
                raise Unfit("the server asks for keys: give a file of them with --key-file") from None
            raise Unfit(f"the server refuses {_key(work, tenant)}: {failed.outcome}") from None
    return found


async def _over_mcp(work: Work, tenant: str | None) -> Has:
    assert work.address is not None
    target = McpTarget(work.address, work.era, work.keys)
    try:
        if (failed := await target.begin(tenant)) is not None:
            raise Failed(failed)
        return Has(await target.list("prompts", tenant), await target.list("tools", tenant))
    finally:
        target.close()


async def _over_rest(work: Work, tenant: str | None) -> Has:
    assert work.address is not None
    client = Client(work.address)
    headers = [("authorization", f"Bearer {work.keys[tenant]}")] if tenant is not None else []

    async def names(what: str) -> list[str]:
        response = await client.request("GET", f"/{what}/list", headers=headers)
        if (found := _names_in(response.body, what)) is None:
            raise Failed(outcome_of(response, Ask(name=what, kind="get")))
        return found

    try:
        return Has(await names("agents"), await names("tools"))
    finally:
        client.close()


def _names_in(body: bytes, key: str) -> list[str] | None:
    """The names in a list such as `{"agents": [{"name": ...}]}`; None if it has another form."""
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    listed = value.get(key) if isinstance(value, dict) else None
    if not isinstance(listed, list):
        return None
    return [each["name"] for each in listed if isinstance(each, dict) and isinstance(each.get("name"), str)]

"""One measurement, from a plan to its result: opens the target, makes the load, records the environment."""

import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import trio

from agents.service import Service
from benchmarks.cold import measure_cold
from benchmarks.fitting import fit
from benchmarks.load.account import OwnFigures
from benchmarks.load.schedule import Load, tenant_names
from benchmarks.processes import Made, Work, make, make_together, open_target
from benchmarks.publishing import publish_first, published, under_new_names
from benchmarks.report import machine
from benchmarks.report.result import Asked, Surroundings, result_of
from benchmarks.scenario import Ask, Scenario, ScenarioError
from benchmarks.targets.address import parse_url, resolve
from benchmarks.targets.mcp import Era, rest_of
from benchmarks.targets.pool import PoolTarget, open_pool_service
from benchmarks.targets.server_figures import ServerFigures
from engine.config import LoadedConfig
from engine.tenant import DEFAULT_TENANT

_MEMORY_POLL_S = 0.5
# The tables of the configuration that the result contains.
_CONFIG = ("sandbox", "limits", "retrieval")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All options. With `tenants` None, the scenario decides. `keys` are in the order of the tenants.

    `own` is the user's configuration: a pool runs with it; for a server, it is what the user claims it runs with.
    """

    target: Literal["run", "http", "mcp"]
    scenario: Scenario
    load: Load
    own: LoadedConfig | None = None
    url: str | None = None
    era: Era = "2026"
    allow_remote: bool = False
    keys: tuple[str, ...] = ()
    tenants: int | None = None
    hostile_percent: float = 0.0
    processes: int = 1
    command: str = ""


@dataclass(slots=True)
class Watch:
    """Observation of a measurement: `tell` is called with progress, and `stop` ends it early with a partial result."""

    tell: Callable[..., None] | None = None
    stop: trio.Event = field(default_factory=trio.Event)


@asynccontextmanager
async def interrupts(stop: trio.Event) -> AsyncIterator[None]:
    """While the block runs, Ctrl-C sets `stop` instead of raising. A second one raises KeyboardInterrupt again."""
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGINT) as arrived:

            async def listen() -> None:
                async for _ in arrived:
                    if stop.is_set():
                        raise KeyboardInterrupt
                    stop.set()

            nursery.start_soon(listen)
            yield
            nursery.cancel_scope.cancel()


async def measure(plan: Plan, watch: Watch) -> dict[str, Any]:
    """Make the load and return its result.

    Raises ScenarioError, Unfit (the target cannot answer the scenario), AddressError, ProcessFailed, and for a pool
    what opening one raises.
    """
    if plan.target == "run":
        return await (_cold(plan, watch) if plan.scenario.model == "cold" else _pool(plan, watch))
    if plan.scenario.model == "cold":
        raise ScenarioError(f"the scenario {plan.scenario.name!r} starts engines of its own: use `engine bench run`")
    return await _server(plan, watch)


# ---- a pool of this process --------------------------------------------------------------------------------------


async def _pool(plan: Plan, watch: Watch) -> dict[str, Any]:
    scenario = plan.scenario
    assert plan.own is not None
    count = plan.tenants or scenario.tenants
    work = Work(
        load=plan.load, asks=scenario.asks, tenants=tenant_names(count), zipf=scenario.zipf,
        tenant_zipf=scenario.tenant_zipf, target="run",
    )  # fmt: skip
    facts = machine.everything()
    async with open_pool_service(scenario, plan.own) as service:
        if scenario.publishes:
            await _prepare(work, service)
        async with interrupts(watch.stop):
            made, memory = await _with_memory(work, service, watch)
        around = Surroundings(machine=facts, config=_config(plan.own), layers=_layers(service), memory=memory)
    asked = _asked(plan, scenario.asks, tenants=count)
    return _result(asked, made, around, alone=False)


async def _prepare(work: Work, service: Service) -> None:
    """Create the tenants of a load that publishes in the pool's own control store, and publish what they call."""
    tenants = {*work.tenants, *(ask.tenant for ask in work.asks if ask.tenant is not None)}
    for tenant in tenants - {DEFAULT_TENANT.id}:
        await service.control.tenants.create(tenant, actor="bench")
    await publish_first(work, PoolTarget(service))


async def _with_memory(work: Work, service: Service, watch: Watch) -> tuple[Made, dict[str, int]]:
    """Make the load, and track the engine's own figure for its workers' memory, which counts shared pages in each.

    Reading the memory of processes from here would delay the load for milliseconds.
    """
    peak = 0.0

    async def look() -> None:
        nonlocal peak
        while True:
            peak = max(peak, service.engine.metrics.worker_memory_bytes)
            await trio.sleep(_MEMORY_POLL_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        made = await make(work, PoolTarget(service), watch.stop, watch.tell)
        nursery.cancel_scope.cancel()
    kib = 1024 if sys.platform == "linux" else 1  # getrusage(2)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kib
    return made, {"workers_peak_bytes": int(peak), "tester_peak_bytes": own}


async def _cold(plan: Plan, watch: Watch) -> dict[str, Any]:
    assert plan.own is not None
    load = replace(plan.load, rate=None, concurrency=1, warm_up_s=0.0)
    async with open_pool_service(plan.scenario, plan.own) as service:  # also checks that it can be opened
        around = Surroundings(machine=machine.everything(), config=_config(plan.own), layers=_layers(service))
    async with interrupts(watch.stop):
        account, elapsed_s = await measure_cold(plan.scenario, plan.own, load, watch.stop)
    asked = replace(_asked(replace(plan, load=load), plan.scenario.asks, tenants=1), model="cold")
    made = Made(account, (), elapsed_s, watch.stop.is_set())
    return _result(asked, made, around, alone=False)


def _config(loaded: LoadedConfig) -> dict[str, Any]:
    """The part of a configuration that the figures depend on. Nothing in these tables is secret."""
    return {name: getattr(loaded.config, name).model_dump(mode="json") for name in _CONFIG}


def _layers(service: Service) -> list[str]:
    return [layer.name for layer in service.engine.layers if layer.state == "active"]


# ---- a server ----------------------------------------------------------------------------------------------------


async def _server(plan: Plan, watch: Watch) -> dict[str, Any]:
    assert plan.url is not None
    scenario, url = plan.scenario, parse_url(plan.url)
    if plan.target == "mcp" and any(ask.kind == "get" for ask in scenario.asks):
        raise ScenarioError(f"the scenario {scenario.name!r} has a `get` request, which MCP has no form for")
    tenants, keys, notes = _tenants(plan)
    facts = machine.everything()
    address = await resolve(url, allow_remote=plan.allow_remote)
    if plan.target == "mcp" and not address.path:
        address = replace(address, path="/mcp")
    work = Work(
        load=plan.load, asks=scenario.asks, tenants=tenants, zipf=scenario.zipf, tenant_zipf=scenario.tenant_zipf,
        target=plan.target, address=address, era=plan.era, keys=keys,
    )  # fmt: skip
    fits = await fit(work, scenario)
    notes += fits.notes
    figures = ServerFigures(address)
    if fits.known:
        await figures.begin()
    work = replace(work, asks=under_new_names(fits.asks))
    async with (
        published(work, rest_of(address) if plan.target == "mcp" else address) as left,
        interrupts(watch.stop),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(figures.watch)
        made = await _make(work, plan.processes, watch)
        nursery.cancel_scope.cancel()
    notes += left
    memory = {"workers_peak_bytes": figures.memory_peak_bytes} if figures.memory_peak_bytes else {}
    around = Surroundings(
        machine=facts, config=None if plan.own is None else _config(plan.own), layers=figures.layers(),
        server=await figures.figures(), memory=memory,
    )  # fmt: skip
    asked = _asked(plan, fits.asks, tenants=len(tenants), notes=tuple(notes))
    return _result(asked, made, around, alone=True)


async def _make(work: Work, processes: int, watch: Watch) -> Made:
    # With a live display, a separate process makes the load, so that the display does not delay it.
    if processes > 1 or watch.tell is not None:
        return await make_together(work, processes, watch.stop, watch.tell)
    target = await open_target(work)
    try:
        return await make(work, target, watch.stop, watch.tell)
    finally:
        target.close()


def _tenants(plan: Plan) -> tuple[tuple[str, ...], dict[str, str], list[str]]:
    """The tenants to call a server as, their keys, and notes about them. Raises ScenarioError.

    Keys are in the order of the load's tenants, if any request is for one, and then of those that requests name.
    """
    scenario = plan.scenario
    count = plan.tenants or scenario.tenants
    named = list(dict.fromkeys(ask.tenant for ask in scenario.asks if ask.tenant is not None))
    if not plan.keys:
        if plan.tenants is not None and plan.tenants > 1:
            raise ScenarioError("--tenants over HTTP needs a key for each: give them with --key-file")
        if scenario.needs_tenants:
            raise ScenarioError(
                f"the scenario {scenario.name!r} needs several tenants: give their keys with --key-file, or use "
                "`engine bench run`"
            )
        notes = ["without --key-file all requests are of one tenant"] if count > 1 or named else []
        return tenant_names(1), {}, notes
    tenants = tenant_names(count)
    wanted = [*(tenants if any(ask.tenant is None for ask in scenario.asks) else ()), *named]
    if len(wanted) > len(plan.keys):
        raise ScenarioError(
            f"{len(wanted)} tenants ask, and each needs a key of its own: --key-file has {len(plan.keys)} "
            "(--tenants says how many tenants ask)"
        )
    spare = len(plan.keys) - len(wanted)
    notes = [f"keys of --key-file that are not used: {spare} (--tenants says how many tenants ask)"] if spare else []
    return tenants, dict(zip(wanted, plan.keys, strict=False)), notes


# ---- the result --------------------------------------------------------------------------------------------------


def _asked(plan: Plan, asks: tuple[Ask, ...], *, tenants: int, notes: tuple[str, ...] = ()) -> Asked:
    return Asked(
        target=plan.target,
        scenario=plan.scenario.name,
        about=plan.scenario.about,
        scenario_text=plan.scenario.text,
        requests=tuple(dict.fromkeys(map(str, asks))),
        load=plan.load,
        model="open" if plan.load.rate is not None else "closed",
        url=plan.url,
        era=plan.era if plan.target == "mcp" else None,
        tenants=tenants,
        hostile_percent=plan.hostile_percent,
        processes=plan.processes,
        notes=notes,
        command=plan.command,
    )


def _result(asked: Asked, made: Made, around: Surroundings, *, alone: bool) -> dict[str, Any]:
    tester = OwnFigures(cpu_shares=made.cpu_shares, alone=alone)
    return result_of(asked, made.account, tester, around, elapsed_s=made.elapsed_s, interrupted=made.interrupted)

"""A pool of workers as a target, without a server: the scenario's scripts in an engine inside the tester's process.

Every layer and limit is in effect, as configured. A run's result has its cost, so its times can be distinguished.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agents.agent import Call
from agents.code.failure import RunFailed
from agents.service import Service, open_service
from benchmarks.load.account import Answer
from benchmarks.load.schedule import Request
from benchmarks.scenario import Scenario
from benchmarks.targets import documents
from benchmarks.targets.rest import outcome_of_code
from benchmarks.targets.target import Unfit
from control.identity import Identity
from control.records import SCOPES
from engine.config import LoadedConfig, parse_config
from engine.errors import Problem
from engine.run import CallRecord, Hearers, RunResult
from engine.tenant import DEFAULT_TENANT, Tenant
from knowledge.sqlite.store import open_store


class PoolTarget:
    """A service that is called without HTTP."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tenants = {DEFAULT_TENANT.id: DEFAULT_TENANT}

    async def send(self, request: Request) -> Answer:
        """Make a call; returns its outcome and its cost."""
        ask = request.ask
        calls: list[CallRecord] = []
        call = Call(self._tenant(request.tenant), Hearers(call=calls.append))
        result: RunResult | None = None
        try:
            async with self._service.published(call.tenant):
                match ask.kind:
                    case "publish":
                        who = Identity(call.tenant, None, frozenset(SCOPES), operator=True)
                        body = ask.package(request.number)
                        await self._service.publishing.publish(call.tenant, who, "agent", ask.what, body)
                    case "agent":
                        result = (await self._service.resolve(ask.what, ask.numbered(request.number), call)).run
                    case _:
                        result = (await self._service.call_tool(ask.what, ask.numbered(request.number), call)).run
            outcome = "ok"
        except RunFailed as failed:
            result, outcome = failed.result, failed.result.outcome.value
        except Problem as problem:
            outcome = outcome_of_code(problem.code.value, problem.code.value)
        if result is None:
            return Answer(outcome=outcome)
        usage = result.usage
        return Answer(
            outcome=outcome,
            queue_s=usage.queue_s,
            run_s=usage.wall_s,
            host_calls_s=sum(each.wall_s for each in calls),
            cpu_s=usage.cpu_s,
            memory_bytes=usage.peak_memory_bytes,
        )

    def _tenant(self, name: str) -> Tenant:
        if (tenant := self._tenants.get(name)) is None:
            tenant = self._tenants[name] = Tenant(name)
        return tenant


@asynccontextmanager
async def open_pool_service(scenario: Scenario, own: LoadedConfig) -> AsyncIterator[Service]:
    """A service for the scenario: `[sandbox]`, `[limits]` and `[retrieval]` of the user's configuration with the
    scenario's scripts and documents; or with `own = true` the user's configuration as it is.

    Raises ConfigError, StoreError, SandboxUnavailable and Unfit (a script of the scenario does not load; or it would
    publish into the user's own control store).
    """
    if scenario.own and scenario.publishes:
        raise Unfit(
            "with own = true, a pool would publish into your own control store: bring the scripts along in [config], "
            "or use `engine bench http`"
        )
    with tempfile.TemporaryDirectory(prefix="engine-bench-") as folder:
        loaded = own if scenario.own else scenario_config(scenario, own, Path(folder))
        if not scenario.own:
            async with open_store(loaded.config.db.path, create=True, configured={}) as store:
                for batch in documents.batches():
                    await store.apply(batch)
        async with open_service(loaded) as service:
            check(scenario, service)
            yield service


def scenario_config(scenario: Scenario, own: LoadedConfig, folder: Path) -> LoadedConfig:
    """The configuration of a pool that runs the scenario's scripts, with a store in `folder`. Raises ConfigError."""
    config, warnings = parse_config(
        scenario.server_config(), environ={}, cwd=folder, shown_as=f"the scenario {scenario.name!r}"
    )
    taken = {"sandbox": own.config.sandbox, "limits": own.config.limits, "retrieval": own.config.retrieval}
    return LoadedConfig(config.model_copy(update=taken), None, folder, warnings)


def check(scenario: Scenario, service: Service) -> None:
    """Check that the service can answer every request of the scenario. Raises Unfit."""
    if service.failures:
        failure = service.failures[0]
        raise Unfit(f"{failure.kind} {failure.name} did not load: {failure.message}")
    published = [ask.what for ask in scenario.asks if ask.kind == "publish"]
    known = {
        "agent": [*published, *(info.name for info in service.list_agents(DEFAULT_TENANT))],
        "tool": [info.name for info in service.list_tools(DEFAULT_TENANT)],
        "publish": published,
    }
    for ask in scenario.asks:
        if ask.kind not in known:
            raise Unfit(f"{ask} is asked of a server: use `engine bench http`")
        if ask.what not in known[ask.kind]:
            raise Unfit(f"there is no {ask.kind} {ask.what!r}, which the scenario asks")

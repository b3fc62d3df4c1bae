"""Runs test files: each is listed once, and then each of its tests is a run of its own, as a script's are.

So each test has a fresh state and the limits of one run, and one that never ends is stopped alone.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from agents.code import schema_call
from agents.code.files import read_script
from cli.options import shown
from cli.scripts.testing.files import TestFile
from cli.scripts.testing.results import (
    LOADING,
    Declared,
    FileResult,
    Report,
    TestResult,
    failed,
    listing_of,
    not_run,
    result_of,
    skipped,
)
from engine.config import Config
from engine.engine import Engine, open_engine
from engine.errors import Problem
from engine.run import RunRequest, RunResult, Script
from engine.tenant import DEFAULT_TENANT

# Host calls that a test makes for real: this one computes, and reaches nothing.
_GRANTS = frozenset({schema_call.SCHEMA})


@dataclass(frozen=True, slots=True)
class Plan:
    """Which tests run, and how: those whose name contains `wanted`, `jobs` at once, each for at most `timeout_s`.

    None: as many as there are workers, and as long as the configuration lets a run last.
    """

    wanted: str = ""
    jobs: int | None = None
    timeout_s: float | None = None
    cover: bool = False


async def run(files: Sequence[TestFile], plan: Plan, config: Config, tell: Callable[[FileResult], None]) -> Report:
    """Run the files; `tell` is called for each in their order, as soon as it and those before it have ended.

    Raises SandboxUnavailable.
    """
    started = time.monotonic()
    config = _settings(config, plan)
    workers = config.sandbox.workers or len(os.sched_getaffinity(0))
    done: list[FileResult | None] = [None] * len(files)
    async with open_engine(config, schema_call.functions()) as engine:
        runner = _Runner(engine, plan, trio.CapacityLimiter(workers))
        open_files = trio.CapacityLimiter(2 * workers)
        told = 0

        async def one(position: int) -> None:
            nonlocal told
            async with open_files:
                done[position] = await runner.file(files[position])
            while told < len(done) and (result := done[told]) is not None:
                told += 1
                tell(result)

        async with trio.open_nursery() as nursery:
            for position in range(len(files)):
                nursery.start_soon(one, position)
    return Report([result for result in done if result is not None], time.monotonic() - started)


def _settings(config: Config, plan: Plan) -> Config:
    """The configuration for tests: without tenants, whose quotas are those of a server."""
    sandbox, limits = config.sandbox, config.limits
    if plan.jobs is not None:
        sandbox = sandbox.model_copy(update={"workers": plan.jobs})
    if (timeout_s := plan.timeout_s) is not None:
        bounds = {"defaults": limits.defaults, "max": limits.max}
        limits = limits.model_copy(update={key: {**bound, "timeout_s": timeout_s} for key, bound in bounds.items()})
    tenants = config.tenants.model_copy(update={"enabled": False, "oauth": None})
    return config.model_copy(update={"sandbox": sandbox, "limits": limits, "tenants": tenants})


@dataclass(frozen=True, slots=True)
class _Runner:
    """Runs the tests of files, as many at once as `slots` has places."""

    engine: Engine
    plan: Plan
    slots: trio.CapacityLimiter

    async def file(self, file: TestFile) -> FileResult:
        """One file: what it declares, and then its tests, side by side."""
        result = FileResult(file.path, shown(file.path), file.root)
        script = await self.script(file)
        if isinstance(script, str):
            result.tests.append(not_run(LOADING, script))
            return result
        cover = tuple(name for name, _ in script.modules if self.plan.cover)
        listed = await self.call(script, "list", {"cover": cover} if cover else {})
        if isinstance(listed, str):
            result.tests.append(not_run(LOADING, listed))
        elif listed.failure is not None:
            result.tests.append(failed(LOADING, listed))
        elif (listing := listing_of(listed.value)) is None:
            result.tests.append(not_run(LOADING, "the file did not list its tests"))
        else:
            result.executed = {name: dict.fromkeys(listing.lines.get(name, ()), 0) for name in cover}
            result.tests += await self.tests(script, listing.tests, cover, result)
        return result

    async def script(self, file: TestFile) -> Script | str:
        """The file with what it requires, or why it cannot be read."""
        bound = int(self.engine.limits_for({}, DEFAULT_TENANT)["source_bytes"])
        read = await trio.to_thread.run_sync(read_script, file.path, bound, file.root)
        if read.script is None:
            return "it cannot be read" if read.failure is None else read.failure.message
        return read.script

    async def tests(
        self, script: Script, declared: Sequence[Declared], cover: tuple[str, ...], file: FileResult
    ) -> list[TestResult]:
        """The tests whose names contain what is wanted, in their order. `file` counts the lines that they execute."""
        wanted = [(number, test) for number, test in enumerate(declared, 1) if self.plan.wanted in test.name]
        results: list[TestResult] = [skipped(test) for _, test in wanted]

        async def one(position: int, number: int, test: Declared) -> None:
            given = {"test": number, "name": test.name} | ({"cover": cover} if cover else {})
            ended = await self.call(script, "run", given)
            results[position] = not_run(test.name, ended) if isinstance(ended, str) else result_of(test, ended)
            if cover and not isinstance(ended, str):
                file.count(ended)

        async with trio.open_nursery() as nursery:
            for position, (number, test) in enumerate(wanted):
                if test.skip is None:
                    nursery.start_soon(one, position, number, test)
        return results

    async def call(self, script: Script, method: str, given: dict[str, Any]) -> RunResult | str:
        """One run of a test file with what it is given, or why it could not begin."""
        limits = self.engine.limits_for({}, DEFAULT_TENANT)
        request = RunRequest(
            tenant=DEFAULT_TENANT, name=script.name, script=script, root="test", method=method, args=(given,),
            limits=limits, grants=_GRANTS,
        )  # fmt: skip
        async with self.slots:
            try:
                return await self.engine.execute(request)
            except Problem as problem:
                return problem.message

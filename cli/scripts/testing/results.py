"""Results of tests as data, and how they are made from what a worker answers. Pure.

A worker is not trusted: its answers have bounds, and one of another shape is a failure of the test.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine.errors import amount
from engine.run import LogLine, RunResult

# The most tests of a file (testing.lua has the same figure), and the most log lines of a failed test that are kept.
MAX_TESTS = 1_000
MAX_LOGGED = 50
_NAME_CHARACTERS, _MESSAGE_CHARACTERS = 1_000, 16_384

Line = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Declared(msgspec.Struct, frozen=True):
    """One test as its file declares it; `skip` is the reason why it is not run."""

    name: str
    line: Line = 0
    skip: str | None = None


class Listing(msgspec.Struct, frozen=True):
    """What a file answers to `list`: its tests, and the lines that can be executed of each file that it requires."""

    tests: list[Declared]
    lines: dict[str, list[Line]] = {}


class Ended(msgspec.Struct, frozen=True):
    """What a file answers to `run`: how one test ended. `is_error`: by an error, not by an expectation."""

    status: Status
    message: str | None = None
    file: str | None = None
    line: Line | None = None
    traceback: str = ""
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """One test. `where` is the file and line of its failure."""

    __test__ = False  # not a test of pytest's

    name: str
    status: Status
    line: int = 0
    message: str = ""
    where: str = ""
    traceback: str = ""
    is_error: bool = False
    logs: Sequence[LogLine] = ()
    wall_s: float = 0.0


@dataclass(slots=True)
class FileResult:
    """One file: its tests in their order. `root` is the folder that it requires files from.

    `executed` has the executable lines of those files, each with the number of tests that executed it. A file that
    cannot be listed has one failed test, named LOADING.
    """

    path: Path
    shown: str
    root: Path
    tests: list[TestResult] = field(default_factory=list)
    executed: Mapping[str, dict[int, int]] = field(default_factory=dict)

    def count(self, run: RunResult) -> None:
        """Count the lines that a test executed, of those that can be: no others are kept."""
        hits = run.value.get("hits") if isinstance(run.value, dict) else None
        for name, lines in hits.items() if isinstance(hits, dict) else ():
            counts = self.executed.get(name, {})
            for line in {line for line in lines if type(line) is int} if isinstance(lines, list) else ():
                if line in counts:
                    counts[line] += 1


LOADING = "(the file itself)"


@dataclass(frozen=True, slots=True)
class Report:
    """All files, in their order, and how long the run took."""

    files: Sequence[FileResult]
    wall_s: float

    @property
    def tests(self) -> list[tuple[FileResult, TestResult]]:
        return [(file, test) for file in self.files for test in file.tests]

    def count(self, status: Status) -> int:
        return sum(test.status is status for _, test in self.tests)


def listing_of(value: Any) -> Listing | None:
    """The answer to `list`; None if it is not one."""
    try:
        listing = msgspec.convert(value, Listing)
    except msgspec.ValidationError:
        return None
    return listing if len(listing.tests) <= MAX_TESTS else None


def result_of(declared: Declared, run: RunResult) -> TestResult:
    """How a test ended, from its run."""
    name, wall_s = declared.name[:_NAME_CHARACTERS], run.usage.wall_s
    if run.failure is not None:
        return failed(name, run, declared.line)
    try:
        ended = msgspec.convert(run.value, Ended)
    except msgspec.ValidationError:
        ended = Ended(Status.FAILED, "the run of the test did not end as one", is_error=True)
    return TestResult(
        name=name,
        status=ended.status,
        line=declared.line,
        message=(ended.message or "")[:_MESSAGE_CHARACTERS],
        where=f"{ended.file}:{ended.line}" if ended.file and ended.line else "",
        traceback=ended.traceback[:_MESSAGE_CHARACTERS],
        is_error=ended.is_error,
        logs=_last(run) if ended.status is Status.FAILED else (),
        wall_s=wall_s,
    )


def failed(name: str, run: RunResult, line: int = 0) -> TestResult:
    """A test, or the listing of a file, whose run failed."""
    assert run.failure is not None
    limit = run.failure.limit
    said = f" ({limit.name} = {amount(limit.bound, limit.unit)})" if limit is not None else ""
    outcome = "" if run.outcome.value == "script_error" else f"{run.outcome.value}: "
    return TestResult(
        name=name,
        status=Status.FAILED,
        line=line,
        message=f"{outcome}{run.failure.message}{said if limit and limit.name not in run.failure.message else ''}",
        traceback=run.failure.traceback or "",
        is_error=True,
        logs=_last(run),
        wall_s=run.usage.wall_s,
    )


def skipped(declared: Declared) -> TestResult:
    """A test that is not run."""
    return TestResult(
        name=declared.name[:_NAME_CHARACTERS],
        status=Status.SKIPPED,
        line=declared.line,
        message=(declared.skip or "")[:_NAME_CHARACTERS],
    )


def not_run(name: str, message: str) -> TestResult:
    """A test, or a whole file, that could not be run at all."""
    return TestResult(name=name, status=Status.FAILED, message=message, is_error=True)


def _last(run: RunResult) -> Sequence[LogLine]:
    return run.logs[-MAX_LOGGED:]


def executed(files: Iterable[FileResult]) -> dict[Path, dict[int, int]]:
    """By file, its executable lines, each with the number of tests that executed it."""
    found: dict[Path, dict[int, int]] = {}
    for file in files:
        for name, counts in file.executed.items():
            whole = found.setdefault(file.root / name, {})
            for line, count in counts.items():
                whole[line] = whole.get(line, 0) + count
    return found

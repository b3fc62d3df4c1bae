"""`engine test`: the tests of scripts."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cli.options import ConfigPath, load, shown
from cli.output import FAILED, OK, UNUSABLE, Exit, note, quiet_logs, say, table
from cli.scripts.testing import reports
from cli.scripts.testing.files import find
from cli.scripts.testing.reports import Format
from cli.scripts.testing.results import FileResult, Report, Status, executed
from cli.scripts.testing.running import Plan, run

_MOST_JOBS = 64
_MOST_SECONDS = 86_400

Paths = Annotated[Path, Parameter(help="A test file, or a folder of them. Default: the configured scripts' folders.")]
Wanted = Annotated[
    str, Parameter(name="--filter", help="Run only tests whose name, with those around it, has this text.")
]
Output = Annotated[
    Path | None, Parameter(help="Write the report to this file, and plain text to standard output.", negative=())
]
Cover = Annotated[
    bool, Parameter(name="--coverage", help="Show which lines of the scripts were executed.", negative=())
]
Lcov = Annotated[Path | None, Parameter(help="Write the coverage to this file, in lcov's format.", negative=())]
Least = Annotated[
    float | None, Parameter(help="Exit code 1 when fewer percent of the lines were executed.", negative=())
]
Jobs = Annotated[int | None, Parameter(help="How many tests run at once. Default: one per worker.", negative=())]
Timeout = Annotated[
    float | None, Parameter(help="Seconds that a test may take, instead of limits.timeout_s.", negative=())
]


async def run_tests(
    *paths: Paths,
    wanted: Wanted = "",
    format: Annotated[Format, Parameter(help="The format of the report.")] = "plain",
    output: Output = None,
    coverage: Cover = False,
    coverage_lcov: Lcov = None,
    min_coverage: Least = None,
    jobs: Jobs = None,
    timeout: Timeout = None,  # noqa: ASYNC109
    config: ConfigPath = None,
) -> int:
    """Run the tests of scripts: files *_test.lua, each test in a fresh state of a confined worker."""
    _check("--jobs", jobs, 1, _MOST_JOBS)
    _check("--timeout", timeout, 0.01, _MOST_SECONDS)
    _check("--min-coverage", min_coverage, 0, 100)
    cover = coverage or coverage_lcov is not None or min_coverage is not None
    loaded = load(config)
    quiet_logs()
    files = find(paths, loaded)
    for_people = format == "plain" or output is not None

    def tell(file: FileResult) -> None:
        if for_people and file.tests:
            say("\n".join(reports.of_file(file)))

    report = await run(files, Plan(wanted, jobs, timeout, cover), loaded.config, tell)
    if not report.tests:
        raise Exit(UNUSABLE, f"no test has {wanted!r} in its name" if wanted else "the files declare no test")
    written = reports.WRITERS[format](report)
    if output is not None:
        output.write_text(written, encoding="utf-8", errors="backslashreplace")
    if for_people:
        say("\n".join([*reports.failures(report), "", reports.summary(report)]))
    else:
        say(written.rstrip("\n"))
        note(reports.summary(report))
    enough = not cover or _show_coverage(report, coverage_lcov, min_coverage, for_people=for_people)
    return OK if enough and not report.count(Status.FAILED) else FAILED


def _check(option: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:  # NaN fails it too
        raise Exit(UNUSABLE, f"{option}: expected a number from {least:g} to {most:,}, got {value:g}")


def _show_coverage(report: Report, path: Path | None, least: float | None, *, for_people: bool) -> bool:
    """Print and write which lines were executed. Whether these are enough."""
    found = executed(report.files)
    if path is not None:
        path.write_text(reports.lcov(found), encoding="utf-8", errors="backslashreplace")
    if for_people:
        say()
        heading = ("FILE", "LINES", "EXECUTED", "SHARE", "NOT EXECUTED")
        table(reports.coverage_rows(found, shown), heading=heading, indent="")
    share = reports.percent(found)
    if least is not None and share < least:
        note(f"coverage: {share:.1f}% of the lines were executed, and {least:g}% are the least (--min-coverage)")
        return False
    return True
